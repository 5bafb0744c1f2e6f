"""Records: whose they are, what happens when pages disagree or stop, and when what is missing may go."""

from __future__ import annotations

import pytest

from crawl_pipeline.domain.pages import CrawlId
from crawl_pipeline_tests.storage.invariants import broken_invariants
from crawl_pipeline_tests.storage.record_views import A, B, C, conflicts, current, history, removals
from crawl_pipeline_tests.storage.world import (
    World,
    claim,
    finished,
    record,
    version,
)


@pytest.fixture
def shop(world: World) -> tuple[int, CrawlId]:
    """A source in a crawl."""
    source = world.source()
    return source, world.crawl(source)


# Ownership


def test_record_belongs_to_the_page_that_first_yielded_it(world: World, shop: tuple[int, CrawlId]) -> None:
    assert world.merge(*shop, {A: [record("1", 10)]}).added == 1
    second = world.merge(*shop, {B: [record("1", 20)]})
    assert (second.added, second.changed, conflicts(world)) == (0, 0, 1)
    assert current(world) == [("1", 10, A, False, False)]
    assert history(world) == [(10, True)]
    assert broken_invariants(world.database) == {}


def test_unchanged_page_writes_no_record_and_no_version(world: World, shop: tuple[int, CrawlId]) -> None:
    world.merge(*shop, {A: [record("1"), record("2")]})
    tables = ("records", "record_pages", "record_versions")
    before = [world.rows(f"SELECT ctid::text, * FROM {table} ORDER BY 2, 3") for table in tables]
    again = world.merge(*shop, {A: [record("2"), record("1")]}, version_id=2)
    assert (again.added, again.changed, again.missing) == (0, 0, 0)
    assert [world.rows(f"SELECT ctid::text, * FROM {table} ORDER BY 2, 3") for table in tables] == before


def test_owner_changes_its_record_and_history_follows(world: World, shop: tuple[int, CrawlId]) -> None:
    for price in (1, 2, 2, 1):
        world.merge(*shop, {A: [record("1", price)]})
    assert history(world) == [(1, False), (2, False), (1, True)]
    row = world.rows("SELECT first_seen_at, last_changed_at FROM records")[0]
    assert row.last_changed_at > row.first_seen_at
    assert world.scalar("SELECT max(valid_from) FROM record_versions") == row.last_changed_at
    assert broken_invariants(world.database) == {}


def test_ownership_passes_to_the_oldest_other_claim_with_its_own_data(world: World, shop: tuple[int, CrawlId]) -> None:
    world.merge(*shop, {A: [record("1", 10)]})
    world.merge(*shop, {C: [record("1", 30)]})
    world.merge(*shop, {B: [record("1", 20)]})
    result = world.merge(*shop, {A: []})
    assert (result.changed, result.missing) == (1, 0)
    assert current(world) == [("1", 30, C, False, False)]
    world.merge(*shop, {C: []})
    assert current(world) == [("1", 20, B, False, False)]
    assert history(world) == [(10, False), (30, False), (20, True)]
    assert conflicts(world) == 0
    assert broken_invariants(world.database) == {}


def test_ownership_that_passes_between_equal_claims_changes_nothing_else(
    world: World, shop: tuple[int, CrawlId]
) -> None:
    world.merge(*shop, {A: [record("1", 10)]})
    world.merge(*shop, {B: [record("1", 10)]})
    before = world.scalar("SELECT last_changed_at FROM records")
    assert world.merge(*shop, {A: []}).changed == 0
    assert current(world) == [("1", 10, B, False, False)]
    assert world.scalar("SELECT last_changed_at FROM records") == before
    assert history(world) == [(10, True)]


def test_claim_that_agreed_keeps_its_data_when_the_owner_changes(world: World, shop: tuple[int, CrawlId]) -> None:
    """Without the CTE `k` in merge_records, B's turn brings A's last data under B's name."""
    world.merge(*shop, {A: [record("1", 10)]})
    world.merge(*shop, {B: [record("1", 10)]})
    world.merge(*shop, {A: [record("1", 11)]})
    assert conflicts(world) == 1
    world.merge(*shop, {A: []})
    assert current(world) == [("1", 10, B, False, False)]
    assert history(world) == [(10, False), (11, False), (10, True)]
    assert broken_invariants(world.database) == {}


def test_conflict_ends_when_the_pages_agree_again(world: World, shop: tuple[int, CrawlId]) -> None:
    world.merge(*shop, {A: [record("1", 10)]})
    world.merge(*shop, {B: [record("1", 20)]})
    assert conflicts(world) == 1
    world.merge(*shop, {A: [record("1", 20)]})
    assert conflicts(world) == 0
    assert broken_invariants(world.database) == {}


# Two pages of one group


@pytest.mark.parametrize(("other", "differ"), [(1, 0), (2, 1)])
def test_two_pages_of_one_group_that_yield_one_record(
    world: World, shop: tuple[int, CrawlId], other: int, differ: int
) -> None:
    result = world.merge(*shop, {B: [record("1", 1)], A: [record("1", other)]})
    assert (result.added, result.changed, conflicts(world)) == (1, 0, differ)
    assert current(world) == [("1", 1, B, False, False)]
    assert world.scalar("SELECT count(*) FROM record_pages") == 2
    assert history(world) == [(1, True)]
    assert broken_invariants(world.database) == {}


def test_record_that_moves_between_pages_of_one_group_is_neither_missing_nor_changed(
    world: World, shop: tuple[int, CrawlId]
) -> None:
    world.merge(*shop, {A: [record("1")]})
    result = world.merge(*shop, {A: [], B: [record("1")]})
    assert (result.added, result.changed, result.missing) == (0, 0, 0)
    assert current(world) == [("1", 1, B, False, False)]


def test_page_that_yields_one_record_twice_with_equal_data_stores_it_once(
    world: World, shop: tuple[int, CrawlId]
) -> None:
    world.merge(*shop, {A: [record("1"), record("1")]})
    assert current(world) == [("1", 1, A, False, False)]


def test_lost_page_of_a_group_neither_yields_nor_stops_records(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, A, B)
    due = world.scalar("SELECT opened_at FROM crawls")
    for lease in claim(frontier):
        frontier.complete(
            [finished(lease, lease.urls[0], version=version("1"), records=(record("1"), record("2")), due_at=due)]
        )
    world.execute("UPDATE crawls SET opened_at = clock_timestamp()")
    leases = claim(frontier)
    owners = {row.url_key for row in world.rows("SELECT url_key FROM records")}
    lost = next(lease for lease in leases if lease.urls[0].key in owners)
    kept = next(lease for lease in leases if lease is not lost)
    frontier.release([lost.token])
    completion = frontier.complete(
        [
            finished(lost, lost.urls[0], records=(record("3"),)),
            finished(kept, kept.urls[0], records=(record("2", 5), record("4"))),
        ]
    )
    assert completion.lost == {0}
    owner, other = lost.urls[0].url, kept.urls[0].url
    assert current(world) == [
        ("1", 1, owner, False, False),
        ("2", 1, owner, False, False),
        ("4", 1, other, False, False),
    ]
    assert broken_invariants(world.database) == {}


# Missing, reappearing, gone


def test_record_that_no_page_yields_is_marked_and_stays_until_the_end(world: World, shop: tuple[int, CrawlId]) -> None:
    world.merge(*shop, {A: [record("1"), record("2")]})
    assert world.merge(*shop, {A: [record("2")]}).missing == 1
    assert world.merge(*shop, {A: [record("2")]}).missing == 0
    assert current(world) == [("1", 1, A, True, False), ("2", 1, A, False, False)]
    assert history(world) == [(1, True), (1, True)]


def test_missing_record_that_reappears_unchanged_was_never_away(world: World, shop: tuple[int, CrawlId]) -> None:
    world.merge(*shop, {A: [record("1")]})
    before = world.rows("SELECT last_changed_at FROM records")
    world.merge(*shop, {A: []})
    result = world.merge(*shop, {B: [record("1")]})
    assert (result.added, result.changed) == (0, 0)
    assert current(world) == [("1", 1, B, False, False)]
    assert world.rows("SELECT last_changed_at FROM records") == before
    assert history(world) == [(1, True)]
    assert broken_invariants(world.database) == {}


def test_gone_record_that_reappears_has_a_new_version_after_the_gap(world: World, shop: tuple[int, CrawlId]) -> None:
    world.merge(*shop, {A: [record("1")]})
    world.merge(*shop, {A: []})
    assert removals(world, shop, 1.0).is_applied
    assert current(world) == [("1", 1, A, True, True)]
    assert history(world) == [(1, False)]
    assert world.merge(*shop, {B: [record("1")]}).changed == 1
    assert current(world) == [("1", 1, B, False, False)]
    assert history(world) == [(1, False), (1, True)]
    assert broken_invariants(world.database) == {}


@pytest.mark.parametrize(
    ("gone", "max_drop", "is_applied"), [(5, 0.5, True), (6, 0.5, False), (7, 0.7, True), (1, 0.0, False)]
)
def test_removals_within_the_guard_are_applied_and_beyond_it_held(
    world: World, shop: tuple[int, CrawlId], gone: int, max_drop: float, is_applied: bool
) -> None:
    everything = [record(str(n)) for n in range(10)]
    world.merge(*shop, {A: everything})
    world.merge(*shop, {A: everything[gone:]})
    result = removals(world, shop, max_drop)
    assert (result.missing, result.total, result.is_applied) == (gone, 10, is_applied)
    assert sum(row[4] for row in current(world)) == (gone if is_applied else 0)
    assert len(world.rows("SELECT * FROM holds WHERE released_at IS NULL")) == (0 if is_applied else 1)
    assert broken_invariants(world.database) == {}


def test_held_removals_are_applied_when_a_person_releases_them(world: World, shop: tuple[int, CrawlId]) -> None:
    world.merge(*shop, {A: [record("1"), record("2")]})
    world.merge(*shop, {A: []})
    assert not removals(world, shop, 0.5).is_applied
    assert not removals(world, shop, 0.5).is_applied  # the next crawl finds the same: one hold
    assert [row.missing_count for row in world.rows("SELECT * FROM holds")] == [2]
    assert removals(world, shop, 0.5, force=True).is_applied
    assert [row[4] for row in current(world)] == [True, True]
    assert world.scalar("SELECT count(*) FROM holds WHERE released_at IS NULL") == 0
    assert removals(world, shop, 0.5).missing == 0


def test_hold_ends_by_itself_when_the_records_come_back(world: World, shop: tuple[int, CrawlId]) -> None:
    everything = [record("1"), record("2")]
    world.merge(*shop, {A: everything})
    world.merge(*shop, {A: []})
    assert not removals(world, shop, 0.5).is_applied
    world.merge(*shop, {A: everything})
    assert removals(world, shop, 0.5).is_applied
    assert world.scalar("SELECT count(*) FROM holds WHERE released_at IS NULL") == 0
    assert history(world) == [(1, True), (1, True)]

"""Records: whose they are, what happens when pages disagree or stop, and when what is missing may go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crawl_pipeline.domain.pages import CrawlId
from crawl_pipeline.domain.records import Record
from crawl_pipeline.storage import pages, sources
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.pages import ReExtracted
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.storage.world import (
    EXTRACTOR,
    HOLDER,
    InThread,
    World,
    broken_invariants,
    claim,
    finish_all,
    finished,
    page_url,
    record,
    version,
)

A, B, C = "http://a/", "http://b/", "http://c/"


@pytest.fixture
def world(database: Database) -> World:
    return World(database)


@pytest.fixture
def shop(world: World) -> tuple[int, CrawlId]:
    """A source in a crawl."""
    source = world.source()
    return source, world.crawl(source)


def current(world: World) -> list[tuple[str, int, str, bool, bool]]:
    """(sku, price, page, is missing, is gone) of every record."""
    pages_by_key = {page_url(url).key: url for url in (A, B, C)}
    rows = world.rows("SELECT data, url_key, missing_since, gone_at FROM records ORDER BY data ->> 'sku'")
    return [
        (r.data["sku"], r.data["price"], pages_by_key[r.url_key], r.missing_since is not None, r.gone_at is not None)
        for r in rows
    ]


def history(world: World) -> list[tuple[int, bool]]:
    """(price, is current) of all record versions, in order."""
    rows = world.rows("SELECT data, valid_to FROM record_versions ORDER BY record_id, valid_from")
    return [(row.data["price"], row.valid_to is None) for row in rows]


def conflicts(world: World) -> int:
    return int(world.scalar("SELECT count(*) FROM record_pages WHERE data IS NOT NULL"))


def removals(world: World, shop: tuple[int, CrawlId], max_drop: float, *, force: bool = False) -> sources.Removal:
    with world.database.connection() as connection:
        return sources.apply_removals(connection, *shop, "product", max_drop, force=force)


# Ownership


def test_record_belongs_to_the_page_that_first_yielded_it(world: World, shop: tuple[int, CrawlId]) -> None:
    assert world.merge(*shop, {A: [record("1", 10)]}).added == 1
    second = world.merge(*shop, {B: [record("1", 20)]})
    assert (second.added, second.changed, second.conflicts) == (0, 0, 1)
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
    assert (result.added, result.changed, result.conflicts) == (1, 0, differ)
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


# Time and concurrency


def test_history_never_overlaps_when_an_earlier_commit_waited_for_a_later_one(
    world: World, shop: tuple[int, CrawlId]
) -> None:
    """A commit reads the clock before it has its locks: greatest() in merge_records mends the times."""
    world.merge(*shop, {A: [record("1", 1)]})
    world.execute("UPDATE record_versions SET valid_from = valid_from + interval '1 minute'")
    world.merge(*shop, {A: [record("1", 2)]})
    world.merge(*shop, {A: []})
    assert removals(world, shop, 1.0).is_applied
    world.execute("UPDATE record_versions SET valid_to = valid_to + interval '1 minute' WHERE data ->> 'price' = '2'")
    world.merge(*shop, {A: [record("1", 3)]})
    assert history(world) == [(1, False), (2, False), (3, True)]
    assert broken_invariants(world.database) == {}


def test_commits_that_yield_the_same_records_in_other_orders_do_not_deadlock(
    world: World, shop: tuple[int, CrawlId]
) -> None:
    """Removing `ORDER BY a.id` from the insert of merge_records, and with it the one pass, deadlocks here."""
    many = [record(str(n)) for n in range(40)]
    _slow_down(world, "records")
    first = InThread(lambda: world.merge(*shop, {A: many}))
    second = InThread(lambda: world.merge(*shop, {B: many[::-1]}))
    assert first.result().added + second.result().added == 40
    assert conflicts(world) == 0
    assert broken_invariants(world.database) == {}


def test_release_of_a_hold_waits_for_a_commit_in_its_order(world: World, shop: tuple[int, CrawlId]) -> None:
    """Without the ordered lock in apply_removals, the two take the records in opposite orders and deadlock."""
    many = sorted((record(str(n)) for n in range(20)), key=lambda r: r.record_id, reverse=True)
    for one in many:  # heap order is the reverse of the key order
        world.merge(*shop, {f"http://a/{one.key}": [one]})
    world.merge(*shop, {f"http://a/{one.key}": [] for one in many})
    _slow_down(world, "records")
    release = InThread(lambda: removals(world, shop, 0.1, force=True))
    commit = InThread(lambda: world.merge(*shop, {A: [record(str(n), 2) for n in range(20)]}))
    commit.result()
    release.result()
    assert broken_invariants(world.database) == {}


def _slow_down(world: World, table: str) -> None:
    """Every row of the table takes 20 ms to write, so that two writers meet in the middle."""
    world.execute("""
        CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END $$
    """)
    world.execute(f"CREATE TRIGGER slowly BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION slowly()")


_YIELDS = st.dictionaries(
    st.sampled_from([A, B, C]),
    st.dictionaries(st.sampled_from(["1", "2"]), st.integers(1, 2), max_size=2),
    min_size=1,
    max_size=3,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(st.tuples(_YIELDS, st.sampled_from(["keep", "keep", "remove"])), min_size=2, max_size=8))
def test_whatever_pages_yield_a_record_is_its_owners_or_missing(
    world: World, steps: Sequence[tuple[dict[str, dict[str, int]], str]]
) -> None:
    """Owner, data, claims and history agree after every step, and nothing is lost that a page yields."""
    with world.database.connection() as connection:
        connection.exec_driver_sql("TRUNCATE records, record_pages, record_versions, holds, crawls CASCADE")
    source = world.source()
    shop = source, world.crawl(source)
    yields: dict[str, dict[str, int]] = {}
    for pages_now, ending in steps:
        result = world.merge(*shop, {url: [record(k, p) for k, p in skus.items()] for url, skus in pages_now.items()})
        yields.update(pages_now)
        assert result.added <= 2
        if ending == "remove":
            removals(world, shop, 1.0)
        claims = {(sku, url): price for url, skus in yields.items() for sku, price in skus.items()}
        assert {row[0] for row in current(world) if not row[3]} == {sku for sku, _ in claims}
        for sku, price, url, is_missing, _ in current(world):
            assert is_missing or claims[sku, url] == price
        assert broken_invariants(world.database) == {}


# Re-extraction


def test_re_extraction_stores_records_without_a_page_version_while_it_holds_the_source(world: World) -> None:
    source, crawl_id, frontier = world.opened()
    world.seed(source, A)
    finish_all(frontier, claim(frontier), version=version("text"), records=(record("1"),))
    stale = pages.stale(world.database, source, "rules-2", None, 10)
    assert [(page.url, page.body) for page in stale] == [(A, b"text")]
    assert pages.stale(world.database, source, EXTRACTOR, None, 10) == []
    page = ReExtracted(
        key=stale[0].key,
        version_id=stale[0].version_id,
        extractor_version="rules-2",
        content_hash=b"h" * 32,
        new_urls=0,
        records=(record("1", 9), record("2")),
    )
    pages.store_extractions(world.database, source, crawl_id, "another run", [page])
    assert current(world) == [("1", 1, A, False, False)]
    pages.store_extractions(world.database, source, crawl_id, HOLDER.run_id, [page])
    assert current(world) == [("1", 9, A, False, False), ("2", 1, A, False, False)]
    counts = dict(world.rows("SELECT name, n FROM counts WHERE crawl_id = :c", c=crawl_id))
    assert (counts["records_added"], counts["records_changed"]) == (2, 1)
    assert pages.stale(world.database, source, "rules-2", None, 10) == []
    assert world.scalar("SELECT count(*) FROM page_versions") == 1
    assert broken_invariants(world.database) == {}


def test_record_of_another_type_is_no_removal_of_this_one(world: World, shop: tuple[int, CrawlId]) -> None:
    world.merge(*shop, {A: [record("1")]})
    world.merge(*shop, {A: []})
    with world.database.connection() as connection:
        other: Any = sources.apply_removals(connection, *shop, "review", 0.0)
    assert (other.missing, other.is_applied) == (0, True)
    assert [row[4] for row in current(world)] == [False]


def test_one_natural_key_is_one_record_whatever_its_id(world: World, shop: tuple[int, CrawlId]) -> None:
    world.merge(*shop, {A: [record("1")]})
    alien = Record(
        record_id=record("2").record_id,
        record_type="product",
        key=record("1").key,
        data=record("1").data,
        data_hash=record("1").data_hash,
    )
    with pytest.raises(sa.exc.IntegrityError, match="records_have_one_natural_key"):
        world.merge(*shop, {B: [alien]})
    wait_until(lambda: broken_invariants(world.database) == {})

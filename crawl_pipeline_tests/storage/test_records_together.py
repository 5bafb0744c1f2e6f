"""Records when commits meet, when clocks and waits disagree, and when today's rules read yesterday's pages."""

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
from crawl_pipeline.storage.pages import ReExtracted
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.storage.invariants import broken_invariants
from crawl_pipeline_tests.storage.record_views import A, B, C, conflicts, current, history, removals
from crawl_pipeline_tests.storage.world import EXTRACTOR, HOLDER, InThread, World, claim, finish_all, record, version


@pytest.fixture
def shop(world: World) -> tuple[int, CrawlId]:
    """A source in a crawl."""
    source = world.source()
    return source, world.crawl(source)


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

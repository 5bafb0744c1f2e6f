"""complete: one transaction holds a page's whole effect, under its lease token, and repeating it changes nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline_tests.storage.invariants import broken_invariants
from crawl_pipeline_tests.storage.world import (
    FAR,
    World,
    claim,
    fetch_log,
    finish_all,
    finished,
    links,
    page_url,
    record,
    version,
)

A, B, C = "http://a/", "http://b/", "http://c/"
TABLES = ("bodies", "page_versions", "extractions", "records", "record_pages", "record_versions", "fetches", "urls")


def contents(world: World) -> dict[str, Any]:
    return {table: world.rows(f"SELECT * FROM {table} ORDER BY 1, 2, 3") for table in TABLES}


def counters(world: World, crawl_id: object) -> dict[str, int]:
    return dict(world.rows("SELECT name, n FROM counts WHERE crawl_id = :c", c=crawl_id))


def test_whole_effect_of_a_page_is_stored_at_once(world: World) -> None:
    source, crawl_id, frontier = world.opened()
    world.seed(source, A)
    lease = claim(frontier)[0]
    completion = frontier.complete(
        [
            finished(
                lease,
                lease.urls[0],
                version=version("text"),
                records=(record("1"),),
                links=links(f"{A}1", B, f"{A}1"),
                has_validators=True,
                etag='"e"',
                last_modified="now",
                fetches=(fetch_log(A), fetch_log(f"{A}redirected")),
            )
        ]
    )
    assert (completion.lost, completion.new_urls, completion.blocked) == (frozenset(), 2, {})
    row = world.url(A)
    assert (row.state, row.outcome, row.reason, row.due_at, row.etag) == ("accepted", "accepted", None, FAR, '"e"')
    assert row.accepted_at == row.last_fetched_at is not None
    stored = world.rows("SELECT * FROM page_versions")[0]
    assert (row.version_id, stored.version_no, stored.title) == (stored.version_id, 1, "text")
    assert world.rows("SELECT version_id FROM records") == [(stored.version_id,)]
    assert world.rows("SELECT version_id FROM extractions") == [(stored.version_id,)]
    assert world.scalar("SELECT count(*) FROM fetches") == 2
    assert [(link.state, link.depth, link.discovered_from) for link in map(world.url, (f"{A}1", B))] == [
        ("queued", 1, page_url(A).key)
    ] * 2
    assert counters(world, crawl_id) == {"accepted": 1, "versions": 1, "new_urls": 2, "records_added": 1}
    assert world.scalar("SELECT count(*) FROM leases") == 0
    assert broken_invariants(world.database) == {}


def test_completion_repeated_after_a_lost_answer_changes_nothing(world: World) -> None:
    source, crawl_id, frontier = world.opened()
    world.seed(source, f"{A}1", f"{A}2", f"{A}3")
    lease = claim(frontier)[0]
    pages = [
        finished(lease, url, version=version(url.url), records=(record(url.url),), links=links(f"{url.url}/new"))
        for url in lease.urls[:2]
    ]
    assert frontier.complete(pages).lost == frozenset()
    before = contents(world), counters(world, crawl_id), world.rows("SELECT * FROM leases")
    again = frontier.complete(pages)
    assert (again.lost, again.new_urls) == (frozenset({0, 1}), 0)
    assert (contents(world), counters(world, crawl_id), world.rows("SELECT * FROM leases")) == before


def test_lost_page_of_a_group_stores_nothing_and_its_neighbours_everything(world: World) -> None:
    source, crawl_id, frontier = world.opened()
    world.seed(source, *(f"{host}{n}" for host in (A, B) for n in (1, 2)))
    leases = {lease.authority: lease for lease in claim(frontier)}
    world.expire(leases["a"])
    assert world.scalar("SELECT r_leases FROM requeue_expired()") == 1
    urls = [(leases[name], url) for name in ("a", "b") for url in leases[name].urls]
    order = [urls[0], urls[2], urls[1], urls[3]]
    completion = frontier.complete(
        [
            finished(lease, url, version=version(url.url), records=(record(url.url),), links=links(f"{url.url}/new"))
            for lease, url in order
        ]
    )
    assert completion.lost == {0, 2}
    assert completion.new_urls == 2
    kept = {url.url for _, url in urls[2:]}
    assert {row.markdown for row in world.rows("SELECT markdown FROM page_versions")} == kept
    assert {row.url for row in world.rows("SELECT url FROM fetches")} == kept
    assert {row.k for row in world.rows("SELECT data ->> 'sku' AS k FROM records")} == kept
    assert world.states(source) == {"accepted": 2, "queued": 4}
    assert counters(world, crawl_id) == {"accepted": 2, "versions": 2, "new_urls": 2, "records_added": 2}
    assert broken_invariants(world.database) == {}


def test_group_with_a_value_that_the_database_refuses_leaves_no_trace(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, f"{A}1", f"{A}2")
    lease = claim(frontier)[0]
    good, bad = (finished(lease, url, version=version(url.url)) for url in lease.urls)
    before = contents(world)
    with pytest.raises(sa.exc.DBAPIError):
        frontier.complete([good, replace(bad, version=replace(version("x"), body_hash=b"short"))])
    assert contents(world) == before
    assert frontier.complete([good]).lost == frozenset()


def test_transient_failure_queues_the_page_again_and_keeps_what_was_known(world: World) -> None:
    source, crawl_id, frontier = world.opened()
    world.seed(source, A)
    finish_all(frontier, claim(frontier), version=version("1"), due_at=world.scalar("SELECT opened_at FROM crawls"))
    known = world.url(A)
    lease = claim(frontier)[0]
    due = world.scalar("SELECT now() + interval '1 minute'")
    frontier.complete([finished(lease, lease.urls[0], UrlState.QUEUED, reason="timeout", tries=1, due_at=due)])
    row = world.url(A)
    assert (row.state, row.reason, row.tries, row.due_at, row.outcome) == ("queued", "timeout", 1, due, "accepted")
    for name in ("accepted_at", "last_fetched_at", "version_id", "etag"):
        assert getattr(row, name) == getattr(known, name), name
    assert counters(world, crawl_id)["retried"] == 1
    assert world.rows("SELECT lane FROM queues WHERE next_due_at < 'infinity'") == [(0,)]


@pytest.mark.parametrize(
    ("state", "moves"),
    [
        (UrlState.UNCHANGED, {"accepted_at", "last_fetched_at"}),
        (UrlState.REJECTED, {"last_fetched_at"}),
        (UrlState.QUARANTINED, set()),
        (UrlState.CANCELLED, set()),
    ],
)
def test_outcome_moves_only_the_times_that_it_says_something_about(
    world: World, state: UrlState, moves: set[str]
) -> None:
    source, crawl_id, frontier = world.opened()
    world.seed(source, A)
    finish_all(frontier, claim(frontier), version=version("1"), due_at=world.scalar("SELECT opened_at FROM crawls"))
    known = world.url(A)
    lease = claim(frontier)[0]
    due = FAR if moves else None
    frontier.complete([finished(lease, lease.urls[0], state, reason="http_status", due_at=due)])
    row = world.url(A)
    moved = {name for name in ("accepted_at", "last_fetched_at") if getattr(row, name) != getattr(known, name)}
    assert moved == moves
    assert (row.state, row.version_id) == (state, known.version_id)
    assert row.outcome == (state if moves else "accepted")
    assert world.scalar("SELECT count(*) FROM page_versions") == 1
    assert counters(world, crawl_id)[state.value] == 1
    assert broken_invariants(world.database) == {}


def test_both_validators_are_replaced_at_each_200_also_by_nothing(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, A)
    due = world.scalar("SELECT opened_at FROM crawls")
    finish_all(frontier, claim(frontier), has_validators=True, etag='"1"', last_modified="then", due_at=due)
    finish_all(frontier, claim(frontier), state=UrlState.UNCHANGED, due_at=due)
    assert (world.url(A).etag, world.url(A).last_modified) == ('"1"', "then")
    finish_all(frontier, claim(frontier), has_validators=True, etag=None, last_modified="later", due_at=due)
    assert (world.url(A).etag, world.url(A).last_modified) == (None, "later")


def test_content_that_comes_back_is_a_third_version_and_no_third_body(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, A)
    for text in ("one", "two", "one"):
        finish_all(
            frontier, claim(frontier), version=version(text), due_at=world.scalar("SELECT opened_at FROM crawls")
        )
    rows = world.rows("SELECT version_no, markdown, version_id FROM page_versions ORDER BY version_no")
    assert [(row.version_no, row.markdown) for row in rows] == [(1, "one"), (2, "two"), (3, "one")]
    assert world.scalar("SELECT count(*) FROM bodies") == 2
    assert world.url(A).version_id == rows[-1].version_id


def test_one_body_of_many_pages_is_stored_once(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, *(f"{A}{n}" for n in range(5)))
    lease = claim(frontier)[0]
    frontier.complete([finished(lease, url, version=version("same")) for url in lease.urls])
    assert world.scalar("SELECT count(*) FROM bodies") == 1
    assert world.scalar("SELECT count(*) FROM page_versions") == 5


def test_newer_rules_note_their_content_hash_without_a_version(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, A)
    due = world.scalar("SELECT opened_at FROM crawls")
    finish_all(frontier, claim(frontier), version=version("1"), due_at=due)
    finish_all(frontier, claim(frontier), state=UrlState.UNCHANGED, extraction=("rules-2", b"h" * 32), due_at=due)
    assert world.rows("SELECT extractor_version, content_hash FROM extractions") == [("rules-2", b"h" * 32)]
    known = claim(frontier)[0].urls[0].version
    assert known is not None
    assert (known.extractor_version, known.content_hash) == ("rules-2", b"h" * 32)
    assert world.scalar("SELECT count(*) FROM page_versions") == 1


def test_known_links_stay_as_they_are_and_new_ones_take_the_least_depth(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, f"{A}1", f"{A}2", B)
    leases = claim(frontier)
    known = world.url(B)
    (lease,) = (lease for lease in leases if lease.authority == "a")
    deep, shallow = links(C, depth=5), links(C, B, depth=2)
    completion = frontier.complete(
        [finished(lease, lease.urls[0], links=deep), finished(lease, lease.urls[1], links=shallow)]
    )
    assert completion.new_urls == 1
    assert (world.url(C).depth, world.url(C).discovered_from) == (2, lease.urls[1].key)
    assert world.url(B) == known


def test_urls_beyond_max_urls_are_counted_and_not_stored(world: World) -> None:
    source, crawl_id, frontier = world.opened(max_urls=5)
    assert world.seed(source, f"{A}1", f"{A}2") == 2
    lease = claim(frontier)[0]
    found = links(*(f"{B}{n}" for n in range(10)))
    assert frontier.complete([finished(lease, lease.urls[0], links=found)]).new_urls == 3
    assert frontier.complete([finished(lease, lease.urls[1], links=found)]).new_urls == 0
    assert counters(world, crawl_id)["over_max_urls"] == 14
    assert world.seed(source, C) == 0
    assert world.scalar("SELECT count(*) FROM urls") == 5


def test_sitemaps_are_claimed_but_counted_nowhere_as_pages(world: World) -> None:
    source, crawl_id, frontier = world.opened()
    with world.database.connection() as connection:
        connection.exec_driver_sql(
            "SELECT discover(%s, %s::uuid[], %s::text[], %s::text[], '{0}', %s::uuid[], true)",
            (source, [page_url(A).key], ["a"], [A], [None]),
        )
    lease = claim(frontier)[0]
    assert lease.urls[0].is_sitemap
    frontier.complete([finished(lease, lease.urls[0], links=links(B))])
    assert counters(world, crawl_id) == {"new_urls": 1}
    assert world.rows("SELECT name, n FROM counts WHERE crawl_id <> :c AND n <> 0", c=crawl_id) == [("queued", 1)]
    assert broken_invariants(world.database) == {}


def test_text_that_postgres_cannot_hold_is_stored_without_it(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, A)
    lease = claim(frontier)[0]
    odd = replace(version("x"), title="a\0b", markdown="surrogate \ud800 here")
    assert frontier.complete([finished(lease, lease.urls[0], version=odd)]).lost == frozenset()
    assert world.rows("SELECT title, markdown FROM page_versions") == [("ab", "surrogate ? here")]


def test_lease_ends_with_its_last_page_and_its_host_is_free_again(world: World) -> None:
    source, _, frontier = world.opened(slots=1)
    world.seed(source, f"{A}1", f"{A}2", f"{A}3")
    lease = claim(frontier, want=2)[0]
    frontier.complete([finished(lease, lease.urls[0])])
    assert world.rows("SELECT remaining FROM leases") == [(1,)]
    assert claim(frontier) == []
    frontier.complete([finished(lease, lease.urls[1])])
    assert world.scalar("SELECT count(*) FROM leases") == 0
    assert len(claim(frontier)[0].urls) == 1


def test_group_of_64_pages_with_many_links_is_one_commit(world: World) -> None:
    source, crawl_id, frontier = world.opened(slots=64)
    world.seed(source, *(f"{A}{n}" for n in range(64)))
    lease = claim(frontier)[0]
    pages = [
        finished(lease, url, version=version(url.url), links=links(*(f"http://h{m % 7}/{m}" for m in range(n, n + 80))))
        for n, url in enumerate(lease.urls)
    ]
    completion = frontier.complete(pages)
    assert (len(pages), completion.new_urls) == (64, 143)
    assert counters(world, crawl_id) == {"accepted": 64, "versions": 64, "new_urls": 143}
    assert world.scalar("SELECT count(DISTINCT seen_at) FROM page_versions") == 1
    assert broken_invariants(world.database) == {}


def test_due_time_of_a_page_wakes_the_lane_that_it_is_in(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, f"{A}1", f"{A}2")
    lease = claim(frontier)[0]
    later = world.scalar("SELECT opened_at FROM crawls") + timedelta(days=1)
    frontier.complete(
        [
            finished(lease, lease.urls[0], due_at=later),
            finished(lease, lease.urls[1], UrlState.QUEUED, reason="timeout", due_at=later - timedelta(hours=1)),
        ]
    )
    hints = world.rows("SELECT lane, next_due_at FROM queues ORDER BY lane")
    assert hints == [(0, later - timedelta(hours=1)), (1, later)]

"""What joins a crawl on the way: pages that a sitemap says have changed, and the targets of redirects."""

from __future__ import annotations

from datetime import timedelta

import pytest

from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.domain.pages import ClaimedUrl, UrlKey
from crawl_pipeline.storage import crawls
from crawl_pipeline_tests.storage.invariants import broken_invariants
from crawl_pipeline_tests.storage.world import (
    FAR,
    World,
    claim,
    claimed_urls,
    finish_all,
    finished,
    links,
    page_url,
    record,
    version,
)

A = "http://a/"
HOUR = timedelta(hours=1)


def target(url: str) -> ClaimedUrl:
    """A URL as a redirect leads to it: never visited."""
    return ClaimedUrl(
        key=page_url(url).key,
        url=url,
        depth=3,
    )


def test_page_that_changed_since_its_last_fetch_is_due_at_once_and_others_are_not_written(world: World) -> None:
    """Guards: `last_fetched_at < m.changed`; `greatest(…, last_fetched_at + p_min)`; `due_at >` that."""
    source, _, frontier = world.opened(slots=8)
    paths = ("old", "new", "gone", "recent", "sooner", "quarantined", "lies")
    urls = {path: A + path for path in paths}
    world.seed(source, *urls.values())
    for lease in claim(frontier):
        for url in lease.urls:
            state, reason = UrlState.ACCEPTED, None
            if url.url == urls["gone"]:
                state, reason = UrlState.REJECTED, "gone"
            elif url.url == urls["quarantined"]:
                state = UrlState.QUARANTINED
            due = None if state is UrlState.QUARANTINED else FAR
            frontier.complete([finished(lease, url, state, reason=reason, due_at=due)])
    opened_at = world.scalar("SELECT opened_at FROM crawls")
    world.execute("UPDATE urls SET last_fetched_at = CAST(:at AS timestamptz) - interval '5 h'", at=opened_at)
    world.execute("UPDATE urls SET last_fetched_at = :at WHERE url = :u", at=opened_at - HOUR / 2, u=urls["recent"])
    world.execute("UPDATE urls SET due_at = :at WHERE url = :u", at=opened_at - HOUR * 2, u=urls["sooner"])
    before = {row.url: row for row in world.rows("SELECT url, due_at, xmin::text AS xmin FROM urls")}
    changed = {
        **dict.fromkeys(paths, opened_at),
        "old": opened_at - HOUR * 6,
        "recent": opened_at + HOUR,
        "lies": opened_at + HOUR * 10_000,
    }
    listed = [(page_url(urls[path]).key, at) for path, at in changed.items()]
    listed.append((page_url(f"{A}unknown").key, opened_at))
    assert frontier.make_changed_due(listed, HOUR) == 4
    after = {row.url: row for row in world.rows("SELECT url, due_at, xmin::text AS xmin FROM urls")}
    assert {path for path in paths if after[urls[path]].xmin != before[urls[path]].xmin} == {
        "new",
        "gone",
        "recent",
        "lies",
    }
    assert [after[urls[path]].due_at - opened_at for path in ("new", "gone", "lies")] == [timedelta()] * 3
    assert after[urls["recent"]].due_at == opened_at + HOUR / 2  # freshness.min, whatever it says
    assert frontier.make_changed_due(listed, HOUR) == 0
    world.wake_hosts()
    assert sorted(claimed_urls(claim(frontier))) == sorted(urls[path] for path in ("new", "gone", "lies", "sooner"))
    assert broken_invariants(world.database) == {}


@pytest.mark.parametrize("lane", ["queued", "revisits"])
@pytest.mark.parametrize("way", ["complete", "release", "expire", "charge"])
def test_adopted_target_shares_the_fate_of_its_lease(world: World, lane: str, way: str) -> None:
    """Guard: `coalesce` in `end_leases` and `charge`: a target in the lane of revisits has no outcome."""
    source, crawl_id, frontier = world.opened()
    world.seed(source, A)
    if lane == "revisits":
        finish_all(frontier, claim(frontier), due_at=world.scalar("SELECT opened_at FROM crawls"))
        world.wake_hosts()
    (lease,) = claim(frontier)
    new = target(f"{A}new")
    assert frontier.adopt(lease.token, new, lease.urls[0].key)
    assert frontier.adopt(lease.token, new, lease.urls[0].key)  # the answer was lost
    assert world.rows("SELECT remaining, cardinality(url_keys) AS n FROM leases") == [(2, 2)]
    assert broken_invariants(world.database) == {}
    if way == "complete":
        frontier.complete([finished(lease, new, version=version("new"))])
        frontier.complete([finished(lease, lease.urls[0], UrlState.REJECTED, redirected_to=new.key)])
    elif way == "charge":
        with world.database.connection() as connection:
            assert crawls.charge(connection, lease.token, new.key, is_stalled=False) == "queued"
        frontier.release([lease.token])
    elif way == "release":
        assert frontier.release([lease.token]) == 2
    else:
        world.expire(lease)
        assert crawls.requeue_expired(world.database) == (1, 2, 0)
    row = world.url(f"{A}new")
    assert (row.state, row.depth, row.discovered_from) == (
        "accepted" if way == "complete" else "queued",
        3,
        lease.urls[0].key,
    )
    assert world.scalar("SELECT count(*) FROM leases") == 0
    assert world.scalar("SELECT n FROM counts WHERE name = 'new_urls' AND crawl_id = :c", c=crawl_id) == 1
    assert broken_invariants(world.database) == {}


def test_only_what_nobody_has_visited_is_adopted_and_only_under_a_lease_that_lives(world: World) -> None:
    source, _, frontier = world.opened(slots=2, max_urls=5)
    world.seed(source, f"{A}visited", f"{A}leased", f"{A}1")
    leases = claim(frontier, batch=3, share=1)
    (lease,) = leases
    by_url = {url.url: url for url in lease.urls}
    frontier.complete([finished(lease, by_url[f"{A}visited"], links=links(f"{A}waits"))])
    world.wake_hosts()
    (other,) = claim(frontier, share=1)
    assert claimed_urls([other]) == [f"{A}waits"]

    def adopts(path: str, found_on: UrlKey = by_url[f"{A}1"].key) -> bool:
        return frontier.adopt(lease.token, target(A + path), found_on)

    assert not adopts("visited")
    assert not adopts("waits")  # another lease has it
    frontier.release([other.token])
    assert adopts("waits")  # it is queued
    assert adopts("new")
    assert not adopts("beyond")  # max_urls
    frontier.release([lease.token])
    assert not adopts("new")
    assert world.states(source) == {"accepted": 1, "queued": 4}
    assert broken_invariants(world.database) == {}


def test_records_that_both_claim_pass_to_the_page_that_a_redirect_leads_to(world: World) -> None:
    """Guard: `passes` in `complete`. Target and old URL in one group; what nobody else claims stays."""
    source, _, frontier = world.opened(slots=8)
    world.seed(source, f"{A}old", f"{A}new", f"{A}third")
    due = world.scalar("SELECT opened_at FROM crawls")
    first = {f"{A}old": ("1", "2", "3"), f"{A}third": ("3",)}
    (lease,) = claim(frontier, share=1)
    for url in lease.urls:
        if url.url in first:
            frontier.complete(
                [
                    finished(
                        lease,
                        url,
                        version=version(url.url),
                        due_at=due,
                        records=tuple(record(sku) for sku in first[url.url]),
                    )
                ]
            )
    by_url = {url.url: url for url in lease.urls}
    new = by_url[f"{A}new"]
    owners = """SELECT r.data ->> 'sku' AS sku, u.url FROM records r JOIN urls u USING (source_id, url_key)
                 WHERE r.missing_since IS NULL ORDER BY 1"""
    world.wake_hosts()
    (again,) = (lease for lease in claim(frontier) if f"{A}old" in claimed_urls([lease]))
    old = next(url for url in again.urls if url.url == f"{A}old")
    redirected = finished(again, old, UrlState.REJECTED, reason="redirected", redirected_to=new.key, due_at=due)
    frontier.complete(
        [
            finished(lease, new, version=version("new"), records=(record("1"), record("2", price=9))),
            redirected,
        ]
    )
    found = dict(tuple(row) for row in world.rows(owners))
    assert (found["1"], found["2"]) == (f"{A}new", f"{A}new")
    assert found["3"] in first  # whichever was the first
    claims = "SELECT count(*) FROM record_pages WHERE url_key = :k"
    assert (world.scalar(claims, k=old.key), world.scalar(claims, k=new.key)) == (1, 2)
    assert world.scalar("SELECT data ->> 'price' FROM records WHERE data ->> 'sku' = '2'") == "9"
    history = world.rows("SELECT data ->> 'sku' AS sku FROM record_versions WHERE valid_to IS NOT NULL")
    assert [row.sku for row in history] == ["2"]
    assert broken_invariants(world.database) == {}

"""What gives a lease back, and what a worker that lost its lease may still do: nothing."""

from __future__ import annotations

import pytest

from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.domain.pages import CrawlId, Lease, UrlKey
from crawl_pipeline.storage import crawls
from crawl_pipeline_tests.storage.invariants import broken_invariants
from crawl_pipeline_tests.storage.world import World, claim, claimed_urls, finished, links, version

A, B = "http://a/", "http://b/"


def charge(world: World, lease: Lease, key: UrlKey, *, is_stalled: bool = False) -> str | None:
    with world.database.connection() as connection:
        return crawls.charge(connection, lease.token, key, is_stalled=is_stalled)


@pytest.mark.parametrize("way", ["release", "expire", "charge", "release_worker", "release_crawl", "release_run"])
def test_lease_given_back_restores_state_due_time_and_outcome_in_both_lanes(world: World, way: str) -> None:
    source, crawl_id, frontier = world.opened()
    world.seed(source, A, B)
    lease = next(lease for lease in claim(frontier) if lease.authority == "a")
    due = world.scalar("SELECT opened_at - interval '1 h' FROM crawls")
    frontier.complete([finished(lease, lease.urls[0], UrlState.REJECTED, reason="not_found", due_at=due, tries=0)])
    frontier.release([row.lease_token for row in world.rows("SELECT lease_token FROM leases")])
    world.wake_hosts()
    kept = "state, due_at, outcome, reason, tries, last_fetched_at, accepted_at, etag, version_id"
    before = world.rows(f"SELECT {kept} FROM urls ORDER BY url")
    assert [row.state for row in before] == ["rejected", "queued"]
    hints = world.rows("SELECT source_id, host_id, lane, next_due_at::text FROM queues ORDER BY 1, 2, 3")
    leases = claim(frontier)
    assert sorted(claimed_urls(leases)) == [A, B]
    assert world.states(source) == {"active": 2}
    _give_back(world, way, crawl_id, leases)
    assert world.rows(f"SELECT {kept} FROM urls ORDER BY url") == before
    assert world.rows("SELECT source_id, host_id, lane, next_due_at::text FROM queues ORDER BY 1, 2, 3") == hints
    assert world.scalar("SELECT count(*) FROM leases") == 0
    counted = 1 if way in ("expire", "charge") else 0
    assert [row.expiries for row in world.rows("SELECT expiries FROM urls")] == [counted, counted]
    assert broken_invariants(world.database) == {}


def _give_back(world: World, way: str, crawl_id: CrawlId, leases: list[Lease]) -> None:
    if way == "expire":
        for lease in leases:
            world.expire(lease)
        assert crawls.requeue_expired(world.database) == (2, 2, 0)
    elif way == "charge":
        assert [charge(world, lease, lease.urls[0].key) for lease in leases if lease.urls[0].url == A] == ["rejected"]
        assert [charge(world, lease, lease.urls[0].key) for lease in leases if lease.urls[0].url == B] == ["queued"]
    elif way == "release":
        frontier = world.frontier(leases[0].source_id, crawl_id)
        assert frontier.release([lease.token for lease in leases]) == 2
        assert frontier.release([lease.token for lease in leases]) == 0
    elif way == "release_worker":
        with world.database.connection() as connection:
            assert crawls.end_worker(connection, "w1", "SIGKILL", 0, 0) == 2
    elif way == "release_crawl":
        with world.database.connection() as connection:
            assert crawls.release_crawl(connection, crawl_id) == 2
    else:
        assert crawls.release_run(world.database, "another") == 0
        assert crawls.release_run(world.database, "run-1") == 2


def test_release_gives_back_only_what_is_left_of_a_lease(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, f"{A}1", f"{A}2", f"{A}3")
    lease = claim(frontier)[0]
    frontier.complete([finished(lease, lease.urls[0])])
    assert frontier.release([lease.token]) == 2
    assert world.states(source) == {"accepted": 1, "queued": 2}


def test_renewal_extends_living_leases_and_says_which_are_lost(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, A, B)
    alive, expired = claim(frontier)
    world.expire(expired)
    world.execute(
        "UPDATE leases SET expires_at = clock_timestamp() + interval '1 s' WHERE lease_token = :t", t=alive.token
    )
    renewed = frontier.renew([alive.token, expired.token])
    assert set(renewed) == {alive.token}
    assert renewed[alive.token] > world.scalar("SELECT clock_timestamp() + interval '50 s'")


def test_expired_lease_is_claimed_with_a_new_token_and_the_old_one_writes_nothing(world: World) -> None:
    source, crawl_id, frontier = world.opened()
    world.seed(source, A)
    old = claim(frontier)[0]
    world.expire(old)
    other = world.frontier(source, crawl_id, "w2")
    new = claim(other)[0]
    assert [(row.lease_token, row.worker_id) for row in world.rows("SELECT * FROM leases")] == [(new.token, "w2")]
    assert new.token != old.token
    assert frontier.complete([finished(old, old.urls[0], version=version("stale"), links=links(B))]).lost == {0}
    assert frontier.release([old.token]) == 0
    assert charge(world, old, old.urls[0].key) is None
    assert frontier.renew([old.token]) == {}
    assert world.url(A).lease_token == new.token
    for table in ("page_versions", "bodies", "fetches"):
        assert world.scalar(f"SELECT count(*) FROM {table}") == 0, table
    assert world.scalar("SELECT count(*) FROM urls") == 1


def test_stalled_page_is_quarantined_at_once_and_its_neighbours_are_not(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, f"{A}1", f"{A}2")
    lease = claim(frontier)[0]
    assert charge(world, lease, lease.urls[0].key, is_stalled=True) == "quarantined"
    stalled = world.url(lease.urls[0].url)
    assert (stalled.reason, stalled.due_at, stalled.expiries) == ("timeout", None, 1)
    assert frontier.release([lease.token]) == 1
    assert world.url(lease.urls[1].url).expiries == 0
    assert broken_invariants(world.database) == {}


def test_fifth_death_with_a_page_in_hand_quarantines_it(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, A)
    states = []
    for _ in range(5):
        lease = claim(frontier)[0]
        states.append(charge(world, lease, lease.urls[0].key))
        world.wake_hosts()
    assert states == ["queued"] * 4 + ["quarantined"]
    assert (world.url(A).reason, world.url(A).tries) == ("poison", 0)

"""When a host rests: as long as it was told, doubling while trouble goes on, one probe at a time after an outage."""

from __future__ import annotations

from datetime import datetime, timedelta

from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.domain.pages import Lease
from crawl_pipeline.storage.frontier import Frontier
from crawl_pipeline_tests.storage.world import World, claim, claimed_urls, finish_all, finished

A = "http://a/"


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


# Rests


def test_rest_ends_no_earlier_than_it_was_said(world: World) -> None:
    """claim looks a second ahead: a host that rests for less is claimed, and its first start is after the rest."""
    source, _, frontier = world.opened(slots=2, min_delay=0.01)
    world.seed(source, f"{A}1", f"{A}2")
    host_id = world.scalar("SELECT host_id FROM hosts")
    until = world.scalar("SELECT clock_timestamp() + interval '700 ms'")
    world.block_host(host_id, until, "throttled")
    leases = claim(frontier)
    assert leases == [] or min(leases[0].first_starts) >= until


def test_rest_without_a_delay_ends_no_earlier_than_it_was_said(world: World) -> None:
    source, _, frontier = world.opened(slots=2)
    world.seed(source, f"{A}1", f"{A}2")
    until = world.scalar("SELECT clock_timestamp() + interval '700 ms'")
    world.block_host(world.scalar("SELECT host_id FROM hosts"), until, "throttled")
    leases = claim(frontier)
    assert leases == [] or min(leases[0].first_starts) >= until


def test_blocked_host_is_claimed_by_nobody_and_a_longer_rest_is_not_shortened(world: World) -> None:
    source, crawl_id, frontier = world.opened()
    world.seed(source, A)
    host_id = world.scalar("SELECT host_id FROM hosts")
    until = world.scalar("SELECT clock_timestamp() + interval '1 h'")
    world.block_host(host_id, until, "throttled")
    world.block_host(host_id, until - timedelta(minutes=30), "host_down")
    assert claim(world.frontier(source, crawl_id, "w2")) == []
    assert frontier.standing().next_at == until
    assert world.rows("SELECT blocked_until, blocked_reason FROM hosts") == [(until, "throttled")]


def test_rest_of_a_host_is_told_to_those_who_hold_leases_of_it(world: World) -> None:
    source, crawl_id, first = world.opened(slots=2)
    second = world.frontier(source, crawl_id, "w2")
    world.seed(source, f"{A}1", f"{A}2", "http://b/1")
    lease = claim(first, want=1)[0]
    other = claim(second, want=2)
    tokens = [lease.token, *(held.token for held in other)]
    assert second.to_drain(tokens) == []
    first.throttle_host(lease.host_id, seconds(30), seconds(3600))
    assert second.to_drain(tokens) == [lease.host_id]
    assert second.to_drain([]) == []


def test_commit_says_that_another_worker_put_the_host_to_rest(world: World) -> None:
    """Guard: `blocked_hosts` of complete speaks of every host of its pages, also of those that did not fail."""
    source, crawl_id, first = world.opened(slots=2)
    second = world.frontier(source, crawl_id, "w2")
    world.seed(source, *(f"{A}{n}" for n in range(8)), "http://b/")
    mine = claim(first, want=3, batch=3, share=1)[0]
    other = next(lease for lease in claim(second) if lease.host_id == mine.host_id)
    assert first.complete([finished(mine, mine.urls[0])]).blocked == {}
    until = second.throttle_host(other.host_id, seconds(30), seconds(3600))
    assert first.complete([finished(mine, mine.urls[1])]).blocked == {mine.host_id: until}


def test_throttled_host_rests_as_long_as_it_asked_up_to_the_cap(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, A)
    host_id = world.scalar("SELECT host_id FROM hosts")
    now = world.scalar("SELECT clock_timestamp()")
    assert seconds(30) <= frontier.throttle_host(host_id, seconds(30), seconds(3600)) - now < seconds(35)
    assert seconds(60) <= frontier.throttle_host(host_id, seconds(9000), seconds(60)) - now < seconds(65)


def test_host_that_asks_for_no_rest_at_all_rests_a_second(world: World) -> None:
    """429 with Retry-After: 0, again and again, costs no tries: it would be asked without end."""
    source, _, frontier = world.opened()
    world.seed(source, A)
    now = world.scalar("SELECT clock_timestamp()")
    assert frontier.throttle_host(world.scalar("SELECT host_id FROM hosts"), seconds(0), seconds(60)) - now >= seconds(
        1
    )


def test_rest_doubles_while_trouble_goes_on_and_a_burst_counts_once(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, A)
    host_id = world.scalar("SELECT host_id FROM hosts")
    rests = []
    for _ in range(9):
        now = world.scalar("SELECT clock_timestamp()")
        until = frontier.throttle_host(host_id, None, seconds(7200))
        assert abs(frontier.throttle_host(host_id, None, seconds(7200)) - until) < until - now  # the same burst
        until = world.scalar("SELECT blocked_until FROM hosts")
        rests.append((until - now).total_seconds())
        passed = until - now + seconds(1)  # as if the rest had passed
        world.execute("UPDATE hosts SET blocked_until = blocked_until - :p, throttled_at = throttled_at - :p", p=passed)
    for number, rest in enumerate(rests):
        expected = min(60 * 2**number, 7200)
        assert expected * 0.99 <= rest <= min(expected * 1.1, 7200) + 2, (number, rests)
    world.execute(
        "UPDATE hosts SET blocked_until = now() - interval '31 minutes', throttled_at = now() - interval '2 h'"
    )
    now = world.scalar("SELECT clock_timestamp()")
    assert frontier.throttle_host(host_id, None, seconds(7200)) - now < seconds(70)


# Outages


def fail(frontier: Frontier, lease: Lease, due: datetime) -> dict[int, datetime]:
    pages = [
        finished(lease, url, UrlState.QUEUED, reason="connection", due_at=due, host_failed=True) for url in lease.urls
    ]
    return frontier.complete(pages).blocked


def test_five_failures_in_a_row_rest_the_host_then_one_probe_at_a_time_with_doubling(world: World) -> None:
    source, crawl_id, frontier = world.opened(slots=4)
    world.seed(source, *(f"{A}{n}" for n in range(20)))
    now = world.scalar("SELECT clock_timestamp()")
    assert fail(frontier, claim(frontier, batch=4)[0], now) == {}
    blocked = fail(frontier, claim(frontier, batch=4)[0], now)
    rests = [(next(iter(blocked.values())) - world.scalar("SELECT clock_timestamp()")).total_seconds()]
    assert claim(frontier) == []
    for _ in range(3):
        world.wake_hosts()
        probe = claim(frontier)
        assert [(len(lease.urls), len(lease.first_starts)) for lease in probe] == [(1, 1)]
        assert probe[0].host_failures >= 5
        assert claim(world.frontier(source, crawl_id, "w2")) == []
        blocked = fail(frontier, probe[0], now)
        rests.append((next(iter(blocked.values())) - world.scalar("SELECT clock_timestamp()")).total_seconds())
    for number, rest in enumerate(rests):
        assert 5 * 2**number - 1 < rest <= 5 * 2**number * 1.1, rests
    assert world.rows("SELECT blocked_reason, outages FROM hosts") == [("host_down", 4)]
    world.wake_hosts()
    finish_all(frontier, claim(frontier), host_failed=False)
    assert world.rows("SELECT failures, outages FROM hosts") == [(0, 0)]
    world.wake_hosts()
    assert len(claim(frontier)[0].urls) == 19
    assert [row.tries for row in world.rows("SELECT DISTINCT tries FROM urls")] == [0]


def test_failures_that_arrive_while_the_host_rests_are_one_outage(world: World) -> None:
    source, _, frontier = world.opened(slots=4)
    world.seed(source, *(f"{A}{n}" for n in range(24)))
    leases = [claim(frontier, want=8, batch=8, share=1)[0] for _ in range(3)]
    for lease in leases:
        fail(frontier, lease, world.scalar("SELECT clock_timestamp()"))
    assert world.rows("SELECT failures, outages FROM hosts") == [(24, 1)]


def test_outage_of_one_host_leaves_others_alone(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, *(f"{A}{n}" for n in range(6)), "http://b/")
    fail(frontier, next(lease for lease in claim(frontier) if lease.authority == "a"), world.scalar("SELECT now()"))
    frontier.release([row.lease_token for row in world.rows("SELECT lease_token FROM leases")])
    assert claimed_urls(claim(frontier)) == ["http://b/"]

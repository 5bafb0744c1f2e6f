"""The adaptive delay: what a host's answers make of the least time between starts, and for whom it holds."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from crawl_pipeline.domain.politeness import HostObservation
from crawl_pipeline.storage.frontier import Frontier
from crawl_pipeline_tests.storage.world import World, claim

A = "http://a/"
NEVER, ONE = timedelta(0), timedelta(seconds=1)


@pytest.fixture
def frontier(world: World) -> Frontier:
    """A worker of a source that has 400 pages at host `a`, 4 slots and no delay."""
    source, _, frontier = world.opened(slots=4)
    world.seed(source, *(f"{A}{n}" for n in range(400)))
    return frontier


def tell(frontier: Frontier, *seconds: float, failures: int = 0, host_id: int = 1) -> None:
    """Answers that took so long, told at once."""
    logs = sum(math.log(value) for value in seconds)
    frontier.observe_hosts(
        [HostObservation(host_id=host_id, answers=len(seconds), log_seconds=logs, failures=failures)]
    )


def asked(world: World) -> timedelta:
    """The delay that the host's sources and its trouble ask for."""
    return world.scalar("SELECT b.min_delay FROM hosts h, host_budget(h) b WHERE authority = 'a'")  # type: ignore[no-any-return]


def pass_time(world: World, minutes: int) -> None:
    """As if nothing had happened for so long."""
    world.execute("UPDATE hosts SET observed_at = observed_at - make_interval(mins => :n)", n=minutes)
    world.execute("UPDATE hosts SET throttled_at = throttled_at - make_interval(mins => :n)", n=minutes)
    world.execute("UPDATE hosts SET blocked_until = blocked_until - make_interval(mins => :n)", n=minutes)


@pytest.mark.parametrize(
    ("case", "answers"),
    [
        ("fast", [0.004] * 350),
        ("fast with one page of half a minute", [0.02] * 20 + [30.0]),
        ("three times as slow, within a second", [0.1] * 20 + [0.9] * 50),
        ("slow by nature", [4.0] * 50),
        ("slow by nature and uneven", [1.5, 6.0] * 25),
        ("a cold start", [8.0, 5.0] + [0.05] * 20),
        ("answers of no time at all", [1e-9] * 1000),
    ],
)
def test_healthy_host_is_never_slowed(world: World, frontier: Frontier, case: str, answers: list[float]) -> None:
    for seconds in answers:
        tell(frontier, seconds)
    assert asked(world) == NEVER, case
    assert world.scalar("SELECT adaptive_reason FROM hosts") is None


def test_host_that_slows_down_is_asked_one_at_a_time_and_freed_by_answers(world: World, frontier: Frontier) -> None:
    """Guards: the branch `slow` of `observed`, and the fall by a tenth."""
    tell(frontier, *[0.1] * 20)
    for _ in range(20):
        tell(frontier, 4.0)
    assert asked(world) == 4 * ONE
    assert world.scalar("SELECT adaptive_reason FROM hosts") == "slow"
    lease = claim(frontier)[0]
    assert lease.period == 16 * ONE  # of each of 4 slots
    assert len(lease.urls) == 3  # no more than a fifth of a lease's time: the delay may soon be another
    delays = []
    for _ in range(60):
        tell(frontier, 0.1)
        delays.append(asked(world))
    assert delays == sorted(delays, reverse=True)
    assert delays[0] == 4 * ONE
    assert delays[-1] == NEVER
    assert len(set(delays)) == 7  # 4, 2, 1, ½, ¼, ⅛, 0


def test_delay_is_told_to_those_who_hold_leases_of_the_host(world: World, frontier: Frontier) -> None:
    """Guard: the second condition of `to_drain`."""
    tokens = [lease.token for lease in claim(frontier, batch=8, share=1)]
    tell(frontier, *[0.1] * 20)
    assert frontier.to_drain(tokens) == []
    tell(frontier, *[4.0] * 20)
    assert frontier.to_drain(tokens) == [1]
    frontier.release(tokens)
    world.wake_hosts()
    assert frontier.to_drain([lease.token for lease in claim(frontier)]) == []  # the new leases keep it


def test_lower_delay_ends_no_lease(world: World, frontier: Frontier) -> None:
    tell(frontier, *[0.1] * 20)
    tell(frontier, *[4.0] * 20)
    tokens = [lease.token for lease in claim(frontier)]
    tell(frontier, *[0.1] * 20)
    assert asked(world) < 4 * ONE
    assert frontier.to_drain(tokens) == []


def test_failing_host_is_asked_half_as_often_once_the_last_doubling_is_in_force(
    world: World, frontier: Frontier
) -> None:
    """Guard: `v_is_in_force`; without it each worker's word would double it again."""
    frontier.release([lease.token for lease in claim(frontier)])
    tell(frontier, *[0.1] * 20)
    tell(frontier, 0.1, 0.1, failures=3)
    first = asked(world)
    assert first == ONE / 4
    for _ in range(5):
        tell(frontier, 0.1, failures=3)
    assert asked(world) == first
    world.wake_hosts()
    frontier.release([lease.token for lease in claim(frontier)])
    tell(frontier, 0.1, failures=3)
    assert asked(world) == 2 * first
    assert world.scalar("SELECT adaptive_reason FROM hosts") == "failing"


def test_delay_grows_no_longer_than_a_minute(world: World, frontier: Frontier) -> None:
    tell(frontier, *[0.1] * 20)
    for _ in range(20):
        tell(frontier, *[3000.0] * 50, failures=50)
        world.execute("UPDATE hosts SET min_delay = '1 minute'")
    assert asked(world) == 60 * ONE


def test_one_failure_of_many_answers_slows_nothing(world: World, frontier: Frontier) -> None:
    for _ in range(10):
        tell(frontier, *[0.1] * 6)
        tell(frontier, failures=1)
        assert asked(world) == NEVER


def test_delay_is_never_below_what_the_contract_and_robots_ask(world: World) -> None:
    source, _, frontier = world.opened(slots=2, min_delay=6)
    world.seed(source, A)
    tell(frontier, *[0.1] * 20)
    tell(frontier, *[4.0] * 20)
    assert asked(world) == 6 * ONE
    tell(frontier, *[20.0] * 50)
    assert asked(world) == 16 * ONE


def test_contract_that_is_not_adaptive_keeps_its_own_delay_unless_another_source_is(world: World) -> None:
    """Guard: `v_is_adaptive` in `host_budget`."""
    source, _, frontier = world.opened(slots=2, adaptive=False)
    world.seed(source, A)
    tell(frontier, *[0.1] * 20)
    tell(frontier, *[4.0] * 20)
    assert asked(world) == NEVER
    world.seed(world.source("other", slots=2), f"{A}other")
    assert asked(world) == 4 * ONE


def test_new_usual_is_learnt_within_hours(world: World, frontier: Frontier) -> None:
    """A host that moved to a slower machine is not in trouble for ever."""
    tell(frontier, *[0.4] * 20)
    tell(frontier, *[2.0] * 20)
    assert asked(world) == 2 * ONE
    for _ in range(60 * 4):
        pass_time(world, 1)
        tell(frontier, 2.0)
    assert asked(world) == NEVER


def test_trouble_is_forgotten_when_the_host_was_left_alone_for_half_an_hour(world: World, frontier: Frontier) -> None:
    """Guard: `adaptive_seconds`."""
    tell(frontier, *[0.1] * 20)
    tell(frontier, *[4.0] * 20)
    pass_time(world, 29)
    assert asked(world) == 4 * ONE
    pass_time(world, 2)
    assert asked(world) == NEVER


def test_throttled_host_is_asked_half_as_often_afterwards_and_a_burst_counts_once(
    world: World, frontier: Frontier
) -> None:
    """Guard: `v_delay` in `throttle_host`."""
    delays = []
    for _ in range(10):
        frontier.throttle_host(1, ONE, 3600 * ONE)
        frontier.throttle_host(1, ONE, 3600 * ONE)
        delays.append(asked(world) / ONE)
        pass_time(world, 2)
    assert delays == [0.25, 0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    assert world.scalar("SELECT adaptive_reason FROM hosts") == "throttled"
    pass_time(world, 31)
    assert asked(world) == NEVER


def test_locked_host_keeps_nobody_who_tells_of_it_waiting(world: World, frontier: Frontier) -> None:
    with world.database.connection() as connection:
        connection.exec_driver_sql("SELECT 1 FROM hosts FOR UPDATE")
        tell(frontier, 0.1)
    assert world.scalar("SELECT observed_at FROM hosts") is None
    tell(frontier, 0.1)
    assert world.scalar("SELECT latency FROM hosts") == pytest.approx(0.1)

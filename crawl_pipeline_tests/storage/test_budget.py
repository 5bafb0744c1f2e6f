"""A host's budget: slots, the least time between starts, rests, outages, and each source's fair part of it."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import pairwise

import pytest

from crawl_pipeline.domain.pages import Lease
from crawl_pipeline.storage import pauses, robots
from crawl_pipeline.storage.frontier import Frontier
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.storage.invariants import broken_invariants
from crawl_pipeline_tests.storage.world import World, claim, finish_all

A = "http://a/"


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def host(world: World) -> tuple[int, timedelta]:
    row = world.rows("SELECT slots, min_delay FROM hosts WHERE authority = 'a'")[0]
    return row.slots, row.min_delay


# Slots and delays


def test_leases_of_a_host_never_hold_more_than_its_slots(world: World) -> None:
    source, crawl_id, _ = world.opened(slots=3)
    world.seed(source, *(f"{A}{n}" for n in range(20)))
    leases = [claim(world.frontier(source, crawl_id, f"w{n}"), batch=2, share=2) for n in range(4)]
    assert [len(lease.first_starts) for taken in leases for lease in taken] == [2, 1]
    assert broken_invariants(world.database) == {}


def test_share_is_never_larger_than_the_batch_that_uses_it(world: World) -> None:
    source, crawl_id, frontier = world.opened(slots=8)
    world.seed(source, f"{A}1", f"{A}2")
    assert [len(lease.first_starts) for lease in claim(frontier)] == [2]
    world.seed(source, *(f"{A}{n}" for n in range(10, 20)))
    assert [len(lease.first_starts) for lease in claim(world.frontier(source, crawl_id, "w2"))] == [6]


def test_planned_starts_of_all_leases_keep_the_least_delay(world: World) -> None:
    """The slots' phases (`+ h.min_delay * k` in claim): without them all slots of a host start at once."""
    source, crawl_id, _ = world.opened(slots=4, min_delay=0.05)
    world.seed(source, *(f"{A}{n}" for n in range(40)))
    leases = [
        lease
        for number in range(4)
        for lease in claim(world.frontier(source, crawl_id, f"w{number}"), batch=4, share=1 + number % 2)
    ]
    assert sum(len(lease.first_starts) for lease in leases) == 4
    assert {lease.period for lease in leases} == {seconds(0.2)}
    starts = sorted(first + n * lease.period for lease in leases for first in lease.first_starts for n in range(20))
    assert min(later - earlier for earlier, later in pairwise(starts)) >= seconds(0.0499)


def test_slot_taken_up_again_starts_on_its_grid_point(world: World) -> None:
    source, crawl_id, first = world.opened(slots=2, min_delay=0.5)
    second = world.frontier(source, crawl_id, "w2")
    world.seed(source, *(f"{A}{n}" for n in range(40)))
    kept = claim(first, batch=8, share=1)[0]
    given = claim(second, batch=8, share=1)[0]
    second.release([given.token])
    again = claim(second, batch=8, share=1)[0]
    for lease in (given, again):
        offset = (lease.first_starts[0] - kept.first_starts[0]) / seconds(0.5)
        assert abs(offset - round(offset)) < 1e-3
        assert round(offset) % 2 == 1


def test_new_grid_is_laid_no_earlier_than_the_delay_after_the_last_lease(world: World) -> None:
    source, _, frontier = world.opened(min_delay=0.9)
    world.seed(source, f"{A}1", f"{A}2")
    lease = claim(frontier, want=1)[0]
    finish_all(frontier, [lease])
    ended = world.scalar("SELECT clock_timestamp()")
    again = claim(frontier)[0]
    assert again.first_starts[0] >= ended + seconds(0.9) - seconds(0.2)
    assert again.first_starts[0] >= world.scalar("SELECT next_request_at FROM hosts")


def test_batch_is_no_more_than_can_be_started_within_a_lease(world: World) -> None:
    source, _, frontier = world.opened(slots=2, min_delay=4)
    world.seed(source, *(f"{A}{n}" for n in range(64)))
    assert [len(lease.urls) for lease in claim(frontier)] == [12]  # 0.8 · 60 s / (4 s · 2) · 2 slots


# Whose wishes hold


def test_budget_is_the_strictest_of_all_sources_and_their_robots(world: World) -> None:
    patient = world.source("patient", slots=1, min_delay=0.2)
    quick = world.source("quick", slots=8, min_delay=0)
    world.seed(quick, A)
    frontier = world.frontier(quick, world.crawl(quick))
    host_id = world.scalar("SELECT host_id FROM hosts")
    lease = claim(frontier)[0]
    assert host(world) == (8, seconds(0))
    finish_all(frontier, [lease])
    world.seed(patient, f"{A}p")
    robots.ask_crawl_delay(world.database, patient, host_id, f"https://{A}", seconds(0.5))
    world.seed(quick, f"{A}2")
    world.wake_hosts()
    assert claim(frontier)[0].period == seconds(0.5)
    assert host(world) == (1, seconds(0.5))


def test_budget_changes_only_when_no_lease_of_the_host_lives(world: World) -> None:
    source, crawl_id, frontier = world.opened(slots=2)
    world.seed(source, *(f"{A}{n}" for n in range(8)))
    old = claim(frontier, batch=2, share=1)
    world.source("shop", slots=4, min_delay=0.3)
    other = world.frontier(source, crawl_id, "w2")
    assert claim(other) == []
    assert host(world) == (2, seconds(0))
    finish_all(frontier, old)
    world.wake_hosts()
    assert claim(other)[0].period == seconds(1.2)
    assert host(world) == (4, seconds(0.3))


def test_larger_delay_holds_from_the_last_start_under_the_smaller(world: World) -> None:
    source, _, frontier = world.opened(slots=1, min_delay=0.1)
    world.seed(source, f"{A}1", f"{A}2")
    lease = claim(frontier, want=1)[0]
    finish_all(frontier, [lease])
    world.source("shop", slots=1, min_delay=0.8)
    again = claim(frontier)[0]
    assert again.first_starts[0] - lease.first_starts[0] >= seconds(0.8)


def test_paused_source_asks_nothing_of_a_host(world: World) -> None:
    patient = world.source("patient", slots=1, min_delay=5)
    source, _, frontier = world.opened("quick", slots=4)
    world.seed(patient, A)
    world.seed(source, A)
    assert pauses.set_paused(world.database, patient, True)
    assert claim(frontier)[0].period == seconds(0)
    assert host(world) == (4, seconds(0))


def test_source_paused_while_it_crawls_keeps_to_its_own_budget(world: World) -> None:
    """A pause ends what a source asks of others, never what it owes."""
    source, _, frontier = world.opened("patient", slots=1, min_delay=0.3)
    quick = world.source("quick", slots=8)
    world.seed(source, f"{A}1", f"{A}2")
    world.seed(quick, A)
    pauses.set_paused(world.database, source, True)
    leases = claim(frontier)
    assert [lease.period for lease in leases] in ([], [seconds(0.3)])


# Fair parts


def crowd(world: World, count: int, slots: int, pages: int) -> dict[str, Frontier]:
    """Sources with `pages` URLs each at one host, all open."""
    frontiers = {}
    for number in range(count):
        name = f"s{number}"
        source = world.source(name, slots=slots)
        frontiers[name] = world.frontier(source, world.crawl(source), name)
        world.seed(source, *(f"{A}{name}/{page}" for page in range(pages)))
    return frontiers


def held(world: World) -> Counter[str]:
    rows = world.rows(
        "SELECT s.source, sum(cardinality(slot_nos)) FROM leases JOIN sources s USING (source_id) GROUP BY 1"
    )
    return Counter({row[0]: int(row[1]) for row in rows})


def test_one_source_takes_all_slots_only_while_no_other_waits(world: World) -> None:
    frontiers = crowd(world, 1, 4, 40)
    assert sum(len(lease.first_starts) for lease in claim(frontiers["s0"])) == 4


def test_waiting_sources_part_the_slots_between_them(world: World) -> None:
    frontiers = crowd(world, 2, 4, 40)
    for frontier in frontiers.values():
        claim(frontier)
    assert held(world) == {"s0": 2, "s1": 2}


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [2, 3])
def test_no_source_starves_however_greedy_the_others_are(world: World, count: int, slots: int) -> None:
    """The last source asks only after all others have asked twice, whenever a slot is freed. Its turn keeps one."""
    frontiers = crowd(world, count, slots, 400)
    names = list(frontiers)
    modest = names[-1]
    served: Counter[str] = Counter()
    leases: list[tuple[str, Lease]] = []
    for _ in range(30):
        for name in [*names[:-1], *names[:-1], modest]:
            world.execute("UPDATE queues SET not_before = 'epoch'")
            for lease in claim(frontiers[name], want=2, batch=2, share=slots, is_idle=False):
                served[name] += len(lease.first_starts)
                leases.append((name, lease))
        name, lease = leases.pop(0)
        finish_all(frontiers[name], [lease])
    fair = sum(served.values()) / count
    assert min(served.values()) >= 0.5 * fair, served
    assert broken_invariants(world.database) == {}


@pytest.mark.parametrize("count", [2, 3])
def test_turn_passes_to_a_source_that_asks_late(world: World, count: int) -> None:
    frontiers = crowd(world, count, 1, 40)
    order = []
    for _ in range(2 * count):
        world.execute("UPDATE queues SET not_before = 'epoch'")
        taken = [(name, lease) for name, frontier in frontiers.items() for lease in claim(frontier, want=1)]
        assert len(taken) == 1
        order.append(taken[0][0])
        finish_all(frontiers[taken[0][0]], [taken[0][1]])
    assert set(order[:count]) == set(order[count:]) == set(frontiers)


def test_turn_that_nobody_takes_is_kept_no_longer_than_two_seconds(world: World) -> None:
    frontiers = crowd(world, 2, 1, 40)
    finish_all(frontiers["s0"], claim(frontiers["s0"], want=1))
    assert claim(frontiers["s0"], want=1) == []
    wait_until(lambda: claim(frontiers["s0"], want=1), within=5)


def test_source_without_a_live_crawl_keeps_nobody_waiting(world: World) -> None:
    frontiers = crowd(world, 2, 1, 40)
    world.execute("UPDATE crawls SET heartbeat_at = now() - interval '1 minute' WHERE source_id = 2")
    finish_all(frontiers["s0"], claim(frontiers["s0"], want=1))
    assert len(claim(frontiers["s0"], want=1)) == 1


def test_batches_are_short_while_others_wait(world: World) -> None:
    frontiers = crowd(world, 2, 2, 100)
    assert [len(lease.urls) for lease in claim(frontiers["s0"])] == [16]


def test_http_and_https_of_a_host_each_keep_the_delay_that_they_ask_for(world: World) -> None:
    """Guard: the origin in the key of `host_policies`; the last robots.txt looked at would decide for both."""
    shop = world.source("shop", slots=2, min_delay=0)
    world.seed(shop, A)
    host_id = world.scalar("SELECT host_id FROM hosts")
    robots.ask_crawl_delay(world.database, shop, host_id, "https://a", seconds(3))
    robots.ask_crawl_delay(world.database, shop, host_id, "http://a", seconds(1))
    assert world.scalar("SELECT b.min_delay FROM hosts h, host_budget(h) b") == seconds(3)
    robots.ask_crawl_delay(world.database, shop, host_id, "http://a", None)
    assert world.scalar("SELECT b.min_delay FROM hosts h, host_budget(h) b") == seconds(3)
    robots.ask_crawl_delay(world.database, shop, host_id, "https://a", None)
    assert world.scalar("SELECT b.min_delay FROM hosts h, host_budget(h) b") == seconds(0)


def test_slot_for_a_foreign_robots_is_paced_by_the_budget_that_is_to_come(world: World) -> None:
    """Guard: `host_budget` in `claim_slot`; the delay in force may still be shorter."""
    shop, other = world.source("shop", slots=2, min_delay=0), world.source("other", slots=2, min_delay=0)
    world.seed(shop, A)
    host_id = world.scalar("SELECT host_id FROM hosts")
    robots.ask_crawl_delay(world.database, shop, host_id, "http://a", seconds(5))
    now = world.scalar("SELECT clock_timestamp()")
    world.execute("UPDATE hosts SET min_delay = '0', next_request_at = :now", now=now)
    slot = world.frontier(other, world.crawl(other)).claim_slot("a")
    assert slot is not None
    assert slot[1] - now >= seconds(5)
    assert host(world) == (2, seconds(5))

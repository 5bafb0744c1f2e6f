"""Slots of a lease: whenever pages are done with, starts keep the delay and use the grid's points once."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import uuid4

import pytest

from crawl_pipeline.domain.pages import ClaimedUrl, Lease, LeaseToken, UrlKey
from crawl_pipeline.pipeline.leases import DatabaseClock, HeldLease, Slot

DELAY = 1.0
URL = ClaimedUrl(
    key=UrlKey(uuid4()),
    url="http://a/",
)


def lease(slots: list[int], of: int, delay: float = DELAY) -> HeldLease:
    """A lease of some of a host's slots, whose grid begins at 0 of the monotonic clock."""
    clock = DatabaseClock()
    clock.observe(0.0, datetime.fromtimestamp(1e9, UTC), 0.0)
    begin = datetime.fromtimestamp(1e9, UTC)
    held = Lease(
        token=LeaseToken(uuid4()),
        source_id=1,
        host_id=1,
        authority="a",
        expires_at=begin + timedelta(hours=1),
        first_starts=tuple(begin + timedelta(seconds=delay * slot) for slot in slots),
        period=timedelta(seconds=delay * of),
        delay=timedelta(seconds=delay),
        host_failures=0,
        urls=(URL,),
    )
    return HeldLease(held, clock, timedelta(seconds=60))


def starts(leases: list[HeldLease], takes: random.Random, late: float, until: float = 400.0) -> list[float]:
    """When requests start, for pages that take up to three periods, in loops that look up to `late` seconds late."""
    waiting: list[Slot] = [slot for held in leases for slot in held.slots]
    busy: list[tuple[float, Slot]] = []
    now, found = 0.0, []
    while now < until:
        for done, slot in sorted(busy, key=lambda one: one[0]):
            if done <= now:
                busy.remove((done, slot))
                slot.free(now)
                waiting.append(slot)
        for slot in sorted(waiting, key=lambda one: one.starts_at):
            if slot.is_late(now):
                slot.free(now)
            elif slot.starts_at <= now:
                waiting.remove(slot)
                slot.spend(now)
                found.append(now)
                busy.append((now + takes.uniform(0.01, 3 * slot.held.period), slot))
        times = [slot.starts_at for slot in waiting] + [done for done, _ in busy]
        now = max(now + 1e-6, min(times)) + takes.uniform(0, late)
    return found


@pytest.mark.parametrize("seed", range(10))
def test_starts_of_two_workers_keep_the_delay_however_long_pages_take(seed: int) -> None:
    """Guard: `wait_until` in `Slot.free`; without it a page that outlasts its period is followed at once."""
    found = starts([lease([0, 2], 3), lease([1], 3)], random.Random(seed), late=0.0)
    assert min(later - sooner for sooner, later in pairwise(found)) >= DELAY * 0.999
    assert len(found) > 100


@pytest.mark.parametrize("seed", range(10))
def test_late_starts_of_one_lease_keep_the_delay_exactly(seed: int) -> None:
    """Guard: `starts_at`; without it a late start is followed by one that is on time."""
    found = starts([lease([0, 1, 2], 3)], random.Random(seed), late=0.4)
    assert min(later - sooner for sooner, later in pairwise(found)) >= DELAY * 0.999


@pytest.mark.parametrize("seed", range(10))
def test_late_starts_of_two_workers_come_no_closer_than_three_quarters_of_the_delay(seed: int) -> None:
    """Guard: `is_late`."""
    found = starts([lease([0, 2], 3), lease([1], 3)], random.Random(seed), late=0.6)
    assert min(later - sooner for sooner, later in pairwise(found)) >= DELAY * 0.749


def test_freed_slot_takes_the_point_that_a_busy_one_cannot_use() -> None:
    """Guard: the exchange in `Slot.free`; without it pages that take just over a period halve the pace."""
    held = lease([0, 1], 2)
    first, second = held.slots
    first.spend(0.0)
    second.spend(1.0)
    first.free(2.1)  # its own next point is 4; that of the other, busy until 3.1, is 3
    assert (first.next_start, second.next_start) == (3.0, 4.0)


def test_slot_without_a_delay_starts_at_once() -> None:
    held = lease([0, 1], 2, delay=0.0)
    for slot in held.slots:
        slot.spend(5.0)
        slot.free(5.5)
        assert slot.starts_at == 5.5
        assert not slot.is_late(99.0)


def test_slow_answer_does_not_move_a_clock_that_is_surer() -> None:
    """Guard: the comparison in `observe`; an answer under load would shift one worker's starts against another's."""
    clock = DatabaseClock()
    clock.observe(10.0, datetime.fromtimestamp(1010.001, UTC), 10.002)  # 1000 s ahead, known to a millisecond
    clock.observe(12.0, datetime.fromtimestamp(1012.001, UTC), 12.080)  # taken at once, answered late: 39 ms wrong
    assert clock.monotonic(datetime.fromtimestamp(1020, UTC)) == pytest.approx(20.0, abs=1e-3)
    clock.observe(14.0, datetime.fromtimestamp(1014.0015, UTC), 14.002)  # as sure as what has grown old: taken
    assert clock.monotonic(datetime.fromtimestamp(1020, UTC)) == pytest.approx(19.9995, abs=1e-5)


def test_clock_of_a_database_that_was_set_is_followed_at_once() -> None:
    clock = DatabaseClock()
    clock.observe(10.0, datetime.fromtimestamp(1010.001, UTC), 10.002)
    clock.observe(12.0, datetime.fromtimestamp(1312.04, UTC), 12.080)  # 300 s later than it was
    assert clock.monotonic(datetime.fromtimestamp(1320, UTC)) == pytest.approx(20.0, abs=1e-3)

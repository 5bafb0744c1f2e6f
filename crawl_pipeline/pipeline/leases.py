"""Leases in a worker's hands: which slot may start its next request when.

A slot is taken from a request's start until its page is committed, so that a kill repeats at most the host's slots.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from crawl_pipeline.domain.pages import ClaimedUrl, Lease, LeaseToken
from crawl_pipeline.storage.frontier import LEASE_FOR

if TYPE_CHECKING:
    from crawl_pipeline.pipeline.visit import RobotsFetch, Visit

_MOST_LATE = 0.25  # seconds; a quarter of the delay where that is less
_DRIFT = 5e-4  # seconds a second: as fast as a kernel slews a clock


class DatabaseClock:
    """The database's time from this process's monotonic clock: starts are planned in the one and kept in the other.

    A slow answer says little: it is taken only where it is surer than what is known, which grows unsure with time
    (the clock filter of NTP, RFC 5905), or contradicts it: then the database's clock was set.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._unsure = math.inf  # seconds, when it was observed
        self._observed_at = 0.0

    def observe(self, asked: float, database_now: datetime, answered: float) -> None:
        """Correct the offset by an answer of the database, between two readings of the monotonic clock."""
        offset, unsure = database_now.timestamp() - (asked + answered) / 2, (answered - asked) / 2
        known = self._unsure + _DRIFT * (answered - self._observed_at)
        if unsure <= known or abs(offset - self._offset) > unsure + known:
            self._offset, self._unsure, self._observed_at = offset, unsure, answered

    def monotonic(self, at: datetime) -> float:
        """When, on the monotonic clock, a database time is."""
        return at.timestamp() - self._offset

    def now(self) -> datetime:
        """The database's time, aware and UTC."""
        return datetime.fromtimestamp(time.monotonic() + self._offset, UTC)


class Slot:
    """One of a lease's slots: `next_start`, on the monotonic clock, is a point of the grid that is no other slot's.

    Only those points are kept apart over all workers: a start in between may come right before another worker's.
    """

    __slots__ = ("held", "hop", "is_busy", "next_start")

    def __init__(self, held: HeldLease, next_start: float) -> None:
        self.held = held
        self.next_start = next_start
        self.hop: Visit | RobotsFetch | None = None
        self.is_busy = False  # from a request's start until it may start the next

    def spend(self, now: float) -> None:
        """A request starts now: the next may start at the slot's next point of the grid."""
        self.is_busy = True
        self.held.last_start = now
        self.next_start += self.held.period
        self.wait_until(now)

    def free(self, now: float) -> None:
        """It may start the next request: at the lease's first point of the grid that no free slot of it waits for."""
        self.is_busy = False
        self.wait_until(now)
        for other in self.held.slots:
            if other.is_busy:
                other.wait_until(now)
                if other.next_start < self.next_start:
                    self.next_start, other.next_start = other.next_start, self.next_start

    @property
    def starts_at(self) -> float:
        """When it may start: later than its point of the grid where the lease's last start was late."""
        return max(self.next_start, self.held.last_start + self.held.delay)

    def is_late(self, now: float) -> bool:
        """Whether its start was missed: who comes that late may meet the next one's start, of another worker."""
        return now - self.next_start > self.held.most_late

    def wait_until(self, at: float) -> None:
        """Start no earlier than `at`, at a point of the grid."""
        late, period = at - self.next_start, self.held.period
        if late > 0:
            self.next_start += period * math.ceil(late / period) if period > 0 else late


class HeldLease:
    """A lease that this worker holds, with its waiting URLs and what of it is in flight or not committed yet."""

    def __init__(self, lease: Lease, clock: DatabaseClock, lease_for: timedelta) -> None:
        self.lease = lease
        self.token = lease.token
        self.host_id = lease.host_id
        self.waiting: deque[ClaimedUrl] = deque(lease.urls)
        self.period = lease.period.total_seconds()
        self.delay = lease.delay.total_seconds()
        self.last_start = 0.0
        self.most_late = min(_MOST_LATE, self.delay / 4) if self.delay else math.inf
        self.slots = [Slot(self, clock.monotonic(start)) for start in lease.first_starts]
        self.parked: list[Slot] = []  # slots that wait for robots.txt
        self.busy = 0  # URLs, and requests for robots.txt, that were started and are not done with
        self.failures = lease.host_failures  # of the host, in a row, as far as this worker knows
        self.is_draining = False  # starts nothing any more; what waited goes back
        self.is_lost = False
        self.is_suspect = lease.urls[0].expiries >= 2
        self.expires = clock.monotonic(lease.expires_at)
        self._last_tenth = lease_for.total_seconds() / 10

    def may_start(self, now: float) -> bool:
        """Whether a request may start: not in the last tenth of the lease, where a commit could come too late."""
        return not self.is_draining and now < self.expires - self._last_tenth

    def drain(self) -> None:
        """Start nothing any more."""
        self.is_draining = True
        self.waiting.clear()
        self.parked.clear()

    @property
    def is_over(self) -> bool:
        """Nothing waits and nothing is in hand."""
        return not self.waiting and self.busy == 0


class LeaseTable:
    """The leases that a worker holds. The loop's thread writes; the heartbeat reads tokens and brings renewals."""

    def __init__(self, clock: DatabaseClock, lease_for: timedelta = LEASE_FOR) -> None:
        self._clock = clock
        self._lease_for = lease_for
        self._lock = threading.Lock()
        self._held: dict[LeaseToken, HeldLease] = {}
        self._renewals: list[tuple[Sequence[LeaseToken], dict[LeaseToken, datetime]]] = []
        self._draining: set[int] = set()
        self.slots = 0

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldLease]:
        return iter(list(self._held.values()))

    def __contains__(self, held: HeldLease) -> bool:
        return held.token in self._held

    @property
    def holds_suspect(self) -> bool:
        """Whether a page that outlived two workers or more is held: then nothing else may be."""
        return len(self._held) == 1 and next(iter(self._held.values())).is_suspect

    def add(self, lease: Lease) -> HeldLease:
        """Hold a claimed lease."""
        held = HeldLease(lease, self._clock, self._lease_for)
        self.slots += len(held.slots)
        with self._lock:
            self._held[held.token] = held
        return held

    def remove(self, held: HeldLease) -> None:
        """Hold it no more."""
        with self._lock:
            if self._held.pop(held.token, None) is not None:
                self.slots -= len(held.slots)

    def of_host(self, host_id: int) -> list[HeldLease]:
        """The leases of one host."""
        return [held for held in self._held.values() if held.host_id == host_id]

    def tokens(self) -> Sequence[LeaseToken]:
        """What is to be renewed. Any thread."""
        with self._lock:
            return list(self._held)

    def renewed(self, asked: Sequence[LeaseToken], living: dict[LeaseToken, datetime]) -> None:
        """Bring what a renewal gave. Any thread; `lost` takes it over."""
        with self._lock:
            self._renewals.append((asked, living))

    def drain_hosts(self, hosts: Sequence[int]) -> None:
        """Bring hosts where nothing more is to be started. Any thread; `to_drain` takes them over."""
        with self._lock:
            self._draining.update(hosts)

    def to_drain(self) -> list[HeldLease]:
        """The leases of hosts that were brought since the last call."""
        with self._lock:
            hosts, self._draining = self._draining, set()
            return [held for held in self._held.values() if held.host_id in hosts] if hosts else []

    def lost(self, now: float) -> list[HeldLease]:
        """Take over renewals; the leases that were not renewed, or have run out."""
        with self._lock:
            renewals, self._renewals = self._renewals, []
            for asked, living in renewals:
                for token in asked:
                    held = self._held.get(token)
                    if held is not None:
                        held.expires = self._clock.monotonic(living[token]) if token in living else 0.0
            return [held for held in self._held.values() if now >= held.expires]

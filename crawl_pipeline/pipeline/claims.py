"""When a worker claims, and how much: as long as it has free slots, less often while nothing is to be had."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crawl_pipeline.domain.pages import Lease
from crawl_pipeline.pipeline.database_thread import DatabaseThread
from crawl_pipeline.pipeline.leases import LeaseTable
from crawl_pipeline.storage.frontier import Frontier

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  # seconds between claims that gave nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One worker's part of the crawl: requests in flight, and most slots of one lease."""

    in_flight: int
    slots: int


class Claims:
    """Claims by way of the committer, one at a time; leases come to `on_claimed`, or go straight back after a stop."""

    def __init__(
        self,
        frontier: Frontier,
        thread: DatabaseThread,
        leases: LeaseTable,
        share: Share,
        on_claimed: Callable[[Lease], None],
    ) -> None:
        self._frontier = frontier
        self._thread = thread
        self._leases = leases
        self._share = share
        self._on_claimed = on_claimed
        self._is_asking = False
        self._is_stopped = False
        self._pause = _FIRST_PAUSE
        self._next_at = 0.0

    def claim(self) -> None:
        """Ask for leases where slots are free and it is time to."""
        free = self._share.in_flight - self._leases.slots
        if self._is_asking or free <= 0 or time.monotonic() < self._next_at or self._leases.holds_suspect:
            return
        self._is_asking = True
        share = min(self._share.slots, free)
        batch = max(64, 16 * share)
        want = max(batch, min(512, 8 * free))
        is_idle = len(self._leases) == 0
        self._thread.ask(
            lambda: self._frontier.claim(want=want, batch=batch, share=share, is_idle=is_idle, slots=free),
            self._claimed,
        )

    def next_at(self) -> float | None:
        """When (monotonic) `claim` is worth a call again; None: not before something else happens."""
        if self._is_asking or self._is_stopped or self._leases.holds_suspect:
            return None
        if self._leases.slots >= self._share.in_flight:
            return None
        return self._next_at

    def hurry(self, within: float = 0.0) -> None:
        """Something may be claimable now: a lease ended, new URLs were found."""
        self._pause = _FIRST_PAUSE
        self._next_at = min(self._next_at, time.monotonic() + within)

    def stop(self) -> None:
        """Claim no more; what a claim on its way brings goes back."""
        self._is_stopped = True

    def _claimed(self, leases: Sequence[Lease]) -> None:
        self._is_asking = False
        if self._is_stopped:
            tokens = [lease.token for lease in leases]
            self._thread.ask(lambda: self._frontier.release(tokens), lambda _: None)
            return
        if not leases:
            self._next_at = time.monotonic() + self._pause
            self._pause = min(_LONGEST_PAUSE, self._pause * 1.5)
            return
        self._pause = _FIRST_PAUSE
        for lease in leases:
            self._on_claimed(lease)

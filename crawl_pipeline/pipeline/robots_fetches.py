"""A worker's requests for robots.txt: begun in a slot of the host, followed through redirects, also to other hosts.

Owns the slots of other hosts that a redirect is followed in. Who is to fetch, and what is kept, is `robots_gate`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime

from crawl_pipeline.domain.pages import Exchange, LeaseToken
from crawl_pipeline.pipeline.database_thread import DatabaseThread
from crawl_pipeline.pipeline.leases import DatabaseClock, HeldLease, Slot
from crawl_pipeline.pipeline.robots_gate import RobotsGate
from crawl_pipeline.pipeline.visit import Requests, RobotsFetch
from crawl_pipeline.storage.frontier import Frontier

_SLOT_WITHIN = 20.0  # seconds for a redirect to a busy host; then robots.txt is unavailable, and asked for later
_TRY_AGAIN = 0.25  # seconds, while the other host has no slot free


class RobotsFetches:
    """Everything runs in the crawl loop's thread. `free` lets a slot's hop wait for the slot's next start, `push` for
    a time of its own."""

    def __init__(
        self,
        gate: RobotsGate,
        requests: Requests,
        frontier: Frontier,
        thread: DatabaseThread,
        clock: DatabaseClock,
        *,
        free: Callable[[Slot], None],
        push: Callable[[Slot, float], None],
        drain: Callable[[HeldLease], None],
        give_up: Callable[[RobotsFetch], None],
    ) -> None:
        self._gate = gate
        self._requests = requests
        self._frontier = frontier
        self._thread = thread
        self._clock = clock
        self._free = free
        self._push = push
        self._drain = drain
        self._give_up = give_up
        self._open: set[RobotsFetch] = set()

    def __iter__(self) -> Iterator[RobotsFetch]:
        return iter(list(self._open))

    def begin(self, slot: Slot, origin: str) -> RobotsFetch:
        """A request in a slot; a page's hop that waits in it comes after."""
        slot.held.busy += 1
        fetch = RobotsFetch(slot, origin)
        slot.hop = None
        self._open.add(fetch)
        return fetch

    def answered(self, fetch: RobotsFetch, exchange: Exchange) -> None:
        """Follow a redirect, or bring the gate what was answered."""
        self._leave(fetch)
        target = self._requests.robots_redirect(fetch, exchange)
        if target is None:
            self._known(fetch, exchange)
            return
        fetch.hops += 1
        fetch.url = target
        fetch.redirect = exchange
        fetch.give_up_at = time.monotonic() + _SLOT_WITHIN
        fetch.slot.hop = fetch
        if fetch.is_away:  # its start is no business of this slot's
            self._push(fetch.slot, time.monotonic())
        else:
            self._free(fetch.slot)

    def ask_elsewhere(self, fetch: RobotsFetch) -> None:
        """A hop to another host's robots.txt is made in a slot of that host's own budget, or not at all."""
        authority = fetch.authority

        def answered(taken: tuple[LeaseToken, datetime] | None) -> None:
            now = time.monotonic()
            if taken is not None:
                fetch.elsewhere = taken[0]
            if fetch.slot.held.is_draining:
                self._give_up(fetch)
            elif taken is not None or now < fetch.give_up_at:
                fetch.slot.hop = fetch
                self._push(fetch.slot, self._clock.monotonic(taken[1]) if taken is not None else now + _TRY_AGAIN)
            else:
                assert fetch.redirect is not None
                self._known(fetch, fetch.redirect, f"redirected to {authority}, which had no slot free")

        self._thread.ask(lambda: self._frontier.claim_slot(authority), answered)

    def hand_back(self, fetch: RobotsFetch) -> None:
        """It will not be finished: another worker, or this one, may begin it anew."""
        self._open.discard(fetch)
        self._leave(fetch)
        self._gate.hand_back(fetch.origin)

    def _known(self, fetch: RobotsFetch, exchange: Exchange, trouble: str | None = None) -> None:
        self._open.discard(fetch)
        held = fetch.slot.held
        held.busy -= 1
        fetch.slot.hop = fetch.then
        held.parked.append(fetch.slot)
        self._gate.fetched(fetch.origin, exchange, trouble)
        if held.is_draining:
            self._drain(held)

    def _leave(self, fetch: RobotsFetch) -> None:
        """Give the slot of another host back."""
        token, fetch.elsewhere = fetch.elsewhere, None
        if token is not None:
            self._thread.ask(lambda: self._frontier.release([token]), lambda _: None)

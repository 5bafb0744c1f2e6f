"""The libcurl client: every transfer of a process in one thread, over one selector.

`curl_multi` keeps connections, `curl_easy` sets options and obeys `reception`; here transfers start and finish.
"""

from __future__ import annotations

import math
import selectors
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pycurl

from crawl_pipeline.domain.pages import Exchange, FetchFailure, FetchRequest
from crawl_pipeline.fetching.addresses import parse_networks
from crawl_pipeline.fetching.curl_codes import failure_of
from crawl_pipeline.fetching.curl_easy import Hand, Loop
from crawl_pipeline.fetching.curl_multi import CurlMulti
from crawl_pipeline.fetching.reception import Limits, Reception

_LOOK_EVERY = 1.0  # seconds between looks for stalled transfers
_IDLE_MULTIS = 8  # sets of allow_networks whose idle connections are kept


class CurlTransport:
    """Implements `Transport`. Starts, polls and aborts belong to one thread; `wake` to any."""

    def __init__(
        self,
        *,
        max_in_flight: int,
        limits: Limits,
        ca_file: str,
        proxy: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_in_flight = max_in_flight
        self._limits = limits
        self._clock = clock
        self._loop = Loop(clock=clock, ca_file=ca_file, proxy=proxy)
        self._look_at = 0.0
        self._spare: list[Hand] = []
        self._in_flight: dict[object, tuple[Hand, CurlMulti]] = {}
        self._multis: dict[tuple[str, ...], CurlMulti] = {}
        self._finished: list[tuple[object, Exchange]] = []
        self._selector = selectors.DefaultSelector()
        self._ear, self._mouth = socket.socketpair()
        self._ear.setblocking(False)
        self._mouth.setblocking(False)
        self._selector.register(self._ear, selectors.EVENT_READ, None)
        self._is_closed = False

    @property
    def max_in_flight(self) -> int:
        return self._max_in_flight

    @property
    def in_flight(self) -> int:
        return len(self._in_flight) + len(self._finished)

    def start(self, request: FetchRequest, tag: object) -> None:
        if self.in_flight >= self._max_in_flight:
            raise RuntimeError(f"{self._max_in_flight} exchanges are in flight; no more can be started")
        if tag in self._in_flight:
            raise RuntimeError(f"an exchange with the tag {tag!r} is in flight already")
        parse_networks(request.allow_networks)
        hand = self._spare.pop() if self._spare else Hand(self._loop)
        reception = Reception(request, self._limits, started_at=datetime.now(UTC), started=self._clock())
        try:
            hand.take(tag, reception)
        except BaseException:
            hand.drop()
            self._spare.append(hand)
            raise
        multi = self._multi(request.allow_networks)
        self._in_flight[tag] = (hand, multi)
        multi.add(hand)

    def poll(self, timeout: float) -> list[tuple[object, Exchange]]:
        deadline = self._clock() + timeout
        is_woken = self._turn(0.0 if self._finished else timeout)
        while not self._finished and not is_woken:
            left = deadline - self._clock()
            if left <= 0:
                break
            is_woken = self._turn(left)
        finished, self._finished = self._finished, []
        return finished

    def abort(self, tag: object) -> None:
        entry = self._in_flight.get(tag)
        if entry is None:
            return
        hand, multi = entry
        multi.remove(hand)
        self._finish(hand, FetchFailure.ABORTED, "ended by the crawl")

    def wake(self) -> None:
        try:
            self._mouth.send(b"!")
        except BlockingIOError:  # full: it is awake already
            pass
        except OSError:  # closed meanwhile
            if not self._is_closed:
                raise

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        hands = [hand for hand, _ in self._in_flight.values()] + self._spare
        for multi in self._multis.values():
            multi.close()
        for hand in hands:
            hand.easy.close()
        self._multis.clear()
        self._in_flight.clear()
        self._finished.clear()
        self._spare.clear()
        self._selector.close()
        self._ear.close()
        self._mouth.close()

    # The loop

    def _turn(self, timeout: float) -> bool:
        """Wait for sockets and timers once and serve them; whether it was woken."""
        now = self._clock()
        due_at = min((multi.due_at for multi in self._multis.values()), default=math.inf)
        wait = min(timeout, max(0.0, due_at - now), _LOOK_EVERY)
        is_woken = False
        for key, events in self._selector.select(wait):
            if key.data is None:
                is_woken = self._listen()
            else:
                key.data.act(key.fd, events)
        now = self._clock()
        for multi in self._multis.values():
            multi.tick(now)
            multi.collect()
        self._after_callbacks()
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY
            self._end_stalled(now)
        return is_woken

    def _listen(self) -> bool:
        try:
            while self._ear.recv(4096):
                pass
        except BlockingIOError:
            pass
        return True

    def _end_stalled(self, now: float) -> None:
        stalled = [
            (hand, multi)
            for hand, multi in self._in_flight.values()
            if hand.reception is not None and hand.reception.is_stalled(now)
        ]
        for hand, multi in stalled:
            assert hand.reception is not None
            multi.remove(hand)
            self._finish(hand, FetchFailure.TIMEOUT, hand.reception.stall())

    def _settle(self, hand: Hand, code: int, message: str) -> None:
        assert hand.reception is not None
        reception = hand.reception
        reception.address = hand.easy.getinfo(pycurl.PRIMARY_IP) or None
        if code == pycurl.E_ABORTED_BY_CALLBACK and hand.is_answered_unasked:
            hand.is_answered_unasked = False
            self._in_flight[hand.tag][1].add(hand)  # libcurl closed that connection; another is had
        elif code == pycurl.E_OK:
            self._finish(hand, None, None)
        elif code == pycurl.E_COULDNT_CONNECT and (detail := hand.refusal()):
            self._finish(hand, FetchFailure.ADDRESS_REFUSED, detail)
        else:
            self._finish(hand, failure_of(code, has_begun=reception.has_head), message or f"libcurl error {code}")

    def _finish(self, hand: Hand, failure: FetchFailure | None, detail: str | None) -> None:
        assert hand.reception is not None
        exchange = hand.reception.exchange(failure, detail, now=self._clock())
        self._finished.append((hand.tag, exchange))
        del self._in_flight[hand.tag]
        hand.drop()
        self._spare.append(hand)

    def _after_callbacks(self) -> None:
        for opened in self._loop.opened:
            opened.close()
        self._loop.opened.clear()
        if self._loop.faults:
            faults = self._loop.faults[:]
            self._loop.faults.clear()
            raise faults[0]

    def _multi(self, networks: tuple[str, ...]) -> CurlMulti:
        multi = self._multis.pop(networks, None)
        if multi is None:
            self._forget_idle_multis()
            most = max(8, self._max_in_flight)
            multi = CurlMulti(self._loop, self._selector, max_connections=most, finished=self._settle)
        self._multis[networks] = multi  # the last used is the last in order
        return multi

    def _forget_idle_multis(self) -> None:
        idle = [networks for networks, multi in self._multis.items() if not multi.hands]
        for networks in idle[: max(0, len(idle) - _IDLE_MULTIS + 1)]:
            self._multis.pop(networks).close()

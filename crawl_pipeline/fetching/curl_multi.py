"""One libcurl multi handle: its sockets and timer, driven by the transport's selector.

A multi handle is made for one set of `allow_networks`: its connections are only used by requests that could have
opened them, so that a wider rule's connection never serves a narrower one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector
from typing import Any

import pycurl

from crawl_pipeline.fetching.curl_easy import Hand, Loop

Finished = Callable[[Hand, int, str], None]

_EVENTS = {
    pycurl.POLL_IN: EVENT_READ,
    pycurl.POLL_OUT: EVENT_WRITE,
    pycurl.POLL_INOUT: EVENT_READ | EVENT_WRITE,
}


class CurlMulti:
    """Drives the hands it was given; calls `finished(hand, code, message)` for each that is done."""

    def __init__(self, loop: Loop, selector: BaseSelector, *, max_connections: int, finished: Finished) -> None:
        self.hands: dict[Any, Hand] = {}
        self.due_at = math.inf  # when libcurl wants to be called although no socket is ready
        self._selector = selector
        self._loop = loop
        self._finished = finished
        self._may_be_resolving = False  # an exchange ended before it had an address
        self._is_closed = False
        self._registered: set[int] = set()
        self._multi: Any = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._on_socket)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._on_timer)
        self._multi.setopt(pycurl.M_MAXCONNECTS, max_connections)

    def add(self, hand: Hand) -> None:
        """Begin the exchange that the hand carries."""
        self.hands[hand.easy] = hand
        self._multi.add_handle(hand.easy)

    def remove(self, hand: Hand) -> None:
        """Stop the exchange; its connection is closed if it was in use."""
        if not hand.easy.getinfo(pycurl.PRIMARY_IP):
            self._may_be_resolving = True
        del self.hands[hand.easy]
        self._multi.remove_handle(hand.easy)

    def act(self, fd: int, events: int) -> None:
        """Tell libcurl that a socket is ready."""
        mask = (pycurl.CSELECT_IN if events & EVENT_READ else 0) | (pycurl.CSELECT_OUT if events & EVENT_WRITE else 0)
        self._multi.socket_action(fd, mask)

    def tick(self, now: float) -> None:
        """Call libcurl if its time has come."""
        if now >= self.due_at:
            self.due_at = math.inf
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)

    def collect(self) -> None:
        """Hand over what is done."""
        left = 1
        while left:
            left, done, failed = self._multi.info_read()
            for easy in done:
                self._settle(easy, pycurl.E_OK, "")
            for easy, code, message in failed:
                self._settle(easy, code, message)

    def _settle(self, easy: Any, code: int, message: str) -> None:
        hand = self.hands.get(easy)
        if hand is not None:
            if code == pycurl.E_OK:
                hand.keep()
            self.remove(hand)
            self._finished(hand, code, message)

    def close(self) -> None:
        """Drop every exchange and connection. Returns at once, although name look-ups may still hang for seconds."""
        for hand in list(self.hands.values()):
            self.remove(hand)
        self._is_closed = True
        for fd in self._registered:
            self._selector.unregister(fd)
        self._registered.clear()
        if self._may_be_resolving:
            # libcurl waits for its resolver threads, which nothing can interrupt.
            threading.Thread(target=self._multi.close, name="resolver-end", daemon=True).start()
        else:
            self._multi.close()

    # Callbacks

    def _on_socket(self, what: int, fd: int, multi: Any, data: Any) -> int:
        if self._is_closed:
            return 0
        try:
            if what == pycurl.POLL_REMOVE:
                if fd in self._registered:
                    self._registered.discard(fd)
                    self._selector.unregister(fd)
            elif fd in self._registered:
                self._selector.modify(fd, _EVENTS[what], self)
            else:
                self._selector.register(fd, _EVENTS[what], self)
                self._registered.add(fd)
        except BaseException as error:
            self._loop.faults.append(error)
            return -1
        return 0

    def _on_timer(self, timeout_ms: int) -> int:
        try:
            self.due_at = math.inf if timeout_ms < 0 else self._loop.clock() + timeout_ms / 1000
        except BaseException as error:
            self._loop.faults.append(error)
            return -1
        return 0

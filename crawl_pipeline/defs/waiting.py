"""Work in a thread while the main thread waits, so that an interrupt never lands inside a transaction.

Dagster raises its interrupts in the main thread, at any line; here that line is always a wait.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

TICK = 0.25  # seconds

_log = logging.getLogger(__name__)


def run_uninterrupted(
    work: Callable[[], T], *, stop: threading.Event, grace: float, tick: Callable[[], None] = lambda: None
) -> T:
    """What `work` returns or raises, run in a thread; `tick` is called about every quarter of a second meanwhile.

    Whatever is raised here meanwhile (Dagster's interrupt) sets `stop` and goes on when `work` has ended, or after
    `grace` seconds at most; signals that arrive in between change nothing.
    """
    result: Future[T] = Future()
    ended = threading.Event()
    thread = threading.Thread(target=_fulfil, args=(result, work, ended), name="crawl", daemon=True)
    try:
        thread.start()  # waits for the thread to begin: an interrupt may land here already
        while not ended.wait(TICK):
            tick()
    except BaseException:
        with shielded():
            stop.set()
            if not ended.wait(grace):
                _log.error("work did not stop in time; its leases run out by themselves", extra={"grace": grace})
        raise
    return result.result()


@contextmanager
def shielded() -> Iterator[None]:
    """Let SIGINT and SIGTERM pass without effect within the block (in the main thread; elsewhere they never arrive)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, _ignore) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


def _ignore(_number: int, _frame: object) -> None:
    pass


def _fulfil(result: Future[T], work: Callable[[], T], ended: threading.Event) -> None:
    try:
        result.set_result(work())
    except BaseException as error:  # it is raised where the result is asked for
        result.set_exception(error)
    finally:
        ended.set()

"""Work in a thread, waited for in the main thread: results, interrupts and signals."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from dagster import DagsterExecutionInterruptedError
from dagster._utils.interrupts import raise_interrupts_as

from crawl_pipeline.defs.waiting import run_uninterrupted, shielded


@pytest.fixture(autouse=True)
def unharmed() -> Iterator[None]:
    """A signal that gets through ends the test and not the session. Dagster gives SIGINT's handler to SIGTERM, too."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, lambda *_: None) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


def test_the_result_of_the_work_is_returned() -> None:
    assert run_uninterrupted(lambda: 7, stop=threading.Event(), grace=1) == 7


def test_an_error_of_the_work_is_raised_as_it_is() -> None:
    error = LookupError("nothing there")

    def work() -> None:
        raise error

    with pytest.raises(LookupError) as raised:
        run_uninterrupted(work, stop=threading.Event(), grace=1)
    assert raised.value is error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_raised_only_after_the_work_has_ended(number: signal.Signals) -> None:
    """Broken by waiting for nothing in `run_uninterrupted` once the interrupt is there."""
    stop, order = threading.Event(), []

    def work() -> None:
        os.kill(os.getpid(), number)
        stop.wait(20)
        time.sleep(0.3)  # what is in flight is finished
        order.append("work ended")

    with pytest.raises(DagsterExecutionInterruptedError), raise_interrupts_as(DagsterExecutionInterruptedError):
        run_uninterrupted(work, stop=stop, grace=20)
    assert stop.is_set()
    assert order == ["work ended"]


def test_signals_during_the_clean_up_change_nothing() -> None:
    """Broken by taking away `shielded`."""
    stop, order = threading.Event(), []

    def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        stop.wait(20)
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)
        order.append("work ended")

    with pytest.raises(DagsterExecutionInterruptedError), raise_interrupts_as(DagsterExecutionInterruptedError):
        run_uninterrupted(work, stop=stop, grace=20)
    assert order == ["work ended"]


def test_work_that_does_not_stop_is_left_after_the_grace_time() -> None:
    stop, release = threading.Event(), threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        release.wait(30)

    with pytest.raises(DagsterExecutionInterruptedError), raise_interrupts_as(DagsterExecutionInterruptedError):
        run_uninterrupted(work, stop=stop, grace=0.2)
    assert stop.is_set()
    release.set()


def test_the_shield_gives_the_handlers_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with shielded():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before

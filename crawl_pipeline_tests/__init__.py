"""The test suite: one folder a layer, `durability` for the promises, `project` for the repository itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], within: float = 10.0, every: float = 0.02) -> T:
    """Return the condition's first true value, or fail the test after `within` seconds. The only sleep in tests."""
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {within:g} s: {getattr(condition, '__name__', condition)}")
        time.sleep(every)

"""What a worker saw of its hosts: told at once where there is trouble, else every few seconds, and nothing twice."""

from __future__ import annotations

import math

import pytest

from crawl_pipeline.pipeline.observations import Observations


def test_health_is_told_every_few_seconds_and_trouble_at_once() -> None:
    seen = Observations()
    seen.note(1, 0.1, failed=False)
    assert [one.answers for one in seen.take(0.0)] == [1]
    seen.note(1, 0.1, failed=False)
    assert seen.take(1.0) == []
    seen.note(1, 0.2, failed=True)
    (told,) = seen.take(2.0)
    assert (told.answers, told.failures) == (1, 1)
    seen.note(1, 3.0, failed=False)  # slow
    assert [one.answers for one in seen.take(3.0)] == [1]
    assert seen.take(60.0) == []


def test_what_could_not_be_told_is_told_with_what_came_since() -> None:
    """Guard: without it, a host whose row is locked most of the time would never be known."""
    seen = Observations()
    for seconds in (0.1, 0.2):
        seen.note(1, seconds, failed=False)
    untold = seen.take(0.0)
    seen.note(1, 0.4, failed=False)
    seen.put_back(untold)
    (told,) = seen.take(1.0)
    assert told.answers == 3
    assert told.log_seconds == pytest.approx(math.log(0.1 * 0.2 * 0.4))


def test_answer_in_no_time_is_a_finite_number() -> None:
    seen = Observations()
    seen.note(1, 0.0, failed=False)
    (told,) = seen.take(0.0)
    assert math.isfinite(told.log_seconds)

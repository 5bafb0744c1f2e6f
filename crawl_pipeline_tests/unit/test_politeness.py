"""Waits: Retry-After, back-off of pages and of hosts."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawl_pipeline.domain.politeness import (
    RETRY_BASE,
    RETRY_CAP,
    backoff,
    http_date,
    retry_after,
)
from crawl_pipeline_tests.conftest import Score

HTTP = Path(__file__).parents[3] / "shared" / "corpora" / "http"
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
CAP = timedelta(hours=1)
KNOWN_GAPS = {
    "Wed, 11 Dec 2024 23:20:57 UTC": "taken: servers write UTC for GMT, and Retry-After of others is read so",
    "Wednesday, 11-Dec-24 23:20:57 UTC": "taken: as above",
    "Wed, 6 Dec 2024 23:20:07 GMT": "taken: days of one digit are common",
    "Wednesday, 6-Dec-24 23:20:07 GMT": "taken: as above",
    "Mon Jan  1 02:00:60 2024": "taken: a leap second in any of the three forms",
}


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("0", 0),
        ("120", 120),
        (" 120\t", 120),
        ("007", 7),
        ("3601", 3_600),
        ("9" * 5_000, 3_600),
        ("-1", None),
        ("+1", None),
        ("1.5", None),
        ("1e3", None),
        ("0x10", None),
        ("\u0663", None),
        ("120, 60", None),
        ("Sun, 01 Mar 2026 12:02:00 GMT", 120),
        ("Sun, 1 Mar 2026 12:02:00 UTC", 120),
        ("Sunday, 01-Mar-26 12:02:00 GMT", 120),
        ("Sun Mar  1 12:02:00 2026", 120),
        ("Sun, 01 Mar 2026 11:00:00 GMT", 0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3_600),
        ("Sun, 31 Feb 2026 12:02:00 GMT", None),
        ("Sun, 01 Mar 0000 12:02:00 GMT", None),
        ("Sun, 01 Mar 2026 24:02:00 GMT", None),
        ("2026-03-01T12:02:00Z", None),
        ("tomorrow", None),
    ],
)
def test_retry_after_is_seconds_or_an_http_date(value: str | None, seconds: int | None) -> None:
    assert retry_after(value, NOW, CAP) == (None if seconds is None else timedelta(seconds=seconds))


@pytest.mark.parametrize(("text", "year"), [("75", 2075), ("76", 2076), ("77", 1977), ("26", 2026), ("00", 2000)])
def test_two_digit_year_is_at_most_50_years_ahead(text: str, year: int) -> None:
    found = http_date(f"Sunday, 01-Mar-{text} 12:02:00 GMT", NOW)
    assert found is not None
    assert found.year == year


@given(value=st.one_of(st.text(), st.text(alphabet="0123456789:-, GMTSunMar"), st.integers().map(str)))
def test_no_header_makes_retry_after_raise_or_exceed_its_cap(value: str) -> None:
    wait = retry_after(value, NOW, CAP)
    assert wait is None or timedelta(0) <= wait <= CAP


@given(failures=st.integers(0, 10**6), seed=st.integers())
def test_backoff_lies_in_the_upper_half_of_a_doubling_ceiling(failures: int, seed: int) -> None:
    wait = backoff(failures, random.Random(seed))
    ceiling = min(RETRY_BASE * 2 ** min(max(failures - 1, 0), 12), RETRY_CAP)
    assert ceiling / 2 <= wait <= ceiling


def test_backoff_differs_from_page_to_page() -> None:
    rng = random.Random(1)
    assert len({backoff(1, rng) for _ in range(20)}) == 20


def _cases(name: str) -> list[dict[str, Any]]:
    if not HTTP.exists():
        pytest.skip("the conformance data is not there: ../shared/corpora")
    cases: list[dict[str, Any]] = json.loads((HTTP / name).read_text(encoding="utf-8"))
    return cases


@pytest.mark.conformance
def test_published_retry_after_values_are_read_as_their_authors_say(score: Score) -> None:
    cases = _cases("retry_after.json")
    for case in cases:
        now = datetime.fromisoformat(case["now"]) if case["now"] else NOW
        wait = retry_after(case["value"], now, timedelta(days=1))
        assert (None if wait is None else wait.total_seconds()) == case["seconds"], case
    score("http: Retry-After", len(cases), len(cases))


@pytest.mark.conformance
def test_published_strict_http_dates_are_read_as_rfc_9110_says(score: Score) -> None:
    cases = [case for case in _cases("http_dates.json") if "strict RFC 9110" in case["source"]]
    wrong = set()
    for case in cases:
        found = http_date(case["input"], NOW)
        if (None if found is None else found.timestamp()) != case["epoch"]:
            wrong.add(case["input"])
    assert wrong == set(KNOWN_GAPS)
    assert len(cases) == 232
    score("http: strict dates (RFC 9110)", len(cases) - len(wrong), len(cases))

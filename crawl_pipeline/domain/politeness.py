"""How long to wait: Retry-After, back-off of one page. Values only, no clock.

What a host's trouble makes of its delay is decided where its state lives: `observed` in `sql/functions/10_settle.sql`.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

RETRY_BASE = timedelta(seconds=30)
RETRY_CAP = timedelta(hours=1)
OUTAGE_FAILURES = 5  # failures in a row after which a host counts as down
SLOW = 1.0  # seconds of an answer below which no host is called slow
_ZERO = timedelta(0)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_LONG_DAY = "(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_MONTH = f"(?P<month>{'|'.join(_MONTHS)})"
_TIME = "(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
# The three forms of RFC 9110, section 5.6.7, with one-digit days and UTC for GMT, as servers send them.
_HTTP_DATES = (
    re.compile(f"{_DAY}, (?P<day>[0-9]{{1,2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} (?:GMT|UTC)"),
    re.compile(f"{_LONG_DAY}, (?P<day>[0-9]{{1,2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} (?:GMT|UTC)"),
    re.compile(f"{_DAY} {_MONTH} (?P<day>[ 0-9][0-9]) {_TIME} (?P<year>[0-9]{{4}})"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostObservation:
    """How a host answered for a while: answers and the sum of their seconds' logarithms, and answers against it."""

    host_id: int
    answers: int
    log_seconds: float
    failures: int


def backoff(
    failures: int, rng: random.Random, *, base: timedelta = RETRY_BASE, cap: timedelta = RETRY_CAP
) -> timedelta:
    """The wait before a page's next try: doubles with each failure up to `cap`, the upper half of it by chance."""
    ceiling = min(base * (1 << min(max(failures - 1, 0), 30)), cap)
    return ceiling * rng.uniform(0.5, 1.0)


def retry_after(value: str | None, now: datetime, cap: timedelta) -> timedelta | None:
    """How long the server asks to wait, between zero and `cap`; None for what RFC 9110 does not know. Never raises."""
    if value is None:
        return None
    text = value.strip(" \t")
    if re.fullmatch("[0-9]+", text):
        digits = text.lstrip("0")
        return cap if len(digits) > 9 else min(timedelta(seconds=int(digits or "0")), cap)
    date = http_date(text, now)
    return None if date is None else min(max(date - now, _ZERO), cap)


def http_date(text: str, now: datetime) -> datetime | None:
    """The instant that an HTTP date names, aware and UTC; None if it is none. Never raises.

    A two-digit year is the latest that is not more than 50 years ahead of `now` (RFC 9110).
    """
    match = next(filter(None, (pattern.fullmatch(text) for pattern in _HTTP_DATES)), None)
    if match is None:
        return None
    year = int(match["year"])
    if len(match["year"]) == 2:
        year += now.year - now.year % 100
        year = year - 100 if year > now.year + 50 else year
    second = int(match["second"])
    try:
        return datetime(
            year,
            _MONTHS.index(match["month"]) + 1,
            int(match["day"]),
            int(match["hour"]),
            int(match["minute"]),
            min(second, 59) if second == 60 else second,  # a leap second
            tzinfo=UTC,
        )
    except ValueError:
        return None

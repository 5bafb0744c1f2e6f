"""Dates as pages write them, to calendar dates and to instants. English month names; nothing ambiguous is guessed."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime

_MONTHS = {
    name: number
    for number, names in enumerate(
        ("january jan", "february feb", "march mar", "april apr", "may", "june jun", "july jul", "august aug",
         "september sep sept", "october oct", "november nov", "december dec"), start=1,
    )
    for name in names.split()
}  # fmt: skip
_ISO = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?!\d)", re.ASCII)
_COMPACT = re.compile(r"(\d{4})(\d{2})(\d{2})(?:T\d|\Z)", re.ASCII)
_YEAR_FIRST = re.compile(r"(\d{4})[/.](\d{1,2})[/.](\d{1,2})(?!\d)", re.ASCII)
_DOTTED = re.compile(r"(\d{1,2})\.\s?(\d{1,2})\.\s?(\d{4})(?!\d)", re.ASCII)
_SLASHED = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})(?!\d)", re.ASCII)
_DAY_MONTH = re.compile(
    r"(\d{1,2})(?:st|nd|rd|th)?\.?[\s-]+(?:of\s+)?([A-Za-z]{3,9})\.?,?[\s-]+(\d{4})(?!\d)", re.ASCII
)
_MONTH_DAY = re.compile(r"([A-Za-z]{3,9})\.?\s+(\d{1,2})(?:st|nd|rd|th)?,?\s+(\d{4})(?!\d)", re.ASCII)
_WEEKDAY = re.compile(r"(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}\.?,?\s+", re.IGNORECASE)


def parse_date(text: str) -> date | None:
    """The calendar date that `text` begins with, as written (no time zone is applied); None if it is none or ambiguous.

    `2024-03-05` (also with a time), `20240305`, `2024/03/05`, `05.03.2024` (day first), `5 March 2024`,
    `March 5th, 2024`, `Tue, 05 Mar 2024 10:00:00 GMT`, and `13/03/2024` or `03/13/2024`. With slashes and both numbers
    at most 12, only equal ones are taken: `03/05/2024` is read differently in different countries.
    """
    text = text.strip()[:200]
    weekday = _WEEKDAY.match(text)
    if weekday is not None:
        text = text[weekday.end() :]
    for pattern in (_ISO, _COMPACT, _YEAR_FIRST):
        if (match := pattern.match(text)) is not None:
            return _date(match[1], match[2], match[3])
    if (match := _DOTTED.match(text)) is not None:
        return _date(match[3], match[2], match[1])
    if (match := _SLASHED.match(text)) is not None:
        return _slashed(int(match[1]), int(match[2]), match[3])
    if (match := _DAY_MONTH.match(text)) is not None:
        return _date(match[3], _MONTHS.get(match[2].lower()), match[1])
    if (match := _MONTH_DAY.match(text)) is not None:
        return _date(match[3], _MONTHS.get(match[1].lower()), match[2])
    return None


def parse_instant(text: str) -> datetime | None:
    """The instant of a sitemap's `lastmod` or a feed's date, aware and in UTC; None if it is none.

    A date alone is its midnight, a time without a zone is UTC's.
    """
    text = text.strip()[:100]
    if re.fullmatch(r"\d{4}(-\d{2})?", text, re.ASCII):
        text += "-01" if len(text) == 7 else "-01-01"
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            instant = read(text)
            return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
        except (ValueError, OverflowError, TypeError, IndexError):
            continue
    day = parse_date(text)
    return None if day is None else datetime(day.year, day.month, day.day, tzinfo=UTC)


def _slashed(first: int, second: int, year: str) -> date | None:
    if first > 12 >= second or first == second:
        return _date(year, second, first)
    if second > 12 >= first:
        return _date(year, first, second)
    return None


def _date(year: str, month: str | int | None, day: str | int) -> date | None:
    try:
        return date(int(year), int(month or 0), int(day))
    except ValueError:
        return None

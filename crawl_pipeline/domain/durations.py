"""Durations and sizes as contracts spell them: `500ms`, `30s`, `2MB`. Text in, exact values out."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES = {
    "": 1,
    "B": 1,
    "kB": 1_000,
    "KB": 1_000,
    "MB": 1_000_000,
    "GB": 1_000_000_000,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?(ms|s|m|h|d)", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?(|B|[kKMG]B|[KMG]iB)", re.ASCII)
LONGEST = timedelta(days=3650)
LARGEST = 1 << 40

DURATION_HINT = "use a duration such as 1s, 500ms or 2m"
SIZE_HINT = "use a size such as 500KB, 10MB or 1GiB"


def parse_duration(text: str) -> timedelta:
    """The duration that `text` spells, in whole milliseconds, ten years at most; ValueError says what to write."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(DURATION_HINT)
    milliseconds = Decimal(match[1]) * _MILLISECONDS[match[2]]
    if milliseconds != int(milliseconds):
        raise ValueError("use a duration of whole milliseconds")
    if milliseconds > LONGEST / timedelta(milliseconds=1):
        raise ValueError("use at most 3650d")
    return timedelta(milliseconds=int(milliseconds))


def format_duration(duration: timedelta) -> str:
    """The shortest spelling in one unit; `parse_duration` gives the same value back."""
    milliseconds = duration // timedelta(milliseconds=1)
    if milliseconds == 0:
        return "0s"
    for unit in ("d", "h", "m", "s"):
        if milliseconds % _MILLISECONDS[unit] == 0:
            return f"{milliseconds // _MILLISECONDS[unit]}{unit}"
    return f"{milliseconds}ms"


def parse_size(text: str) -> int:
    """The bytes that `text` spells: MB is a million, MiB is 2**20; ValueError says what to write."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(SIZE_HINT)
    size = Decimal(match[1]) * _BYTES[match[2]]
    if size != int(size):
        raise ValueError("use a size of whole bytes")
    if size > LARGEST:
        raise ValueError("use at most 1024GiB")
    return int(size)

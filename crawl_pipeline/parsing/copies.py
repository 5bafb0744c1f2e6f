"""Copies of what custom extractors yield: plain data only, of bounded size and depth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from decimal import Decimal

from crawl_pipeline.parsing.text import plain

MOST_CHARACTERS = 16_000_000  # of all records of one page
_DEEPEST = 20
_WIDEST_INTEGER = 1_024  # bits
_COST_OF_A_VALUE = 8  # in characters, so that a great many empty values are bounded too


class ExtractorFault(Exception):
    """What an extractor did wrong, as the end of a sentence that begins with its name."""


class Budget:
    """How much one page's records may still hold. Every copy is taken from it."""

    def __init__(self) -> None:
        self._left = MOST_CHARACTERS

    def copied_record(self, item: Mapping[object, object]) -> dict[str, object]:
        """A copy of one yielded mapping; raises ExtractorFault for what a record cannot hold, with its place."""
        return self._mapping(item, "", 0)

    def _mapping(self, item: Mapping[object, object], path: str, depth: int) -> dict[str, object]:
        copy: dict[str, object] = {}
        for key, value in item.items():
            if not isinstance(key, str):
                raise ExtractorFault(f"yields a {type(key).__name__} as a key{_at(path)}: use text")
            self._spend(len(key))
            name = plain(str.__str__(key))
            copy[name] = self._value(value, f"{path}.{name}" if path else name, depth + 1)
        return copy

    def _value(self, value: object, path: str, depth: int) -> object:
        self._spend(_COST_OF_A_VALUE)
        if depth > _DEEPEST:
            raise ExtractorFault(f"yields data nested deeper than {_DEEPEST} levels{_at(path[:60])}")
        if isinstance(value, str):
            self._spend(len(value))
            return plain(str.__str__(value))
        if isinstance(value, Mapping):
            return self._mapping(value, path, depth)
        if isinstance(value, (list, tuple)):
            return [self._value(member, f"{path}[{index}]", depth + 1) for index, member in enumerate(value)]
        return _scalar(value, path)

    def _spend(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise ExtractorFault(f"yields more than {MOST_CHARACTERS:,} characters for one page")


def _scalar(value: object, path: str) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > _WIDEST_INTEGER:
            raise ExtractorFault(f"yields an integer of {value.bit_length():,} bits{_at(path)}")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ExtractorFault(f"yields {float(value)}{_at(path)}: use None where there is no number")
        return float(value)
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ExtractorFault(f"yields {value}{_at(path)}: use None where there is no number")
        return value
    if isinstance(value, date):  # and datetime
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        raise ExtractorFault(f"yields bytes{_at(path)}: decode them")
    raise ExtractorFault(f"yields a {type(value).__name__}{_at(path)}: use text, numbers, dates, lists and dicts")


def _at(path: str) -> str:
    return f" at {path}" if path else ""

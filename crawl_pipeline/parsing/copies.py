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
_COST_OF_A_VALUE = 32  # in characters, so that a great many empty values are bounded too


class ExtractorFault(Exception):
    """What an extractor did wrong, as the end of a sentence that begins with its name."""


class Budget:
    """How much one page's records may still hold. Every copy is taken from it; a fault ends its use."""

    def __init__(self) -> None:
        self._left = MOST_CHARACTERS
        self._path: list[str | int] = []

    def copied_record(self, item: Mapping[object, object]) -> dict[str, object]:
        """A copy of one yielded mapping; raises ExtractorFault for what a record cannot hold, with its place."""
        return self._mapping(item)

    def _mapping(self, item: Mapping[object, object]) -> dict[str, object]:
        copy: dict[str, object] = {}
        for key, value in item.items():
            if not isinstance(key, str):
                raise ExtractorFault(f"yields a {type(key).__name__} as a key{self._place()}: use text")
            self._spend(len(key))
            name = plain(str.__str__(key))
            copy[name] = self._member(name, value)
        return copy

    def _member(self, name: str | int, value: object) -> object:
        self._path.append(name)
        if len(self._path) > _DEEPEST:
            raise ExtractorFault(f"yields data nested deeper than {_DEEPEST} levels")
        copy = self._value(value)
        self._path.pop()
        return copy

    def _value(self, value: object) -> object:
        self._spend(_COST_OF_A_VALUE)
        if isinstance(value, str):
            self._spend(len(value))
            return plain(str.__str__(value))
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, (list, tuple)):
            return [self._member(index, member) for index, member in enumerate(value)]
        return self._scalar(value)

    def _scalar(self, value: object) -> object:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            if value.bit_length() > _WIDEST_INTEGER:
                raise ExtractorFault(f"yields an integer of {value.bit_length():,} bits{self._place()}")
            return int(value)
        if isinstance(value, (float, Decimal)):
            if not math.isfinite(value):
                raise ExtractorFault(f"yields {value!s}{self._place()}: use None where there is no number")
            return float(value) if isinstance(value, float) else value
        if isinstance(value, date):  # and datetime
            return value.isoformat()
        if isinstance(value, (bytes, bytearray)):
            raise ExtractorFault(f"yields bytes{self._place()}: decode them")
        what = type(value).__name__
        raise ExtractorFault(f"yields a {what}{self._place()}: use text, numbers, dates, lists and dicts")

    def _spend(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise ExtractorFault(f"yields more than {MOST_CHARACTERS:,} characters for one page")

    def _place(self) -> str:
        """Where in the record: ` at offers[0].price`, names cut to a readable length."""
        text = "".join(f"[{part}]" if isinstance(part, int) else f".{part[:60]}" for part in self._path)
        return f" at {' '.join(text.removeprefix('.').split())[:200]}" if text else ""

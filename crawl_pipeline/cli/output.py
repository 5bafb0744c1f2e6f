"""How answers look: aligned tables, JSON with a fixed spelling of every value, times for people.

Knows nothing of crawls; rows of data that are written to files are `cli.files`'s.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import click

LONGEST_CELL = 80  # characters


def print_json(value: object) -> None:
    """Print one JSON document: keys in the given order, times in ISO 8601 UTC, durations in seconds."""
    click.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))


def plain(value: Any) -> Any:
    """A value made of what JSON knows. Dataclasses become objects, decimals text with all their digits."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime):
        return iso_time(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return [plain(item) for item in value]


def iso_time(value: datetime) -> str:
    """`2026-03-01T12:00:00.000000Z`: always UTC, always six digits, so that text sorts as time."""
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Collection[str] = ()) -> None:
    """Print a table: with lines and colours on a terminal, as aligned text elsewhere. `numbers` stand to the right."""
    texts = [[cell(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(headers, texts, numbers)
    else:
        for line in aligned(headers, texts, numbers=numbers):
            click.echo(line)


def aligned(headers: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Collection[str] = ()) -> list[str]:
    """The lines of a table as plain text: columns two spaces apart, no space at the ends of lines."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    marks = [">" if header in numbers else "<" for header in headers]
    return [
        "  ".join(f"{text:{mark}{width}}" for text, mark, width in zip(row, marks, widths, strict=True)).rstrip()
        for row in [list(headers), *rows]
    ]


def print_facts(facts: Iterable[tuple[str, object]], *, indent: int = 0) -> None:
    """Print names and values, one a line, the values aligned; a value of None is left out."""
    shown = [(name, visible(_text(value))) for name, value in facts if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        click.echo(f"{' ' * indent}{name:<{width}}  {value}".rstrip())


def cell(value: object) -> str:
    """A value as one line of a table: control characters made visible, long text cut with an ellipsis."""
    text = visible(_text(value))
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"


def visible(text: str) -> str:
    """Text of the web on a terminal: line ends become spaces, and no character can move the cursor or hide others."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char.isspace() else f"\\u{ord(char):04x}" for char in text)


def ago(time: datetime | None, now: datetime) -> str:
    """A time for people: `3 min ago`, `in 2 h`, with the date where it is more than two days away; `-` for none."""
    if time is None:
        return "-"
    distance = abs(now - time)
    if distance >= timedelta(days=2):
        return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    if distance < timedelta(seconds=1):
        return "now"
    return f"in {span(distance)}" if time > now else f"{span(distance)} ago"


def span(duration: timedelta) -> str:
    """A duration for people, in one unit: `350 ms`, `12 s`, `3 min`, `2 h`, `5 days`."""
    seconds = duration.total_seconds()
    if seconds == 0:
        return "0 s"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    for limit, unit, name in ((7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} days"


def count_of(number: int, thing: str) -> str:
    """`1 page`, `2 pages`, `1,000 pages`."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def _text(value: object) -> str:
    match value:
        case None:
            return "-"
        case str():
            return value
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
        case timedelta():
            return span(value)
        case dict() | list():
            return json.dumps(plain(value), ensure_ascii=False)
        case _:
            return str(value)


def _print_rich(headers: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        justify: Literal["left", "right"] = "right" if header in numbers else "left"
        table.add_column(header, justify=justify, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*(Text(text) for text in row))  # not str: square brackets would be taken for markup
    Console().print(table)

"""What `records` and `pages` have in common: formats, where the rows go, and the table that shows the first of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from crawl_pipeline.cli.files import Format, whole_file, write_rows
from crawl_pipeline.cli.output import aligned, cell, count_of, print_table
from crawl_pipeline.storage.exports import Column, Kind, Row

TABLE_ROWS = 20
_LIMIT = f"At most N rows; default: all, of a table {TABLE_ROWS}."
_OUTPUT = "Write FILE, whole or not at all."
_FORMAT = "Default: what the ending of FILE says, else table."

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Rows that can be had. `rows` takes the most that are wanted; `shown` names the columns of a table."""

    thing: str
    columns: Sequence[Column]
    rows: Callable[[int | None], Iterable[Row]]
    count: Callable[[], int]
    shown: Sequence[str]


def export_options(command: Command) -> Command:
    """Give a command the options of exports."""
    formats = click.Choice([one.value for one in Format])
    for option in (
        click.option(
            "--limit",
            type=click.IntRange(min=1),
            metavar="N",
            help=_LIMIT,
        ),
        click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help=_OUTPUT),
        click.option("--format", "asked_format", type=formats, help=_FORMAT),
    ):
        command = option(command)
    return command


def deliver(export: Export, chosen: Format, output: Path | None, limit: int | None) -> None:
    """Write the rows where they are wanted."""
    if chosen is Format.TABLE:
        _deliver_table(export, output, limit or TABLE_ROWS)
        return
    count = write_rows(chosen, export.columns, export.rows(limit), output)
    if output is not None:
        click.echo(f"wrote {count_of(count, export.thing)} to {output}", err=True)


def _deliver_table(export: Export, output: Path | None, limit: int) -> None:
    total = export.count()
    places = [[column.name for column in export.columns].index(name) for name in export.shown]
    rows = [[row[place] for place in places] for row in export.rows(limit)]
    numeric = (Kind.INTEGER, Kind.FLOAT, Kind.DECIMAL)
    numbers = [column.name for column in export.columns if column.kind in numeric]
    summary = count_of(total, export.thing)
    if total > len(rows):
        summary += f", the first {len(rows)} shown; --format jsonl, csv or parquet gives all"
    if output is None:
        if rows:
            print_table(export.shown, rows, numbers=numbers)
        click.echo(summary)
        sys.stdout.flush()
        return
    lines = aligned(export.shown, [[cell(value) for value in row] for row in rows], numbers=numbers)
    with whole_file(output) as stream:
        stream.write("\n".join([*lines, summary, ""]).encode())

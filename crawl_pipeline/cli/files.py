"""Rows written down as JSON lines, CSV, Parquet or a table: whole or not at all.

Rows go to a file first, also those for stdout: the database is done with before anybody reads, and a failure midway
leaves no half an answer.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

import click

from crawl_pipeline.cli.output import iso_time, plain
from crawl_pipeline.errors import CrawlError, UsageError
from crawl_pipeline.storage.exports import Column, Row
from crawl_pipeline.storage.folders import sync_folder

IN_MEMORY = 8 << 20  # bytes of an answer to stdout that are kept in memory; more goes to a temporary file


class Format(StrEnum):
    """How rows are written down."""

    TABLE = "table"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


_ENDINGS = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
    ".pq": Format.PARQUET,
}

# Made once: `json.dumps` makes one a call.
_JSON_LINE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=plain)

Write = Callable[[IO[bytes], Sequence[Column], Iterable[Row]], int]


def chosen_format(asked: str | None, output: Path | None) -> Format:
    """The format asked for, else the one that the file's ending says, else a table on stdout. Raises UsageError."""
    if asked is not None:
        chosen = Format(asked)
    elif output is None:
        chosen = Format.TABLE
    elif output.suffix.lower() in _ENDINGS:
        chosen = _ENDINGS[output.suffix.lower()]
    else:
        raise UsageError(f'the ending of "{output}" names no format; add --format jsonl, csv, parquet or table')
    if chosen is Format.PARQUET and output is None and sys.stdout.isatty():
        raise UsageError("Parquet is no text for a terminal; add --output FILE, or send stdout to a file or program")
    return chosen


def write_rows(chosen: Format, columns: Sequence[Column], rows: Iterable[Row], output: Path | None) -> int:
    """Write the rows in a format other than table, to `output` or stdout. Returns how many they were."""
    write = _WRITERS[chosen]
    if output is not None:
        with whole_file(output) as stream:
            return write(stream, columns, rows)
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as spool:
        with _explained("the temporary file"):
            count = write(spool, columns, rows)
        spool.seek(0)
        copy_to_stdout(spool)
        return count


def copy_to_stdout(stream: IO[bytes]) -> None:
    """Copy to stdout. When who reads has had enough (`| head`), the command ends silently, with 141."""
    sys.stdout.flush()
    try:
        shutil.copyfileobj(stream, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # What is left in the buffer would fail again when the interpreter flushes it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(128 + signal.SIGPIPE) from None


@contextmanager
def whole_file(target: Path) -> Iterator[IO[bytes]]:
    """Write a file that appears under its name only when it is whole and on the disk; an old one stays until then.

    A failure, also a kill, leaves the old file as it was; a kill may leave a hidden `.NAME.….part` beside it.
    What is no regular file (`/dev/stdout`, a pipe) is written to directly. Raises UsageError for a place that cannot
    be written to.
    """
    target = Path(os.path.realpath(target))  # a link stays a link
    if target.is_dir():
        raise UsageError(f'"{target}" is a folder; name a file with --output')
    with _explained(f'"{target}"'):
        if target.exists() and not target.is_file():
            with target.open("wb") as stream:
                yield stream
            return
        try:
            descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        except OSError as error:
            raise UsageError(
                f'cannot write to the folder "{target.parent}" ({error.strerror}); choose another'
            ) from error
        try:
            with os.fdopen(descriptor, "wb") as stream:
                os.fchmod(stream.fileno(), _mode(target))
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(name, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
    try:
        sync_folder(target.parent)
    except OSError as error:
        raise CrawlError(
            f'"{target}" is written, but its folder could not be synced ({error.strerror}); a power cut may undo it'
        ) from error


def _mode(target: Path) -> int:
    """The old file's permissions, or those that a new file would get."""
    with suppress(OSError):
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """A disk's error as one sentence."""
    try:
        yield
    except OSError as error:
        raise CrawlError(
            f"writing {what} failed ({error.strerror or error}); nothing was written: mend it and run again"
        ) from error


def write_jsonl(stream: IO[bytes], columns: Sequence[Column], rows: Iterable[Row]) -> int:
    """One JSON object a line, every column always present, in order; decimals as text, times in ISO 8601 UTC."""
    names = [column.name for column in columns]
    count = 0
    with _text(stream) as text:
        for row in rows:
            text.write(_JSON_LINE.encode(dict(zip(names, row, strict=True))) + "\n")
            count += 1
    return count


def write_csv(stream: IO[bytes], columns: Sequence[Column], rows: Iterable[Row]) -> int:
    """CSV with a header, UTF-8, lines ended by LF; null is empty. Cells are the data, unchanged, formulas or not."""
    count = 0
    with _text(stream) as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.name for column in columns])
        for row in rows:
            writer.writerow([csv_cell(value) for value in row])
            count += 1
    return count


def csv_cell(value: Any) -> str:
    """A value as text of CSV: booleans `true` and `false`, times in ISO 8601 UTC, structures as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return iso_time(value)
    return json.dumps(plain(value), ensure_ascii=False)


def _write_parquet(stream: IO[bytes], columns: Sequence[Column], rows: Iterable[Row]) -> int:
    from crawl_pipeline.cli.parquet import write_parquet  # pyarrow takes a while to import

    return write_parquet(stream, columns, rows)


@contextmanager
def _text(stream: IO[bytes]) -> Iterator[io.TextIOWrapper]:
    """`stream` for text; it stays open."""
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=False)
    try:
        yield text
        text.flush()
    finally:
        with suppress(OSError):
            text.detach()


_WRITERS: dict[Format, Write] = {Format.JSONL: write_jsonl, Format.CSV: write_csv, Format.PARQUET: _write_parquet}

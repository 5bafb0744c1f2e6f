"""What answers look like: values in JSON, times for people, tables, and text of the web on a terminal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from uuid import UUID

import pytest

from crawl_pipeline.cli import output
from crawl_pipeline.cli.files import csv_cell

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Colour(StrEnum):
    """An enumeration."""

    RED = "red"


@dataclass(frozen=True, slots=True)
class Thing:
    """A dataclass with what JSON does not know."""

    at: datetime
    took: timedelta
    colour: Colour
    price: Decimal
    name: UUID
    day: date
    parts: tuple[object, ...]


def test_every_value_has_one_spelling_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    thing = Thing(
        at=NOW,
        took=timedelta(milliseconds=1500),
        colour=Colour.RED,
        price=Decimal("1.10"),
        name=UUID(int=1),
        day=date(2026, 3, 1),
        parts=(1, None, {"ä": True}),
    )
    output.print_json([thing])
    text = capsys.readouterr().out
    assert json.loads(text) == [
        {
            "at": "2026-03-01T12:00:00.000000Z",
            "took": 1.5,
            "colour": "red",
            "price": "1.10",
            "name": "00000000-0000-0000-0000-000000000001",
            "day": "2026-03-01",
            "parts": [1, None, {"ä": True}],
        }
    ]
    assert "ä" in text


def test_times_are_utc_with_six_digits_whatever_their_zone() -> None:
    assert output.iso_time(NOW.astimezone(timezone(timedelta(hours=5)))) == "2026-03-01T12:00:00.000000Z"
    assert output.iso_time(NOW + timedelta(microseconds=7)) == "2026-03-01T12:00:00.000007Z"


@pytest.mark.parametrize(
    ("distance", "said"),
    [
        (timedelta(0), "now"),
        (timedelta(seconds=-2.5), "2.5 s ago"),
        (timedelta(seconds=59), "in 59 s"),
        (timedelta(minutes=-3), "3 min ago"),
        (timedelta(hours=5), "in 5 h"),
        (timedelta(days=-3), "2026-02-26 12:00 UTC"),
    ],
)
def test_times_for_people(distance: timedelta, said: str) -> None:
    assert output.ago(NOW + distance, NOW) == said


def test_no_time_is_a_dash() -> None:
    assert output.ago(None, NOW) == "-"


@pytest.mark.parametrize(
    ("duration", "said"),
    [
        (timedelta(0), "0 s"),
        (timedelta(milliseconds=350), "350 ms"),
        (timedelta(seconds=2), "2 s"),
        (timedelta(seconds=33.53), "34 s"),
        (timedelta(minutes=90), "90 min"),
        (timedelta(hours=47), "47 h"),
        (timedelta(days=5), "5 days"),
    ],
)
def test_durations_for_people(duration: timedelta, said: str) -> None:
    assert output.span(duration) == said


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ä 漢", "plain ä 漢"),
        ("two\nlines\tand\r\n", "two lines and  "),
        ("\x1b[2Jgone", "\\u001b[2Jgone"),
        ("right\u202eleft", "right\\u202eleft"),
        ("bell\x07", "bell\\u0007"),
    ],
)
def test_text_of_the_web_cannot_move_the_cursor_or_hide(text: str, shown: str) -> None:
    assert output.visible(text) == shown


def test_columns_are_aligned_numbers_to_the_right() -> None:
    lines = output.aligned(["name", "n"], [["a", "1"], ["long name", "1000"]], numbers=["n"])
    assert lines == ["name          n", "a             1", "long name  1000"]


def test_long_cells_are_cut_and_nothing_is_a_dash() -> None:
    assert output.cell("x" * 200) == "x" * 79 + "…"
    assert [output.cell(value) for value in (None, True, False, 0)] == ["-", "yes", "no", "0"]


def test_tables_are_plain_text_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["a", "b"], [["[red]x[/red]", 1]])
    assert capsys.readouterr().out == "a             b\n[red]x[/red]  1\n"


def test_tables_on_a_terminal_keep_brackets_and_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    output.print_table(["title", "n"], [["[bold]one[/bold] " + "x" * 100, 1]], numbers=["n"])
    text = capsys.readouterr().out
    assert "[bold]one[/bold]" in text
    assert "…" in text
    assert text.count("x" * 10) <= 5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("", ""),
        (True, "true"),
        (12, "12"),
        (0.1, "0.1"),
        ("1,5", "1,5"),
        (["a", {"b": None}], '["a", {"b": null}]'),
        (NOW, "2026-03-01T12:00:00.000000Z"),
    ],
)
def test_cells_of_csv(value: object, text: str) -> None:
    assert csv_cell(value) == text


def test_numbers_of_things_agree_with_their_nouns() -> None:
    assert [output.count_of(n, "page") for n in (0, 1, 1200)] == ["0 pages", "1 page", "1,200 pages"]

"""Durations and sizes as contracts spell them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawl_pipeline.domain.durations import LONGEST, format_duration, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("2m", 120),
        ("6h", 21_600),
        ("7d", 604_800),
        ("0s", 0),
        ("1.5s", 1.5),
        ("2 h", 7_200),
    ],
)
def test_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    ["", "30", "s", "-1s", "+1s", "1 sec", "1h30m", "1e3s", "0.1ms", "nan s", "1M", "\u0663s", "3651d", "9" * 50 + "s"],
)
def test_other_text_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"^use "):
        parse_duration(text)


@given(st.integers(0, LONGEST // timedelta(milliseconds=1)))
def test_every_duration_survives_its_spelling(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(duration)) == duration


@given(st.text())
def test_no_text_makes_anything_but_a_value_error(text: str) -> None:
    for parse in (parse_duration, parse_size):
        message = "use"
        try:
            parse(text)
        except ValueError as error:
            message = str(error)
        assert message.startswith("use")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2MB", 2_000_000),
        ("512KiB", 524_288),
        ("1GiB", 1 << 30),
        ("10", 10),
        ("1 kB", 1_000),
        ("0.5MiB", 1 << 19),
        ("3B", 3),
    ],
)
def test_size_is_a_number_and_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "1mb", "1 meg", "0.5B", "1e3", "1,000", "9" * 15 + "GB"])
def test_other_text_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"^use "):
        parse_size(text)

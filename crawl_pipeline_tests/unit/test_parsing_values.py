"""What field types make of what pages say."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawl_pipeline.parsing.dates import parse_date, parse_instant
from crawl_pipeline.parsing.numbers import parse_number
from crawl_pipeline.parsing.values import CannotConvert, Found, convert

BASE = "http://a.example/b/"
KINDS = ("str", "int", "float", "decimal", "bool", "date", "url")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1234.56", "1234.56"),
        ("1,234.56", "1234.56"),
        ("1.234,56", "1234.56"),
        ("1,234,567.89", "1234567.89"),
        ("1.234.567,89", "1234567.89"),
        ("1 234,56", "1234.56"),
        ("1\xa0234,56 €", "1234.56"),
        ("1\u202f234\u202f567", "1234567"),
        ("1'234.50", "1234.50"),
        ("1\u2019234", "1234"),
        ("12,34,567.80", "1234567.80"),
        ("1,234", "1234"),
        ("1.234", "1234"),
        ("0.125", "0.125"),
        ("0,125", "0.125"),
        ("1234,567", "1234.567"),
        ("12.5", "12.5"),
        ("12,50", "12.50"),
        ("1,2345", "1.2345"),
        ("$.99", "0.99"),
        ("12,- €", "12"),
        ("€ 5", "5"),
        ("-5", "-5"),
        ("\N{MINUS SIGN}5", "-5"),
        ("-$5.00", "-5.00"),
        ("Sale - € 5", "5"),
        ("+7", "7"),
        ("A-5", "5"),
        ("10-20", "10"),
        ("10 - 20", "10"),
        ("2 items, 3 left", "2"),
        ("Price: USD 12.50 per 100 g", "12.50"),
        ("1.234,56 € (incl. 19 % VAT)", "1234.56"),
        ("\u0661\u0662\u066b\u0665", "12.5"),
        ("007", "7"),
        ("12 34", "12"),
        ("1.2.3", None),
        ("1,23,4", None),
        ("1.234,567.89", None),
        ("1,234.567,89", None),
        ("", None),
        ("free", None),
        ("-", None),
        (".", None),
        ("NaN", None),
        ("Infinity", None),
        ("1e5", "1"),
        ("9" * 101, None),
        ("1 " * 10_000, None),
    ],
)
def test_numbers_of_people_are_read_by_the_documented_rules(text: str, expected: str | None) -> None:
    assert parse_number(text, is_machine=False) == (None if expected is None else Decimal(expected))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.234", "1.234"),
        (" 12.50 ", "12.50"),
        ("-0.5", "-0.5"),
        ("1e3", "1000"),
        ("5.", "5"),
        ("1,234", "1234"),
        ("1e999999", "1"),
        ("EUR 1.234,00", "1234.00"),
    ],
)
def test_numbers_of_machines_have_a_point_before_the_decimals(text: str, expected: str) -> None:
    assert parse_number(text, is_machine=True) == Decimal(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-03-05", date(2024, 3, 5)),
        (" 2024-03-05T23:59:00-08:00", date(2024, 3, 5)),
        ("2024-3-5", date(2024, 3, 5)),
        ("20240305", date(2024, 3, 5)),
        ("2024/03/05", date(2024, 3, 5)),
        ("05.03.2024", date(2024, 3, 5)),
        ("5. 3. 2024", date(2024, 3, 5)),
        ("5 March 2024", date(2024, 3, 5)),
        ("5th of march, 2024", date(2024, 3, 5)),
        ("05-Mar-2024", date(2024, 3, 5)),
        ("March 5, 2024", date(2024, 3, 5)),
        ("Sept. 5th 2024 at noon", date(2024, 9, 5)),
        ("Tue, 05 Mar 2024 10:00:00 GMT", date(2024, 3, 5)),
        ("Tuesday 5 March 2024", date(2024, 3, 5)),
        ("13/03/2024", date(2024, 3, 13)),
        ("03/13/2024", date(2024, 3, 13)),
        ("03/03/2024", date(2024, 3, 3)),
        ("03/05/2024", None),
        ("2024-02-30", None),
        ("2024-13-01", None),
        ("202403051", None),
        ("5 Marzo 2024", None),
        ("yesterday", None),
        ("", None),
        ("9" * 1000, None),
    ],
)
def test_dates_are_read_as_written_and_never_guessed(text: str, expected: date | None) -> None:
    assert parse_date(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-03-05", datetime(2024, 3, 5, tzinfo=UTC)),
        ("2024-03", datetime(2024, 3, 1, tzinfo=UTC)),
        ("2024", datetime(2024, 1, 1, tzinfo=UTC)),
        ("2024-03-05T10:00Z", datetime(2024, 3, 5, 10, tzinfo=UTC)),
        ("2024-03-05T10:00:00.5+02:00", datetime(2024, 3, 5, 8, 0, 0, 500_000, tzinfo=UTC)),
        ("2024-03-05T10:00:00", datetime(2024, 3, 5, 10, tzinfo=UTC)),
        ("Tue, 05 Mar 2024 10:00:00 +0100", datetime(2024, 3, 5, 9, tzinfo=UTC)),
        ("0001-01-01T00:00:00+14:00", datetime(1, 1, 1, tzinfo=UTC)),
        ("never", None),
        ("", None),
    ],
)
def test_instants_are_aware_and_in_utc(text: str, expected: datetime | None) -> None:
    assert parse_instant(text) == expected


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("  a \n b ", "str", "a \n b"),
        ("a\x00b\ud800", "str", "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"),
        (5, "str", "5"),
        (Decimal("12.50"), "str", "12.50"),
        (True, "str", "true"),
        ("12 pieces", "int", 12),
        (12, "int", 12),
        ("12.0", "int", 12),
        ("0.5", "float", 0.5),
        (Decimal("12.50"), "decimal", Decimal("12.50")),
        ("1e3", "decimal", Decimal("1000")),
        ("yes", "bool", True),
        ("In Stock", "bool", True),
        ("https://schema.org/OutOfStock", "bool", False),
        ("http://schema.org/InStock", "bool", True),
        (0, "bool", False),
        (False, "bool", False),
        ("2024-03-05", "date", date(2024, 3, 5)),
        ("../x?y", "url", "http://a.example/x?y"),
        ("HTTP://B.example", "url", "http://b.example/"),
        (["first", "second"], "str", "first"),
        ([], "str", None),
        ({"@value": "x", "@language": "en"}, "str", "x"),
        ([{"@value": 3}], "int", 3),
        (None, "str", None),
        ("", "str", None),
        ("  ", "decimal", None),
        ("", "bool", None),
    ],
)
def test_a_value_becomes_what_the_fields_type_asks_for(value: object, kind: str, expected: object) -> None:
    found = convert(Found(value=value, is_machine=True), kind, BASE)
    assert found == expected
    assert type(found) is type(expected)


def test_white_space_in_visible_text_is_collapsed() -> None:
    assert convert(Found(value="  a \n\xa0b ", is_machine=False), "str", BASE) == "a b"


@pytest.mark.parametrize(
    ("value", "kind", "sentence"),
    [
        ("free", "decimal", "'free' is not a number"),
        (True, "int", "'True' is not a number"),
        ("12.5", "int", "'12.5' is not a whole number"),
        ("perhaps", "bool", "'perhaps' is neither true nor false"),
        ("03/05/2024", "date", "'03/05/2024' is not a date, or an ambiguous one"),
        ("http://[bad", "url", "'http://[bad' is not a URL"),
        ({"price": 1}, "decimal", "is an object: name one of its members"),
        ("x" * 1_000_001, "str", "is text of 1,000,001 characters; at most 1,000,000 are kept"),
        pytest.param(10**5000, "int", "is a number of more than 4,300 digits", id="10**5000"),
    ],
)
def test_what_is_no_such_value_is_told_in_a_sentence(value: object, kind: str, sentence: str) -> None:
    with pytest.raises(CannotConvert) as error:
        convert(Found(value=value, is_machine=True), kind, BASE)
    assert str(error.value) == sentence


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.decimals() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.one_of(JSON_VALUES, st.from_regex(r"[-+€$ .,'\d]{0,30}")), st.sampled_from(KINDS), st.booleans())
def test_conversion_gives_a_value_or_a_sentence_and_never_another_error(
    value: object, kind: str, is_machine: bool
) -> None:
    with suppress(CannotConvert):
        convert(Found(value=value, is_machine=is_machine), kind, BASE)


@settings(deadline=None)
@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=2))
def test_a_price_reads_the_same_in_english_and_german_spelling(price: Decimal) -> None:
    english = f"{price:,.2f}"
    german = english.translate(str.maketrans(",.", ".,"))
    assert parse_number(f"€ {english}", is_machine=False) == price
    assert parse_number(f"{german} €", is_machine=False) == price


@settings(deadline=None)
@given(st.text(max_size=200))
def test_dates_and_instants_never_raise(text: str) -> None:
    parse_date(text)
    parse_instant(text)

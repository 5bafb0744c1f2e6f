"""What a field's type makes of what the page says. A value or a sentence; never a guess, never an exception else."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from crawl_pipeline.domain.urls import parse_href
from crawl_pipeline.parsing.dates import parse_date
from crawl_pipeline.parsing.numbers import parse_number
from crawl_pipeline.parsing.text import collapse, plain

Value = str | int | float | Decimal | bool | date

_TRUE = frozenset({"true", "yes", "y", "t", "1", "on", "in stock", "instock", "available"})
_FALSE = frozenset(
    {"false", "no", "n", "f", "0", "off", "out of stock", "outofstock", "sold out", "soldout", "unavailable"}
)
_LONGEST = 1_000_000
_SCHEMA_TERM = re.compile(r"https?://(?:www\.)?schema\.org/(\w+)/?", re.IGNORECASE)


class CannotConvert(ValueError):
    """A value is there, but it is not what the field's type asks for; `str()` says what was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a rule found: text, or a JSON scalar. `is_machine`: written for programs (JSON-LD, an attribute)."""

    value: object
    is_machine: bool


def convert(found: Found, kind: str, base_url: str) -> Value | None:
    """The value of type `kind` (str, int, float, decimal, bool, date, url); None where the page says nothing.

    Nothing is: an absent element, empty text, JSON's null. White space at the ends is dropped, and within people's
    text collapsed. Numbers: `numbers.parse_number`; dates: `dates.parse_date`; `bool` takes the words of `_TRUE` and
    `_FALSE` and schema.org's InStock and OutOfStock; `url` resolves against the page's base. A list stands for its
    first element. Raises CannotConvert.
    """
    value = _scalar(found.value)
    if value is None:
        return None
    if isinstance(value, str):
        value = plain(value if kind == "str" and found.is_machine else collapse(value)).strip()
        if value == "":
            return None
        if len(value) > _LONGEST:
            raise CannotConvert(f"is text of {len(value):,} characters; at most {_LONGEST:,} are kept")
    return _CONVERSIONS[kind](value, found.is_machine, base_url)


def _scalar(value: object) -> str | int | Decimal | bool | None:
    for _ in range(10):
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            value = value[0] if value else None
        elif isinstance(value, Mapping) and "@value" in value:
            value = value["@value"]
    if value is None or isinstance(value, (str, bool, int, Decimal)):
        return value
    raise CannotConvert("is an object: name one of its members")


def _shown(value: object) -> str:
    text = str(value)
    return repr(text if len(text) <= 60 else text[:57] + "...")


_MOST_DIGITS = 4_300  # Python's own limit for integers


def _text(value: object, is_machine: bool, base_url: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{_bounded(value):f}" if isinstance(value, Decimal) else _digits(value)


def _bounded(number: Decimal) -> Decimal:
    """The number, if it can be spelled out: twenty bytes of JSON may name one of a billion digits."""
    if number and abs(number.adjusted()) > _MOST_DIGITS:
        raise CannotConvert(f"is a number of more than {_MOST_DIGITS:,} digits")
    return number


def _digits(value: object) -> str:
    try:
        return str(value)
    except ValueError:  # an integer beyond Python's limit for conversion
        raise CannotConvert("is a number of more than 4,300 digits") from None


def _decimal(value: object, is_machine: bool, base_url: str) -> Decimal:
    number = None
    if not isinstance(value, bool):
        number = parse_number(_text(value, is_machine, base_url), is_machine=is_machine)
    if number is None:
        raise CannotConvert(f"{_shown(value)} is not a number")
    return _bounded(number)


def _integer(value: object, is_machine: bool, base_url: str) -> int:
    number = _decimal(value, is_machine, base_url)
    if number != number.to_integral_value():
        raise CannotConvert(f"{_shown(value)} is not a whole number")
    return int(number)


def _float(value: object, is_machine: bool, base_url: str) -> float:
    number = float(_decimal(value, is_machine, base_url))
    if not math.isfinite(number):
        raise CannotConvert(f"{_shown(value)} is too large a number")
    return number


def _plain_decimal(value: object, is_machine: bool, base_url: str) -> Decimal:
    # An exponent is spelled out, so that equal numbers of equal precision have one spelling.
    return Decimal(f"{_decimal(value, is_machine, base_url):f}")


def _bool(value: object, is_machine: bool, base_url: str) -> bool:
    if isinstance(value, bool):
        return value
    word = collapse(_text(value, is_machine, base_url)).lower()
    if (term := _SCHEMA_TERM.fullmatch(word)) is not None:
        word = term[1]
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise CannotConvert(f"{_shown(value)} is neither true nor false")


def _date(value: object, is_machine: bool, base_url: str) -> date:
    day = parse_date(_text(value, is_machine, base_url))
    if day is None:
        raise CannotConvert(f"{_shown(value)} is not a date, or an ambiguous one")
    return day


def _url(value: object, is_machine: bool, base_url: str) -> str:
    url = parse_href(_text(value, is_machine, base_url), base_url)
    if url is None:
        raise CannotConvert(f"{_shown(value)} is not a URL")
    return url


_CONVERSIONS: Mapping[str, Callable[[object, bool, str], Value]] = {
    "str": _text,
    "int": _integer,
    "float": _float,
    "decimal": _plain_decimal,
    "bool": _bool,
    "date": _date,
    "url": _url,
}

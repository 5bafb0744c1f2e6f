"""Numbers as people and machines write them.

Machines (JSON-LD, attributes) write a point before the decimals and no thousands separator. People write either, and
the rules below decide which; a spelling that fits none is refused, never guessed.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

_MOST_DIGITS = 100
_MACHINE = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,2})?", re.ASCII)
# Arabic and full-width separators, minus signs, and the many spaces that group thousands, in plain spelling.
_SPELLINGS = str.maketrans(
    {
        "\N{ARABIC DECIMAL SEPARATOR}": ".",
        "\N{ARABIC THOUSANDS SEPARATOR}": ",",
        "\N{FULLWIDTH FULL STOP}": ".",
        "\N{FULLWIDTH COMMA}": ",",
        "\N{MINUS SIGN}": "-",
        "\N{FULLWIDTH HYPHEN-MINUS}": "-",
        "\N{RIGHT SINGLE QUOTATION MARK}": "'",
        "\N{NO-BREAK SPACE}": " ",
        "\N{NARROW NO-BREAK SPACE}": " ",
        "\N{THIN SPACE}": " ",
        "\N{FIGURE SPACE}": " ",
    }
)
# A sign counts where no word or number runs into it (`A-5` and `10-20` have none); a currency may stand between.
_NUMBER = re.compile(
    r"(?<![^\W_])(?:(?P<sign>[+-])(?:[^\w\s+-]|[A-Z]{3})?\s?)?"
    r"(?P<digits>(?:\d{1,3}(?:[ ']\d{3})+(?!\d)|\d+)(?:[.,]\d+)*|[.,]\d+)"
)


def parse_number(text: str, *, is_machine: bool) -> Decimal | None:
    """The first number in `text`, exactly as many digits as are written; None if there is none or it is malformed.

    For people's text: the last of two different separators is the decimal one (`1,234.56`, `1.234,56`); a separator
    that comes twice groups thousands (`1.234.567`); a single one followed by exactly three digits does too
    (`1,234` and `1.234` are 1234), unless what precedes it is 0 or longer than three digits; else it is the decimal
    one (`12,5`). Spaces and apostrophes group thousands. `1.2.3`, `1,23,4` and anything over 100 digits are refused.
    """
    if len(text) > 10_000:
        return None
    if is_machine:
        stripped = text.strip()
        if _MACHINE.fullmatch(stripped):
            return _decimal(stripped)
    match = _NUMBER.search(text.translate(_SPELLINGS))
    if match is None:
        return None
    digits = _without_separators(match["digits"].replace(" ", "").replace("'", ""))
    if digits is None:
        return None
    return _decimal(("-" if match["sign"] == "-" else "") + digits)


def _without_separators(run: str) -> str | None:
    """A run of digits, points and commas with at most one point left, before the decimals."""
    last = max(run.rfind("."), run.rfind(","))
    if last < 0:
        return run
    mark = run[last]
    other = "," if mark == "." else "."
    whole, decimals = run[:last], run[last + 1 :]
    if other in whole:
        return f"{whole.replace(other, '')}.{decimals}" if mark not in whole and _is_grouped(whole, other) else None
    if mark in whole:
        return run.replace(mark, "") if _is_grouped(run, mark) else None
    if len(decimals) == 3 and 1 <= len(whole) <= 3 and whole[0] != "0":
        return whole + decimals
    return f"{whole or '0'}.{decimals}"


def _is_grouped(run: str, mark: str) -> bool:
    """Whether `mark` stands where thousands are grouped: by threes, or by twos before the last three (1,23,45,678)."""
    first, *groups, last = run.split(mark)
    if not 1 <= len(first) <= 3 or len(last) != 3:
        return False
    sizes = {len(group) for group in groups}
    return sizes <= {3} or (sizes == {2} and len(first) <= 2)


def _decimal(text: str) -> Decimal | None:
    if len(text) > _MOST_DIGITS:
        return None
    try:
        return Decimal(text)
    except InvalidOperation:
        return None

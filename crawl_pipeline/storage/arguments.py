"""How Python values become arguments of the SQL functions: typed arrays, and text that Postgres can hold."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

# The parameter types of the functions that take arrays; without them an array of nulls has no type.
_TYPES = {
    "claim": "uuid text text int int int interval boolean interval int int",
    "renew": "uuid[] interval",
    "release": "uuid[]",
    "adopt": "uuid uuid text smallint uuid",
    "make_changed_due": "uuid interval uuid[] timestamptz[]",
    "finished": "uuid",
    "throttle_host": "int interval interval",
    "observe_hosts": "int[] int[] float8[] int[]",
    "to_drain": "uuid[] interval",
    "charge": "uuid uuid boolean",
    "discover": "int uuid[] text[] text[] smallint[] uuid[] boolean",
    "claim_slot": "uuid text text text interval",
    "complete": (
        "int uuid text "
        "uuid[] uuid[] int[] text[] text[] timestamptz[] smallint[] boolean[] boolean[] boolean[] "
        "text[] text[] boolean[] text[] boolean[] uuid[] "
        "int[] bytea[] int[] bytea[] bytea[] text[] text[] text[] text[] text[] text[] text[] "
        "int[] text[] bytea[] "
        "int[] uuid[] text[] text[] smallint[] boolean[] "
        "int[] int[] uuid[] text[] text[] jsonb[] bytea[] "
        "int[] text[] timestamptz[] int[] smallint[] text[] text[] int[] bytea[] text[]"
    ),
    "merge_records": ("int uuid timestamptz int[] uuid[] bigint[] int[] uuid[] text[] text[] jsonb[] bytea[]"),
}


@cache
def call(function: str, count: int) -> str:
    """`SELECT * FROM function(…)` with a typed placeholder per argument.

    Arrays travel in binary: psycopg writes them at half the cost, and Postgres reads them without parsing.
    """
    types = _TYPES[function].split()
    if len(types) != count:
        raise AssertionError(f"{function} takes {len(types)} arguments, not {count}")
    marks = ", ".join(f"{'%b' if kind.endswith('[]') else '%s'}::{kind}" for kind in types)
    return f"SELECT * FROM {function}({marks})"


def columns(width: int, rows: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    """Rows turned into `width` lists, also when there are none."""
    turned = [list(column) for column in zip(*rows, strict=True)]
    return turned or [[] for _ in range(width)]


def storable(text: str | None) -> str | None:
    """Text as Postgres can hold it: without NUL, lone surrogates replaced."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")

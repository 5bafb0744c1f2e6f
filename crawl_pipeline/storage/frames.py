"""Current records and pages as pandas DataFrames, for analysts: a column for each declared field, with its type.

A frame holds the whole answer in memory; what is larger goes to Parquet (`crawl-pipeline records --format parquet`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any

import pandas as pd
import sqlalchemy as sa

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.errors import UnknownSource, UsageError
from crawl_pipeline.storage import exports, reports
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.exports import Column, Kind, Row
from crawl_pipeline.storage.reports import KnownSource

# The nullable types of pandas: an integer column stays one where a value is missing.
_DTYPES = {
    Kind.TEXT: "string",
    Kind.INTEGER: "Int64",
    Kind.FLOAT: "Float64",
    Kind.BOOLEAN: "boolean",
    Kind.DATE: "datetime64[s]",
    Kind.TIME: "datetime64[us, UTC]",
    Kind.DECIMAL: "object",
    Kind.JSON: "object",
}
_TAKEN: dict[Kind, tuple[type, ...]] = {
    Kind.TEXT: (str,),
    Kind.INTEGER: (int,),
    Kind.FLOAT: (int, float),
    Kind.BOOLEAN: (bool,),
    Kind.DECIMAL: (str, int),
}


def records_frame(
    database: Database, source: str, record_type: str | None = None, *, limit: int | None = None
) -> pd.DataFrame:
    """The current records of a source by natural key: the contract's fields (those of the key first, the others by
    name), then `record_id`, `url`, `first_seen_at`, `last_changed_at`, `missing_since` (`crawl_…` where a field has
    that name).

    Decimals are `decimal.Decimal`, exact; text, integers, floats and booleans have pandas' nullable types, times are
    UTC. A column with a stored value that does not fit its declared type (the contract changed since) holds the values
    as they are stored. `record_type` may be left out where there is one. Raises UnknownSource, UsageError.
    """
    with reports.snapshot(database) as connection:
        known = _known(connection, source)
        contract = Contract.from_json(known.contract)
        types = exports.all_record_types(connection, known.source_id, contract)
        chosen = _chosen(source, types, record_type)
        key = next((rule.key for rule in contract.records if rule.type == chosen), ())
        fields = exports.fields_of(connection, known.source_id, contract, chosen)
        # The contract in force is kept as jsonb, which forgets the order of the file.
        fields.sort(key=lambda field: (key.index(field.name) if field.name in key else len(key), field.name))
        columns = exports.record_columns(fields)
        return _frame(columns, exports.records(connection, known.source_id, chosen, columns, limit))


def record_types(database: Database, source: str) -> list[str]:
    """The record types of a source: those of the contract in force, then those that only stored records still have."""
    with reports.snapshot(database) as connection:
        known = _known(connection, source)
        return exports.all_record_types(connection, known.source_id, Contract.from_json(known.contract))


def pages_frame(database: Database, source: str, *, limit: int | None = None) -> pd.DataFrame:
    """The current pages of a source by URL: state, title, Markdown, version, times, content type and last status.

    Raises UnknownSource.
    """
    with reports.snapshot(database) as connection:
        known = _known(connection, source)
        return _frame(exports.PAGE_COLUMNS, exports.pages(connection, known.source_id, limit))


def _known(connection: sa.Connection, source: str) -> KnownSource:
    known = reports.find_source(connection, source)
    if known is None:
        raise UnknownSource(source, [one.source for one in reports.all_sources(connection)])
    return known


def _chosen(source: str, types: Sequence[str], asked: str | None) -> str:
    if asked is not None and asked in types:
        return asked
    if asked is None and len(types) == 1:
        return types[0]
    there = f"there is {', '.join(types)}" if types else "its contract declares no records"
    what = f'has no record type "{asked}"' if asked is not None else "has not one record type"
    raise UsageError(f'"{source}" {what}; {there}')


def _frame(columns: Sequence[Column], rows: Iterable[Row]) -> pd.DataFrame:
    cells = list(zip(*rows, strict=True)) or [()] * len(columns)
    return pd.DataFrame({column.name: _series(column, cells[place]) for place, column in enumerate(columns)})


def _series(column: Column, cells: Sequence[Any]) -> pd.Series[Any]:
    try:
        values = [None if cell is None else _value(column.kind, cell) for cell in cells]
        return pd.Series(values, dtype=_DTYPES[column.kind])
    except (TypeError, ValueError, OverflowError, InvalidOperation):
        return pd.Series(list(cells), dtype="object")


def _value(kind: Kind, cell: Any) -> Any:
    """A stored value as its kind; raises for what the kind is not."""
    taken = _TAKEN.get(kind)
    if taken is not None and (not isinstance(cell, taken) or (isinstance(cell, bool) and kind is not Kind.BOOLEAN)):
        raise TypeError(f"{cell!r} is no {kind}")
    if kind is Kind.DECIMAL:
        return Decimal(cell)
    if kind is Kind.DATE:
        return date.fromisoformat(cell)
    return cell

"""Rows as Parquet, a row group at a time: every column has one type, whatever the rows hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from crawl_pipeline.cli.files import csv_cell
from crawl_pipeline.cli.output import plain
from crawl_pipeline.errors import CrawlError
from crawl_pipeline.storage.exports import Column, Kind, Row

ROW_GROUP = 20_000  # rows; as Python values they are most of the memory that an export takes

# Fixed, so that the files of two days have one schema; WIDE only where a value needs it.
DECIMAL, WIDE_DECIMAL = pa.decimal128(38, 9), pa.decimal256(76, 38)
_TYPES = {
    Kind.TEXT: pa.string(),
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.DATE: pa.date32(),
    Kind.TIME: pa.timestamp("us", tz="UTC"),
    Kind.JSON: pa.string(),
}


def write_parquet(stream: IO[bytes], columns: Sequence[Column], rows: Iterable[Row]) -> int:
    """Write row groups of `ROW_GROUP` rows, zstd. Raises CrawlError for a value that its column's kind cannot hold."""
    schema = pa.schema([pa.field(column.name, arrow_type(column)) for column in columns])
    remaining = iter(rows)
    count = 0
    with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        while group := list(islice(remaining, ROW_GROUP)):
            by_column = zip(columns, zip(*group, strict=True), strict=True)
            arrays = [_array(column, cells, group, columns) for column, cells in by_column]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            count += len(group)
    return count


def arrow_type(column: Column) -> pa.DataType:
    """The Parquet type of a column."""
    if column.kind is Kind.DECIMAL:
        return WIDE_DECIMAL if column.is_wide else DECIMAL
    return _TYPES[column.kind]


def _array(column: Column, cells: Sequence[Any], group: Sequence[Row], columns: Sequence[Column]) -> pa.Array:
    try:
        return pa.array([_value(column.kind, cell) for cell in cells], type=arrow_type(column))
    except (ValueError, TypeError, OverflowError, InvalidOperation, pa.ArrowException):
        number = next(number for number, cell in enumerate(cells) if not _fits(column, cell))
        # Ours come last, so that of two columns with such a name it is the record's id.
        identity = max((i for i, other in enumerate(columns) if other.name.endswith("record_id")), default=0)
        raise CrawlError(
            f'"{column.name}" of {group[number][identity]} holds {str(cells[number])[:60]!r}, which no Parquet '
            f"column of {column.kind.value} can; use --format jsonl, or crawl again if the contract has changed"
        ) from None


def _fits(column: Column, cell: Any) -> bool:
    try:
        pa.array([_value(column.kind, cell)], type=arrow_type(column))
    except (ValueError, TypeError, OverflowError, InvalidOperation, pa.ArrowException):
        return False
    return True


def _value(kind: Kind, cell: Any) -> Any:
    """What pyarrow takes for a cell of a kind; raises for what the kind is not."""
    if cell is None:
        return None
    match kind:
        case Kind.TEXT:
            return csv_cell(cell)
        case Kind.JSON:
            return json.dumps(plain(cell), ensure_ascii=False)
        case Kind.DECIMAL:
            return Decimal(cell) if not isinstance(cell, float | bool) else _refuse(cell)
        case Kind.DATE:
            return cell if isinstance(cell, date) else datetime.fromisoformat(cell).date()
        case Kind.INTEGER | Kind.FLOAT:
            return _refuse(cell) if isinstance(cell, bool | str) else float(cell) if kind is Kind.FLOAT else cell
        case Kind.BOOLEAN:
            return cell if isinstance(cell, bool) else _refuse(cell)
        case _:
            return cell


def _refuse(cell: object) -> None:
    raise TypeError(f"{cell!r} is of another kind")

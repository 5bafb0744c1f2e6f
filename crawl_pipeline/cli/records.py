"""`crawl-pipeline records`: the current records of a source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import sqlalchemy as sa

from crawl_pipeline.cli.export import Export, deliver, export_options
from crawl_pipeline.cli.files import Format, chosen_format
from crawl_pipeline.cli.session import opened
from crawl_pipeline.errors import UsageError
from crawl_pipeline.storage import exports, reports

if TYPE_CHECKING:
    from crawl_pipeline.domain.contract import Contract

_NO_SOURCE_ID = -1  # of a source that was never crawled: it has no rows


@click.command()
@click.argument("source")
@click.option("--type", "record_type", metavar="TYPE", help="Which record type, where there are several.")
@export_options
def records(
    source: str, record_type: str | None, asked_format: str | None, output: Path | None, limit: int | None
) -> None:
    """Show or export the current records of a source.

    Sorted by natural key. The declared fields come first, in the contract's order, then record_id, url,
    first_seen_at, last_changed_at and missing_since.
    """
    chosen = chosen_format(asked_format, output)
    with opened() as session, reports.snapshot(session.database) as connection:
        known = session.source(connection, source)
        contract = session.contract(known, source)
        source_id = known.source_id if known is not None else _NO_SOURCE_ID
        types = _types(connection, source_id, contract, record_type)
        if len(types) > 1 and (chosen is not Format.TABLE or output is not None):
            raise UsageError(f'"{source}" has the record types {", ".join(types)}; choose one with --type')
        for number, one in enumerate(types):
            if number:
                click.echo()
            deliver(_export(connection, source_id, contract, one, chosen), chosen, output, limit)


def _types(connection: sa.Connection, source_id: int, contract: Contract, asked: str | None) -> Sequence[str]:
    """The record types meant: the declared ones, and those that only stored records still have."""
    types = exports.all_record_types(connection, source_id, contract)
    if not types:
        raise UsageError(
            f'the contract of "{contract.source}" declares no records; crawl-pipeline pages shows its pages'
        )
    if asked is None:
        return types
    if asked not in types:
        raise UsageError(f'"{contract.source}" has no record type "{asked}"; there is {", ".join(types)}')
    return [asked]


def _export(connection: sa.Connection, source_id: int, contract: Contract, record_type: str, chosen: Format) -> Export:
    fields = exports.fields_of(connection, source_id, contract, record_type)
    columns = exports.record_columns(fields)
    if chosen is Format.PARQUET:
        columns = exports.with_decimal_widths(connection, source_id, record_type, columns)
    names = [column.name for column in columns]
    _, url, _, last_changed_at, _ = names[len(fields) :]
    return Export(
        thing=f"{record_type} record",
        columns=columns,
        rows=lambda limit: exports.records(connection, source_id, record_type, columns, limit),
        count=lambda: exports.count_records(connection, source_id, record_type),
        shown=[*names[: len(fields)], url, last_changed_at],
    )

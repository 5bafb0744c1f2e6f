"""Sources and their contract versions; seeds; what a limit cancelled; forced visits; removals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import sqlalchemy as sa

from crawl_pipeline.domain.pages import CrawlId, PageUrl
from crawl_pipeline.storage.arguments import call
from crawl_pipeline.storage.database import Database, long_statements

# Rows of one administrative transaction: short enough not to hold up a commit.
BATCH = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """What the database keeps of a contract: the rest is in its JSON."""

    source: str
    contract: str
    contract_version: str
    contract_file: str | None
    slots: int
    min_delay: timedelta
    adaptive: bool
    max_urls: int


_INSERT = """
INSERT INTO sources (source, contract, contract_version, contract_file, slots, min_delay, adaptive, max_urls)
VALUES (:source, CAST(:contract AS jsonb), :version, :file, :slots, :min_delay, :adaptive, :max_urls)
ON CONFLICT (source) DO """
_REPLACE = """
UPDATE SET contract = excluded.contract, contract_version = excluded.contract_version,
           contract_file = excluded.contract_file, slots = excluded.slots, min_delay = excluded.min_delay,
           adaptive = excluded.adaptive, max_urls = excluded.max_urls, synced_at = clock_timestamp()
RETURNING source_id
"""


def sync(database: Database, row: SourceRow) -> int:
    """Put a source's contract in force and remember the version. Returns the source's id. Idempotent."""

    def work(connection: sa.Connection) -> int:
        source_id = connection.execute(sa.text(_INSERT + _REPLACE), _parameters(row)).scalar_one()
        _remember(connection, source_id, row)
        return int(source_id)

    return database.retry(work)


def find_or_add(database: Database, row: SourceRow) -> int:
    """The id of a source; one that is new begins with this contract, any other keeps the one that is in force."""

    def work(connection: sa.Connection) -> int:
        added = sa.text(_INSERT + "NOTHING RETURNING source_id")
        source_id = connection.execute(added, _parameters(row)).scalar_one_or_none()
        if source_id is not None:
            _remember(connection, source_id, row)
            return int(source_id)
        found = sa.text("SELECT source_id FROM sources WHERE source = :source")
        return int(connection.execute(found, {"source": row.source}).scalar_one())

    return database.retry(work)


def contract_text(connection: sa.Connection, source_id: int, contract_version: str) -> str:
    """The JSON of a contract version that is or was in force."""
    statement = sa.text("""
        SELECT CAST(contract AS text) FROM contracts WHERE source_id = :s AND contract_version = :version
    """)
    return str(connection.execute(statement, {"s": source_id, "version": contract_version}).scalar_one())


def _parameters(row: SourceRow) -> dict[str, object]:
    return {
        "source": row.source,
        "contract": row.contract,
        "version": row.contract_version,
        "file": row.contract_file,
        "slots": row.slots,
        "min_delay": row.min_delay,
        "adaptive": row.adaptive,
        "max_urls": row.max_urls,
    }


def _remember(connection: sa.Connection, source_id: int, row: SourceRow) -> None:
    connection.execute(
        sa.text("""
            INSERT INTO contracts (source_id, contract_version, contract)
            VALUES (:source_id, :version, CAST(:contract AS jsonb)) ON CONFLICT DO NOTHING
        """),
        {"source_id": source_id, "version": row.contract_version, "contract": row.contract},
    )


def is_paused(connection: sa.Connection, source_id: int) -> bool:
    """Whether a person paused the source."""
    return bool(
        connection.execute(
            sa.text("SELECT paused_at IS NOT NULL FROM sources WHERE source_id = :s"), {"s": source_id}
        ).scalar_one()
    )


def count_records(connection: sa.Connection, source_id: int) -> int:
    """How many records of the source are current."""
    statement = sa.text("SELECT count(*) FROM records WHERE source_id = :s AND gone_at IS NULL")
    with long_statements(connection):
        return int(connection.execute(statement, {"s": source_id}).scalar_one())


def discover(
    database: Database,
    source_id: int,
    pages: Sequence[PageUrl],
    *,
    depth: int = 0,
    is_sitemap: bool = False,
    found_on: Sequence[UUID | None] | None = None,
) -> int:
    """Add URLs that are not known yet: queued, due now. Returns how many were new."""
    total = 0
    origins = list(found_on) if found_on is not None else [None] * len(pages)
    for start in range(0, len(pages), BATCH):
        part = pages[start : start + BATCH]
        arguments = (
            source_id,
            [page.key for page in part],
            [page.authority for page in part],
            [page.url for page in part],
            [depth] * len(part),
            origins[start : start + BATCH],
            is_sitemap,
        )
        total += database.retry(
            lambda connection, arguments=arguments: int(  # type: ignore[misc]
                connection.exec_driver_sql(call("discover", 7), arguments).scalar_one()
            )
        )
    return total


def cancel_queued(database: Database, source_id: int, reason: str) -> int:
    """A limit ended the crawl: never-visited URLs become cancelled, in bounded batches. Returns how many URLs moved."""
    return _until_none(database, "SELECT cancel_queued(:s, :reason, :n)", s=source_id, reason=reason)


def reopen_cancelled(database: Database, source_id: int, reasons: Sequence[str]) -> int:
    """Queue again what these reasons cancelled. Returns how many."""
    return _until_none(
        database, "SELECT reopen_cancelled(:s, CAST(:reasons AS text[]), :n)", s=source_id, reasons=list(reasons)
    )


def reopen_denied(database: Database, origin: str, source_id: int | None = None, *, only_one: bool = False) -> int:
    """Queue again what an origin's robots.txt denied, of one source or of all; they are looked at by its new rules."""
    statement = "SELECT reopen_denied(:origin, CAST(:s AS int), :n)"
    if not only_one:
        return _until_none(database, statement, origin=origin, s=source_id)
    parameters = {"origin": origin, "s": source_id, "n": 1}
    return database.retry(lambda connection: int(connection.execute(sa.text(statement), parameters).scalar_one()))


def release_quarantined(database: Database, source_id: int, reason: str | None, url: str | None) -> int:
    """A person releases quarantined URLs (`url`: a LIKE pattern): queued, due now, with a clean slate."""
    return _until_none(
        database,
        "SELECT release_quarantined(:s, CAST(:reason AS text), CAST(:url AS text), :n)",
        s=source_id,
        reason=reason,
        url=url,
    )


def make_all_due(database: Database, source_id: int, due_at: datetime) -> None:
    """Make every visited page due, but those checked since `due_at`. Safe to repeat after a kill."""
    after: UUID | None = None
    while True:
        after = database.retry(
            lambda connection, after=after: connection.execute(  # type: ignore[misc]
                sa.text("SELECT make_due(:s, :due, CAST(:after AS uuid), :n)"),
                {"s": source_id, "due": due_at, "after": after, "n": BATCH},
            ).scalar_one()
        )
        if after is None:
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What the end of a crawl found missing of one record type, of how many, and whether it was applied or held."""

    record_type: str
    missing: int
    total: int
    is_applied: bool


def apply_removals(
    connection: sa.Connection,
    source_id: int,
    crawl_id: CrawlId,
    record_type: str,
    max_drop: float,
    *,
    force: bool = False,
) -> Removal:
    """Let records go that no page yields any more, within the guard; else hold them for a person.

    One record type per transaction: each call locks records in their order.
    """
    with long_statements(connection):
        row = connection.execute(
            sa.text("SELECT * FROM apply_removals(:s, :c, :t, CAST(:d AS real), :f)"),
            {"s": source_id, "c": crawl_id, "t": record_type, "d": max_drop, "f": force},
        ).one()
    return Removal(record_type=record_type, missing=row.missing, total=row.total, is_applied=row.is_applied)


def _until_none(database: Database, statement: str, **parameters: object) -> int:
    total = 0
    while True:
        moved = database.retry(
            lambda connection: int(connection.execute(sa.text(statement), {**parameters, "n": BATCH}).scalar_one())
        )
        total += moved
        if moved == 0:
            return total

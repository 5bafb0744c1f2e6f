"""What every report asks first: which source or crawl is meant, in one snapshot that nothing changes.

Owns the look-up of names; what is told of them is `status`, `exports`, `explain` and `quarantine`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from crawl_pipeline.domain.pages import CrawlId
from crawl_pipeline.errors import UsageError
from crawl_pipeline.storage import crawls
from crawl_pipeline.storage.database import Database, driver_connection

# A report may read more than a worker's statement does; it holds no lock that anybody waits for.
REPORT_FOR = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSource:
    """A source that the database knows. `contract` is the JSON of the contract in force."""

    source_id: int
    source: str
    contract: str
    contract_version: str
    contract_file: str | None
    paused_at: datetime | None
    in_force_since: datetime  # when this version of the contract was first used


@contextmanager
def snapshot(database: Database) -> Iterator[sa.Connection]:
    """One read-only transaction that sees one moment, with a report's time limits."""
    with database.connection() as connection:
        milliseconds = REPORT_FOR // timedelta(milliseconds=1)
        connection.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
        connection.execute(sa.text(f"SET LOCAL statement_timeout = {milliseconds}"))
        driver = driver_connection(connection)
        answer_within = driver.answer_within
        driver.answer_within = answer_within + REPORT_FOR.total_seconds()
        try:
            yield connection
        finally:
            driver.answer_within = answer_within


def now(connection: sa.Connection) -> datetime:
    """The moment of the snapshot, by the database's clock."""
    moment: datetime = connection.execute(sa.text("SELECT transaction_timestamp()")).scalar_one()
    return moment


def find_source(connection: sa.Connection, source: str) -> KnownSource | None:
    """A source by its name; None when the database has never seen its contract."""
    return next(iter(_sources(connection, " WHERE source = :source", source=source)), None)


def all_sources(connection: sa.Connection) -> list[KnownSource]:
    """Every source that the database knows, by name."""
    return _sources(connection, " ORDER BY source")


def source_of(connection: sa.Connection, source_id: int) -> KnownSource:
    """A source by its id, which must exist."""
    return _sources(connection, " WHERE source_id = :source_id", source_id=source_id)[0]


def find_crawl(connection: sa.Connection, crawl_id: UUID) -> crawls.CrawlRow:
    """A crawl by its id. Raises UsageError where there is none."""
    crawl = crawls.find(connection, CrawlId(crawl_id))
    if crawl is None:
        raise UsageError(f"no crawl has the id {crawl_id}; crawl-pipeline status SOURCE shows a source's last one")
    return crawl


def last_crawl(connection: sa.Connection, source_id: int) -> UUID | None:
    """The id of the crawl of a source that opened last (re-extractions do not count)."""
    statement = sa.text("""
        SELECT crawl_id FROM crawls WHERE source_id = :source_id AND kind = 'crawl' ORDER BY opened_at DESC LIMIT 1
    """)
    found: UUID | None = connection.execute(statement, {"source_id": source_id}).scalar_one_or_none()
    return found


def crawl_id_of(text: str) -> UUID | None:
    """`text` as a crawl's id, or None: names of sources have no hyphens and ids are written with theirs."""
    if text.count("-") != 4:
        return None
    try:
        return UUID(text)
    except ValueError:
        return None


def _sources(connection: sa.Connection, where: str, **parameters: Any) -> list[KnownSource]:
    statement = sa.text(
        """
        SELECT source_id, source, CAST(s.contract AS text) AS contract, contract_version, contract_file,
               paused_at, coalesce(c.first_used_at, synced_at) AS in_force_since
          FROM sources s LEFT JOIN contracts c USING (source_id, contract_version)
        """
        + where
    )
    return [KnownSource(**row) for row in connection.execute(statement, parameters).mappings()]

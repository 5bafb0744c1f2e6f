"""What waits for a person: quarantined URLs, and removals held by a contract's guard.

Reads and releases; what puts a URL into quarantine is `complete` and `charge`, what holds removals is `apply_removals`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import sqlalchemy as sa

from crawl_pipeline.domain.pages import CrawlId
from crawl_pipeline.storage import sources
from crawl_pipeline.storage.database import Database

HELD_REMOVALS = "held_removals"  # the reason under which holds are listed and released
SAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Removals of one record type that wait: `missing_count` of `record_count`, more than `max_drop` of them."""

    record_type: str
    crawl_id: UUID
    missing_count: int
    record_count: int
    max_drop: float
    held_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A quarantined URL and what its last exchange said."""

    url: str
    tries: int
    expiries: int
    last_fetched_at: datetime | None
    status: int | None
    detail: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """The URLs of a source that are quarantined for one reason."""

    source: str
    reason: str
    is_sitemap: bool
    count: int
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """What a release did: URLs queued again, and per record type how many missing records are gone now."""

    urls: int
    removals: tuple[sources.Removal, ...]


def counts(connection: sa.Connection, source_id: int) -> dict[str, int]:
    """Quarantined pages per reason, and under `HELD_REMOVALS` the records whose removal is held, where any is."""
    rows = connection.execute(
        sa.text("""
            SELECT reason, count(*) AS n FROM urls
             WHERE source_id = :s AND state = 'quarantined' AND NOT is_sitemap GROUP BY 1 ORDER BY 1
        """),
        {"s": source_id},
    )
    found = {row.reason or "unknown": row.n for row in rows}
    held = sum(hold.missing_count for hold in open_holds(connection, source_id))
    return found | ({HELD_REMOVALS: held} if held else {})


def open_holds(connection: sa.Connection, source_id: int) -> tuple[Hold, ...]:
    """The holds of a source that nobody has released, by record type."""
    rows = connection.execute(
        sa.text("""
            SELECT record_type, crawl_id, missing_count, record_count, CAST(max_drop AS float) AS max_drop, held_at
              FROM holds WHERE source_id = :s AND released_at IS NULL ORDER BY record_type
        """),
        {"s": source_id},
    )
    return tuple(Hold(**row) for row in rows.mappings())


def quarantined(connection: sa.Connection, source_id: int, source: str) -> tuple[Quarantined, ...]:
    """The quarantined URLs of a source per reason, each with a few samples: the first by URL key."""
    rows = connection.execute(
        sa.text(f"""
            SELECT reason, is_sitemap, count(*) AS n, (array_agg(url_key ORDER BY url_key))[1\\:{SAMPLES}] AS keys
              FROM urls WHERE source_id = :s AND state = 'quarantined' GROUP BY 1, 2 ORDER BY 3 DESC, 1
        """),
        {"s": source_id},
    ).all()
    return tuple(
        Quarantined(
            source=source,
            reason=row.reason or "unknown",
            is_sitemap=row.is_sitemap,
            count=row.n,
            samples=_samples(connection, source_id, row.keys),
        )
        for row in rows
    )


def _samples(connection: sa.Connection, source_id: int, keys: list[UUID]) -> tuple[Sample, ...]:
    rows = connection.execute(
        sa.text("""
            SELECT u.url, u.tries, u.expiries, u.last_fetched_at, f.status, f.detail
              FROM urls u LEFT JOIN LATERAL (
                SELECT status, detail FROM fetches f WHERE f.source_id = u.source_id AND f.url_key = u.url_key
                 ORDER BY f.started_at DESC LIMIT 1) f ON true
             WHERE u.source_id = :s AND u.url_key = ANY (:keys) ORDER BY u.url
        """),
        {"s": source_id, "keys": keys},
    )
    return tuple(Sample(**row) for row in rows.mappings())


def release(database: Database, source_id: int, *, reason: str | None, url_pattern: str | None) -> Released:
    """Release what a person has looked at: queued and due now, with a clean slate; held removals are applied.

    `reason` None: every reason; `url_pattern`: a LIKE pattern, for URLs only. Each batch is one transaction; after a
    kill the same call goes on where it ended.
    """
    urls = 0
    if reason != HELD_REMOVALS:
        urls = sources.release_quarantined(database, source_id, reason, url_pattern)
    removals: tuple[sources.Removal, ...] = ()
    if reason in (None, HELD_REMOVALS) and url_pattern is None:
        removals = database.retry(lambda connection: _apply_holds(connection, source_id))
    return Released(urls=urls, removals=removals)


def _apply_holds(connection: sa.Connection, source_id: int) -> tuple[sources.Removal, ...]:
    return tuple(
        sources.apply_removals(
            connection, source_id, CrawlId(hold.crawl_id), hold.record_type, hold.max_drop, force=True
        )
        for hold in open_holds(connection, source_id)
    )


def like_pattern(glob: str) -> str:
    """A glob over whole URLs as a LIKE pattern. Only `*` is special: `?` is a part of URLs."""
    escaped = glob.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%")

"""How a source or a crawl stands: counts, requests, freshness, and who works on it now.

Reads only. URLs are counted by the counters; records and page versions by their indexes, so that they are exact.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import sqlalchemy as sa

from crawl_pipeline.domain.durations import parse_duration
from crawl_pipeline.domain.globs import compile_glob, undo_needless_escapes
from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.domain.pages import CrawlId
from crawl_pipeline.domain.urls import canonical_path
from crawl_pipeline.storage import crawls, quarantine, reports
from crawl_pipeline.storage.quarantine import Hold

STATES = tuple(state.value for state in UrlState)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A worker process of a crawl that has not ended, or that nobody has seen end."""

    worker_id: str
    machine: str
    pid: int
    heartbeat_age: timedelta
    requests: int
    leases: int
    urls_in_hand: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlStatus:
    """One crawl. `counters` are its own counts (URLs per outcome, versions, records added and changed, …)."""

    crawl: crawls.CrawlRow
    requests: int
    other_requests: int
    counters: Mapping[str, int]
    workers: tuple[WorkerStatus, ...]
    leases: int
    urls_in_hand: int
    next_expiry_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshnessStatus:
    """What waits to be visited, and for how many pages the promise `freshness.window` is broken.

    `oldest_check_at` is the last check of the page that has waited longest among those due; with none due, every
    page was checked within its interval. `next_due_at` is when something may be claimed, hosts that rest considered.
    """

    window: timedelta | None  # None: never crawled; where rules name others, theirs count for their pages
    due: int
    stale: int
    oldest_check_at: datetime | None
    next_due_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """One source, with the crawl asked for or the last one (None: never crawled)."""

    source: str
    contract_version: str | None  # None: never crawled
    paused_at: datetime | None
    urls: Mapping[str, int]
    records: Mapping[str, int]
    page_versions: int
    quarantine: Mapping[str, int]
    holds: tuple[Hold, ...]
    freshness: FreshnessStatus
    crawl: CrawlStatus | None
    now: datetime

    @property
    def record_count(self) -> int:
        """The current records of all types."""
        return sum(self.records.values())


def source_status(connection: sa.Connection, source: reports.KnownSource, crawl_id: UUID | None = None) -> SourceStatus:
    """How a source stands, and its crawl `crawl_id` (None: the last)."""
    if crawl_id is None:
        crawl_id = reports.last_crawl(connection, source.source_id)
    counted = crawls.counts(connection, source.source_id)
    return SourceStatus(
        source=source.source,
        contract_version=source.contract_version,
        paused_at=source.paused_at,
        urls={state: counted.get(state, 0) for state in STATES},
        records=record_counts(connection, source.source_id),
        page_versions=_page_versions(connection, source.source_id),
        quarantine=quarantine.counts(connection, source.source_id),
        holds=quarantine.open_holds(connection, source.source_id),
        freshness=freshness(connection, source.source_id, Windows.of(source.contract)),
        crawl=_crawl(connection, crawl_id) if crawl_id is not None else None,
        now=reports.now(connection),
    )


def never_crawled(connection: sa.Connection, source: str) -> SourceStatus:
    """How a source stands that has a contract file only."""
    return SourceStatus(
        source=source,
        contract_version=None,
        paused_at=None,
        urls=dict.fromkeys(STATES, 0),
        records={},
        page_versions=0,
        quarantine={},
        holds=(),
        freshness=FreshnessStatus(window=None, due=0, stale=0, oldest_check_at=None, next_due_at=None),
        crawl=None,
        now=reports.now(connection),
    )


class Windows:
    """The windows of a stored contract's section `freshness`, read without validating the rest."""

    def __init__(self, default: timedelta, rules: Sequence[tuple[re.Pattern[str], timedelta]]) -> None:
        self.default = default
        self.shortest = min([default, *(window for _, window in rules)])
        self._rules = tuple(rules)

    @classmethod
    def of(cls, contract: str) -> Windows:
        """The windows that a contract's JSON names."""
        section = json.loads(contract).get("freshness") or {}
        rules = [
            (compile_glob(glob), parse_duration(rule["window"]))
            for rule in section.get("rules", ())
            for glob in rule["match"]
        ]
        return cls(parse_duration(section.get("window", "24h")), rules)

    @property
    def differ(self) -> bool:
        """Whether some paths have a window of their own."""
        return bool(self._rules)

    def window(self, url: str) -> timedelta:
        """The window of a URL: that of the first rule which takes its path, else the section's own."""
        path = undo_needless_escapes(canonical_path(url))
        return next((window for glob, window in self._rules if glob.fullmatch(path)), self.default)


def record_counts(connection: sa.Connection, source_id: int) -> dict[str, int]:
    """The current records of a source by type."""
    statement = sa.text("""
        SELECT record_type, count(*) AS n FROM records WHERE source_id = :s AND gone_at IS NULL GROUP BY 1 ORDER BY 1
    """)
    return {row.record_type: row.n for row in connection.execute(statement, {"s": source_id})}


def _page_versions(connection: sa.Connection, source_id: int) -> int:
    statement = sa.text("SELECT count(*) FROM page_versions WHERE source_id = :s")
    return int(connection.execute(statement, {"s": source_id}).scalar_one())


# The due URLs of a source, through the index `urls_due`: the cost follows what is due, not what is known.
_DUE = """
  FROM queues q CROSS JOIN LATERAL (
    SELECT u.url, u.last_fetched_at, u.outcome FROM urls u
     WHERE u.source_id = q.source_id AND u.host_id = q.host_id AND (u.state <> 'queued') = (q.lane = 1)
       AND u.lease_token IS NULL AND u.due_at IS NOT NULL AND u.due_at <= transaction_timestamp()
       AND NOT u.is_sitemap) u
 WHERE q.source_id = :s AND q.next_due_at <= transaction_timestamp()
"""
_STALE = """
   AND u.outcome IN ('accepted', 'unchanged')
   AND u.last_fetched_at < transaction_timestamp() - CAST(:window AS interval)
"""


def freshness(connection: sa.Connection, source_id: int, windows: Windows) -> FreshnessStatus:
    """What of a source waits, and what is stale: the cost follows what is due."""
    due = connection.execute(
        sa.text(
            """
            SELECT count(*) AS n, min(u.last_fetched_at) FILTER (WHERE u.outcome IN ('accepted', 'unchanged')) AS oldest
            """
            + _DUE
        ),
        {"s": source_id},
    ).one()
    return FreshnessStatus(
        window=windows.default,
        due=due.n,
        stale=_stale(connection, source_id, windows) if due.oldest is not None else 0,
        oldest_check_at=due.oldest,
        next_due_at=crawls.next_due(connection, source_id),
    )


def _stale(connection: sa.Connection, source_id: int, windows: Windows) -> int:
    parameters = {"s": source_id, "window": windows.shortest}
    if not windows.differ:
        return int(connection.execute(sa.text("SELECT count(*)" + _DUE + _STALE), parameters).scalar_one())
    rows = connection.execute(
        sa.text("SELECT u.url, transaction_timestamp() - u.last_fetched_at AS age" + _DUE + _STALE),
        parameters,
        execution_options={"yield_per": 5000},
    )
    return sum(row.age > windows.window(row.url) for row in rows)


def _crawl(connection: sa.Connection, crawl_id: UUID) -> CrawlStatus:
    crawl = reports.find_crawl(connection, crawl_id)
    requests, other_requests = crawls.requests(connection, crawl.crawl_id)
    held = connection.execute(
        sa.text("""
            SELECT count(*) AS leases, coalesce(sum(remaining), 0) AS urls, min(expires_at) AS next_expiry_at
              FROM leases WHERE crawl_id = :c
        """),
        {"c": crawl_id},
    ).one()
    return CrawlStatus(
        crawl=crawl,
        requests=requests,
        other_requests=other_requests,
        counters=crawls.counts(connection, crawl.source_id, crawl_id),
        workers=_workers(connection, crawl.crawl_id),
        leases=held.leases,
        urls_in_hand=int(held.urls),
        next_expiry_at=held.next_expiry_at,
    )


def _workers(connection: sa.Connection, crawl_id: CrawlId) -> tuple[WorkerStatus, ...]:
    rows = connection.execute(
        sa.text("""
            SELECT w.worker_id, w.machine, w.pid, clock_timestamp() - w.heartbeat_at AS heartbeat_age, w.requests,
                   count(l.lease_token) AS leases, coalesce(sum(l.remaining), 0) AS urls_in_hand
              FROM workers w LEFT JOIN leases l USING (worker_id)
             WHERE w.crawl_id = :c AND w.ended_at IS NULL GROUP BY w.worker_id ORDER BY w.machine, w.pid
        """),
        {"c": crawl_id},
    )
    return tuple(WorkerStatus(**{**row, "urls_in_hand": int(row["urls_in_hand"])}) for row in rows.mappings())

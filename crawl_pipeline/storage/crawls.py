"""Crawls and their workers: who holds a source, since when, and what it has done.

Owns `crawls` and `workers`. When a crawl opens or closes is decided in `pipeline.crawl`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from crawl_pipeline.domain.pages import CrawlId, LeaseToken, UrlKey
from crawl_pipeline.storage.arguments import call
from crawl_pipeline.storage.database import Database, long_statements

NIL = UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process that holds a crawl: a run on a machine. `pid_started` tells a reused pid apart."""

    run_id: str
    machine: str
    pid: int
    pid_started: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlRow:
    """One row of `crawls`; times are the database's."""

    crawl_id: CrawlId
    source_id: int
    source: str
    kind: str
    state: str
    ending: str | None
    stop_reason: str | None
    contract_version: str
    opened_at: datetime
    deadline_at: datetime
    closed_at: datetime | None
    max_pages: int
    options: Mapping[str, Any]
    holder: Holder
    heartbeat_age: timedelta


_SELECT = """
SELECT c.*, s.source, clock_timestamp() - c.heartbeat_at AS heartbeat_age
  FROM crawls c JOIN sources s USING (source_id)
"""


def find_open(connection: sa.Connection, source_id: int) -> CrawlRow | None:
    """The open crawl or re-extraction of a source, if there is one."""
    return _one(connection, _SELECT + " WHERE c.source_id = :source_id AND c.state = 'open'", source_id=source_id)


def find(connection: sa.Connection, crawl_id: CrawlId) -> CrawlRow | None:
    """A crawl by its id."""
    return _one(connection, _SELECT + " WHERE c.crawl_id = :crawl_id", crawl_id=crawl_id)


def find_held(connection: sa.Connection, source: str, run_id: str) -> CrawlRow | None:
    """The open crawl of a source that a run holds."""
    return _one(
        connection,
        _SELECT + " WHERE s.source = :source AND c.run_id = :run_id AND c.state = 'open'",
        source=source,
        run_id=run_id,
    )


def find_previous(connection: sa.Connection, source_id: int, before: datetime) -> CrawlRow | None:
    """The last crawl of a source that opened before a time."""
    return _one(
        connection,
        _SELECT
        + " WHERE c.source_id = :source_id AND c.kind = 'crawl' AND c.opened_at < :before"
        + " ORDER BY c.opened_at DESC LIMIT 1",
        source_id=source_id,
        before=before,
    )


def insert(
    connection: sa.Connection,
    *,
    crawl_id: CrawlId,
    source_id: int,
    kind: str,
    contract_version: str,
    max_duration: timedelta,
    max_pages: int,
    options: Mapping[str, Any],
    holder: Holder,
) -> bool:
    """Open a crawl; its cutoff is the database's clock. False when another one is open (a unique index decides)."""
    statement = sa.text("""
        INSERT INTO crawls (crawl_id, source_id, kind, contract_version, opened_at, deadline_at, max_pages, options,
                            run_id, machine, pid, pid_started, heartbeat_at)
        SELECT :crawl_id, :source_id, :kind, :contract_version, t, t + :max_duration, :max_pages,
               CAST(:options AS jsonb), :run_id, :machine, :pid, :pid_started, t
          FROM clock_timestamp() AS t
        ON CONFLICT (source_id) WHERE state = 'open' DO NOTHING
    """)
    result = connection.execute(
        statement,
        {
            "crawl_id": crawl_id,
            "source_id": source_id,
            "kind": kind,
            "contract_version": contract_version,
            "max_duration": max_duration,
            "max_pages": max_pages,
            "options": json.dumps(dict(options)),
            **_fields(holder),
        },
    )
    return result.rowcount == 1


def take_over(connection: sa.Connection, crawl: CrawlRow, holder: Holder) -> bool:
    """Hold a dead run's crawl, if nobody else took it first; its leases go back uncounted."""
    result = connection.execute(
        sa.text("""
            UPDATE crawls SET run_id = :run_id, machine = :machine, pid = :pid, pid_started = :pid_started,
                   heartbeat_at = clock_timestamp(), ending = NULL
             WHERE crawl_id = :crawl_id AND state = 'open' AND run_id = :old_run AND pid = :old_pid
        """),
        {
            "crawl_id": crawl.crawl_id,
            "old_run": crawl.holder.run_id,
            "old_pid": crawl.holder.pid,
            **_fields(holder),
        },
    )
    if result.rowcount != 1:
        return False
    # A worker that died with its run said its counts up to a second before: what it stored since counts too.
    with long_statements(connection):
        connection.execute(
            sa.text("""
                WITH dead AS (
                  SELECT worker_id, started_at FROM workers WHERE crawl_id = :crawl_id AND ended_at IS NULL),
                stored AS (
                  SELECT f.worker_id, count(*) AS n FROM fetches f JOIN urls u USING (source_id, url_key)
                   WHERE f.started_at >= (SELECT min(started_at) FROM dead) - interval '1 minute'
                     AND f.worker_id IN (SELECT worker_id FROM dead) AND f.source_id = :source_id AND NOT u.is_sitemap
                   GROUP BY 1)
                UPDATE workers w SET ended_at = clock_timestamp(), ended_by = 'its run died',
                       requests = greatest(w.requests, s.n)
                  FROM dead d LEFT JOIN stored s USING (worker_id)
                 WHERE w.worker_id = d.worker_id AND w.ended_at IS NULL
            """),
            {"crawl_id": crawl.crawl_id, "source_id": crawl.source_id},
        )
    release_crawl(connection, crawl.crawl_id)
    return True


def heartbeat(connection: sa.Connection, crawl_id: CrawlId, run_id: str) -> bool:
    """Say that the run still lives. False: the crawl is closed or another run holds it; stop."""
    result = connection.execute(
        sa.text("""
            UPDATE crawls SET heartbeat_at = clock_timestamp()
             WHERE crawl_id = :crawl_id AND run_id = :run_id AND state = 'open'
        """),
        {"crawl_id": crawl_id, "run_id": run_id},
    )
    return result.rowcount == 1


def set_contract_version(connection: sa.Connection, crawl_id: CrawlId, run_id: str, contract_version: str) -> None:
    """A resumed crawl goes on under this version of its contract, while the run holds it."""
    connection.execute(
        sa.text("""
            UPDATE crawls SET contract_version = :version
             WHERE crawl_id = :crawl_id AND run_id = :run_id AND state = 'open' AND contract_version <> :version
        """),
        {"crawl_id": crawl_id, "run_id": run_id, "version": contract_version},
    )


def set_ending(connection: sa.Connection, crawl_id: CrawlId, run_id: str, ending: str) -> None:
    """Remember why the workers stopped, for `close`."""
    connection.execute(
        sa.text(
            "UPDATE crawls SET ending = :ending WHERE crawl_id = :crawl_id AND run_id = :run_id AND state = 'open'"
        ),
        {"crawl_id": crawl_id, "run_id": run_id, "ending": ending},
    )


def close(connection: sa.Connection, crawl_id: CrawlId, stop_reason: str) -> None:
    """Close a crawl, once; the counts of its workers are folded into its row."""
    connection.execute(
        sa.text("""
            UPDATE crawls c SET state = 'closed', stop_reason = :stop_reason, closed_at = clock_timestamp(),
                   requests = c.requests + w.requests, other_requests = c.other_requests + w.other_requests
              FROM (SELECT coalesce(sum(requests), 0) AS requests, coalesce(sum(other_requests), 0) AS other_requests
                      FROM workers WHERE crawl_id = :crawl_id) w
             WHERE c.crawl_id = :crawl_id AND c.state = 'open'
        """),
        {"crawl_id": crawl_id, "stop_reason": stop_reason},
    )
    connection.execute(sa.text("DELETE FROM workers WHERE crawl_id = :crawl_id"), {"crawl_id": crawl_id})


def start_worker(connection: sa.Connection, worker_id: str, crawl_id: CrawlId, machine: str, pid: int) -> None:
    """Register one life of a worker process."""
    connection.execute(
        sa.text("""
            INSERT INTO workers (worker_id, crawl_id, machine, pid, started_at, heartbeat_at)
            VALUES (:worker_id, :crawl_id, :machine, :pid, clock_timestamp(), clock_timestamp())
            ON CONFLICT (worker_id) DO NOTHING
        """),
        {"worker_id": worker_id, "crawl_id": crawl_id, "machine": machine, "pid": pid},
    )


def beat_worker(connection: sa.Connection, worker_id: str, requests: int, other_requests: int) -> None:
    """A worker's heartbeat: what it has started so far."""
    connection.execute(
        sa.text("""
            UPDATE workers SET heartbeat_at = clock_timestamp(), requests = :requests, other_requests = :other_requests
             WHERE worker_id = :worker_id
        """),
        {"worker_id": worker_id, "requests": requests, "other_requests": other_requests},
    )


def end_worker(connection: sa.Connection, worker_id: str, ended_by: str, requests: int, other_requests: int) -> int:
    """A worker ended: say by what, keep its last counts, give its leases back uncounted. Returns how many URLs."""
    connection.execute(
        sa.text("""
            UPDATE workers SET ended_at = clock_timestamp(), ended_by = :ended_by,
                   requests = greatest(requests, :requests), other_requests = greatest(other_requests, :other_requests)
             WHERE worker_id = :worker_id AND ended_at IS NULL
        """),
        {"worker_id": worker_id, "ended_by": ended_by, "requests": requests, "other_requests": other_requests},
    )
    return int(connection.execute(sa.text("SELECT release_worker(:w)"), {"w": worker_id}).scalar_one() or 0)


def charge(connection: sa.Connection, token: LeaseToken, key: UrlKey, *, is_stalled: bool) -> str | None:
    """The page that a dead worker had in hand pays. Returns its new state; None when its lease was lost."""
    row = connection.exec_driver_sql(call("charge", 3), (token, key, is_stalled)).fetchone()
    return row[0] if row is not None else None


def release_crawl(connection: sa.Connection, crawl_id: CrawlId) -> int:
    """Give back, uncounted, what a crawl's dead workers hold. Returns how many URLs."""
    return int(connection.execute(sa.text("SELECT release_crawl(:c)"), {"c": crawl_id}).scalar_one() or 0)


def release_run(database: Database, run_id: str) -> int:
    """Give back, uncounted, what a dead run's workers hold. Returns how many URLs."""
    # All leases at once: two calls of `release` in one transaction break the lock order.
    statement = sa.text("SELECT release((SELECT coalesce(array_agg(lease_token), '{}') FROM leases WHERE run_id = :r))")
    return database.retry(lambda connection: int(connection.execute(statement, {"r": run_id}).scalar_one() or 0))


def requeue_expired(database: Database) -> tuple[int, int, int]:
    """Give expired leases back, counted: (leases, URLs back, URLs quarantined)."""

    def work(connection: sa.Connection) -> tuple[int, int, int]:
        row = connection.execute(sa.text("SELECT * FROM requeue_expired(1000)")).one()
        return row.r_leases, row.r_released, row.r_quarantined

    return database.retry(work)


def fold_counters(database: Database) -> None:
    """Fold counter deltas; does nothing while another process folds."""
    database.retry(lambda connection: connection.execute(sa.text("SELECT fold_counters()")).close())


def counts(connection: sa.Connection, source_id: int, crawl_id: UUID = NIL) -> dict[str, int]:
    """Counters of a crawl; with the nil id, URLs per state of the source."""
    rows = connection.execute(
        sa.text("SELECT name, n FROM counts WHERE source_id = :s AND crawl_id = :c"), {"s": source_id, "c": crawl_id}
    )
    return {row.name: int(row.n) for row in rows}


def add_counts(connection: sa.Connection, source_id: int, crawl_id: CrawlId, numbers: Mapping[str, int]) -> None:
    """Add to a crawl's counters, in the transaction that did what they count."""
    connection.execute(
        sa.text("INSERT INTO counter_deltas (source_id, crawl_id, name, n) VALUES (:s, :c, :name, :n)"),
        [{"s": source_id, "c": crawl_id, "name": name, "n": n} for name, n in numbers.items()],
    )


def requests(connection: sa.Connection, crawl_id: CrawlId) -> tuple[int, int]:
    """Requests for pages that the crawl started, and others (robots.txt, sitemaps), those of dead workers included."""
    row = connection.execute(
        sa.text("""
            SELECT c.requests + coalesce(sum(w.requests), 0) AS pages,
                   c.other_requests + coalesce(sum(w.other_requests), 0) AS others
              FROM crawls c LEFT JOIN workers w USING (crawl_id) WHERE c.crawl_id = :c GROUP BY c.crawl_id
        """),
        {"c": crawl_id},
    ).one()
    return int(row.pages), int(row.others)


def sources_due(database: Database) -> list[str]:
    """Unpaused sources that have a URL due now (hosts that rest do not count), no open crawl, and whose last crawl
    opened `freshness.min` ago or earlier.
    """
    statement = sa.text("""
        SELECT s.source FROM sources s
         WHERE s.paused_at IS NULL
           AND EXISTS (SELECT 1 FROM queues q WHERE q.source_id = s.source_id AND q.ready_at <= clock_timestamp())
           AND NOT EXISTS (SELECT 1 FROM crawls c WHERE c.source_id = s.source_id AND c.state = 'open')
           AND coalesce((SELECT max(c.opened_at) FROM crawls c WHERE c.source_id = s.source_id AND c.kind = 'crawl')
                        + CAST(s.contract -> 'freshness' ->> 'min' AS interval) <= clock_timestamp(), true)
         ORDER BY 1
    """)
    return database.retry(lambda connection: [row[0] for row in connection.execute(statement)])


def next_due(connection: sa.Connection, source_id: int) -> datetime | None:
    """When a URL of the source falls due next; None when none will."""
    return connection.execute(  # type: ignore[no-any-return]
        sa.text("""
            SELECT CASE WHEN min(ready_at) < 'infinity' THEN min(ready_at) END FROM queues WHERE source_id = :s
        """),
        {"s": source_id},
    ).scalar_one()


def _fields(holder: Holder) -> dict[str, Any]:
    return {
        "run_id": holder.run_id,
        "machine": holder.machine,
        "pid": holder.pid,
        "pid_started": holder.pid_started,
    }


def _one(connection: sa.Connection, statement: str, **parameters: Any) -> CrawlRow | None:
    row = connection.execute(sa.text(statement), parameters).one_or_none()
    if row is None:
        return None
    return CrawlRow(
        crawl_id=CrawlId(row.crawl_id),
        source_id=row.source_id,
        source=row.source,
        kind=row.kind,
        state=row.state,
        ending=row.ending,
        stop_reason=row.stop_reason,
        contract_version=row.contract_version,
        opened_at=row.opened_at,
        deadline_at=row.deadline_at,
        closed_at=row.closed_at,
        max_pages=row.max_pages,
        options=row.options,
        holder=Holder(run_id=row.run_id, machine=row.machine, pid=row.pid, pid_started=row.pid_started),
        heartbeat_age=row.heartbeat_age,
    )

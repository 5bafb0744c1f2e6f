"""What a source's health is judged by, read in one snapshot through indexes and counters."""

from __future__ import annotations

import sqlalchemy as sa

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.health import Answers, Facts
from crawl_pipeline.domain.revisit import RevisitPolicy
from crawl_pipeline.storage import crawls, quarantine, reports, status
from crawl_pipeline.storage.database import Database

LAST_CRAWLS = 8
_MOST_QUARANTINED = 10_000  # whose age is looked at

_OLDEST_QUARANTINED = sa.text("""
SELECT min(f.at) FROM (SELECT url_key FROM urls WHERE source_id = :s AND state = 'quarantined' LIMIT :n) u
 CROSS JOIN LATERAL (SELECT max(started_at) AS at FROM fetches WHERE source_id = :s AND url_key = u.url_key) f
""")
# What politeness lets start: a host without a delay is bounded by its answers only, which is no limit here.
_STARTS = sa.text("""
SELECT CASE WHEN bool_and(h.min_delay > '0') THEN sum(3600 / extract(epoch FROM nullif(h.min_delay, '0'))) END
  FROM hosts h WHERE h.host_id IN (SELECT host_id FROM queues WHERE source_id = :s)
""")
_CRAWLS = sa.text("""
SELECT c.requests, sum(n.n) FILTER (WHERE n.name IN ('accepted', 'unchanged')) AS accepted,
       sum(n.n) FILTER (WHERE n.name = 'rejected') AS rejected
  FROM (SELECT crawl_id, opened_at, requests FROM crawls
         WHERE source_id = :s AND kind = 'crawl' AND state = 'closed' ORDER BY opened_at DESC LIMIT :n) c
  LEFT JOIN counts n ON n.source_id = :s AND n.crawl_id = c.crawl_id
 GROUP BY c.crawl_id, c.opened_at, c.requests ORDER BY c.opened_at DESC
""")
_CONFLICTS = sa.text("SELECT count(*) FROM record_pages WHERE source_id = :s AND data IS NOT NULL")
_EXPIRED = sa.text("SELECT count(*) FROM leases WHERE source_id = :s AND expires_at < clock_timestamp()")


def facts(database: Database, source: str) -> Facts | None:
    """The facts of a source; None where the database has never seen its contract."""
    with reports.snapshot(database) as connection:
        known = reports.find_source(connection, source)
        if known is None:
            return None
        urls = crawls.counts(connection, known.source_id)
        pace = RevisitPolicy(Contract.from_json(known.contract).freshness).freshness("")
        this = {"s": known.source_id}
        starts = connection.execute(_STARTS, this).scalar_one()
        ended = connection.execute(_CRAWLS, {**this, "n": LAST_CRAWLS})
        set_aside = quarantine.counts(connection, known.source_id)
        set_aside.pop(quarantine.HELD_REMOVALS, None)
        return Facts(
            now=reports.now(connection),
            pages=urls.get("accepted", 0) + urls.get("unchanged", 0),
            stale=status.freshness(connection, known.source_id, status.Windows.of(known.contract)).stale,
            window=pace.window,
            interval=pace.interval,
            starts_per_hour=float(starts) if starts is not None else None,
            quarantine=set_aside,
            oldest_quarantined_at=connection.execute(
                _OLDEST_QUARANTINED, {**this, "n": _MOST_QUARANTINED}
            ).scalar_one(),
            held=[
                f"{hold.missing_count:,} of {hold.record_count:,} records of type {hold.record_type} would go, "
                f"more than guard.max_drop {hold.max_drop:g} allows"
                for hold in quarantine.open_holds(connection, known.source_id)
            ],
            crawls=[
                Answers(accepted=int(row.accepted or 0), rejected=int(row.rejected or 0), requests=row.requests)
                for row in ended
            ],
            records=sum(status.record_counts(connection, known.source_id).values()),
            conflicts=connection.execute(_CONFLICTS, this).scalar_one(),
            expired_leases=connection.execute(_EXPIRED, this).scalar_one(),
        )

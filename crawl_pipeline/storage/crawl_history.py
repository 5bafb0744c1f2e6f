"""How a crawl went, read from the fetch log in one pass: outcomes over time, statuses, and how long hosts took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import sqlalchemy as sa

from crawl_pipeline.storage import reports
from crawl_pipeline.storage.database import Database

SPANS = 48  # of equal length, from the crawl's first request to its last
MOST_HOSTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimes:
    """How long a host took to answer; seconds."""

    authority: str
    exchanges: int
    mean: float
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlHistory:
    """`outcomes`: per state that exchanges led to, how many in each of `SPANS` spans of `span` seconds."""

    began_at: datetime
    span: float
    outcomes: dict[str, list[int]]
    statuses: dict[str, int]  # `none`: no answer came
    hosts: Sequence[HostTimes]  # those with most exchanges, the most first
    host_count: int


# One scan, by the time index; the log is append-only, and a crawl's rows lie together.
_HISTORY = sa.text("""
WITH this AS MATERIALIZED (
  SELECT started_at, elapsed_ms, status, outcome, split_part(url, '/', 3) AS authority FROM fetches
   WHERE crawl_id = :c AND started_at >= :since),
span AS (
  SELECT min(started_at) AS first, greatest(extract(epoch FROM max(started_at) - min(started_at)), 1) / :n AS seconds
    FROM this)
SELECT s.first, s.seconds, least(floor(extract(epoch FROM t.started_at - s.first) / s.seconds), :n - 1)::int AS place,
       t.outcome, t.status, t.authority, count(*) AS n, avg(t.elapsed_ms) AS mean, max(t.elapsed_ms) AS longest
  FROM this t CROSS JOIN span s
 GROUP BY GROUPING SETS ((s.first, s.seconds, 3, t.outcome), (t.status), (t.authority))
""")


def crawl_history(database: Database, crawl_id: UUID, opened_at: datetime) -> CrawlHistory | None:
    """The history of a crawl that opened at a time; None where it made no exchange for a page."""
    with reports.snapshot(database) as connection:
        rows = connection.execute(_HISTORY, {"c": crawl_id, "since": opened_at, "n": SPANS}).all()
    spans = [row for row in rows if row.outcome is not None]
    if not spans:
        return None
    outcomes: dict[str, list[int]] = {}
    for row in spans:
        outcomes.setdefault(row.outcome, [0] * SPANS)[row.place] = row.n
    hosts = sorted((row for row in rows if row.authority is not None), key=lambda row: (-row.n, row.authority))
    answers = (row for row in rows if row.outcome is None and row.authority is None)
    statuses = {"none" if row.status is None else str(row.status): row.n for row in answers}
    return CrawlHistory(
        began_at=spans[0].first,
        span=float(spans[0].seconds),
        outcomes=outcomes,
        statuses=dict(sorted(statuses.items(), key=lambda one: -one[1])),
        hosts=[
            HostTimes(authority=row.authority, exchanges=row.n, mean=float(row.mean) / 1e3, longest=row.longest / 1e3)
            for row in hosts[:MOST_HOSTS]
        ],
        host_count=len(hosts),
    )

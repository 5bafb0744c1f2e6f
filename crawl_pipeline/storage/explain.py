"""Everything that is stored about one URL of a source, read in one snapshot.

Facts only: what they mean, and what scope and robots.txt say, is put together in `cli.explain`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa

LAST_FETCHES = 10
LAST_VERSIONS = 10
LAST_ROBOTS_CHANGES = 5
FIRST_RECORDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlFacts:
    """The URL's own row. `found_on` is the page that linked to it first; None: a seed, or no longer known."""

    url: str
    state: str
    outcome: str | None
    reason: str | None
    depth: int
    is_sitemap: bool
    is_noindex: bool
    tries: int
    expiries: int
    due_at: datetime | None
    last_fetched_at: datetime | None
    accepted_at: datetime | None
    etag: str | None
    last_modified: str | None
    found_on: str | None
    is_seed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The host's budget in force, what the strictest of its sources asks of it, and why it rests."""

    authority: str
    slots: int
    min_delay: timedelta
    asked_slots: int | None  # None: no unpaused source has URLs of it
    asked_min_delay: timedelta | None
    crawl_delay: timedelta | None  # of this source's robots.txt group
    slots_in_use: int
    next_request_at: datetime | None
    blocked_until: datetime | None
    blocked_reason: str | None
    failures: int
    outages: int
    throttles: int
    latency: float | None  # seconds of an answer, smoothed; and its long-term low
    usual_latency: float | None
    error_share: float  # of answers that speak against the host
    adaptive_delay: timedelta  # what its trouble asks for
    adaptive_reason: str | None  # slow, failing or throttled
    ready_at: datetime | None  # when this source may claim of it next


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseFacts:
    """Who holds the URL now."""

    worker_id: str
    machine: str | None
    pid: int | None
    crawl_id: UUID
    claimed_at: datetime
    expires_at: datetime
    urls: int
    remaining: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotsChange:
    """What robots.txt said from `fetched_at` on, until the next change; kept to no longer than `valid_until`."""

    fetched_at: datetime
    valid_until: datetime
    state: str
    status: int | None
    body_bytes: int | None
    body_hash: str | None  # SHA-256


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotsFacts:
    """The stored robots.txt of the URL's origin."""

    origin: str
    state: str
    status: int | None
    detail: str | None
    body: bytes | None
    fetched_at: datetime | None
    expires_at: datetime
    failures: int
    changes: tuple[RobotsChange, ...]  # the newest first


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFacts:
    """One exchange of the log."""

    started_at: datetime
    crawl_id: UUID
    url: str
    elapsed_ms: int
    status: int | None
    outcome: str
    reason: str | None
    detail: str | None
    body_bytes: int
    http_version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFacts:
    """One page version."""

    version_no: int
    seen_at: datetime
    crawl_id: UUID
    title: str | None
    content_type: str | None
    final_url: str
    client: str
    body_hash: str
    is_current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFacts:
    """A record that the page yields. A conflict: its data differ from those of the page that the record belongs to."""

    record_type: str
    record_key: str
    record_id: UUID
    is_owner: bool
    owner_url: str | None
    is_conflict: bool
    claims: int  # how many pages yield it
    conflicts: int  # how many of them with other data than its own page
    last_changed_at: datetime
    missing_since: datetime | None
    gone_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlFacts:
    """The source's open crawl: visited URLs are claimed only if they were due by `opened_at`."""

    crawl_id: UUID
    kind: str
    opened_at: datetime
    heartbeat_age: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFacts:
    """What the database holds about a URL. `url` None: it was never discovered."""

    now: datetime
    paused_at: datetime | None
    url: UrlFacts | None
    host: HostFacts | None
    lease: LeaseFacts | None
    robots: RobotsFacts | None
    open_crawl: CrawlFacts | None
    fetches: tuple[FetchFacts, ...]  # the newest first
    versions: tuple[VersionFacts, ...]  # the newest first
    version_count: int
    records: tuple[ClaimFacts, ...]  # the first by type and key
    record_count: int


def stored_facts(connection: sa.Connection, source_id: int, key: UUID, authority: str, origin: str) -> StoredFacts:
    """Read all of it. `authority` and `origin` are the URL's, for what is known of the host where the URL is not."""
    this = {"s": source_id, "k": key, "authority": authority, "origin": origin}
    head = connection.execute(sa.text(_HEAD), this).one()
    return StoredFacts(
        now=head.now,
        paused_at=head.paused_at,
        url=_row(UrlFacts, connection, _URL, this),
        host=_row(HostFacts, connection, _HOST, this),
        lease=_row(LeaseFacts, connection, _LEASE, this),
        robots=_robots(connection, this),
        open_crawl=_row(CrawlFacts, connection, _OPEN_CRAWL, this),
        fetches=tuple(FetchFacts(**row) for row in _all(connection, _FETCHES, this)),
        versions=tuple(VersionFacts(**row) for row in _all(connection, _VERSIONS, this)),
        version_count=connection.execute(sa.text(_VERSION_COUNT), this).scalar_one(),
        records=tuple(ClaimFacts(**row) for row in _all(connection, _RECORDS, this)),
        record_count=connection.execute(sa.text(_RECORD_COUNT), this).scalar_one(),
    )


_HEAD = "SELECT transaction_timestamp() AS now, (SELECT paused_at FROM sources WHERE source_id = :s) AS paused_at"
_URL = """
SELECT u.url, u.state, u.outcome, u.reason, u.depth, u.is_sitemap, u.is_noindex, u.tries, u.expiries,
       u.due_at, u.last_fetched_at, u.accepted_at, u.etag, u.last_modified, f.url AS found_on,
       u.discovered_from IS NULL AS is_seed
  FROM urls u LEFT JOIN urls f ON f.source_id = u.source_id AND f.url_key = u.discovered_from
 WHERE u.source_id = :s AND u.url_key = :k
"""
_HOST = """
SELECT h.authority, h.slots, h.min_delay, b.slots AS asked_slots, b.min_delay AS asked_min_delay,
       (SELECT max(p.crawl_delay) FROM host_policies p WHERE p.host_id = h.host_id AND p.source_id = :s) AS crawl_delay,
       (SELECT coalesce(sum(cardinality(l.slot_nos)), 0) FROM leases l WHERE l.host_id = h.host_id) AS slots_in_use,
       nullif(h.next_request_at, 'epoch') AS next_request_at, nullif(h.blocked_until, 'epoch') AS blocked_until,
       h.blocked_reason, h.failures, h.outages, h.throttles,
       h.latency, h.usual_latency, h.error_share, coalesce(b.adaptive_delay, '0') AS adaptive_delay,
       CASE WHEN b.adaptive_delay > '0' THEN h.adaptive_reason END AS adaptive_reason,
       (SELECT min(q.ready_at) FROM queues q
         WHERE q.source_id = :s AND q.host_id = h.host_id AND q.ready_at < 'infinity') AS ready_at
  FROM hosts h CROSS JOIN LATERAL host_budget(h) b
 WHERE h.authority = :authority
"""
_LEASE = """
SELECT l.worker_id, w.machine, w.pid, l.crawl_id, l.claimed_at, l.expires_at, cardinality(l.url_keys) AS urls,
       l.remaining
  FROM urls u JOIN leases l USING (lease_token) LEFT JOIN workers w USING (worker_id)
 WHERE u.source_id = :s AND u.url_key = :k
"""
_ROBOTS = """
SELECT origin, state, status, detail, fetched_at, expires_at, failures,
       (SELECT y.body FROM robots_history y WHERE y.origin = r.origin ORDER BY y.fetched_at DESC LIMIT 1)
  FROM robots r WHERE origin = :origin
"""
_ROBOTS_CHANGES = f"""
SELECT fetched_at, valid_until, state, status, octet_length(body) AS body_bytes,
       encode(sha256(body), 'hex') AS body_hash
  FROM robots_history WHERE origin = :origin ORDER BY fetched_at DESC LIMIT {LAST_ROBOTS_CHANGES}
"""
_OPEN_CRAWL = """
SELECT crawl_id, kind, opened_at, clock_timestamp() - heartbeat_at AS heartbeat_age FROM crawls
 WHERE source_id = :s AND state = 'open'
"""
_FETCHES = f"""
SELECT started_at, crawl_id, url, elapsed_ms, status, outcome, reason, detail, body_bytes, http_version FROM fetches
 WHERE source_id = :s AND url_key = :k ORDER BY started_at DESC LIMIT {LAST_FETCHES}
"""
_VERSIONS = f"""
SELECT v.version_no, v.seen_at, v.crawl_id, v.title, v.content_type, v.final_url, v.client,
       encode(v.body_hash, 'hex') AS body_hash, coalesce(v.version_id = u.version_id, false) AS is_current
  FROM page_versions v LEFT JOIN urls u USING (source_id, url_key)
 WHERE v.source_id = :s AND v.url_key = :k ORDER BY v.version_no DESC LIMIT {LAST_VERSIONS}
"""
_VERSION_COUNT = "SELECT count(*) FROM page_versions WHERE source_id = :s AND url_key = :k"
_RECORDS = f"""
SELECT r.record_type, r.record_key, r.record_id, r.url_key = :k AS is_owner, o.url AS owner_url,
       p.data IS NOT NULL AS is_conflict, c.claims, c.conflicts, r.last_changed_at, r.missing_since, r.gone_at
  FROM record_pages p JOIN records r USING (record_id)
  CROSS JOIN LATERAL (SELECT count(*) AS claims, count(x.data) AS conflicts FROM record_pages x
                       WHERE x.record_id = r.record_id) c
  LEFT JOIN urls o ON o.source_id = r.source_id AND o.url_key = r.url_key
 WHERE p.source_id = :s AND p.url_key = :k
 ORDER BY r.record_type, r.record_key LIMIT {FIRST_RECORDS}
"""
_RECORD_COUNT = "SELECT count(*) FROM record_pages WHERE source_id = :s AND url_key = :k"


def _robots(connection: sa.Connection, this: dict[str, Any]) -> RobotsFacts | None:
    row = _one(connection, _ROBOTS, this)
    if row is None:
        return None
    changes = tuple(RobotsChange(**change) for change in _all(connection, _ROBOTS_CHANGES, this))
    return RobotsFacts(**{**row, "body": None if row["body"] is None else bytes(row["body"]), "changes": changes})


def _row(kind: type[Any], connection: sa.Connection, statement: str, this: dict[str, Any]) -> Any:
    row = _one(connection, statement, this)
    return None if row is None else kind(**row)


def _one(connection: sa.Connection, statement: str, this: dict[str, Any]) -> dict[str, Any] | None:
    row = connection.execute(sa.text(statement), this).mappings().one_or_none()
    return None if row is None else dict(row)


def _all(connection: sa.Connection, statement: str, this: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(sa.text(statement), this).mappings()]

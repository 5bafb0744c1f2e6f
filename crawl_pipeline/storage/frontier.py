"""The frontier's hot statements: claim, renew, complete, release. Each calls the SQL function of its name.

Owns how values travel to and from `sql/functions`; what a page's outcome is, is decided in `pipeline`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
import zstandard

from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.domain.pages import (
    ClaimedUrl,
    CompletedPage,
    CrawlId,
    FoundLink,
    KnownVersion,
    Lease,
    LeaseToken,
    UrlKey,
)
from crawl_pipeline.domain.politeness import HostObservation
from crawl_pipeline.storage.arguments import call, columns, storable
from crawl_pipeline.storage.database import Database

# A commit may take this long at the 99th percentile times ten; a renewal is due at a third of it.
LEASE_FOR = timedelta(seconds=60)
MOST_SLOTS = 10_000  # as many as a contract's max_in_flight
_HORIZON = timedelta(seconds=1)  # a host that is ready within it is claimed now: its starts are planned, not waited for
_MOST_HOSTS = 64  # of one claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What `complete` did: indexes of pages whose lease was lost, and hosts that it put to rest until a time."""

    lost: frozenset[int]
    new_urls: int
    blocked: dict[int, datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a crawl stands: `claimable`, `busy` (a lease may still find links), `waiting` or `finished`."""

    status: str
    next_at: datetime | None


class Frontier:
    """One worker's view of the frontier of one crawl. Every call is one transaction, retried by `Database.retry`."""

    def __init__(
        self,
        database: Database,
        *,
        source_id: int,
        crawl_id: CrawlId,
        run_id: str,
        worker_id: str,
        lease_for: timedelta = LEASE_FOR,
        stop: threading.Event | None = None,
    ) -> None:
        self._database = database
        self._source_id = source_id
        self._crawl_id = crawl_id
        self._run_id = run_id
        self._worker_id = worker_id
        self._lease_for = lease_for
        self._stop = stop
        self._compressor = zstandard.ZstdCompressor(level=3)

    def claim(self, *, want: int, batch: int, share: int, is_idle: bool, slots: int = MOST_SLOTS) -> tuple[Lease, ...]:
        """Lease up to `want` due URLs: at most `batch` URLs and `share` slots a lease, and `slots` over all leases.

        Cost follows the hosts looked at and the URLs taken, never the backlog. `is_idle`: this worker holds nothing,
        so it may be given a suspect, alone.
        """
        rows = self._rows(
            call("claim", 11),
            [
                *(self._crawl_id, self._run_id, self._worker_id, want, batch, share, self._lease_for, is_idle),
                *(_HORIZON, _MOST_HOSTS, slots),
            ],
        )
        return _leases(rows, self._source_id)

    def claim_slot(self, authority: str) -> tuple[LeaseToken, datetime] | None:
        """A slot of a host for one request, and when it may start; to be released. None: not now."""
        rows = self._rows(
            call("claim_slot", 5), [self._crawl_id, self._run_id, self._worker_id, authority, self._lease_for]
        )
        return (rows[0].o_token, rows[0].o_start) if rows else None

    def renew(self, tokens: Sequence[LeaseToken]) -> dict[LeaseToken, datetime]:
        """Extend leases that still live. A token that is not in the answer is lost: stop its requests at once."""
        rows = self._rows(call("renew", 2), [list(tokens), self._lease_for])
        return {row.r_token: row.r_expires_at for row in rows}

    def release(self, tokens: Sequence[LeaseToken]) -> int:
        """Give leases back uncounted: each URL gets back the state and due time it had. Returns how many URLs."""
        return int(self._rows(call("release", 1), [list(tokens)])[0][0] or 0)

    def adopt(self, token: LeaseToken, target: ClaimedUrl, found_on: UrlKey) -> bool:
        """Add a never visited URL of the lease's host to a lease; False where it was visited, is leased or set aside.

        Safe to repeat: what the lease holds already is adopted.
        """
        arguments = [token, target.key, storable(target.url), target.depth, found_on]
        return bool(self._rows(call("adopt", 5), arguments)[0][0])

    def complete(self, pages: Sequence[CompletedPage]) -> Completion:
        """Store the whole effect of 1 to 64 pages in one transaction, under their lease tokens.

        A page whose lease was lost stores nothing. Safe to repeat: a page that was stored is no longer leased.
        """
        arguments = [self._source_id, self._crawl_id, self._worker_id, *self._arrays(pages)]
        row = self._rows(call("complete", len(arguments)), arguments)[0]
        return Completion(
            lost=frozenset(number - 1 for number in row.lost),
            new_urls=row.new_urls,
            blocked=dict(zip(row.blocked_hosts or (), row.blocked_until or (), strict=True)),
        )

    def add_count(self, name: str, n: int) -> None:
        """Add to one of this crawl's counters what no commit counts."""
        statement = "INSERT INTO counter_deltas (source_id, crawl_id, name, n) VALUES (%s, %s, %s, %s) RETURNING n"
        self._rows(statement, [self._source_id, self._crawl_id, name, n])

    def standing(self) -> Standing:
        """What is left of this crawl, in one snapshot."""
        row = self._rows(call("finished", 1), [self._crawl_id])[0]
        return Standing(status=row.status, next_at=row.next_at)

    def make_changed_due(self, changed: Sequence[tuple[UrlKey, datetime]], least: timedelta) -> int:
        """Visited pages that changed since their last fetch are due at once, `least` after it at the soonest.

        One statement; returns how many moved. Unknown pages, and those whose turn it is anyway, stay as they are.
        """
        keys, times = columns(2, changed)
        return int(self._rows(call("make_changed_due", 4), [self._crawl_id, least, keys, times])[0][0])

    def sitemap_count(self) -> int:
        """How many sitemaps the source knows."""
        statement = "SELECT count(*) FROM urls WHERE source_id = %s AND is_sitemap"
        return int(self._rows(statement, [self._source_id])[0][0])

    def throttle_host(self, host_id: int, asked: timedelta | None, cap: timedelta) -> datetime:
        """429 or 503: no worker starts a request at the host before the returned time."""
        return self._rows(call("throttle_host", 3), [host_id, asked, cap])[0][0]  # type: ignore[no-any-return]

    def observe_hosts(self, seen: Sequence[HostObservation]) -> frozenset[int]:
        """Fold how hosts answered into what is known of them; what is in trouble is asked less often from then on.

        Returns the hosts that took it in: a row that is locked is not waited for.
        """
        rows = ((one.host_id, one.answers, one.log_seconds, one.failures) for one in seen)
        return frozenset(row[0] for row in self._rows(call("observe_hosts", 4), columns(4, rows)))

    def to_drain(self, tokens: Sequence[LeaseToken]) -> list[int]:
        """Hosts of these leases where nothing more is to be started: put to rest, or in need of more delay."""
        return [row.to_drain for row in self._rows(call("to_drain", 2), [list(tokens), _HORIZON])]

    def _rows(self, statement: str, arguments: Sequence[Any]) -> Sequence[Any]:
        def work(connection: sa.Connection) -> Sequence[Any]:
            return connection.exec_driver_sql(statement, tuple(arguments)).fetchall()

        return self._database.retry(work, stop=self._stop)

    def _compressed(self, bodies: Sequence[bytes]) -> list[bytes]:
        """All in one call: each call is a wait for the interpreter's lock, which the crawl loop hardly ever lets go."""
        filled: list[bytes | bytearray | memoryview] = [body for body in bodies if body]
        packed = iter(self._compressor.multi_compress_to_buffer(filled)) if filled else iter(())
        return [next(packed).tobytes() if body else self._compressor.compress(b"") for body in bodies]

    def _arrays(self, pages: Sequence[CompletedPage]) -> list[Any]:
        numbered = list(enumerate(pages, start=1))
        versions = [(n, p.version) for n, p in numbered if p.version is not None]
        bodies = self._compressed([v.body for _, v in versions])
        extractions = [(n, *p.extraction) for n, p in numbered if p.extraction is not None]
        records = [(n, record) for n, p in numbered for record in p.records or ()]
        fetches = [(n, fetch) for n, p in numbered for fetch in p.fetches]
        return [
            *columns(
                16,
                (
                    (
                        *(p.token, p.key, p.host_id, p.state.value, p.reason, p.due_at, p.tries, p.is_sitemap),
                        *(p.is_checked, p.has_validators, storable(p.etag), storable(p.last_modified), p.is_noindex),
                        storable("\n".join(p.robots_tags) or None),
                        *(p.host_failed, p.redirected_to),
                    )
                    for p in pages
                ),
            ),
            *columns(
                12,
                (
                    (
                        *(n, v.body_hash, len(v.body), body, v.content_hash),
                        *(v.extractor_version, v.client, storable(v.content_type), storable(v.encoding)),
                        *(storable(v.final_url), storable(v.title), storable(v.markdown)),
                    )
                    for (n, v), body in zip(versions, bodies, strict=True)
                ),
            ),
            *columns(3, extractions),
            *columns(6, _links((n, link) for n, p in numbered for link in p.links)),
            [n for n, p in numbered if p.records is not None],
            *columns(6, ((n, r.record_id, r.record_type, r.key, r.data, r.data_hash) for n, r in records)),
            *columns(
                10,
                (
                    (
                        *(n, storable(f.url), f.started_at, round(f.elapsed * 1000), f.status, f.failure),
                        *(storable(f.detail), f.body_bytes, f.body_hash, f.http_version),
                    )
                    for n, f in fetches
                ),
            ),
        ]


def _links(links: Iterable[tuple[int, FoundLink]]) -> Iterable[tuple[Any, ...]]:
    for number, link in links:
        yield (
            number,
            link.page.key,
            storable(link.page.authority),
            storable(link.page.url),
            link.depth,
            link.is_sitemap,
        )


def _leases(rows: Sequence[Any], source_id: int) -> tuple[Lease, ...]:
    urls: dict[LeaseToken, list[ClaimedUrl]] = {}
    heads: dict[LeaseToken, Any] = {}
    for row in rows:
        heads.setdefault(row.o_token, row)
        urls.setdefault(row.o_token, []).append(_claimed(row))
    return tuple(
        Lease(
            token=token,
            source_id=source_id,
            host_id=head.o_host,
            authority=head.o_authority,
            expires_at=head.o_expires_at,
            first_starts=tuple(head.o_first_starts),
            period=head.o_period,
            delay=head.o_delay,
            host_failures=head.o_failures,
            urls=tuple(urls[token]),
        )
        for token, head in heads.items()
    )


def _claimed(row: Any) -> ClaimedUrl:
    version = None
    if row.o_content_hash is not None:
        version = KnownVersion(
            version_id=row.o_version,
            body_hash=bytes(row.o_body_hash),
            content_hash=bytes(row.o_content_hash),
            extractor_version=row.o_extractor,
        )
    return ClaimedUrl(
        key=UrlKey(row.o_key),
        url=row.o_url,
        is_sitemap=row.o_is_sitemap,
        depth=row.o_depth,
        tries=row.o_tries,
        expiries=row.o_expiries,
        last_fetched_at=row.o_last_fetched_at,
        outcome=UrlState(row.o_outcome) if row.o_outcome else None,
        outcome_reason=row.o_outcome_reason,
        etag=row.o_etag,
        last_modified=row.o_last_modified,
        version=version,
    )

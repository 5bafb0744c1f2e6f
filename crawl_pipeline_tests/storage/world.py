"""A small crawl world for the tests of the frontier: sources, open crawls, seeds, finished pages, and what must hold.

Everything goes through the stores; only `execute` and `patch` touch the database behind their backs.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

import sqlalchemy as sa

from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.domain.pages import (
    ClaimedUrl,
    CompletedPage,
    CrawlId,
    FetchLog,
    FoundLink,
    Lease,
    NewVersion,
    PageUrl,
    UrlKey,
)
from crawl_pipeline.domain.records import Record, make_record
from crawl_pipeline.storage import crawls, schema, sources
from crawl_pipeline.storage.arguments import call, columns
from crawl_pipeline.storage.crawls import Holder
from crawl_pipeline.storage.database import Database, driver_connection
from crawl_pipeline.storage.frontier import LEASE_FOR, Frontier
from crawl_pipeline.storage.sources import SourceRow

T = TypeVar("T")

FAR = datetime(2100, 1, 1, tzinfo=UTC)
EXTRACTOR = "rules-1"
HOLDER = Holder(run_id="run-1", machine="test", pid=1, pid_started=0.0)


class World:
    """One database with sources and open crawls."""

    def __init__(self, database: Database) -> None:
        self.database = database

    # Making it

    def source(
        self,
        name: str = "shop",
        *,
        slots: int = 2,
        min_delay: float = 0.0,
        adaptive: bool = True,
        max_urls: int = 1_000_000,
    ) -> int:
        """Put a contract in force; returns the source's id."""
        return sources.sync(
            self.database,
            SourceRow(
                source=name,
                contract="{}",
                contract_version="1",
                contract_file=f"{name}.yaml",
                slots=slots,
                min_delay=timedelta(seconds=min_delay),
                adaptive=adaptive,
                max_urls=max_urls,
            ),
        )

    def crawl(
        self,
        source_id: int,
        *,
        max_pages: int = 1_000_000,
        max_duration: timedelta = timedelta(hours=1),
        kind: str = "crawl",
        holder: Holder = HOLDER,
    ) -> CrawlId:
        """Open a crawl."""
        crawl_id = CrawlId(uuid4())
        with self.database.connection() as connection:
            assert crawls.insert(
                connection,
                crawl_id=crawl_id,
                source_id=source_id,
                kind=kind,
                contract_version="1",
                max_duration=max_duration,
                max_pages=max_pages,
                options={},
                holder=holder,
            )
        return crawl_id

    def frontier(
        self, source_id: int, crawl_id: CrawlId, worker: str = "w1", *, lease_for: timedelta = LEASE_FOR
    ) -> Frontier:
        """A worker's frontier."""
        return Frontier(
            self.database,
            source_id=source_id,
            crawl_id=crawl_id,
            run_id=HOLDER.run_id,
            worker_id=worker,
            lease_for=lease_for,
        )

    def opened(self, name: str = "shop", **options: Any) -> tuple[int, CrawlId, Frontier]:
        """A source with an open crawl and one worker."""
        source_id = self.source(name, **options)
        crawl_id = self.crawl(source_id)
        return source_id, crawl_id, self.frontier(source_id, crawl_id)

    def seed(self, source_id: int, *urls: str) -> int:
        """Make URLs known, due now."""
        return sources.discover(self.database, source_id, [page_url(url) for url in urls])

    # Looking at it

    def rows(self, statement: str, **parameters: Any) -> list[Any]:
        """What a query says."""
        with self.database.connection() as connection:
            return list(connection.execute(sa.text(statement), parameters).all())

    def scalar(self, statement: str, **parameters: Any) -> Any:
        """The one value of a query."""
        return self.rows(statement, **parameters)[0][0]

    def execute(self, statement: str, **parameters: Any) -> int:
        """Change something behind the stores' backs; returns how many rows."""
        with self.database.connection() as connection:
            return connection.execute(sa.text(statement), parameters).rowcount

    def url(self, url: str, source_id: int | None = None) -> Any:
        """One row of `urls`."""
        rows = self.rows(
            "SELECT * FROM urls WHERE url_key = :k AND (CAST(:s AS int) IS NULL OR source_id = :s)",
            k=page_url(url).key,
            s=source_id,
        )
        return rows[0]

    def states(self, source_id: int) -> dict[str, int]:
        """How many URLs are in which state, counted."""
        return dict(self.rows("SELECT state, count(*) FROM urls WHERE source_id = :s GROUP BY 1", s=source_id))

    def expire(self, lease: Lease) -> None:
        """Move a lease's end into the past."""
        assert self.execute(
            "UPDATE leases SET expires_at = clock_timestamp() - interval '1 s' WHERE lease_token = :t", t=lease.token
        )

    def wake_hosts(self) -> None:
        """Take every rest, turn and delay back, so that only locks and due times decide what is claimed next."""
        self.execute("UPDATE hosts SET next_request_at = 'epoch', blocked_until = 'epoch', yield_until = 'epoch'")
        self.execute("UPDATE queues SET not_before = 'epoch'")

    def block_host(self, host_id: int, until: datetime, reason: str) -> None:
        """Put a host to rest for every source."""
        self.scalar("SELECT block_host(:h, :until, :reason)", h=host_id, until=until, reason=reason)

    def merge(self, source_id: int, crawl_id: CrawlId, pages: dict[str, Sequence[Record]], version_id: int = 1) -> Any:
        """Call merge_records for pages (by URL) and what they yield now."""
        arguments = self.merge_arguments(source_id, crawl_id, pages, version_id)
        with self.database.connection() as connection:
            return connection.exec_driver_sql(call("merge_records", 12), arguments).one()

    def merge_arguments(
        self, source_id: int, crawl_id: CrawlId, pages: dict[str, Sequence[Record]], version_id: int = 1
    ) -> tuple[Any, ...]:
        """What merge_records is called with."""
        numbered = list(enumerate(pages.items(), start=1))
        return (
            source_id,
            crawl_id,
            datetime.now(UTC),
            *columns(3, ((n, page_url(url).key, version_id) for n, (url, _) in numbered)),
            *columns(
                6,
                (
                    (n, r.record_id, r.record_type, r.key, r.data, r.data_hash)
                    for n, (_, records) in numbered
                    for r in records
                ),
            ),
        )

    def patch(self, file: str, *changes: tuple[str, str], move: tuple[str, str] | None = None) -> None:
        """Put a changed copy of a file of SQL functions in force. Every change must find its text.

        `move`: a pattern, and the text before which the block that it matches is put.
        """
        text = (schema.SQL / "functions" / file).read_text()
        for old, new in changes:
            assert old in text, f"{file} no longer says: {old}"
            text = text.replace(old, new)
        if move is not None:
            text = move_block(text, *move)
        with self.database.connection() as connection:
            driver_connection(connection).execute(text.encode(), prepare=False)


def page_url(url: str) -> PageUrl:
    """An admitted URL; its canonical form is itself."""
    authority = url.split("/", 3)[2]
    return PageUrl(
        key=UrlKey(UUID(bytes=hashlib.sha256(url.encode()).digest()[:16])), url=url, canonical=url, authority=authority
    )


def links(*urls: str, depth: int = 1) -> tuple[FoundLink, ...]:
    """Links to discover."""
    return tuple(FoundLink(page=page_url(url), depth=depth) for url in urls)


def record(sku: str, price: int = 1, source: str = "shop") -> Record:
    """A product record."""
    return make_record(source, "product", ["sku"], {"sku": sku, "price": price})


def version(content: str) -> NewVersion:
    """A page version whose content is the text."""
    body = content.encode()
    digest = hashlib.sha256(body).digest()
    return NewVersion(
        body_hash=digest,
        body=body,
        content_hash=digest,
        extractor_version=EXTRACTOR,
        content_type="text/html",
        encoding="utf-8",
        title=content[:20],
        markdown=content,
        final_url="http://final/",
        client="test",
    )


def fetch_log(url: str) -> FetchLog:
    """One good exchange."""
    return FetchLog(
        url=url,
        started_at=datetime.now(UTC),
        elapsed=0.001,
        status=200,
        failure=None,
        detail=None,
        body_bytes=10,
        body_hash=None,
        http_version="1.1",
    )


def finished(lease: Lease, claimed: ClaimedUrl, state: UrlState = UrlState.ACCEPTED, **changes: Any) -> CompletedPage:
    """A page's effect: by default accepted, checked, due in the far future."""
    fields: dict[str, Any] = {
        "reason": None,
        "due_at": FAR,
        "tries": 0,
        "is_checked": state in (UrlState.ACCEPTED, UrlState.UNCHANGED, UrlState.REJECTED),
        "fetches": (fetch_log(claimed.url),),
        **changes,
    }
    return CompletedPage(
        token=lease.token,
        source_id=lease.source_id,
        host_id=lease.host_id,
        key=claimed.key,
        state=state,
        is_sitemap=claimed.is_sitemap,
        **fields,
    )


def claim(frontier: Frontier, want: int = 64, *, batch: int = 64, share: int = 64, is_idle: bool = True) -> list[Lease]:
    """Claim, as a worker that holds nothing unless said otherwise."""
    return list(frontier.claim(want=want, batch=batch, share=share, is_idle=is_idle))


def claimed_urls(leases: Iterable[Lease]) -> list[str]:
    """The URLs of leases, in their order."""
    return [url.url for lease in leases for url in lease.urls]


def finish_all(frontier: Frontier, leases: Iterable[Lease], **changes: Any) -> None:
    """Complete every page of the leases."""
    for lease in leases:
        completion = frontier.complete([finished(lease, url, **changes) for url in lease.urls])
        assert not completion.lost


_FILL_HOSTS = """
    INSERT INTO hosts (authority) SELECT 'h' || n FROM generate_series(1, CAST(:h AS int)) n ON CONFLICT DO NOTHING
"""
_FILL_URLS = """
    INSERT INTO urls (source_id, url_key, host_id, url, due_at, depth)
      SELECT :s, CAST(md5(:salt || n) AS uuid), h.host_id, 'http://h' || k || '/' || :salt || '/category/product-' || n,
             now() - interval '1 day' + n * interval '1 ms', 3
        FROM (SELECT n, 1 + n % :h AS k FROM generate_series(CAST(:first AS int), CAST(:last AS int)) n) x
        JOIN hosts h ON h.authority = 'h' || k
"""
_FILL_QUEUES = """
    INSERT INTO queues AS q (source_id, host_id, lane, next_due_at)
      SELECT source_id, host_id, 0, min(due_at) FROM urls WHERE source_id = :s AND lease_token IS NULL GROUP BY 1, 2
      ON CONFLICT (source_id, host_id, lane) DO UPDATE SET next_due_at = least(q.next_due_at, excluded.next_due_at)
"""


def fill(database: Database, source_id: int, *, urls: int, hosts: int) -> None:
    """Many due URLs at once, beside the stores: spread evenly over hosts `h1`, …; statistics are made."""
    salt, step = str(uuid4()), 25_000

    def run(statement: str, **parameters: object) -> None:
        with database.connection() as connection:
            connection.execute(sa.text(statement), parameters)

    run(_FILL_HOSTS, h=hosts)
    for first in range(1, urls + 1, step):
        run(_FILL_URLS, s=source_id, h=hosts, salt=salt, first=first, last=min(urls, first + step - 1))
    run(_FILL_QUEUES, s=source_id)
    run("SELECT fold_counters()")
    run("ANALYZE urls, hosts, queues")


class InThread(threading.Thread):
    """Runs one call beside the test; `result` waits for it and raises what it raised."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._value: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Run the call."""
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error

    def result(self, within: float = 20.0) -> Any:
        """What the call returned."""
        self.join(within)
        assert not self.is_alive(), f"still running after {within:g} s"
        if self._error is not None:
            raise self._error
        return self._value


def move_block(text: str, block: str, to: str) -> str:
    """Move what the pattern matches to before another text."""
    match = re.search(block, text, re.DOTALL)
    assert match is not None, block
    without = text.replace(match[0], "")
    assert to in without, to
    return without.replace(to, match[0] + to)

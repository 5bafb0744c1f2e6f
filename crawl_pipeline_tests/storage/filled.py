"""A source filled through the stores, as a crawl fills it: every test says what its pages did, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from crawl_pipeline.domain.contract import Contract, parse_contract
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
)
from crawl_pipeline.domain.records import make_record
from crawl_pipeline.domain.urls import Canonicalizer
from crawl_pipeline.pipeline.contract_files import LoadedContract
from crawl_pipeline.pipeline.crawl import sync_source
from crawl_pipeline.storage import crawls, sources
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.frontier import Frontier

SITE = "http://shop.test"
CONTRACT: Mapping[str, Any] = {
    "source": "shop",
    "owner": "team:data",
    "seeds": [f"{SITE}/list/0"],
    "scope": {"include": ["/list/**", "/product/**"], "exclude": ["/product/secret/**"]},
    "politeness": {"slots": 4, "min_delay": "0s", "user_agent": "shop-bot/1.0 (+https://example.com/bot)"},
    "freshness": {"window": "24h", "rules": [{"match": "/list/**", "window": "1h"}]},
    "records": [
        {
            "type": "product",
            "match": ["/product/**"],
            "key": ["sku"],
            "fields": {
                "sku": {"css": ".sku", "required": True},
                "price": {"css": ".price", "type": "decimal"},
                "in_stock": {"css": ".stock", "type": "bool"},
                "rating": {"css": ".rating", "type": "float"},
                "reviews": {"css": ".reviews", "type": "int"},
                "since": {"css": ".since", "type": "date"},
                "image": {"css": "img", "attr": "src", "type": "url"},
            },
        }
    ],
}
ALL_FIELDS: Mapping[str, Any] = {
    "sku": "A-1",
    "price": "19.90",
    "in_stock": True,
    "rating": 4.5,
    "reviews": 12,
    "since": "2024-02-29",
    "image": f"{SITE}/a.jpg",
}


@dataclass(slots=True)
class FilledSource:
    """A source with an open crawl, whose pages a test claims and completes."""

    database: Database
    contract: Contract
    source_id: int
    crawl_id: CrawlId = field(init=False)
    frontier: Frontier = field(init=False)
    leases: dict[str, tuple[Lease, ClaimedUrl]] = field(default_factory=dict)

    def open(self) -> None:
        """Open a crawl for `run-1`, with one worker that has started some requests."""
        self.crawl_id = CrawlId(uuid4())
        worker_id = f"worker-{self.crawl_id}"
        with self.database.connection() as connection:
            crawls.insert(
                connection,
                crawl_id=self.crawl_id,
                source_id=self.source_id,
                kind="crawl",
                contract_version=self.contract.version,
                max_duration=timedelta(hours=1),
                max_pages=1000,
                options={},
                holder=crawls.Holder(run_id="run-1", machine="here", pid=4_000_000, pid_started=1.0),
            )
            crawls.start_worker(connection, worker_id, self.crawl_id, "here", 4_000_001)
            crawls.beat_worker(connection, worker_id, requests=7, other_requests=2)
        self.frontier = Frontier(
            self.database, source_id=self.source_id, crawl_id=self.crawl_id, run_id="run-1", worker_id=worker_id
        )

    def page(self, path: str) -> PageUrl:
        """The URL at a path of the site."""
        page = Canonicalizer(self.contract.urls).page_url(SITE + path)
        assert isinstance(page, PageUrl)
        return page

    def discover(self, *paths: str, is_sitemap: bool = False) -> None:
        """Add URLs: queued, due now."""
        sources.discover(self.database, self.source_id, [self.page(path) for path in paths], is_sitemap=is_sitemap)

    def claim(self) -> None:
        """Lease all that is due."""
        for lease in self.frontier.claim(want=1000, batch=1000, share=4, is_idle=True):
            self.leases |= {claimed.url: (lease, claimed) for claimed in lease.urls}

    def complete(
        self,
        path: str,
        state: UrlState = UrlState.ACCEPTED,
        *,
        reason: str | None = None,
        records: Sequence[Mapping[str, Any]] | None = None,
        record_type: str = "product",
        text: str | None = None,
        title: str = "A page",
        due_in: timedelta | None = timedelta(hours=20),
        tries: int = 0,
        links: Sequence[str] = (),
        detail: str | None = None,
        status: int | None = 200,
        is_sitemap: bool = False,
    ) -> None:
        """End a claimed page's visit: a new version if it is accepted, `records` as what it yields."""
        lease, claimed = self.leases.pop(self.page(path).url)
        now = datetime.now(UTC)
        body = (text or path).encode()
        version = None
        if state is UrlState.ACCEPTED and not is_sitemap:
            version = NewVersion(
                body_hash=hashlib.sha256(body).digest(),
                body=body,
                content_hash=hashlib.sha256(body).digest(),
                extractor_version="x1",
                content_type="text/html",
                encoding="utf-8",
                title=title,
                markdown=f"# {text or path}",
                final_url=SITE + path,
                client="libcurl",
            )
        done = self.frontier.complete(
            [
                CompletedPage(
                    token=lease.token,
                    source_id=self.source_id,
                    host_id=lease.host_id,
                    key=claimed.key,
                    state=state,
                    reason=reason,
                    due_at=None if due_in is None else now + due_in,
                    tries=tries,
                    is_checked=state in (UrlState.ACCEPTED, UrlState.UNCHANGED, UrlState.REJECTED),
                    is_sitemap=is_sitemap,
                    fetches=(
                        FetchLog(
                            url=SITE + path,
                            started_at=now,
                            elapsed=0.012,
                            status=status,
                            failure=reason,
                            detail=detail,
                            body_bytes=len(body),
                            body_hash=None,
                            http_version="1.1",
                        ),
                    ),
                    version=version,
                    links=tuple(FoundLink(page=self.page(link), depth=claimed.depth + 1) for link in links),
                    records=None
                    if records is None
                    else tuple(make_record("shop", record_type, ["sku"], data) for data in records),
                )
            ]
        )
        assert not done.lost

    def accept_products(self, *rows: Mapping[str, Any]) -> None:
        """One accepted page for each record, at `/product/SKU`."""
        paths = [f"/product/{row['sku']}" for row in rows]
        self.discover(*paths)
        self.claim()
        for path, row in zip(paths, rows, strict=True):
            self.complete(path, records=[row])

    def close(self, stop_reason: str = "finished") -> None:
        """End the crawl; what is still leased goes back."""
        self.frontier.release([lease.token for lease, _ in self.leases.values()])
        self.leases.clear()
        with self.database.connection() as connection:
            crawls.close(connection, self.crawl_id, stop_reason)

    def execute(self, statement: str, **parameters: Any) -> None:
        """Move rows in time, or what else a test needs of the past."""
        with self.database.connection() as connection:
            connection.execute(sa.text(statement), {"s": self.source_id, "c": self.crawl_id, **parameters})


def fill(database: Database, **changes: Any) -> FilledSource:
    """The source `shop` in force, with an open crawl that a dead process holds; `changes` are keys of its contract."""
    contract = parse_contract({**CONTRACT, **changes}, file="shop.yaml")
    source_id = sync_source(database, LoadedContract(contract=contract, file=Path("shop.yaml"), text=""))
    filled = FilledSource(database, contract, source_id)
    filled.open()
    return filled

"""Sitemaps in the frontier: which are visited, and what their contents become.

Nothing is ever removed for what a sitemap says or leaves out: it adds URLs, and makes changed pages due.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.globs import host_matches
from crawl_pipeline.domain.pages import Exchange, FoundLink, PageUrl, UrlKey
from crawl_pipeline.domain.scope import Admission
from crawl_pipeline.domain.urls import Canonicalizer, origin_of
from crawl_pipeline.parsing.sitemaps import parse_sitemap
from crawl_pipeline.pipeline.database_thread import DatabaseThread
from crawl_pipeline.pipeline.known_links import KnownLinks
from crawl_pipeline.pipeline.visit import Visit
from crawl_pipeline.storage import sources
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.frontier import Frontier

MAX_URLS = 50_000  # of one sitemap (sitemaps.org)
MAX_NESTING = 3
MAX_SITEMAPS = 10_000  # of one source
_BATCH = 5_000  # pages of one statement that makes them due

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What one sitemap names: pages and sitemaps that are not known yet, and when pages last changed."""

    pages: tuple[FoundLink, ...]
    sitemaps: tuple[FoundLink, ...]
    changed: tuple[tuple[UrlKey, datetime], ...]


class SitemapVisits:
    """Where `sitemaps: auto`, those that the seeds' robots.txt name are visited, else /sitemap.xml."""

    def __init__(
        self,
        database: Database,
        thread: DatabaseThread,
        contract: Contract,
        admission: Admission,
        known_links: KnownLinks,
        source_id: int,
        frontier: Frontier,
    ) -> None:
        self._database = database
        self._frontier = frontier
        self._least = contract.freshness.min
        self._thread = thread
        self._known_links = known_links
        self._source_id = source_id
        self._hosts = contract.scope.hosts
        self._canonicalizer = Canonicalizer(contract.urls)
        self._admission = admission
        self._origins = seed_origins(contract) if contract.sitemaps == "auto" else set()

    def robots_known(self, origin: str, named: Sequence[str] | None) -> None:
        """An origin's robots.txt names these sitemaps (None: it is not known yet): they join the frontier, once."""
        if named is None or origin not in self._origins:
            return
        self._origins.discard(origin)
        pages = self._on_hosts(named or (origin + "/sitemap.xml",), origin + "/")
        if pages:
            self._thread.ask(
                lambda: sources.discover(self._database, self._source_id, pages, is_sitemap=True), lambda _: None
            )

    def read(self, visit: Visit, exchange: Exchange) -> Listing:
        """The pages and further sitemaps that a sitemap names, admitted as links are."""
        contents = parse_sitemap(exchange.body, limit=MAX_URLS)
        pages: dict[UrlKey, PageUrl] = {}
        changed: dict[UrlKey, datetime] = {}
        for url, lastmod in contents.urls:
            page = self._admission.admit(url, visit.url, 0)
            if isinstance(page, PageUrl):
                pages.setdefault(page.key, page)
                if lastmod is not None:
                    changed[page.key] = max(lastmod, changed.get(page.key, lastmod))
        nested = self._on_hosts(contents.sitemaps, visit.url) if visit.claimed.depth < MAX_NESTING else []
        return Listing(
            pages=self._known_links.unknown(pages.values(), 0),
            sitemaps=self._known_links.unknown(nested, visit.claimed.depth + 1, is_sitemap=True),
            changed=tuple(changed.items()),
        )

    def store(self, listing: Listing, then: Callable[[tuple[FoundLink, ...]], None]) -> None:
        """Make changed pages due, in bounded batches; `then` takes the links to discover.

        Before the sitemap is completed, so that the crawl cannot end in between; safe to repeat after a kill.
        """
        for start in range(0, len(listing.changed), _BATCH):
            batch = listing.changed[start : start + _BATCH]
            self._thread.ask(partial(self._frontier.make_changed_due, batch, self._least), lambda _: None)
        if listing.sitemaps:
            self._thread.ask(
                self._frontier.sitemap_count, lambda known: then(listing.pages + _within(listing.sitemaps, known))
            )
        else:
            self._thread.ask(lambda: None, lambda _: then(listing.pages))  # after the batches

    def _on_hosts(self, urls: Sequence[str], base: str) -> list[PageUrl]:
        found = (self._canonicalizer.page_url(url, base) for url in urls)
        return [
            page
            for page in found
            if isinstance(page, PageUrl) and any(host_matches(host, page.authority) for host in self._hosts)
        ]


def _within(found: tuple[FoundLink, ...], known: int) -> tuple[FoundLink, ...]:
    room = max(0, MAX_SITEMAPS - known)
    if len(found) > room:
        log.warning("sitemaps_beyond_limit", extra={"limit": MAX_SITEMAPS, "left_out": len(found) - room})
    return found[:room]


def seed_origins(contract: Contract) -> set[str]:
    """The origins of a contract's seeds."""
    canonicalizer = Canonicalizer(contract.urls)
    pages = (canonicalizer.page_url(seed) for seed in contract.seeds)
    return {origin_of(page.url) for page in pages if isinstance(page, PageUrl)}

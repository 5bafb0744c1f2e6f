"""Sitemaps in the frontier: which are visited, and what their contents become."""

from __future__ import annotations

from collections.abc import Sequence

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.globs import host_matches
from crawl_pipeline.domain.pages import Exchange, FoundLink, PageUrl
from crawl_pipeline.domain.scope import Admission
from crawl_pipeline.domain.urls import Canonicalizer, origin_of
from crawl_pipeline.parsing.sitemaps import parse_sitemap
from crawl_pipeline.pipeline.database_thread import DatabaseThread
from crawl_pipeline.pipeline.known_links import KnownLinks
from crawl_pipeline.pipeline.visit import Visit
from crawl_pipeline.storage import sources
from crawl_pipeline.storage.database import Database

MAX_URLS = 50_000  # of one sitemap (sitemaps.org)
MAX_NESTING = 3


class SitemapVisits:
    """Where `sitemaps: auto`, those that the seeds' robots.txt name are visited, else /sitemap.xml."""

    def __init__(
        self,
        database: Database,
        thread: DatabaseThread,
        contract: Contract,
        known_links: KnownLinks,
        source_id: int,
    ) -> None:
        self._database = database
        self._thread = thread
        self._known_links = known_links
        self._source_id = source_id
        self._hosts = contract.scope.hosts
        self._canonicalizer = Canonicalizer(contract.urls)
        self._admission = Admission(contract)
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

    def links(self, visit: Visit, exchange: Exchange) -> tuple[FoundLink, ...]:
        """The pages and further sitemaps that a sitemap names and that are not known yet, admitted as links are."""
        contents = parse_sitemap(exchange.body, limit=MAX_URLS)
        pages, _ = self._admission.admit_all((url for url, _ in contents.urls), visit.url, 0)
        found = self._known_links.unknown(pages, 0)
        if visit.claimed.depth < MAX_NESTING:
            nested = self._on_hosts(contents.sitemaps, visit.url)
            found += self._known_links.unknown(nested, visit.claimed.depth + 1, is_sitemap=True)
        return found

    def _on_hosts(self, urls: Sequence[str], base: str) -> list[PageUrl]:
        found = (self._canonicalizer.page_url(url, base) for url in urls)
        return [
            page
            for page in found
            if isinstance(page, PageUrl) and any(host_matches(host, page.authority) for host in self._hosts)
        ]


def seed_origins(contract: Contract) -> set[str]:
    """The origins of a contract's seeds."""
    canonicalizer = Canonicalizer(contract.urls)
    pages = (canonicalizer.page_url(seed) for seed in contract.seeds)
    return {origin_of(page.url) for page in pages if isinstance(page, PageUrl)}

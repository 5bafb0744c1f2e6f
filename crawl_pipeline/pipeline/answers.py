"""From an answer to a completed page: what it says of the page, and of its host.

Reads and compares contents; states and due times are `decide`'s. Waits for nothing: a stored body that must be compared
is asked for, and the page goes on when it comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.outcomes import Reason, UrlState
from crawl_pipeline.domain.pages import CompletedPage, Exchange, FoundLink, KnownVersion
from crawl_pipeline.domain.urls import canonical_path
from crawl_pipeline.parsing.extraction import PageTimeout
from crawl_pipeline.pipeline.database_thread import DatabaseThread
from crawl_pipeline.pipeline.decide import Decider, Verdict, is_host_trouble, judge_exchange, redirected
from crawl_pipeline.pipeline.known_links import KnownLinks
from crawl_pipeline.pipeline.leases import DatabaseClock
from crawl_pipeline.pipeline.reading import PageReader, Reading, body_hash, robots_tags, with_content
from crawl_pipeline.pipeline.sitemap_visits import SitemapVisits
from crawl_pipeline.pipeline.soft_404_gate import Soft404Gate
from crawl_pipeline.pipeline.visit import Visit
from crawl_pipeline.storage import pages as stored_pages
from crawl_pipeline.storage.database import Database


class Answers:
    """Judges answers in the crawl loop's thread. Each page goes to `hand_over` exactly once."""

    def __init__(
        self,
        database: Database,
        thread: DatabaseThread,
        contract: Contract,
        clock: DatabaseClock,
        *,
        decider: Decider,
        reader: PageReader,
        sitemaps: SitemapVisits,
        known_links: KnownLinks,
        target_visit: Callable[[Visit], Visit],
        adopt: Callable[[Visit, Visit, Callable[[bool], None]], None],
        soft_404s: Soft404Gate,
        hand_over: Callable[[Visit, CompletedPage], None],
    ) -> None:
        self._database = database
        self._thread = thread
        self._client = contract.fetch.client
        self._clock = clock
        self._decider = decider
        self._reader = reader
        self._sitemaps = sitemaps
        self._known_links = known_links
        self._target_visit = target_visit
        self._adopt = adopt
        self._soft_404s = soft_404s
        self._hand_over = hand_over

    def take(self, visit: Visit, exchange: Exchange, verdict: Verdict | None) -> None:
        """Judge the last hop of a visit (`verdict`: what a redirect was judged already)."""
        if visit.probe is not None:
            self._soft_404s.answered(visit, exchange)
            return
        if verdict is None:
            verdict = judge_exchange(exchange, was_conditional=visit.is_conditional)
            if visit.target is not None and verdict.state is not UrlState.QUEUED and not visit.claimed.is_sitemap:
                self._take_for_target(visit, exchange)
                return
        if verdict.state is None and not visit.claimed.is_sitemap:
            self._read(visit, exchange)
            return
        visit.note(exchange)
        if verdict.state is None:
            self._read_sitemap(visit, exchange)
        else:
            self.decide(visit, verdict)

    def disallow(self, visit: Visit) -> None:
        """robots.txt disallows what a visit was to request next: a redirect's target, or a made-up path."""
        if visit.probe is not None:
            self._soft_404s.answered(visit, None)
            return
        detail = f"to {visit.url[:300]}: robots.txt disallows it"
        self.decide(visit, Verdict(state=UrlState.REJECTED, reason=Reason.REDIRECT_OUT, detail=detail))

    def is_host_trouble(self, exchange: Exchange, verdict: Verdict | None) -> bool:
        """Whether an answer speaks against its host."""
        return verdict is None and is_host_trouble(judge_exchange(exchange, was_conditional=True))

    def decide(self, visit: Visit, verdict: Verdict, links: tuple[FoundLink, ...] = ()) -> None:
        """Hand over a page whose content is not looked at."""
        if verdict.leads_to is not None:
            depth = visit.claimed.depth + (verdict.reason is Reason.REDIRECT_OUT)
            links = self._known_links.unknown((verdict.leads_to,), depth)
        self._hand(visit, replace(self._decided(visit, verdict), links=links))

    def _take_for_target(self, visit: Visit, exchange: Exchange) -> None:
        """Redirects ended at another page: what came is that page's, where nobody has visited it yet."""
        target = self._target_visit(visit)
        assert target.page is not None
        verdict = redirected(target.page)

        def decide(is_adopted: bool) -> None:
            if is_adopted:
                # The target first, so that its records are stored when it takes over those of the page that led to it.
                target.led_by = lambda: self.decide(visit, verdict)
                self.take(target, exchange, None)
            else:
                visit.note(exchange)
                self.decide(visit, verdict)

        self._adopt(visit, target, decide)

    def _read(self, visit: Visit, exchange: Exchange) -> None:
        assert visit.page is not None
        claimed, token = visit.claimed, visit.slot.held.token
        tags = robots_tags(exchange)
        reading = self._reader.read(
            exchange.body, exchange.header("content-type"), visit.url, visit.page, token, claimed.depth, tags
        )
        hashed = body_hash(exchange.body)
        visit.note(exchange, hashed)

        def judged(soft_404: str | None) -> None:
            if soft_404 is not None:
                verdict = Verdict(state=UrlState.REJECTED, reason=Reason.SOFT_404, detail=soft_404)
                self.decide(visit, verdict)
            elif reading.verdict is not None:
                self.decide(visit, reading.verdict, self._known_links.unknown(reading.links, claimed.depth + 1))
            else:
                self._take_content(visit, exchange, reading, hashed)

        self._soft_404s.look(visit, exchange.request.url, reading, judged)

    def _take_content(self, visit: Visit, exchange: Exchange, reading: Reading, hashed: bytes) -> None:
        known = visit.claimed.version
        if known is None:
            self._complete(visit, exchange, reading, hashed, None)
        elif known.body_hash == hashed:
            self._complete(visit, exchange, reading, hashed, reading.content_hash)
        elif known.extractor_version == self._reader.extractor_version:
            self._complete(visit, exchange, reading, hashed, known.content_hash)
        else:
            self._compare(visit, exchange, reading, hashed, known)

    def _read_sitemap(self, visit: Visit, exchange: Exchange) -> None:
        try:
            with self._reader.limited(visit.slot.held.token, visit.claimed.key):
                listing = self._sitemaps.read(visit, exchange)
        except PageTimeout:
            detail = "the sitemap was not read within fetch.page_timeout"
            self.decide(visit, Verdict(state=UrlState.QUARANTINED, reason=Reason.TIMEOUT, detail=detail))
            return
        accepted = Verdict(state=UrlState.ACCEPTED)
        self._sitemaps.store(listing, lambda links: self.decide(visit, accepted, links))

    def _compare(self, visit: Visit, exchange: Exchange, reading: Reading, hashed: bytes, known: KnownVersion) -> None:
        """Other rules read the stored version: its hash is made again from its body, so that changed rules alone
        never make a version."""

        def compare(stored: tuple[bytes, str | None, str] | None) -> None:
            assert visit.page is not None
            known_hash = None
            if stored is not None:
                known_hash = self._reader.content_hash(*stored, visit.page, visit.slot.held.token)
            self._complete(visit, exchange, reading, hashed, known_hash)

        self._thread.ask(lambda: stored_pages.body(self._database, known.version_id), compare)

    def _complete(
        self, visit: Visit, exchange: Exchange, reading: Reading, hashed: bytes, known_hash: bytes | None
    ) -> None:
        is_same = known_hash == reading.content_hash
        page = self._decided(visit, Verdict(state=UrlState.UNCHANGED if is_same else UrlState.ACCEPTED))
        page = with_content(
            page,
            reading,
            exchange,
            hashed=hashed,
            known=visit.claimed.version if is_same else None,
            is_back=visit.claimed.outcome is UrlState.REJECTED,
            extractor_version=self._reader.extractor_version,
            client=self._client,
            links=self._known_links.unknown(reading.links, visit.claimed.depth + 1),
        )
        self._hand(visit, page)

    def _hand(self, visit: Visit, page: CompletedPage) -> None:
        self._hand_over(visit, page)
        if visit.led_by is not None:
            visit.led_by()

    def _decided(self, visit: Visit, verdict: Verdict) -> CompletedPage:
        held = visit.slot.held
        return self._decider.decide(
            held.lease,
            visit.claimed,
            verdict,
            now=self._clock.now(),
            path=canonical_path(visit.page.canonical if visit.page else visit.claimed.url),
            fetches=tuple(visit.fetches),
            host_failures=held.failures,
        )

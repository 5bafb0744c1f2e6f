"""Reads one page: parse once, extract, judge, find links; really stopped after `page_timeout`.

The page is named in the worker's hand meanwhile, so that what kills or stalls the process is paid by this page alone.
"""

from __future__ import annotations

import hashlib
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.directives import NOFOLLOW, NOINDEX, header_directives
from crawl_pipeline.domain.outcomes import Reason, UrlState
from crawl_pipeline.domain.pages import (
    CompletedPage,
    Exchange,
    FoundLink,
    KnownVersion,
    LeaseToken,
    NewVersion,
    PageUrl,
    UrlKey,
)
from crawl_pipeline.domain.records import Record
from crawl_pipeline.domain.robots import product_token
from crawl_pipeline.domain.scope import Admission
from crawl_pipeline.parsing.acceptance import judge
from crawl_pipeline.parsing.content import markdown
from crawl_pipeline.parsing.document import Document, parse
from crawl_pipeline.parsing.extraction import Extractor, PageTimeout
from crawl_pipeline.parsing.links import links
from crawl_pipeline.parsing.meaning import VisibleText
from crawl_pipeline.pipeline.decide import Verdict
from crawl_pipeline.pipeline.hand import Hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a page says. `verdict` is None where the page meets its contract."""

    verdict: Verdict | None
    is_noindex: bool = False
    content_hash: bytes = b""
    records: tuple[Record, ...] = ()
    links: tuple[PageUrl, ...] = ()  # admitted, each once, without the page itself
    title: str | None = None
    encoding: str | None = None
    document: Document | None = None
    text: VisibleText | None = None  # None where the page could not be read in time

    def markdown(self) -> str:
        """The main content as Markdown; made only where a version is stored."""
        return markdown(self.document) if self.document is not None else ""


class PageReader:
    """Reads pages by a contract's rules. The time limit is a signal, so it holds in a process's main thread only."""

    def __init__(self, contract: Contract, hand: Hand | None) -> None:
        self._contract = contract
        self._extractor = Extractor(contract)
        self.admission = Admission(contract)
        self._hand = hand
        self._token = product_token(contract.politeness.user_agent)
        self._timeout = contract.fetch.page_timeout.total_seconds()
        self._is_armed = False
        self._is_timed = threading.current_thread() is threading.main_thread()
        if self._is_timed:
            signal.signal(signal.SIGALRM, self._time_is_up)

    @property
    def extractor_version(self) -> str:
        """The version of rules, parser and hash by which pages are read."""
        return self._extractor.version

    def read(
        self,
        body: bytes,
        content_type: str | None,
        url: str,
        page: PageUrl,
        token: LeaseToken,
        depth: int,
        robots_tags: Sequence[str],
    ) -> Reading:
        """Read a page: never raises for what is in it, never takes longer than `page_timeout`."""
        try:
            with self.limited(token, page.key):
                document = parse(body, content_type=content_type, url=url)
                asked = document.directives(self._token) | header_directives(robots_tags, self._token)
                if NOINDEX in asked and self._contract.accept.noindex == "reject":
                    detail = "accept.noindex: the page, or its X-Robots-Tag, asks not to be indexed"
                    verdict = Verdict(state=UrlState.REJECTED, reason=Reason.NOINDEX, detail=detail)
                    return Reading(verdict=verdict, links=self._links(document, page, depth, asked))
                return replace(self._read(document, page, depth, asked), is_noindex=NOINDEX in asked)
        except PageTimeout:
            limit = f"{self._timeout:g} s"
            return Reading(
                verdict=Verdict(
                    state=UrlState.QUARANTINED,
                    reason=Reason.TIMEOUT,
                    detail=f"not read within fetch.page_timeout ({limit})",
                )
            )

    def content_hash(
        self, body: bytes, content_type: str | None, url: str, page: PageUrl, token: LeaseToken
    ) -> bytes | None:
        """The content hash of a stored body under today's rules; None when it cannot be read in time."""
        try:
            with self.limited(token, page.key):
                document = parse(body, content_type=content_type, url=url)
                return self._extractor.extract(document, page).content_hash
        except PageTimeout:
            return None

    def text(self, exchange: Exchange, page: PageUrl, token: LeaseToken) -> VisibleText | None:
        """What an answer that is no page of its own says; None when it cannot be read in time."""
        try:
            with self.limited(token, page.key):
                url = exchange.request.url
                return self._extractor.text(parse(exchange.body, content_type=exchange.header("content-type"), url=url))
        except PageTimeout:
            return None

    def _read(self, document: Document, page: PageUrl, depth: int, asked: frozenset[str]) -> Reading:
        extraction = self._extractor.extract(document, page)
        shortfall = judge(extraction, document, self._contract)
        if shortfall is not None:
            state = UrlState.QUARANTINED if shortfall.reason is Reason.KEY_CONFLICT else UrlState.REJECTED
            verdict = Verdict(state=state, reason=shortfall.reason, detail=shortfall.detail)
            return Reading(verdict=verdict, content_hash=extraction.content_hash, text=extraction.text)
        return Reading(
            verdict=None,
            content_hash=extraction.content_hash,
            records=extraction.records,
            links=self._links(document, page, depth, asked),
            title=document.title,
            encoding=document.encoding,
            document=document,
            text=extraction.text,
        )

    def _links(self, document: Document, page: PageUrl, depth: int, asked: frozenset[str]) -> tuple[PageUrl, ...]:
        follow_nofollow = self._contract.scope.follow_nofollow
        if NOFOLLOW in asked and not follow_nofollow:
            return ()
        hrefs, _ = links(document, follow_nofollow=follow_nofollow, limit=self._contract.limits.max_links_per_page)
        found, _ = self.admission.admit_all(hrefs, document.base_url, depth + 1)
        return tuple([link for link in found if link.canonical != page.canonical])

    @contextmanager
    def limited(self, token: LeaseToken, key: UrlKey) -> Iterator[None]:
        """Name a page in hand while it is worked on; PageTimeout is raised in the block after `page_timeout`."""
        if self._hand is not None:
            self._hand.take(token, key)
        self._is_armed = True
        if self._is_timed:
            signal.setitimer(signal.ITIMER_REAL, self._timeout, 0.1)  # again, where an extractor swallowed the first
        is_survived = False
        try:
            yield
            is_survived = True
        except PageTimeout:
            is_survived = True
            raise
        finally:
            self._is_armed = False
            if self._is_timed:
                signal.setitimer(signal.ITIMER_REAL, 0)
            if self._hand is not None and is_survived:  # whatever else is raised ends the process: the page pays
                self._hand.drop()

    def _time_is_up(self, _signal: int, _frame: FrameType | None) -> None:
        if self._is_armed:
            raise PageTimeout


def robots_tags(exchange: Exchange) -> tuple[str, ...]:
    """The X-Robots-Tag headers of an answer."""
    return tuple(value for name, value in exchange.headers if name == "x-robots-tag")


def body_hash(body: bytes) -> bytes:
    """The name under which a body is stored: SHA-256 of its bytes."""
    return hashlib.sha256(body).digest()


def with_content(
    page: CompletedPage,
    reading: Reading,
    exchange: Exchange,
    *,
    hashed: bytes,
    known: KnownVersion | None,
    is_back: bool,
    extractor_version: str,
    client: str,
    links: tuple[FoundLink, ...],
) -> CompletedPage:
    """Complete a decided page with what was read. `known`: the current version, where its content is equal; `is_back`:
    the last answer was a rejection.

    Equal content makes no version, and touches records only where other rules read the stored version, or where the
    page may have lost them (it was gone, or led elsewhere).
    """
    page = replace(
        page,
        has_validators=True,
        etag=exchange.header("etag"),
        last_modified=exchange.header("last-modified"),
        is_noindex=reading.is_noindex,
        robots_tags=robots_tags(exchange),
        links=links,
    )
    if known is not None:
        if known.extractor_version == extractor_version:
            return replace(page, records=reading.records) if is_back else page
        return replace(page, extraction=(extractor_version, reading.content_hash), records=reading.records)
    version = NewVersion(
        body_hash=hashed,
        body=exchange.body,
        content_hash=reading.content_hash,
        extractor_version=extractor_version,
        content_type=exchange.header("content-type"),
        encoding=reading.encoding,
        title=reading.title,
        markdown=reading.markdown(),
        final_url=exchange.request.url,
        client=client,
    )
    return replace(page, version=version, records=reading.records)

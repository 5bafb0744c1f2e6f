"""One visit to a page: its hops, from the claim to what is handed to the committer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.outcomes import Reason, UrlState
from crawl_pipeline.domain.pages import ClaimedUrl, Exchange, FetchLog, FetchRequest, LeaseToken, PageUrl
from crawl_pipeline.domain.robots import LONGEST_ROBOTS
from crawl_pipeline.domain.scope import Scope
from crawl_pipeline.domain.urls import Canonicalizer, UrlRefusal, origin_of
from crawl_pipeline.parsing.sitemaps import MOST_BYTES as MOST_SITEMAP_BYTES
from crawl_pipeline.pipeline.contract_files import secret_headers
from crawl_pipeline.pipeline.decide import Verdict, log_of
from crawl_pipeline.pipeline.leases import Slot

MAX_REDIRECTS = 10
MAX_ROBOTS_REDIRECTS = 5
_REDIRECTS = {301, 302, 303, 307, 308}


class Visit:
    """A claimed URL in a slot. `url` is the hop that is requested next or was requested last, `target` its identity
    where it is another page than the claimed one."""

    __slots__ = ("claimed", "fetches", "hops", "is_unasked", "led_by", "page", "probe", "slot", "target", "url")

    def __init__(self, slot: Slot, claimed: ClaimedUrl, page: PageUrl | None) -> None:
        self.slot = slot
        self.claimed = claimed
        self.page = page
        self.url = claimed.url
        self.target: PageUrl | None = None
        self.probe: str | None = None  # the made-up URL that the host is asked for, instead of a hop of the page
        self.hops = {claimed.url}
        self.fetches: list[FetchLog] = []
        self.led_by: Callable[[], None] | None = None  # hands over the page that redirected to this one, after it
        self.is_unasked = False  # judged without a request: it takes no slot

    @property
    def is_conditional(self) -> bool:
        """Whether the request of the first hop may be answered by 304.

        Not after a rejection: the page may have lost its records, which only its content brings back.
        """
        claimed = self.claimed
        is_known = claimed.version is not None and claimed.outcome is not UrlState.REJECTED
        is_first = len(self.hops) == 1 and self.probe is None
        return is_known and is_first and bool(claimed.etag or claimed.last_modified)

    def go_on(self, hop: PageUrl) -> None:
        """Follow a redirect."""
        self.url = hop.url
        self.hops.add(hop.url)
        is_same = self.page is None or hop.key == self.page.key
        self.target = None if is_same else hop

    def note(self, exchange: Exchange, body_hash: bytes | None = None) -> None:
        """Log a finished exchange."""
        self.fetches.append(log_of(exchange, body_hash))


class RobotsFetch:
    """A request for robots.txt in a slot of the host. `url` is the hop that is requested next or was requested last."""

    __slots__ = ("elsewhere", "give_up_at", "hops", "origin", "redirect", "slot", "then", "url")

    def __init__(self, slot: Slot, origin: str) -> None:
        self.slot = slot
        self.then = slot.hop  # a page's hop that waits for these rules
        self.origin = origin
        self.url = origin + "/robots.txt"
        self.hops = 0
        self.elsewhere: LeaseToken | None = None  # the slot of another host that a hop there is made in
        self.redirect: Exchange | None = None  # what sent it there, and when (monotonic) it waits for a slot no longer
        self.give_up_at = 0.0

    @property
    def authority(self) -> str:
        """Whom the next hop asks."""
        return origin_of(self.url).partition("://")[2]

    @property
    def is_away(self) -> bool:
        """Whether the next hop asks another host than the slot's."""
        return self.authority != self.slot.held.lease.authority


class Requests:
    """Makes the requests of a contract, and judges where redirects lead."""

    def __init__(self, contract: Contract, environment: Mapping[str, str] = os.environ) -> None:
        self._fetch = contract.fetch
        self._allow_networks = tuple(str(network) for network in contract.fetch.allow_networks)
        self._user_agent = {"User-Agent": contract.politeness.user_agent}
        self._headers = {**self._user_agent, **secret_headers(contract, environment)}
        self._canonicalizer = Canonicalizer(contract.urls)
        self._scope = Scope(contract.scope, contract.limits)

    def identify(self, claimed: ClaimedUrl) -> tuple[PageUrl | None, Verdict | None]:
        """A claimed URL under today's contract, or why it is not to be requested any more."""
        page = self._canonicalizer.page_url(claimed.url)
        if isinstance(page, UrlRefusal):
            return None, Verdict(state=UrlState.CANCELLED, reason=Reason.SCOPE, detail=page.fault.value)
        if claimed.is_sitemap:
            return page, None
        verdict = self._scope.verdict(page, claimed.depth)
        if not verdict.allowed:
            return None, Verdict(state=UrlState.CANCELLED, reason=verdict.reason, detail=verdict.rule)
        return page, None

    def page_request(self, visit: Visit) -> FetchRequest:
        """The next hop of a visit; conditional where a version is stored (RFC 9110, section 13)."""
        headers = dict(self._headers)
        if visit.is_conditional and not visit.claimed.is_sitemap:
            if visit.claimed.etag:
                headers["If-None-Match"] = visit.claimed.etag
            if visit.claimed.last_modified:
                headers["If-Modified-Since"] = visit.claimed.last_modified
        if visit.claimed.is_sitemap:
            return replace(self._request(visit.url, headers, None), max_bytes=MOST_SITEMAP_BYTES)
        return self._request(visit.url, headers, self._fetch.types)

    def robots_request(self, url: str) -> FetchRequest:
        """A request for robots.txt, or a hop of it: without the contract's headers, since it may leave the host."""
        request = self._request(url, dict(self._user_agent), None)
        return replace(request, max_bytes=LONGEST_ROBOTS + 1, keeps_beginning=True)

    def robots_redirect(self, fetch: RobotsFetch, exchange: Exchange) -> str | None:
        """The next hop of a request for robots.txt (RFC 9309, section 2.3.1.2: at most five).

        None: what was answered stands; a redirect that leads nowhere counts as no robots.txt.

        Another authority is asked for its own robots.txt only: nothing else outside the scope is ever requested.
        """
        location = _location(exchange)
        if exchange.failure is not None or exchange.status not in _REDIRECTS or not location:
            return None
        target = self._canonicalizer.redirect_url(location, fetch.url)
        if isinstance(target, UrlRefusal) or fetch.hops >= MAX_ROBOTS_REDIRECTS:
            return None
        is_away = target.authority != fetch.slot.held.lease.authority
        return None if is_away and target.url != origin_of(target.url) + "/robots.txt" else target.url

    def redirect(self, visit: Visit, exchange: Exchange) -> PageUrl | Verdict | None:
        """Where a redirect leads: the next hop, a verdict where it is not followed, None for an answer that is none.

        Followed only within the same authority and the scope, never from https to http; at most `MAX_REDIRECTS` hops.
        A target on another authority that is in scope is left to a visit of its own.
        """
        if exchange.failure is not None or exchange.status not in _REDIRECTS:
            return None
        location = _location(exchange)
        if not location:
            return Verdict(
                state=UrlState.REJECTED, reason=Reason.HTTP_STATUS, detail=f"status {exchange.status} without Location"
            )
        target = self._canonicalizer.redirect_url(location, visit.url)
        if isinstance(target, UrlRefusal):
            return Verdict(
                state=UrlState.REJECTED, reason=Reason.REDIRECT_OUT, detail=f"to no URL of a page: {target.fault.value}"
            )
        if target.authority != visit.slot.held.lease.authority:
            return Verdict(
                state=UrlState.REJECTED,
                reason=Reason.REDIRECT_OUT,
                detail=f"to {target.url[:300]}",
                leads_to=self._admitted(location, visit),
            )
        if visit.url.startswith("https:") and not target.url.startswith("https:"):
            return Verdict(state=UrlState.REJECTED, reason=Reason.REDIRECT_OUT, detail=f"to {target.url[:300]}")
        verdict = self._scope.verdict(target)
        if not verdict.allowed and not visit.claimed.is_sitemap:
            return Verdict(
                state=UrlState.REJECTED, reason=Reason.REDIRECT_OUT, detail=f"to {target.url[:300]}: {verdict.rule}"
            )
        if target.url in visit.hops or len(visit.hops) > MAX_REDIRECTS:
            return Verdict(state=UrlState.REJECTED, reason=Reason.REDIRECT_LOOP, detail=f"at {target.url[:300]}")
        return target

    def _admitted(self, location: str, visit: Visit) -> PageUrl | None:
        """A redirect's target as a link would be admitted: one step deeper, or two hosts could lead on for ever."""
        page = self._canonicalizer.page_url(location, visit.url)
        if isinstance(page, UrlRefusal) or visit.claimed.is_sitemap:
            return None
        return page if self._scope.verdict(page, visit.claimed.depth + 1).allowed else None

    def target_visit(self, visit: Visit) -> Visit:
        """The visit of the page at which a visit's redirects ended, in the same slot: as claimed, never visited."""
        assert visit.target is not None
        page = self._canonicalizer.page_url(visit.url)
        assert isinstance(page, PageUrl)
        claimed = ClaimedUrl(key=page.key, url=page.url, depth=visit.claimed.depth)
        ended = Visit(visit.slot, claimed, page)
        ended.url = visit.url
        return ended

    def _request(self, url: str, headers: Mapping[str, str], types: tuple[str, ...] | None) -> FetchRequest:
        return FetchRequest(
            url=url,
            headers=headers,
            timeout=self._fetch.timeout.total_seconds(),
            connect_timeout=min(10.0, self._fetch.timeout.total_seconds()),
            max_bytes=self._fetch.max_bytes,
            types=types,
            allow_networks=self._allow_networks,
        )


def _location(exchange: Exchange) -> str | None:
    """Where an answer leads; bytes beyond ASCII stand for their escapes, whatever encoding the site meant."""
    location = exchange.header("location")
    if location is None or location.isascii():
        return location
    return "".join(c if ord(c) < 128 else f"%{ord(c):02X}" for c in location)

"""What a visit means: the one pure function from an answer to a page's next state, and its helpers.

Owns the rules of retry, rejection and quarantine. Nothing here does I/O; `now` and `rng` are arguments.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import datetime

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.outcomes import Reason, UrlState
from crawl_pipeline.domain.pages import ClaimedUrl, CompletedPage, Exchange, FetchFailure, FetchLog, Lease, PageUrl
from crawl_pipeline.domain.politeness import OUTAGE_FAILURES, backoff
from crawl_pipeline.domain.revisit import RevisitPolicy

_TRANSIENT_STATUS = {408, 425}
_SERVER_ERRORS = {500, 502, 503, 504}
_TRANSIENT_FAILURES = {
    FetchFailure.TIMEOUT: Reason.TIMEOUT,
    FetchFailure.CONNECTION: Reason.CONNECTION,
    FetchFailure.TLS: Reason.TLS,
    FetchFailure.TRUNCATED: Reason.TRUNCATED,
    FetchFailure.PROTOCOL: Reason.PROTOCOL,
}
_FINAL_FAILURES = {
    FetchFailure.TOO_LARGE: Reason.TOO_LARGE,
    FetchFailure.ADDRESS_REFUSED: Reason.ADDRESS_REFUSED,
    FetchFailure.BAD_ENCODING: Reason.BAD_ENCODING,
}
# What says, once, that a page is not there.
_MISSING = (Reason.NOT_FOUND, Reason.SOFT_404)
# What says that the host, not the page, is in trouble.
_HOST_TROUBLE = {Reason.TIMEOUT, Reason.CONNECTION, Reason.TLS, Reason.PROTOCOL, Reason.SERVER_ERROR}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What an answer is, before anything of its body is looked at. `state` None: a page to parse."""

    state: UrlState | None
    reason: Reason | None = None
    detail: str | None = None
    leads_to: PageUrl | None = None  # a redirect's target, to be discovered as a link is
    not_before: datetime | None = None  # postponed until then, through no fault of the page


def judge_exchange(exchange: Exchange, *, was_conditional: bool) -> Verdict:
    """Classify an answer that is not a redirect to follow (RFC 9110 statuses)."""
    if exchange.failure is not None:
        if exchange.failure in _TRANSIENT_FAILURES:
            return Verdict(state=UrlState.QUEUED, reason=_TRANSIENT_FAILURES[exchange.failure], detail=exchange.detail)
        return Verdict(state=UrlState.REJECTED, reason=_FINAL_FAILURES[exchange.failure], detail=exchange.detail)
    status = exchange.status
    if status == 200:
        if exchange.type_refused:
            return Verdict(state=UrlState.REJECTED, reason=Reason.CONTENT_TYPE, detail=exchange.detail)
        return Verdict(state=None)
    if status == 304 and was_conditional:
        return Verdict(state=UrlState.UNCHANGED)
    if status == 429:
        return Verdict(state=UrlState.QUEUED, reason=Reason.THROTTLED, detail="status 429")
    if status in _SERVER_ERRORS:
        return Verdict(state=UrlState.QUEUED, reason=Reason.SERVER_ERROR, detail=f"status {status}")
    if status in _TRANSIENT_STATUS:
        return Verdict(state=UrlState.QUEUED, reason=Reason.TRANSIENT_STATUS, detail=f"status {status}")
    if status in (404, 410):
        return Verdict(state=UrlState.REJECTED, reason=Reason.NOT_FOUND, detail=f"status {status}")
    return Verdict(state=UrlState.REJECTED, reason=Reason.HTTP_STATUS, detail=f"status {status}")


class Decider:
    """Turns verdicts into completed pages by a contract's rules. Safe to share; `rng` only spreads retries."""

    def __init__(self, contract: Contract, rng: random.Random) -> None:
        self._tries = contract.fetch.tries
        self._revisit = RevisitPolicy(contract.freshness)
        self._rng = rng

    def decide(
        self,
        lease: Lease,
        claimed: ClaimedUrl,
        verdict: Verdict,
        *,
        now: datetime,
        path: str,
        fetches: tuple[FetchLog, ...],
        host_failures: int,
    ) -> CompletedPage:
        """The page's next state. `path`: its canonical path; `host_failures`: its host's, in a row, with this one."""
        assert verdict.state is not None
        page = CompletedPage(
            token=lease.token,
            source_id=lease.source_id,
            host_id=lease.host_id,
            key=claimed.key,
            state=verdict.state,
            reason=verdict.reason.value if verdict.reason else None,
            due_at=None,
            tries=claimed.tries,
            is_checked=False,
            is_sitemap=claimed.is_sitemap,
            host_failed=_host_failed(verdict, lease, host_failures),
            fetches=_with_reason(fetches, verdict),
            redirected_to=verdict.leads_to.key if verdict.leads_to and verdict.reason is Reason.REDIRECTED else None,
        )
        match verdict.state:
            case UrlState.QUEUED:
                if verdict.not_before is not None:
                    return replace(page, due_at=verdict.not_before)
                return self._try_again(page, verdict, now, host_failures)
            case UrlState.CANCELLED | UrlState.QUARANTINED:
                return page
            case _:
                return self._answered(page, claimed, path, now)

    def _try_again(self, page: CompletedPage, verdict: Verdict, now: datetime, host_failures: int) -> CompletedPage:
        if verdict.reason is Reason.THROTTLED or (page.host_failed and host_failures > OUTAGE_FAILURES):
            return replace(page, due_at=now)  # the host's trouble: it rests as a whole, and no try is spent
        tries = page.tries + 1
        if tries >= self._tries:
            return replace(page, state=UrlState.QUARANTINED, reason=Reason.TRIES_EXHAUSTED.value, tries=tries)
        return replace(page, tries=tries, due_at=now + backoff(tries, self._rng))

    def _answered(self, page: CompletedPage, claimed: ClaimedUrl, path: str, now: datetime) -> CompletedPage:
        reason = Reason(page.reason) if page.reason else None
        if reason in _MISSING and claimed.outcome_reason in (*_MISSING, Reason.GONE):
            reason = Reason.GONE
            page = replace(page, reason=reason.value, records=())  # confirmed: its records are no page's any more
        was_gone = claimed.outcome_reason == Reason.GONE and claimed.last_fetched_at is not None
        since = now - claimed.last_fetched_at if was_gone and claimed.last_fetched_at else None
        due_at = self._revisit.next_due(path, now, page.state, reason, gone_since_check=since)
        return replace(page, tries=0, is_checked=True, due_at=due_at)


def is_host_trouble(verdict: Verdict) -> bool:
    """Whether an answer says that the host, not the page, is in trouble."""
    return verdict.state is UrlState.QUEUED and verdict.reason in _HOST_TROUBLE


def _host_failed(verdict: Verdict, lease: Lease, host_failures: int) -> bool | None:
    if is_host_trouble(verdict):
        return True
    if verdict.state is UrlState.QUEUED or verdict.reason is Reason.ADDRESS_REFUSED:
        return None
    # A success is worth a write only where failures were counted.
    return False if lease.host_failures or host_failures else None


def _with_reason(fetches: tuple[FetchLog, ...], verdict: Verdict) -> tuple[FetchLog, ...]:
    """The last exchange's row says what became of the page."""
    if not fetches or verdict.reason is None:
        return fetches
    last = fetches[-1]
    return (*fetches[:-1], replace(last, failure=verdict.reason.value, detail=verdict.detail or last.detail))


def log_of(exchange: Exchange, body_hash: bytes | None = None) -> FetchLog:
    """The row of `fetches` for an exchange."""
    return FetchLog(
        url=exchange.request.url,
        started_at=exchange.started_at,
        elapsed=exchange.elapsed,
        status=exchange.status,
        failure=exchange.failure.value if exchange.failure else None,
        detail=exchange.detail,
        body_bytes=len(exchange.body),
        body_hash=body_hash,
        http_version=exchange.http_version,
    )


def redirected(target: PageUrl) -> Verdict:
    """The verdict on a URL whose redirects end at another page of the source."""
    return Verdict(state=UrlState.REJECTED, reason=Reason.REDIRECTED, detail=f"to {target.url[:300]}", leads_to=target)


def asks_to_wait(exchange: Exchange) -> bool:
    """Whether the answer speaks for the whole host: 429, or 503."""
    return exchange.failure is None and exchange.status in (429, 503)

"""The robots.txt gate of a worker: per origin, rules that are fresh, or who is asked for them.

Owns the worker's memory of rules and the sequence ask → fetch → store; one worker fetches for all (`storage.robots`).
Requests for robots.txt are started by the crawl loop, in a slot of the host's own budget.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.outcomes import Reason, UrlState
from crawl_pipeline.domain.pages import Exchange, FetchFailure
from crawl_pipeline.domain.politeness import retry_after
from crawl_pipeline.domain.robots import (
    LONGEST_ROBOTS,
    RobotsRules,
    RobotsVerdict,
    fresh_for,
    robots_verdict_for_status,
)
from crawl_pipeline.domain.urls import origin_of
from crawl_pipeline.pipeline.database_thread import DatabaseThread
from crawl_pipeline.pipeline.decide import Verdict
from crawl_pipeline.pipeline.leases import DatabaseClock
from crawl_pipeline.storage import robots, sources
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.robots import RobotsRow

_REST_FIRST, _REST_LONGEST = timedelta(seconds=5), timedelta(hours=1)
_ASK_AGAIN = 0.25  # seconds, while another worker fetches

log = logging.getLogger(__name__)


@dataclass(slots=True)
class OriginRules:
    """What a worker knows of an origin. `may_fetch`: this worker is to fetch robots.txt now."""

    host_id: int = 0
    rules: RobotsRules | None = None
    allows_all: bool = False
    fresh_until: float = 0.0
    rests_until: float | None = None  # unavailable: until when (monotonic) the source rests at the host
    is_asked: bool = False
    may_fetch: bool = False
    failures: int = 0
    detail: str | None = None
    ask_at: float = 0.0
    sitemaps: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Learnt:
    """What the database's thread brings. `is_slower`: the host's leases were given under a smaller delay than asked."""

    row: RobotsRow
    rules: RobotsRules | None = None
    is_slower: bool = False


class RobotsGate:
    """Answers for the crawl loop, in its thread.

    `on_change` is called when an origin's answer came, with the host whose leases are too quick for its Crawl-delay.
    """

    def __init__(
        self,
        database: Database,
        thread: DatabaseThread,
        contract: Contract,
        clock: DatabaseClock,
        *,
        source_id: int,
        on_change: Callable[[str, int | None], None],
    ) -> None:
        self._database = database
        self._thread = thread
        self._clock = clock
        self._source_id = source_id
        self._is_obeyed = contract.politeness.robots == "obey"
        self._user_agent = contract.politeness.user_agent
        self._max_delay = contract.politeness.max_crawl_delay
        self._max_retry_after = contract.politeness.max_retry_after
        self._on_change = on_change
        self._origins: dict[str, OriginRules] = {}

    def look(self, url: str, host_id: int) -> OriginRules | None:
        """The origin's rules where they are fresh (or not obeyed); None: they are asked for, or are to be fetched."""
        if not self._is_obeyed:
            return OriginRules(allows_all=True)
        known = self._origins.setdefault(origin_of(url), OriginRules(host_id=host_id))
        if known.fresh_until > time.monotonic() and known.rests_until is None:
            return known
        self._ask(origin_of(url), known)
        return None

    def allows(self, known: OriginRules, url: str) -> bool:
        """Whether the contract's user agent may request a URL of an origin whose rules are known."""
        return known.rules is None or known.rules.allows(self._user_agent, url)

    def postponed(self, url: str) -> Verdict | None:
        """The verdict on a page whose robots.txt is known not to be had: it comes when that is asked for again."""
        known = self._origins[origin_of(url)]
        left = 0.0 if known.rests_until is None else known.rests_until - time.monotonic()
        if left <= 0:
            return None
        return Verdict(
            state=UrlState.QUEUED,
            reason=Reason.ROBOTS_UNAVAILABLE,
            detail=known.detail,
            not_before=self._clock.now() + timedelta(seconds=left),
        )

    def takes_fetch(self, origin: str) -> bool:
        """Whether the caller is to fetch robots.txt now: said once, then it must come back through `fetched`."""
        known = self._origins[origin]
        known.is_asked, known.may_fetch, may = known.is_asked or known.may_fetch, False, known.may_fetch
        return may

    def ask_at(self, origin: str) -> float:
        """When (monotonic) it is worth to look again."""
        return self._origins[origin].ask_at

    def sitemaps(self, origin: str) -> tuple[str, ...] | None:
        """The sitemaps that robots.txt names; None where it is not known."""
        known = self._origins[origin]
        return known.sitemaps if known.rules is not None or known.allows_all else None

    def fetched(self, origin: str, exchange: Exchange, trouble: str | None = None) -> None:
        """The final answer for an origin's robots.txt: store it for all workers, then it is known here.

        `trouble`: why it could not be followed to its end; then robots.txt is unavailable.
        """
        if exchange.failure is FetchFailure.ABORTED:
            self.hand_back(origin)
            return
        known = self._origins[origin]
        known.may_fetch = False
        status = exchange.status if exchange.failure is None else None
        verdict = robots_verdict_for_status(None if trouble else status)
        body = exchange.body[: LONGEST_ROBOTS + 1] if verdict is RobotsVerdict.PARSE else None
        state = {RobotsVerdict.PARSE: "rules", RobotsVerdict.ALLOW_ALL: "allow_all"}.get(verdict, "unavailable")
        detail = trouble or exchange.detail or (f"status {exchange.status}" if exchange.status else None)
        if verdict is RobotsVerdict.UNAVAILABLE:
            keep_for = self._rest(known.failures, exchange)
        else:
            keep_for = fresh_for(exchange.header("cache-control"))

        def store() -> _Learnt:
            if robots.store(
                self._database, origin, state=state, status=status, body=body, detail=detail, fresh_for=keep_for
            ):
                sources.reopen_denied(self._database, origin)
            return self._learn(origin, known.host_id)

        self._thread.ask(store, lambda learnt: self._answered(origin, learnt))

    def hand_back(self, origin: str) -> None:
        """The fetch that `takes_fetch` gave will not be made or finished: another worker, or this one, may."""
        self._origins[origin].is_asked = False
        self._thread.ask(lambda: robots.hand_back(self._database, origin), lambda _: None)

    def _rest(self, failures: int, exchange: Exchange) -> timedelta:
        """Until robots.txt is asked for again: doubling, or as long as the site says where that is longer."""
        rest = min(_REST_FIRST * (1 << min(failures, 20)), _REST_LONGEST)
        asked = retry_after(exchange.header("retry-after"), self._clock.now(), self._max_retry_after)
        return max(rest, asked or rest)

    def _ask(self, origin: str, known: OriginRules) -> None:
        now = time.monotonic()
        if known.is_asked or known.may_fetch or now < known.ask_at:
            return
        known.is_asked = True
        self._thread.ask(lambda: self._learn(origin, known.host_id), lambda learnt: self._answered(origin, learnt))

    def _learn(self, origin: str, host_id: int) -> _Learnt:
        """In the database's thread: what is stored, and what it asks of this source's claims."""
        row = robots.ask(self._database, origin)
        if not row.is_fresh:
            return _Learnt(row=row)
        if row.state == "unavailable":
            robots.rest_source(self._database, self._source_id, host_id, row.expires_at)
            return _Learnt(row=row)
        rules = RobotsRules.from_bytes(row.body) if row.body is not None else None
        delay = rules.crawl_delay(self._user_agent) if rules is not None else None
        if delay is not None and delay > self._max_delay:
            log.warning("crawl_delay_capped", extra={"origin": origin, "asked": delay, "kept": self._max_delay})
            delay = self._max_delay
        is_slower = robots.ask_crawl_delay(self._database, self._source_id, host_id, origin, delay)
        return _Learnt(row=row, rules=rules, is_slower=is_slower)

    def _answered(self, origin: str, learnt: _Learnt) -> None:
        known, row = self._origins[origin], learnt.row
        known.is_asked = False
        known.failures = row.failures
        known.detail = row.detail
        known.rests_until = None
        if row.is_fresh:
            until = max(time.monotonic() + 0.5, self._clock.monotonic(row.expires_at))
            if row.state == "unavailable":
                known.rests_until = until
                known.ask_at = time.monotonic() + 1
            else:
                known.rules = learnt.rules
                known.allows_all = known.rules is None
                known.sitemaps = known.rules.sitemaps if known.rules else ()
                known.fresh_until = until
        elif row.may_fetch:
            known.may_fetch = True
        else:
            known.ask_at = time.monotonic() + _ASK_AGAIN
        self._on_change(origin, known.host_id if learnt.is_slower else None)

"""The robots.txt gate of a worker: per origin, rules that are fresh, or who is asked for them.

Owns the worker's memory of rules and the sequence ask → fetch → store; one worker fetches for all (`storage.robots`).
Requests for robots.txt are started by the crawl loop, in a slot of the host's own budget.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.pages import Exchange, FetchFailure
from crawl_pipeline.domain.robots import LONGEST_ROBOTS, RobotsRules, RobotsVerdict, robots_verdict_for_status
from crawl_pipeline.domain.urls import origin_of
from crawl_pipeline.pipeline.database_thread import DatabaseThread
from crawl_pipeline.pipeline.leases import DatabaseClock
from crawl_pipeline.storage import robots
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.robots import RobotsRow

FRESH_FOR = timedelta(hours=24)  # RFC 9309, section 2.4: a cached copy is used for no longer
_REST_FIRST, _REST_LONGEST = timedelta(seconds=30), timedelta(hours=1)
_ASK_AGAIN = 0.25  # seconds, while another worker fetches


@dataclass(slots=True)
class OriginRules:
    """What a worker knows of an origin. `may_fetch`: this worker is to fetch robots.txt now."""

    rules: RobotsRules | None = None
    allows_all: bool = False
    fresh_until: float = 0.0
    rests_until: float | None = None  # unavailable: until when (monotonic) the host rests
    is_asked: bool = False
    may_fetch: bool = False
    failures: int = 0
    ask_at: float = 0.0
    sitemaps: tuple[str, ...] = field(default=())


class RobotsGate:
    """Answers for the crawl loop, in its thread. `on_change` is called when an origin's answer came."""

    def __init__(
        self,
        database: Database,
        thread: DatabaseThread,
        contract: Contract,
        clock: DatabaseClock,
        *,
        on_change: Callable[[str], None],
    ) -> None:
        self._database = database
        self._thread = thread
        self._clock = clock
        self._is_obeyed = contract.politeness.robots == "obey"
        self._user_agent = contract.politeness.user_agent
        self._max_delay = contract.politeness.max_crawl_delay
        self._on_change = on_change
        self._origins: dict[str, OriginRules] = {}

    def look(self, url: str) -> OriginRules | None:
        """The origin's rules where they are fresh (or not obeyed); None: they are asked for, or are to be fetched."""
        if not self._is_obeyed:
            return OriginRules(allows_all=True)
        known = self._origins.setdefault(origin_of(url), OriginRules())
        if known.fresh_until > time.monotonic() and known.rests_until is None:
            return known
        self._ask(origin_of(url), known)
        return None

    def allows(self, known: OriginRules, url: str) -> bool:
        """Whether the contract's user agent may request a URL of an origin whose rules are known."""
        return known.rules is None or known.rules.allows(self._user_agent, url)

    def rest(self, origin: str) -> timedelta | None:
        """For how long the host rests because its robots.txt cannot be had; None: it is not known to be so."""
        until = self._origins[origin].rests_until
        left = 0.0 if until is None else until - time.monotonic()
        return timedelta(seconds=left) if left > 0 else None

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

    def fetched(self, origin: str, exchange: Exchange, host_id: int, source_id: int) -> None:
        """The final answer for an origin's robots.txt: store it for all workers, then it is known here."""
        if exchange.failure is FetchFailure.ABORTED:
            self.hand_back(origin)
            return
        known = self._origins[origin]
        known.may_fetch = False
        status = exchange.status if exchange.failure is None else None
        verdict = robots_verdict_for_status(status)
        is_unavailable = verdict is RobotsVerdict.UNAVAILABLE
        rest = min(_REST_FIRST * 2 ** min(known.failures, 20), _REST_LONGEST)
        body = exchange.body[:LONGEST_ROBOTS] if verdict is RobotsVerdict.PARSE else None
        state = {RobotsVerdict.PARSE: "rules", RobotsVerdict.ALLOW_ALL: "allow_all"}.get(verdict, "unavailable")
        detail = exchange.detail or (f"status {exchange.status}" if exchange.status else None)
        fresh_for = rest if is_unavailable else _fresh_for(exchange)
        delay = None
        if body is not None:
            delay = RobotsRules.from_bytes(body).crawl_delay(self._user_agent)

        def store() -> RobotsRow:
            robots.store(
                self._database, origin, state=state, status=status, body=body, detail=detail, fresh_for=fresh_for
            )
            if not is_unavailable:
                asked = min(delay, self._max_delay) if delay is not None else None
                robots.set_crawl_delay(self._database, source_id, host_id, asked)
            return robots.ask(self._database, origin)

        self._thread.ask(store, lambda row: self._answered(origin, row))

    def hand_back(self, origin: str) -> None:
        """The fetch that `takes_fetch` gave will not be made or finished: another worker, or this one, may."""
        self._origins[origin].is_asked = False
        self._thread.ask(lambda: robots.hand_back(self._database, origin), lambda _: None)

    def _ask(self, origin: str, known: OriginRules) -> None:
        now = time.monotonic()
        if known.is_asked or known.may_fetch or now < known.ask_at:
            return
        known.is_asked = True
        self._thread.ask(lambda: robots.ask(self._database, origin), lambda row: self._answered(origin, row))

    def _answered(self, origin: str, row: RobotsRow) -> None:
        known = self._origins[origin]
        known.is_asked = False
        known.failures = row.failures
        known.rests_until = None
        if row.is_fresh:
            until = max(time.monotonic() + 0.5, self._clock.monotonic(row.expires_at))
            if row.state == "unavailable":
                known.rests_until = until
                known.ask_at = time.monotonic() + 1
            else:
                known.rules = RobotsRules.from_bytes(row.body) if row.body is not None else None
                known.allows_all = known.rules is None
                known.sitemaps = known.rules.sitemaps if known.rules else ()
                known.fresh_until = until
        elif row.may_fetch:
            known.may_fetch = True
        else:
            known.ask_at = time.monotonic() + _ASK_AGAIN
        self._on_change(origin)


def _fresh_for(exchange: Exchange) -> timedelta:
    """How long a copy may be used: what Cache-Control says, at most a day."""
    match = re.search(r"(?:^|[,\s])max-age=\"?(\d{1,9})", exchange.header("cache-control") or "", re.IGNORECASE)
    if match is None:
        return FRESH_FOR
    return min(max(timedelta(seconds=int(match[1])), timedelta(minutes=5)), FRESH_FOR)

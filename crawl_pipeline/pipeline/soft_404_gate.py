"""The soft-404 gate of a worker: is a page what its host answers to a path that does not exist?

A host is asked only once a page of it is suspicious, by one worker for all (`storage.soft_404s`), in the suspicious
page's own slot. Pages wait here meanwhile, before they become versions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.pages import Exchange, PageUrl
from crawl_pipeline.domain.scope import Scope
from crawl_pipeline.domain.soft_404 import likeness, made_up_page, sounds_missing
from crawl_pipeline.domain.urls import Canonicalizer, canonical_path, origin_of
from crawl_pipeline.parsing.meaning import VisibleText
from crawl_pipeline.pipeline.database_thread import DatabaseThread
from crawl_pipeline.pipeline.decide import asks_to_wait, judge_exchange
from crawl_pipeline.pipeline.leases import DatabaseClock
from crawl_pipeline.pipeline.reading import PageReader, Reading
from crawl_pipeline.pipeline.visit import Visit
from crawl_pipeline.storage import soft_404s
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.soft_404s import ASKING_FOR, MadeUpAnswer

FRESH_FOR = timedelta(hours=24)
_UNANSWERED_FOR = timedelta(minutes=10)  # no answer, or one that says "later": nothing is called a soft 404 meanwhile
_LOOK_AGAIN = 0.25  # seconds, while another worker asks
_MOST_SEEN = 10_000

Then = Callable[[str | None], None]


@dataclass(slots=True)
class _Origin:
    """What a worker knows of an origin, and the pages that wait for it."""

    likeness: bytes | None = None
    fresh_until: float = 0.0
    look_at: float = 0.0  # when, on the monotonic clock, the database is asked again
    is_looking: bool = False
    waiting: list[tuple[Visit, bytes, Then]] = field(default_factory=list)


class Soft404Gate:
    """Answers in the crawl loop's thread. `ask_host` sends a visit to a made-up URL, as to a further hop."""

    def __init__(
        self,
        database: Database,
        thread: DatabaseThread,
        contract: Contract,
        clock: DatabaseClock,
        reader: PageReader,
        source_id: int,
        *,
        ask_host: Callable[[Visit, str], None],
    ) -> None:
        self._database = database
        self._thread = thread
        self._clock = clock
        self._reader = reader
        self._source_id = source_id
        self._ask_host = ask_host
        self._is_on = contract.accept.soft_404
        self._canonicalizer = Canonicalizer(contract.urls)
        self._scope = Scope(contract.scope, contract.limits)
        self._include = contract.scope.include
        seeds = (self._canonicalizer.page_url(seed) for seed in contract.seeds)
        self._named = {seed.key for seed in seeds if isinstance(seed, PageUrl)}
        self._origins: dict[str, _Origin] = {}
        self._off: set[str] = set()  # origins where nothing made up is in scope
        self._seen: set[tuple[str, bytes]] = set()

    def look(self, visit: Visit, url: str, reading: Reading, then: Then) -> None:
        """Call `then`, now or once the host was asked: with a sentence where the page is a soft 404, else with None.

        Seeds and the root are what their operators name: they are never compared, though some sites show their front
        page for whatever they do not know.
        """
        text, page = reading.text, visit.page
        if not self._is_on or text is None or page is None or page.key in self._named:
            then(None)
            return
        origin = origin_of(url)
        known = self._origins.get(origin)
        is_known = known is not None and known.fresh_until > time.monotonic()
        if (
            origin in self._off
            or (is_known and known is not None and known.likeness is None)
            or canonical_path(page.canonical) == "/"
            or not (is_known or self._is_suspicious(origin, text, reading))
        ):
            then(None)
            return
        found = likeness(text.title, text.body, url)
        if found is None or made_up_page(page, self._canonicalizer, self._scope, self._include) is None:
            then(None)
        elif is_known and known is not None:
            then(_sentence(known, found))
        else:
            known = self._origins.setdefault(origin, _Origin())
            known.waiting.append((visit, found, then))
            self._look(origin, known)

    def _is_suspicious(self, origin: str, text: VisibleText, reading: Reading) -> bool:
        """It repeats another page of its host, does not meet its contract, or apologises."""
        if reading.verdict is not None or (origin, reading.content_hash) in self._seen:
            return True
        if sounds_missing(text.title, text.body):
            return True
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen.add((origin, reading.content_hash))
        return False

    def look_again(self) -> None:
        """Ask the database again where pages wait for another worker's answer, or for one that never came."""
        for origin, known in self._origins.items():
            if known.waiting:
                self._look(origin, known)

    def answered(self, visit: Visit, exchange: Exchange | None) -> None:
        """What the host said to a made-up path (None: robots.txt disallows it): stored for all, then known here."""
        assert visit.probe is not None
        url, visit.probe = visit.probe, None
        origin = origin_of(url)
        found, fresh_for = None, FRESH_FOR
        if exchange is not None:
            verdict = judge_exchange(exchange, was_conditional=False)
            if verdict.state is None:
                found = self._likeness(visit, exchange)
            elif exchange.failure is not None or asks_to_wait(exchange) or (exchange.status or 0) >= 500:
                fresh_for = _UNANSWERED_FOR
        status, rules = exchange.status if exchange else None, self._reader.extractor_version

        def store() -> MadeUpAnswer:
            soft_404s.store(
                *(self._database, self._source_id, origin, rules),
                url=url,
                status=status,
                likeness=found,
                fresh_for=fresh_for,
            )
            return soft_404s.ask(self._database, self._source_id, origin, rules)

        self._thread.ask(store, lambda row: self._known(origin, row))

    def give_up(self, visit: Visit) -> None:
        """The visit is given up: what it was to ask for, another page's may."""
        if visit.probe is None:
            return
        origin, visit.probe = origin_of(visit.probe), None
        known = self._origins[origin]
        known.waiting = [waiting for waiting in known.waiting if waiting[0] is not visit]
        known.look_at = 0.0
        self._thread.ask(lambda: soft_404s.hand_back(self._database, self._source_id, origin), lambda _: None)

    def _likeness(self, visit: Visit, exchange: Exchange) -> bytes | None:
        assert visit.page is not None
        text = self._reader.text(exchange, visit.page, visit.slot.held.token)
        return None if text is None else likeness(text.title, text.body, exchange.request.url)

    def _look(self, origin: str, known: _Origin) -> None:
        if known.is_looking or time.monotonic() < known.look_at:
            return
        known.is_looking = True
        rules = self._reader.extractor_version
        self._thread.ask(
            lambda: soft_404s.ask(self._database, self._source_id, origin, rules), lambda row: self._known(origin, row)
        )

    def _known(self, origin: str, row: MadeUpAnswer) -> None:
        known = self._origins[origin]
        known.is_looking = False
        known.look_at = time.monotonic() + _LOOK_AGAIN
        if row.is_fresh:
            known.likeness = row.likeness
            known.fresh_until = max(time.monotonic() + 0.5, self._clock.monotonic(row.expires_at))
            waiting, known.waiting = known.waiting, []
            for _, found, then in waiting:
                then(_sentence(known, found))
        elif row.may_ask:
            self._ask(origin, known)

    def _ask(self, origin: str, known: _Origin) -> None:
        known.look_at = time.monotonic() + ASKING_FOR.total_seconds()
        for visit, _, _ in known.waiting:
            page = visit.page and made_up_page(visit.page, self._canonicalizer, self._scope, self._include)
            if page and visit.slot.hop is None:
                visit.probe = page.url
                self._ask_host(visit, page.url)
                return


def _sentence(known: _Origin, found: bytes) -> str | None:
    return "says what the host says of a made-up path" if known.likeness == found else None

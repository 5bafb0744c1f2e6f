"""The crawl loop of a worker: claims leases, keeps their slots busy, hands finished pages to the committer.

One thread that waits for nothing but the network. What an answer makes of a page is `answers`'; the database is the
committer's and the heartbeat's.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.outcomes import Reason, UrlState
from crawl_pipeline.domain.pages import CompletedPage, Exchange, FetchFailure, Lease, PageUrl, UrlKey
from crawl_pipeline.domain.politeness import OUTAGE_FAILURES, retry_after
from crawl_pipeline.domain.urls import origin_of
from crawl_pipeline.fetching.transport import Transport
from crawl_pipeline.pipeline.adoption import Adoption
from crawl_pipeline.pipeline.agenda import Agenda
from crawl_pipeline.pipeline.answers import Answers
from crawl_pipeline.pipeline.claims import Claims, Share
from crawl_pipeline.pipeline.database_thread import DatabaseThread
from crawl_pipeline.pipeline.decide import Decider, Verdict, asks_to_wait
from crawl_pipeline.pipeline.hand import Hand
from crawl_pipeline.pipeline.known_links import KnownLinks
from crawl_pipeline.pipeline.leases import DatabaseClock, HeldLease, LeaseTable, Slot
from crawl_pipeline.pipeline.observations import Observations
from crawl_pipeline.pipeline.reading import PageReader
from crawl_pipeline.pipeline.robots_fetches import RobotsFetches
from crawl_pipeline.pipeline.robots_gate import RobotsGate
from crawl_pipeline.pipeline.sitemap_visits import SitemapVisits
from crawl_pipeline.pipeline.soft_404_gate import Soft404Gate
from crawl_pipeline.pipeline.visit import Requests, RobotsFetch, Visit
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.frontier import Completion, Frontier

_LONGEST_POLL = 0.25  # seconds
_NEW_URLS_WITHIN = 0.02  # seconds from a commit with new URLs to a claim, for all that come in between

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Tally:
    """What a worker has started and finished."""

    page_requests: int = 0
    other_requests: int = 0
    pages_finished: int = 0


class CrawlLoop:
    """See the module. Everything runs in the caller's thread, which must be the process's main one."""

    def __init__(
        self,
        database: Database,
        frontier: Frontier,
        contract: Contract,
        transport: Transport,
        leases: LeaseTable,
        clock: DatabaseClock,
        hand: Hand,
        observations: Observations,
        *,
        source_id: int,
        share: Share,
    ) -> None:
        self._frontier = frontier
        self._transport = transport
        self._leases = leases
        self._clock = clock
        self._hand = hand
        self._observations = observations
        self._max_retry_after = contract.politeness.max_retry_after
        self._requests = Requests(contract)
        known_links = self._known_links = KnownLinks()
        thread = self.thread = DatabaseThread(frontier, on_committed=self._committed, wake=transport.wake)
        self._gate = RobotsGate(database, thread, contract, clock, source_id=source_id, on_change=self._robots_changed)
        reader = PageReader(contract, hand)
        self._admission = reader.admission
        self._sitemaps = SitemapVisits(database, thread, contract, reader.admission, known_links, source_id, frontier)
        self._soft_404s = Soft404Gate(database, thread, contract, clock, reader, source_id, ask_host=self._hop)
        self._visits: dict[UrlKey, Visit] = {}  # started and not committed
        self._answers = Answers(
            database,
            thread,
            contract,
            clock,
            decider=Decider(contract, random.Random()),
            reader=reader,
            sitemaps=self._sitemaps,
            known_links=known_links,
            target_visit=self._requests.target_visit,
            adopt=Adoption(frontier, thread, self._visits, self._give_up).adopt,
            soft_404s=self._soft_404s,
            hand_over=self._hand_over,
        )
        self._agenda = Agenda()
        self._robots_fetches = RobotsFetches(
            self._gate,
            self._requests,
            frontier,
            thread,
            clock,
            free=self._agenda.free,
            push=self._agenda.push_at,
            drain=self._drain,
            give_up=self._give_up,
        )
        self._claims = Claims(frontier, thread, leases, share, self._claimed)
        self._stop_by: float | None = None
        self.tally = Tally()

    def run(self, stop: threading.Event, grace: timedelta) -> None:
        """Crawl until `stop`; then finish what is in flight within half of `grace`, give the rest back, and return.

        Raises what ended the committer, as DatabaseUnavailable.
        """
        self.thread.start()
        while True:
            for reply in self.thread.replies():
                reply()
            for held in self._leases.lost(time.monotonic()):
                self._lose(held)
            for held in self._leases.to_drain():
                self._drain(held)
            if stop.is_set():
                if self._has_stopped(grace.total_seconds()):
                    return
            else:
                self._claims.claim()
            self._soft_404s.look_again()
            self._start_ready()
            tally = self.tally
            self._hand.count(tally.page_requests, tally.other_requests, tally.pages_finished)
            for tag, exchange in self._transport.poll(self._patience()):
                self._finished(tag, exchange)

    def _has_stopped(self, grace: float) -> bool:
        now = time.monotonic()
        if self._stop_by is None:
            self._stop_by = now + grace / 2
            self._claims.stop()
            for held in self._leases:
                self._drain(held)
        if now >= self._stop_by:
            for hop in [*self._visits.values(), *self._robots_fetches]:
                self._transport.abort(hop)
        return len(self._leases) == 0 or now >= self._stop_by + grace / 4

    def _patience(self) -> float:
        """How long the network may be waited for: until the next start or claim."""
        now = time.monotonic()
        times = [now + _LONGEST_POLL, None if self._is_full else self._agenda.next_at, self._claims.next_at()]
        return max(0.0, min(at for at in times if at is not None) - now)

    @property
    def _is_full(self) -> bool:
        return self._transport.in_flight >= self._transport.max_in_flight

    # Starts

    def _claimed(self, lease: Lease) -> None:
        for slot in self._leases.add(lease).slots:
            self._agenda.push(slot)

    def _start_ready(self) -> None:
        now = time.monotonic()
        slots = self._agenda.due(now)
        while not self._is_full and (slot := next(slots, None)) is not None:
            if slot.hop is not None:
                self._start_hop(slot, slot.hop, now)
            elif slot.held in self._leases:
                self._start_next(slot, now)

    def _start_hop(self, slot: Slot, hop: Visit | RobotsFetch, now: float) -> None:
        if slot.held.is_lost or (isinstance(hop, Visit) and not slot.held.may_start(now)):
            slot.hop = None
            self._give_up(hop)
            return
        if isinstance(hop, Visit):
            # known already, unless the redirect changed the scheme
            rules = self._gate.look(hop.url, slot.held.host_id)
            if rules is None:
                verdict = self._gate.postponed(hop.url)
                if verdict is None:
                    self._wait_for_robots(slot, hop.url, now)
                else:
                    slot.hop = None
                    self._answers.decide(hop, verdict)
                return
            if not self._gate.allows(rules, hop.url):
                slot.hop = None
                self._answers.disallow(hop)
                return
        slot.hop = None
        if isinstance(hop, RobotsFetch) and hop.is_away and hop.elsewhere is None:
            self._robots_fetches.ask_elsewhere(hop)
        else:
            self._request(hop, now)

    def _start_next(self, slot: Slot, now: float) -> None:
        held = slot.held
        if not held.waiting:
            return
        if not held.may_start(now):
            self._drain(held)
            return
        while held.waiting:
            claimed = held.waiting[0]
            page, verdict = self._requests.identify(claimed)
            if verdict is None:
                rules = self._gate.look(claimed.url, held.host_id)
                if rules is None:
                    verdict = self._gate.postponed(claimed.url)
                    if verdict is None:
                        self._wait_for_robots(slot, claimed.url, now)
                        return
                elif not self._gate.allows(rules, claimed.url):
                    verdict = Verdict(state=UrlState.CANCELLED, reason=Reason.ROBOTS, detail="robots.txt disallows it")
            held.waiting.popleft()
            held.busy += 1
            visit = self._visits[claimed.key] = Visit(slot, claimed, page)
            if verdict is None:
                self._request(visit, now)
                return
            visit.is_unasked = True  # no request: the slot's start is still to be had
            self._answers.decide(visit, verdict)

    def _wait_for_robots(self, slot: Slot, url: str, now: float) -> None:
        origin = origin_of(url)
        if self._gate.takes_fetch(origin):
            self._request(self._robots_fetches.begin(slot, origin), now)
        else:
            slot.held.parked.append(slot)

    def _robots_changed(self, origin: str, too_quick: int | None) -> None:
        self._sitemaps.robots_known(origin, self._gate.sitemaps(origin))
        if too_quick is not None:  # the next lease keeps to the Crawl-delay
            for held in self._leases.of_host(too_quick):
                self._drain(held)
        again_at = self._gate.ask_at(origin)
        for held in self._leases:
            parked, held.parked = held.parked, []
            for slot in parked:
                self._agenda.free(slot, not_before=again_at)

    def _request(self, hop: Visit | RobotsFetch, now: float) -> None:
        if not (isinstance(hop, RobotsFetch) and hop.is_away):
            hop.slot.spend(now)
        if isinstance(hop, RobotsFetch):
            self.tally.other_requests += 1
            self._transport.start(self._requests.robots_request(hop.url), hop)
        else:
            if hop.claimed.is_sitemap or hop.probe is not None:
                self.tally.other_requests += 1
            else:
                self.tally.page_requests += 1
            try:
                self._transport.start(self._requests.page_request(hop), hop)
            except ValueError as error:
                self._answers.decide(
                    hop, Verdict(state=UrlState.REJECTED, reason=Reason.UNREQUESTABLE, detail=str(error)[:300])
                )

    # Answers

    def _finished(self, tag: object, exchange: Exchange) -> None:
        assert isinstance(tag, Visit | RobotsFetch)
        if isinstance(tag, RobotsFetch):
            self._robots_fetches.answered(tag, exchange)
        elif tag.slot.held.is_lost or exchange.failure is FetchFailure.ABORTED:
            self._give_up(tag)
        else:
            self._page_answered(tag, exchange)

    def _page_answered(self, visit: Visit, exchange: Exchange) -> None:
        hop = self._requests.redirect(visit, exchange) if visit.probe is None else None
        if isinstance(hop, PageUrl):
            visit.note(exchange)
            visit.go_on(hop)
            self._hop(visit, hop.url)
            return
        held, failed = visit.slot.held, self._answers.is_host_trouble(exchange, hop)
        self._note_failure(held, failed=failed)
        if asks_to_wait(exchange):
            self._throttle(visit, exchange)
        else:
            if failed or exchange.failure is None:
                self._observations.note(held.host_id, exchange.elapsed, failed=failed)
            self._answers.take(visit, exchange, hop)

    def _hop(self, hop: Visit | RobotsFetch, url: str) -> None:
        """The next hop of a redirect waits for its slot's next start, as every request does."""
        hop.url = url
        hop.slot.hop = hop
        self._agenda.free(hop.slot)

    def _note_failure(self, held: HeldLease, *, failed: bool) -> None:
        """Failures in a row are the host's: from the fifth on it rests as a whole (the commit blocks it for all)."""
        if failed or held.failures:
            leases = self._leases.of_host(held.host_id)
            for other in {*leases, held}:
                other.failures = other.failures + 1 if failed else 0
            if held.failures >= OUTAGE_FAILURES:
                for other in leases:
                    self._drain(other)

    def _throttle(self, visit: Visit, exchange: Exchange) -> None:
        """429 or 503: the host rests for every worker before its page goes back, so that none asks in between."""
        host_id, cap = visit.slot.held.host_id, self._max_retry_after
        asked = retry_after(exchange.header("retry-after"), self._clock.now(), cap)
        for other in self._leases.of_host(host_id):
            self._drain(other)
        self.thread.ask(
            lambda: self._frontier.throttle_host(host_id, asked, cap),
            lambda _: self._answers.take(visit, exchange, None),
        )

    # Commits

    def _hand_over(self, visit: Visit, page: CompletedPage) -> None:
        self.tally.pages_finished += 1
        self.thread.commit(page)

    def _committed(self, pages: Sequence[CompletedPage], completion: Completion) -> None:
        for number, page in enumerate(pages):
            visit = self._visits.get(page.key)
            if visit is None or visit.slot.held.token != page.token:
                continue
            del self._visits[page.key]
            held = visit.slot.held
            held.busy -= 1
            if number in completion.lost:
                self._lose(held)
                continue
            self._known_links.remember(page.links)
            if page.host_id in completion.blocked:
                for other in self._leases.of_host(page.host_id):
                    self._drain(other)
            if held.waiting and not visit.is_unasked:
                self._agenda.free(visit.slot)
            self._settle(held)
        if traps := self._admission.take_traps():
            self.thread.ask(lambda: self._frontier.add_count("traps", traps), lambda _: None)
        if completion.new_urls:
            self._claims.hurry(within=_NEW_URLS_WITHIN)

    # Ends of leases

    def _settle(self, held: HeldLease) -> None:
        """A lease with nothing left in hand is over; what it still holds in the database goes back."""
        if held.is_over and held in self._leases:
            self._leases.remove(held)
            self._claims.hurry()
            if held.is_draining:
                self.thread.ask(lambda: self._frontier.release([held.token]), lambda _: None)

    def _drain(self, held: HeldLease) -> None:
        """Start nothing more of it; hops that waited for robots.txt are given up."""
        hops = [slot.hop for slot in held.parked if slot.hop is not None]
        for slot in held.parked:
            slot.hop = None
        held.drain()
        self._settle(held)
        for hop in hops:
            self._give_up(hop)

    def _give_up(self, hop: Visit | RobotsFetch) -> None:
        """Something started will not be finished: its lease gives the page back."""
        held = hop.slot.held
        held.busy -= 1
        if isinstance(hop, RobotsFetch):
            self._robots_fetches.hand_back(hop)
            if hop.then is not None and not isinstance(hop.then, RobotsFetch):
                self._give_up(hop.then)
        else:
            self._soft_404s.give_up(hop)
            if self._visits.get(hop.claimed.key) is hop:
                del self._visits[hop.claimed.key]
        self._drain(held)

    def _lose(self, held: HeldLease) -> None:
        """The lease is another's now, or its commit's answer was lost: stop its requests; nothing of it is stored."""
        if held.is_lost:
            return
        held.is_lost = True
        held.drain()
        self._leases.remove(held)
        log.warning("lease_lost", extra={"lease_token": str(held.token), "host": held.lease.authority})
        self.thread.ask(lambda: self._frontier.release([held.token]), lambda _: None)  # changes nothing of another's
        for visit in [visit for visit in self._visits.values() if visit.slot.held is held]:
            self._transport.abort(visit)

"""One worker of the stress: claims, renews, imagines requests on the slots' grids, completes in small groups."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa

from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.domain.pages import ClaimedUrl, CompletedPage, CrawlId, Lease
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.frontier import Frontier
from crawl_pipeline_tests.storage.world import FAR, HOLDER, finished, links, record, version

T = TypeVar("T")

MARGIN = 0.05  # seconds before a lease's end within which nothing starts
TOLERANCE = 0.0005  # planned starts travel as microseconds and are compared as floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is played: pages per source, hosts, workers per source, and for how long they are disturbed."""

    pages: int = 300
    slots: tuple[int, ...] = (3, 4)  # one number a source
    delays: tuple[float, ...] = (0.0, 0.004, 0.01, 0.02)  # one number a host: its crawl delay
    workers: int = 2
    disturb_for: float = 10.0
    finish_within: float = 90.0
    lease_for: float = 2.0
    seed: int = 1

    def url(self, source: int, number: int) -> str:
        """The page of a number: neighbours lie at different hosts."""
        return f"http://h{number % len(self.delays)}/{source}/{number}"

    def linked(self, source: int, number: int) -> tuple[str, ...]:
        """A tree that reaches every page, and links that many pages have in common, in no common order."""
        numbers = {2 * number + 1, 2 * number + 2, *((number * number + 7 * k) % self.pages for k in range(6))}
        ordered = sorted(numbers - {number}, reverse=number % 2 == 0)
        return tuple(self.url(source, n) for n in ordered if n < self.pages)


class WatchedDatabase(Database):
    """Conflicts are tried again as ever, and told."""

    tell: Callable[[str], None]

    def retry(self, work: Callable[[sa.Connection], T], *, stop: Any = None) -> T:
        """As `Database.retry`."""

        def watched(connection: sa.Connection) -> T:
            try:
                return work(connection)
            except (sa.exc.DBAPIError, psycopg.Error) as error:
                self.tell(str(error).splitlines()[0])
                raise

        return super().retry(watched, stop=stop)


class Slot:
    """One slot of a lease, with the page whose request is in flight in it."""

    def __init__(self, lease: Lease, start: datetime, expires: list[float]) -> None:
        self.lease = lease
        self.next_start = start.timestamp()
        self.expires = expires  # the lease's, shared by its slots
        self.page: ClaimedUrl | None = None
        self.ends = 0.0

    def spend(self, now: float) -> float:
        """A request starts: its planned time, the last point of the grid; the next is planned on the grid too."""
        period = self.lease.period.total_seconds()
        if period == 0:
            return now
        planned = self.next_start + period * max(0, int((now - self.next_start) / period))
        self.next_start = planned + period
        return planned


class Worker:
    """A worker in one thread. SIGTERM: commit what is done, release the rest, end."""

    def __init__(self, url: str, plan: Plan, source_id: int, crawl_id: CrawlId, worker_id: str, log: Path) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._plan = plan
        database = WatchedDatabase.connect(url, application_name=worker_id)
        assert isinstance(database, WatchedDatabase)
        database.tell = lambda text: self._tell(conflict=text)
        self._frontier = Frontier(
            database,
            source_id=source_id,
            crawl_id=crawl_id,
            run_id=HOLDER.run_id,
            worker_id=worker_id,
            lease_for=timedelta(seconds=plan.lease_for),
        )
        self._rng = random.Random(worker_id)
        self._slots: list[Slot] = []
        self._waiting: dict[Any, list[ClaimedUrl]] = {}
        self._left: dict[Any, int] = {}
        self._expires: dict[Any, list[float]] = {}
        self._done: list[CompletedPage] = []
        self._renewed = time.time()
        self._is_stopping = False

    def run(self) -> None:
        """Work until SIGTERM."""
        signal.signal(signal.SIGTERM, self._stop)
        while not self._is_stopping:
            self._renew()
            if len(self._slots) < 6:
                self._claim()
            now = time.time()
            for slot in list(self._slots):
                self._advance(slot, now)
            if len(self._done) >= self._rng.randint(1, 8) or (self._done and not self._is_busy()):
                self._commit()
            time.sleep(0.002 if self._is_busy() else 0.02)
        self._commit()
        self._frontier.release(list(self._left))

    def _stop(self, *_: object) -> None:
        self._is_stopping = True

    def _is_busy(self) -> bool:
        return any(slot.page is not None for slot in self._slots)

    def _tell(self, **what: object) -> None:
        os.write(self._log, json.dumps(what).encode() + b"\n")

    def _renew(self) -> None:
        now = time.time()
        if self._left and now - self._renewed > self._plan.lease_for / 3:
            self._renewed = now
            asked = list(self._left)
            living = self._frontier.renew(asked)
            for token in asked:
                self._expires[token][0] = living[token].timestamp() if token in living else 0.0

    def _claim(self) -> None:
        batch = self._rng.choice([2, 8, 16])
        for lease in self._frontier.claim(want=16, batch=batch, share=self._rng.randint(1, 3), is_idle=not self._left):
            self._left[lease.token] = len(lease.urls)
            self._waiting[lease.token] = list(lease.urls)
            expires = self._expires[lease.token] = [lease.expires_at.timestamp()]
            self._slots += [Slot(lease, start, expires) for start in lease.first_starts]

    def _advance(self, slot: Slot, now: float) -> None:
        token = slot.lease.token
        if slot.page is not None and now >= slot.ends:
            self._done.append(self._effect(slot.lease, slot.page))
            slot.page = None
        if slot.page is None and token in self._left and now >= slot.next_start:
            waiting = self._waiting[token]
            if waiting and now < slot.expires[0] - MARGIN:
                slot.page = waiting.pop(0)
                slot.ends = now + self._rng.uniform(0.001, 0.03)
                self._tell(host=slot.lease.authority, at=slot.spend(now), real=now)
        if slot.page is None and (now >= slot.expires[0] or token not in self._left):
            self._slots.remove(slot)
            if all(other.lease.token != token for other in self._slots) and token in self._left:
                self._forget(token)  # it ran out: what a stale worker still brings is for the fence

    def _forget(self, token: Any) -> None:
        for known in (self._left, self._waiting, self._expires):
            known.pop(token, None)

    def _effect(self, lease: Lease, claimed: ClaimedUrl) -> CompletedPage:
        source, number = (int(part) for part in claimed.url.split("/")[3:])
        if claimed.tries < 2 and self._rng.random() < 0.05:
            due = datetime.now(UTC) + timedelta(milliseconds=50)
            return finished(lease, claimed, UrlState.QUEUED, reason="timeout", tries=claimed.tries + 1, due_at=due)
        return finished(
            lease,
            claimed,
            due_at=FAR,
            version=version(claimed.url),
            records=(record(f"{source}/{number // 2}"), record(f"{source}/{(number + 1) // 2}/odd")),
            links=links(*self._plan.linked(source, number)),
        )

    def _commit(self) -> None:
        pages, self._done = self._done[:8], self._done[8:]
        if not pages:
            return
        completion = self._frontier.complete(pages)
        if completion.lost:
            self._tell(lost=len(completion.lost))
        for number, page in enumerate(pages):
            if page.token in self._left and number not in completion.lost:
                self._left[page.token] -= 1
                if self._left[page.token] == 0:
                    self._forget(page.token)

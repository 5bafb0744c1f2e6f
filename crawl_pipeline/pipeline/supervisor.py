"""The supervisor: the control plane of one crawl's workers, in the process of the run.

Starts child processes, restarts dead ones, charges the page that a dead one had in hand, watches the crawl's limits and
its end, and says that the run lives. Does no crawling itself.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.outcomes import StopReason
from crawl_pipeline.errors import DatabaseUnavailable, WorkersKeepDying
from crawl_pipeline.pipeline.crawl import OpenedCrawl
from crawl_pipeline.pipeline.orders import Orders
from crawl_pipeline.pipeline.worker_process import End, WorkerProcess
from crawl_pipeline.storage import crawls
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.frontier import LEASE_FOR, Standing

GRACE = timedelta(seconds=10)
_TICK = 0.1
_BEAT_EVERY, _LOOK_EVERY, _RUN_EVERY, _PROGRESS_EVERY = 2.0, 0.25, 5.0, 1.0
_MOST_DEATHS = 10  # in a row, without a page finished or charged

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a crawl stands. `done` counts this crawl's accepted, unchanged and rejected pages."""

    crawl_id: uuid.UUID
    elapsed: float
    urls: dict[str, int]
    done: int
    known: int
    accepted: int
    unchanged: int
    rejected: int
    quarantined: int
    retried: int
    requests: int
    pages_per_second: float
    workers_alive: int


class Supervisor:
    """Runs the workers of one crawl until it ends. Used once."""

    def __init__(
        self,
        database: Database,
        crawl: OpenedCrawl,
        *,
        is_run_live: Callable[[], bool],
        on_progress: Callable[[Progress], None],
        stop: threading.Event,
        grace: timedelta = GRACE,
        lease_for: timedelta = LEASE_FOR,
    ) -> None:
        self._database = database
        self._crawl = crawl
        self._contract = Contract.from_json(crawl.contract)
        self._is_run_live = is_run_live
        self._on_progress = on_progress
        self._stop = stop
        self._grace = grace
        self._lease_for = lease_for
        self._workers: list[WorkerProcess] = []
        self._deaths = 0
        self._start_at = 0.0
        self._waiting_since: float | None = None
        self._started = time.monotonic()
        self._due: dict[str, float] = {}

    def run(self) -> str:
        """Work until the crawl ends; returns the ending (a StopReason) and remembers it for `close_crawl`.

        Raises what a worker gave up for, DatabaseUnavailable or WorkersKeepDying; the crawl then stays open, to be
        resumed.
        """
        try:
            ending = self._supervise()
        finally:
            self._end_all()
        self._database.retry(
            lambda connection: crawls.set_ending(connection, self._crawl.crawl_id, self._crawl.run_id, ending)
        )
        self._report()
        return ending

    def _supervise(self) -> str:
        while True:
            if self._stop.wait(_TICK):
                return StopReason.STOPPED
            self._reap()
            self._fill()
            if self._is_due("beat", _BEAT_EVERY) and not self._beat():
                log.warning("crawl_lost", extra={"crawl_id": str(self._crawl.crawl_id)})
                return StopReason.STOPPED
            if self._is_due("run", _RUN_EVERY) and not self._is_run_live():
                return StopReason.STOPPED
            if self._is_due("progress", _PROGRESS_EVERY):
                self._report()
            if self._is_due("look", _LOOK_EVERY):
                ending = self._look()
                if ending is not None:
                    return ending

    def _is_due(self, what: str, every: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + every
        return True

    def _beat(self) -> bool:
        crawls.fold_counters(self._database)
        return self._database.retry(
            lambda connection: crawls.heartbeat(connection, self._crawl.crawl_id, self._crawl.run_id)
        )

    # The crawl's end

    def _look(self) -> str | None:
        standing, now, done, leased = self._database.retry(self._snapshot)
        if now >= self._crawl.deadline_at:
            return StopReason.MAX_DURATION
        if done >= self._crawl.max_pages and not leased:
            return StopReason.MAX_PAGES
        if standing.status == "finished":
            return StopReason.FINISHED
        return StopReason.DEFERRED if self._is_idle(standing, now) else None

    def _is_idle(self, standing: Standing, now: datetime) -> bool:
        """Nothing claimable or active for `max_idle`, or nothing that will be within it."""
        if standing.status != "waiting":
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        max_idle = self._contract.limits.max_idle
        waited = timedelta(seconds=time.monotonic() - self._waiting_since)
        return waited >= max_idle or (standing.next_at is not None and standing.next_at - now > max_idle)

    def _snapshot(self, connection: sa.Connection) -> tuple[Standing, datetime, int, bool]:
        row = connection.execute(
            sa.text("""
                SELECT f.status, f.next_at, clock_timestamp() AS now,
                       EXISTS (SELECT 1 FROM leases WHERE crawl_id = :c) AS leased FROM finished(:c) f
            """),
            {"c": self._crawl.crawl_id},
        ).one()
        counts = crawls.counts(connection, self._crawl.source_id, self._crawl.crawl_id)
        done = counts.get("accepted", 0) + counts.get("unchanged", 0)
        return Standing(status=row.status, next_at=row.next_at), row.now, done, row.leased

    # Workers

    def _fill(self) -> None:
        while len(self._workers) < self._crawl.workers and time.monotonic() >= self._start_at:
            self._workers.append(WorkerProcess(self._orders(), self._database.url))

    def _orders(self) -> Orders:
        workers = self._crawl.workers
        return Orders(
            kind="crawl",
            crawl_id=str(self._crawl.crawl_id),
            source_id=self._crawl.source_id,
            run_id=self._crawl.run_id,
            worker_id=f"{self._crawl.run_id[:8]}-{uuid.uuid4().hex[:8]}",
            contract=self._crawl.contract,
            in_flight=max(1, -(-self._contract.limits.max_in_flight // workers)),
            slots=max(1, -(-self._contract.politeness.slots // (2 * workers))),
            patience=self._database.patience.total_seconds(),
            lease_for=self._lease_for.total_seconds(),
            grace=self._grace.total_seconds(),
        )

    def _reap(self) -> None:
        page_timeout = self._contract.fetch.page_timeout.total_seconds()
        for worker in list(self._workers):
            end = worker.watch(page_timeout)
            if end is not None:
                self._workers.remove(worker)
                self._ended(worker, end)

    def _ended(self, worker: WorkerProcess, end: End) -> None:
        pages, others, _ = worker.hand.counts()
        worker.close()
        charged = self._charge(end)  # a transaction of its own: it locks up to queues, the next one begins with leases
        self._database.retry(
            lambda connection: crawls.end_worker(connection, worker.worker_id, end.ended_by, pages, others)
        )
        if end.error is not None:
            raise end.error
        self._deaths = 0 if charged is not None or end.pages_finished else self._deaths + 1
        self._start_at = time.monotonic() + min(5.0, 0.1 * 2**self._deaths if self._deaths else 0.0)
        log.warning(
            "worker_died",
            extra={"worker_id": worker.worker_id, "ended_by": end.ended_by, "charged": charged, "said": end.last_words},
        )
        if self._deaths >= _MOST_DEATHS:
            last = end.last_words.splitlines()[-1] if end.last_words else "nothing"
            raise WorkersKeepDying(
                f"worker processes ended {self._deaths} times in a row without finishing a page, the last by "
                f"{end.ended_by}; its last words: {last}. Mend that, then run the same command again"
            )

    def _charge(self, end: End) -> str | None:
        held = end.held
        if held is None:
            return None
        return self._database.retry(
            lambda connection: crawls.charge(connection, held.token, held.key, is_stalled=end.is_stalled)
        )

    def _end_all(self) -> None:
        """Stop every worker within the grace time; what they held is given back, by them or for them."""
        for worker in self._workers:
            worker.stop()
        page_timeout = self._contract.fetch.page_timeout.total_seconds()
        while self._workers:
            for worker in list(self._workers):
                end = worker.watch(page_timeout)
                if end is None:
                    continue
                self._workers.remove(worker)
                pages, others, _ = worker.hand.counts()
                worker.close()
                self._forget(worker.worker_id, end, pages, others)
            time.sleep(0.02)

    def _forget(self, worker_id: str, end: End, pages: int, others: int) -> None:
        try:
            self._database.retry(
                lambda connection: crawls.end_worker(connection, worker_id, end.ended_by, pages, others),
                stop=_NOW,
            )
        except DatabaseUnavailable as error:  # the next run gives them back, or their expiry does
            log.warning("leases_not_released", extra={"worker_id": worker_id, "error": str(error)})

    def _report(self) -> None:
        self._on_progress(self._database.retry(self._progress))

    def _progress(self, connection: sa.Connection) -> Progress:
        urls = crawls.counts(connection, self._crawl.source_id)
        counts = crawls.counts(connection, self._crawl.source_id, self._crawl.crawl_id)
        done = sum(counts.get(name, 0) for name in ("accepted", "unchanged", "rejected"))
        elapsed = time.monotonic() - self._started
        return Progress(
            crawl_id=self._crawl.crawl_id,
            elapsed=elapsed,
            urls=urls,
            done=done,
            known=sum(urls.values()),
            accepted=counts.get("accepted", 0),
            unchanged=counts.get("unchanged", 0),
            rejected=counts.get("rejected", 0),
            quarantined=counts.get("quarantined", 0),
            retried=counts.get("retried", 0),
            requests=crawls.requests(connection, self._crawl.crawl_id)[0],
            pages_per_second=done / elapsed if elapsed > 0 else 0.0,
            workers_alive=len(self._workers),
        )


_NOW = threading.Event()
_NOW.set()


def run_workers(
    database: Database,
    crawl: OpenedCrawl,
    *,
    is_run_live: Callable[[], bool],
    on_progress: Callable[[Progress], None],
    stop: threading.Event,
) -> str:
    """Run a crawl's workers until it ends; see `Supervisor.run`."""
    return Supervisor(database, crawl, is_run_live=is_run_live, on_progress=on_progress, stop=stop).run()

"""The heartbeat: keeps a worker's leases alive and its counts known, on a connection and a stop signal of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container, Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa

from crawl_pipeline.domain.pages import LeaseToken
from crawl_pipeline.errors import DatabaseUnavailable
from crawl_pipeline.pipeline.leases import DatabaseClock
from crawl_pipeline.pipeline.observations import Observations
from crawl_pipeline.storage import crawls
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.frontier import LEASE_FOR, Frontier

BEAT = timedelta(seconds=1)

log = logging.getLogger(__name__)

Renewed = Callable[[Sequence[LeaseToken], dict[LeaseToken, datetime]], None]


class Heartbeat(threading.Thread):
    """Every second: counts, clock, how hosts do. Every third of a lease: renewal of all tokens.

    An unreachable database is tried again until it answers: the leases' own expiry ends the work, not this thread.
    """

    def __init__(
        self,
        database: Database,
        frontier: Frontier,
        clock: DatabaseClock,
        *,
        worker_id: str,
        tokens: Callable[[], Sequence[LeaseToken]],
        counts: Callable[[], tuple[int, int]],
        on_renewed: Renewed,
        observations: Observations,
        on_drain: Callable[[Sequence[int]], None],
        on_failed: Callable[[BaseException], None],
        stop: threading.Event,
        lease_for: timedelta = LEASE_FOR,
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._database = database
        self._frontier = frontier
        self._clock = clock
        self._worker_id = worker_id
        self._tokens = tokens
        self._counts = counts
        self._on_renewed = on_renewed
        self._observations = observations
        self._on_drain = on_drain
        self._on_failed = on_failed
        self._renew_every = lease_for.total_seconds() / 3
        self._ending = stop

    def run(self) -> None:
        """Beat until stopped."""
        renewed_at = time.monotonic()
        while not self._ending.wait(BEAT.total_seconds()):
            try:
                self.beat()
                self._look_at_hosts()
                if time.monotonic() - renewed_at >= self._renew_every:
                    self._renew()
                    renewed_at = time.monotonic()
            except DatabaseUnavailable as error:
                log.warning("heartbeat_missed", extra={"error": str(error)})
            except Exception as error:  # leases that nobody renews must not be claimed on
                self._on_failed(error)
                return

    def stop(self, timeout: float) -> None:
        """End it, and wait until a renewal in flight has ended."""
        self._ending.set()
        self.join(timeout)

    def beat(self) -> None:
        """Save the counts and set the clock. Raises DatabaseUnavailable."""
        pages, others = self._counts()

        def work(connection: sa.Connection) -> tuple[float, datetime, float]:
            crawls.beat_worker(connection, self._worker_id, pages, others)
            asked = time.monotonic()
            now = connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
            return asked, now, time.monotonic()

        self._clock.observe(*self._database.retry(work, stop=self._ending))

    def _look_at_hosts(self) -> None:
        """Tell how hosts answered; drain what any worker put to rest (429, an outage) or saw in trouble."""
        seen = self._observations.take(time.monotonic())
        if seen:
            told: Container[int] = ()
            try:
                told = self._frontier.observe_hosts(seen)
            finally:
                self._observations.put_back([one for one in seen if one.host_id not in told])
        tokens = self._tokens()
        hosts = self._frontier.to_drain(tokens) if tokens else []
        if hosts:
            self._on_drain(hosts)

    def _renew(self) -> None:
        tokens = self._tokens()
        if tokens:
            self._on_renewed(tokens, self._frontier.renew(tokens))

"""One life of a worker process, as its supervisor sees it: start, what it has in hand, stop, and what its end means."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

import psutil

from crawl_pipeline.errors import CrawlError
from crawl_pipeline.pipeline.hand import Hand, Held
from crawl_pipeline.pipeline.nursery import nursery
from crawl_pipeline.pipeline.orders import Orders, error_of

_STALL_MARGIN = 1.0  # seconds beyond `page_timeout`, by when the worker's own timer has failed to stop the page


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a worker ended. `held`: the page in hand, where it died or stalled with one."""

    ended_by: str
    held: Held | None
    is_stalled: bool
    error: CrawlError | None  # what the worker gave up for
    last_words: str  # of its standard error
    pages_finished: int


class WorkerProcess:
    """A child process that shares a `Hand` with its supervisor and ends when their pipe closes."""

    def __init__(self, orders: Orders, database_url: str) -> None:
        self.worker_id = orders.worker_id
        self._grace = orders.grace
        self._file = tempfile.TemporaryFile(prefix="crawl-hand-")  # noqa: SIM115  closed by `close`
        self.hand = Hand(self._file)
        self._errors: IO[bytes] = tempfile.TemporaryFile(prefix="crawl-worker-")  # noqa: SIM115  closed at its end
        # A file and no pipe: a process that an extractor forked may hold it open for as long as it lives.
        self._report: IO[bytes] = tempfile.TemporaryFile(prefix="crawl-report-")  # noqa: SIM115  closed at its end
        self._process = nursery().fork(
            output=self._report.fileno(),
            errors=self._errors.fileno(),
            hand=self._file.fileno(),
            environment={
                **os.environ,
                "CRAWL_WORKER_DATABASE": database_url,
                "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),  # custom extractors too
            },
        )
        self.pid = self._process.pid
        self._stop_by: float | None = None
        self._stalled: Held | None = None
        with suppress(BrokenPipeError):  # it is dead already; `end` tells of what
            self._process.stdin.write(orders.to_line())
            self._process.stdin.flush()

    def stop(self) -> None:
        """Ask it to stop: finish, commit, give the rest back. After the grace time `watch` kills it."""
        if self._stop_by is None:
            self._stop_by = time.monotonic() + self._grace
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def watch(self, page_timeout: float) -> End | None:
        """Kill it where it stalls with a page in hand or overruns its grace; its end, once it has ended."""
        if self._process.poll() is None:
            held = self.hand.held()
            if held is not None and held.seconds > page_timeout * 1.1 + _STALL_MARGIN and not self._is_suspended():
                self._stalled = held
                self._process.kill()
            elif self._stop_by is not None and time.monotonic() > self._stop_by:
                self._process.kill()
            if self._process.poll() is None:
                return None
        return self._end()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def _is_suspended(self) -> bool:
        """A stopped process (SIGSTOP) has not overrun anything: its leases run out instead."""
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:
            return False

    def _end(self) -> End:
        code = self._process.wait()
        self._report.seek(0)
        said = self._report.read(4000).decode("utf-8", "replace").strip()
        self._report.close()
        held = self._stalled or self.hand.held()  # whatever the code: who stops as asked has nothing in hand
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 4000))
        end = End(
            ended_by=f"signal {-code}" if code < 0 else f"exit {code}",
            held=held,
            is_stalled=self._stalled is not None,
            error=error_of(code, said) if held is None else None,
            last_words=self._errors.read().decode("utf-8", "replace").strip(),
            pages_finished=self.hand.counts()[2],
        )
        self._errors.close()
        return end

    def close(self) -> None:
        """Forget what was shared."""
        self.hand.close()
        self._file.close()

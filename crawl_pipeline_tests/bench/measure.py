"""Runs a crawler's command and says what it cost: wall time, CPU and memory of its whole process tree."""

from __future__ import annotations

import resource
import subprocess
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from crawl_pipeline_tests.bench.origin import OriginStats

_SAMPLE_EVERY = 0.1  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One crawler over one site, once.

    `elapsed` is the command from start to exit, `crawling` the time from the first to the last page request that the
    origin saw. `cpu` and `peak_bytes` are the crawler's own processes; `database_*` those of a database server that it
    brought along (0 without one). `crawling_cpu` is the part of both that fell between the first and the last request:
    what a further page costs, without start and end. All times in seconds.
    """

    name: str
    settings: Mapping[str, str]
    pages: int
    items: int
    requests: int
    elapsed: float
    crawling: float
    cpu: float
    peak_bytes: int
    crawling_cpu: float
    database_cpu: float = 0.0
    database_peak_bytes: int = 0

    @property
    def pages_per_second(self) -> float:
        return self.pages / self.crawling if self.crawling else 0.0

    @property
    def cpu_per_page(self) -> float:
        """The database's share included: a page is not done before it is stored."""
        return (self.cpu + self.database_cpu) / self.pages if self.pages else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one command cost, and what it printed."""

    output: str
    elapsed: float
    cpu: float
    peak_bytes: int
    database_cpu: float
    database_peak_bytes: int
    samples: Sequence[tuple[float, float]]  # seconds since the epoch, CPU seconds so far of crawler and database

    def cpu_between(self, first_at: float, last_at: float) -> float:
        """CPU seconds of crawler and database between two times, to within a sample."""
        if not self.samples:
            return 0.0
        times = [at for at, _ in self.samples]
        first, last = (min(bisect_left(times, at), len(times) - 1) for at in (first_at, last_at))
        return self.samples[last][1] - self.samples[first][1]


class CommandFailed(Exception):
    """A command ended with a non-zero exit code; the text ends with the last lines that it said."""

    def __init__(self, command: Sequence[str], exit_code: int, said: str) -> None:
        self.exit_code = exit_code
        last = "\n".join(said.strip().splitlines()[-8:])
        super().__init__(f"{' '.join(command)} ended with exit code {exit_code}:\n{last}")


def run_measured(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    database_pid: Callable[[], int | None] = lambda: None,
) -> Cost:
    """Run the command to its end. `database_pid` names a server outside its tree that works for it.

    The crawler's CPU is the kernel's count over the command and the descendants that it waited for; the database's is
    sampled, and so misses what each of its processes did within its last tenth of a second.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    process = subprocess.Popen(list(command), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with _Meter(process.pid, database_pid) as meter:
        output, errors = process.communicate()
    elapsed = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode != 0:
        raise CommandFailed(command, process.returncode, errors or output)
    return Cost(
        output=output,
        elapsed=elapsed,
        cpu=(after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime),
        peak_bytes=meter.crawler.peak_bytes,
        database_cpu=meter.database.cpu(),
        database_peak_bytes=meter.database.peak_bytes,
        samples=meter.samples,
    )


def measurement(name: str, settings: Mapping[str, str], items: int, cost: Cost, seen: OriginStats) -> Measurement:
    """A crawl that began with a fresh origin: the origin's count of requests, not the crawler's own, is what counts."""
    return Measurement(
        name=name,
        settings=settings,
        pages=min(items, seen.requests),
        items=items,
        requests=seen.requests,
        elapsed=cost.elapsed,
        crawling=seen.last_at - seen.first_at,
        cpu=cost.cpu,
        peak_bytes=cost.peak_bytes,
        crawling_cpu=cost.cpu_between(seen.first_at, seen.last_at),
        database_cpu=cost.database_cpu,
        database_peak_bytes=cost.database_peak_bytes,
    )


def postmaster_pid(data_folder: Path) -> int | None:
    """The pid of the Postgres server whose data lies in the folder, None while there is none."""
    with suppress(OSError, ValueError, IndexError):
        return int((data_folder / "postmaster.pid").read_text(encoding="ascii").splitlines()[0])
    return None


@dataclass(slots=True)
class _Group:
    """Processes that are counted together. CPU by process, so that one that ended stays counted."""

    cpu_by_process: dict[psutil.Process, float] = field(default_factory=dict)
    peak_bytes: int = 0

    def cpu(self) -> float:
        return sum(self.cpu_by_process.values(), 0.0)

    def sample(self, processes: Sequence[psutil.Process]) -> None:
        total = 0
        for process in processes:
            with suppress(psutil.Error):
                times = process.cpu_times()
                self.cpu_by_process[process] = times.user + times.system
                total += _memory(process)
        self.peak_bytes = max(self.peak_bytes, total)


def _memory(process: psutil.Process) -> int:
    """Proportional set size where the system has it, so that shared pages count once; else resident set size."""
    full = process.memory_full_info()
    return int(getattr(full, "pss", full.rss))


class _Meter(threading.Thread):
    """Samples a command's tree, and a database's apart, until its `with` block ends."""

    def __init__(self, pid: int, database_pid: Callable[[], int | None]) -> None:
        super().__init__(name="meter", daemon=True)
        self.crawler = _Group()
        self.database = _Group()
        self.samples: list[tuple[float, float]] = []
        self._root = psutil.Process(pid)
        self._database_pid = database_pid
        self._ended = threading.Event()

    def __enter__(self) -> _Meter:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(_SAMPLE_EVERY):
            database = self._tree(self._database_pid())
            crawler = [process for process in self._tree(self._root.pid) if process not in database]
            self.database.sample(database)
            self.crawler.sample(crawler)
            self.samples.append((time.time(), self.crawler.cpu() + self.database.cpu()))

    def _tree(self, pid: int | None) -> list[psutil.Process]:
        if pid is None:
            return []
        try:
            root = psutil.Process(pid)
            return [root, *root.children(recursive=True)]
        except psutil.Error:
            return []

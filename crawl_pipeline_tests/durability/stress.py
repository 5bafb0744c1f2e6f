"""Worker processes that claim, renew, complete and release against one database while others kill and stop them.

`python -m crawl_pipeline_tests.durability.stress URL [JSON]` runs it and prints a report; the requests are imagined,
all else is real. What must hold is read from the database afterwards, and from the workers' logs of planned starts.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from crawl_pipeline.domain.pages import CrawlId
from crawl_pipeline.storage import crawls, robots, sources
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests.durability.stress_worker import TOLERANCE, Plan, Worker
from crawl_pipeline_tests.storage.invariants import broken_invariants
from crawl_pipeline_tests.storage.world import HOLDER, World


@dataclass(slots=True, kw_only=True)
class Report:
    """What was seen. `is_good` says whether everything held."""

    kills: int = 0
    stops: int = 0
    lost: int = 0  # pages that a stale token did not store
    starts: int = 0
    seconds: float = 0.0
    quarantined: int = 0  # by workers that died; released at the end
    unfinished: dict[str, int] = field(default_factory=dict)
    stored_twice: list[str] = field(default_factory=list)
    slots_taken_twice: list[str] = field(default_factory=list)
    starts_too_close: list[str] = field(default_factory=list)
    early_starts: int = 0
    conflicts: list[str] = field(default_factory=list)
    deadlocks: int = 0
    broken: dict[str, str] = field(default_factory=dict)

    def is_good(self) -> bool:
        """Whether nothing was lost, doubled, stranded or impolite."""
        wrong = (self.unfinished, self.stored_twice, self.slots_taken_twice, self.starts_too_close, self.early_starts)
        return not any((*wrong, self.conflicts, self.deadlocks, self.broken))


class Conductor:
    """Forks the workers, kills and stops them, and sees that all that was to be done is done."""

    def __init__(self, url: str, plan: Plan) -> None:
        self._url, self._plan = url, plan
        self._database = Database.connect(url)
        self._world = World(self._database)
        self._rng = random.Random(plan.seed)
        self._folder = Path(tempfile.mkdtemp(prefix="stress-"))
        self._crawls: list[tuple[int, CrawlId]] = []
        self._workers: dict[int, tuple[str, int]] = {}  # pid: worker, index of its source
        self._stopped: dict[int, tuple[float, int]] = {}  # pid: until when, and who will wake it
        self._numbers = iter(range(1_000_000))
        self.report = Report()

    def run(self) -> Report:
        """Play the plan; never leaves a process behind."""
        started = time.monotonic()
        self._set_up()
        try:
            for index in range(len(self._plan.slots)):
                for _ in range(self._plan.workers):
                    self._start(index)
            self._disturb(started)
            self._finish(started)
        finally:
            for pid in list(self._workers):
                self._kill(pid)
        self.report.seconds = round(time.monotonic() - started, 1)
        self._look()
        return self.report

    def _set_up(self) -> None:
        plan, world = self._plan, self._world
        world.execute("""
            CREATE TABLE lease_log (log_id bigint GENERATED ALWAYS AS IDENTITY, lease_token uuid, host_id int,
                                    slot_nos smallint[], slots int, is_end boolean, at timestamptz)
        """)
        world.execute("""
            CREATE FUNCTION log_lease() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
              INSERT INTO lease_log (lease_token, host_id, slot_nos, slots, is_end, at)
                SELECT l.lease_token, l.host_id, l.slot_nos, h.slots, TG_OP = 'DELETE', clock_timestamp()
                  FROM (SELECT (CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END).*) l JOIN hosts h USING (host_id);
              RETURN NULL;
            END $$
        """)
        world.execute(
            "CREATE TRIGGER log_lease AFTER INSERT OR DELETE ON leases FOR EACH ROW EXECUTE FUNCTION log_lease()"
        )
        for index, slots in enumerate(plan.slots):
            source_id = world.source(f"s{index}", slots=slots)
            world.seed(source_id, *(plan.url(index, n) for n in range(min(len(plan.delays), plan.pages))))
            self._crawls.append((source_id, world.crawl(source_id)))
        for number, delay in enumerate(plan.delays):
            host_id = world.scalar("SELECT host_id FROM hosts WHERE authority = :a", a=f"h{number}")
            robots.ask_crawl_delay(
                self._database, self._crawls[0][0], host_id, f"https://h{number}", timedelta(seconds=delay)
            )

    def _start(self, index: int) -> None:
        worker_id = f"w{next(self._numbers)}"
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                Worker(self._url, self._plan, *self._crawls[index], worker_id, self._folder / worker_id).run()
                code = 0
            except BaseException as error:
                sys.stderr.write(f"{worker_id}: {error!r}\n")
            finally:
                os._exit(code)
        self._workers[pid] = worker_id, index

    def _kill(self, pid: int) -> tuple[str, int]:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        worker = self._workers.pop(pid)
        self._wake(pid)
        return worker

    def _stop(self, pid: int) -> None:
        """Stop a worker past its lease. Another process wakes it: it may hold locks that this one waits for."""
        stopped_for = self._plan.lease_for + self._rng.uniform(0.2, 1.5)
        os.kill(pid, signal.SIGSTOP)
        waker = os.fork()
        if waker == 0:
            time.sleep(stopped_for)
            os.kill(pid, signal.SIGCONT)
            os._exit(0)
        self._stopped[pid] = time.monotonic() + stopped_for, waker
        self.report.stops += 1

    def _wake(self, pid: int) -> None:
        if pid in self._stopped:
            _, waker = self._stopped.pop(pid)
            os.kill(waker, signal.SIGKILL)
            os.waitpid(waker, 0)
            if pid in self._workers:
                os.kill(pid, signal.SIGCONT)

    def _disturb(self, started: float) -> None:
        while time.monotonic() - started < self._plan.disturb_for and not self._is_done():
            self._beat()
            running = [pid for pid in self._workers if pid not in self._stopped]
            if running and self._rng.random() < 0.5:
                self._kill_one(self._rng.choice(running))
            elif len(running) > 1:
                self._stop(self._rng.choice(running))
            time.sleep(self._rng.uniform(0.2, 1.0))
        for pid in list(self._stopped):
            self._wake(pid)

    def _kill_one(self, pid: int) -> None:
        worker_id, index = self._kill(pid)
        self.report.kills += 1
        if self._rng.random() < 0.6:  # its supervisor saw it: what it held goes back at once; else the lease runs out
            held = self._world.rows("SELECT lease_token, url_keys FROM leases WHERE worker_id = :w", w=worker_id)
            if held:
                token, key = held[0].lease_token, held[0].url_keys[0]
                self._database.retry(lambda connection: crawls.charge(connection, token, key, is_stalled=False))
            self._database.retry(lambda connection: crawls.end_worker(connection, worker_id, "SIGKILL", 0, 0))
        self._start(index)

    def _beat(self) -> None:
        for pid, (until, _) in list(self._stopped.items()):
            if time.monotonic() >= until:
                self._wake(pid)
        for _, crawl_id in self._crawls:
            self._database.retry(lambda c, crawl_id=crawl_id: crawls.heartbeat(c, crawl_id, HOLDER.run_id))  # type: ignore[misc]
        crawls.fold_counters(self._database)

    def _is_done(self) -> bool:
        statuses = [self._world.scalar("SELECT status FROM finished(:c)", c=crawl_id) for _, crawl_id in self._crawls]
        return statuses == ["finished"] * len(statuses)

    def _finish(self, started: float) -> None:
        while time.monotonic() - started < self._plan.finish_within:
            self._beat()
            if self._is_done():
                released = [sources.release_quarantined(self._database, s, None, None) for s, _ in self._crawls]
                self.report.quarantined += sum(released)
                if not any(released):
                    break
            time.sleep(0.1)
        for pid in list(self._workers):
            os.kill(pid, signal.SIGTERM)
        for pid in list(self._workers):
            _, status = os.waitpid(pid, 0)
            worker_id, _ = self._workers.pop(pid)
            if status != 0:
                self.report.broken[worker_id] = f"ended with status {status}"

    # What was seen

    def _look(self) -> None:
        report, world = self.report, self._world
        for index, (source_id, _) in enumerate(self._crawls):
            accepted = world.states(source_id).get("accepted", 0)
            if accepted != self._plan.pages:
                report.unfinished[f"s{index}"] = self._plan.pages - accepted
        stored_twice = world.rows("""
            SELECT u.url FROM urls u WHERE (SELECT count(*) FROM page_versions v WHERE v.url_key = u.url_key) > 1
               OR (SELECT count(*) FROM fetches f WHERE f.url_key = u.url_key AND f.outcome = 'accepted') > 1
        """)
        report.stored_twice = [row.url for row in stored_twice]
        report.slots_taken_twice = list(self._slots_taken_twice())
        self._look_at_starts()
        report.broken |= {name: str(rows[:3]) for name, rows in broken_invariants(self._database).items()}
        self._database.close()  # statistics are told when a connection ends
        self._database = Database.connect(self._url)
        report.deadlocks = World(self._database).scalar(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        self._database.close()

    def _slots_taken_twice(self) -> Iterator[str]:
        holders: dict[tuple[int, int], Any] = {}
        for row in self._world.rows("SELECT * FROM lease_log ORDER BY at, log_id"):
            for slot in row.slot_nos:
                holder = holders.get((row.host_id, slot))
                if row.is_end:
                    if holder == row.lease_token:
                        del holders[row.host_id, slot]
                    continue
                if holder is not None or slot >= row.slots:
                    yield f"host {row.host_id}: slot {slot} of {row.slots} at {row.at}"
                holders[row.host_id, slot] = row.lease_token

    def _look_at_starts(self) -> None:
        starts: dict[str, list[float]] = {}
        for file in self._folder.iterdir():
            for line in file.read_text().splitlines():
                told = json.loads(line)
                if "at" in told:
                    starts.setdefault(told["host"], []).append(told["at"])
                    self.report.early_starts += told["real"] < told["at"] - TOLERANCE
                elif "lost" in told:
                    self.report.lost += told["lost"]
                else:
                    self.report.conflicts.append(told["conflict"])
        shutil.rmtree(self._folder)
        for host, times in sorted(starts.items()):
            self.report.starts += len(times)
            delay = self._plan.delays[int(host[1:])]
            for earlier, later in pairwise(sorted(times)):
                if later - earlier < delay - TOLERANCE:
                    self.report.starts_too_close.append(f"{host}: {later - earlier:.4f} s, at {earlier:.3f}")


def main(arguments: Sequence[str]) -> int:
    """Run a plan against a migrated database and print what was seen."""
    changes: dict[str, Any] = json.loads(arguments[1]) if len(arguments) > 1 else {}
    lists: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in changes.items()}
    plan = replace(Plan(), **lists)
    report = Conductor(arguments[0], plan).run()
    print(json.dumps(asdict(report), indent=2))
    return 0 if report.is_good() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

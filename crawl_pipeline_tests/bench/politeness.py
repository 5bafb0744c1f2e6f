"""Whether hosts' budgets hold while workers are killed: judged from the hosts' own log, against what was asked of them.

Three sources, a worker process each, share twenty hosts; some answers are 429, with and without Retry-After. A healthy
crawler has no violation, however loaded the machine is: what the tolerances are for is said in `ABOUT`.
"""

from __future__ import annotations

import os
import random
import signal
import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.crawling import Running, load, start
from crawl_pipeline_tests.site import Answer, Asked, Served, Site, page

REST = 4  # seconds: asked for by Retry-After, and the cap where there is no such header
WINDOW = 5.0
LATE = 0.1  # seconds that an arrival may be noted late, under load
KNOWN_WITHIN = 2.5  # seconds after which every worker knows of a rest: its heartbeat's second, and some load
ABOUT = f"""\
least gap: between arrivals. A worker that is held up may start late by a quarter of the delay (at most 0.25 s), and an
arrival may be noted {LATE:g} s late; so a violation is a gap below three quarters of the delay less {LATE:g} s, or more
requests within {WINDOW:g} s than the delay allows and one. most open: what a killed worker asked
for counts until its death.
in rests: requests between a 429 and the end of its rest. Those that were on their way are no violation, up to the
host's slots; any after {KNOWN_WITHIN:g} s is. A 429 whose worker was killed within a second was told to nobody."""
_HOSTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What the strictest of a host's sources asks."""

    slots: int
    delay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostVerdict:
    """What one host saw, against its budget."""

    host: str
    budget: Budget
    requests: int
    most_open: int
    least_gap: float
    most_in_window: int
    window_budget: int
    throttles: int
    in_rests: int
    violations: tuple[str, ...]


def stress(
    database: Database, *, seconds: float, hosts: int = _HOSTS, kill_every: float = 3.0, seed: int = 0
) -> list[HostVerdict]:
    """Crawl, kill, and judge each host."""
    rng = random.Random(seed)

    def answer(asked: Asked) -> Answer:
        if rng.random() < 0.03:
            return Answer(status=429, headers={"Retry-After": str(REST)} if rng.random() < 0.5 else {})
        links = [f"{asked.path.rstrip('/')}/{n}" for n in range(8)] if asked.path.count("/") < 6 else []
        return Answer(body=page(asked.path, *links).body, delay=rng.choice((0.005, 0.02, 0.1, 0.7)))

    with Site(answer, hosts=hosts) as site:
        parts = [
            (Budget(slots=1, delay=0.6), site.authorities[3 * hosts // 4 :]),
            (Budget(slots=2, delay=0.4), site.authorities[: hosts // 2]),
            (Budget(slots=3, delay=0.2), site.authorities),
        ]
        # the strictest first, so that the budget of a host is its last from the first request on
        crawls = [_start(database, n, budget, part) for n, (budget, part) in enumerate(parts)]
        wait_until(lambda: {one.host for one in site.pages_asked} == set(site.authorities), within=120)
        kills = _kill(crawls, rng, seconds, kill_every)
        for running in crawls:
            running.stop.set()
        for running in crawls:
            running.join()
        asked, served = list(site.asked), list(site.served)
        budgets = {host: next(budget for budget, part in parts if host in part) for host in site.authorities}
    return [
        judged(
            host,
            budgets[host],
            [one for one in asked if one.host == host],
            [one for one in served if one.asked.host == host],
            kills,
        )
        for host in budgets
    ]


def _start(database: Database, number: int, budget: Budget, hosts: Sequence[str]) -> Running:
    politeness = {"slots": budget.slots, "min_delay": f"{budget.delay * 1000:.0f}ms", "max_retry_after": f"{REST}s"}
    loaded = load(
        {
            "source": f"source_{number}",
            "seeds": [f"http://{host}/{number}" for host in hosts],
            "sitemaps": "none",
            "scope": {"hosts": list(hosts)},
            "politeness": {**politeness, "adaptive": False},
            "fetch": {"allow_networks": ["127.0.0.0/8"], "timeout": "10s"},
        }
    )
    return start(database, loaded, workers=1)


def _kill(crawls: Sequence[Running], rng: random.Random, seconds: float, every: float) -> list[float]:
    kills: list[float] = []
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, rng.uniform(0.5, 1.5) * every))
        pids = rng.choice(crawls).pids()
        if pids:
            with suppress(ProcessLookupError):
                os.kill(rng.choice(pids), signal.SIGKILL)
                kills.append(time.monotonic())
    return kills


def judged(
    host: str, budget: Budget, asked: Sequence[Asked], served: Sequence[Served], kills: Sequence[float]
) -> HostVerdict:
    """One host's log against its budget."""
    at = sorted(one.at for one in asked)
    least_gap = min((later - sooner for sooner, later in pairwise(at)), default=WINDOW)
    most_open = _most_open(served, kills)
    most_in_window = max((number - bisect_left(at, one - WINDOW) + 1 for number, one in enumerate(at)), default=0)
    window_budget = int(WINDOW / budget.delay) + 2  # both ends, and one that came late
    faults = []
    if least_gap < 0.75 * budget.delay - LATE:
        faults.append(f"gap {least_gap:.3f} s")
    if most_open > budget.slots:
        faults.append(f"{most_open} open")
    if most_in_window > window_budget:
        faults.append(f"{most_in_window} in {WINDOW:g} s")
    throttles = [one for one in served if one.status == 429]
    in_rests = 0
    for one in throttles:
        if one.was_cut or any(one.until - 0.1 < kill < one.until + 1 for kill in kills):
            continue
        during = [arrival - one.until for arrival in at if one.until < arrival < one.until + REST - LATE]
        in_rests += len(during)
        if len(during) > budget.slots or any(after > KNOWN_WITHIN for after in during):
            faults.append(f"{len(during)} in a rest, the last after {max(during):.1f} s")
    return HostVerdict(
        host=host,
        budget=budget,
        requests=len(asked),
        most_open=most_open,
        least_gap=least_gap,
        most_in_window=most_in_window,
        window_budget=window_budget,
        throttles=len(throttles),
        in_rests=in_rests,
        violations=tuple(faults),
    )


def _most_open(served: Sequence[Served], kills: Sequence[float]) -> int:
    """Most requests at once; a cut one was nobody's any more from the kill on."""
    changes = []
    for one in served:
        cut = [kill for kill in kills if one.asked.at <= kill <= one.until] if one.was_cut else []
        changes += [(one.asked.at, 1), (cut[-1] if cut else one.until, -1)]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most

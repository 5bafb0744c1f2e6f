"""Kills a crawler again and again on the demo shop, starts it again each time, and counts what that cost.

Killed is what was started and every process below it, all at once; a database server that runs beside them is not.
A contestant is killed with SIGKILL each time it has fetched a certain number of *new* pages, so that all are
killed at the same progress, however much of it it then does again.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path

import psutil

from crawl_pipeline.demo.contract import DEMO_SOURCE, demo_contract_text
from crawl_pipeline.demo.shop import Shop
from crawl_pipeline_tests.bench import naive
from crawl_pipeline_tests.bench.measure import CommandFailed
from crawl_pipeline_tests.bench.ours import our_home

PAGES = 525
_PATIENCE = 300.0  # seconds that one start may take to get to its next kill, or to its end

Row = tuple[str, str, str]  # SKU, name, price


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """How to start one crawler on the shop (the same command each time), and what it has stored in the end."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str] | None
    stored: Callable[[], list[Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KillResult:
    """What was asked of the shop and what was stored, after all kills and one undisturbed end."""

    name: str
    kills: int
    requests: int  # for pages
    pages: int  # different ones that were answered
    rows: int
    right: int  # SKUs of the shop that are stored at least once, with their name and price
    duplicates: int  # rows beyond the first of their SKU
    wrong: int  # rows that are not what the shop shows
    elapsed: float

    @property
    def repeated(self) -> int:
        """Requests that fetched a page again."""
        return self.requests - self.pages

    @property
    def missing(self) -> int:
        return 500 - self.right


class CrawlerStuck(Exception):
    """A contestant neither got to its next kill nor ended by itself within patience."""


def killed(contestant: Contestant, shop: Shop, points: Sequence[int]) -> KillResult:
    """Kill the contestant when it has fetched so many different pages, point after point, then let it finish."""
    began = time.monotonic()
    done = sum(_is_killed(contestant, partial(_has_answered, shop, pages)) for pages in points)
    _is_killed(contestant, lambda: False)
    return _judge(contestant, shop, done, time.monotonic() - began)


def kill_points(kills: int, seed: int) -> list[int]:
    """How many different pages were fetched when a kill falls: at random over 5 to 95 % of the shop, in order."""
    return sorted(random.Random(seed).sample(range(PAGES * 5 // 100, PAGES * 95 // 100), kills))


def _has_answered(shop: Shop, pages: int) -> bool:
    return _progress(shop) >= pages


def _progress(shop: Shop) -> int:
    return len({request.path.partition("?")[0] for request in tuple(shop.requests) if request.status in (200, 304)})


def _is_killed(contestant: Contestant, is_far_enough: Callable[[], bool]) -> bool:
    """Start it, and wait for its death at our hands (True) or for its own good end (False)."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(contestant.command, env=contestant.env, stdout=said, stderr=said)
        patience = time.monotonic() + _PATIENCE
        try:
            while process.poll() is None and not is_far_enough():
                if time.monotonic() > patience:
                    raise CrawlerStuck(f"{contestant.name} did nothing new for {_PATIENCE:.0f} s")
                time.sleep(0.005)
        finally:
            was_running = process.poll() is None
            if was_running:
                kill_tree(process.pid)
                process.wait()
        if not was_running and process.returncode != 0:
            said.seek(0)
            raise CommandFailed(contestant.command, process.returncode, said.read())
    return was_running


def kill_tree(pid: int) -> None:
    """SIGKILL to a process and all below it, parents first, so that none can react to another's death for long."""
    root = psutil.Process(pid)
    tree = [root, *(child for child in root.children(recursive=True) if not _is_database(child))]
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _is_database(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.name().startswith("postgres"))
    return False


def _judge(contestant: Contestant, shop: Shop, kills: int, elapsed: float) -> KillResult:
    expected = {(sku, str(record["name"]), record["price"]) for sku, record in shop.expected_records().items()}
    stored = [(sku, name, _decimal(price)) for sku, name, price in contestant.stored()]
    return KillResult(
        name=contestant.name,
        kills=kills,
        requests=len(shop.requests),
        pages=_progress(shop),
        rows=len(stored),
        right=len(expected & set(stored)),
        duplicates=sum(count - 1 for count in Counter(sku for sku, _, _ in stored).values()),
        wrong=sum(row not in expected for row in stored),
        elapsed=elapsed,
    )


def _decimal(price: str) -> Decimal | None:
    try:
        return Decimal(price)
    except InvalidOperation:
        return None


@contextmanager
def naive_contestant(shop: Shop, checkpoint_every: int = 100) -> Iterator[Contestant]:
    """The naive crawler, going on from its last checkpoint."""
    with tempfile.TemporaryDirectory(prefix="crawl-bench-") as folder:
        command = [sys.executable, "-m", "crawl_pipeline_tests.bench.naive", f"{shop.base_url}/list/0"]
        command += ["--folder", folder, "--checkpoint-every", str(checkpoint_every)]
        yield Contestant(name="naive", command=command, env=None, stored=lambda: naive.stored_rows(Path(folder)))


@contextmanager
def our_contestant(shop: Shop) -> Iterator[Contestant]:
    """Our crawler: the same command each time, which resumes what the last one left."""
    with our_home(DEMO_SOURCE, demo_contract_text(shop.base_url)) as home:

        def stored() -> list[Row]:
            return [(str(row["sku"]), str(row["name"]), str(row["price"])) for row in home.records()]

        yield Contestant(name="crawl_pipeline", command=home.crawl_command(), env=home.env, stored=stored)

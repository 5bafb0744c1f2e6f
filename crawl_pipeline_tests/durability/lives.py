"""Lives of a crawl as process groups, killed when the origin has served so many pages."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from crawl_pipeline.demo.contract import demo_contract_text
from crawl_pipeline.demo.shop import Shop

PAGES = 525
ROOT = Path(__file__).parents[2]


@dataclass
class Lives:
    """Starts the same crawl again and again, in an environment that says where its database and contracts are."""

    shop: Shop
    command: Sequence[str]
    environment: Mapping[str, str]
    slots: int
    workers: int
    kills: int = 0
    unsaved: int = 0  # requests that the origin saw in the last heartbeat before each kill
    said: list[str] = field(default_factory=list)

    def start(self) -> subprocess.Popen[str]:
        """A new life, in a process group of its own."""
        return subprocess.Popen(
            self.command,
            env={**os.environ, **self.environment},
            cwd=ROOT,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill_after(self, pages: int, *, within: float = 120) -> bool:
        """A life that is killed once the origin has served so many pages more; False where it ended before."""
        target = len(self.shop.requests) + pages
        process = self.start()
        deadline = time.monotonic() + within
        while len(self.shop.requests) < target and process.poll() is None:
            assert time.monotonic() < deadline, f"no {pages} pages within {within} s: {self.end(process)}"
            time.sleep(0.001)
        if process.poll() is not None:
            _, err = process.communicate()
            assert process.returncode == 0, err
            return False
        self.kill(process)
        return True

    def kill_in(self, seconds: float) -> None:
        """A life that is killed during its start-up."""
        process = self.start()
        time.sleep(seconds)
        self.kill(process)

    def kill(self, process: subprocess.Popen[str]) -> None:
        """SIGKILL the whole group, and wait until nothing of it is left."""
        now = time.time()
        os.killpg(process.pid, signal.SIGKILL)
        self.kills += 1
        process.communicate()
        self.unsaved += sum(1 for request in self.shop.requests if request.at > now - 1.5)

    def finish(self, *, within: float = 180) -> str:
        """A life that is let alone; what it said at its end."""
        process = self.start()
        out, err = process.communicate(timeout=within)
        assert process.returncode == 0, err
        return out.strip()

    def end(self, process: subprocess.Popen[str]) -> str:
        """Kill it and give its last words."""
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[1][-2000:]

    def spread(self, rng: random.Random, done: int) -> int:
        """After how many pages to kill the next life: 5 to 95 % of what it has to do."""
        return max(1, int((PAGES - done) * rng.uniform(0.05, 0.95)))


def shop_lives(shop: Shop, folder: Path, environment: Mapping[str, str], *, workers: int, slots: int) -> Lives:
    """Lives of a crawl of the shop, without Dagster."""
    write_contract(shop, folder, slots=slots)
    return Lives(
        shop=shop,
        command=[sys.executable, "-m", "crawl_pipeline_tests.durability.crawl_once", "demo_shop", str(workers)],
        environment={"CRAWL_SOURCES": str(folder), **environment},
        slots=slots,
        workers=workers,
    )


def write_contract(shop: Shop, folder: Path, *, slots: int) -> None:
    """The shop's contract with so many slots."""
    data = yaml.safe_load(demo_contract_text(shop.base_url))
    data["politeness"]["slots"] = slots
    folder.mkdir(exist_ok=True)
    (folder / "demo_shop.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")

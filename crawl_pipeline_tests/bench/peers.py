"""The peers of the speed table, each run as a command on a fresh origin."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from crawl_pipeline_tests.bench.measure import Cost, Measurement, measurement, run_measured
from crawl_pipeline_tests.bench.origin import Origin


def naive(origin: Origin, checkpoint_every: int = 100) -> Measurement:
    """The naive crawler: one request at a time, BeautifulSoup, SQLite."""
    with tempfile.TemporaryDirectory(prefix="crawl-bench-") as folder:
        command = [sys.executable, "-m", "crawl_pipeline_tests.bench.naive", origin.seed, "--folder", folder]
        cost, result = _run([*command, "--checkpoint-every", str(checkpoint_every)])
    return measurement("naive", {"checkpoint_every": str(checkpoint_every)}, int(result["items"]), cost, origin.stats())


def scrapy(origin: Origin, slots: int, *, python: str, remembers_links: bool) -> Measurement:
    """Scrapy of the interpreter `python`, with as many requests at once as we have."""
    with tempfile.TemporaryDirectory(prefix="crawl-bench-") as folder:
        command = [python, "-m", "crawl_pipeline_tests.bench.scrapy_peer", origin.seed, "--slots", str(slots)]
        command += ["--items", str(Path(folder) / "items.jsonl")]
        cost, result = _run([*command, "--remember-links"] if remembers_links else command)
    name = f"scrapy {result['version']}{', links remembered' if remembers_links else ''}"
    return measurement(name, result["settings"], int(result["items"]), cost, origin.stats())


def has_scrapy(python: str) -> bool:
    """Whether that interpreter can import Scrapy."""
    found = subprocess.run([python, "-c", "import scrapy"], stderr=subprocess.DEVNULL, check=False)
    return found.returncode == 0


def _run(command: list[str]) -> tuple[Cost, dict[str, Any]]:
    cost = run_measured(command)
    return cost, json.loads(cost.output)

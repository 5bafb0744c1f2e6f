"""Our own crawler as the benchmark runs it: the command that people type, on an embedded Postgres of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from crawl_pipeline_tests.bench.measure import (
    CommandFailed,
    Cost,
    Measurement,
    measurement,
    postmaster_pid,
    run_measured,
)
from crawl_pipeline_tests.bench.origin import Origin

LINK_SITE = "link_site"

_LINK_SITE_CONTRACT = """\
source: {source}
description: The benchmark's link-heavy site
owner: team:bench
seeds: [{base_url}/p/0]
sitemaps: none
scope: {{hosts: ["{authority}"], include: ["/p/**"]}}
limits: {{max_depth: 100000, max_pages: {limit}, max_urls: {limit}, max_duration: 2h, max_in_flight: 64}}
politeness: {{slots: {slots}, min_delay: 0s, robots: obey}}
fetch: {{allow_networks: [127.0.0.0/8]}}
accept: {{min_text_chars: 200, require: ["h1"]}}
records:
  - type: item
    match: ["/p/**"]
    key: [sku]
    fields:
      sku: {{css: ".sku", required: true}}
      name: {{css: "h1", required: true}}
      price: {{css: ".price", type: decimal, required: true}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OurHome:
    """A home of our own, with one contract in it; nothing of the caller's environment leads elsewhere."""

    folder: Path
    source: str

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CRAWL_", "DAGSTER_"))}
        return kept | {"CRAWL_HOME": str(self.folder / "home"), "CRAWL_SOURCES": str(self.folder / "sources")}

    def command(self, *arguments: str) -> list[str]:
        """`crawl-pipeline ARGUMENTS`: the installed script, or the same from the working tree."""
        script = Path(sys.executable).with_name("crawl-pipeline")
        if script.exists():
            return [str(script), *arguments]
        return [sys.executable, "-c", "import sys; from crawl_pipeline.cli import main; sys.exit(main())", *arguments]

    def crawl_command(self, workers: int = 1) -> list[str]:
        return self.command("crawl", self.source, "--workers", str(workers))

    def database_pid(self) -> int | None:
        """The embedded server's, None while it is not running."""
        return postmaster_pid(self.folder / "home" / "postgres")

    def run(self, *arguments: str) -> str:
        """What the command prints; raises CommandFailed when it fails."""
        command = self.command(*arguments)
        ended = subprocess.run(command, env=self.env, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise CommandFailed(command, ended.returncode, ended.stderr or ended.stdout)
        return ended.stdout

    def status(self) -> dict[str, Any]:
        found = json.loads(self.run("status", self.source, "--json"))
        assert isinstance(found, dict)
        return found

    def records(self) -> list[dict[str, Any]]:
        """The current records' fields."""
        lines = self.run("records", self.source, "--format", "jsonl").splitlines()
        return [json.loads(line) for line in lines if line.strip()]


@contextmanager
def our_home(source: str, contract: str) -> Iterator[OurHome]:
    """A temporary home with this contract and an upgraded database; removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="crawl-bench-"))
    try:
        (folder / "sources").mkdir()
        (folder / "sources" / f"{source}.yaml").write_text(contract, encoding="utf-8")
        home = OurHome(folder=folder, source=source)
        home.run("db", "upgrade")
        yield home
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def link_site_contract(base_url: str, pages: int, slots: int) -> str:
    """The contract for the link-heavy site at that address."""
    return _LINK_SITE_CONTRACT.format(
        source=LINK_SITE, base_url=base_url, authority=urlsplit(base_url).netloc, limit=pages + 1000, slots=slots
    )


def ours(origin: Origin, pages: int, slots: int) -> Measurement:
    """One crawl of a fresh origin with one worker. The database is set up beforehand, and that is not measured."""
    with our_home(LINK_SITE, link_site_contract(origin.base_url, pages, slots)) as home:
        cost: Cost = run_measured(home.crawl_command(), env=home.env, database_pid=home.database_pid)
        seen = origin.stats()
        status = home.status()
    settings = {
        "workers": "1",
        "slots": str(slots),
        "state": str(status["state"]),
        "requests": str(status["requests"]),
        "database": "embedded, durable",
    }
    return measurement("crawl_pipeline", settings, int(status["records"]), cost, seen)

"""Crawls without Dagster around them: the same pipeline functions that its ops call, with real worker processes."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from crawl_pipeline.domain.contract import parse_contract
from crawl_pipeline.pipeline.contract_files import LoadedContract
from crawl_pipeline.pipeline.crawl import CrawlOptions, CrawlReport, OpenedCrawl, close_crawl, open_crawl
from crawl_pipeline.pipeline.supervisor import Progress, Supervisor
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests.site import Site


def contract(site: Site, seeds: list[str] | None = None, **sections: Any) -> LoadedContract:
    """A contract for a site of the test's own: no delay, loopback allowed, no sitemap. Sections are merged."""
    data: dict[str, Any] = {
        "source": "site",
        "seeds": [seed if "://" in seed else site.url + seed for seed in seeds]
        if seeds
        else [f"http://{host}/" for host in site.authorities],
        "sitemaps": "none",
        "scope": {"hosts": site.authorities},
        "politeness": {"slots": 4, "min_delay": "0s"},
        "fetch": {"allow_networks": ["127.0.0.0/8"], "timeout": "10s"},
    }
    for name, value in sections.items():
        if isinstance(value, Mapping) and isinstance(data.get(name), Mapping):
            data[name] = {**data[name], **value}
        else:
            data[name] = value
    return load(data)


def load(data: Mapping[str, Any]) -> LoadedContract:
    """A contract from plain values."""
    return LoadedContract(contract=parse_contract(dict(data), file="test.yaml"), file=Path("test.yaml"), text="")


@dataclass
class Running:
    """A crawl whose supervisor runs in a thread of the test."""

    database: Database
    opened: OpenedCrawl
    supervisor: Supervisor
    stop: threading.Event
    thread: threading.Thread
    progress: list[Progress] = field(default_factory=list)
    ending: str | None = None
    error: BaseException | None = None

    def finish(self, within: float = 60) -> CrawlReport:
        """Wait for the ending and close the crawl. Raises what ended the supervisor."""
        self.join(within)
        if self.error is not None:
            raise self.error
        return close_crawl(self.database, self.opened)

    def join(self, within: float = 60) -> None:
        """Wait for the supervisor to end, whatever the end."""
        self.thread.join(within)
        if self.thread.is_alive():
            self.stop.set()
            self.thread.join(30)
            raise AssertionError(f"the crawl did not end within {within} s; it stood at {self.progress[-1:]}")

    def pids(self) -> list[int]:
        """The live worker processes."""
        return [worker.pid for worker in list(self.supervisor._workers)]


def start(
    database: Database,
    loaded: LoadedContract,
    *,
    workers: int = 1,
    force: bool = False,
    max_pages: int | None = None,
    max_duration: timedelta | None = None,
    run_id: str | None = None,
    grace: timedelta = timedelta(seconds=6),
    lease_for: timedelta = timedelta(seconds=60),
    is_run_live: Callable[[], bool] = lambda: True,
) -> Running:
    """Open a crawl and run its workers, in a thread."""
    options = CrawlOptions(workers=workers, force=force, max_pages=max_pages, max_duration=max_duration)
    opened = open_crawl(database, loaded, run_id=run_id or uuid.uuid4().hex, options=options)
    progress: list[Progress] = []
    stop = threading.Event()
    supervisor = Supervisor(
        database,
        opened,
        is_run_live=is_run_live,
        on_progress=progress.append,
        stop=stop,
        grace=grace,
        lease_for=lease_for,
    )

    def run() -> None:
        try:
            if opened.has_due:
                running.ending = supervisor.run()
        except BaseException as error:
            running.error = error

    thread = threading.Thread(target=run, name="supervisor", daemon=True)
    running = Running(database, opened, supervisor, stop, thread, progress)
    thread.start()
    return running


def crawl(database: Database, loaded: LoadedContract, *, within: float = 60, **options: Any) -> CrawlReport:
    """Crawl to the end."""
    return start(database, loaded, **options).finish(within)


def rows(database: Database, statement: str, **parameters: Any) -> list[Any]:
    """What a query gives."""
    with database.connection() as connection:
        return list(connection.execute(sa.text(statement), parameters))


def states(database: Database) -> dict[str, str]:
    """State and reason of every URL, by path: `accepted`, `rejected not_found`, …"""
    found = rows(database, "SELECT url, state, reason FROM urls WHERE NOT is_sitemap")
    return {"/" + row.url.split("/", 3)[3]: f"{row.state} {row.reason or ''}".strip() for row in found}

"""What the frontier's statements cost the server: `python -m crawl_pipeline_tests.bench.frontier [URLS …]`.

CPU is the backend's own, read from /proc, so that a busy machine changes it little. Linux only. The server is an
embedded one in a folder of its own, removed at the end.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from crawl_pipeline.domain.pages import CompletedPage
from crawl_pipeline.storage import arguments, schema
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.embedded import EmbeddedServer
from crawl_pipeline.storage.frontier import Frontier
from crawl_pipeline_tests.storage.world import HOLDER, World, claim, fill, finished, links, record, version

HOSTS = 1000
CLAIMS = 40
PAGES = 128
TEXT = "Some words of a page that say what it is about, in Markdown.\n" * 50  # 3 kB
TICK = 1000 / os.sysconf("SC_CLK_TCK")


class Backend:
    """One connection, whose server process's CPU is measured."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        self._stat = Path(f"/proc/{connection.exec_driver_sql('SELECT pg_backend_pid()').scalar_one()}/stat")

    def run(self, statement: str, values: Sequence[Any]) -> list[Any]:
        """One transaction."""
        rows = list(self.connection.exec_driver_sql(statement, tuple(values)).fetchall())
        self.connection.commit()
        return rows

    def milliseconds(self, work: Callable[[], Any]) -> float:
        """CPU that the server process spent on it, user and system."""
        before = self._spent()
        work()
        return self._spent() - before

    def _spent(self) -> float:
        fields = self._stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK


@contextmanager
def server() -> Iterator[EmbeddedServer]:
    """An embedded server that leaves nothing behind."""
    home = Path(tempfile.mkdtemp(prefix="crawl-bench-"))
    attached = EmbeddedServer.attach(home)
    try:
        schema.upgrade(attached.url("crawl"))
        yield attached
    finally:
        attached.release()
        shutil.rmtree(home, ignore_errors=True)


def measure_claims(world: World, backend: Backend, crawl_id: object) -> float:
    """Milliseconds of CPU per claim of 64 URLs at 8 hosts; each claim is given back outside of the measure."""
    statement = "SELECT * FROM claim(%s::uuid, %s, %s, %s, %s, %s, %s::interval, %s)"
    spent = 0.0
    for number in range(CLAIMS + 5):
        values = [crawl_id, HOLDER.run_id, "w", 64, 8, 8, "60 s", True]
        cost = backend.milliseconds(lambda values=values: backend.run(statement, values))  # type: ignore[misc]
        spent += cost if number >= 5 else 0.0
        backend.run("SELECT release_worker('w')", [])
        world.execute("UPDATE queues SET not_before = 'epoch' WHERE not_before > 'epoch'")
    return spent / CLAIMS


def some_pages(frontier: Frontier, count: int) -> list[CompletedPage]:
    """Pages in hand, each with 80 links (95 % known), a body of 20 kB and 5 records."""
    leases = claim(frontier, want=count, batch=count, share=64, is_idle=False)
    urls = [(lease, url) for lease in leases for url in lease.urls]
    known = [f"http://known/{n}" for n in range(2000)]
    return [
        finished(
            lease,
            url,
            version=replace(version(url.url + os.urandom(7000).hex() + "x" * 6000), markdown=TEXT),
            records=tuple(record(f"{url.url}/{n}") for n in range(5)),
            links=links(
                *(known[(hash(url.key) + 7 * n) % len(known)] for n in range(76)),
                *(f"http://new/{url.key}/{n}" for n in range(4)),
            ),
        )
        for lease, url in urls
    ]


def measure_commits(backend: Backend, frontier: Frontier, source_id: int, crawl_id: object, group: int) -> float:
    """Milliseconds of CPU per page of groups of pages."""
    spent, done = 0.0, 0
    while done < PAGES + group:
        pages = some_pages(frontier, group)
        values = [source_id, crawl_id, "w", *frontier._arrays(pages)]
        statement = arguments.call("complete", len(values))
        cost = backend.milliseconds(lambda call=(statement, values): backend.run(*call))  # type: ignore[misc]
        spent += cost if done else 0.0  # the first group fills caches and plans
        done += len(pages)
    return spent / (done - group)


def main(sizes: Sequence[int]) -> None:
    """Print the figures."""
    with server() as attached:
        database = Database.connect(attached.url("crawl"))
        world = World(database)
        source_id = world.source(slots=64, max_urls=10**9)
        crawl_id = world.crawl(source_id)
        frontier = world.frontier(source_id, crawl_id, "w")
        filled = 0
        with database.engine.connect() as connection:
            backend = Backend(connection)
            for size in sizes:
                fill(database, source_id, urls=size - filled, hosts=HOSTS)
                filled = size
                world.execute("UPDATE crawls SET heartbeat_at = clock_timestamp()")
                cost = measure_claims(world, backend, crawl_id)
                print(f"claim of 64 URLs at 8 of {HOSTS} hosts, {size:>9,} URLs: {cost:.1f} ms CPU", flush=True)
            world.seed(source_id, *(f"http://known/{n}" for n in range(2000)))
            world.execute("UPDATE urls SET due_at = '2100-01-01' WHERE url LIKE 'http://known/%'")
            for group in (1, 8, 64):
                cost = measure_commits(backend, frontier, source_id, crawl_id, group)
                print(
                    f"complete, 80 links, 20 kB, 5 records, group of {group:>2}: {cost:.2f} ms CPU a page", flush=True
                )
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("SET statement_timeout = 0")
            connection.exec_driver_sql("VACUUM urls")
        row = world.rows("""
            SELECT count(*) AS n, avg(octet_length(url))::int AS text, pg_table_size('urls') AS heap,
                   pg_indexes_size('urls') AS indexes FROM urls
        """)[0]
        print(
            f"bytes per URL ({row.n:,}, text of {row.text}): {row.heap / row.n:.0f} heap "
            f"+ {row.indexes / row.n:.0f} indexes = {(row.heap + row.indexes) / row.n:.0f}"
        )
        database.close()


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [100_000, 1_000_000])

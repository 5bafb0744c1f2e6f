"""One PostgreSQL server a session, one database a test.

The server has the embedded one's programs, or Debian's PostgreSQL 15 with CRAWL_TEST_POSTGRES=debian15. It lives in a
private temporary folder, so that sessions may run side by side. `--forbid-skips` makes a skipped test a failure.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from crawl_pipeline.demo.shop import Shop
from crawl_pipeline.storage import schema
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.embedded import EmbeddedServer, server_processes
from crawl_pipeline.storage.filelock import try_lock
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.live.stack import SOURCES, Stack, served

__all__ = ["wait_until"]

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
TEMPLATE = "crawl_template"

_numbers = itertools.count(1)


def test_binaries() -> Path | None:
    """The folder of the PostgreSQL programs under test; None: the bundled ones."""
    chosen = os.environ.get("CRAWL_TEST_POSTGRES") or "embedded"
    if chosen == "embedded":
        return None
    if chosen == "debian15":
        if not (DEBIAN_15 / "initdb").exists():
            pytest.exit("CRAWL_TEST_POSTGRES=debian15 needs Debian's package postgresql-15", returncode=1)
        return DEBIAN_15
    pytest.exit(f"CRAWL_TEST_POSTGRES is {chosen}; use embedded or debian15", returncode=1)


test_binaries.__test__ = False  # type: ignore[attr-defined]  # pytest takes its name for a test's


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedServer]:
    """The session's server, with the migrated database `TEMPLATE` to clone."""
    _end_servers_of_killed_sessions()
    # Not tmp_path: pytest closes those folders to the server's user, each session anew.
    home = Path(tempfile.mkdtemp(prefix="crawl-tests-")) / "home"
    server = EmbeddedServer.attach(home, binaries=test_binaries())
    try:
        administer(server, f"CREATE DATABASE {TEMPLATE}")
        schema.upgrade(server.url(TEMPLATE))
        yield server
    finally:
        end_home(home)


@pytest.fixture
def empty_database_url(postgres_server: EmbeddedServer) -> Iterator[str]:
    """The URL of a fresh database without any table."""
    with _fresh_database(postgres_server, "template0") as url:
        yield url


@pytest.fixture
def database_url(postgres_server: EmbeddedServer) -> Iterator[str]:
    """The URL of a fresh database with the current schema."""
    with _fresh_database(postgres_server, TEMPLATE) as url:
        yield url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A fresh database with the current schema, open."""
    opened = Database.connect(database_url, application_name="test")
    yield opened
    opened.close()


@pytest.fixture
def crawl_home() -> Iterator[Path]:
    """A CRAWL_HOME that does not exist yet. Whatever server runs there at the end of the test is ended."""
    folder = Path(tempfile.mkdtemp(prefix="crawl-home-"))
    yield folder / "home"
    end_home(folder / "home")


@pytest.fixture
def ready_home(crawl_home: Path, stopped_home: Path) -> Path:
    """A CRAWL_HOME as an earlier run left it: its server is stopped, its database `crawl` has the current schema."""
    # With its owners: the data folder belongs to the server's user.
    subprocess.run(["cp", "-a", str(stopped_home), str(crawl_home)], check=True)
    return crawl_home


@pytest.fixture
def crawl_environment(crawl_home: Path, database_url: str, postgres_server: EmbeddedServer) -> Iterator[dict[str, str]]:
    """The environment of a child process whose crawl and Dagster databases are fresh, on the server under test."""
    with _fresh_database(postgres_server, "template0") as dagster_url:
        yield {
            **os.environ,
            "CRAWL_HOME": str(crawl_home),
            "CRAWL_DATABASE_URL": database_url,
            "DAGSTER_POSTGRES_URL": dagster_url.replace("+psycopg:", "+psycopg2:"),
        }


@pytest.fixture(scope="session")
def stopped_home() -> Iterator[Path]:
    """What `ready_home` is copied from: making a data folder takes seconds, copying one does not."""
    folder = Path(tempfile.mkdtemp(prefix="crawl-home-"))
    server = EmbeddedServer.attach(folder / "home")
    try:
        schema.upgrade(server.url("crawl"))
    finally:
        server.release()
    yield folder / "home"
    end_home(folder / "home")


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The stack that the tests marked `IN_ONE_PROCESS` share, with a shop for each of them.

    Started for the first that asks for it. At the end SIGTERM stops all of it, quietly, and nothing is left.
    """
    home = Path(tempfile.mkdtemp(prefix="crawl-home-")) / "home"
    try:
        with ExitStack() as shops:
            running = {name: shops.enter_context(Shop.start(latency=0.0)) for name in SOURCES}
            with served(tmp_path_factory.mktemp("live"), home, running) as stack:
                yield stack
                stack.command.process.send_signal(signal.SIGTERM)
                assert stack.command.wait(100) == 143
                assert stack.command.out.count("\n") == 1, stack.command.out
                assert stack.command.err in {"", "port 8800 is in use, so the demo shop is not started\n"}
                wait_until(lambda: not any(process.is_running() for process in stack.processes), within=5)
                assert server_processes(home) == []
    finally:
        end_home(home)


def end_home(home: Path) -> None:
    """Kill the server of a home, whoever started it, and remove the home with the temporary folder around it."""
    for process in server_processes(home):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    wait_until(lambda: not server_processes(home))
    while (server := EmbeddedServer.attached(home)) is not None:
        server.release()
    shutil.rmtree(home.parent, ignore_errors=True)


def _end_servers_of_killed_sessions() -> None:
    for users in Path(tempfile.gettempdir()).glob("crawl-tests-*/home/postgres.users"):
        with suppress(OSError), users.open("r+") as file:
            is_old = time.time() - users.stat().st_mtime > 60  # a young one may not have been locked yet
            if is_old and try_lock(file.fileno(), exclusive=True):
                end_home(users.parent)


def administer(server: EmbeddedServer, statement: str) -> None:
    """Run one statement of the server's owner, outside of any transaction."""
    url = server.url("postgres").replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
        connection.execute(statement.encode())


@contextmanager
def _fresh_database(server: EmbeddedServer, template: str) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    administer(server, f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield server.url(name)
    finally:
        administer(server, f"DROP DATABASE {name} WITH (FORCE)")


Score = Callable[[str, int, int], None]


@pytest.fixture
def score(record_property: Callable[[str, object], None]) -> Score:
    """Note how many cases of a corpus pass; the session prints all scores at its end."""

    def note(corpus: str, passed: int, total: int) -> None:
        record_property("score", (corpus, passed, total))

    return note


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what was scored on the published test suites."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    scores = {tuple(value) for report in reports for name, value in report.user_properties if name == "score"}
    if scores:
        terminalreporter.section("conformance")
        terminalreporter.write_line(f"{'corpus':<40} {'passed':>6} {'total':>6} {'known gaps':>10}")
    for corpus, passed, total in sorted(scores):
        terminalreporter.write_line(f"{corpus:<40} {passed:>6,} {total:>6,} {total - passed:>10,}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--forbid-skips`."""
    parser.addoption("--forbid-skips", action="store_true", help="a skipped test fails the session")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a session that was to skip nothing and did."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("--forbid-skips") and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("\n--forbid-skips: skipped tests are failures here", red=True)
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

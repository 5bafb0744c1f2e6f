"""Promise 5: a broken database is never an empty queue. The crawl waits for it, or ends with exit 1 and a sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from crawl_pipeline.demo.shop import Shop
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.embedded import EmbeddedServer, server_processes
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.crawling import rows
from crawl_pipeline_tests.durability.lives import PAGES, Lives, shop_lives

pytestmark = [pytest.mark.durability, pytest.mark.timeout(300)]


@pytest.fixture
def shop() -> Iterator[Shop]:
    with Shop.start(latency=0.02) as shop:
        yield shop


@pytest.fixture
def server(ready_home: Path) -> Iterator[EmbeddedServer]:
    """A server that the crawl knows by its URL only, so that nothing but the test brings it back."""
    server = EmbeddedServer.attach(ready_home)
    yield server
    server.release()


def crawl_of(server: EmbeddedServer, shop: Shop, folder: Path, **environment: str) -> Lives:
    url = {"CRAWL_DATABASE_URL": server.url("crawl"), **environment}
    return shop_lives(shop, folder / "sources", url, workers=1, slots=4)


def begun(lives: Lives, pages: int = 60) -> subprocess.Popen[str]:
    process = lives.start()
    wait_until(lambda: len(lives.shop.requests) >= pages or process.poll() is not None, within=60)
    assert process.poll() is None, process.communicate()[1]
    return process


def stop(home: Path) -> None:
    """What `pg_ctl stop -m fast` does."""
    postmaster = min(server_processes(home), key=lambda process: process.create_time())
    postmaster.send_signal(signal.SIGINT)
    psutil.wait_procs([postmaster], timeout=20)


def test_crawl_goes_on_after_the_database_was_stopped_for_five_seconds(
    server: EmbeddedServer, ready_home: Path, shop: Shop, tmp_path: Path
) -> None:
    _assert_survives(server, shop, tmp_path, lambda: stop(ready_home), server.ensure_running)


def test_crawl_goes_on_after_the_database_was_suspended_for_five_seconds(
    server: EmbeddedServer, ready_home: Path, shop: Shop, tmp_path: Path
) -> None:
    """Guard: the client-side time limit (a stopped server never answers) is above five seconds and below the lease."""

    def each(number: signal.Signals) -> None:
        for process in server_processes(ready_home):
            process.send_signal(number)

    _assert_survives(server, shop, tmp_path, lambda: each(signal.SIGSTOP), lambda: each(signal.SIGCONT))


def _assert_survives(
    server: EmbeddedServer, shop: Shop, folder: Path, breaks: Callable[[], None], mends: Callable[[], None]
) -> None:
    lives = crawl_of(server, shop, folder)
    process = begun(lives)
    breaks()
    time.sleep(5)
    assert process.poll() is None, process.communicate()[1]
    mends()
    out, err = process.communicate(timeout=150)
    assert (process.returncode, out.strip()) == (0, "finished"), err
    database = Database.connect(server.url("crawl"))
    assert rows(database, "SELECT count(*) AS n FROM records WHERE gone_at IS NULL")[0].n == 500
    assert rows(database, "SELECT count(*) AS n FROM page_versions")[0].n == PAGES
    assert rows(database, "SELECT 1 FROM urls WHERE state = 'quarantined' OR tries > 0") == []
    database.close()


def test_database_that_stays_away_ends_the_crawl_with_exit_1_and_one_sentence(
    server: EmbeddedServer, ready_home: Path, shop: Shop, tmp_path: Path
) -> None:
    lives = crawl_of(server, shop, tmp_path, CRAWL_DATABASE_PATIENCE="6s")
    process = begun(lives)
    stop(ready_home)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "finished" not in out + err
    said = [line for line in err.splitlines() if line.startswith("database ")]
    assert len(said) == 1
    assert "could not be used" in said[0]
    assert "Traceback" not in err
    wait_until(lambda: not _workers(process.pid), within=30)
    server.ensure_running()
    assert lives.finish() == "finished"


def _workers(group: int) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _group(process.pid) == group]


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None

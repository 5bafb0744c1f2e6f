"""Promise 1: kill everything at any moment, as often as you like; every record ends stored exactly once and right.

The published table that this makes harder: one worker, ten SIGKILLs over 25 lists and 500 products. There a naive
crawler ended with 1,286 to 2,165 rows and 1,361 to 2,283 requests; `make bench` kills such a crawler beside ours.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import psutil
import pytest

from crawl_pipeline.demo.shop import Shop
from crawl_pipeline.storage import crawls
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.embedded import EmbeddedServer, server_processes
from crawl_pipeline_tests.crawling import rows
from crawl_pipeline_tests.durability.lives import PAGES, Lives, shop_lives


@pytest.fixture
def shop() -> Iterator[Shop]:
    with Shop.start(latency=0.02) as shop:
        yield shop


@pytest.mark.durability
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("workers", "slots"), [(1, 2), (4, 16)])
def test_killed_crawl_ends_with_every_record_once_and_right(
    database: Database, database_url: str, shop: Shop, tmp_path: Path, workers: int, slots: int
) -> None:
    lives = shop_lives(shop, tmp_path / "sources", {"CRAWL_DATABASE_URL": database_url}, workers=workers, slots=slots)
    seed = random.randrange(10_000)
    _live_and_die(lives, database, random.Random(seed), seed, most_kills=5)
    assert lives.finish() == "finished"
    _assert_whole(database, lives)


@pytest.mark.durability
@pytest.mark.timeout(600)
def test_killed_crawl_ends_right_when_postgres_is_killed_with_it(ready_home: Path, shop: Shop, tmp_path: Path) -> None:
    lives = shop_lives(shop, tmp_path / "sources", {"CRAWL_HOME": str(ready_home)}, workers=2, slots=4)
    rng = random.Random(seed := random.randrange(10_000))
    for share in (0.3, 0.5):
        after = int(PAGES * share * rng.uniform(0.5, 1))
        print(f"seed {seed}: crawl and Postgres killed after {after} pages of this life")
        target = len(shop.requests) + after
        process = lives.start()
        while len(shop.requests) < target:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.001)
        for backend in server_processes(ready_home):
            backend.kill()
        lives.kill(process)
    assert lives.finish() == "finished"
    server = EmbeddedServer.attach(ready_home)
    try:
        database = Database.connect(server.url("crawl"))
        _assert_whole(database, lives)
        database.close()
    finally:
        server.release()


def _live_and_die(lives: Lives, database: Database, rng: random.Random, seed: int, *, most_kills: int) -> None:
    """Kill life after life: twice during start-up, then after 5 to 95 % of what each has to do."""
    for _ in range(2):
        delay = rng.uniform(0.2, 1.5)
        print(f"seed {seed}: killed {delay:.2f} s after its start")
        lives.kill_in(delay)
    for _ in range(most_kills):
        done = rows(database, "SELECT count(*) AS n FROM page_versions")[0].n
        if PAGES - done < 10:
            return
        after = lives.spread(rng, done)
        print(f"seed {seed}: {done} pages done, killed after {after} pages of this life")
        lives.kill_after(after)


def _assert_whole(database: Database, lives: Lives) -> None:
    shop = lives.shop
    records = rows(database, "SELECT data FROM records WHERE gone_at IS NULL")
    expected = shop.expected_records(0)
    stored = {row.data["sku"]: row.data for row in records}
    assert len(records) == len(stored) == 500
    for sku, record in expected.items():
        assert Decimal(stored[sku]["price"]) == Decimal(str(record["price"]))
        assert stored[sku]["name"] == record["name"]
        assert stored[sku]["in_stock"] is record["in_stock"]
    assert rows(database, "SELECT count(*) AS n FROM urls WHERE state = 'accepted' AND NOT is_sitemap")[0].n == PAGES
    assert rows(database, "SELECT count(*) AS n FROM page_versions")[0].n == PAGES
    assert rows(database, "SELECT count(*) AS n FROM record_versions")[0].n == 500
    assert rows(database, "SELECT 1 FROM leases") == []
    asked = len(shop.requests)
    print(f"{lives.kills} kills, {asked} page requests for {PAGES} pages (at most {PAGES + lives.kills * lives.slots})")
    assert PAGES <= asked <= PAGES + lives.kills * lives.slots
    with database.connection() as connection:
        counted = sum(
            crawls.requests(connection, row.crawl_id)[0]
            for row in connection.exec_driver_sql("SELECT crawl_id FROM crawls WHERE kind = 'crawl'")
        )
    print(f"status counts {counted} requests, {lives.unsaved} were started within a heartbeat of a kill")
    assert asked - lives.unsaved <= counted <= asked
    assert not [process for process in psutil.process_iter(["cmdline"]) if _is_ours(process, lives)]


def _is_ours(process: psutil.Process, lives: Lives) -> bool:
    command = " ".join(process.info["cmdline"] or ())
    if "crawl_pipeline.pipeline.child" not in command and "crawl_once" not in command:
        return False
    try:
        return process.environ().get("CRAWL_SOURCES") == lives.environment["CRAWL_SOURCES"]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False

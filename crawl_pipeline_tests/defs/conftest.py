"""A small shop, its contract in a folder, and the environment that points a run at a cloned database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterInstance

from crawl_pipeline.demo.contract import demo_contract_text
from crawl_pipeline.demo.shop import Shop
from crawl_pipeline.settings import Settings
from crawl_pipeline_tests.defs.worlds import World


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    """An instance of the test's own."""
    with dg.instance_for_test() as made:
        yield made


@pytest.fixture
def shop() -> Iterator[Shop]:
    """The demo shop on a free port, without delay."""
    with Shop.start(latency=0.0) as running:
        yield running


@pytest.fixture
def bare_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shop: Shop) -> World:
    """The environment of a process that could crawl the shop if there were a database."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "demo_shop.yaml").write_text(demo_contract_text(shop.base_url), encoding="utf-8")
    environment = {
        "CRAWL_DATABASE_URL": "postgresql://me:secret@127.0.0.1:1/crawl",
        "CRAWL_HOME": str(tmp_path / "home"),
        "CRAWL_SOURCES": str(folder),
        "CRAWL_DATABASE_PATIENCE": "100ms",
    }
    monkeypatch.delenv("DAGSTER_POSTGRES_URL", raising=False)
    return _entered(environment, tmp_path, monkeypatch)


@pytest.fixture
def world(bare_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str) -> World:
    """The environment of a process that crawls the shop into a database of its own."""
    environment = {**bare_world.environment, "CRAWL_DATABASE_URL": database_url, "CRAWL_DATABASE_PATIENCE": "5s"}
    return _entered(environment, tmp_path, monkeypatch)


def _entered(environment: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Set the environment for this process, too."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = Settings.from_environment(environment, folder)
    return World(settings=settings, environment=environment, sources=Path(environment["CRAWL_SOURCES"]))

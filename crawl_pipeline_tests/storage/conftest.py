"""Fixtures for what reads the database."""

from __future__ import annotations

from pathlib import Path

import pytest

from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests.storage.commanding import Desk
from crawl_pipeline_tests.storage.filled import CONTRACT
from crawl_pipeline_tests.storage.world import World


@pytest.fixture
def world(database: Database) -> World:
    """A fresh database to make sources and crawls in."""
    return World(database)


@pytest.fixture
def desk(tmp_path: Path, database_url: str) -> Desk:
    """A folder with the contract of `shop` and a fresh database; nothing was crawled yet."""
    (tmp_path / "sources").mkdir()
    desk = Desk(folder=tmp_path, database_url=database_url)
    desk.write_contract(CONTRACT)
    return desk

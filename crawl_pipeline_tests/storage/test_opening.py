"""Opening the database: the embedded one is made ready, a real one is only checked."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from crawl_pipeline.errors import SchemaMismatch
from crawl_pipeline.settings import Settings
from crawl_pipeline.storage import schema
from crawl_pipeline.storage.embedded import server_processes
from crawl_pipeline.storage.opening import crawl_url, dagster_url, open_database
from crawl_pipeline_tests import wait_until


def settings(home: Path, *, database_url: str | None = None, dagster: str | None = None) -> Settings:
    return Settings(
        home=home,
        source_folders=(),
        database_url=database_url,
        dagster_url=dagster,
        database_patience=timedelta(seconds=30),
    )


def test_embedded_database_is_started_and_upgraded(crawl_home: Path) -> None:
    with closing(open_database(settings(crawl_home))) as database:
        schema.check(database)
        assert database.patience == timedelta(seconds=30)


def test_embedded_database_that_dies_is_revived(crawl_home: Path) -> None:
    with closing(open_database(settings(crawl_home))) as database:
        for process in server_processes(crawl_home):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        wait_until(lambda: not server_processes(crawl_home))
        assert database.retry(lambda connection: connection.scalar(sa.text("SELECT 1"))) == 1


def test_real_database_at_the_right_version_is_opened_without_a_home(database_url: str, tmp_path: Path) -> None:
    plain = database_url.replace("+psycopg", "")
    with closing(open_database(settings(tmp_path / "home", database_url=plain))) as database:
        assert database.retry(lambda connection: connection.scalar(sa.text("SELECT count(*) FROM sources"))) == 0
    assert not (tmp_path / "home").exists()


def test_real_database_is_never_upgraded_by_itself(empty_database_url: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="crawl-pipeline db upgrade"):
        open_database(settings(tmp_path, database_url=empty_database_url))


@pytest.mark.parametrize(
    ("database_url", "dagster", "wanted"),
    [
        ("postgresql://u:p@h:5433/crawl", None, "postgresql+psycopg2://u:p@h:5433/dagster"),
        ("postgresql://u:p@h/crawl", "postgresql://v@g/other", "postgresql+psycopg2://v@g/other"),
        (None, "postgresql://v@g/other", "postgresql+psycopg2://v@g/other"),
    ],
)
def test_dagster_uses_its_own_url_or_its_own_database_beside_the_crawls(
    database_url: str | None, dagster: str | None, wanted: str, tmp_path: Path
) -> None:
    assert dagster_url(settings(tmp_path, database_url=database_url, dagster=dagster)) == wanted


def test_embedded_urls_name_two_databases_of_one_server(crawl_home: Path) -> None:
    ours, dagsters = crawl_url(settings(crawl_home)), dagster_url(settings(crawl_home))
    assert ours.startswith("postgresql+psycopg://postgres@/crawl?host=")
    assert dagsters == ours.replace("+psycopg:", "+psycopg2:").replace("/crawl?", "/dagster?")

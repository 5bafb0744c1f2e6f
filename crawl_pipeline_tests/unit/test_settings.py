"""Settings: what the environment may say, and what is said when it is wrong."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

import crawl_pipeline
from crawl_pipeline.errors import UsageError
from crawl_pipeline.settings import Settings

PACKAGE = Path(crawl_pipeline.__file__).parent


def test_empty_environment_means_embedded_postgres_in_the_working_directory(tmp_path: Path) -> None:
    assert Settings.from_environment({}, tmp_path) == Settings(
        home=tmp_path / ".crawl",
        source_folders=(PACKAGE / "sources",),
        database_url=None,
        dagster_url=None,
        database_patience=timedelta(seconds=60),
    )


def test_empty_variables_count_as_unset(tmp_path: Path) -> None:
    names = ("CRAWL_HOME", "CRAWL_SOURCES", "CRAWL_DATABASE_URL", "DAGSTER_POSTGRES_URL", "CRAWL_DATABASE_PATIENCE")
    assert Settings.from_environment(dict.fromkeys(names, ""), tmp_path) == Settings.from_environment({}, tmp_path)


def test_sources_of_the_working_directory_come_before_the_packages(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    assert Settings.from_environment({}, tmp_path).source_folders == (tmp_path / "sources",)


def test_every_variable_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    settings = Settings.from_environment(
        {
            "CRAWL_HOME": "kept",
            "CRAWL_SOURCES": os.pathsep.join(["a", str(tmp_path / "b")]),
            "CRAWL_DATABASE_URL": "postgresql://h/crawl",
            "DAGSTER_POSTGRES_URL": "postgresql+psycopg2://h/dagster",
            "CRAWL_DATABASE_PATIENCE": "2m",
        },
        tmp_path,
    )
    assert settings == Settings(
        home=tmp_path / "kept",
        source_folders=(tmp_path / "a", tmp_path / "b"),
        database_url="postgresql://h/crawl",
        dagster_url="postgresql+psycopg2://h/dagster",
        database_patience=timedelta(minutes=2),
    )


@pytest.mark.parametrize(
    ("text", "duration"),
    [("500ms", timedelta(milliseconds=500)), ("30s", timedelta(seconds=30)), ("1.5h", timedelta(minutes=90))],
)
def test_patience_is_a_duration(text: str, duration: timedelta, tmp_path: Path) -> None:
    assert Settings.from_environment({"CRAWL_DATABASE_PATIENCE": text}, tmp_path).database_patience == duration


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("CRAWL_SOURCES", "nowhere", "is not a folder"),
        ("CRAWL_DATABASE_URL", "mysql://u:secret@h/d", "write it as postgresql://"),
        ("CRAWL_DATABASE_URL", "u:secret@h", "write it as postgresql://"),
        ("DAGSTER_POSTGRES_URL", "sqlite:///secret", "write it as postgresql://"),
        ("CRAWL_DATABASE_PATIENCE", "1 sec", "use a duration such as 30s"),
        ("CRAWL_DATABASE_PATIENCE", "-1s", "use a duration such as 30s"),
    ],
)
def test_wrong_value_names_the_variable_and_what_to_write(variable: str, value: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        Settings.from_environment({variable: value}, tmp_path)
    assert str(caught.value).startswith(variable)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)

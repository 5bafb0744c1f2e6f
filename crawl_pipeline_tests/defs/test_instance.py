"""The instance: its configuration is valid, put in place once, and points at the right database."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dagster import DagsterInstance
from dagster._core.launcher import DefaultRunLauncher
from dagster._core.run_coordinator import QueuedRunCoordinator

from crawl_pipeline.defs.instance import prepare_instance, shipped
from crawl_pipeline.defs.launch import opened_instance
from crawl_pipeline.errors import DatabaseUnavailable, InfrastructureError
from crawl_pipeline.settings import Settings


@pytest.fixture
def settings(tmp_path: Path, empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Dagster's own database is an empty one; the process's environment is given back afterwards."""
    monkeypatch.setenv("DAGSTER_HOME", "/nowhere")
    monkeypatch.setenv("DAGSTER_POSTGRES_URL", "")
    environment = {"CRAWL_HOME": str(tmp_path), "DAGSTER_POSTGRES_URL": empty_database_url}
    return Settings.from_environment(environment, tmp_path)


def test_the_shipped_configuration_opens_an_instance_on_postgres(settings: Settings) -> None:
    home = prepare_instance(settings)
    assert os.environ["DAGSTER_HOME"] == str(home)
    assert os.environ["DAGSTER_POSTGRES_URL"].startswith("postgresql+psycopg2://")
    with opened_instance(home) as instance:
        assert isinstance(instance, DagsterInstance)
        assert not instance.telemetry_enabled
        assert not instance.nux_enabled
        assert instance.run_monitoring_enabled
        assert instance.run_retries_enabled
        assert instance.run_retries_max_retries == 2
        assert not instance.run_retries_retry_on_asset_or_op_failure
        assert isinstance(instance.run_launcher, DefaultRunLauncher)
        assert isinstance(instance.run_coordinator, QueuedRunCoordinator)
        instance.add_dynamic_partitions("source", ["kept"])
    with opened_instance(home) as again:
        assert again.get_dynamic_partitions("source") == ["kept"]


def test_the_pool_has_room_for_every_run_of_the_queue(settings: Settings) -> None:
    with opened_instance(prepare_instance(settings)) as instance:
        config = instance.get_concurrency_config()
        runs = config.run_queue_config
        assert runs is not None
        assert config.pool_config.default_pool_limit is not None
        assert config.pool_config.default_pool_limit >= runs.max_concurrent_runs
        assert [limit["key"] for limit in runs.tag_concurrency_limits] == ["dagster/partition"]


def test_a_newer_shipped_configuration_replaces_an_older_one_but_not_a_persons(settings: Settings) -> None:
    home = prepare_instance(settings)
    configuration, put = home / "dagster.yaml", home / "dagster.shipped"
    configuration.write_text("# an older release\n", encoding="utf-8")
    put.write_text("# an older release\n", encoding="utf-8")
    prepare_instance(settings)
    assert configuration.read_bytes() == shipped("dagster.yaml").read_bytes()
    configuration.write_text("# a person's\n", encoding="utf-8")
    prepare_instance(settings)
    assert configuration.read_text(encoding="utf-8") == "# a person's\n"


def test_a_broken_configuration_is_named_in_one_sentence(settings: Settings) -> None:
    home = prepare_instance(settings)
    (home / "dagster.yaml").write_text("run_monitoring: 7\n", encoding="utf-8")
    with (
        pytest.raises(InfrastructureError, match=r"cannot be opened .*; mend .*dagster\.yaml") as raised,
        opened_instance(home),
    ):
        pass
    assert "\n" not in str(raised.value)


def test_dagsters_database_is_made_on_the_server_of_the_crawls(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", "/nowhere")
    monkeypatch.setenv("DAGSTER_POSTGRES_URL", "")
    environment = {"CRAWL_HOME": str(tmp_path), "CRAWL_DATABASE_URL": database_url}
    settings = Settings.from_environment(environment, tmp_path)
    prepare_instance(settings)
    prepare_instance(settings)
    assert "/dagster?" in os.environ["DAGSTER_POSTGRES_URL"]


def test_a_server_that_is_away_is_named_without_its_password(tmp_path: Path) -> None:
    environment = {"CRAWL_HOME": str(tmp_path), "CRAWL_DATABASE_URL": "postgresql://me:secret@127.0.0.1:1/crawl"}
    with pytest.raises(DatabaseUnavailable, match=r"the database server at 127\.0\.0\.1 did not answer") as raised:
        prepare_instance(Settings.from_environment(environment, tmp_path))
    assert "secret" not in str(raised.value)

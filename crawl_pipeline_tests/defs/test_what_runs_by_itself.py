"""Sensors and the schedule: evaluated as the daemon does, on a real database and instance."""

from __future__ import annotations

import datetime as dt

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus

from crawl_pipeline.definitions import defs
from crawl_pipeline.defs.contracts import contract_of
from crawl_pipeline.defs.resources import CrawlDatabase
from crawl_pipeline.errors import ContractErrors
from crawl_pipeline.pipeline.crawl import sync_source
from crawl_pipeline.storage import crawls
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests import crawling
from crawl_pipeline_tests.defs.worlds import World, insert_crawl, insert_due_url, insert_lease

NOW = dt.datetime(2030, 1, 1, 12, 0, tzinfo=dt.UTC)


def sense(instance: DagsterInstance, name: str) -> str:
    """Why the sensor skipped: all of them do their work in the tick."""
    sensor = defs.get_repository_def().get_sensor_def(name)
    resources = {"crawl_database": CrawlDatabase()}
    with dg.build_sensor_context(instance_ref=instance.get_ref(), definitions=defs, resources=resources) as context:
        said = sensor.evaluate_tick(context)
    assert not said.run_requests
    return said.skip_message or ""


def scheduled(instance: DagsterInstance) -> tuple[list[str], str | None]:
    """The sources that the schedule launches, and else why it skips."""
    schedule = defs.get_repository_def().get_schedule_def("freshness")
    with dg.build_schedule_context(
        instance_ref=instance.get_ref(),
        scheduled_execution_time=NOW,
        repository_def=defs.get_repository_def(),
        resources={"crawl_database": CrawlDatabase()},
    ) as context:
        said = schedule.evaluate_tick(context)
    return [str(request.partition_key) for request in said.run_requests or []], said.skip_message


def test_each_contract_becomes_a_partition(instance: DagsterInstance, world: World) -> None:
    assert sense(instance, "contracts") == "added demo_shop"
    assert instance.get_dynamic_partitions("source") == ["demo_shop"]
    assert sense(instance, "contracts") == "every contract has its partition"


def test_a_faulty_contract_fails_the_tick_after_the_others_are_added(instance: DagsterInstance, world: World) -> None:
    (world.sources / "broken.yaml").write_text("source: broken\n", encoding="utf-8")
    with pytest.raises(ContractErrors, match=r"seeds +is missing"):
        sense(instance, "contracts")
    assert instance.get_dynamic_partitions("source") == ["demo_shop"]


def test_expired_leases_go_back_without_any_worker(instance: DagsterInstance, world: World, database: Database) -> None:
    source = sync_source(database, contract_of(world.settings, "demo_shop"))
    crawl = insert_crawl(database, source, run_id="someone", machine="elsewhere/1")
    assert sense(instance, "expired_leases") == "no lease has expired"
    insert_lease(database, source, crawl, run_id="someone", expires_in=dt.timedelta(seconds=-1))
    assert sense(instance, "expired_leases") == "1 leases had expired: 1 URLs re-queued, 0 quarantined"
    assert crawling.rows(database, "SELECT state, expiries FROM urls") == [("queued", 1)]


def test_the_leases_of_a_run_that_died_are_released_uncounted(
    instance: DagsterInstance, world: World, database: Database
) -> None:
    source = sync_source(database, contract_of(world.settings, "demo_shop"))
    run = instance.create_run_for_job(
        defs.resolve_job_def("crawl"),
        status=DagsterRunStatus.STARTED,
        tags={"crawl_pipeline/process": f"{dead_machine()}/1@1.0"},
    )
    crawl = insert_crawl(database, source, run_id=run.run_id, machine=dead_machine())
    insert_lease(database, source, crawl, run_id=run.run_id, expires_in=dt.timedelta(minutes=1))
    assert sense(instance, "dead_runs") == f"ended {run.run_id}: 1 URLs released"
    assert crawling.rows(database, "SELECT state, expiries FROM urls") == [("queued", 0)]
    assert sense(instance, "dead_runs") == "no run has died unseen"


def test_a_source_with_due_pages_is_launched_once(instance: DagsterInstance, world: World, database: Database) -> None:
    source = sync_source(database, contract_of(world.settings, "demo_shop"))
    assert scheduled(instance) == ([], "no source has due pages")
    insert_due_url(database, source)
    assert scheduled(instance) == ([], "no source has due pages"), "it has no partition yet"
    instance.add_dynamic_partitions("source", ["demo_shop"])
    assert scheduled(instance) == (["demo_shop"], None)
    instance.create_run_for_job(
        defs.resolve_job_def("crawl"), status=DagsterRunStatus.STARTED, tags={"dagster/partition": "demo_shop"}
    )
    assert scheduled(instance) == ([], "every source with due pages is being crawled")


def test_a_source_is_launched_again_no_sooner_than_its_freshness_min(
    instance: DagsterInstance, world: World, database: Database
) -> None:
    """Fails where `sources_due` does not ask when the last crawl opened."""
    loaded = contract_of(world.settings, "demo_shop")
    source = sync_source(database, loaded)
    instance.add_dynamic_partitions("source", ["demo_shop"])
    insert_due_url(database, source)
    crawl = insert_crawl(database, source, run_id="earlier", machine=dead_machine())
    with database.connection() as connection:
        crawls.close(connection, crawl, "finished")
    assert scheduled(instance) == ([], "no source has due pages")
    moved = "UPDATE crawls SET opened_at = clock_timestamp() - CAST(:age AS interval) RETURNING 1"
    least = loaded.contract.freshness.min
    crawling.rows(database, moved, age=least - dt.timedelta(seconds=30))
    assert scheduled(instance)[0] == []
    crawling.rows(database, moved, age=least)
    assert scheduled(instance)[0] == ["demo_shop"]


@pytest.mark.parametrize(
    ("status", "silent_for", "is_launched"),
    [
        (DagsterRunStatus.FAILURE, "10 seconds", False),  # it may still be at work
        (DagsterRunStatus.FAILURE, "2 minutes", True),
        (DagsterRunStatus.CANCELED, "2 minutes", False),  # by a person
        (DagsterRunStatus.CANCELED, "2 hours", True),
        (None, "2 minutes", True),  # the run was deleted
    ],
)
def test_a_crawl_that_was_cut_short_is_taken_up_again(
    instance: DagsterInstance,
    world: World,
    database: Database,
    status: DagsterRunStatus | None,
    silent_for: str,
    is_launched: bool,
) -> None:
    source = sync_source(database, contract_of(world.settings, "demo_shop"))
    instance.add_dynamic_partitions("source", ["demo_shop"])
    run_id = "gone"
    if status is not None:
        run_id = instance.create_run_for_job(defs.resolve_job_def("crawl"), status=status).run_id
    insert_crawl(database, source, run_id=run_id, machine=dead_machine(), silent_for=silent_for)
    assert scheduled(instance)[0] == (["demo_shop"] if is_launched else [])


def test_a_paused_source_is_not_launched(instance: DagsterInstance, world: World, database: Database) -> None:
    source = sync_source(database, contract_of(world.settings, "demo_shop"))
    instance.add_dynamic_partitions("source", ["demo_shop"])
    insert_due_url(database, source)
    insert_crawl(database, source, run_id="gone", machine=dead_machine(), silent_for="1 day")
    crawling.rows(database, "UPDATE sources SET paused_at = now() RETURNING 1")
    assert scheduled(instance)[0] == []


def dead_machine() -> str:
    """This machine before its last start."""
    from crawl_pipeline.pipeline.processes import machine_name

    return f"{machine_name().rpartition('/')[0]}/00000000"

"""`crawl-pipeline crawl`: what it prints where, how it exits, and what a signal leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import psutil
import pytest
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

from crawl_pipeline.defs.instance import prepare_instance
from crawl_pipeline.demo.shop import Shop
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests import crawling, wait_until
from crawl_pipeline_tests.defs.commands import run, start
from crawl_pipeline_tests.defs.worlds import World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def own_dagster(world: World, empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> World:
    """The world, with a database for Dagster that no other test uses."""
    environment = {**world.environment, "DAGSTER_POSTGRES_URL": empty_database_url}
    monkeypatch.setenv("DAGSTER_POSTGRES_URL", empty_database_url)
    monkeypatch.setenv("DAGSTER_HOME", "/nowhere")
    settings = type(world.settings).from_environment(environment, world.sources.parent)
    return World(settings=settings, environment=environment, sources=world.sources)


def runs(world: World) -> list[tuple[DagsterRunStatus, dict[str, str]]]:
    """The runs that the instance knows, newest first."""
    with DagsterInstance.from_config(str(prepare_instance(world.settings))) as instance:
        assert instance.event_log_storage.get_concurrency_info("crawl_workers").claimed_slots == []
        return [(run.status, dict(run.tags)) for run in instance.get_runs(RunsFilter(job_name="crawl"))]


def test_a_crawl_says_its_progress_on_stderr_and_its_end_on_stdout(
    own_dagster: World, tmp_path: Path, shop: Shop, database: Database
) -> None:
    code, out, err = run(tmp_path / "cwd", "crawl", "demo_shop", "--workers", "1", environment=own_dagster.environment)
    assert code == 0, err
    (crawl,) = crawling.rows(database, "SELECT crawl_id FROM crawls")
    assert out == f"{crawl.crawl_id} finished\n"
    assert re.search(r"^demo_shop: \d+ of \d+ pages done, ", err, re.MULTILINE)
    assert "  stored   500 records (500 new, 0 changed), 525 page versions (525 new)\n" in err
    assert "dagster" not in err.replace("the database and Dagster", "")
    ((status, tags),) = runs(own_dagster)
    assert status is DagsterRunStatus.SUCCESS
    assert (tags["dagster/partition"], tags["crawl_pipeline/foreground"]) == ("demo_shop", "true")
    assert len(shop.requests) == 525

    code, out, err = run(tmp_path / "cwd", "crawl", "demo_shop", "--json", environment=own_dagster.environment)
    assert code == 0, err
    report = json.loads(out)
    assert (report["source"], report["stop_reason"], report["requests"]) == ("demo_shop", "nothing_due", 0)
    assert report["urls"]["accepted"] == sum(report["urls"].values()) == 525
    assert len(shop.requests) == 525


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], 'crawl-pipeline: no source named "nowhere"; sources are: demo_shop\n'),
        (["demo_shop", "--workers", "0"], "Invalid value for '--workers'"),
        (["demo_shop", "--max-duration", "soon"], "use a duration such as 1s, 500ms or 2m"),
        (["broken"], "broken.yaml: "),
        ([], "Missing argument 'SOURCE'"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_2(
    bare_world: World, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    if arguments == ["broken"]:
        (bare_world.sources / "broken.yaml").write_text("source: broken\n", encoding="utf-8")
    code, out, err = run(tmp_path / "cwd", "crawl", *arguments, environment=bare_world.environment)
    assert (code, out) == (2, "")
    assert sentence in err
    assert "Traceback" not in err


def test_a_database_that_is_away_is_one_sentence_and_exit_1(bare_world: World, tmp_path: Path) -> None:
    code, out, err = run(tmp_path / "cwd", "crawl", "demo_shop", environment=bare_world.environment)
    assert (code, out) == (1, "")
    assert "crawl-pipeline: the database server at 127.0.0.1 did not answer" in err
    assert "Traceback" not in err
    assert "secret" not in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_gives_the_leases_back_and_the_next_run_goes_on(
    own_dagster: World, tmp_path: Path, shop: Shop, database: Database, number: signal.Signals, code: int
) -> None:
    shop.latency = 0.2
    command = start(tmp_path / "cwd", "crawl", "demo_shop", "--workers", "1", environment=own_dagster.environment)
    wait_until(lambda: len(shop.requests) > 20, within=120)
    workers = psutil.Process(command.process.pid).children(recursive=True)
    command.process.send_signal(number)
    assert command.wait(60) == code, command.err
    assert command.out == ""
    assert command.err.endswith("demo_shop: stopped; run the same command to go on\n")
    assert crawling.rows(database, "SELECT count(*) AS n FROM leases")[0].n == 0
    assert crawling.rows(database, "SELECT state FROM crawls") == [("open",)]
    wait_until(lambda: not any(worker.is_running() for worker in workers))
    assert [status for status, _ in runs(own_dagster)] == [DagsterRunStatus.CANCELED]

    shop.latency = 0.0
    again, out, err = run(tmp_path / "cwd", "crawl", "demo_shop", "--workers", "1", environment=own_dagster.environment)
    assert again == 0, err
    assert "demo_shop: resuming crawl " in err
    assert out.endswith(" finished\n")
    assert crawling.rows(database, "SELECT count(*) AS n FROM records")[0].n == 500
    assert crawling.rows(database, "SELECT count(*) AS n FROM crawls")[0].n == 1


def test_after_sigkill_the_next_start_ends_the_dead_run_and_takes_its_crawl_over(
    own_dagster: World, tmp_path: Path, shop: Shop, database: Database
) -> None:
    """Broken by not calling `end_dead_runs` before a run: the dead one stays STARTED and keeps its pool slot."""
    shop.latency = 0.2
    command = start(tmp_path / "cwd", "crawl", "demo_shop", "--workers", "1", environment=own_dagster.environment)
    wait_until(lambda: len(shop.requests) > 20, within=120)
    workers = psutil.Process(command.process.pid).children(recursive=True)
    os.kill(command.process.pid, signal.SIGKILL)
    command.wait()
    wait_until(lambda: not any(worker.is_running() for worker in workers), within=30)

    shop.latency = 0.0
    code, _, err = run(tmp_path / "cwd", "crawl", "demo_shop", "--workers", "1", environment=own_dagster.environment)
    assert code == 0, err
    assert "demo_shop: resuming crawl " in err
    assert [status for status, _ in runs(own_dagster)] == [DagsterRunStatus.SUCCESS, DagsterRunStatus.CANCELED]
    assert crawling.rows(database, "SELECT count(*) AS n FROM records")[0].n == 500


def test_a_run_that_is_cancelled_elsewhere_stops_and_says_so(
    own_dagster: World, tmp_path: Path, shop: Shop, database: Database
) -> None:
    shop.latency = 0.2
    command = start(tmp_path / "cwd", "crawl", "demo_shop", "--workers", "1", environment=own_dagster.environment)
    wait_until(lambda: len(shop.requests) > 5, within=120)
    with DagsterInstance.from_config(str(prepare_instance(own_dagster.settings))) as instance:
        (run,) = instance.get_runs()
        instance.report_run_canceling(run)
    assert command.wait(60) == 1, command.err
    assert re.search(r"^crawl-pipeline: the run was told to stop; crawl .* stays open", command.err, re.MULTILINE)
    assert crawling.rows(database, "SELECT count(*) AS n FROM leases")[0].n == 0
    assert [status for status, _ in runs(own_dagster)] == [DagsterRunStatus.CANCELED]


def test_a_second_crawl_of_a_source_is_refused_by_naming_the_first(
    own_dagster: World, tmp_path: Path, shop: Shop, database: Database
) -> None:
    shop.latency = 1.0
    first = start(tmp_path / "cwd", "crawl", "demo_shop", "--workers", "1", environment=own_dagster.environment)
    wait_until(lambda: len(shop.requests) > 5, within=120)
    code, out, err = run(tmp_path / "cwd", "crawl", "demo_shop", environment=own_dagster.environment)
    first.process.terminate()
    first.wait(60)
    (crawl,) = crawling.rows(database, "SELECT crawl_id FROM crawls")
    assert (code, out) == (2, "")
    assert f'"demo_shop" already has a live crawl, {crawl.crawl_id} (run ' in err

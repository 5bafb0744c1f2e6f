"""`crawl-pipeline dev`: the UI's own interface launches runs, and the end leaves nothing behind."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from crawl_pipeline.cli.services import free_port, is_taken
from crawl_pipeline.demo.contract import demo_contract_text
from crawl_pipeline.demo.shop import Shop
from crawl_pipeline.storage.embedded import server_processes
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.defs.commands import Command, run, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

REPOSITORY = {"repositoryLocationName": "crawl_pipeline", "repositoryName": "__repository__"}
LAUNCH = """mutation($p: ExecutionParams!) { launchRun(executionParams: $p) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
BACKFILL = """mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
RUNS = """{ runsOrError { ... on Runs { results { runId status jobName tags { key value } } } } }"""


class Ui:
    """The web server's GraphQL."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/graphql"

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        answer = requests.post(self._url, json={"query": query, "variables": variables}, timeout=60).json()
        assert "errors" not in answer, answer
        data: dict[str, Any] = answer["data"]
        return data

    def launch(self, source: str) -> str:
        """Launch the job for one partition, as the launchpad does."""
        parameters = {
            "selector": {**REPOSITORY, "pipelineName": "crawl"},
            "runConfigData": {"ops": {"page_versions": {"ops": {"open_crawl": {"config": {"workers": 1}}}}}},
            "mode": "default",
            "executionMetadata": {"tags": [{"key": "dagster/partition", "value": source}]},
        }
        launched = self.ask(LAUNCH, p=parameters)["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        run_id: str = launched["run"]["runId"]
        return run_id

    def backfill(self, *sources: str) -> None:
        """Launch both assets for several partitions."""
        assets = [{"path": ["page_versions"]}, {"path": ["records"]}]
        parameters = {"assetSelection": assets, "partitionNames": sources, "fromFailure": False, "tags": []}
        launched = self.ask(BACKFILL, p=parameters)["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched

    def runs(self) -> dict[str, tuple[str, str]]:
        """Partition and status of each run."""
        found = self.ask(RUNS)["runsOrError"]["results"]
        tags = {one["runId"]: {tag["key"]: tag["value"] for tag in one["tags"]} for one in found}
        return {one["runId"]: (tags[one["runId"]].get("dagster/partition", ""), one["status"]) for one in found}


@pytest.fixture
def shops(tmp_path: Path) -> Iterator[dict[str, Shop]]:
    """Two shops, each with a contract in the folder `sources`."""
    folder = tmp_path / "sources"
    folder.mkdir()
    with Shop.start(latency=0.0) as first, Shop.start(latency=0.0) as second:
        shops = {"first": first, "second": second}
        for name, shop in shops.items():
            text = demo_contract_text(shop.base_url).replace("source: demo_shop\n", f"source: {name}\n")
            (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
        yield shops


@pytest.fixture
def served(
    tmp_path: Path, crawl_home: Path, shops: dict[str, Shop]
) -> Iterator[tuple[Command, Ui, list[psutil.Process]]]:
    """A running `dev` on a free port, in a home of its own; its processes; killed at the end where a test has not."""
    port = free_port()
    environment = {"CRAWL_HOME": str(crawl_home), "CRAWL_SOURCES": str(tmp_path / "sources")}
    command = start(tmp_path / "cwd", "dev", "--port", str(port), environment=environment)
    try:
        wait_until(lambda: "is ready" in command.out or command.process.poll() is not None, within=400)
        assert command.out.startswith(f"crawl_pipeline is ready on http://127.0.0.1:{port} "), command.err
        yield command, Ui(port), psutil.Process(command.process.pid).children(recursive=True)
    finally:
        if command.process.poll() is None:
            command.process.terminate()
        command.process.wait(120)


def test_the_ui_launches_runs_and_the_end_leaves_nothing(
    served: tuple[Command, Ui, list[psutil.Process]], shops: dict[str, Shop], crawl_home: Path
) -> None:
    command, ui, processes = served
    run_id = ui.launch("first")
    wait_until(lambda: ui.runs()[run_id][1] in {"SUCCESS", "FAILURE"}, within=400, every=0.5)
    assert ui.runs()[run_id] == ("first", "SUCCESS")
    assert len(shops["first"].requests) == 525

    ui.backfill("first", "second")
    wait_until(
        lambda: sorted(ui.runs().values()) == [("first", "SUCCESS"), ("first", "SUCCESS"), ("second", "SUCCESS")],
        within=400,
        every=0.5,
    )
    assert (len(shops["first"].requests), len(shops["second"].requests)) == (525, 525)

    command.process.send_signal(signal.SIGTERM)
    assert command.wait(100) == 143
    assert command.err in {"", "port 8800 is in use, so the demo shop is not started\n"}
    wait_until(lambda: not any(process.is_running() for process in processes), within=5)
    assert server_processes(crawl_home) == []


def test_a_killed_run_is_launched_again_and_one_under_way_at_the_end_gives_its_leases_back(
    served: tuple[Command, Ui, list[psutil.Process]], shops: dict[str, Shop], crawl_home: Path, tmp_path: Path
) -> None:
    command, ui, _ = served
    shops["first"].latency = 0.3
    killed = ui.launch("first")
    wait_until(lambda: len(shops["first"].requests) > 10, within=400)
    run_process(command).kill()
    wait_until(lambda: ui.runs()[killed] == ("first", "FAILURE"), within=60, every=0.5)
    wait_until(lambda: ("first", "STARTED") in ui.runs().values(), within=400, every=0.5)
    asked = len(shops["first"].requests)
    wait_until(lambda: len(shops["first"].requests) > asked + 10, within=400)
    processes = psutil.Process(command.process.pid).children(recursive=True)
    command.process.send_signal(signal.SIGINT)
    assert command.wait(100) == 130
    wait_until(lambda: not any(process.is_running() for process in processes), within=5)

    environment = {"CRAWL_HOME": str(crawl_home), "CRAWL_SOURCES": str(tmp_path / "sources")}
    code, out, err = run(tmp_path / "cwd", "status", "first", "--json", environment=environment)
    assert code == 0, err
    status = json.loads(out)
    assert status["urls"]["active"] == 0
    assert status["urls"]["accepted"] > 0


def run_process(command: Command) -> psutil.Process:
    """The process of the run that is under way: the one that has a nursery."""
    (nursery, *_) = [
        process
        for process in psutil.Process(command.process.pid).children(recursive=True)
        if "crawl_pipeline.pipeline.nursery" in process.cmdline()
    ]
    parent = nursery.parent()
    assert parent is not None
    return parent


def test_a_taken_port_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    with Shop.start() as shop:
        assert is_taken(shop.port)
        code, out, err = run(tmp_path / "cwd", "dev", "--port", str(shop.port), environment={})
    assert (code, out) == (2, "")
    assert (
        err == f"crawl-pipeline: port {shop.port} is taken; choose another: crawl-pipeline dev --port {shop.port + 1}\n"
    )

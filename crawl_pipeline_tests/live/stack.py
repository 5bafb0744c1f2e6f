"""A running `crawl-pipeline dev` and its web server's GraphQL, which is what the UI itself speaks."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from crawl_pipeline.cli.services import free_port
from crawl_pipeline.demo.contract import demo_contract_text
from crawl_pipeline.demo.shop import Shop
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.defs.commands import Command, run, start

REPOSITORY = {"repositoryLocationName": "crawl_pipeline", "repositoryName": "__repository__"}
LAUNCH = """mutation($p: ExecutionParams!) { launchRun(executionParams: $p) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
BACKFILL = """mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
TERMINATE = """mutation($id: String!) { terminateRun(runId: $id, terminatePolicy: SAFE_TERMINATE) { __typename } }"""
RUNS = """{ runsOrError { ... on Runs { results { runId status jobName tags { key value } } } } }"""
MATERIALIZATIONS = """query($key: AssetKeyInput!, $partitions: [String!]) { assetOrError(assetKey: $key) {
  ... on Asset { assetMaterializations(partitions: $partitions) { runId metadataEntries {
    label __typename ... on TextMetadataEntry { text } ... on IntMetadataEntry { intValue }
    ... on MarkdownMetadataEntry { mdStr } } } } } }"""
# A source for each test of the shared stack: they run in any order.
SOURCES = ("single", "first", "second", "third", "stopped", "clicked", "bulk_one", "bulk_two")
# They all belong into one process of pytest-xdist: each process would start a stack of its own.
IN_ONE_PROCESS = pytest.mark.xdist_group("live")
OVER = {"SUCCESS", "FAILURE", "CANCELED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A run as GraphQL tells of it."""

    run_id: str
    source: str
    status: str
    tags: Mapping[str, str]


class Ui:
    """The web server's GraphQL."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """What a query gives; a fault fails the test."""
        answer = requests.post(f"{self.url}/graphql", json={"query": query, "variables": variables}, timeout=60).json()
        assert "errors" not in answer, answer
        data: dict[str, Any] = answer["data"]
        return data

    def launch(self, source: str) -> str:
        """Launch the job `crawl` for one partition, as the launchpad does. Returns the run's id."""
        config = {"ops": {"page_versions": {"ops": {"open_crawl": {"config": {"workers": 1}}}}}}
        return self.launch_job("crawl", config, {"dagster/partition": source})

    def launch_job(self, job: str, config: Mapping[str, Any], tags: Mapping[str, str]) -> str:
        """Launch a job, as the launchpad does. Returns the run's id."""
        parameters = {
            "selector": {**REPOSITORY, "pipelineName": job},
            "runConfigData": config,
            "mode": "default",
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in tags.items()]},
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

    def terminate(self, run_id: str) -> None:
        """Terminate a run, as the button does."""
        assert self.ask(TERMINATE, id=run_id)["terminateRun"]["__typename"] == "TerminateRunSuccess"

    def runs(self, *sources: str) -> list[Launched]:
        """The runs of some sources, or all."""
        found = self.ask(RUNS)["runsOrError"]["results"]
        runs = []
        for one in found:
            tags = {tag["key"]: tag["value"] for tag in one["tags"]}
            source = tags.get("dagster/partition", "")
            runs.append(Launched(run_id=one["runId"], source=source, status=one["status"], tags=tags))
        return [one for one in runs if not sources or one.source in sources]

    def wait_for(self, run_id: str, within: float = 400) -> str:
        """How a run ended."""

        def status() -> str | None:
            (run,) = [one for one in self.runs() if one.run_id == run_id]
            return run.status if run.status in OVER else None

        return wait_until(status, within=within, every=0.5) or ""

    def said(self, asset: str, source: str) -> list[dict[str, Any]]:
        """The metadata of an asset's materializations of a partition, the newest first."""
        asked = self.ask(MATERIALIZATIONS, key={"path": [asset]}, partitions=[source])
        return [
            {entry["label"]: entry.get("text") or entry.get("intValue") or entry.get("mdStr") for entry in one}
            for one in (event["metadataEntries"] for event in asked["assetOrError"]["assetMaterializations"])
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A running `dev`, its processes, and the shops whose contracts it has."""

    command: Command
    ui: Ui
    processes: Collection[psutil.Process]
    shops: Mapping[str, Shop]
    folder: Path
    environment: Mapping[str, str]

    def status(self, name: str) -> dict[str, Any]:
        """What `crawl-pipeline status` says of a source or a crawl."""
        code, out, err = run(self.folder, "status", name, "--json", environment=self.environment)
        assert code == 0, err
        said: dict[str, Any] = json.loads(out)
        return said


@contextmanager
def served(folder: Path, home: Path, shops: Mapping[str, Shop]) -> Iterator[Stack]:
    """`dev` on a free port, in a home of its own; ended with the block where the block has not."""
    sources = folder / "sources"
    sources.mkdir(parents=True)
    for name, shop in shops.items():
        text = demo_contract_text(shop.base_url).replace("source: demo_shop\n", f"source: {name}\n")
        (sources / f"{name}.yaml").write_text(text, encoding="utf-8")
    port = free_port()
    environment = {"CRAWL_HOME": str(home), "CRAWL_SOURCES": str(sources)}
    command = start(folder / "cwd", "dev", "--port", str(port), environment=environment)
    try:
        wait_until(lambda: "is ready" in command.out or command.process.poll() is not None, within=400)
        assert command.out.startswith(f"crawl_pipeline is ready on http://127.0.0.1:{port} "), command.err
        yield Stack(
            command=command,
            ui=Ui(port),
            processes=psutil.Process(command.process.pid).children(recursive=True),
            shops=shops,
            folder=folder / "cwd",
            environment=environment,
        )
    finally:
        if command.process.poll() is None:
            command.process.terminate()
        command.process.wait(120)

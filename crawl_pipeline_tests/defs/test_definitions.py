"""Definitions load anywhere and say what they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from crawl_pipeline.definitions import defs
from crawl_pipeline.defs.metadata import RECORDS_LINEAGE

ROOT = Path(__file__).parents[2]


def python(code: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_definitions_load_with_an_empty_environment_and_leave_no_trace(tmp_path: Path) -> None:
    code = (
        "from crawl_pipeline.definitions import defs; defs.get_repository_def().load_all_definitions(); print('loaded')"
    )
    done = python(code, tmp_path)
    assert (done.stdout, done.returncode) == ("loaded\n", 0), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_importing_the_command_line_does_not_import_dagster(tmp_path: Path) -> None:
    code = (
        "import sys; from crawl_pipeline.cli import COMMANDS, main\n"
        "for name in COMMANDS: main.get_command(None, name)\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0].startswith('dagster')))"
    )
    done = python(code, tmp_path)
    assert done.stdout == "[]\n", done.stderr


def test_dagster_validates_the_definitions(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-w", str(ROOT / "workspace.yaml")]
    environment = {**os.environ, "DAGSTER_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.parametrize("name", ["sources", "page_versions", "records"])
def test_each_asset_says_what_its_rows_are(name: str) -> None:
    spec = defs.resolve_asset_graph().get(dg.AssetKey([name]))
    assert spec.description is not None
    assert spec.description.startswith("One row per ")
    assert spec.partitions_def == dg.DynamicPartitionsDefinition(name="source")


def test_lineage_goes_from_contracts_over_pages_to_records() -> None:
    graph = defs.resolve_asset_graph()
    for name, parent in (("page_versions", "sources"), ("records", "page_versions")):
        assert graph.get(dg.AssetKey([name])).parent_keys == {dg.AssetKey([parent])}
    assert not graph.get(dg.AssetKey(["sources"])).is_materializable


def test_column_lineage_names_columns_that_there_are() -> None:
    graph = defs.resolve_asset_graph()
    columns = {
        name: {one.name for one in graph.get(dg.AssetKey([name])).metadata["dagster/column_schema"].columns}
        for name in ("page_versions", "records")
    }
    lineage = RECORDS_LINEAGE.value.deps_by_column
    assert set(lineage) <= columns["records"]
    assert {dep.column_name for deps in lineage.values() for dep in deps} <= columns["page_versions"]


def test_all_that_runs_by_itself_is_on_by_default() -> None:
    repository = defs.get_repository_def()
    assert {sensor.default_status for sensor in repository.sensor_defs} == {dg.DefaultSensorStatus.RUNNING}
    assert {schedule.default_status for schedule in repository.schedule_defs} == {dg.DefaultScheduleStatus.RUNNING}


def test_only_the_worker_step_takes_a_slot_of_the_pool() -> None:
    job = defs.resolve_job_def("crawl")
    pools = {node.name: node.pool for node in job.graph.iterate_op_defs()}
    assert {name for name, pool in pools.items() if pool is not None} == {"crawl_worker"}
    assert pools["crawl_worker"] == "crawl_workers"

"""Runs whose process died are recognised, ended and their slots freed; a live one is left alone."""

from __future__ import annotations

import os
import subprocess
import sys

import dagster as dg
import psutil
import pytest
from dagster import DagsterInstance, DagsterRunStatus

from crawl_pipeline.definitions import defs
from crawl_pipeline.defs.machine import ProcessIdentity
from crawl_pipeline.defs.runs import FOREGROUND_TAG, PROCESS_TAG, RunWatch, end_dead_runs


def dead_process() -> ProcessIdentity:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    identity = ProcessIdentity(
        machine=ProcessIdentity.own().machine, pid=child.pid, started=psutil.Process(child.pid).create_time()
    )
    assert not identity.is_gone()
    child.kill()
    child.wait()
    return identity


def started_run(instance: DagsterInstance, **tags: str) -> dg.DagsterRun:
    return instance.create_run_for_job(
        defs.resolve_job_def("crawl"),
        status=DagsterRunStatus.STARTED,
        tags={"dagster/partition": "demo_shop", **tags},
    )


def status(instance: DagsterInstance, run: dg.DagsterRun) -> DagsterRunStatus:
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found.status


def test_this_process_is_not_gone_and_survives_its_own_spelling() -> None:
    own = ProcessIdentity.own()
    assert not own.is_gone()
    assert ProcessIdentity.parse(str(own)) == own


def test_a_process_that_ended_is_gone() -> None:
    assert dead_process().is_gone()


def test_a_pid_that_another_process_has_now_is_gone() -> None:
    own = ProcessIdentity.own()
    assert ProcessIdentity(machine=own.machine, pid=os.getpid(), started=own.started - 100).is_gone()


def test_a_process_from_before_the_last_boot_is_gone_and_one_elsewhere_is_not() -> None:
    own = ProcessIdentity.own()
    host = own.machine.rpartition("/")[0]
    assert ProcessIdentity(machine=f"{host}/00000000", pid=own.pid, started=own.started).is_gone()
    assert not ProcessIdentity(machine="elsewhere/00000000", pid=own.pid, started=own.started).is_gone()


@pytest.mark.parametrize("text", ["", "x", "host/boot/12", "host/boot/x@1", "/1@2", "host/1@"])
def test_a_tag_that_is_no_identity_is_none(text: str) -> None:
    assert ProcessIdentity.parse(text) is None


def test_a_dead_run_at_a_terminal_ends_cancelled_and_frees_its_slot(instance: DagsterInstance) -> None:
    """Broken by not freeing the slots in `end_dead_runs`."""
    instance.event_log_storage.set_concurrency_slots("crawl_workers", 1)
    run = started_run(instance, **{FOREGROUND_TAG: "true", PROCESS_TAG: str(dead_process())})
    claim = instance.event_log_storage.claim_concurrency_slot("crawl_workers", run.run_id, "worker")
    assert claim.is_claimed
    assert end_dead_runs(instance) == [run.run_id]
    assert status(instance, run) is DagsterRunStatus.CANCELED
    assert instance.event_log_storage.get_concurrency_info("crawl_workers").claimed_slots == []


def test_a_dead_run_of_the_daemon_ends_failed_so_that_it_is_launched_again(instance: DagsterInstance) -> None:
    run = started_run(instance, **{PROCESS_TAG: str(dead_process())})
    assert end_dead_runs(instance) == [run.run_id]
    assert status(instance, run) is DagsterRunStatus.FAILURE


def test_a_live_run_and_a_run_of_unknown_process_are_left_alone(instance: DagsterInstance) -> None:
    live = started_run(instance, **{FOREGROUND_TAG: "true", PROCESS_TAG: str(ProcessIdentity.own())})
    unknown = started_run(instance)
    assert end_dead_runs(instance) == []
    assert {status(instance, live), status(instance, unknown)} == {DagsterRunStatus.STARTED}


@pytest.mark.parametrize("how", ["canceling", "canceled", "failed", "deleted"])
def test_a_run_that_is_to_end_is_seen_as_not_live(
    instance: DagsterInstance, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawl_pipeline.defs.runs.ASK_EVERY", 0.0)
    run = started_run(instance)
    watch = RunWatch(instance, run.run_id)
    assert watch.is_live()
    match how:
        case "canceling":
            instance.report_run_canceling(run)
        case "canceled":
            instance.report_run_canceled(run)
        case "failed":
            instance.report_run_failed(run)
        case _:
            instance.delete_run(run.run_id)
    assert not watch.is_live()

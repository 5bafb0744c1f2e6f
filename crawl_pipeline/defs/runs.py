"""Dagster's runs that crawl: whether one still lives, and what to do about one whose process died."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from crawl_pipeline.defs.machine import ProcessIdentity

ASK_EVERY = 4.0  # seconds
CLOSING_WITHIN = 3600.0  # seconds from a crawl's deadline to the end of its run
CRAWL_JOB = "crawl"
PARTITION_TAG = "dagster/partition"
MAX_RUNTIME_TAG = "dagster/max_runtime"
FOREGROUND_TAG = "crawl_pipeline/foreground"
PROCESS_TAG = "crawl_pipeline/process"
_STARTED = [
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]
_UNFINISHED = [DagsterRunStatus.QUEUED, *_STARTED]


class RunWatch:
    """Asks the instance, every few seconds at most, whether a run is still meant to go on."""

    def __init__(self, instance: DagsterInstance, run_id: str) -> None:
        self._instance = instance
        self._run_id = run_id
        self._asked_at = time.monotonic()
        self._is_live = True

    def is_live(self) -> bool:
        """False once the run is finished, being cancelled or deleted. An instance that cannot answer changes nothing:
        what is stored is guarded by the leases' fence.
        """
        if self._is_live and time.monotonic() - self._asked_at >= ASK_EVERY:
            self._asked_at = time.monotonic()
            try:
                run = self._instance.get_run_by_id(self._run_id)
            except Exception:  # whatever a storage of Dagster's raises when its database is away
                return True
            self._is_live = run is not None and not run.is_finished and run.status is not DagsterRunStatus.CANCELING
        return self._is_live


def tag_run(instance: DagsterInstance, run_id: str, deadline_at: datetime) -> None:
    """Note on a run which process it is, that run monitoring may end it some time after its crawl's deadline, and that
    a run in its place begins with `open_crawl`, which takes the crawl over.
    """
    seconds = max(0.0, (deadline_at - datetime.now(UTC)).total_seconds()) + CLOSING_WITHIN
    instance.add_run_tags(
        run_id,
        {
            PROCESS_TAG: str(ProcessIdentity.own()),
            MAX_RUNTIME_TAG: f"{seconds:.0f}",
            "dagster/retry_strategy": "ALL_STEPS",
        },
    )


def unfinished_runs(instance: DagsterInstance, source: str) -> Sequence[DagsterRun]:
    """The runs of a source that wait, run or are being cancelled."""
    return instance.get_runs(RunsFilter(statuses=_UNFINISHED, tags={PARTITION_TAG: source}))


def end_dead_runs(instance: DagsterInstance) -> list[str]:
    """End every run of this machine whose process is gone, and free its pool slots. Returns their ids.

    A run at a terminal ends as cancelled: who started it saw it die. Any other has failed, and may be launched again.
    """
    ended = []
    for run in instance.get_runs(RunsFilter(statuses=_STARTED)):
        owner = ProcessIdentity.parse(run.tags.get(PROCESS_TAG, ""))
        if owner is None or not owner.is_gone():
            continue
        message = f"The process of this run is gone ({owner})."
        if FOREGROUND_TAG in run.tags:
            instance.report_run_canceled(run, message)
        else:
            instance.report_run_failed(run, message)
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
        ended.append(run.run_id)
    return ended

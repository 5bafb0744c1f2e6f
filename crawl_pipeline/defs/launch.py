"""Run the job `crawl` for one source in this process, as a run that the web UI shows like any other.

The instance is prepared by `defs.instance`; signals, display and exit codes are the command's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dagster import (
    DagsterEventType,
    DagsterExecutionInterruptedError,
    DagsterInstance,
    DagsterRunStatus,
    ExecuteInProcessResult,
)
from dagster_shared.error import SerializableErrorInfo

from crawl_pipeline.defs.code_location import defs
from crawl_pipeline.defs.failures import STOPPED
from crawl_pipeline.defs.machine import ProcessIdentity
from crawl_pipeline.defs.observers import Observer, observing
from crawl_pipeline.defs.partitions import SOURCES
from crawl_pipeline.defs.runs import CRAWL_JOB, FOREGROUND_TAG, PROCESS_TAG, end_dead_runs
from crawl_pipeline.errors import InfrastructureError

_FAILURES = {DagsterEventType.STEP_FAILURE, DagsterEventType.RUN_FAILURE}


@contextmanager
def opened_instance(home: Path) -> Iterator[DagsterInstance]:
    """The persistent instance of a prepared folder. Raises InfrastructureError in one sentence."""
    try:
        instance = DagsterInstance.from_config(str(home))
    except Exception as error:  # whatever its configuration or its storage raises
        raise InfrastructureError(
            f"Dagster's instance in {home} cannot be opened ({type(error).__name__}: {_first_line(error)}); "
            f"mend {home / 'dagster.yaml'}, or move it away to have the shipped one back"
        ) from error
    with instance:
        yield instance


def run_crawl(instance: DagsterInstance, source: str, run_config: dict[str, object], observer: Observer) -> str:
    """Crawl a source to its end and return the run's id. Call it in the main thread: interrupts end the run cleanly.

    What went wrong goes to the observer (a CrawlError), or is raised: InfrastructureError for all else. An
    interrupt leaves the run cancelled and the crawl open, to be resumed.
    """
    end_dead_runs(instance)
    instance.add_dynamic_partitions(SOURCES, [source])
    # Not retried by the instance: who started it sees how it ends.
    tags = {FOREGROUND_TAG: "true", PROCESS_TAG: str(ProcessIdentity.own()), "dagster/max_retries": "0"}
    job = defs.resolve_job_def(CRAWL_JOB)
    with observing(observer):
        result = job.execute_in_process(
            instance=instance, partition_key=source, run_config=run_config, tags=tags, raise_on_error=False
        )
    if result.dagster_run.status is DagsterRunStatus.FAILURE and not observer.has_failed:
        error = _error(result)
        if error is None or error.cls_name != DagsterExecutionInterruptedError.__name__:
            raise InfrastructureError(f"the run {result.run_id} failed: {_in_one_line(error)}")
        # The interrupt came between two steps, where Dagster takes it for a failure.
        instance.report_run_canceled(result.dagster_run, STOPPED)
    return result.run_id


def _error(result: ExecuteInProcessResult) -> SerializableErrorInfo | None:
    """The cause of the first failure."""
    for event in result.filter_events(lambda event: event.event_type in _FAILURES):
        error: SerializableErrorInfo | None = getattr(event.event_specific_data, "error", None)
        if error is not None:
            return error.cause or error
    return None


def _in_one_line(error: SerializableErrorInfo | None) -> str:
    return "Dagster's log of the run says why" if error is None else _first_line(error.message)


def _first_line(error: object) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)

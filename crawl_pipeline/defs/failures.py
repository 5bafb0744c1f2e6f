"""What a step raises, as Dagster should see it: one sentence in the run, and whether trying again could help."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import dagster as dg
from dagster import DagsterExecutionInterruptedError, DagsterInstance, DagsterRun

from crawl_pipeline.defs import observers
from crawl_pipeline.defs.runs import FOREGROUND_TAG
from crawl_pipeline.defs.waiting import shielded
from crawl_pipeline.errors import CrawlError, UsageError

STOPPED = "Stopped at the terminal."


class InRun(Protocol):
    """What is needed of a step's context."""

    @property
    def instance(self) -> DagsterInstance: ...

    @property
    def run(self) -> DagsterRun: ...


@contextmanager
def reported_failures(context: InRun) -> Iterator[None]:
    """Turn a CrawlError of the block into `dg.Failure` with its sentence, and tell the observer; others pass.

    A UsageError will fail again however often it is tried; an InfrastructureError may not. An interrupt of a run at a
    terminal was meant by a person: the run ends as cancelled, where Dagster would call it a failure.
    """
    try:
        yield
    except UsageError as error:
        observers.current().failed(error)
        raise dg.Failure(description=str(error), allow_retries=False) from None  # no stack: the sentence says it all
    except CrawlError as error:
        observers.current().failed(error)
        raise dg.Failure(description=str(error), allow_retries=True) from error
    except DagsterExecutionInterruptedError:
        if FOREGROUND_TAG in context.run.tags:
            with shielded():
                context.instance.report_run_canceling(context.run, STOPPED)
        raise

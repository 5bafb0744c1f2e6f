"""Schedules: sources whose pages are due are crawled."""

# No `from __future__ import annotations`: Dagster reads the parameters' types from the annotations as they are.

from collections.abc import Iterator

import dagster as dg

from crawl_pipeline.defs.jobs import crawl
from crawl_pipeline.defs.partitions import SOURCES
from crawl_pipeline.defs.resources import CrawlDatabase
from crawl_pipeline.defs.runs import unfinished_runs
from crawl_pipeline.storage.crawls import sources_due


@dg.schedule(
    job=crawl,
    cron_schedule="*/5 * * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Launches each source that has due pages and no run in progress, also one whose crawl was cut short.",
)
def freshness(
    context: dg.ScheduleEvaluationContext, crawl_database: CrawlDatabase
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    known = set(context.instance.get_dynamic_partitions(SOURCES))
    with crawl_database.opened() as database:
        due = [source for source in sources_due(database) if source in known]
    waiting = [source for source in due if not unfinished_runs(context.instance, source)]
    at = f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}"
    for source in waiting:
        yield dg.RunRequest(run_key=f"{source} {at}", partition_key=source)
    if not waiting:
        yield dg.SkipReason("every source with due pages is being crawled" if due else "no source has due pages")


ALL = [freshness]

"""Schedules: sources whose pages are due are crawled, and crawls that were cut short are taken up again."""

# No `from __future__ import annotations`: Dagster reads the parameters' types from the annotations as they are.

from collections.abc import Iterator

import dagster as dg
import sqlalchemy as sa
from dagster import DagsterInstance

from crawl_pipeline.defs.jobs import crawl
from crawl_pipeline.defs.partitions import SOURCES
from crawl_pipeline.defs.resources import CrawlDatabase
from crawl_pipeline.defs.runs import unfinished_runs
from crawl_pipeline.storage.crawls import sources_due
from crawl_pipeline.storage.database import Database

# A live crawl says so every few seconds while its workers run. One that a person cancelled rests for an hour.
_CUT_SHORT = sa.text("""
    SELECT s.source, c.run_id, c.heartbeat_at < clock_timestamp() - interval '1 hour' AS is_rested
      FROM crawls c JOIN sources s USING (source_id)
     WHERE c.state = 'open' AND s.paused_at IS NULL AND c.heartbeat_at < clock_timestamp() - interval '1 minute'
     ORDER BY s.source
""")


@dg.schedule(
    job=crawl,
    cron_schedule="*/5 * * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description=(
        "Launches each source that has no run in progress, and a crawl that was cut short or due pages: "
        "these no sooner than freshness.min after its last crawl opened. "
        "A crawl that was cancelled by hand is left alone for an hour."
    ),
)
def freshness(
    context: dg.ScheduleEvaluationContext, crawl_database: CrawlDatabase
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    known = set(context.instance.get_dynamic_partitions(SOURCES))
    with crawl_database.opened() as database:
        wanted = known & {*sources_due(database), *_cut_short(context.instance, database)}
    launched = [source for source in sorted(wanted) if not unfinished_runs(context.instance, source)]
    at = f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}"
    for source in launched:
        yield dg.RunRequest(run_key=f"{source} {at}", partition_key=source)
    if not launched:
        yield dg.SkipReason("every source with due pages is being crawled" if wanted else "no source has due pages")


def _cut_short(instance: DagsterInstance, database: Database) -> list[str]:
    """Sources whose open crawl nobody works on, but those that a person cancelled a moment ago."""
    rows = database.retry(lambda connection: connection.execute(_CUT_SHORT).all())
    sources = []
    for row in rows:
        run = instance.get_run_by_id(row.run_id)
        if run is None or run.status is not dg.DagsterRunStatus.CANCELED or row.is_rested:
            sources.append(row.source)
    return sources


ALL = [freshness]

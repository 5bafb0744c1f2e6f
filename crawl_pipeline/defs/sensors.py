"""Sensors: contracts become partitions, lost leases go back, dead runs let go of what they held."""

# No `from __future__ import annotations`: Dagster reads the parameters' types from the annotations as they are.

import dagster as dg

from crawl_pipeline.defs.partitions import add_partitions
from crawl_pipeline.defs.resources import CrawlDatabase
from crawl_pipeline.defs.runs import end_dead_runs
from crawl_pipeline.storage.crawls import release_run, requeue_expired


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Adds a partition for each source contract; faulty contracts fail the tick with all their faults.",
)
def contracts(context: dg.SensorEvaluationContext, crawl_database: CrawlDatabase) -> dg.SkipReason:
    new = add_partitions(context.instance, crawl_database.settings())
    return dg.SkipReason(f"added {', '.join(new)}" if new else "every contract has its partition")


@dg.sensor(
    minimum_interval_seconds=15,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Gives expired leases back to the frontier, also when no worker is alive to do so.",
)
def expired_leases(crawl_database: CrawlDatabase) -> dg.SkipReason:
    with crawl_database.opened() as database:
        leases, released, quarantined = requeue_expired(database)
    if not leases:
        return dg.SkipReason("no lease has expired")
    return dg.SkipReason(f"{leases} leases had expired: {released} URLs re-queued, {quarantined} quarantined")


@dg.sensor(
    minimum_interval_seconds=15,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Ends runs of this machine whose process is gone, and frees their pool slots and leases.",
)
def dead_runs(context: dg.SensorEvaluationContext, crawl_database: CrawlDatabase) -> dg.SkipReason:
    ended = end_dead_runs(context.instance)
    if not ended:
        return dg.SkipReason("no run has died unseen")
    released = sum(_release(crawl_database, run_id) for run_id in ended)
    return dg.SkipReason(f"ended {', '.join(ended)}: {released} URLs released")


@dg.run_status_sensor(
    run_status=dg.DagsterRunStatus.FAILURE,
    minimum_interval_seconds=5,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Releases the leases of a failed run at once, uncounted.",
)
def failed_runs(context: dg.RunStatusSensorContext, crawl_database: CrawlDatabase) -> dg.SkipReason:
    return dg.SkipReason(f"{_release(crawl_database, context.dagster_run.run_id)} URLs released")


@dg.run_status_sensor(
    run_status=dg.DagsterRunStatus.CANCELED,
    minimum_interval_seconds=5,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Releases the leases of a cancelled run at once, uncounted.",
)
def cancelled_runs(context: dg.RunStatusSensorContext, crawl_database: CrawlDatabase) -> dg.SkipReason:
    return dg.SkipReason(f"{_release(crawl_database, context.dagster_run.run_id)} URLs released")


def _release(crawl_database: CrawlDatabase, run_id: str) -> int:
    with crawl_database.opened() as database:
        return release_run(database, run_id)


ALL = [contracts, expired_leases, dead_runs, failed_runs, cancelled_runs]

"""Everything that Dagster is told, put together: assets, job, sensors, schedules, the resource and the executor."""

from __future__ import annotations

import dagster as dg

from crawl_pipeline.defs import checks, jobs, schedules, sensors
from crawl_pipeline.defs.assets import contracts, page_versions, records
from crawl_pipeline.defs.resources import CrawlDatabase

defs = dg.Definitions(
    assets=[contracts, page_versions, records],
    asset_checks=[checks.source_health],
    jobs=[jobs.crawl],
    sensors=[*sensors.ALL, checks.source_health_changes],
    schedules=schedules.ALL,
    resources={"crawl_database": CrawlDatabase()},
    executor=dg.in_process_executor,  # also for assets that are materialized without the job
)

"""What Dagster loads: two assets of each source, the job that makes them, and what runs by itself.

Loading touches no environment, no database and no contract, so that it works anywhere.
"""

from __future__ import annotations

import dagster as dg

from crawl_pipeline.defs import jobs, schedules, sensors
from crawl_pipeline.defs.assets import page_versions, records
from crawl_pipeline.defs.resources import CrawlDatabase

defs = dg.Definitions(
    assets=[page_versions, records],
    jobs=[jobs.crawl],
    sensors=sensors.ALL,
    schedules=schedules.ALL,
    executor=dg.in_process_executor,  # also for assets that are materialized without the job
    resources={"crawl_database": CrawlDatabase()},
)

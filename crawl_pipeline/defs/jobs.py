"""The job `crawl`: both assets of one source, in one process whose children do the crawling."""

from __future__ import annotations

import dagster as dg

from crawl_pipeline.defs.assets import page_versions, records
from crawl_pipeline.defs.runs import CRAWL_JOB

crawl = dg.define_asset_job(
    CRAWL_JOB,
    selection=[page_versions, records],
    description=(
        "Crawl one source (the partition) and bring its page versions and records up to date. A crawl that was cut "
        "short is resumed; when nothing is due, nothing is requested."
    ),
    executor_def=dg.in_process_executor,
)

"""`python -m crawl_pipeline.cli`: the command `crawl-pipeline`, also where no script was installed."""

from __future__ import annotations

from crawl_pipeline.cli import main

main(prog_name="crawl-pipeline")

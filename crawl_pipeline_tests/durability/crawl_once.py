"""One life of a crawl without Dagster: `python -m crawl_pipeline_tests.durability.crawl_once SOURCE WORKERS`.

Opens (or takes over) the source's crawl, runs its workers, closes it. Its process group is what tests kill.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import uuid
from pathlib import Path

from crawl_pipeline.errors import CrawlError
from crawl_pipeline.pipeline.contract_files import load_contracts
from crawl_pipeline.pipeline.crawl import CrawlOptions, close_crawl, open_crawl
from crawl_pipeline.pipeline.supervisor import run_workers
from crawl_pipeline.settings import Settings
from crawl_pipeline.storage.opening import open_database


def main() -> int:
    """Crawl as the environment's settings say."""
    source, workers = sys.argv[1], int(sys.argv[2])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    settings = Settings.from_environment(os.environ, Path.cwd())
    try:
        database = open_database(settings)
        contract = load_contracts(settings.source_folders)[source]
        crawl = open_crawl(database, contract, run_id=uuid.uuid4().hex, options=CrawlOptions(workers=workers))
        if crawl.has_due:
            ending = run_workers(database, crawl, is_run_live=lambda: True, on_progress=lambda _: None, stop=stop)
            if ending == "stopped":
                print("stopped", flush=True)
                return 143
        print(close_crawl(database, crawl).stop_reason, flush=True)
    except CrawlError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The crawl database and the settings, as a resource.

The environment is read when a step asks, never when definitions load, so that they load anywhere.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from crawl_pipeline.settings import Settings
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.opening import open_database


class CrawlDatabase(dg.ConfigurableResource[None]):
    """Where crawls are kept: CRAWL_DATABASE_URL, or the embedded Postgres of CRAWL_HOME."""

    def settings(self) -> Settings:
        """The settings of this process. Raises UsageError naming the variable at fault."""
        return Settings.from_environment(os.environ, Path.cwd())

    @contextmanager
    def opened(self, stop: threading.Event | None = None) -> Iterator[Database]:
        """The database, open for the length of the block; `stop` ends its patience with an outage. Raises
        InfrastructureError in one sentence.
        """
        database = open_database(self.settings(), stop=stop)
        try:
            yield database
        finally:
            database.close()

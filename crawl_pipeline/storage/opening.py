"""From settings to a database that is ready for use: embedded or real, at this code's schema version."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from crawl_pipeline.storage import schema
from crawl_pipeline.storage.database import Database, with_driver
from crawl_pipeline.storage.embedded import EmbeddedServer


class DatabaseSettings(Protocol):
    """What is needed of the settings."""

    @property
    def home(self) -> Path:
        """The folder of the embedded server."""

    @property
    def database_url(self) -> str | None:
        """A real server's database; None: the embedded one."""

    @property
    def dagster_url(self) -> str | None:
        """Dagster's own database; None: `dagster` on the same server."""

    @property
    def database_patience(self) -> timedelta:
        """How long an outage is waited out."""


def open_database(
    settings: DatabaseSettings,
    *,
    application_name: str = "crawl-pipeline",
    stop: threading.Event | None = None,
) -> Database:
    """The crawl's database: the embedded one started, upgraded and kept alive, or a real one whose schema is checked.

    Raises DatabaseUnavailable or SchemaMismatch. Closing the database does not leave the embedded server: exit does.
    """
    if settings.database_url is None:
        server = EmbeddedServer.attach(settings.home)
        database = Database.connect(
            server.url("crawl"),
            patience=settings.database_patience,
            application_name=application_name,
            stop=stop,
            revive=server.ensure_running,
        )
        if not schema.is_current(database):
            schema.upgrade(database.url)
        return database
    database = Database.connect(
        settings.database_url, patience=settings.database_patience, application_name=application_name, stop=stop
    )
    try:
        schema.check(database)
    except BaseException:
        database.close()
        raise
    return database


def crawl_url(settings: DatabaseSettings) -> str:
    """The SQLAlchemy URL of the crawl's database; starts the embedded server where that is meant."""
    if settings.database_url is None:
        return EmbeddedServer.attach(settings.home).url("crawl")
    return with_driver(settings.database_url, "psycopg")


def dagster_url(settings: DatabaseSettings) -> str:
    """The URL of Dagster's database, over psycopg 2; starts the embedded server where that is meant."""
    if settings.dagster_url is not None:
        return with_driver(settings.dagster_url, "psycopg2")
    if settings.database_url is None:
        return EmbeddedServer.attach(settings.home).dagster_url("dagster")
    return with_driver(settings.database_url, "psycopg2", database="dagster")

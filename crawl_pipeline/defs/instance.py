"""Where Dagster keeps what it knows: CRAWL_HOME/dagster and a Postgres database of its own.

Imports no Dagster, so that its own database can be made ready while that import still runs.
"""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import sqlalchemy as sa

import crawl_pipeline
from crawl_pipeline.errors import DatabaseUnavailable, InfrastructureError
from crawl_pipeline.settings import Settings
from crawl_pipeline.storage.database import with_driver
from crawl_pipeline.storage.folders import make_home
from crawl_pipeline.storage.opening import dagster_url

HOME_VARIABLE = "DAGSTER_HOME"
URL_VARIABLE = "DAGSTER_POSTGRES_URL"


def prepare_instance(settings: Settings) -> Path:
    """Make the instance's folder and database ready, point this process's environment at them, return the folder.

    Child processes inherit the environment, so that they use the same instance. A `dagster.yaml` that a person
    changed in the folder is kept. Raises InfrastructureError.
    """
    home = make_home(settings.home / "dagster")
    _put_configuration(home / "dagster.yaml")
    url = dagster_url(settings)
    if settings.dagster_url is None and settings.database_url is not None:
        _create_database(settings.database_url, "dagster")
    os.environ[HOME_VARIABLE] = str(home)
    os.environ[URL_VARIABLE] = url
    return home


def shipped(name: str) -> Path:
    """A configuration file that belongs to the project: in the package when installed, above it in a checkout."""
    package = Path(crawl_pipeline.__file__).parent
    for folder in (package, package.parent):
        if (folder / name).is_file():
            return folder / name
    raise InfrastructureError(f"this installation of crawl-pipeline lacks {name}; install it again")


def _put_configuration(target: Path) -> None:
    """Put the shipped configuration in place; one that differs from what was put there last was changed by a person."""
    wanted = shipped("dagster.yaml").read_bytes()
    put = target.with_suffix(".shipped")
    if target.exists() and (not put.exists() or target.read_bytes() != put.read_bytes()):
        return
    for file in (target, put):
        fresh = file.with_name(f".{file.name}.{os.getpid()}")
        fresh.write_bytes(wanted)
        fresh.replace(file)


def _create_database(url: str, name: str) -> None:
    """Create a database on the server of `url`, unless it is there."""
    conninfo = with_driver(url, "psycopg").replace("postgresql+psycopg://", "postgresql://", 1)
    try:
        with psycopg.connect(conninfo, autocommit=True, connect_timeout=5) as connection:
            there = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone()
            if there is None:
                connection.execute(f'CREATE DATABASE "{name}"'.encode())
    except psycopg.errors.DuplicateDatabase:
        pass  # another process was faster
    except psycopg.errors.InsufficientPrivilege as error:
        raise InfrastructureError(
            f'Dagster needs a database "{name}" on the server of CRAWL_DATABASE_URL, and its user may not create one; '
            f"create it, or name another in {URL_VARIABLE}"
        ) from error
    except psycopg.OperationalError as error:
        host = sa.make_url(conninfo).host or "the default socket"
        raise DatabaseUnavailable(
            f"the database server at {host} did not answer ({' '.join(str(error).split())}); "
            f"see that it runs and that CRAWL_DATABASE_URL is right"
        ) from error

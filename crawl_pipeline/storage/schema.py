"""The schema's version: brought up by migrations, and compared with the one that this code works with.

Owns the table `crawl_schema_version`. What the tables are is said in `sql/schema.sql` and the migrations.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from crawl_pipeline.errors import SchemaMismatch
from crawl_pipeline.storage.database import Database, TimeLimits, driver_connection

VERSION_TABLE = "crawl_schema_version"
MIGRATIONS = Path(__file__).parent / "migrations"
SQL = Path(__file__).parent / "sql"

# Migrations take what time they need; another upgrade and the tables' users are waited for.
_LIMITS = TimeLimits(statement=0, lock=300, idle_in_transaction=0, answer=3600)
_UPGRADE_LOCK = 0x6372_6177_6C00  # "crawl"


def known_versions() -> list[str]:
    """The versions that this code knows, oldest first: the numbers in the migrations' file names."""
    return sorted(path.stem[1:].split("_", 1)[0] for path in (MIGRATIONS / "versions").glob("r[0-9]*_*.py"))


def upgrade(url: str) -> str:
    """Bring the database to this code's version and return it. Each migration is one transaction.

    Safe to run from many processes at once: the first does it while the others wait. Raises SchemaMismatch when the
    database is ahead, and DatabaseUnavailable when it cannot be reached.
    """
    database = Database.connect(url, application_name="crawl-pipeline upgrade", limits=_LIMITS)
    try:
        with database.connection() as lock_holder:
            lock_holder.execute(sa.select(sa.func.pg_advisory_xact_lock(_UPGRADE_LOCK)))
            with database.engine.connect() as connection:
                found = _version(connection)
                connection.rollback()
                if found == known_versions()[-1]:
                    return found
                if found is not None and found not in known_versions():
                    raise _ahead(found)
                _migrate(connection)
    finally:
        database.close()
    return known_versions()[-1]


def is_current(database: Database) -> bool:
    """Whether the database has exactly this code's version; reads one row, with the database's patience."""
    return database.retry(_version) == known_versions()[-1]


def check(database: Database) -> None:
    """Raise SchemaMismatch, naming what mends it, unless the database has exactly this code's version."""
    found = database.retry(_version)
    wanted = known_versions()[-1]
    if found == wanted:
        return
    if found is not None and found not in known_versions():
        raise _ahead(found)
    state = "has no crawl schema yet" if found is None else f"has schema version {found}"
    raise SchemaMismatch(f"the database {state} and this software works with {wanted}; run: crawl-pipeline db upgrade")


def run_sql_file(connection: sa.Connection, path: Path) -> None:
    """Run a file of statements as it stands: neither `%` nor `:` in it means anything to Python."""
    driver_connection(connection).execute(path.read_bytes(), prepare=False)


def _migrate(connection: sa.Connection) -> None:
    from alembic import command  # half a second that only upgrades need to spend
    from alembic.config import Config

    config = Config()
    config.set_main_option("path_separator", "os")
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _version(connection: sa.Connection) -> str | None:
    if connection.scalar(sa.select(sa.func.to_regclass(VERSION_TABLE))) is None:
        return None
    version: str | None = connection.scalar(sa.text(f"SELECT max(version_num) FROM {VERSION_TABLE}"))
    return version


def _ahead(found: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"the database has schema version {found} and this software knows only up to {known_versions()[-1]}; "
        f"upgrade crawl-pipeline on this machine"
    )

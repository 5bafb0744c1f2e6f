"""The schema's version: upgraded once, checked always, mended by the command that the message names."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory

from crawl_pipeline.errors import SchemaMismatch
from crawl_pipeline.storage import schema
from crawl_pipeline.storage.database import Database


@pytest.fixture
def empty_database(empty_database_url: str) -> Iterator[Database]:
    database = Database.connect(empty_database_url)
    yield database
    database.close()


def test_template_has_the_version_of_the_code(database: Database) -> None:
    schema.check(database)
    assert schema.is_current(database)


def test_empty_database_is_refused_with_the_command_that_mends_it(empty_database: Database) -> None:
    with pytest.raises(SchemaMismatch, match=r"no crawl schema yet .* run: crawl-pipeline db upgrade"):
        schema.check(empty_database)


def test_upgrade_brings_an_empty_database_up_and_does_nothing_the_second_time(empty_database: Database) -> None:
    assert schema.upgrade(empty_database.url) == schema.known_versions()[-1]
    schema.check(empty_database)
    with empty_database.connection() as connection:
        tables = set(sa.inspect(connection).get_table_names())
    assert {"sources", "urls", "leases", schema.VERSION_TABLE} <= tables
    assert schema.upgrade(empty_database.url) == schema.known_versions()[-1]


def test_database_behind_is_refused_with_the_command_that_mends_it(database: Database) -> None:
    _set_version(database, "0000")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "known_versions", lambda: ["0000", "0001"])
        with pytest.raises(SchemaMismatch, match=r"version 0000 .* with 0001; run: crawl-pipeline db upgrade"):
            schema.check(database)


def test_database_ahead_is_refused_by_check_and_by_upgrade(database: Database) -> None:
    _set_version(database, "9999")
    with pytest.raises(SchemaMismatch, match=r"9999 .* upgrade crawl-pipeline on this machine"):
        schema.check(database)
    with pytest.raises(SchemaMismatch, match=r"9999 .* upgrade crawl-pipeline on this machine"):
        schema.upgrade(database.url)


def test_upgrades_at_the_same_time_wait_for_each_other(empty_database: Database) -> None:
    """Without the advisory lock all but one fail: they create the same tables."""
    script = "import sys; from crawl_pipeline.storage import schema; print(schema.upgrade(sys.argv[1]))"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, empty_database.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    answers = [process.communicate(timeout=60) for process in processes]
    assert [answer[0].strip() for answer in answers] == [schema.known_versions()[-1]] * 3, answers
    schema.check(empty_database)


def test_known_versions_are_those_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("path_separator", "os")
    config.set_main_option("script_location", str(schema.MIGRATIONS).replace("%", "%%"))
    script = ScriptDirectory.from_config(config)
    assert [revision.revision for revision in script.walk_revisions()][::-1] == schema.known_versions()


def test_percent_signs_and_colons_of_a_sql_file_mean_nothing_to_python(
    empty_database: Database, tmp_path: Path
) -> None:
    file = tmp_path / "odd.sql"
    text = r"100 %, 5 %s, %(name)s, :name and a::text"
    file.write_text(
        f"CREATE TABLE odd (said text); INSERT INTO odd VALUES ('{text}');\n"
        "CREATE FUNCTION odd() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN format('%s:%s', 1::int, 2); END $$;\n"
    )
    with empty_database.connection() as connection:
        schema.run_sql_file(connection, file)
    with empty_database.connection() as connection:
        assert connection.scalar(sa.text("SELECT said FROM odd")) == text
        assert connection.scalar(sa.text("SELECT odd()")) == "1:2"


def test_migration_that_fails_leaves_nothing_behind(empty_database: Database, tmp_path: Path) -> None:
    (tmp_path / "functions").mkdir()
    (tmp_path / "schema.sql").write_text("CREATE TABLE half_made (a int); SELECT 1/0;")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "SQL", tmp_path)
        with pytest.raises(psycopg.errors.DivisionByZero):
            schema.upgrade(empty_database.url)
    with empty_database.connection() as connection:
        assert "half_made" not in sa.inspect(connection).get_table_names()
    schema.upgrade(empty_database.url)
    schema.check(empty_database)


def test_no_durability_is_given_away(database: Database) -> None:
    with database.connection() as connection:
        for name in ("fsync", "full_page_writes", "synchronous_commit"):
            assert connection.scalar(sa.text(f"SHOW {name}")) == "on", name
        unlogged = connection.scalars(sa.text("SELECT relname FROM pg_class WHERE relpersistence = 'u'")).all()
    assert unlogged == []


def _set_version(database: Database, version: str) -> None:
    with database.connection() as connection:
        connection.execute(sa.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = :version"), {"version": version})

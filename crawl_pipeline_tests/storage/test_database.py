"""Connections: every wait ends, conflicts and outages are tried again, and what remains is one sentence."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import psycopg
import pytest
import sqlalchemy as sa

from crawl_pipeline.errors import DatabaseUnavailable, UsageError
from crawl_pipeline.storage.database import (
    MAX_CONFLICTS,
    Database,
    TimedConnection,
    TimeLimits,
    driver_connection,
    long_statements,
    with_driver,
)
from crawl_pipeline.storage.embedded import EmbeddedServer, server_processes
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.conftest import end_home, test_binaries

QUICK = TimeLimits(connect=1, statement=0.5, lock=0.3, idle_in_transaction=0.5, answer=1.0)
FOREVER = timedelta(hours=1)


@pytest.fixture
def counter(database: Database) -> Database:
    """A database with a table `counter` of one row."""
    with database.connection() as connection:
        connection.execute(sa.text("CREATE TABLE counter AS SELECT 0 AS n"))
    return database


@pytest.fixture(scope="module")
def module_server() -> Iterator[EmbeddedServer]:
    folder = Path(tempfile.mkdtemp(prefix="crawl-home-"))
    server = EmbeddedServer.attach(folder / "home", binaries=test_binaries())
    yield server
    end_home(folder / "home")


@pytest.fixture
def own_server(module_server: EmbeddedServer) -> EmbeddedServer:
    """A server that the test may stop and kill; running at its start."""
    module_server.ensure_running()
    return module_server


def count_up(connection: sa.Connection) -> int:
    return int(connection.execute(sa.text("UPDATE counter SET n = n + 1 RETURNING n")).scalar_one())


def one(connection: sa.Connection) -> int:
    return int(connection.execute(sa.text("SELECT 1")).scalar_one())


def count_of(database: Database) -> int:
    with database.connection() as connection:
        return int(connection.execute(sa.text("SELECT n FROM counter")).scalar_one())


@pytest.fixture
def opened() -> Iterator[Callable[..., Database]]:
    """Opens databases with quick limits, and closes them afterwards."""
    databases: list[Database] = []

    def opening(url: str, **options: object) -> Database:
        databases.append(Database.connect(url, **{"limits": QUICK, **options}))  # type: ignore[arg-type]  # test's options
        return databases[-1]

    yield opening
    for database in databases:
        database.close()


class TestLimits:
    @pytest.mark.parametrize(
        ("setting", "value"),
        [
            ("statement_timeout", "15s"),
            ("lock_timeout", "10s"),
            ("idle_in_transaction_session_timeout", "30s"),
            ("TimeZone", "UTC"),
            ("transaction_isolation", "read committed"),
            ("client_encoding", "UTF8"),
            ("application_name", "test"),
        ],
    )
    def test_every_connection_has_the_settings(self, database: Database, setting: str, value: str) -> None:
        with database.connection() as connection:
            assert connection.scalar(sa.text(f"SHOW {setting}")) == value

    def test_options_of_the_url_are_kept_and_ours_win(self, database_url: str, opened: Callable[..., Database]) -> None:
        url = database_url + "&options=-c%20work_mem%3D7MB%20-c%20statement_timeout%3D0"
        with opened(url).connection() as connection:
            assert connection.scalar(sa.text("SHOW work_mem")) == "7MB"
            assert connection.scalar(sa.text("SHOW statement_timeout")) == "500ms"

    def test_long_statement_ends_and_counts_as_an_outage(
        self, database_url: str, opened: Callable[..., Database]
    ) -> None:
        database = opened(database_url, patience=timedelta(0))
        with pytest.raises(DatabaseUnavailable, match="statement timeout"):
            database.retry(lambda connection: connection.execute(sa.text("SELECT pg_sleep(60)")))

    def test_long_statements_have_their_time_within_their_block_only(
        self, database_url: str, opened: Callable[..., Database]
    ) -> None:
        """Without the longer `answer_within` the client gives up first."""
        database = opened(database_url, patience=timedelta(0))

        def work(connection: sa.Connection) -> object:
            with long_statements(connection):
                connection.execute(sa.text("SELECT pg_sleep(1.5)"))
            return connection.scalar(sa.text("SHOW statement_timeout")), driver_connection(connection).answer_within

        assert database.retry(work) == ("500ms", 1.0)

    def test_statement_that_took_too_long_is_not_called_an_outage(
        self, database_url: str, opened: Callable[..., Database]
    ) -> None:
        database = opened(database_url, patience=timedelta(0))
        with pytest.raises(DatabaseUnavailable, match="a statement took too long") as caught:
            database.retry(lambda connection: connection.execute(sa.text("SELECT pg_sleep(60)")))
        assert "CRAWL_DATABASE_URL" not in str(caught.value)

    def test_wait_for_a_lock_ends(self, counter: Database, opened: Callable[..., Database]) -> None:
        database = opened(counter.url, patience=timedelta(0))
        with counter.connection() as holder:
            count_up(holder)
            with pytest.raises(DatabaseUnavailable, match="lock timeout"):
                database.retry(count_up)

    def test_server_that_stops_answering_in_mid_statement_is_given_up(
        self, own_server: EmbeddedServer, opened: Callable[..., Database]
    ) -> None:
        """Without `TimedConnection.wait` the client waits for as long as the server is stopped."""
        database = opened(own_server.url("crawl"), patience=timedelta(0))
        assert database.retry(one) == 1
        with stopped(own_server), pytest.raises(DatabaseUnavailable, match="no answer for 1 s"):
            database.retry(one)
        assert database.retry(one) == 1

    def test_connection_is_closed_when_its_server_does_not_answer(self, own_server: EmbeddedServer) -> None:
        """Without `finish` it stays open in the middle of a statement whose answer may still come."""
        with TimedConnection.connect(own_server.url("crawl").replace("+psycopg", "")) as connection:
            connection.answer_within = 0.5
            with stopped(own_server), pytest.raises(psycopg.OperationalError, match=r"no answer for 0\.5 s"):
                connection.execute("SELECT 1")
            assert connection.closed

    def test_server_that_accepts_and_says_nothing_is_given_up(
        self, own_server: EmbeddedServer, opened: Callable[..., Database]
    ) -> None:
        database = opened(own_server.url("crawl"), patience=timedelta(0))
        with stopped(own_server), pytest.raises(DatabaseUnavailable, match="timeout expired"):
            database.retry(one)


class TestRetry:
    def test_serialization_failure_is_tried_again_at_once(self, counter: Database) -> None:
        calls = 0

        def work(connection: sa.Connection) -> int:
            nonlocal calls
            calls += 1
            connection.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            one(connection)
            if calls == 1:
                counter.retry(count_up)  # another transaction, after this one's snapshot
            return count_up(connection)

        assert counter.retry(work) == 2
        assert calls == 2

    def test_deadlock_is_broken_and_both_succeed(self, database: Database) -> None:
        with database.connection() as connection:
            connection.execute(sa.text("CREATE TABLE pairs AS SELECT n, 0 AS hits FROM generate_series(1, 2) n"))
        both_hold_one = threading.Barrier(2)

        def hit_both(first: int, second: int) -> None:
            is_first_try = True

            def work(connection: sa.Connection) -> None:
                nonlocal is_first_try
                connection.execute(sa.text("SET LOCAL deadlock_timeout = '100ms'"))
                connection.execute(sa.text("UPDATE pairs SET hits = hits + 1 WHERE n = :n"), {"n": first})
                if is_first_try:
                    is_first_try = False
                    both_hold_one.wait(timeout=30)
                connection.execute(sa.text("UPDATE pairs SET hits = hits + 1 WHERE n = :n"), {"n": second})

            database.retry(work)

        threads = [threading.Thread(target=hit_both, args=order) for order in ((1, 2), (2, 1))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        with database.connection() as connection:
            assert connection.execute(sa.text("SELECT hits FROM pairs")).scalars().all() == [2, 2]

    def test_endless_conflict_ends(self, database: Database) -> None:
        calls = 0

        def work(connection: sa.Connection) -> None:
            nonlocal calls
            calls += 1
            connection.execute(sa.text("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$"))

        with pytest.raises(sa.exc.OperationalError):
            database.retry(work)
        assert calls == MAX_CONFLICTS + 1

    def test_wrong_statement_is_run_once_and_its_error_passes(self, database: Database) -> None:
        calls = 0

        def work(connection: sa.Connection) -> None:
            nonlocal calls
            calls += 1
            connection.execute(sa.text("SELECT no_such_column"))

        with pytest.raises(sa.exc.ProgrammingError):
            database.retry(work)
        assert calls == 1

    def test_error_of_the_caller_rolls_back_and_passes(self, counter: Database) -> None:
        def work(connection: sa.Connection) -> None:
            count_up(connection)
            raise KeyError("mine")

        with pytest.raises(KeyError):
            counter.retry(work)
        assert count_of(counter) == 0

    @pytest.mark.parametrize("is_raw", [False, True], ids=["through SQLAlchemy", "through psycopg"])
    def test_connection_that_breaks_in_mid_transaction_is_replaced(
        self, counter: Database, is_raw: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        """However the break is noticed, the dead connection does not come back, and nothing is logged as an error."""
        pids: list[int] = []

        def work(connection: sa.Connection) -> int:
            value = count_up(connection)
            pids.append(driver_connection(connection).info.backend_pid)
            if len(pids) == 1:
                with counter.raw() as other:
                    other.execute("SELECT pg_terminate_backend(%s, 5000)", [pids[0]])
            if is_raw:
                driver_connection(connection).execute("SELECT 1")
            else:
                one(connection)
            return value

        assert counter.retry(work) == 1
        assert len(set(pids)) == 2
        assert count_of(counter) == 1
        assert [record for record in caplog.records if record.name.startswith("sqlalchemy")] == []

    def test_outage_is_waited_out(self, own_server: EmbeddedServer, opened: Callable[..., Database]) -> None:
        failures = 0

        def resume() -> None:  # called when the first try has failed
            nonlocal failures
            failures += 1
            signal_all(own_server, signal.SIGCONT)

        database = opened(own_server.url("crawl"), patience=FOREVER, revive=resume)
        database.retry(one)
        with stopped(own_server):
            assert database.retry(one) == 1
        assert failures == 1

    def test_killed_server_is_revived(self, own_server: EmbeddedServer, opened: Callable[..., Database]) -> None:
        database = opened(own_server.url("crawl"), patience=FOREVER, revive=own_server.ensure_running)
        with database.connection() as connection:
            connection.execute(sa.text("CREATE TABLE IF NOT EXISTS counter AS SELECT 0 AS n"))
        signal_all(own_server, signal.SIGKILL)
        wait_until(lambda: not server_processes(own_server.home))
        assert database.retry(count_up) == 1

    def test_restarted_server_is_found_again_by_an_old_pool(
        self, own_server: EmbeddedServer, opened: Callable[..., Database]
    ) -> None:
        database = opened(own_server.url("crawl"), patience=FOREVER)
        database.retry(one)
        own_server._cluster.stop()
        own_server.ensure_running()
        assert database.retry(one) == 1

    def test_block_gets_a_live_connection_from_an_old_pool(
        self, own_server: EmbeddedServer, opened: Callable[..., Database]
    ) -> None:
        """Without the ping the block, which runs once, gets a connection that died in the pool."""
        database = opened(own_server.url("crawl"), patience=FOREVER)
        database.retry(one)
        own_server._cluster.stop()
        own_server.ensure_running()
        with database.connection() as connection:
            assert one(connection) == 1

    def test_stop_cuts_patience_short(self, own_server: EmbeddedServer, opened: Callable[..., Database]) -> None:
        stop = threading.Event()
        database = opened(own_server.url("crawl"), patience=FOREVER, stop=stop)
        own_server._cluster.stop()
        waiting: list[BaseException] = []

        def wait() -> None:
            try:
                database.retry(one)
            except DatabaseUnavailable as error:
                waiting.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        stop.set()
        thread.join(timeout=30)
        assert [type(error) for error in waiting] == [DatabaseUnavailable]


class TestMessages:
    def test_unreachable_server_is_said_in_one_line_without_the_password(self, opened: Callable[..., Database]) -> None:
        database = opened("postgresql://me:secret@127.0.0.1:1/there", patience=timedelta(seconds=0.1))
        with pytest.raises(DatabaseUnavailable) as caught:
            database.retry(one)
        message = str(caught.value)
        assert message.startswith('database "there" at 127.0.0.1:1 could not be used for ')
        assert "refused" in message
        assert "CRAWL_DATABASE_URL" in message
        assert "secret" not in message
        assert "\n" not in message

    @pytest.mark.parametrize("part", ["database", "user"])
    def test_refusal_that_no_waiting_mends_is_said_at_once(
        self, database_url: str, opened: Callable[..., Database], part: str
    ) -> None:
        url = sa.make_url(database_url)
        wrong = url.set(database="nowhere") if part == "database" else url.set(username="nobody")
        database = opened(wrong.render_as_string(hide_password=False), patience=FOREVER)
        with pytest.raises(DatabaseUnavailable, match=r'"(nowhere|nobody)" does not exist'):
            database.retry(one)

    @pytest.mark.parametrize("is_raw", [False, True], ids=["through SQLAlchemy", "through psycopg"])
    def test_outage_within_a_block_is_said_in_the_words_of_its_first_error(
        self, counter: Database, is_raw: bool
    ) -> None:
        """Without `_transaction` the rollback's "the connection is lost" takes their place."""

        def cut_off() -> None:
            with counter.connection() as connection:
                count_up(connection)
                pid = driver_connection(connection).info.backend_pid
                with counter.raw() as other:
                    other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
                if is_raw:
                    driver_connection(connection).execute("SELECT 1")
                else:
                    one(connection)

        with pytest.raises(DatabaseUnavailable, match="terminating connection"):
            cut_off()
        assert count_of(counter) == 0


class TestBlocks:
    def test_connection_commits_at_its_end_and_rolls_back_on_error(self, counter: Database) -> None:
        def count(*, and_fail: bool) -> None:
            with counter.connection() as connection:
                count_up(connection)
                if and_fail:
                    raise KeyError

        count(and_fail=False)
        assert count_of(counter) == 1
        with pytest.raises(KeyError):
            count(and_fail=True)
        assert count_of(counter) == 1

    def test_raw_commits_at_its_end_and_rolls_back_on_error(self, counter: Database) -> None:
        def set_to(value: int, column: str) -> None:
            with counter.raw() as raw:
                raw.execute("UPDATE counter SET n = %s", [value])
                raw.execute(f"SELECT {column} FROM counter".encode())

        set_to(7, "n")
        assert count_of(counter) == 7
        with pytest.raises(psycopg.errors.UndefinedColumn):
            set_to(8, "no_such_column")
        assert count_of(counter) == 7


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "wanted"),
        [
            ("postgresql://u:p%40ss@h:5433/d", "postgresql+psycopg://u:p%40ss@h:5433/d"),
            ("postgres://h/d", "postgresql+psycopg://h/d"),
            ("postgresql+psycopg2://h/d?sslmode=require", "postgresql+psycopg://h/d?sslmode=require"),
        ],
    )
    def test_any_postgres_url_becomes_one_of_our_driver(self, url: str, wanted: str) -> None:
        assert with_driver(url, "psycopg") == wanted

    def test_another_database_of_the_same_server(self) -> None:
        assert (
            with_driver("postgres://u@h/crawl", "psycopg2", database="dagster") == "postgresql+psycopg2://u@h/dagster"
        )

    @pytest.mark.parametrize("url", ["mysql://u:secret@h/d", "nonsense:secret", "postgresql://h:secret/d"])
    def test_other_urls_are_refused_without_repeating_a_password(self, url: str) -> None:
        with pytest.raises(UsageError, match="postgresql://user:password@host:5432/database") as caught:
            with_driver(url, "psycopg")
        assert "secret" not in str(caught.value)


def signal_all(server: EmbeddedServer, number: signal.Signals) -> None:
    for process in server_processes(server.home):
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


class stopped:
    """For the length of the block every process of the server is stopped, as by a hung machine."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server

    def __enter__(self) -> None:
        signal_all(self._server, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        signal_all(self._server, signal.SIGCONT)

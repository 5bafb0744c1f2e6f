"""Connections to the crawl's database: every wait has an end, and an outage is waited out or said in one sentence.

Owns URLs, time limits, the pool and what is tried again; what is asked of the database is the stores' business.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, assert_never

import psycopg
import sqlalchemy as sa
from psycopg.abc import RV, PQGen
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError

from crawl_pipeline.errors import DatabaseUnavailable, UsageError
from crawl_pipeline.storage.failures import Failure, classify, has_timed_out, one_line

T = TypeVar("T")

ANSWER_WITHIN = 20.0  # seconds, beyond the server's own limits
LONG = timedelta(minutes=10)  # for one statement over a whole source
MAX_CONFLICTS = 20
FIRST_PAUSE = 0.05  # seconds
LONGEST_PAUSE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """What ends every wait for the database, in seconds. `answer` is the client's: a stopped server says nothing."""

    connect: int = 5
    statement: float = 15.0
    lock: float = 10.0
    idle_in_transaction: float = 30.0
    answer: float = ANSWER_WITHIN


class TimedConnection(psycopg.Connection[Any]):
    """A psycopg connection that gives the server `answer_within` seconds, then closes and raises OperationalError."""

    answer_within: float = ANSWER_WITHIN

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Run one exchange with the server; a `timeout` of the caller's own leaves the connection open."""
        if timeout is not None:
            return super().wait(gen, interval, timeout)
        deadline = time.monotonic() + self.answer_within
        try:
            return super().wait(gen, interval, self.answer_within)
        except psycopg.OperationalError as error:
            if time.monotonic() < deadline:
                raise
            self.pgconn.finish()  # an answer that came later would be taken for the next statement's
            raise psycopg.OperationalError(f"no answer for {self.answer_within:g} s") from error


class Database:
    """A small pool of time-limited connections. Safe to share between threads, not over a fork."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        patience: timedelta,
        stop: threading.Event | None,
        revive: Callable[[], None] | None,
    ) -> None:
        self.engine = engine
        self.patience = patience
        self._stop = stop or threading.Event()
        self._revive = revive

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        patience: timedelta = timedelta(seconds=60),
        application_name: str = "crawl-pipeline",
        limits: TimeLimits | None = None,
        stop: threading.Event | None = None,
        revive: Callable[[], None] | None = None,
    ) -> Database:
        """Describe the database; the first connection is made when it is needed.

        `patience` is how long an outage is waited out, cut short by `stop`. `revive` is called during an outage
        before each new try (the embedded server starts again there). Raises UsageError on a malformed URL.
        """
        engine = make_engine(url, application_name=application_name, limits=limits or TimeLimits())
        return cls(engine, patience=patience, stop=stop, revive=revive)

    @property
    def url(self) -> str:
        """The SQLAlchemy URL, with its password."""
        return self.engine.url.render_as_string(hide_password=False)

    def retry(self, work: Callable[[sa.Connection], T], *, stop: threading.Event | None = None) -> T:
        """Run `work` in one transaction and commit it, as often as conflicts and outages demand.

        A commit whose answer was lost is run again: the caller promises that `work` is idempotent or fenced.
        Conflicts are tried again at once, at most `MAX_CONFLICTS` times; outages with growing pauses for `patience`,
        then DatabaseUnavailable is raised. Every other error passes.
        """

        def attempt() -> T:
            with self.engine.connect() as connection, _transaction(connection):
                return work(connection)

        return self._patiently(attempt, stop or self._stop)

    @contextmanager
    def connection(self) -> Iterator[sa.Connection]:
        """One transaction, committed at the end of the block, rolled back by an exception.

        Getting a live connection has patience; the block runs once, and an outage within it raises DatabaseUnavailable.
        """
        with self._patiently(self._live_connection, self._stop) as connection:
            try:
                with _transaction(connection):
                    yield connection
            except (DBAPIError, psycopg.Error) as error:
                if classify(error) in (Failure.OUTAGE, Failure.REFUSED):
                    raise self._unavailable(error, timedelta(0)) from error
                raise

    @contextmanager
    def raw(self) -> Iterator[TimedConnection]:
        """As `connection`, with psycopg's own connection: for hot statements."""
        with self.connection() as connection:
            yield driver_connection(connection)

    def close(self) -> None:
        """Close the idle connections; those in use close when they are given back."""
        self.engine.dispose()

    def _live_connection(self) -> sa.Connection:
        # The block cannot be run again, so a connection that died in the pool must not reach it.
        connection = self.engine.connect()
        try:
            pooled = connection.connection.dbapi_connection
            assert pooled is not None
            self.engine.dialect.do_ping(pooled)
        except BaseException:
            connection.invalidate()
            connection.close()
            self.engine.dispose()  # the others of the pool are as old
            raise
        return connection

    def _patiently(self, attempt: Callable[[], T], stop: threading.Event) -> T:
        started = time.monotonic()
        conflicts = outages = 0
        while True:
            try:
                return attempt()
            except (DBAPIError, psycopg.Error) as error:
                match failure := classify(error):
                    case Failure.CONFLICT:
                        conflicts += 1
                        if conflicts > MAX_CONFLICTS:
                            raise
                        time.sleep(random.uniform(0, 0.005 * conflicts))
                    case Failure.OUTAGE:
                        waited = timedelta(seconds=time.monotonic() - started)
                        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**outages) * random.uniform(0.5, 1)
                        outages = min(outages + 1, 16)
                        if waited >= self.patience or stop.wait(pause):
                            raise self._unavailable(error, waited) from error
                        if self._revive is not None:
                            self._revive()
                    case Failure.REFUSED:
                        raise self._unavailable(error, timedelta(0)) from error
                    case Failure.OURS:
                        raise
                    case _:
                        assert_never(failure)

    def _unavailable(self, error: BaseException, waited: timedelta) -> DatabaseUnavailable:
        url = self.engine.url
        host = url.host or url.query.get("host") or "the default socket"
        where = f"{host}:{url.port}" if url.port else f"{host}"
        tried = f" for {waited.total_seconds():.0f} s" if waited else ""
        if has_timed_out(error):
            return DatabaseUnavailable(
                f'a statement took too long in database "{url.database}" at {where}, tried{tried or " once"}: '
                f"{one_line(error)}; see in pg_stat_activity what the server is busy with, then run the same command "
                f"again: what was stored is kept"
            )
        return DatabaseUnavailable(
            f'database "{url.database}" at {where} could not be used{tried}: {one_line(error)}; see that it '
            f"runs and that CRAWL_DATABASE_URL is right, then run the same command again: what was stored is kept"
        )


def make_engine(url: str, *, application_name: str, limits: TimeLimits) -> sa.Engine:
    """An engine over psycopg 3 whose connections are `TimedConnection`s in UTC and READ COMMITTED."""
    engine = sa.create_engine(
        with_driver(url, "psycopg"),
        use_native_hstore=False,
        pool_size=4,
        max_overflow=8,
    )

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: list[Any], parameters: dict[str, Any]) -> TimedConnection:
        asked = str(parameters.get("options", ""))
        parameters.update(
            application_name=application_name,
            client_encoding="utf-8",
            connect_timeout=limits.connect,
            keepalives=1,
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=int(limits.answer * 1000),
            options=f"{asked} {_server_options(limits)}".strip(),
        )
        connection = TimedConnection.connect(*arguments, **parameters)
        connection.answer_within = limits.answer
        return connection

    return engine


def with_driver(url: str, driver: str, *, database: str | None = None) -> str:
    """A Postgres URL as SQLAlchemy wants it for `driver`, optionally of another database on the same server."""
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError) as error:
        raise UsageError(
            "the database URL is malformed; write it as postgresql://user:password@host:5432/database"
        ) from error
    if parsed.drivername.split("+", 1)[0] not in {"postgresql", "postgres"}:
        raise UsageError(
            f'"{parsed.drivername}" is no Postgres URL; write it as postgresql://user:password@host:5432/database'
        )
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    unknown = sorted(set(parsed.query) - known)
    if unknown:
        raise UsageError(f'the database URL has an unknown parameter "{unknown[0]}"; leave it out')
    parsed = parsed.set(drivername=f"postgresql+{driver}")
    if database is not None:
        parsed = parsed.set(database=database)
    return parsed.render_as_string(hide_password=False)


def driver_connection(connection: sa.Connection) -> TimedConnection:
    """The psycopg connection under a SQLAlchemy one, in the same transaction."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, TimedConnection)
    return driver


@contextmanager
def long_statements(connection: sa.Connection) -> Iterator[None]:
    """Within the block, which is in a transaction, statements may read a whole source: each has `LONG` instead of the
    limit of a worker's. Waits for locks end as soon as ever.
    """
    driver = driver_connection(connection)
    answer_within, before = driver.answer_within, connection.execute(sa.text("SHOW statement_timeout")).scalar_one()
    connection.execute(sa.text(f"SET LOCAL statement_timeout = {LONG // timedelta(milliseconds=1)}"))
    driver.answer_within = answer_within + LONG.total_seconds()
    try:
        yield
    finally:
        driver.answer_within = answer_within
    connection.execute(sa.text(f"SET LOCAL statement_timeout = '{before}'"))


@contextmanager
def _transaction(connection: sa.Connection) -> Iterator[None]:
    """Commit, or roll back and raise the first error: a rollback on a dead connection raises one of its own."""
    transaction = connection.begin()
    try:
        yield
        transaction.commit()
    except BaseException:
        with suppress(Exception):
            transaction.rollback()
        raise


def _server_options(limits: TimeLimits) -> str:
    milliseconds = {
        "statement_timeout": limits.statement,
        "lock_timeout": limits.lock,
        "idle_in_transaction_session_timeout": limits.idle_in_transaction,
    }
    options = [f"-c {name}={seconds * 1000:.0f}" for name, seconds in milliseconds.items()]
    return " ".join([*options, "-c timezone=UTC", r"-c default_transaction_isolation=read\ committed"])

"""Stored robots.txt answers, one row per origin, fetched by one worker at a time for all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from crawl_pipeline.storage.database import Database

FETCHING_FOR = timedelta(seconds=45)  # longer than the exchange may take


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotsRow:
    """What is known of an origin's robots.txt. `state`: rules, allow_all, unavailable or unknown."""

    state: str
    status: int | None
    body: bytes | None
    is_fresh: bool
    expires_at: datetime
    failures: int
    may_fetch: bool  # this caller was given the fetch; others wait for its result


def ask(database: Database, origin: str) -> RobotsRow:
    """Read an origin's row; where it is stale, at most one caller per `FETCHING_FOR` is told to fetch it."""

    def work(connection: sa.Connection) -> RobotsRow:
        connection.execute(
            sa.text("INSERT INTO robots (origin, state) VALUES (:o, 'unknown') ON CONFLICT DO NOTHING"), {"o": origin}
        )
        granted = connection.execute(
            sa.text("""
                UPDATE robots SET fetching_until = clock_timestamp() + :wait
                 WHERE origin = :o AND expires_at <= clock_timestamp() AND fetching_until <= clock_timestamp()
            """),
            {"o": origin, "wait": FETCHING_FOR},
        ).rowcount
        row = connection.execute(
            sa.text("SELECT *, expires_at > clock_timestamp() AS is_fresh FROM robots WHERE origin = :o"), {"o": origin}
        ).one()
        return RobotsRow(
            state=row.state,
            status=row.status,
            body=bytes(row.body) if row.body is not None else None,
            is_fresh=row.is_fresh,
            expires_at=row.expires_at,
            failures=row.failures,
            may_fetch=granted == 1,
        )

    return database.retry(work)


def store(
    database: Database,
    origin: str,
    *,
    state: str,
    status: int | None,
    body: bytes | None,
    detail: str | None,
    fresh_for: timedelta,
) -> None:
    """Keep an answer for `fresh_for`. An unavailable one keeps the last rules' body beside its state."""
    database.retry(
        lambda connection: connection.execute(
            sa.text("""
                UPDATE robots SET state = n.state, status = :status, detail = :detail, fetched_at = clock_timestamp(),
                       expires_at = clock_timestamp() + :fresh_for, fetching_until = 'epoch',
                       failures = CASE WHEN n.state = 'unavailable' THEN failures + 1 ELSE 0 END,
                       changed_at = CASE WHEN n.state <> 'unavailable' AND robots.body IS DISTINCT FROM n.body
                                         THEN clock_timestamp() ELSE changed_at END,
                       body = CASE WHEN n.state = 'unavailable' THEN robots.body ELSE n.body END
                  FROM (SELECT CAST(:state AS text) AS state, CAST(:body AS bytea) AS body) n
                 WHERE origin = :o
            """),
            {"o": origin, "state": state, "status": status, "body": body, "detail": detail, "fresh_for": fresh_for},
        ).close()
    )


def hand_back(database: Database, origin: str) -> None:
    """The caller will not fetch it after all (it stops): another may, at once."""
    database.retry(
        lambda connection: connection.execute(
            sa.text("UPDATE robots SET fetching_until = 'epoch' WHERE origin = :o"), {"o": origin}
        ).close()
    )


def set_crawl_delay(database: Database, source_id: int, host_id: int, delay: timedelta | None) -> None:
    """What a source's robots.txt group asks of a host; in force once no lease of the host lives."""
    statement = (
        "DELETE FROM host_policies WHERE source_id = :s AND host_id = :h"
        if delay is None
        else """INSERT INTO host_policies (source_id, host_id, crawl_delay) VALUES (:s, :h, :d)
                ON CONFLICT (host_id, source_id) DO UPDATE SET crawl_delay = excluded.crawl_delay
                 WHERE host_policies.crawl_delay <> excluded.crawl_delay"""
    )
    parameters = {"s": source_id, "h": host_id} | ({} if delay is None else {"d": delay})
    database.retry(lambda connection: connection.execute(sa.text(statement), parameters).close())


def any_changed_since(connection: sa.Connection, since: datetime) -> bool:
    """Whether any origin's rules became others after a time."""
    return bool(
        connection.execute(
            sa.text("SELECT EXISTS (SELECT 1 FROM robots WHERE changed_at > :t)"), {"t": since}
        ).scalar_one()
    )

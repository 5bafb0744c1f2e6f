"""Stored robots.txt answers: one row per origin, fetched by one worker for all, and what each origin ever said.

Owns `robots`, `robots_history` and `host_policies`. When it is asked for is decided in `pipeline.robots_gate`.
"""

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
    detail: str | None
    body: bytes | None  # what it said last, also while it is unavailable
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
            sa.text("""
                SELECT r.*, r.expires_at > clock_timestamp() AS is_fresh,
                       (SELECT y.body FROM robots_history y WHERE y.origin = r.origin
                         ORDER BY y.fetched_at DESC LIMIT 1)
                  FROM robots r WHERE r.origin = :o
            """),
            {"o": origin},
        ).one()
        return RobotsRow(
            state=row.state,
            status=row.status,
            detail=row.detail,
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
) -> bool:
    """Keep an answer for `fresh_for`; one that says something else than the last begins a row of the history.

    Returns whether it did. An unavailable answer says nothing: the history stays as it is.
    """

    def work(connection: sa.Connection) -> bool:
        answer = {"o": origin, "state": state, "status": status, "detail": detail, "fresh_for": fresh_for}
        row = connection.execute(sa.text(_STORE), answer).one()
        if state == "unavailable":
            return False
        said = {"o": origin, "state": state, "body": body, "until": row.expires_at}
        is_same = connection.execute(sa.text(_GOES_ON), said).rowcount == 1
        if not is_same:
            connection.execute(sa.text(_SAYS_ANEW), {**said, "status": status, "at": row.fetched_at})
        return not is_same

    return database.retry(work)


_STORE = """
UPDATE robots SET state = :state, status = :status, detail = :detail, fetched_at = clock_timestamp(),
       expires_at = clock_timestamp() + :fresh_for, fetching_until = 'epoch',
       failures = CASE WHEN :state = 'unavailable' THEN failures + 1 ELSE 0 END
 WHERE origin = :o RETURNING fetched_at, expires_at
"""
_GOES_ON = """
UPDATE robots_history h SET valid_until = :until
 WHERE origin = :o AND fetched_at = (SELECT max(fetched_at) FROM robots_history WHERE origin = :o)
   AND state = :state AND body IS NOT DISTINCT FROM CAST(:body AS bytea)
"""
_SAYS_ANEW = """
INSERT INTO robots_history (origin, fetched_at, state, status, body, valid_until)
VALUES (:o, :at, :state, :status, :body, :until)
"""


def hand_back(database: Database, origin: str) -> None:
    """The caller will not fetch it after all (it stops): another may, at once."""
    database.retry(
        lambda connection: connection.execute(
            sa.text("UPDATE robots SET fetching_until = 'epoch' WHERE origin = :o"), {"o": origin}
        ).close()
    )


def ask_crawl_delay(database: Database, source_id: int, host_id: int, origin: str, delay: timedelta | None) -> bool:
    """What a source's robots.txt group at an origin asks of its host. Returns whether living leases are too quick."""
    statement = sa.text("SELECT ask_crawl_delay(:s, :h, :o, CAST(:d AS interval))")
    return database.retry(
        lambda connection: bool(
            connection.execute(statement, {"s": source_id, "h": host_id, "o": origin, "d": delay}).scalar_one()
        )
    )


def rest_source(database: Database, source_id: int, host_id: int, until: datetime) -> None:
    """The source claims nothing of the host before `until`; other sources do."""
    statement = sa.text("SELECT rest_source(:s, :h, :until)")
    database.retry(
        lambda connection: connection.execute(statement, {"s": source_id, "h": host_id, "until": until}).close()
    )


def end_rests(database: Database, source_id: int) -> None:
    """Let the source claim everywhere: its contract may say something else of robots.txt now."""
    statement = sa.text("""
        WITH q AS (SELECT host_id, lane FROM queues WHERE source_id = :s AND rests_until > clock_timestamp()
                    ORDER BY host_id, lane FOR NO KEY UPDATE)
        UPDATE queues SET rests_until = 'epoch' FROM q
         WHERE queues.source_id = :s AND (queues.host_id, queues.lane) = (q.host_id, q.lane)
    """)
    database.retry(lambda connection: connection.execute(statement, {"s": source_id}).close())


def forget_delays(database: Database, source_id: int) -> None:
    """The source obeys robots.txt no more: the delays that it asked of hosts for its sake hold nobody back."""
    statement = sa.text("DELETE FROM host_policies WHERE source_id = :s")
    database.retry(lambda connection: connection.execute(statement, {"s": source_id}).close())


def origins_to_look_at(connection: sa.Connection, source_id: int, since: datetime) -> list[tuple[str, bool]]:
    """Origins that denied URLs of the source and may say something else now, and whether it is known that they do.

    Known: what they say changed after `since`. Not known: what they said has expired.
    """
    statement = sa.text("""
        WITH d AS (SELECT DISTINCT host_id FROM urls WHERE source_id = :s AND state = 'cancelled' AND reason = 'robots')
        SELECT r.origin, c.is_changed FROM d JOIN hosts h USING (host_id)
          JOIN robots r ON r.origin IN ('http://' || h.authority, 'https://' || h.authority)
         CROSS JOIN LATERAL (SELECT EXISTS (SELECT 1 FROM robots_history y
                              WHERE y.origin = r.origin AND y.fetched_at > :since) AS is_changed) c
         WHERE c.is_changed OR r.expires_at <= clock_timestamp()
    """)
    return [(row.origin, row.is_changed) for row in connection.execute(statement, {"s": source_id, "since": since})]

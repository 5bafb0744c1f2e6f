"""What each origin answers to a made-up path: one row per source and origin, asked by one worker at a time for all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from crawl_pipeline.storage.database import Database

ASKING_FOR = timedelta(seconds=60)  # longer than most exchanges take; then another worker may ask


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpAnswer:
    """What is known of an origin. `likeness` None: no page of it can be a soft 404."""

    likeness: bytes | None
    is_fresh: bool
    expires_at: datetime
    may_ask: bool  # this caller was given the request; others wait for its answer


def ask(database: Database, source_id: int, origin: str, rules: str) -> MadeUpAnswer:
    """Read an origin's row; where it is stale, or of other `rules`, one caller per `ASKING_FOR` is told to ask."""
    parameters = {"s": source_id, "o": origin, "rules": rules, "wait": ASKING_FOR}

    def work(connection: sa.Connection) -> MadeUpAnswer:
        connection.execute(
            sa.text("INSERT INTO soft_404s (source_id, origin) VALUES (:s, :o) ON CONFLICT DO NOTHING"), parameters
        )
        granted = connection.execute(
            sa.text("""
                UPDATE soft_404s SET asking_until = clock_timestamp() + :wait
                 WHERE source_id = :s AND origin = :o AND asking_until <= clock_timestamp()
                   AND (expires_at <= clock_timestamp() OR rules IS DISTINCT FROM :rules)
            """),
            parameters,
        ).rowcount
        row = connection.execute(
            sa.text("""
                SELECT likeness, expires_at,
                       expires_at > clock_timestamp() AND rules IS NOT DISTINCT FROM :rules AS is_fresh
                  FROM soft_404s WHERE source_id = :s AND origin = :o
            """),
            parameters,
        ).one()
        return MadeUpAnswer(
            likeness=bytes(row.likeness) if row.likeness is not None else None,
            is_fresh=row.is_fresh,
            expires_at=row.expires_at,
            may_ask=granted == 1,
        )

    return database.retry(work)


def store(
    database: Database,
    source_id: int,
    origin: str,
    rules: str,
    *,
    url: str,
    status: int | None,
    likeness: bytes | None,
    fresh_for: timedelta,
) -> None:
    """Keep an answer for `fresh_for`."""
    database.retry(
        lambda connection: connection.execute(
            sa.text("""
                UPDATE soft_404s SET rules = :rules, url = :url, status = :status, likeness = :likeness,
                       asked_at = clock_timestamp(), expires_at = clock_timestamp() + :fresh_for, asking_until = 'epoch'
                 WHERE source_id = :s AND origin = :o
            """),
            {
                **{"s": source_id, "o": origin, "rules": rules, "url": url, "status": status},
                **{"likeness": likeness, "fresh_for": fresh_for},
            },
        ).close()
    )


def hand_back(database: Database, source_id: int, origin: str) -> None:
    """The caller will not ask after all (it stops): another may, at once."""
    database.retry(
        lambda connection: connection.execute(
            sa.text("UPDATE soft_404s SET asking_until = 'epoch' WHERE source_id = :s AND origin = :o"),
            {"s": source_id, "o": origin},
        ).close()
    )

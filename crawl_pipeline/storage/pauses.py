"""Pausing a source: no schedule starts it, and hosts no longer heed what it asks."""

from __future__ import annotations

import sqlalchemy as sa

from crawl_pipeline.storage.database import Database


def set_paused(database: Database, source_id: int, is_paused: bool) -> bool:
    """Pause or resume a source. False when it was so already; then the time of the pause stays."""
    statement = sa.text("""
        UPDATE sources SET paused_at = CASE WHEN :paused THEN clock_timestamp() END
         WHERE source_id = :s AND (paused_at IS NOT NULL) <> :paused
    """)

    def work(connection: sa.Connection) -> bool:
        return connection.execute(statement, {"s": source_id, "paused": is_paused}).rowcount == 1

    return database.retry(work)

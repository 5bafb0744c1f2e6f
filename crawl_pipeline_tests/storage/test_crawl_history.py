"""A crawl's history is what its rows of the fetch log say."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from crawl_pipeline.storage.crawl_history import SPANS, crawl_history
from crawl_pipeline.storage.database import Database

OPENED = datetime(2026, 1, 1, tzinfo=UTC)
_INSERT = sa.text("""
INSERT INTO fetches (source_id, url_key, started_at, crawl_id, worker_id, url, elapsed_ms, status, outcome, body_bytes)
VALUES (1, gen_random_uuid(), :at, :crawl, 'w', :url, :ms, :status, :outcome, 1)
""")


def test_history_adds_up_to_the_log(database: Database) -> None:
    rng = random.Random(7)
    crawl, other = uuid4(), uuid4()
    log: list[dict[str, Any]] = [
        {
            "at": OPENED + timedelta(seconds=rng.uniform(1, 600)),
            "crawl": other if rng.random() < 0.1 else crawl,
            "url": f"https://{rng.choice('abcdefgh')}.example:8443/page/{number}",
            "ms": rng.randint(1, 9000),
            "status": rng.choice([200, 200, 304, 404, None]),
            "outcome": rng.choice(["accepted", "unchanged", "rejected", "queued"]),
        }
        for number in range(2000)
    ]
    with database.connection() as connection:
        connection.execute(_INSERT, log)
    own = [row for row in log if row["crawl"] == crawl]
    history = crawl_history(database, crawl, OPENED)
    assert history is not None
    times = sorted(row["at"] for row in own)
    assert history.began_at == times[0]
    assert abs(history.span * SPANS - (times[-1] - times[0]).total_seconds()) < 1e-3
    assert {state: sum(counts) for state, counts in history.outcomes.items()} == Counter(row["outcome"] for row in own)
    in_first = [row for row in own if (row["at"] - times[0]).total_seconds() < history.span]
    assert sum(counts[0] for counts in history.outcomes.values()) == len(in_first)
    assert history.statuses == {str(name or "none"): n for name, n in Counter(row["status"] for row in own).items()}
    by_host = Counter(str(row["url"]).split("/")[2] for row in own)
    assert [(host.authority, host.exchanges) for host in history.hosts] == sorted(
        by_host.items(), key=lambda one: (-one[1], one[0])
    )[:5]
    assert history.host_count == 8
    first = [int(row["ms"]) for row in own if history.hosts[0].authority in str(row["url"])]
    assert (history.hosts[0].longest, round(history.hosts[0].mean, 6)) == (
        max(first) / 1e3,
        round(sum(first) / len(first) / 1e3, 6),
    )


def test_crawl_without_an_exchange_has_no_history_and_one_with_a_single_one_has(database: Database) -> None:
    crawl = uuid4()
    assert crawl_history(database, crawl, OPENED) is None
    with database.connection() as connection:
        row = {"at": OPENED, "crawl": crawl, "url": "http://a/", "ms": 5, "status": 200, "outcome": "accepted"}
        connection.execute(_INSERT, row)
    history = crawl_history(database, crawl, OPENED)
    assert history is not None
    assert history.outcomes == {"accepted": [1] + [0] * (SPANS - 1)}

"""The frontier under kill and stop: nothing lost, nothing stored twice, no host asked too much, no deadlock."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests.storage.world import World

WRONG = (
    "unfinished",
    "stored_twice",
    "slots_taken_twice",
    "starts_too_close",
    "early_starts",
    "conflicts",
    "deadlocks",
)


def stress(url: str, within: float, **plan: Any) -> dict[str, Any]:
    """Play a plan in a process of its own, which forks its workers."""
    done = subprocess.run(
        [sys.executable, "-m", "crawl_pipeline_tests.durability.stress", url, json.dumps(plan)],
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def assert_all_held(report: dict[str, Any]) -> None:
    assert report["broken"] == {}
    assert {name: report[name] for name in WRONG if report[name]} == {}


@pytest.mark.durability
def test_frontier_holds_while_workers_are_killed_and_stopped(database_url: str) -> None:
    """Two sources share four hosts; leases of 2 s; twice a second a worker is killed or stopped past its lease."""
    report = stress(database_url, 150, pages=220, disturb_for=8, finish_within=120)
    assert_all_held(report)
    assert report["kills"] + report["stops"] >= 4, report
    assert report["starts"] >= 440


@pytest.mark.drill
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_frontier_holds_for_long(database_url: str, seed: int) -> None:
    report = stress(
        database_url,
        800,
        pages=4000,
        disturb_for=90,
        finish_within=700,
        workers=3,
        seed=seed,
        slots=[3, 4, 2],
        delays=[0.0, 0.0, 0.002, 0.004, 0.01, 0.03],
    )
    assert_all_held(report)
    assert report["kills"] >= 20
    assert report["stops"] >= 20
    assert report["lost"] > 0, "no stale worker ever came back: the fence was not tried"


FENCED = "AND u.url_key = p.k AND u.lease_token = p.tok"
GUARDS: dict[str, tuple[str, list[tuple[str, str]], str]] = {
    "slot phases": (
        "30_claim.sql",
        [("h.grid_anchor + h.min_delay * k +", "h.grid_anchor +"), (" - h.min_delay * k)", ")")],
        "starts_too_close",
    ),
    "host and queue row lock": ("30_claim.sql", [(" FOR NO KEY UPDATE SKIP LOCKED", "")], "slots_taken_twice"),
    "token fence": (
        "50_complete.sql",
        [
            (f"{FENCED}\n    JOIN leases l ON l.lease_token = p.tok;", "AND u.url_key = p.k;"),
            (f"{FENCED}\n    RETURNING", "AND u.url_key = p.k\n    RETURNING"),
        ],
        "stored_twice",
    ),
    "wake-up in settle": (
        "10_settle.sql",
        [("least(q.next_due_at, excluded.next_due_at)", "q.next_due_at")],
        "unfinished",
    ),
}


@pytest.mark.drill
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", GUARDS)
def test_stress_sees_that_a_guard_is_missing(database: Database, name: str) -> None:
    """What the stress cannot see it cannot hold: each guard is removed once from a copy in the test's own database."""
    file, changes, wrong = GUARDS[name]
    World(database).patch(file, *changes)
    report = stress(database.url, 500, pages=1500, disturb_for=40, finish_within=60, workers=3)
    assert report[wrong], report

"""What a source's health is judged by: each check passes and fails where it should."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crawl_pipeline.domain.health import Answers, Facts, budget_per_hour, findings, needed_factor

NOW = datetime(2026, 1, 1, tzinfo=UTC)
USUAL = Answers(accepted=95, rejected=5, requests=100)
WELL = Facts(
    now=NOW,
    pages=1000,
    stale=0,
    window=timedelta(hours=10),
    interval=timedelta(hours=8),
    starts_per_hour=3600.0,
    quarantine={},
    oldest_quarantined_at=None,
    held=(),
    crawls=(USUAL, USUAL, USUAL),
    records=500,
    conflicts=0,
    expired_leases=0,
)
ILL: list[tuple[str, dict[str, Any], bool]] = [
    ("pages_within_window", {"stale": 10}, False),
    ("pages_within_window", {"stale": 51}, True),
    ("window_within_budget", {"starts_per_hour": 200.0}, False),
    ("quarantine_is_attended", {"quarantine": {"poison": 2}, "oldest_quarantined_at": NOW - timedelta(days=8)}, False),
    ("rejections_as_usual", {"crawls": (replace(USUAL, accepted=70, rejected=30), USUAL)}, True),
    ("no_orphaned_leases", {"expired_leases": 1}, False),
    ("natural_keys_agree", {"conflicts": 5}, False),
    ("natural_keys_agree", {"conflicts": 6}, True),
    ("requests_as_usual", {"crawls": (replace(USUAL, requests=201), USUAL)}, False),
    ("no_removal_is_held", {"held": ("5 of 9 records would go",)}, True),
]


def test_a_source_that_is_well_passes_every_check() -> None:
    assert {one.name for one in findings(WELL) if not one.is_passed} == set()
    assert len(findings(WELL)) == len({one.name for one in findings(WELL)}) == 8


@pytest.mark.parametrize(("name", "changes", "is_error"), ILL)
def test_what_is_wrong_fails_its_own_check(name: str, changes: dict[str, Any], is_error: bool) -> None:
    failed = [one for one in findings(replace(WELL, **changes)) if not one.is_passed]
    assert [(one.name, one.is_error) for one in failed] == [(name, is_error)]


def test_a_small_or_first_crawl_says_nothing_by_its_shares() -> None:
    tiny = Answers(accepted=1, rejected=9, requests=9)
    for crawls in ((), (tiny,), (tiny, USUAL), (replace(USUAL, accepted=0, rejected=100),)):
        assert all(one.is_passed for one in findings(replace(WELL, crawls=crawls)))
    assert all(one.is_passed for one in findings(replace(WELL, pages=0, records=0, crawls=())))


def test_budget_is_the_interval_s_and_at_most_half_of_what_politeness_allows() -> None:
    assert budget_per_hour(WELL) == 125.0
    assert budget_per_hour(replace(WELL, starts_per_hour=100.0)) == 50.0
    assert budget_per_hour(replace(WELL, starts_per_hour=None)) == 125.0
    assert needed_factor(1000, timedelta(hours=10), 50.0) == pytest.approx(1000 / (9.8 * 50))
    assert needed_factor(0, timedelta(hours=10), 50.0) == 0.0

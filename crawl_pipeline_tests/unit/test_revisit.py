"""When a page is due again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawl_pipeline.domain.contract import parse_contract
from crawl_pipeline.domain.outcomes import Reason, UrlState
from crawl_pipeline.domain.revisit import RevisitPolicy

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def policy(**freshness: Any) -> RevisitPolicy:
    data = {"source": "s", "seeds": ["http://h/"], "freshness": freshness}
    return RevisitPolicy(parse_contract(data, file="test").freshness)


def due(path: str, state: UrlState, reason: Reason | None = None, **freshness: Any) -> timedelta:
    at = policy(**freshness).next_due(path, NOW, state, reason)
    assert at is not None
    return at - NOW


@pytest.mark.parametrize("state", [UrlState.ACCEPTED, UrlState.UNCHANGED])
def test_good_page_is_due_after_its_interval(state: UrlState) -> None:
    assert due("/a", state) == HOUR * 19.2
    assert due("/a", state, window="10h") == HOUR * 8
    assert due("/a", state, window="10h", interval="3h") == HOUR * 3
    assert due("/a", state, window="10h", interval="10m", min="2h") == HOUR * 2
    assert due("/a", state, window="1h") == HOUR


def test_first_rule_that_takes_the_path_decides() -> None:
    rules = [{"match": "/list/**", "window": "1h"}, {"match": ["/list/1", "/b"], "window": "5h", "interval": "4h"}]
    assert due("/list/1", UrlState.ACCEPTED, rules=rules) == HOUR
    assert due("/b", UrlState.ACCEPTED, rules=rules) == HOUR * 4
    assert due("/listing", UrlState.ACCEPTED, rules=rules) == HOUR * 19.2
    assert policy(rules=rules).freshness("/b").rule == "freshness.rules[1] /b"
    assert policy(rules=rules).freshness("/c").rule == "freshness"


def test_rejected_page_has_its_own_schedule() -> None:
    assert due("/a", UrlState.REJECTED, Reason.NOT_FOUND) == HOUR
    assert due("/a", UrlState.REJECTED, Reason.NOT_FOUND, window="30m") == HOUR / 2
    assert due("/a", UrlState.REJECTED, Reason.NOT_FOUND, min="3h") == HOUR * 3
    assert due("/a", UrlState.REJECTED, Reason.GONE) == HOUR * 24 * 4
    assert due("/a", UrlState.REJECTED, Reason.CONTENT_CONTRACT) == HOUR * 24


def test_page_that_stays_gone_is_looked_at_ever_more_seldom() -> None:
    def after(since: timedelta | None, **freshness: Any) -> timedelta:
        at = policy(**freshness).next_due("/a", NOW, UrlState.REJECTED, Reason.GONE, gone_since_check=since)
        assert at is not None
        return at - NOW

    day = timedelta(days=1)
    waits = [after(None)]
    while len(waits) < 8:
        waits.append(after(waits[-1]))
    assert [wait / day for wait in waits] == [4, 8, 16, 32, 64, 90, 90, 90]
    assert after(HOUR) == 4 * day  # looked at early: it starts again
    assert after(None, window="200d") == 200 * day
    assert after(30 * day, window="1d") == 60 * day


@pytest.mark.parametrize("state", [UrlState.QUARANTINED, UrlState.CANCELLED])
def test_page_without_a_decision_is_never_due_by_itself(state: UrlState) -> None:
    assert policy().next_due("/a", NOW, state) is None


@given(
    window=st.integers(1, 10_000),
    share=st.one_of(st.none(), st.floats(0.001, 1)),
    least=st.floats(0, 1),
    path=st.text(),
)
def test_no_good_page_grows_older_than_its_window_or_is_asked_before_its_least_interval(
    window: int, share: float | None, least: float, path: str
) -> None:
    freshness: dict[str, Any] = {"window": f"{window}m", "min": f"{int(window * 60 * least)}s"}
    if share is not None:
        freshness["interval"] = f"{max(1, int(window * 60 * share))}s"
    wait = due(path, UrlState.ACCEPTED, **freshness)
    assert timedelta(seconds=int(window * 60 * least)) <= wait <= timedelta(minutes=window)

"""When a page is due again, from the contract's freshness rules and what its last visit gave.

Owns the one decision `due_at` after a complete answer; the wait after a transient failure is `domain.politeness`'s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from crawl_pipeline.domain.globs import compile_glob
from crawl_pipeline.domain.outcomes import Reason, UrlState

DEFAULT_INTERVAL = 0.8  # of the window: the rest is room for a crawl to reach the page before the promise breaks
LATEST_CONFIRMATION = timedelta(hours=1)  # a first 404 is looked at again soon: it may be a mistake of the site
GONE_WINDOWS = 4  # a confirmed 404 is looked at again after so many windows, then each time after twice as long …
GONE_LONGEST = timedelta(days=90)  # … up to this, or to the window where that is longer


class _Pace(Protocol):
    @property
    def window(self) -> timedelta: ...
    @property
    def interval(self) -> timedelta | None: ...


class _PathPace(_Pace, Protocol):
    @property
    def match(self) -> Sequence[str]: ...


class FreshnessRules(_Pace, Protocol):
    """The contract's section `freshness`."""

    @property
    def min(self) -> timedelta: ...
    @property
    def rules(self) -> Sequence[_PathPace]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """What the contract says for one path: the promise, the average between checks, and the rule that says so."""

    window: timedelta
    interval: timedelta
    rule: str


class RevisitPolicy:
    """The compiled section `freshness`. Immutable, safe to share between threads."""

    def __init__(self, rules: FreshnessRules) -> None:
        self._min = rules.min
        self._default = _freshness(rules, rules.min, "freshness")
        self._rules: list[tuple[re.Pattern[str], Freshness]] = [
            (compile_glob(glob), _freshness(rule, rules.min, f"freshness.rules[{index}] {glob}"))
            for index, rule in enumerate(rules.rules)
            for glob in rule.match
        ]

    def freshness(self, path: str) -> Freshness:
        """What holds for a canonical path: the first rule whose glob takes it, else the section's own."""
        return next((freshness for glob, freshness in self._rules if glob.fullmatch(path)), self._default)

    def next_due(
        self,
        path: str,
        now: datetime,
        state: UrlState,
        reason: Reason | None = None,
        *,
        gone_since_check: timedelta | None = None,
    ) -> datetime | None:
        """When a page is due after a complete answer at `now`; None: never by itself (quarantined, cancelled).

        After accepted and unchanged: never later than the window, never sooner than `freshness.min`.
        `gone_since_check`: how long ago it was last checked, where it was gone then already.
        """
        freshness = self.freshness(path)
        if state in (UrlState.ACCEPTED, UrlState.UNCHANGED):
            return now + freshness.interval
        if state is not UrlState.REJECTED:
            return None
        if reason in (Reason.NOT_FOUND, Reason.SOFT_404):
            return now + min(max(self._min, LATEST_CONFIRMATION), freshness.window)
        if reason is Reason.GONE:
            wait = freshness.window * GONE_WINDOWS
            if gone_since_check is not None:
                wait = max(wait, gone_since_check * 2)
            return now + min(wait, max(GONE_LONGEST, freshness.window))
        return now + freshness.window


def _freshness(pace: _Pace, least: timedelta, rule: str) -> Freshness:
    interval = pace.window * DEFAULT_INTERVAL if pace.interval is None else pace.interval
    return Freshness(window=pace.window, interval=max(interval, least), rule=rule)

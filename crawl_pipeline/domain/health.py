"""Whether a source keeps its promises: facts in, findings out. No I/O.

Each finding is one asset check of the source. Where each fact is read is `storage.health`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

LATEST_SERVICE = 0.98  # of the window: what is to be checked within it is claimed by then
_MOST_STALE = 0.05  # of the pages: more than this is an error, less a warning
_LONGEST_QUARANTINE = timedelta(days=7)
_REJECTED_MORE = 0.2  # of the answers, beyond the mean of earlier crawls
_LEAST_ANSWERS = 20  # of a crawl, to say anything by its shares
_REQUESTS_MORE = 2.0  # times the mean of earlier crawls
_CONFLICTS = 0.01  # of the records


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What one finished crawl was answered, and what it asked."""

    accepted: int  # or unchanged
    rejected: int
    requests: int

    @property
    def rejection_share(self) -> float:
        """Of its complete answers."""
        return self.rejected / (self.accepted + self.rejected) if self.accepted + self.rejected else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a source. `starts_per_hour`: what its hosts' politeness allows; None: no limit."""

    now: datetime
    pages: int  # accepted or unchanged
    stale: int  # of them, those checked longer ago than their window
    window: timedelta
    interval: timedelta
    starts_per_hour: float | None
    quarantine: Mapping[str, int]
    oldest_quarantined_at: datetime | None
    held: Sequence[str]  # removals that wait, a sentence each
    crawls: Sequence[Answers]  # finished ones, the newest first
    records: int
    conflicts: int
    expired_leases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check: `is_error` says how bad it is where it did not pass. `numbers` are what was judged."""

    asset: str
    name: str
    is_passed: bool
    is_error: bool
    said: str
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)


def needed_factor(pages: int, window: timedelta, budget_per_hour: float) -> float:
    """How many times the budget it takes to check every page within its window; above 1 some will be late."""
    hours = LATEST_SERVICE * (window / timedelta(hours=1))
    return pages / (hours * budget_per_hour) if pages else 0.0


def budget_per_hour(facts: Facts) -> float:
    """Checks an hour: the pages once an interval, at most half of what politeness allows."""
    wanted = max(facts.pages, 1) / (facts.interval / timedelta(hours=1))
    return wanted if facts.starts_per_hour is None else min(wanted, facts.starts_per_hour / 2)


def findings(facts: Facts) -> list[Finding]:
    """Every check of a source, in the order in which the UI lists them."""
    return [
        _fresh(facts),
        _will_stay_fresh(facts),
        _quarantine(facts),
        _rejections(facts),
        _leases(facts),
        _conflicts(facts),
        _requests(facts),
        _held(facts),
    ]


def _fresh(facts: Facts) -> Finding:
    share = facts.stale / facts.pages if facts.pages else 0.0
    return Finding(
        asset="page_versions",
        name="pages_within_window",
        is_passed=facts.stale == 0,
        is_error=share > _MOST_STALE,
        said=f"{facts.stale:,} of {facts.pages:,} pages were checked longer ago than their freshness.window"
        if facts.stale
        else f"all of {facts.pages:,} pages were checked within their freshness.window",
        numbers={"stale pages": facts.stale, "pages": facts.pages, "stale share": round(share, 4)},
    )


def _will_stay_fresh(facts: Facts) -> Finding:
    budget = budget_per_hour(facts)
    factor = needed_factor(facts.pages, facts.window, budget)
    said = f"the window needs {factor:.2g} times the budget of {budget:,.0f} checks an hour"
    if factor > 1:
        said += ": pages will be late; widen freshness.window, or allow more requests (politeness.min_delay)"
    return Finding(
        asset="page_versions",
        name="window_within_budget",
        is_passed=factor <= 1,
        is_error=False,
        said=said,
        numbers={"needed factor": round(factor, 3), "budget per hour": round(budget, 1)},
    )


def _quarantine(facts: Facts) -> Finding:
    waiting = sum(facts.quarantine.values())
    age = facts.now - facts.oldest_quarantined_at if facts.oldest_quarantined_at else timedelta(0)
    reasons = ", ".join(f"{reason} {n:,}" for reason, n in facts.quarantine.items())
    return Finding(
        asset="page_versions",
        name="quarantine_is_attended",
        is_passed=age <= _LONGEST_QUARANTINE,
        is_error=False,
        said=f"{waiting:,} pages wait for a person ({reasons}), the oldest for {age.days} days"
        if waiting
        else "no page waits for a person",
        numbers={"quarantined pages": waiting, "oldest, hours": round(age / timedelta(hours=1), 1)},
    )


def _rejections(facts: Facts) -> Finding:
    share, usual = _last_and_usual([one.rejection_share for one in _large(facts)])
    return Finding(
        asset="page_versions",
        name="rejections_as_usual",
        is_passed=share - usual <= _REJECTED_MORE,
        is_error=True,
        said=f"the last crawl rejected {share:.0%} of its answers, those before it {usual:.0%}",
        numbers={"rejection share": round(share, 4), "usual share": round(usual, 4)},
    )


def _leases(facts: Facts) -> Finding:
    return Finding(
        asset="page_versions",
        name="no_orphaned_leases",
        is_passed=facts.expired_leases == 0,
        is_error=False,
        said=f"{facts.expired_leases:,} leases have expired and were not given back: is the sensor expired_leases on?"
        if facts.expired_leases
        else "no lease has outlived its worker",
        numbers={"expired leases": facts.expired_leases},
    )


def _conflicts(facts: Facts) -> Finding:
    share = facts.conflicts / facts.records if facts.records else 0.0
    return Finding(
        asset="records",
        name="natural_keys_agree",
        is_passed=facts.conflicts == 0,
        is_error=share > _CONFLICTS,
        said=f"{facts.conflicts:,} pages claim a record of another page with other data; explain URL shows which"
        if facts.conflicts
        else "no page contradicts another's record",
        numbers={"conflicts": facts.conflicts, "records": facts.records},
    )


def _requests(facts: Facts) -> Finding:
    asked, usual = _last_and_usual([float(one.requests) for one in _large(facts)])
    per_record = asked / facts.records if facts.records else 0.0
    return Finding(
        asset="records",
        name="requests_as_usual",
        is_passed=usual == 0 or asked <= _REQUESTS_MORE * usual,
        is_error=False,
        said=f"the last crawl made {asked:,.0f} requests, {per_record:.3g} a stored record; usual are {usual:,.0f}",
        numbers={"requests": int(asked), "requests per stored record": round(per_record, 3)},
    )


def _held(facts: Facts) -> Finding:
    return Finding(
        asset="records",
        name="no_removal_is_held",
        is_passed=not facts.held,
        is_error=True,
        said="; ".join(facts.held) or "no removal waits for a person",
        numbers={"held removals": len(facts.held)},
    )


def _large(facts: Facts) -> list[Answers]:
    return [one for one in facts.crawls if one.accepted + one.rejected >= _LEAST_ANSWERS]


def _last_and_usual(values: Sequence[float]) -> tuple[float, float]:
    """The newest, and the mean of those before it; the newest itself where there is none."""
    if not values:
        return 0.0, 0.0
    before = values[1:]
    return values[0], sum(before) / len(before) if before else values[0]

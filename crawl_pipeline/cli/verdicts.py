"""What the contract, robots.txt and the stored facts mean for one URL: the judgement behind `explain`. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from crawl_pipeline.cli.output import ago, count_of, span
from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.outcomes import Reason, UrlState
from crawl_pipeline.domain.pages import PageUrl
from crawl_pipeline.domain.revisit import RevisitPolicy
from crawl_pipeline.domain.robots import RobotsRules
from crawl_pipeline.domain.scope import Scope, ScopeVerdict
from crawl_pipeline.domain.urls import canonical_path
from crawl_pipeline.storage.explain import RobotsChange, RobotsFacts, StoredFacts, UrlFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotsVerdict:
    """What is known of robots.txt for a URL. `allowed` None: nobody knows yet, and nothing is requested until then."""

    allowed: bool | None
    rule: str | None  # the line that decides
    state: str  # rules, allow_all, unavailable, unknown; ignored: by contract
    sentence: str
    crawl_delay: timedelta | None  # as it asks
    crawl_delay_kept: timedelta | None  # at most `politeness.max_crawl_delay`
    fetched_at: datetime | None
    expires_at: datetime | None
    changes: tuple[RobotsChange, ...]  # of what it said, the newest first


def scope_verdict(contract: Contract, page: PageUrl, depth: int) -> ScopeVerdict:
    """The contract's word on a URL that lies `depth` links from a seed."""
    return Scope(contract.scope, contract.limits).verdict(page, depth)


def robots_verdict(contract: Contract, page: PageUrl, robots: RobotsFacts | None) -> RobotsVerdict:
    """The word of the stored robots.txt, for the contract's user agent."""
    if contract.politeness.robots == "ignore":
        return _robots("ignored", "ignored: the contract says politeness.robots: ignore", allowed=True)
    if robots is None or robots.state == "unknown":
        return _robots("unknown", "not fetched yet: the first visit to its host fetches it", allowed=None)
    if robots.state == "unavailable":
        tried = f"{robots.detail or 'no answer'}, {count_of(robots.failures, 'time')} in a row"
        return _robots("unavailable", f"unavailable ({tried}): the source requests nothing there", robots, allowed=None)
    if robots.state == "allow_all" or robots.body is None:
        return _robots("allow_all", f"there is none ({robots.detail or robots.status}): allowed", robots, allowed=True)
    agent = contract.politeness.user_agent
    rules = RobotsRules.from_bytes(robots.body)
    allowed = rules.allows(agent, page.url)
    rule = rules.rule(agent, page.url)
    word = "allowed" if allowed else "disallowed"
    delay = rules.crawl_delay(agent)
    return RobotsVerdict(
        allowed=allowed,
        rule=rule,
        state=robots.state,
        sentence=f"{word} by {rule}" if rule else f"{word}: no rule takes it",
        crawl_delay=delay,
        crawl_delay_kept=min(delay, contract.politeness.max_crawl_delay) if delay is not None else None,
        fetched_at=robots.fetched_at,
        expires_at=robots.expires_at,
        changes=robots.changes,
    )


def _robots(state: str, sentence: str, robots: RobotsFacts | None = None, *, allowed: bool | None) -> RobotsVerdict:
    return RobotsVerdict(
        allowed=allowed,
        rule=None,
        state=state,
        sentence=sentence,
        crawl_delay=None,
        crawl_delay_kept=None,
        fetched_at=robots.fetched_at if robots else None,
        expires_at=robots.expires_at if robots else None,
        changes=robots.changes if robots else (),
    )


def why(contract: Contract, page: PageUrl, facts: StoredFacts, scope: ScopeVerdict, robots: RobotsVerdict) -> list[str]:
    """Why the URL is in its state and due when it is, and what it waits for: one sentence each."""
    if facts.url is None:
        return [*_never_discovered(scope, robots)]
    return [
        _because(contract, page, facts.url, facts),
        *_waits(facts.url, facts),
        *_contradicted(facts.url, scope, robots),
    ]


def _never_discovered(scope: ScopeVerdict, robots: RobotsVerdict) -> Iterator[str]:
    yield "never discovered: no seed, sitemap or accepted page has named it, or it was refused when one did"
    if not scope.allowed:
        yield f"it would be refused: {scope.rule}"
    elif robots.allowed is False:
        yield "it would be cancelled: robots.txt disallows it"


def _because(contract: Contract, page: PageUrl, url: UrlFacts, facts: StoredFacts) -> str:
    match UrlState(url.state):
        case UrlState.QUEUED:
            return _queued(url)
        case UrlState.ACTIVE:
            return "a worker has it in hand" if facts.lease else "its lease has just ended"
        case UrlState.QUARANTINED:
            release = f"crawl-pipeline quarantine release {contract.source} --url '{url.url}'"
            return f"no decision could be made ({_in_words(url.reason)}); to release it: {release}"
        case UrlState.CANCELLED:
            when = "ended before its first fetch" if url.last_fetched_at is None else "not to be visited again"
            ended = f"{when} ({_in_words(url.reason)})"
            return f"{ended}; the next crawl that allows it opens it again"
        case UrlState.REJECTED:
            return _rejected(contract, page, url)
        case _:
            freshness = RevisitPolicy(contract.freshness).freshness(canonical_path(page.canonical))
            interval, window = span(freshness.interval), span(freshness.window)
            return f"checked again {interval} after the last check, no later than {window} ({freshness.rule})"


def _queued(url: UrlFacts) -> str:
    if url.tries:
        return f"tried again after {count_of(url.tries, 'failure')} in a row ({url.reason})"
    if url.reason:
        return f"put back without a try spent ({_in_words(url.reason)})"
    return "never visited yet" if url.outcome is None else "to be visited again"


def _rejected(contract: Contract, page: PageUrl, url: UrlFacts) -> str:
    if url.reason == Reason.NOT_FOUND:
        return "not found once; looked at again soon, because it may be a mistake of the site"
    if url.reason == Reason.SOFT_404:
        return "says what its host says of a made-up path (a soft 404), once; looked at again soon"
    if url.reason == Reason.GONE:
        return "gone, confirmed by a second visit; looked at again now and then"
    freshness = RevisitPolicy(contract.freshness).freshness(canonical_path(page.canonical))
    if url.reason == Reason.REDIRECTED:
        return f"leads to another page, which has the content; followed again after {span(freshness.window)}"
    refused = f"a complete answer that is not what the contract asks for ({_in_words(url.reason)})"
    return f"{refused}; visited again after {span(freshness.window)} ({freshness.rule})"


def _waits(url: UrlFacts, facts: StoredFacts) -> Iterator[str]:
    if url.due_at is None or url.state == UrlState.ACTIVE:
        return
    if facts.paused_at is not None:
        yield "the source is paused: crawl-pipeline sources resume lets it go on"
    crawl, host = facts.open_crawl, facts.host
    if crawl is None:
        yield "no crawl is open: the next one claims it when it is due"
    elif url.state != UrlState.QUEUED and url.due_at > crawl.opened_at:
        yield "it belongs to the next crawl: the open one visits again only what was due when it opened"
    if host is not None and host.blocked_until is not None and host.blocked_until > facts.now:
        yield f"the host rests until {ago(host.blocked_until, facts.now)} ({host.blocked_reason})"
    if url.expiries >= 2:
        yield f"{url.expiries} workers died with it: it is claimed only by a worker that holds nothing else"


def _contradicted(url: UrlFacts, scope: ScopeVerdict, robots: RobotsVerdict) -> Iterator[str]:
    if url.state in (UrlState.CANCELLED, UrlState.QUARANTINED):
        return
    if not scope.allowed:
        yield f"when it is claimed it is cancelled: the contract does not allow it any more ({scope.rule})"
    elif robots.allowed is False:
        yield "when it is claimed it is cancelled: robots.txt disallows it"


def _in_words(reason: str | None) -> str:
    return _REASONS.get(reason or "", reason or "no reason kept")


_REASONS: dict[str, str] = {
    Reason.TRIES_EXHAUSTED: "every try failed",
    Reason.POISON: "workers died with it again and again",
    Reason.TIMEOUT: "it was not read within fetch.page_timeout",
    Reason.KEY_CONFLICT: "two of its records have one natural key and differ",
    Reason.UNSTORABLE: "the database refused its values",
    Reason.NOINDEX: "it asks not to be indexed",
    Reason.ROBOTS: "robots.txt disallows it",
    Reason.SCOPE: "out of scope",
    Reason.TRAP: "its path leads ever on: a crawl trap",
    Reason.MAX_DEPTH: "deeper than limits.max_depth",
    Reason.MAX_PAGES: "limits.max_pages was reached",
    Reason.DEADLINE: "limits.max_duration was reached",
    Reason.THROTTLED: "the host asked to wait",
    Reason.HOST_DOWN: "the host is down",
    Reason.ROBOTS_UNAVAILABLE: "robots.txt could not be had",
    Reason.UNREQUESTABLE: "it cannot be put into an HTTP request",
}

"""`crawl-pipeline explain`: everything about one URL, and why it is visited or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import click

from crawl_pipeline.cli import verdicts
from crawl_pipeline.cli.output import ago, count_of, print_facts, print_json, print_table, span
from crawl_pipeline.cli.session import opened
from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.pages import PageUrl
from crawl_pipeline.domain.scope import ScopeVerdict
from crawl_pipeline.domain.urls import Canonicalizer, UrlFault, origin_of
from crawl_pipeline.errors import UsageError
from crawl_pipeline.storage import explain as store
from crawl_pipeline.storage import reports

UNKNOWN = "unknown"  # the state of a URL that was never discovered


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All that is told of one URL."""

    source: str
    page: PageUrl
    scope: ScopeVerdict
    robots: verdicts.RobotsVerdict
    facts: store.StoredFacts
    why: list[str]

    @property
    def state(self) -> str:
        """The URL's state, or `unknown`."""
        return self.facts.url.state if self.facts.url else UNKNOWN


@click.command()
@click.argument("url")
@click.option("--source", required=True, help="The source whose contract and state are asked.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys.")
def explain(url: str, source: str, as_json: bool) -> None:
    """Explain one URL: identity, scope, robots.txt, host, state, due time and why, history."""
    with opened() as session, reports.snapshot(session.database) as connection:
        known = session.source(connection, source)
        contract = session.contract(known, source)
        page = _page(contract, url)
        source_id = known.source_id if known is not None else -1  # never crawled: nothing of its own is stored
        facts = store.stored_facts(connection, source_id, page.key, page.authority, origin_of(page.canonical))
    explanation = _explained(contract, page, facts)
    print_json(_as_json(explanation)) if as_json else _print(explanation)


def _page(contract: Contract, url: str) -> PageUrl:
    page = Canonicalizer(contract.urls).page_url(url)
    if isinstance(page, PageUrl):
        return page
    hint = "; write it whole, with http:// or https://" if page.fault in (UrlFault.INVALID, UrlFault.SCHEME) else ""
    raise UsageError(f"the URL is refused: {page.fault.value}{hint}")


def _explained(contract: Contract, page: PageUrl, facts: store.StoredFacts) -> Explanation:
    scope = verdicts.scope_verdict(contract, page, facts.url.depth if facts.url else 0)
    robots = verdicts.robots_verdict(contract, page, facts.robots)
    why = verdicts.why(contract, page, facts, scope, robots)
    return Explanation(source=contract.source, page=page, scope=scope, robots=robots, facts=facts, why=why)


def _as_json(one: Explanation) -> dict[str, Any]:
    """The documented keys; more may come, none goes."""
    facts, url = one.facts, one.facts.url
    return {
        "source": one.source,
        "url": url.url if url else one.page.url,
        "canonical_url": one.page.canonical,
        "url_key": one.page.key,
        "scope": {"allowed": one.scope.allowed, "reason": one.scope.reason, "rule": one.scope.rule},
        "robots": one.robots,
        "host": facts.host,
        "state": one.state,
        "reason": url and url.reason,
        "outcome": url and url.outcome,
        "due_at": url and url.due_at,
        "why": one.why,
        "last_fetched_at": url and url.last_fetched_at,
        "accepted_at": url and url.accepted_at,
        "depth": url and url.depth,
        "tries": url and url.tries,
        "expiries": url and url.expiries,
        "is_sitemap": url and url.is_sitemap,
        "is_noindex": url and url.is_noindex,
        "found_on": url and url.found_on,
        "lease": facts.lease,
        "open_crawl": facts.open_crawl,
        "fetches": facts.fetches,
        "version_count": facts.version_count,
        "versions": facts.versions,
        "record_count": facts.record_count,
        "records": facts.records,
        "now": facts.now,
    }


def _print(one: Explanation) -> None:
    print_facts(_identity(one))
    facts = one.facts
    if facts.lease is not None:
        click.echo("\nlease")
        print_facts(_lease(facts.lease, facts), indent=2)
    if facts.host is not None:
        click.echo("\nhost")
        print_facts(_host(facts.host, facts), indent=2)
    if len(one.robots.changes) > 1:
        click.echo("\nrobots.txt, its last changes, the newest first")
        changes = [[c.fetched_at, c.valid_until, c.state, c.status, c.body_bytes] for c in one.robots.changes]
        print_table(["from", "kept until", "state", "status", "bytes"], changes, numbers=("status", "bytes"))
    if facts.fetches:
        click.echo("\nfetches, the newest first")
        headers = ["started", "status", "outcome", "reason", "ms", "bytes", "detail"]
        rows = [
            [f.started_at, f.status, f.outcome, f.reason, f.elapsed_ms, f.body_bytes, f.detail or _elsewhere(f, one)]
            for f in facts.fetches
        ]
        print_table(headers, rows, numbers=("status", "ms", "bytes"))
    if facts.versions:
        click.echo(f"\nversions, {len(facts.versions)} of {facts.version_count:,}, the newest first")
        versions = [[v.version_no, v.seen_at, v.title, v.client, v.body_hash[:12]] for v in facts.versions]
        print_table(["version", "seen", "title", "client", "body"], versions, numbers=("version",))
    if facts.records:
        click.echo(f"\nrecords, {len(facts.records)} of {facts.record_count:,}")
        records = [[r.record_type, r.record_key, _claim(r), r.last_changed_at] for r in facts.records]
        print_table(["type", "key", "standing", "last changed"], records)


def _identity(one: Explanation) -> Iterator[tuple[str, object]]:
    facts, url = one.facts, one.facts.url
    yield "url", url.url if url else one.page.url
    yield "canonical", one.page.canonical
    yield "key", one.page.key
    yield "scope", f"{'in' if one.scope.allowed else 'out of'} scope ({one.scope.rule})"
    robots = one.robots
    age = f" (fetched {ago(robots.fetched_at, facts.now)}, {_expiry(robots, facts)})" if robots.fetched_at else ""
    yield "robots.txt", robots.sentence + age
    if robots.crawl_delay and robots.crawl_delay_kept and robots.crawl_delay > robots.crawl_delay_kept:
        asked, kept = span(robots.crawl_delay), span(robots.crawl_delay_kept)
        yield "", f"asks for {asked} between requests; politeness.max_crawl_delay cuts that to {kept}"
    yield "state", one.state + (f" ({url.reason})" if url and url.reason else "")
    if url is not None:
        yield "due", ago(url.due_at, facts.now) if url.due_at else "never by itself"
    for number, sentence in enumerate(one.why):
        yield "why" if number == 0 else "", sentence
    if url is not None:
        where = url.found_on or ("a seed or a sitemap's" if url.is_seed else "a page that is no longer known")
        yield "found on", f"{where}, depth {url.depth}" + (", a sitemap" if url.is_sitemap else "")
        yield "last fetched", ago(url.last_fetched_at, facts.now) if url.last_fetched_at else None
        yield "noindex", "the page asks not to be indexed" if url.is_noindex else None
        yield "last accepted", ago(url.accepted_at, facts.now) if url.accepted_at else None


def _expiry(robots: verdicts.RobotsVerdict, facts: store.StoredFacts) -> str:
    if robots.expires_at is None or robots.expires_at <= facts.now:
        return "fetched again before the next visit"
    return f"good for {span(robots.expires_at - facts.now)}"


def _lease(lease: store.LeaseFacts, facts: store.StoredFacts) -> Iterator[tuple[str, object]]:
    where = f" on {lease.machine}, process {lease.pid}" if lease.machine else ""
    yield "worker", lease.worker_id + where
    yield "crawl", lease.crawl_id
    yield "claimed", ago(lease.claimed_at, facts.now)
    yield "ends", ago(lease.expires_at, facts.now)
    yield "holds", f"{lease.remaining} of {count_of(lease.urls, 'URL')}"


def _host(host: store.HostFacts, facts: store.StoredFacts) -> Iterator[tuple[str, object]]:
    yield "name", host.authority
    yield "budget", f"{_budget(host.slots, host.min_delay)} ({count_of(host.slots_in_use, 'slot')} in use)"
    asked = (host.asked_slots, host.asked_min_delay)
    if host.asked_min_delay is not None and asked != (host.slots, host.min_delay):
        yield "from next lease", _budget(host.asked_slots or 0, host.asked_min_delay)
    yield "crawl delay", f"{span(host.crawl_delay)} (robots.txt)" if host.crawl_delay is not None else None
    yield "answers in", _answer_time(host)
    if host.adaptive_reason is not None:
        yield "adaptive", f"{span(host.adaptive_delay)} between requests ({_trouble(host)})"
    if host.blocked_until is not None and host.blocked_until > facts.now:
        yield "rests until", f"{ago(host.blocked_until, facts.now)} ({host.blocked_reason})"
    yield "failures in a row", host.failures or None
    yield "claimable", ago(host.ready_at, facts.now) if host.ready_at else None


def _answer_time(host: store.HostFacts) -> str | None:
    if host.latency is None or host.usual_latency is None:
        return None
    return f"{span(timedelta(seconds=host.latency))}, at its best {span(timedelta(seconds=host.usual_latency))}"


def _trouble(host: store.HostFacts) -> str:
    match host.adaptive_reason:
        case "failing":
            return f"{host.error_share:.0%} of its latest answers failed"
        case "throttled":
            return "it answered 429 or 503"
        case _:
            return "it answers slower than it used to"


def _budget(slots: int, min_delay: timedelta) -> str:
    return f"{count_of(slots, 'slot')}, {f'{span(min_delay)} between' if min_delay else 'no pause between'} requests"


def _elsewhere(fetch: store.FetchFacts, one: Explanation) -> str | None:
    return fetch.url if fetch.url not in (one.page.url, one.facts.url and one.facts.url.url) else None


def _claim(record: store.ClaimFacts) -> str:
    words = ["its own" if record.is_owner else f"belongs to {record.owner_url or 'another page'}"]
    if record.is_conflict:
        words.append("with other data here: kept as a conflict")
    elif record.conflicts:
        words.append(f"{count_of(record.conflicts, 'other page')} with other data")
    if record.gone_at is not None:
        words.append("gone")
    elif record.missing_since is not None:
        words.append("missing")
    return ", ".join(words)

"""`crawl-pipeline status`: how sources and crawls stand."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import click
import sqlalchemy as sa

from crawl_pipeline.cli.output import ago, count_of, print_facts, print_json, print_table, span
from crawl_pipeline.cli.session import Session, note, opened
from crawl_pipeline.errors import ContractErrors
from crawl_pipeline.storage import reports
from crawl_pipeline.storage import status as store

# A run says every few seconds that it lives.
LIVES_WITHIN = timedelta(seconds=60)
NEVER_CRAWLED = "never_crawled"


@click.command()
@click.argument("source", metavar="[SOURCE or CRAWL_ID]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys.")
def status(source: str | None, as_json: bool) -> None:
    """Show how a source or a crawl stands.

    Without an argument: all sources.
    """
    with opened() as session, reports.snapshot(session.database) as connection:
        if source is None:
            found = _all(session, connection)
            print_json([_as_json(one) for one in found]) if as_json else _print_all(found)
            return
        one = _one(session, connection, source)
    print_json(_as_json(one)) if as_json else _print_one(one)


def _one(session: Session, connection: sa.Connection, name: str) -> store.SourceStatus:
    crawl_id = reports.crawl_id_of(name)
    if crawl_id is not None:
        crawl = reports.find_crawl(connection, crawl_id)
        return store.source_status(connection, reports.source_of(connection, crawl.source_id), crawl_id)
    known = session.source(connection, name)
    return store.never_crawled(connection, name) if known is None else store.source_status(connection, known)


def _all(session: Session, connection: sa.Connection) -> list[store.SourceStatus]:
    known = reports.all_sources(connection)
    found = [store.source_status(connection, source) for source in known]
    try:
        names = set(session.contracts) - {source.source for source in known}
    except ContractErrors as error:
        note(f"{count_of(len(error.errors), 'contract file')} faulty, see: crawl-pipeline sources check")
        names = set()
    return sorted([*found, *(store.never_crawled(connection, name) for name in names)], key=lambda one: one.source)


def _as_json(status: store.SourceStatus) -> dict[str, Any]:
    """The documented keys; more may come, none goes."""
    crawl = status.crawl
    return {
        "source": status.source,
        "crawl_id": crawl and crawl.crawl.crawl_id,
        "state": crawl.crawl.state if crawl else NEVER_CRAWLED,
        "stop_reason": crawl and crawl.crawl.stop_reason,
        "urls": status.urls,
        "records": status.record_count,
        "page_versions": status.page_versions,
        "requests": crawl.requests if crawl else 0,
        "other_requests": crawl.other_requests if crawl else 0,
        "quarantine": status.quarantine,
        "requests_per_record": _requests_per_record(status),
        "records_by_type": status.records,
        "holds": status.holds,
        "freshness": status.freshness,
        "paused_at": status.paused_at,
        "contract_version": status.contract_version,
        "crawl": crawl and _crawl_as_json(crawl),
        "now": status.now,
    }


def _crawl_as_json(crawl: store.CrawlStatus) -> dict[str, Any]:
    row = crawl.crawl
    return {
        "kind": row.kind,
        "contract_version": row.contract_version,
        "opened_at": row.opened_at,
        "closed_at": row.closed_at,
        "deadline_at": row.deadline_at,
        "max_pages": row.max_pages,
        "ending": row.ending,
        "run_id": row.holder.run_id,
        "machine": row.holder.machine,
        "pid": row.holder.pid,
        "is_live": _is_live(crawl),
        "heartbeat_age": row.heartbeat_age,
        "counters": crawl.counters,
        "workers": crawl.workers,
        "leases": crawl.leases,
        "urls_in_hand": crawl.urls_in_hand,
        "next_expiry_at": crawl.next_expiry_at,
    }


def _is_live(crawl: store.CrawlStatus) -> bool:
    return crawl.crawl.state == "open" and crawl.crawl.heartbeat_age < LIVES_WITHIN


def _requests_per_record(status: store.SourceStatus) -> float | None:
    if status.crawl is None or status.record_count == 0:
        return None
    return round(status.crawl.requests / status.record_count, 3)


def _print_all(found: list[store.SourceStatus]) -> None:
    if not found:
        click.echo("no sources yet; put a contract into a folder of CRAWL_SOURCES, then: crawl-pipeline crawl SOURCE")
        return
    headers = ["source", "state", "last crawl", "pages", "records", "due", "stale", "next due"]
    rows = [
        [
            one.source,
            _state(one),
            ago(one.crawl.crawl.opened_at, one.now) if one.crawl else "-",
            ", ".join(f"{n:,} {state}" for state, n in one.urls.items() if n) or "-",
            one.record_count,
            one.freshness.due,
            one.freshness.stale,
            ago(one.freshness.next_due_at, one.now),
        ]
        for one in found
    ]
    print_table(headers, rows, numbers=("records", "due", "stale"))


def _state(status: store.SourceStatus) -> str:
    crawl = status.crawl
    paused = ", paused" if status.paused_at else ""
    if crawl is None:
        return "never crawled" + paused
    if crawl.crawl.state == "closed":
        return f"{crawl.crawl.stop_reason}{paused}"
    if _is_live(crawl):
        return "running" + paused
    return "interrupted" + paused


def _print_one(status: store.SourceStatus) -> None:
    print_facts(_facts(status))
    if any(status.urls.values()):
        click.echo()
        print_table(list(status.urls), [list(status.urls.values())], numbers=tuple(status.urls))
    crawl = status.crawl
    if crawl is not None and crawl.counters:
        click.echo("\nthis crawl")
        print_facts(((name, f"{n:,}") for name, n in sorted(crawl.counters.items())), indent=2)
    if crawl is not None and crawl.workers:
        click.echo()
        headers = ["worker", "machine", "pid", "last heartbeat", "requests", "leases", "urls in hand"]
        rows = [
            [w.worker_id, w.machine, w.pid, f"{span(w.heartbeat_age)} ago", w.requests, w.leases, w.urls_in_hand]
            for w in crawl.workers
        ]
        print_table(headers, rows, numbers=("pid", "requests", "leases", "urls in hand"))


def _facts(status: store.SourceStatus) -> Iterator[tuple[str, object]]:
    now, crawl = status.now, status.crawl
    yield "source", status.source + (f" (paused {ago(status.paused_at, now)})" if status.paused_at else "")
    yield "state", _state(status)
    if crawl is not None:
        yield "crawl", f"{crawl.crawl.crawl_id} ({crawl.crawl.kind})"
        yield "opened", ago(crawl.crawl.opened_at, now)
        yield from _progress(crawl, now)
        yield "requests", f"{crawl.requests:,} for pages, {crawl.other_requests:,} others"
    yield "records", _records(status)
    yield "requests per record", _requests_per_record(status)
    yield "page versions", f"{status.page_versions:,}"
    yield "quarantine", ", ".join(f"{n:,} {reason}" for reason, n in status.quarantine.items()) or None
    for hold in status.holds:
        yield (
            "held removals",
            (
                f"{hold.missing_count:,} of {hold.record_count:,} {hold.record_type} records went missing, more than "
                f"{hold.max_drop:.0%} (held {ago(hold.held_at, now)})"
            ),
        )
    yield from _freshness(status)


def _progress(crawl: store.CrawlStatus, now: datetime) -> Iterator[tuple[str, object]]:
    row = crawl.crawl
    if row.closed_at is not None:
        yield "closed", f"{ago(row.closed_at, now)}, after {span(row.closed_at - row.opened_at)}"
        return
    yield "deadline", ago(row.deadline_at, now)
    where = f"run {row.holder.run_id} on {row.holder.machine}, process {row.holder.pid}"
    yield "held by", f"{where}, last heartbeat {span(row.heartbeat_age)} ago"
    if crawl.leases:
        yield (
            "in hand",
            (
                f"{count_of(crawl.urls_in_hand, 'URL')} in {count_of(crawl.leases, 'lease')}, "
                f"the first ends {ago(crawl.next_expiry_at, now)}"
            ),
        )
    yield "ending", row.ending


def _records(status: store.SourceStatus) -> str:
    if len(status.records) < 2:
        return f"{status.record_count:,}"
    return f"{status.record_count:,} ({', '.join(f'{n:,} {name}' for name, n in status.records.items())})"


def _freshness(status: store.SourceStatus) -> Iterator[tuple[str, object]]:
    fresh, now = status.freshness, status.now
    late = f"{fresh.stale:,} of them older than promised" if fresh.stale else "none older than promised"
    yield "window", fresh.window
    yield "due now", f"{count_of(fresh.due, 'page')}, {late}" if fresh.due else "0 pages"
    if fresh.oldest_check_at is not None:
        yield "oldest check", ago(fresh.oldest_check_at, now)
    yield "next due", ago(fresh.next_due_at, now)

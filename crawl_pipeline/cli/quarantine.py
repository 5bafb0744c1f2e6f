"""`crawl-pipeline quarantine`: what waits for a person, and its release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from crawl_pipeline.cli.output import ago, count_of, print_json, print_table, visible
from crawl_pipeline.cli.session import Session, opened
from crawl_pipeline.domain.outcomes import Reason
from crawl_pipeline.errors import UsageError
from crawl_pipeline.storage import quarantine as store
from crawl_pipeline.storage import reports
from crawl_pipeline.storage.quarantine import HELD_REMOVALS, Hold, Quarantined, Sample

REASONS = (
    Reason.TRIES_EXHAUSTED,
    Reason.POISON,
    Reason.TIMEOUT,
    Reason.KEY_CONFLICT,
    Reason.UNSTORABLE,
    HELD_REMOVALS,
)


@click.group()
def quarantine() -> None:
    """List and release what waits for a person."""


@quarantine.command("list")
@click.argument("source", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys.")
def list_(source: str | None, as_json: bool) -> None:
    """Show quarantined URLs per source and reason, and held removals."""
    with opened() as session, reports.snapshot(session.database) as connection:
        if source is None:
            known = reports.all_sources(connection)
        else:
            one = session.source(connection, source)
            known = [one] if one is not None else []
        found = [entry for one in known for entry in store.quarantined(connection, one.source_id, one.source)]
        holds = [(one.source, hold) for one in known for hold in store.open_holds(connection, one.source_id)]
        now = reports.now(connection)
    if as_json:
        print_json({"urls": found, "holds": [{"source": name, **_hold_as_json(hold)} for name, hold in holds]})
    elif not found and not holds:
        click.echo("nothing is quarantined")
    else:
        _print_urls(found)
        for name, hold in holds:
            click.echo(
                f"{name}: the removal of {hold.missing_count:,} of {hold.record_count:,} {hold.record_type} records "
                f"is held ({HELD_REMOVALS}, more than {hold.max_drop:.0%}) since {ago(hold.held_at, now)}"
            )
        click.echo("release with: crawl-pipeline quarantine release SOURCE [--reason R] [--url GLOB]")


def _hold_as_json(hold: Hold) -> dict[str, Any]:
    return {
        "reason": HELD_REMOVALS,
        "record_type": hold.record_type,
        "crawl_id": hold.crawl_id,
        "missing_count": hold.missing_count,
        "record_count": hold.record_count,
        "max_drop": hold.max_drop,
        "held_at": hold.held_at,
    }


def _print_urls(found: Sequence[Quarantined]) -> None:
    if not found:
        return
    rows = [[entry.source, _reason(entry), f"{entry.count:,}"] for entry in found]
    print_table(["source", "reason", "URLs"], rows, numbers=["URLs"])
    for entry in found:
        click.echo(f"\n{entry.source}, {_reason(entry)}:")
        for sample in entry.samples:
            click.echo(f"  {visible(sample.url)}  ({visible(_last(sample))})")
        if entry.count > len(entry.samples):
            click.echo(f"  and {entry.count - len(entry.samples):,} more")
    click.echo()


def _reason(entry: Quarantined) -> str:
    return entry.reason + (" (sitemap)" if entry.is_sitemap else "")


def _last(sample: Sample) -> str:
    parts = [
        f"status {sample.status}" if sample.status is not None else None,
        sample.detail,
        f"{count_of(sample.expiries, 'worker')} died with it" if sample.expiries else None,
        f"{count_of(sample.tries, 'failure')} in a row" if sample.tries else None,
    ]
    return ", ".join(part for part in parts if part) or "never fetched"


@quarantine.command()
@click.argument("source")
@click.option("--reason", type=click.Choice([str(reason) for reason in REASONS]), help="Only what has this reason.")
@click.option("--url", "glob", metavar="GLOB", help="Only URLs that match as a whole; * stands for any characters.")
def release(source: str, reason: str | None, glob: str | None) -> None:
    """Release what has been looked at: URLs are queued and due at once, held removals are applied.

    Without --reason and --url: all of the source, held removals included.
    """
    if glob is not None and reason == HELD_REMOVALS:
        raise UsageError(f"{HELD_REMOVALS} are of records, not of URLs; leave out --url")
    with opened() as session:
        _release(session, source, reason, glob)


def _release(session: Session, source: str, reason: str | None, glob: str | None) -> None:
    with reports.snapshot(session.database) as connection:
        known = session.source(connection, source)
    if known is None:
        click.echo(f"{source} was never crawled; there is nothing to release")
        return
    pattern = store.like_pattern(glob) if glob is not None else None
    released = store.release(session.database, known.source_id, reason=reason, url_pattern=pattern)
    if reason != HELD_REMOVALS:
        click.echo(f"{count_of(released.urls, 'URL')} released" + ("; due now" if released.urls else ""))
    for removal in released.removals:
        click.echo(
            f"{count_of(removal.missing, f'{removal.record_type} record')} of {removal.total:,} removed, as was held"
        )
    if reason == HELD_REMOVALS and not released.removals:
        click.echo("no removal is held")
    with reports.snapshot(session.database) as connection:
        left = store.counts(connection, known.source_id)
    if left:
        click.echo("still quarantined: " + ", ".join(f"{n:,} {name}" for name, n in left.items()))

"""A crawl's beginning and end: take over or open it, make due what is to be visited; close it and say what it did."""

from __future__ import annotations

import os
import secrets
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.contract_records import RecordRule
from crawl_pipeline.domain.outcomes import Reason, StopReason
from crawl_pipeline.domain.pages import CrawlId, PageUrl
from crawl_pipeline.domain.urls import Canonicalizer
from crawl_pipeline.errors import CrawlInProgress, UsageError
from crawl_pipeline.fetching.proxy import trusted_proxy
from crawl_pipeline.parsing.extraction import Extractor
from crawl_pipeline.pipeline.contract_files import LoadedContract
from crawl_pipeline.pipeline.processes import is_alive, this_process
from crawl_pipeline.pipeline.sitemap_visits import seed_origins
from crawl_pipeline.pipeline.visit import Requests
from crawl_pipeline.storage import crawls, robots, sources
from crawl_pipeline.storage.crawls import CrawlRow
from crawl_pipeline.storage.database import Database, long_statements
from crawl_pipeline.storage.sources import Removal, SourceRow

# What a limit cancelled is allowed again by the next crawl; what the contract cancelled, by a changed contract.
_LIMITS = (Reason.MAX_PAGES.value, Reason.DEADLINE.value)
_RULES = (Reason.SCOPE.value, Reason.TRAP.value, Reason.MAX_DEPTH.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlOptions:
    """What a launch may say beyond the contract. `force`: every page is due; limits override the contract's."""

    workers: int | None = None
    force: bool = False
    max_pages: int | None = None
    max_duration: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedCrawl:
    """An open crawl that this process holds; `contract` is its JSON as it is in force."""

    crawl_id: CrawlId
    source_id: int
    source: str
    kind: str
    is_resumed: bool
    workers: int
    run_id: str
    contract: str
    opened_at: datetime
    deadline_at: datetime
    max_pages: int
    has_due: bool
    next_due_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlReport:
    """What a crawl did. `urls`: the source's URLs per state; `elapsed` in seconds since it opened."""

    crawl_id: uuid.UUID
    source: str
    stop_reason: str
    urls: dict[str, int]
    requests: int
    other_requests: int
    versions_added: int
    records_added: int
    records_changed: int
    records_missing: int
    records_gone: int
    records: int
    page_versions: int
    new_urls: int
    over_max_urls: int
    traps: int
    elapsed: float
    pages_per_second: float
    next_due_at: datetime | None
    holds: tuple[Removal, ...]


def open_crawl(database: Database, loaded: LoadedContract, *, run_id: str, options: CrawlOptions) -> OpenedCrawl:
    """Hold the source for a crawl: resume a dead run's crawl before its deadline, else open a new one.

    Puts the contract in force, adds seeds, allows again what earlier limits cancelled, and with `force` makes every
    page due. Safe to repeat after a kill at any point. Raises CrawlInProgress where a live crawl holds the source.
    """
    contract = loaded.contract
    Extractor(contract)  # what the workers would stumble over is said before they start
    Requests(contract)
    trusted_proxy(os.environ)
    source_id = find_or_add_source(database, loaded)
    if database.retry(lambda connection: sources.is_paused(connection, source_id)):
        raise UsageError(
            f'"{contract.source}" is paused; crawl-pipeline sources resume {contract.source} lets it go on'
        )
    row, is_resumed = _hold(database, source_id, contract, run_id, "crawl", options)
    sync_source(database, loaded)  # not before: a launch that is refused changes nothing of the crawl that lives
    _prepare(database, contract, row)
    _goes_on_under(database, row, contract)
    return database.retry(lambda connection: _opened(connection, row, contract.to_json(), is_resumed))


def load_open_crawl(database: Database, source: str, run_id: str) -> OpenedCrawl:
    """The crawl that a run holds, for the run's later steps."""

    def work(connection: sa.Connection) -> OpenedCrawl:
        row = crawls.find_held(connection, source, run_id)
        if row is None:
            raise UsageError(f'no open crawl of "{source}" is held by run {run_id}; another run may have taken it over')
        contract = sources.contract_text(connection, row.source_id, row.contract_version)
        return _opened(connection, row, contract, True)

    return database.retry(work)


def close_crawl(database: Database, crawl: OpenedCrawl) -> CrawlReport:
    """End a crawl whose workers have stopped: cancel what a limit left, apply or hold removals, close, report.

    Safe to repeat after a kill. A crawl that was stopped stays open, to be resumed.
    """
    row = database.retry(lambda connection: crawls.find(connection, crawl.crawl_id))
    assert row is not None
    ending = row.ending or StopReason.NOTHING_DUE
    if ending == StopReason.STOPPED:
        raise UsageError(f'crawl {crawl.crawl_id} of "{crawl.source}" was stopped; the next launch resumes it')
    if ending == StopReason.MAX_PAGES:
        sources.cancel_queued(database, crawl.source_id, Reason.MAX_PAGES.value)
    elif ending == StopReason.MAX_DURATION:
        sources.cancel_queued(database, crawl.source_id, Reason.DEADLINE.value)
    contract = Contract.from_json(crawl.contract)
    crawls.fold_counters(database)
    holds = apply_removals(database, crawl.source_id, crawl.crawl_id, contract)

    def finish(connection: sa.Connection) -> CrawlReport:
        crawls.close(connection, crawl.crawl_id, ending)
        return _report(connection, crawl, ending, holds)

    return database.retry(finish)


def apply_removals(database: Database, source_id: int, crawl_id: CrawlId, contract: Contract) -> tuple[Removal, ...]:
    """Let records go that no page yields any more, or hold them, by each record type's guard. Returns what is held.

    What went is in the crawl's counters, so that a repetition after a kill reports it too.
    """
    removals = [
        database.retry(
            lambda connection, rule=rule: _apply_removals(connection, source_id, crawl_id, rule)  # type: ignore[misc]
        )
        for rule in contract.records
    ]
    return tuple(removal for removal in removals if not removal.is_applied)


def _apply_removals(connection: sa.Connection, source_id: int, crawl_id: CrawlId, rule: RecordRule) -> Removal:
    removal = sources.apply_removals(connection, source_id, crawl_id, rule.type, rule.guard.max_drop)
    if removal.is_applied and removal.missing:
        crawls.add_counts(connection, source_id, crawl_id, {"records_gone": removal.missing})
    return removal


def sync_source(database: Database, loaded: LoadedContract) -> int:
    """Put a contract in force. Returns the source's id."""
    return sources.sync(database, _source_row(loaded))


def find_or_add_source(database: Database, loaded: LoadedContract) -> int:
    """The source's id; its contract is put in force only where the source is new."""
    return sources.find_or_add(database, _source_row(loaded))


def hold_for_re_extraction(database: Database, source_id: int, loaded: LoadedContract, run_id: str) -> CrawlRow:
    """Hold the source for a re-extraction, then put its contract in force. Raises CrawlInProgress."""
    row, _ = _hold(database, source_id, loaded.contract, run_id, "re_extraction", CrawlOptions())
    sync_source(database, loaded)
    _goes_on_under(database, row, loaded.contract)
    return row


def _goes_on_under(database: Database, row: CrawlRow, contract: Contract) -> None:
    database.retry(
        lambda connection: crawls.set_contract_version(connection, row.crawl_id, row.holder.run_id, contract.version)
    )


def _source_row(loaded: LoadedContract) -> SourceRow:
    contract = loaded.contract
    return SourceRow(
        source=contract.source,
        contract=contract.to_json(),
        contract_version=contract.version,
        contract_file=str(loaded.file) if loaded.file else None,
        slots=contract.politeness.slots,
        min_delay=contract.politeness.min_delay,
        adaptive=contract.politeness.adaptive,
        max_urls=contract.limits.max_urls,
    )


def _hold(
    database: Database, source_id: int, contract: Contract, run_id: str, kind: str, options: CrawlOptions
) -> tuple[CrawlRow, bool]:
    while True:
        open_row = database.retry(lambda connection: crawls.find_open(connection, source_id))
        if open_row is not None:
            taken = _take_over(database, open_row, run_id, kind)
            if taken is not None:
                return taken, True
            continue
        crawl_id = CrawlId(uuid7())
        database.retry(
            lambda connection, crawl_id=crawl_id: crawls.insert(  # type: ignore[misc]
                connection,
                crawl_id=crawl_id,
                source_id=source_id,
                kind=kind,
                contract_version=contract.version,
                max_duration=options.max_duration or contract.limits.max_duration,
                max_pages=options.max_pages or contract.limits.max_pages,
                options={"workers": options.workers, "force": options.force},
                holder=this_process(run_id),
            )
        )
        row = database.retry(lambda connection, crawl_id=crawl_id: crawls.find(connection, crawl_id))  # type: ignore[misc]
        if row is not None:
            return row, False


def _take_over(database: Database, row: CrawlRow, run_id: str, kind: str) -> CrawlRow | None:
    """A dead run's crawl, held by this process now; None where it was closed instead, or another was quicker."""
    holder = this_process(run_id)
    is_mine = row.holder.run_id == run_id and row.holder.pid == holder.pid
    if not is_mine:
        if is_alive(row):
            where = f"run {row.holder.run_id}, process {row.holder.pid} on {row.holder.machine.partition('/')[0]}"
            raise CrawlInProgress(row.source, row.kind.replace("_", "-"), str(row.crawl_id), where)
        if not database.retry(lambda connection: crawls.take_over(connection, row, holder)):
            return None
    is_resumable = database.retry(
        lambda connection: connection.execute(
            sa.text("SELECT deadline_at > clock_timestamp() FROM crawls WHERE crawl_id = :c"), {"c": row.crawl_id}
        ).scalar_one()
    )
    if row.kind == kind and is_resumable:
        return database.retry(lambda connection: crawls.find(connection, row.crawl_id))
    if row.kind == "crawl" and not is_resumable:
        sources.cancel_queued(database, row.source_id, Reason.DEADLINE.value)
    reason = StopReason.MAX_DURATION if not is_resumable else StopReason.FAILED
    database.retry(lambda connection: crawls.close(connection, row.crawl_id, reason))
    return None


def _prepare(database: Database, contract: Contract, row: CrawlRow) -> None:
    previous = database.retry(lambda connection: crawls.find_previous(connection, row.source_id, row.opened_at))
    reasons = list(_LIMITS)
    is_changed = row.contract_version != contract.version  # since this crawl was opened, or the one before
    if is_changed or (previous is not None and previous.contract_version != contract.version):
        reasons += [*_RULES, Reason.ROBOTS.value]
    sources.reopen_cancelled(database, row.source_id, reasons)
    since = previous.opened_at if previous is not None else row.opened_at
    _look_at_denied_again(database, row, since, is_obeying=contract.politeness.robots == "obey")
    if row.options.get("force"):
        sources.make_all_due(database, row.source_id, row.opened_at)
    canonicalizer = Canonicalizer(contract.urls)
    sources.discover(database, row.source_id, _pages(canonicalizer, contract.seeds))
    sitemaps = _sitemaps(contract)
    if sitemaps:
        sources.discover(database, row.source_id, _pages(canonicalizer, sitemaps), is_sitemap=True)


def _look_at_denied_again(database: Database, row: CrawlRow, since: datetime, *, is_obeying: bool) -> None:
    """Queue again what a robots.txt denied that changed since. Of one that expired a single URL: looking at it makes a
    worker fetch robots.txt, and the rest follows if it changed."""
    robots.end_rests(database, row.source_id)
    if not is_obeying:
        robots.forget_delays(database, row.source_id)
    origins = database.retry(lambda connection: robots.origins_to_look_at(connection, row.source_id, since))
    for origin, is_changed in origins:
        sources.reopen_denied(database, origin, row.source_id, only_one=not is_changed)


def _sitemaps(contract: Contract) -> tuple[str, ...]:
    """The sitemaps known before robots.txt is; where it is obeyed, `auto` waits for it."""
    if not isinstance(contract.sitemaps, str):
        return contract.sitemaps
    if contract.sitemaps == "auto" and contract.politeness.robots == "ignore":
        return tuple(sorted(origin + "/sitemap.xml" for origin in seed_origins(contract)))
    return ()


def _pages(canonicalizer: Canonicalizer, urls: tuple[str, ...]) -> list[PageUrl]:
    return [page for page in map(canonicalizer.page_url, urls) if isinstance(page, PageUrl)]


def _opened(connection: sa.Connection, row: CrawlRow, contract: str, is_resumed: bool) -> OpenedCrawl:
    status = connection.execute(sa.text("SELECT status FROM finished(:c)"), {"c": row.crawl_id}).scalar_one()
    return OpenedCrawl(
        crawl_id=row.crawl_id,
        source_id=row.source_id,
        source=row.source,
        kind=row.kind,
        is_resumed=is_resumed,
        workers=int(row.options.get("workers") or os.cpu_count() or 1),
        run_id=row.holder.run_id,
        contract=contract,
        opened_at=row.opened_at,
        deadline_at=row.deadline_at,
        max_pages=row.max_pages,
        has_due=status != "finished",
        next_due_at=crawls.next_due(connection, row.source_id),
    )


def _report(connection: sa.Connection, crawl: OpenedCrawl, ending: str, holds: tuple[Removal, ...]) -> CrawlReport:
    counts = crawls.counts(connection, crawl.source_id, crawl.crawl_id)
    totals = _totals(connection, crawl.source_id)
    pages, others = crawls.requests(connection, crawl.crawl_id)
    elapsed = connection.execute(
        sa.text("SELECT extract(epoch FROM clock_timestamp() - CAST(:t AS timestamptz))"), {"t": crawl.opened_at}
    ).scalar_one()
    done = sum(counts.get(name, 0) for name in ("accepted", "unchanged", "rejected"))
    return CrawlReport(
        crawl_id=crawl.crawl_id,
        source=crawl.source,
        stop_reason=ending,
        urls=crawls.counts(connection, crawl.source_id),
        requests=pages,
        other_requests=others,
        versions_added=counts.get("versions", 0),
        records_added=counts.get("records_added", 0),
        records_changed=counts.get("records_changed", 0),
        records_missing=counts.get("records_missing", 0),
        records_gone=counts.get("records_gone", 0),
        records=totals["records"],
        page_versions=totals["page_versions"],
        new_urls=counts.get("new_urls", 0),
        over_max_urls=counts.get("over_max_urls", 0),
        traps=counts.get("traps", 0),
        elapsed=float(elapsed),
        pages_per_second=done / float(elapsed) if elapsed else 0.0,
        next_due_at=crawls.next_due(connection, crawl.source_id),
        holds=holds,
    )


def _totals(connection: sa.Connection, source_id: int) -> Mapping[str, Any]:
    statement = sa.text("""
        SELECT (SELECT count(*) FROM records WHERE source_id = :s AND gone_at IS NULL) AS records,
               (SELECT count(*) FROM page_versions WHERE source_id = :s) AS page_versions
    """)
    with long_statements(connection):
        return dict(connection.execute(statement, {"s": source_id}).one()._mapping)


def uuid7() -> uuid.UUID:
    """A time-ordered UUID (RFC 9562, version 7)."""
    milliseconds = time.time_ns() // 1_000_000
    value = (
        (milliseconds & (2**48 - 1)) << 80 | 0x7 << 76 | secrets.randbits(12) << 64 | 0b10 << 62 | secrets.randbits(62)
    )
    return uuid.UUID(int=value)

"""Re-extraction: stored page versions read again by today's rules, without a request.

Reading runs in a child process, as crawling does, so that an extractor that hangs or kills is really stopped: its page
keeps its records as they are, and the rest goes on.
"""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.outcomes import StopReason
from crawl_pipeline.domain.pages import CrawlId, LeaseToken
from crawl_pipeline.domain.urls import Canonicalizer, UrlRefusal
from crawl_pipeline.errors import CrawlInProgress, InfrastructureError, WorkersKeepDying
from crawl_pipeline.parsing.extraction import Extractor
from crawl_pipeline.pipeline.contract_files import LoadedContract
from crawl_pipeline.pipeline.crawl import apply_removals, find_or_add_source, hold_for_re_extraction
from crawl_pipeline.pipeline.orders import Orders
from crawl_pipeline.pipeline.reading import PageReader
from crawl_pipeline.pipeline.worker_process import End, WorkerProcess
from crawl_pipeline.storage import crawls, pages, sources
from crawl_pipeline.storage.crawls import CrawlRow
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.pages import ReExtracted, StoredPage

_BATCH = 50
_MOST_DEATHS = 5  # in a row, with no page in hand
_BEAT_EVERY = 2.0  # seconds
_NO_LEASE = LeaseToken(UUID(int=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReExtractReport:
    """What re-extraction did. `skipped`: pages that today's rules reject; they keep their records as they are."""

    source: str
    re_extracted: int
    skipped: int
    records_added: int
    records_changed: int
    records_missing: int
    new_urls: int
    records: int


def re_extract(
    database: Database, loaded: LoadedContract, *, run_id: str, stop: threading.Event | None = None
) -> ReExtractReport:
    """Read every current version that other rules extracted last: records and links are made again, no page version is
    written. Safe to kill and repeat: what was read again is not stale any more. Raises CrawlInProgress, and
    InfrastructureError where `stop` ended it.
    """
    contract = loaded.contract
    extractor_version = Extractor(contract).version
    source_id = find_or_add_source(database, loaded)
    counts: dict[str, int] = {}
    if pages.stale(database, source_id, extractor_version, None, 1):
        row = hold_for_re_extraction(database, source_id, loaded, run_id)
        _supervise(database, contract, row, extractor_version, stop or threading.Event())
        apply_removals(database, source_id, row.crawl_id, contract)

        def finish(connection: sa.Connection) -> dict[str, int]:
            crawls.close(connection, row.crawl_id, StopReason.FINISHED)
            return crawls.counts(connection, source_id, row.crawl_id)

        counts = database.retry(finish)
    records = database.retry(lambda connection: sources.count_records(connection, source_id))
    names = ("re_extracted", "skipped", "records_added", "records_changed", "records_missing", "new_urls")
    return ReExtractReport(source=contract.source, records=records, **{name: counts.get(name, 0) for name in names})


def _supervise(
    database: Database, contract: Contract, row: CrawlRow, extractor_version: str, stop: threading.Event
) -> None:
    """Let child processes read until nothing is stale; a page that one died or stalled with is passed over."""
    deaths = 0
    while True:
        worker = WorkerProcess(_orders(contract, row), database.url)
        end = _watch(database, contract, row, worker, stop)
        worker.close()
        if end.error is not None:
            raise end.error
        if stop.is_set():
            raise InfrastructureError(f'the re-extraction of "{row.source}" was stopped; the next one goes on with it')
        if end.ended_by == "exit 0" and end.held is None:
            return
        deaths = 0 if end.held is not None else deaths + 1
        if end.held is not None:
            pages.pass_over(database, row.source_id, row.crawl_id, end.held.key, extractor_version)
        elif deaths >= _MOST_DEATHS:
            last = end.last_words.splitlines()[-1] if end.last_words else "nothing"
            raise WorkersKeepDying(
                f"the re-extraction's process ended {deaths} times in a row, the last by {end.ended_by}; its last "
                f"words: {last}. Mend that, then run the same command again"
            )


def _watch(database: Database, contract: Contract, row: CrawlRow, worker: WorkerProcess, stop: threading.Event) -> End:
    page_timeout = contract.fetch.page_timeout.total_seconds()
    beat_at = 0.0
    try:
        while True:
            end = worker.watch(page_timeout)
            if end is not None:
                return end
            if stop.wait(0.05):
                worker.stop()
                time.sleep(0.05)
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + _BEAT_EVERY
                if not database.retry(lambda connection: crawls.heartbeat(connection, row.crawl_id, row.holder.run_id)):
                    raise CrawlInProgress(row.source, "crawl", str(row.crawl_id), "another run took this one over")
    except BaseException:
        worker.kill()
        raise


def _orders(contract: Contract, row: CrawlRow) -> Orders:
    return Orders(
        kind="re_extraction",
        crawl_id=str(row.crawl_id),
        source_id=row.source_id,
        run_id=row.holder.run_id,
        worker_id=f"{row.holder.run_id[:8]}-{uuid.uuid4().hex[:8]}",
        contract=contract.to_json(),
        in_flight=0,
        slots=0,
        patience=60.0,
        lease_for=60.0,
        grace=10.0,
    )


def read_stale(
    database: Database, contract: Contract, reader: PageReader, orders: Orders, stop: threading.Event
) -> None:
    """The child's work: read stale versions, batch by batch, until none is left or `stop`."""
    canonicalizer = Canonicalizer(contract.urls)
    crawl_id = CrawlId(UUID(orders.crawl_id))
    batch = pages.stale(database, orders.source_id, reader.extractor_version, None, _BATCH)
    while batch and not stop.is_set():
        done = [_read(database, orders.source_id, canonicalizer, reader, stored) for stored in batch]
        pages.store_extractions(database, orders.source_id, crawl_id, orders.run_id, done)
        batch = pages.stale(database, orders.source_id, reader.extractor_version, batch[-1].key, _BATCH)


def _read(
    database: Database, source_id: int, canonicalizer: Canonicalizer, reader: PageReader, stored: StoredPage
) -> ReExtracted:
    page = canonicalizer.page_url(stored.url)
    if isinstance(page, UrlRefusal):
        return ReExtracted(
            key=stored.key,
            version_id=stored.version_id,
            extractor_version=reader.extractor_version,
            content_hash=b"",
            new_urls=0,
            records=None,
        )
    reading = reader.read(
        stored.body, stored.content_type, stored.final_url, page, _NO_LEASE, stored.depth, stored.robots_tags
    )
    new_urls, found = 0, reading.links
    if found:
        new_urls = sources.discover(
            database, source_id, found, depth=stored.depth + 1, found_on=[stored.key] * len(found)
        )
    return ReExtracted(
        key=stored.key,
        version_id=stored.version_id,
        extractor_version=reader.extractor_version,
        content_hash=reading.content_hash,
        new_urls=new_urls,
        records=None if reading.verdict is not None else reading.records,
    )

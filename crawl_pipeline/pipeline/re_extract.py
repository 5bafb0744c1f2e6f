"""Re-extraction: stored page versions read again by today's rules, without a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.outcomes import StopReason
from crawl_pipeline.domain.pages import LeaseToken
from crawl_pipeline.domain.urls import Canonicalizer, UrlRefusal
from crawl_pipeline.errors import CrawlInProgress
from crawl_pipeline.pipeline.contract_files import LoadedContract
from crawl_pipeline.pipeline.crawl import apply_removals, hold_for_re_extraction, sync_source
from crawl_pipeline.pipeline.reading import PageReader
from crawl_pipeline.storage import crawls, pages, sources
from crawl_pipeline.storage.crawls import CrawlRow
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.pages import ReExtracted, StoredPage

_BATCH = 50
_NO_LEASE = LeaseToken(UUID(int=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReExtractReport:
    """What re-extraction did. `skipped`: a page that today's rules reject keeps its records as they are."""

    source: str
    re_extracted: int
    skipped: int
    records_added: int
    records_changed: int
    records_missing: int
    new_urls: int
    records: int


def re_extract(
    database: Database,
    loaded: LoadedContract,
    *,
    run_id: str,
    on_progress: Callable[[int], None] = lambda _: None,
) -> ReExtractReport:
    """Read every current version that other rules extracted last: records and links are made again, no page version is
    written. Safe to kill and repeat: what was read again is not stale any more. Raises CrawlInProgress.
    """
    contract = loaded.contract
    source_id = sync_source(database, loaded)
    reader = PageReader(contract, None)
    totals = dict.fromkeys(
        ("re_extracted", "skipped", "records_added", "records_changed", "records_missing", "new_urls"), 0
    )
    first = pages.stale(database, source_id, reader.extractor_version, None, _BATCH)
    if first:
        row = hold_for_re_extraction(database, source_id, contract, run_id)
        _read_all(database, contract, reader, row, first, totals, on_progress)

        def finish(connection: sa.Connection) -> None:
            apply_removals(connection, source_id, row.crawl_id, contract)
            crawls.close(connection, row.crawl_id, StopReason.FINISHED)

        database.retry(finish)
    records = database.retry(
        lambda connection: connection.execute(
            sa.text("SELECT count(*) FROM records WHERE source_id = :s AND gone_at IS NULL"), {"s": source_id}
        ).scalar_one()
    )
    return ReExtractReport(source=contract.source, records=records, **totals)


def _read_all(
    database: Database,
    contract: Contract,
    reader: PageReader,
    row: CrawlRow,
    batch: list[StoredPage],
    totals: dict[str, int],
    on_progress: Callable[[int], None],
) -> None:
    canonicalizer = Canonicalizer(contract.urls)
    while batch:
        if not database.retry(lambda connection: crawls.heartbeat(connection, row.crawl_id, row.holder.run_id)):
            raise CrawlInProgress(row.source, "crawl", str(row.crawl_id), "it took this re-extraction over")
        done: list[ReExtracted] = []
        for stored in batch:
            page = canonicalizer.page_url(stored.url)
            if isinstance(page, UrlRefusal):
                totals["skipped"] += 1
                continue
            reading = reader.read(stored.body, stored.content_type, stored.url, page, _NO_LEASE, stored.depth)
            is_kept = reading.verdict is not None
            totals["skipped"] += is_kept
            done.append(
                ReExtracted(
                    key=stored.key,
                    version_id=stored.version_id,
                    extractor_version=reader.extractor_version,
                    content_hash=reading.content_hash,
                    records=None if is_kept else reading.records,
                )
            )
            if reading.links:
                totals["new_urls"] += sources.discover(
                    database,
                    row.source_id,
                    [link.page for link in reading.links],
                    depth=stored.depth + 1,
                    found_on=[stored.key] * len(reading.links),
                )
        for name, count in pages.store_extractions(
            database, row.source_id, row.crawl_id, row.holder.run_id, done
        ).items():
            totals[name] += count
        totals["re_extracted"] += len(done)
        on_progress(totals["re_extracted"])
        batch = pages.stale(database, row.source_id, reader.extractor_version, batch[-1].key, _BATCH)

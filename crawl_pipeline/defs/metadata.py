"""What a run says of itself: the metadata of its materializations and its lines in the log.

Values are plain numbers where the UI can plot them; a preview never reads more than a few rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import dagster as dg

from crawl_pipeline.defs import pictures
from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.outcomes import StopReason, UrlState
from crawl_pipeline.pipeline.crawl import CrawlReport, OpenedCrawl
from crawl_pipeline.pipeline.re_extract import ReExtractReport
from crawl_pipeline.pipeline.supervisor import Progress
from crawl_pipeline.storage import reports
from crawl_pipeline.storage.crawl_history import crawl_history
from crawl_pipeline.storage.database import Database

Metadata = dict[str, dg.MetadataValue[Any]]

PREVIEW_ROWS = 10
PREVIEW_TYPE = "(type)"  # no field has such a name
PREVIEW_CELL = 80  # characters


def _columns(**described: str) -> dict[str, dg.TableSchema]:
    columns = [dg.TableColumn(name, type_, description=text) for name, (type_, text) in _typed(described)]
    return {"dagster/column_schema": dg.TableSchema(columns=columns)}


def _typed(described: Mapping[str, str]) -> list[tuple[str, tuple[str, str]]]:
    parts = ((name, text.split(": ", 1)) for name, text in described.items())
    return [(name, (type_, text)) for name, (type_, text) in parts]


PAGE_VERSIONS = _columns(
    version_id="bigint: Identifies the version",
    url_key="uuid: The page: first 16 bytes of SHA-256 of its canonical URL",
    version_no="int: 1, 2, … for each page",
    seen_at="timestamptz: When it was fetched",
    crawl_id="uuid: The crawl that fetched it",
    body_hash="bytea: SHA-256 of the body, which is stored under it",
    content_hash="bytea: SHA-256 of the page's meaning; a new version has a new one",
    title="text: The page's title",
    markdown="text: The main content as Markdown",
)
RECORDS = _columns(
    record_id="uuid: First 16 bytes of SHA-256 of source, type and natural key",
    record_type="text: The contract's record type",
    record_key="text: The natural key, as JSON",
    data="jsonb: The declared fields",
    first_seen_at="timestamptz: When a page first yielded it",
    last_changed_at="timestamptz: When its data last changed",
    missing_since="timestamptz: Since when no page yields it; removed or held at the end of a crawl",
)


_PAGES_QUERY = """SELECT u.url, v.title, v.version_no, v.seen_at, v.markdown
  FROM urls u JOIN sources s USING (source_id) JOIN page_versions v USING (version_id)
 WHERE s.source = '{source}' ORDER BY v.seen_at DESC LIMIT 100"""
_RECORDS_QUERY = """SELECT r.record_type, r.record_key, r.data, r.last_changed_at, u.url
  FROM records r JOIN sources s USING (source_id) JOIN urls u USING (source_id, url_key)
 WHERE s.source = '{source}' AND r.gone_at IS NULL ORDER BY r.last_changed_at DESC LIMIT 100"""
RECORDS_LINEAGE = dg.MetadataValue.column_lineage(
    dg.TableColumnLineage(
        {
            column: [dg.TableColumnDep("page_versions", source) for source in found_in]
            for column, found_in in {
                "record_key": ("body_hash",),
                "data": ("body_hash",),
                "first_seen_at": ("seen_at",),
                "last_changed_at": ("seen_at", "content_hash"),
            }.items()
        }
    )
)


def of_crawl(database: Database, crawl: OpenedCrawl, report: CrawlReport) -> Metadata:
    """The metadata of `page_versions` after a crawl, with a picture of it."""
    urls = {f"urls {state}": dg.MetadataValue.int(report.urls.get(state, 0)) for state in UrlState}
    described: dict[str, dg.MetadataValue[Any]] = {
        "dagster/row_count": dg.MetadataValue.int(report.page_versions),
        "crawl": dg.MetadataValue.text(str(report.crawl_id)),
        "stop reason": dg.MetadataValue.text(_ending(report)),
        "versions added": dg.MetadataValue.int(report.versions_added),
        "records added": dg.MetadataValue.int(report.records_added),
        "records changed": dg.MetadataValue.int(report.records_changed),
        "requests": dg.MetadataValue.int(report.requests),
        "other requests": dg.MetadataValue.int(report.other_requests),
        "pages per second": dg.MetadataValue.float(round(report.pages_per_second, 2)),
        "elapsed seconds": dg.MetadataValue.float(round(report.elapsed, 2)),
        "new urls": dg.MetadataValue.int(report.new_urls),
        "urls over max_urls": dg.MetadataValue.int(report.over_max_urls),
        "crawl traps": dg.MetadataValue.int(report.traps),
        **urls,
    }
    if report.records:
        described["requests per stored record"] = dg.MetadataValue.float(round(report.requests / report.records, 3))
    if report.next_due_at is not None:
        described["next due"] = dg.MetadataValue.timestamp(report.next_due_at)
    if report.holds:
        described["held removals"] = dg.MetadataValue.md(_held(report))
    history = crawl_history(database, report.crawl_id, crawl.opened_at)
    if history is not None:
        drawn = {
            "picture": dg.MetadataValue.md(pictures.picture(history)),
            "answers by status": dg.MetadataValue.md(pictures.statuses(history)),
            "answer times": dg.MetadataValue.md(pictures.answer_times(history)),
        }
        described = {**drawn, **described}
    return {**described, **of_source(database, crawl.source, _PAGES_QUERY)}


def of_source(database: Database, source: str, query: str) -> Metadata:
    """Whose data it is, where its contract lies, and a query to copy."""
    with reports.snapshot(database) as connection:
        known = reports.find_source(connection, source)
    assert known is not None
    contract = Contract.from_json(known.contract)
    described: dict[str, dg.MetadataValue[Any]] = {"query": dg.MetadataValue.md(_as_sql(query, source))}
    if known.contract_file is not None:
        described["contract"] = dg.MetadataValue.path(known.contract_file)
    if contract.owner is not None:
        described["owner"] = dg.MetadataValue.text(contract.owner)
    if contract.description:
        described["source"] = dg.MetadataValue.text(contract.description)
    return described


def _as_sql(query: str, source: str) -> str:
    return f"```sql\n{query.format(source=source)}\n```"


def of_records(database: Database, report: ReExtractReport) -> Metadata:
    """The metadata of `records`, with a preview of the first rows by natural key."""
    return {
        **of_source(database, report.source, _RECORDS_QUERY),
        "dagster/column_lineage": RECORDS_LINEAGE,
        "dagster/row_count": dg.MetadataValue.int(report.records),
        "versions re-extracted": dg.MetadataValue.int(report.re_extracted),
        "records added by re-extraction": dg.MetadataValue.int(report.records_added),
        "records changed by re-extraction": dg.MetadataValue.int(report.records_changed),
        "versions that today's rules reject": dg.MetadataValue.int(report.skipped),
        "records missing after re-extraction": dg.MetadataValue.int(report.records_missing),
        "new urls": dg.MetadataValue.int(report.new_urls),
        "preview": preview(database, report.source),
    }


def preview(database: Database, source: str) -> dg.TableMetadataValue:
    """The first few current records of a source as a table: their type, then the columns of `records_frame`."""
    from crawl_pipeline.storage.frames import record_types, records_frame  # pandas takes a while to import

    rows: list[dict[str, object]] = []
    for one in record_types(database, source):
        frame = records_frame(database, source, one, limit=PREVIEW_ROWS - len(rows)).astype("object")
        frame.insert(0, PREVIEW_TYPE, one)
        rows += [{str(name): row[name] for name in row} for row in frame.where(frame.notna(), None).to_dict("records")]
        if len(rows) >= PREVIEW_ROWS:
            break
    names = list(dict.fromkeys(name for row in rows for name in row)) or [PREVIEW_TYPE]
    table = [dg.TableRecord({name: _cell(row.get(name)) for name in names}) for row in rows]
    return dg.MetadataValue.table(
        records=table, schema=dg.TableSchema(columns=[dg.TableColumn(name) for name in names])
    )


def opening_line(crawl: OpenedCrawl) -> str:
    """What `open_crawl` did, in one line."""
    verb = "resumed" if crawl.is_resumed else "opened"
    if not crawl.has_due:
        return f"crawl {crawl.crawl_id} of {crawl.source} {verb}: {_nothing_due(crawl.next_due_at)}"
    return (
        f"crawl {crawl.crawl_id} of {crawl.source} {verb}: {crawl.workers} workers, "
        f"until {crawl.deadline_at:%Y-%m-%d %H:%M:%S %Z} at the latest"
    )


def progress_line(progress: Progress) -> str:
    """How far the crawl is, in one line."""
    queued = progress.urls.get(UrlState.QUEUED, 0)
    active = progress.urls.get(UrlState.ACTIVE, 0)
    return (
        f"{progress.done} of {progress.known} pages done, {progress.pages_per_second:.1f} pages/s, {queued} queued, "
        f"{active} active, {progress.rejected} rejected, {progress.quarantined} quarantined, "
        f"{progress.retried} retried, {progress.workers_alive} workers, {progress.elapsed:.0f} s"
    )


def closing_line(report: CrawlReport) -> str:
    """What the crawl did, in one line."""
    return (
        f"crawl {report.crawl_id} of {report.source} closed: {_ending(report)}; {report.requests} requests, "
        f"{report.versions_added} versions added, {report.records_added} records added, "
        f"{report.records_changed} changed, {report.records} stored"
    )


def _ending(report: CrawlReport) -> str:
    if report.stop_reason == StopReason.NOTHING_DUE:
        return f"{report.stop_reason}: {_nothing_due(report.next_due_at)}"
    return report.stop_reason


def _held(report: CrawlReport) -> str:
    lines = [f"- {hold.missing} of {hold.total} records of type {hold.record_type}" for hold in report.holds]
    return "\n".join([*lines, "", f"`crawl-pipeline quarantine list {report.source}` shows them."])


def _nothing_due(next_due_at: datetime | None) -> str:
    if next_due_at is None:
        return "0 due, nothing will be due by itself"
    return f"0 due, next at {next_due_at:%Y-%m-%d %H:%M:%S %Z}"


def _cell(value: object) -> str | int | float | bool | None:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)
    return text if len(text) <= PREVIEW_CELL else text[: PREVIEW_CELL - 1] + "…"

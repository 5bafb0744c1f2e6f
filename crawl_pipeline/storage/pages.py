"""Stored pages: bodies, and what re-extraction reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa
import zstandard

from crawl_pipeline.domain.pages import CrawlId, UrlKey
from crawl_pipeline.domain.records import Record
from crawl_pipeline.storage import crawls
from crawl_pipeline.storage.arguments import call, columns
from crawl_pipeline.storage.database import Database, long_statements


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPage:
    """The current version of a page, with its body as received. `final_url`: where it came from, after redirects."""

    key: UrlKey
    url: str
    final_url: str
    depth: int
    version_id: int
    body: bytes
    content_type: str | None
    robots_tags: tuple[str, ...]  # X-Robots-Tag of the last answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReExtracted:
    """What today's rules make of a stored version. `records` None: they reject it; leave its records as they are."""

    key: UrlKey
    version_id: int
    extractor_version: str
    content_hash: bytes
    new_urls: int
    records: tuple[Record, ...] | None


def decompress(body: bytes, size_bytes: int) -> bytes:
    """A stored body as it was received."""
    return zstandard.ZstdDecompressor().decompress(body, max_output_size=size_bytes or 1)


def body(database: Database, version_id: int) -> tuple[bytes, str | None, str] | None:
    """The bytes, content type and final URL (what its links are relative to) of a page version; None when removed."""

    def work(connection: sa.Connection) -> tuple[bytes, str | None, str] | None:
        row = connection.execute(
            sa.text("""
                SELECT b.body, b.size_bytes, v.content_type, v.final_url
                  FROM page_versions v JOIN bodies b USING (body_hash)
                 WHERE v.version_id = :v
            """),
            {"v": version_id},
        ).one_or_none()
        if row is None:
            return None
        return decompress(bytes(row.body), row.size_bytes), row.content_type, row.final_url

    return database.retry(work)


def stale(
    database: Database, source_id: int, extractor_version: str, after: UUID | None, limit: int
) -> list[StoredPage]:
    """Current versions that were last extracted by other rules, in url_key order, `limit` at a time."""

    def work(connection: sa.Connection) -> list[StoredPage]:
        with long_statements(connection):  # where nothing is stale it looks at every page
            rows = connection.execute(
                sa.text("""
                    SELECT u.url_key, u.url, u.depth, u.version_id, u.robots_tags, v.final_url, v.content_type,
                           b.body, b.size_bytes
                      FROM urls u JOIN extractions e USING (version_id) JOIN page_versions v USING (version_id)
                      JOIN bodies b USING (body_hash)
                     WHERE u.source_id = :s AND u.url_key > :after
                       AND e.extractor_version <> :x AND u.outcome IN ('accepted', 'unchanged')
                     ORDER BY u.url_key LIMIT :n
                """),
                {"s": source_id, "x": extractor_version, "after": after or UUID(int=0), "n": limit},
            ).all()
        return [
            StoredPage(
                key=UrlKey(row.url_key),
                url=row.url,
                final_url=row.final_url,
                depth=row.depth,
                version_id=row.version_id,
                body=decompress(bytes(row.body), row.size_bytes),
                content_type=row.content_type,
                robots_tags=tuple((row.robots_tags or "").splitlines()),
            )
            for row in rows
        ]

    return database.retry(work)


def store_extractions(
    database: Database, source_id: int, crawl_id: CrawlId, run_id: str, pages: Sequence[ReExtracted]
) -> None:
    """Store what re-extraction found, in one transaction, while the run still holds the source.

    The crawl's counters say how much. Writes nothing when another run took over.
    """
    numbered = list(enumerate(pages, start=1))
    kept = [(n, p.key, p.version_id) for n, p in numbered if p.records is not None]
    records = [
        (n, r.record_id, r.record_type, r.key, r.data, r.data_hash) for n, p in numbered for r in p.records or ()
    ]

    def work(connection: sa.Connection) -> None:
        held = connection.execute(
            sa.text(
                "SELECT clock_timestamp() FROM crawls WHERE crawl_id = :c AND run_id = :r AND state = 'open' FOR SHARE"
            ),
            {"c": crawl_id, "r": run_id},
        ).one_or_none()
        if held is None:
            return
        connection.execute(
            sa.text("""
                UPDATE extractions e SET extractor_version = x.extractor, content_hash = x.hash, extracted_at = :now
                  FROM unnest(CAST(:v AS bigint[]), CAST(:x AS text[]), CAST(:h AS bytea[]))
                       AS x(version_id, extractor, hash)
                 WHERE e.version_id = x.version_id
            """),
            {
                "v": [p.version_id for p in pages],
                "x": [p.extractor_version for p in pages],
                "h": [p.content_hash for p in pages],
                "now": held[0],
            },
        )
        arguments = [source_id, crawl_id, held[0], *columns(3, kept), *columns(6, records)]
        row = connection.exec_driver_sql(call("merge_records", 12), tuple(arguments)).one()
        counts = {
            "re_extracted": len(pages),
            "skipped": len(pages) - len(kept),
            "records_added": row.added,
            "records_changed": row.changed,
            "records_missing": row.missing,
            "new_urls": sum(page.new_urls for page in pages),
        }
        crawls.add_counts(connection, source_id, crawl_id, counts)

    database.retry(work)


def pass_over(database: Database, source_id: int, crawl_id: CrawlId, key: UrlKey, extractor_version: str) -> None:
    """Today's rules cannot read a page's current version: it keeps its records and is not stale any more."""

    def work(connection: sa.Connection) -> None:
        connection.execute(
            sa.text("""
                UPDATE extractions e SET extractor_version = :x, content_hash = '', extracted_at = clock_timestamp()
                  FROM urls u WHERE u.source_id = :s AND u.url_key = :k AND e.version_id = u.version_id
            """),
            {"x": extractor_version, "s": source_id, "k": key},
        )
        crawls.add_counts(connection, source_id, crawl_id, {"re_extracted": 1, "skipped": 1})

    database.retry(work)

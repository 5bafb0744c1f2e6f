"""Current records and pages as streams of rows: a server-side cursor, one moment's state, bounded memory.

Owns which columns there are, their kinds and their order; how a row is written down is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from uuid import UUID

import sqlalchemy as sa

from crawl_pipeline.storage import crawls
from crawl_pipeline.storage.database import driver_connection

if TYPE_CHECKING:
    from crawl_pipeline.domain.contract import Contract

FETCHED_AT_ONCE = 2000  # rows

Row = tuple[Any, ...]


class Kind(StrEnum):
    """What a column holds. Every kind may be null."""

    TEXT = "text"
    INTEGER = "integer"
    FLOAT = "float"
    DECIMAL = "decimal"  # as stored: text with all its digits
    BOOLEAN = "boolean"
    DATE = "date"  # as stored: ISO 8601
    TIME = "time"  # an aware datetime, UTC
    JSON = "json"  # anything that JSON can hold


KIND_OF_FIELD_TYPE: Mapping[str, Kind] = {
    "str": Kind.TEXT,
    "url": Kind.TEXT,
    "int": Kind.INTEGER,
    "float": Kind.FLOAT,
    "decimal": Kind.DECIMAL,
    "bool": Kind.BOOLEAN,
    "date": Kind.DATE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of an export. `is_wide`: a decimal with more than 29 digits before or 9 behind the point."""

    name: str
    kind: Kind
    is_wide: bool = False


_RECORD_COLUMNS = (
    Column(name="record_id", kind=Kind.TEXT),
    Column(name="url", kind=Kind.TEXT),
    Column(name="first_seen_at", kind=Kind.TIME),
    Column(name="last_changed_at", kind=Kind.TIME),
    Column(name="missing_since", kind=Kind.TIME),
)
PAGE_COLUMNS = (
    Column(name="url", kind=Kind.TEXT),
    Column(name="state", kind=Kind.TEXT),
    Column(name="title", kind=Kind.TEXT),
    Column(name="markdown", kind=Kind.TEXT),
    Column(name="version", kind=Kind.INTEGER),
    Column(name="seen_at", kind=Kind.TIME),
    Column(name="last_fetched_at", kind=Kind.TIME),
    Column(name="accepted_at", kind=Kind.TIME),
    Column(name="content_type", kind=Kind.TEXT),
    Column(name="status", kind=Kind.INTEGER),
    Column(name="noindex", kind=Kind.BOOLEAN),
)


def record_columns(fields: Sequence[Column]) -> tuple[Column, ...]:
    """The columns of an export of records: the declared fields first, in their order, then ours.

    Where a field has the name of one of ours, ours is called `crawl_…` (a field keeps its name).
    """
    taken = {column.name for column in fields}
    ours: list[Column] = []
    for column in _RECORD_COLUMNS:
        name = column.name
        while name in taken:
            name = f"crawl_{name}"
        taken.add(name)
        ours.append(Column(name=name, kind=column.kind))
    return (*fields, *ours)


def record_types(connection: sa.Connection, source_id: int) -> list[str]:
    """The record types that a source has current records of, found by one index probe a type."""
    found: list[str] = []
    while True:
        row = connection.execute(
            sa.text("""
                SELECT record_type FROM records WHERE source_id = :s AND record_type > :after AND gone_at IS NULL
                 ORDER BY record_type LIMIT 1
            """),
            {"s": source_id, "after": found[-1] if found else ""},
        ).one_or_none()
        if row is None:
            return found
        found.append(row.record_type)


def all_record_types(connection: sa.Connection, source_id: int, contract: Contract) -> list[str]:
    """The record types that a contract declares, then those that only stored records still have."""
    declared = [rule.type for rule in contract.records]
    return [*declared, *(name for name in record_types(connection, source_id) if name not in declared)]


def fields_of(connection: sa.Connection, source_id: int, contract: Contract, record_type: str) -> list[Column]:
    """The declared fields; of a type that declares none (a Python extractor, a type of the past), those in use."""
    rule = next((rule for rule in contract.records if rule.type == record_type), None)
    if rule is not None and rule.fields:
        return [
            Column(name=name, kind=KIND_OF_FIELD_TYPE.get(field.type, Kind.JSON)) for name, field in rule.fields.items()
        ]
    return fields_in_use(connection, source_id, record_type, rule.key if rule is not None else ())


def fields_in_use(connection: sa.Connection, source_id: int, record_type: str, first: Sequence[str]) -> list[Column]:
    """The fields that the stored records have, for a type whose fields no contract declares: `first`, then by name.

    A field's kind is the one that fits every value; where none does, it is JSON.
    """
    rows = connection.execute(
        sa.text("""
            SELECT f.key, bool_and(f.type = 'string') AS is_text, bool_and(f.type = 'boolean') AS is_boolean,
                   bool_and(f.type = 'number') AS is_number,
                   bool_and(CASE WHEN f.type = 'number' THEN scale(CAST(f.value AS numeric)) = 0
                             AND abs(CAST(f.value AS numeric)) < 9223372036854775808 END) AS is_integer
              FROM records r CROSS JOIN LATERAL (
                SELECT e.key, e.value, jsonb_typeof(e.value) AS type FROM jsonb_each(r.data) e) f
             WHERE r.source_id = :s AND r.record_type = :t AND r.gone_at IS NULL AND f.type <> 'null'
             GROUP BY 1
        """),
        {"s": source_id, "t": record_type},
    ).all()
    kinds = {row.key: _kind_in_use(row) for row in rows}
    names = [*first, *sorted(set(kinds) - set(first))]
    return [Column(name=name, kind=kinds.get(name, Kind.JSON)) for name in names]


def _kind_in_use(row: Any) -> Kind:
    if row.is_text:
        return Kind.TEXT
    if row.is_boolean:
        return Kind.BOOLEAN
    if row.is_number:
        return Kind.INTEGER if row.is_integer else Kind.FLOAT
    return Kind.JSON


def with_decimal_widths(
    connection: sa.Connection, source_id: int, record_type: str, columns: Sequence[Column]
) -> tuple[Column, ...]:
    """The columns, with decimals marked wide where a current record's value needs it."""
    statement = sa.text("""
        SELECT coalesce(bool_or(scale(n) > 9 OR abs(n) >= 1e29), false) FROM (
          SELECT CASE WHEN r.data ->> :name ~ '^[-+]?[0-9]{1,200}([.][0-9]{0,200})?$'
                      THEN CAST(r.data ->> :name AS numeric) END AS n
            FROM records r WHERE r.source_id = :s AND r.record_type = :t AND r.gone_at IS NULL) x
    """)
    wide = {
        column.name
        for column in columns
        if column.kind is Kind.DECIMAL
        and connection.execute(statement, {"s": source_id, "t": record_type, "name": column.name}).scalar_one()
    }
    return tuple(replace(column, is_wide=column.name in wide) for column in columns)


def count_records(connection: sa.Connection, source_id: int, record_type: str) -> int:
    """How many current records of a type there are."""
    statement = sa.text("SELECT count(*) FROM records WHERE source_id = :s AND record_type = :t AND gone_at IS NULL")
    return int(connection.execute(statement, {"s": source_id, "t": record_type}).scalar_one())


def records(
    connection: sa.Connection,
    source_id: int,
    record_type: str,
    columns: Sequence[Column],
    limit: int | None = None,
) -> Iterator[Row]:
    """The current records of a type as rows of `record_columns`, in the order of their natural keys."""
    names = [column.name for column in columns[: len(columns) - len(_RECORD_COLUMNS)]]
    # Byte order, whatever the database's collation: the same records always come in the same order.
    query = """
        SELECT r.data, CAST(r.record_id AS text), u.url, r.first_seen_at, r.last_changed_at, r.missing_since
          FROM records r LEFT JOIN urls u USING (source_id, url_key)
         WHERE r.source_id = %(source_id)s AND r.record_type = %(record_type)s AND r.gone_at IS NULL
         ORDER BY r.record_key COLLATE "C" LIMIT %(limit)s
    """
    parameters = {"source_id": source_id, "record_type": record_type, "limit": limit}
    for data, *ours in _stream(connection, query, parameters):
        yield (*[data.get(name) for name in names], *ours)


_LAST_FETCH = """
    LEFT JOIN LATERAL (SELECT f.status FROM fetches f WHERE f.source_id = u.source_id AND f.url_key = u.url_key
                        ORDER BY f.started_at DESC LIMIT 1) f ON true
"""


def count_pages(connection: sa.Connection, source_id: int) -> int:
    """How many URLs of a source have a page version."""
    statement = sa.text("SELECT count(*) FROM urls WHERE source_id = :s AND version_id IS NOT NULL AND NOT is_sitemap")
    return int(connection.execute(statement, {"s": source_id}).scalar_one())


def pages(connection: sa.Connection, source_id: int, limit: int | None = None) -> Iterator[Row]:
    """The current pages of a source as rows of `PAGE_COLUMNS`, by URL: every URL that ever met the contract.

    `state` is the URL's now (a page that is gone since is `rejected`), the content that of its newest version.
    """
    # OFFSET 0 keeps the sort narrow: the texts are joined to rows that are in order already.
    query = f"""
        SELECT u.url, u.state, v.title, v.markdown, v.version_no, v.seen_at, u.last_fetched_at, u.accepted_at,
               v.content_type, f.status, u.is_noindex
          FROM (SELECT source_id, url_key, url, state, version_id, last_fetched_at, accepted_at, is_noindex FROM urls
                 WHERE source_id = %(source_id)s AND version_id IS NOT NULL AND NOT is_sitemap
                 ORDER BY url COLLATE "C", url_key LIMIT %(limit)s) u
          CROSS JOIN LATERAL (SELECT * FROM page_versions v WHERE v.version_id = u.version_id OFFSET 0) v
          {_LAST_FETCH}
         ORDER BY u.url COLLATE "C", u.url_key
    """
    return _stream(connection, query, {"source_id": source_id, "limit": limit})


_SEEN_BY_CRAWL = """
    SELECT DISTINCT ON (url_key) source_id, url_key, started_at, status, outcome FROM fetches
     WHERE source_id = %(source_id)s AND crawl_id = %(crawl_id)s AND outcome IN ('accepted', 'unchanged')
       AND started_at BETWEEN CAST(%(opened_at)s AS timestamptz) - interval '1 hour'
                          AND coalesce(CAST(%(closed_at)s AS timestamptz), now()) + interval '1 hour'
     ORDER BY url_key, started_at DESC
"""


def count_crawled_pages(connection: sa.Connection, crawl: crawls.CrawlRow) -> int:
    """How many pages a crawl accepted or found unchanged."""
    query = f"""
        SELECT count(*) FROM ({_SEEN_BY_CRAWL}) s JOIN urls u USING (source_id, url_key) WHERE NOT u.is_sitemap
    """
    cursor = driver_connection(connection).execute(query.encode(), _of_crawl(crawl))
    return int((cursor.fetchone() or (0,))[0])


def crawled_pages(connection: sa.Connection, crawl: crawls.CrawlRow, limit: int | None = None) -> Iterator[Row]:
    """The pages that a crawl accepted or found unchanged, as rows of `PAGE_COLUMNS`, by URL.

    `state` is what the crawl made of the page; the content is that of the version which was current when it ended.
    """
    query = f"""
        SELECT u.url, u.outcome, v.title, v.markdown, v.version_no, v.seen_at, u.started_at, u.started_at,
               v.content_type, u.status, u.is_noindex
          FROM (SELECT x.url, x.is_noindex, s.* FROM ({_SEEN_BY_CRAWL}) s JOIN urls x USING (source_id, url_key)
                 WHERE NOT x.is_sitemap ORDER BY x.url COLLATE "C", s.url_key LIMIT %(limit)s) u
          CROSS JOIN LATERAL (
            SELECT * FROM page_versions v WHERE v.source_id = u.source_id AND v.url_key = u.url_key
               AND v.seen_at <= coalesce(CAST(%(closed_at)s AS timestamptz), 'infinity')
             ORDER BY v.version_no DESC LIMIT 1) v
         ORDER BY u.url COLLATE "C", u.url_key
    """
    return _stream(connection, query, {**_of_crawl(crawl), "limit": limit})


def _of_crawl(crawl: crawls.CrawlRow) -> dict[str, Any]:
    return {
        "source_id": crawl.source_id,
        "crawl_id": UUID(str(crawl.crawl_id)),
        "opened_at": crawl.opened_at,
        "closed_at": crawl.closed_at,
    }


def _stream(connection: sa.Connection, query: str, parameters: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of a query through a server-side cursor of the connection's transaction."""
    with driver_connection(connection).cursor(name="export") as cursor:
        cursor.itersize = FETCHED_AT_ONCE
        cursor.execute(query.encode(), parameters)
        yield from cursor

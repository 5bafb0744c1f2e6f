"""`crawl-pipeline pages`: the pages of a source, or what one crawl saw of them."""

from __future__ import annotations

from pathlib import Path

import click
import sqlalchemy as sa

from crawl_pipeline.cli.export import Export, deliver, export_options
from crawl_pipeline.cli.files import chosen_format
from crawl_pipeline.cli.session import Session, opened
from crawl_pipeline.storage import exports, reports

# The Markdown is for files: a table has no room for it.
_SHOWN = ("url", "state", "title", "version", "last_fetched_at", "accepted_at", "status")


@click.command()
@click.argument("source", metavar="SOURCE or CRAWL_ID")
@export_options
def pages(source: str, asked_format: str | None, output: Path | None, limit: int | None) -> None:
    """Show or export pages: URL, state, title, Markdown, version and times.

    Of a source: every URL that ever met the contract, with its newest version. Of a crawl: the pages that it
    accepted or found unchanged, with the version of then. Sorted by URL.
    """
    chosen = chosen_format(asked_format, output)
    with opened() as session, reports.snapshot(session.database) as connection:
        deliver(_export(session, connection, source), chosen, output, limit)


def _export(session: Session, connection: sa.Connection, name: str) -> Export:
    crawl_id = reports.crawl_id_of(name)
    if crawl_id is not None:
        crawl = reports.find_crawl(connection, crawl_id)
        return Export(
            thing="page",
            columns=exports.PAGE_COLUMNS,
            rows=lambda limit: exports.crawled_pages(connection, crawl, limit),
            count=lambda: exports.count_crawled_pages(connection, crawl),
            shown=_SHOWN,
        )
    known = session.source(connection, name)
    source_id = known.source_id if known is not None else -1  # never crawled: it has no rows
    return Export(
        thing="page",
        columns=exports.PAGE_COLUMNS,
        rows=lambda limit: exports.pages(connection, source_id, limit),
        count=lambda: exports.count_pages(connection, source_id),
        shown=_SHOWN,
    )

"""What bodies do to a crawl: wrong types, lies about length, bombs. Judged by what is stored, and from the site."""

from __future__ import annotations

import pytest

from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests.crawling import contract, crawl, rows, states
from crawl_pipeline_tests.site import NOT_FOUND, Answer, Site, page

CLIENTS = pytest.mark.parametrize("client", ["libcurl", "requests"])


@CLIENTS
def test_bodies_are_read_as_what_they_are(database: Database, client: str) -> None:
    """Guard: `Reception._sniff`; without it the PDF's link is followed and the honest pages are refused."""
    link = b'<a href="/from-no-html">x</a>'
    html = page("fine", "/from-html").body
    answers = {
        "/": page("start", "/report", "/archive", "/bytes", "/download", "/plain"),
        "/report": Answer(body=b"%PDF-1.7\n" + link),
        "/archive": Answer(body=b"PK\x03\x04" + link, kind="text/html"),
        "/bytes": Answer(body=html, kind="application/octet-stream"),
        "/download": Answer(body=b"\x01\x02" + link, kind="application/octet-stream"),
        "/plain": Answer(body=html, kind="text/plain"),
        "/from-html": page("end"),
    }
    with Site(lambda asked: answers.get(asked.path, NOT_FOUND)) as site:
        crawl(database, contract(site, fetch={"client": client}))
    assert states(database) == {
        "/": "accepted",
        "/report": "rejected content_type",
        "/archive": "rejected content_type",
        "/bytes": "accepted",
        "/download": "rejected content_type",
        "/plain": "rejected content_type",
        "/from-html": "accepted",
    }
    details = {
        row.url.rpartition("/")[2]: row.detail for row in rows(database, "SELECT * FROM fetches WHERE detail <> ''")
    }
    assert details == {
        "report": "Content-Type is text/html, but the body is a PDF document",
        "archive": "Content-Type is text/html, but the body is a ZIP archive",
        "download": "Content-Type is application/octet-stream: not in fetch.types, "
        "and the body does not begin as HTML does",
        "plain": "Content-Type is text/plain: not in fetch.types",
    }

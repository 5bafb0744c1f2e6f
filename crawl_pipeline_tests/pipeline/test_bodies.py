"""What bodies do to a crawl: wrong types, lies about length, bombs. Judged by what is stored, and from the site."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import psutil
import pytest

from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests.crawling import contract, crawl, load, rows, start, states
from crawl_pipeline_tests.fetching.vicious_site import ViciousSite
from crawl_pipeline_tests.site import NOT_FOUND, Answer, Asked, Site, page

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


# What each vice leaves behind. Only a complete answer is judged; what was cut short is tried again.
LEFT_BEHIND = {
    "/lies-about-length-short": "queued truncated",
    "/chunked-without-end": "queued truncated",
    "/drops-midway": "queued truncated",
    "/cut-gzip": "queued truncated",
    "/slow-drip": "queued timeout",
    "/headers-never-end": "queued protocol",
    "/chunked-forever": "rejected too_large",
    "/endless": "rejected too_large",
    "/gzip-bomb": "rejected too_large",
}
HEAVY = {
    "/nested": b"<title>n</title>" + b"<div>" * 200_000 + b"deep words",
    "/attributes": b"<title>a</title><p " + b" ".join(b"a%d=1" % n for n in range(200_000)) + b">wide words",
    "/line": b"<title>l</title><p>" + b"word " * 1_990_000,
}
MOST_MEMORY = 2_000_000_000  # bytes of one worker; an idle one has 100 MB


@CLIENTS
@pytest.mark.timeout(300)
def test_vicious_bodies_leave_no_version_and_keep_no_other_host_waiting(database: Database, client: str) -> None:
    """Guards: `_client_verdict` (truncated), `_body_limit`, `parsing.hostile`, leases renewed while a body drips."""
    ordinary = [f"/page/{n}" for n in range(20)]

    def answer(asked: Asked) -> Answer:
        if asked.path == "/":
            return page("start", *HEAVY, *ordinary)
        return Answer(body=HEAVY[asked.path]) if asked.path in HEAVY else page(asked.path)

    with ViciousSite() as vicious, Site(answer) as good:
        seeds = [vicious.url(path) for path in LEFT_BEHIND] + [good.url + "/"]
        loaded = contract(
            good,
            seeds=None,
            scope={"hosts": [f"127.0.0.1:{vicious.port}", *good.authorities]},
            fetch={"client": client, "timeout": "4s", "page_timeout": "1m"},
            limits={"max_idle": "1s"},
            politeness={"robots": "ignore"},
            accept={"soft_404": False},
        )
        loaded = load({**loaded.contract.model_dump(mode="json", exclude={"retention"}), "seeds": seeds})
        running = start(database, loaded, lease_for=timedelta(seconds=12))
        most = 0
        while running.thread.is_alive():
            for pid in running.pids():
                with suppress(psutil.Error):
                    most = max(most, psutil.Process(pid).memory_info().rss)
            running.thread.join(0.1)
        report = running.finish(within=10)
    assert {path: state for path, state in states(database).items() if path in LEFT_BEHIND} == LEFT_BEHIND
    assert {path: state for path, state in states(database).items() if path not in LEFT_BEHIND} == dict.fromkeys(
        ["/", *HEAVY, *ordinary], "accepted"
    )
    assert report.stop_reason == "deferred"
    assert len(rows(database, "SELECT 1 FROM page_versions")) == 1 + len(HEAVY) + len(ordinary)
    assert sorted(good.paths()) == sorted(["/", *HEAVY, *ordinary])  # nothing twice: every lease was kept
    assert sorted(arrival.target for arrival in vicious.arrivals) == sorted(LEFT_BEHIND)
    retried = rows(database, "SELECT tries FROM urls WHERE state = 'queued' AND due_at > now() - interval '1 minute'")
    assert [row.tries for row in retried] == [1] * 6
    assert 0 < most < MOST_MEMORY

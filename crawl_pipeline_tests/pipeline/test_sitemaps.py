"""Sitemaps over whole crawls: what they add, what they make due, what they never do."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests.crawling import contract, crawl, rows, start, states
from crawl_pipeline_tests.site import NOT_FOUND, Answer, Asked, Site, page
from crawl_pipeline_tests.storage.invariants import broken_invariants

RECORD = {"type": "item", "key": ["title"], "match": ["/p/**"], "fields": {"title": {"css": "h1", "required": True}}}


def urlset(*locs: str, lastmod: datetime | str | None = None) -> Answer:
    when = lastmod.isoformat() if isinstance(lastmod, datetime) else lastmod
    tail = f"<lastmod>{when}</lastmod>" if when else ""
    entries = "".join(f"<url><loc>{loc}</loc>{tail}</url>" for loc in locs)
    return Answer(body=f"<urlset>{entries}</urlset>", kind="application/xml")


def index(*locs: str) -> Answer:
    entries = "".join(f"<sitemap><loc>{loc}</loc></sitemap>" for loc in locs)
    return Answer(body=f"<sitemapindex>{entries}</sitemapindex>", kind="application/xml")


def site_of(special: dict[str, Answer]) -> Callable[[Asked], Answer]:
    return lambda asked: (
        special.get(asked.path) or (NOT_FOUND if asked.path.startswith("/sitemap") else page(asked.path))
    )


def age(database: Database, *, pages: timedelta, sitemaps_due: bool = True) -> None:
    """Move the source's visits into the past; its sitemaps are due now, its pages are not."""
    rows(
        database,
        "UPDATE urls SET last_fetched_at = last_fetched_at - CAST(:by AS interval) WHERE NOT is_sitemap RETURNING 1",
        by=pages,
    )
    if sitemaps_due:
        rows(database, "UPDATE urls SET due_at = now() - interval '1 s' WHERE is_sitemap RETURNING 1")
        rows(database, "UPDATE queues SET next_due_at = 'epoch' WHERE lane = 1 RETURNING 1")


def test_newer_lastmod_makes_a_page_due_in_the_same_crawl_and_lies_do_not_beat_freshness_min(
    database: Database,
) -> None:
    """Guard: `SitemapVisits.store` asks `make_changed_due` before the sitemap is completed."""
    special: dict[str, Answer] = {}
    with Site(site_of(special)) as site:
        changed, still, gone = (f"{site.url}/p/{name}" for name in ("changed", "still", "gone"))
        long_ago = datetime(2020, 1, 1, tzinfo=UTC)
        special |= {"/sitemap.xml": urlset(changed, still, gone, lastmod=long_ago), "/p/gone": NOT_FOUND}
        loaded = contract(site, ["/"], sitemaps="auto")
        crawl(database, loaded)
        crawl(database, loaded, force=True)
        assert states(database)["/p/gone"] == "rejected gone"
        del special["/p/gone"]
        mixed = urlset(changed, gone, lastmod=datetime.now(UTC)).body
        assert isinstance(mixed, str)
        special["/sitemap.xml"] = Answer(body=mixed + str(urlset(still, lastmod=long_ago).body))
        age(database, pages=timedelta(hours=2))
        asked = len(site.pages_asked)
        crawl(database, loaded)
        assert sorted(site.paths()[asked:]) == ["/p/changed", "/p/gone"]
        assert states(database)["/p/gone"] == "accepted"
        special["/sitemap.xml"] = urlset(changed, still, gone, lastmod=datetime.now(UTC) + timedelta(days=400))
        age(database, pages=timedelta(minutes=58))  # two of them were checked 58 minutes ago, less than `min`
        asked = len(site.pages_asked)
        crawl(database, loaded)
        assert site.paths()[asked:] == ["/p/still"]
    assert broken_invariants(database) == {}


def test_sitemap_that_fails_empties_or_shrinks_removes_nothing(database: Database) -> None:
    special: dict[str, Answer] = {}
    with Site(site_of(special)) as site:
        locs = [f"{site.url}/p/{n}" for n in range(5)]
        special["/sitemap.xml"] = urlset(*locs)
        loaded = contract(site, ["/"], sitemaps=[f"{site.url}/sitemap.xml"], records=[RECORD])
        assert crawl(database, loaded).records == 5
        for broken in (Answer(status=404), Answer(body=""), urlset(locs[0]), Answer(body=b"\x1f\x8b broken")):
            special["/sitemap.xml"] = broken
            report = crawl(database, loaded, force=True)
            assert (report.records, report.records_missing, report.records_gone) == (5, 0, 0)
    assert states(database) == {"/": "unchanged", **{f"/p/{n}": "unchanged" for n in range(5)}}


def test_every_kind_of_sitemap_is_read_and_nesting_and_their_number_have_an_end(database: Database) -> None:
    """Guards: `MAX_NESTING`; `MAX_SITEMAPS`; their own size limit instead of `fetch.max_bytes`."""
    special: dict[str, Answer] = {}
    with Site(site_of(special)) as site:
        url = site.url
        atom = f'<feed xmlns="http://www.w3.org/2005/Atom"><entry><link href="{url}/p/atom"/></entry></feed>'
        special |= {
            "/maps/list.txt": Answer(body=f"{url}/p/text\n{url}/p/text2\r\nnot a url", kind="text/html"),
            "/maps/rss": Answer(body=f"<rss><channel><item><link>{url}/p/rss</link></item></channel></rss>"),
            "/maps/atom": Answer(body=atom, kind="text/plain"),
            "/maps/zipped.xml": Answer(body=gzip.compress(str(urlset(f"{url}/p/gz").body).encode()), kind="text/html"),
            "/maps/twice.xml.gz": Answer(
                body=gzip.compress(str(urlset(f"{url}/p/twice").body).encode()),
                headers={"Content-Encoding": "gzip"},
                kind="application/x-gzip",
            ),
            "/maps/big.xml": Answer(body=str(urlset(f"{url}/p/big").body) + " " * 200_000),
            **{f"/maps/deep/{n}": index(f"{url}/maps/deep/{n + 1}") for n in range(9)},
        }
        maps = [url + path for path in special if not path.startswith("/maps/deep/") or path == "/maps/deep/0"]
        loaded = contract(site, ["/"], sitemaps=maps, fetch={"max_bytes": "100KB"}, scope={"exclude": ["/maps/**"]})
        crawl(database, loaded)
        rows(
            database,
            """INSERT INTO urls (source_id, url_key, host_id, url, is_sitemap, state, reason)
               SELECT source_id, gen_random_uuid(), host_id, 'http://filler/' || n, true, 'cancelled', 'scope'
                 FROM generate_series(1, 10000 - 20 - :known) n,
                      (SELECT source_id, host_id FROM urls LIMIT 1) x RETURNING 1""",
            known=rows(database, "SELECT count(*) AS n FROM urls WHERE is_sitemap")[0].n,
        )
        special["/maps/rss"] = index(*(f"{url}/maps/of-many/{n}" for n in range(100)))
        crawl(database, loaded, force=True)
    names = ("text", "text2", "rss", "atom", "gz", "twice", "big")
    assert set(states(database)) == {"/", *(f"/p/{name}" for name in names)}
    assert site_paths(site, "/maps/deep/") == [f"/maps/deep/{n}" for n in range(4)]
    assert rows(database, "SELECT count(*) AS n FROM urls WHERE is_sitemap")[0].n == 10_000


def test_traps_that_a_sitemap_names_are_refused_and_counted_as_those_of_a_page_are(database: Database) -> None:
    """Guard: `SitemapVisits` admits by the loop's own `Admission`."""
    special: dict[str, Answer] = {}
    with Site(site_of(special)) as site:
        traps = [site.url + "/p" + f"/again{n}" * 9 for n in range(7)]
        special["/sitemap.xml"] = urlset(f"{site.url}/p/well", *traps)
        report = crawl(database, contract(site, ["/"], sitemaps="auto"))
    assert (report.traps, set(states(database))) == (7, {"/", "/p/well"})


def site_paths(site: Site, prefix: str) -> list[str]:
    """Distinct paths below a prefix that were asked for."""
    return sorted({asked.path for asked in site.asked if asked.path.startswith(prefix)})


def test_sitemap_of_50_megabytes_with_50_000_urls_fits_into_a_small_worker(database: Database) -> None:
    """Guard: the scanner walks through the bytes; with a decoded copy the worker grows by as much again."""
    with Site(lambda asked: big if asked.path == "/sitemap.xml" else page(asked.path)) as site:
        filler = "<!--" + "x" * 900 + "-->"
        entries = (
            f"<url><loc>{site.url}/p/{n}</loc><lastmod>2024-01-01</lastmod>{filler}</url>" for n in range(50_000)
        )
        body = ("<urlset>" + "".join(entries) + "</urlset>").encode()
        assert 45_000_000 < len(body) < 50 * 1024 * 1024
        big = Answer(body=body, kind="application/xml")
        loaded = contract(site, ["/"], sitemaps="auto", politeness={"robots": "ignore"}, fetch={"timeout": "60s"})
        running = start(database, loaded, max_pages=3)
        most = max(_high_water_marks(running.pids, while_running=running.thread.is_alive))
        report = running.finish(within=120)
    assert report.new_urls == 50_000
    assert most < 200_000_000, f"{most:,} bytes"


def _high_water_marks(pids: Callable[[], list[int]], *, while_running: Callable[[], bool]) -> Iterator[int]:
    yield 0
    end = time.monotonic() + 120
    while while_running() and time.monotonic() < end:
        for pid in pids():
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
                continue
            lines = [line for line in status.splitlines() if line.startswith("VmHWM:")]
            if lines:
                yield int(lines[0].split()[1]) * 1024
        time.sleep(0.05)

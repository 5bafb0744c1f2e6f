"""Sitemaps, indexes and feeds to URLs; broken and hostile ones too."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawl_pipeline.parsing.sitemaps import MOST_BYTES, SitemapContents, SitemapUrl, parse_sitemap
from crawl_pipeline_tests.conftest import Score
from crawl_pipeline_tests.unit.parsing_support import CORPORA, NO_CORPORA

SITEMAPS = CORPORA / "sitemaps"
EXAMPLE = "http://www.example.com"


def read(text: str | bytes, limit: int = 100) -> SitemapContents:
    return parse_sitemap(text.encode() if isinstance(text, str) else text, limit=limit)


def locs(text: str | bytes, limit: int = 100) -> list[str]:
    return [url.loc for url in read(text, limit).urls]


def urlset(*urls: str) -> str:
    return "<urlset>" + "".join(f"<url><loc>{url}</loc></url>" for url in urls) + "</urlset>"


PUBLISHED = {
    "crawler-commons/atom.xml": (["http://example.org/2003/12/13/atom03"], 0),
    "crawler-commons/do-not-visit.txt": ([f"{EXAMPLE}/do-not-visit-here"], 0),
    "crawler-commons/feed.rss": (
        [
            "https://www.example.com/blog/post/1",
            "https://www.example.com/foo?q=a&l=en",
            "https://www.example.com/foo?q=a&l=fr",
        ],
        0,
    ),
    "crawler-commons/hebdenbridgetimes-articles-sitemap.xml": (74, 0),
    "crawler-commons/pagemaps-sitemap.xml": ([f"{EXAMPLE}/foo", f"{EXAMPLE}/bar"], 0),
    "crawler-commons/shinpaideshou-news-sitemap.xml": (3, 0),
    "crawler-commons/sitemap-images.xml": ([f"{EXAMPLE}/images/some_image_landing_page.html"], 0),
    "crawler-commons/sitemap-links.xml": (
        [f"{EXAMPLE}/{name}/" for name in ("english", "deutsch", "schweiz-deutsch")],
        0,
    ),
    "crawler-commons/sitemap-mobile.xml": (3, 0),
    "crawler-commons/sitemap-news.xml": (
        ["http://www.example.org/business/article55.html", "http://www.example.org/empty_news_name.html"],
        0,
    ),
    "crawler-commons/sitemap-videos-tvshow.xml": (["https://example.org/my-tv-show/23/13/"], 0),
    "crawler-commons/sitemap-videos.xml": (3, 0),
    "crawler-commons/sitemap-with-bom.txt": (
        ["http://www.domain.com/page1.html", "http://www.domain.com/page2.html"],
        0,
    ),
    "crawler-commons/sitemap.badns.xml": ([f"{EXAMPLE}/1", f"{EXAMPLE}/2"], 0),
    "crawler-commons/sitemap.index.xml": ([], 15),
    "crawler-commons/sitemap.ns.xml": ([f"{EXAMPLE}/1", f"{EXAMPLE}/2"], 0),
    "crawler-commons/sitemap.txt": (["http://www.domain.com/page1.html", "http://www.domain.com/page2.html"], 0),
    "crawler-commons/sitemap.txt.gz": (5, 0),
    "crawler-commons/xmlRss_pubDate.xml": ([f"{EXAMPLE}/article_{n}" for n in range(1, 8)], 0),
    "crawler-commons/xmlSitemap.gz": (5, 0),
    "norconex/XmlFeedLinkExtractorTest.atom": ([f"{EXAMPLE}/atom/page1.html", f"{EXAMPLE}/atom/page2.html"], 0),
    "norconex/XmlFeedLinkExtractorTest.rss": ([f"{EXAMPLE}/rss/page1.html", f"{EXAMPLE}/rss/page2.html"], 0),
    "norconex/sitemap.xml": ([f"https://example.com/link{name}" for name in "ABCD"], 0),
    "stormcrawler/stormcrawler.sitemap.extensions.all.xml": (7, 0),
    "stormcrawler/stormcrawler.sitemap.extensions.image.xml": (7, 0),
    "stormcrawler/stormcrawler.sitemap.extensions.links.xml": (6, 0),
    "stormcrawler/stormcrawler.sitemap.extensions.mobile.xml": (6, 0),
    "stormcrawler/stormcrawler.sitemap.extensions.news.xml": (6, 0),
    "stormcrawler/stormcrawler.sitemap.extensions.video.xml": (6, 0),
    "stormcrawler/stormcrawler.sitemap.index.xml": ([], 4),
    "stormcrawler/stormcrawler.sitemap.xml": (6, 0),
    "stormcrawler/stormcrawler.sitemap.xml.gz": (6, 0),
    "xml_attacks/billion_laughs.xml": ([], 0),
}


@pytest.mark.conformance
@pytest.mark.skipif(not CORPORA.is_dir(), reason=NO_CORPORA)
def test_every_published_sitemap_gives_its_urls(score: Score) -> None:
    there = {str(path.relative_to(SITEMAPS)) for path in SITEMAPS.rglob("*") if path.is_file()}
    assert there == set(PUBLISHED)
    for name, (expected, sitemaps) in PUBLISHED.items():
        contents = read((SITEMAPS / name).read_bytes())
        found = [url.loc for url in contents.urls]
        assert (len(found) if isinstance(expected, int) else found) == expected, name
        assert len(contents.sitemaps) == sitemaps, name
        assert not contents.truncated, name
    score("sitemaps and feeds", len(PUBLISHED), len(there))


def test_a_urls_last_change_is_an_instant_in_utc() -> None:
    text = """<urlset><url><lastmod>2024-03-05T10:00:00+01:00</lastmod><loc> http://a.example/1
        </loc></url><url><loc>http://a.example/2</loc><lastmod>soon</lastmod></url><url><loc>http://a.example/3</loc></url></urlset>"""
    assert read(text).urls == (
        SitemapUrl("http://a.example/1", datetime(2024, 3, 5, 9, tzinfo=UTC)),
        SitemapUrl("http://a.example/2", None),
        SitemapUrl("http://a.example/3", None),
    )


@pytest.mark.parametrize(
    ("loc", "expected"),
    [
        ("http://a.example/?a=1&amp;b=2", ["http://a.example/?a=1&b=2"]),
        ("http://a.example/?a=1&copy=2", ["http://a.example/?a=1&copy=2"]),
        ("http://a.example/&#x41;&#66;", ["http://a.example/AB"]),
        ("http://a.example/&#0;&#x110000;", ["http://a.example/&#0;&#x110000;"]),
        ("http://a.example/&#xD800;", ["http://a.example/\ufffd"]),
        ("<![CDATA[http://a.example/?a&b]]>", ["http://a.example/?a&b"]),
        ("http://a.example/<![CDATA[?a&]]>b", ["http://a.example/?a&b"]),
        ("HTTPS://a.example/", ["HTTPS://a.example/"]),
        ("/relative", []),
        ("ftp://a.example/", []),
        ("javascript:alert(1)", []),
        ("", []),
        ("http://a.example/" + "x" * 5000, []),
    ],
)
def test_a_location_is_an_absolute_web_address_with_entities_resolved(loc: str, expected: list[str]) -> None:
    assert locs(urlset(loc)) == expected


def test_namespaces_and_letter_case_do_not_matter_but_an_images_location_is_not_the_pages() -> None:
    text = """<?xml version="1.0"?><S:URLSET xmlns:S="x"><S:URL><image:image><image:loc>http://a.example/i.png</image:loc>
        </image:image><S:LOC>http://a.example/1</S:LOC><xhtml:link rel="alternate" href="http://a.example/de"/></S:URL></S:URLSET>"""
    assert locs(text) == ["http://a.example/1"]


def test_commented_and_quoted_urls_do_not_count() -> None:
    text = f"<urlset><!-- {urlset('http://a.example/1')} --><![CDATA[{urlset('http://a.example/2')}]]>" + urlset(
        "http://a.example/3"
    )
    assert locs(text) == ["http://a.example/3"]


def test_a_feeds_entries_are_its_urls_by_link_or_permanent_guid() -> None:
    rss = """<rss><channel><link>http://a.example/home</link><atom:link rel="self" href="http://a.example/feed"/>
      <item><atom:link href="http://a.example/x"/><link>http://a.example/1</link>
      <pubDate>Tue, 05 Mar 2024 10:00:00 GMT</pubDate></item>
      <item><guid>http://a.example/2</guid></item><item><guid isPermaLink="false">http://a.example/3</guid></item>
      </channel></rss>"""
    assert locs(rss) == ["http://a.example/1", "http://a.example/2"]
    assert read(rss).urls[0].lastmod == datetime(2024, 3, 5, 10, tzinfo=UTC)
    atom = """<feed><link href="http://a.example/home"/><entry><link rel='edit' href='http://a.example/e'/>
      <link href='http://a.example/1?a&amp;b'/><published>2020-01-01</published><updated>2024-03-05</updated></entry></feed>"""
    assert read(atom).urls == (SitemapUrl("http://a.example/1?a&b", datetime(2024, 3, 5, tzinfo=UTC)),)


def test_an_index_gives_sitemaps_and_no_pages() -> None:
    text = "<sitemapindex><sitemap><loc>http://a.example/s1.xml</loc></sitemap><sitemap><loc>http://a.example/s2.xml.gz"
    assert read(text) == SitemapContents(sitemaps=("http://a.example/s1.xml", "http://a.example/s2.xml.gz"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "iso-8859-1"])
def test_a_document_is_read_in_the_encoding_that_it_declares(encoding: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?>' + urlset("http://a.example/é")
    assert locs(text.encode(encoding)) == ["http://a.example/é"]


def test_an_unknown_declared_encoding_is_read_as_utf_8() -> None:
    for name in ("bogus", "base64", "rot13"):
        assert locs(f'<?xml version="1.0" encoding="{name}"?>' + urlset("http://a.example/é")) == ["http://a.example/é"]


def test_each_url_counts_once_and_the_limit_cuts() -> None:
    text = urlset(*(f"http://a.example/{n // 2}" for n in range(20)))
    assert len(locs(text, 10)) == 10
    assert not read(text, 10).truncated
    assert len(locs(text, 9)) == 9
    assert read(text, 9).truncated


WHOLE = urlset(*(f"http://a.example/{n}" for n in range(20)))


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9, 0.999])
def test_a_document_that_breaks_off_gives_what_came_before(kept: float) -> None:
    cut = WHOLE[: int(len(WHOLE) * kept)]
    assert len(locs(cut)) >= int(20 * kept) - 1
    packed = gzip.compress(WHOLE.encode() * 500)
    assert len(locs(packed[: int(len(packed) * 0.9)])) == 20


def test_a_damaged_archive_gives_what_came_before_the_damage() -> None:
    lines = "\n".join(f"http://a.example/{n * 7919 % 1_000_003}" for n in range(20_000)).encode()
    packed = bytearray(gzip.compress(lines))
    packed[len(packed) // 2 : len(packed) // 2 + 64] = b"\xff" * 64
    assert 1_000 < len(locs(bytes(packed), 50_000)) < 20_000


def test_an_archive_of_several_members_is_read_to_its_end() -> None:
    assert locs(gzip.compress(b"http://a.example/1\n") + gzip.compress(b"http://a.example/2\n")) == [
        "http://a.example/1",
        "http://a.example/2",
    ]


def test_very_many_gzip_members_cost_what_their_bytes_do() -> None:
    """Guards: members are fed piece by piece (whole, 100,000 of them would copy a terabyte); `_MOST_MEMBERS`."""
    tail = b"x" * 20_000_000
    few = gzip.compress(b"http://a.example/1\n") + gzip.compress(b"") * 9_000 + gzip.compress(b"http://a.example/2\n")
    assert locs(few + tail) == ["http://a.example/1", "http://a.example/2"]
    contents = read(gzip.compress(b"http://a.example/1\n") + gzip.compress(b"") * 1_000_000)
    assert ([url.loc for url in contents.urls], contents.truncated) == (["http://a.example/1"], True)


BOMBS = {
    "a gzip bomb": gzip.compress(b"<url><loc>http://a.example/</loc>" + bytes(MOST_BYTES * 4)),
    "external entity": b'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><url><loc>http://a.example/&e;</loc></url>',
    "parameter entity": b'<!DOCTYPE x [<!ENTITY % p SYSTEM "http://127.0.0.1:1/x"> %p;]><url><loc>http://a.example/&p;</loc></url>',
    "inclusion": b'<url><loc>http://a.example/<xi:include href="file:///etc/passwd" parse="text"/></loc></url>',
    "entities in entities": b'<!DOCTYPE x [<!ENTITY a "&b;&b;"><!ENTITY b "&a;&a;">]><url><loc>http://a.example/&a;</loc></url>',
}


@pytest.mark.parametrize("body", BOMBS.values(), ids=BOMBS)
def test_an_attack_reads_nothing_and_costs_its_limit(body: bytes) -> None:
    contents = parse_sitemap(body, limit=50_000)
    assert len(contents.urls) == 1
    assert contents.urls[0].loc in {f"http://a.example/{rest}" for rest in ("", "&e;", "&p;", "&a;")}
    assert contents.truncated is (body is BOMBS["a gzip bomb"])


FLOODS = {
    "open tags": b"<url><loc>" * 300_000,
    "angle brackets": b"<" * 1_000_000,
    "comments": b"<!--" * 500_000,
    "CDATA": b"<url><loc>" + b"<![CDATA[" * 300_000,
    "ampersands": b"<url><loc>" + b"&" * 1_000_000,
    "an endless tag": b"<url " + b"a='b' " * 300_000,
    "attributes": b"<entry><link " + b"a='b' " * 300_000 + b">",
    "an endless declaration": b"<?xml " + b" " * 1_000_000,
    "prefixes": b"<" + b"a:" * 500_000,
    "lines": b"http://a.example/\n" * 300_000,
}


@pytest.mark.parametrize("body", FLOODS.values(), ids=FLOODS)
def test_a_flood_costs_time_in_proportion_to_its_length(body: bytes) -> None:
    """Ends within seconds; any quadratic step would take hours and run into the test's time limit."""
    assert len(parse_sitemap(body, limit=100).urls) <= 1


def test_more_tags_than_any_honest_list_has_are_not_read() -> None:
    assert read("<url>" * 100_000, 10).truncated
    assert not read(urlset(*("http://a.example/1",) * 300), 10).truncated


PIECES = st.sampled_from(
    ["<url>", "</url>", "<loc>", "</loc>", "http://a.example/1", "<!--", "-->", "<![CDATA[", "]]>", "<?", "?>",
     "<!", ">", "<item>", "<entry>", "<link href='http://a.example/2'/>", "<sitemap>", "&amp;", "&#1;", "&",
     "\x00", "\ud800", "\ufeff"]
)  # fmt: skip


@settings(deadline=None)
@given(
    st.one_of(
        st.binary(max_size=300),
        st.lists(PIECES, max_size=30).map(lambda p: "".join(p).encode("utf-8", "surrogatepass")),
    )
)
def test_no_bytes_make_it_raise(body: bytes) -> None:
    for document in (body, gzip.compress(body), gzip.compress(body)[:-5], b"\x1f\x8b" + body):
        contents = parse_sitemap(document, limit=5)
        for url in contents.urls:
            url.loc.encode()

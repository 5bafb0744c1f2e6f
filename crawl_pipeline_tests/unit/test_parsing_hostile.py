"""Pages made to kill a crawler: bounded time and memory, and never an exception.

No clock is read: what is quadratic would take minutes to hours here, and run into the test's time or memory limit.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawl_pipeline.parsing.acceptance import judge
from crawl_pipeline.parsing.content import LONGEST_MARKDOWN, markdown
from crawl_pipeline.parsing.custom import Page
from crawl_pipeline.parsing.document import Document, parse
from crawl_pipeline.parsing.extraction import Extraction, Extractor
from crawl_pipeline.parsing.links import links
from crawl_pipeline_tests.unit.parsing_support import PAGE, contract, document, page_url, product

RULES = contract(
    [
        product(
            price={"css": ".price", "type": "decimal"},
            name={"json_ld": "Product.name"},
            brand={"microdata": "Product.brand.name"},
            url={"css": "a[href]", "attr": "href", "type": "url"},
            day={"css": "time", "type": "date"},
        ),
        {**product(n={"css": "p", "type": "int"}), "type": "item", "each": "li, div, [class]"},
    ],
    ignore=[".ad", "time"],
    require=["h1"],
    language="en",
)
EXTRACTOR = Extractor(RULES)
LD = b'<script type="application/ld+json">'

HOSTILE = {
    "200,000 nested elements": b"<div>" * 200_000,
    "200,000 nested links": b"<span><a href=x>" * 100_000,
    "200,000 nested formatting elements": b"<b>" * 200_000,
    "nested tables": b"<table><tr><td>" * 20_000,
    "nested lists with text": b"<ul><li>x" * 20_000,
    "nested quotations": b"<blockquote>x" * 20_000,
    "nested templates": b"<template>" * 50_000,
    "nested items": b"<div itemscope itemtype=x/Product itemprop=brand>" * 20_000,
    "a nested selector's matches": b"<div class=a>" * 500 + b"<p>1" * 20_000,
    "200,000 attributes": b"<p " + b" ".join(b"a%d=1" % n for n in range(200_000)) + b">x",
    "a line of 10 MB": b"<h1>" + b"x" * 10_000_000,
    "10 MB of white space": b"<pre>" + b" \n" * 5_000_000,
    "a wide table": b"<table><tr><td>" + b"x" * 500_000 + b"</td></tr>" + b"<tr><td>a</td></tr>" * 5_000 + b"</table>",
    "an endless attribute": b"<a href='" + b"x" * 5_000_000,
    "200,000 links": b"".join(b"<a href=/%d>" % n for n in range(200_000)),
    "comments": b"<!--x-->" * 200_000,
    "NULs": b"\0" * 1_000_000 + b"<a\0href=x>\0</a>",
    "surrogates": b"\xed\xa0\x80" * 500_000,
    "angle brackets": b"<" * 1_000_000,
    "entities": b"&amp;&#xD800;&#0;" * 100_000,
    "noscripts": b"<noscript>x" * 100_000,
    "titles": b"<title>x</title>" * 50_000,
    "robots metas": b"<meta name=robots content='a,b,none'>" * 50_000,
    "blocks of JSON-LD": (LD + b'{"@type":"Product"}</script>') * 20_000,
    "wide JSON-LD": LD + b"[" + b'{"@type":"X"},' * 200_000 + b"{}]</script>",
    "deep JSON-LD": LD + b"[" * 1_000_000 + b"</script>",
    "a wrapped block": LD + b"; " * 1_000_000 + b"x</script>",
    "a number of 4 million digits": LD + b'{"@type":"Product","name":' + b"9" * 4_000_000 + b"}</script>",
    "references in a circle": LD
    + b'[{"@id":"a","@type":"Product","name":{"@id":"b"}},{"@id":"b","x":{"@id":"a"}}]</script>',
    "separators": b"<p class=sku>1<p class=price>" + b"1," * 1_000_000,
}


def read_everything(page: Document) -> Extraction:
    """Every way in which a page is read."""
    found, _ = links(page, follow_nofollow=False, limit=2_000)
    assert len(found) <= 2_000
    extraction = EXTRACTOR.extract(page, page_url())
    judge(extraction, page, RULES)
    text = markdown(page)
    assert len(text) <= LONGEST_MARKDOWN
    storable = [
        text,
        page.title or "",
        page.language or "",
        page.encoding,
        *(r.key + r.data for r in extraction.records),
    ]
    for said in (*storable, *(fault.detail for fault in extraction.faults), *extraction.notes):
        said.encode()
        assert "\x00" not in said
    assert isinstance(page.source, str)
    return extraction


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_page_is_read_in_proportion_to_its_length(body: bytes) -> None:
    read_everything(document(body))


def test_a_hostile_page_reads_the_same_twice() -> None:
    body = HOSTILE["nested lists with text"]
    assert read_everything(document(body)) == read_everything(document(body))


EXPLOSIVE = {
    "open formatting elements": 'b"".join(b"<font size=%d><p>x" % n for n in range(100_000))',
    "open formatting elements in capitals": 'b"".join(b"<B c=%d><P>x" % n for n in range(100_000))',
    "the same in UTF-16": '"".join("<font size=%d><p>x" % n for n in range(100_000)).encode("utf-16")',
    "closed by the wrong tags": 'b"".join(b"<i c=%d></b></p><p>x" % n for n in range(100_000))',
    "repeated bodies": 'b"".join(b"<body a%d=1>x" % n for n in range(200_000))',
    "repeated roots": 'b"".join(b"<HTML a%d=1>x" % n for n in range(200_000))',
}


@pytest.mark.parametrize("body", EXPLOSIVE.values(), ids=EXPLOSIVE)
def test_a_page_whose_tree_would_explode_is_tamed(body: str) -> None:
    """Read in a process of 1.5 GB. Fails (out of memory) without `hostile.tamed`."""
    pytest.importorskip("resource", reason="the memory of a process can be limited on POSIX systems only")
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, (1_500_000_000, 1_500_000_000))
from crawl_pipeline.parsing.document import parse
page = parse({body}, content_type="text/html", url="{PAGE}")
print(page.tree.text.count("x"))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr[-500:]
    assert int(result.stdout) >= 100_000


def test_taming_keeps_text_links_and_order() -> None:
    body = b"".join(b"<b c=%d><p>w%d <a href=/%d>l</a>" % (n, n, n) for n in range(5_000))
    page = document(body)
    assert page.tree.text.split()[:3] == ["w0", "lw1", "lw2"]
    assert len(links(page, follow_nofollow=False, limit=10_000)[0]) == 5_000


@pytest.mark.parametrize(
    "body",
    [
        b"<p><b>x</b> <i>y</i>" * 10_000,
        b"<b>" * 50 + b"<p>x</p>" * 5_000,
        b"<body class=a>" + b"<p>a</p>" * 10_000,
    ],
    ids=["closed", "a few open", "one body"],
)
def test_an_honest_large_page_is_parsed_as_it_is(body: bytes) -> None:
    page = document(body)
    assert page.tree.select_one("b, body.a") is not None
    assert page.tree.select_one("span") is None


PIECES = st.sampled_from(
    ["<div>", "</div>", "<p class=sku>", "<p class=price>", "<a href=", "'", '"', ">", "<", "</", "<!--",
     "-->", "<table>", "<td>", "<li>", "<base href='//x'>", "<meta name=robots content=none>",
     "<meta charset=utf-16>", "<title>", "</title>", "<svg>", "<math>", "<template shadowrootmode=open>",
     "</template>", "<noscript>", "<script type=application/ld+json>", "</script>",
     '{"@type":"Product","name":', "[", "}", "1.234,5", "\x00", "\ud800", "&#xD800;", "<select>", "<frameset>",
     "<plaintext>", "<div itemscope itemtype=x/Product>", "<b itemprop='brand name'>", "<time>",
     "<html lang='\x00'>", "<p class=ad>"]
)  # fmt: skip
BODIES = st.one_of(
    st.binary(max_size=400),
    st.lists(PIECES, max_size=40).map(lambda pieces: "".join(pieces).encode("utf-8", "surrogatepass")),
    st.lists(PIECES, max_size=20).map(lambda pieces: "".join(pieces).encode("utf-16", "surrogatepass")),
)
TYPES = st.one_of(
    st.none(),
    st.text(max_size=60),
    st.sampled_from(
        ["text/html; charset=utf-16le", "application/xhtml+xml", "text/html; charset=iso-2022-jp", "a;charset=gbk"]
    ),
)


@settings(deadline=None, max_examples=150)
@given(BODIES, TYPES)
def test_no_bytes_make_a_page_raise(body: bytes, content_type: str | None) -> None:
    page = parse(body, content_type=content_type, url=PAGE)
    read_everything(page)
    assert isinstance(Page(PAGE, page).soup.get_text(), str)


@settings(deadline=None)
@given(st.text(max_size=100), st.text(max_size=100))
def test_no_url_or_link_text_makes_a_page_raise(url: str, href: str) -> None:
    body = f'<base href="{href}"><a href="{href}">x</a>'.encode("utf-8", "surrogatepass")
    page = parse(body, content_type="text/html", url=url)
    links(page, follow_nofollow=False, limit=10)
    assert isinstance(page.base_url, str)


@pytest.mark.parametrize("number", ["1e99999999999999999999", "-1e99999999999999999999", "1e-99999999999999999999"])
def test_number_that_no_decimal_can_hold_makes_a_block_no_json(number: str) -> None:
    body = LD + f'{{"@type":"Product","name":"x","price":{number}}}</script><h1>a</h1>'.encode()
    assert isinstance(EXTRACTOR.extract(document(body), page_url()), Extraction)

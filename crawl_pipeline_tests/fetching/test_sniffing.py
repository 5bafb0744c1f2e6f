"""What a body is by its first bytes, whatever its header says, over both clients; and what is left alone."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawl_pipeline.fetching.sniffing import begins_as_html, refusal
from crawl_pipeline_tests.fetching.conftest import Fetch
from crawl_pipeline_tests.fetching.vicious_site import SAMPLES, ViciousSite

HTML = ("text/html", "application/xhtml+xml")
NAMES = {
    "pdf": "a PDF document",
    "zip": "a ZIP archive",
    "gzip": "gzip data",
    "png": "a PNG image",
    "jpeg": "a JPEG image",
    "gif": "a GIF image",
    "webp": "a WebP image",
    "mp4": "an MP4 video",
    "tar": "a tar archive",
}
OPEN = (
    "application/octet-stream",
    "binary/octet-stream",
    "unknown/unknown",
    "Application/Octet-Stream; charset=binary",
)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("declared", ["text/html", "application/xhtml+xml", ""])
def test_what_is_no_text_is_refused_though_it_is_called_html(
    fetch: Fetch, site: ViciousSite, kind: str, declared: str
) -> None:
    exchange = fetch(site.url(f"/sample?kind={kind}&type={quote(declared)}"), types=HTML)
    assert (exchange.failure, exchange.type_refused, exchange.body) == (None, True, b"")
    assert (exchange.detail or "").endswith(f"but the body is {NAMES[kind]}")


@pytest.mark.parametrize("declared", ["text/html", "application/octet-stream", ""])
def test_what_is_refused_is_not_read_to_its_end(fetch: Fetch, site: ViciousSite, declared: str) -> None:
    exchange = fetch(site.url(f"/sample?kind=pdf&goes-on=1&type={quote(declared)}"), types=HTML, max_bytes=30_000_000)
    assert (exchange.failure, exchange.type_refused) == (None, True)
    assert site.sent["/sample"] < 15_000_000


@pytest.mark.parametrize("kind", ["html", "comment", "xhtml", "utf16"])
@pytest.mark.parametrize("declared", OPEN)
def test_html_that_is_called_mere_bytes_is_taken(fetch: Fetch, site: ViciousSite, kind: str, declared: str) -> None:
    exchange = fetch(site.url(f"/sample?kind={kind}&type={quote(declared)}"), types=HTML)
    assert (exchange.failure, exchange.type_refused, exchange.body) == (None, False, SAMPLES[kind])


@pytest.mark.parametrize("kind", ["text", "bytes", "pdf"])
def test_mere_bytes_that_do_not_begin_as_html_are_refused(fetch: Fetch, site: ViciousSite, kind: str) -> None:
    exchange = fetch(site.url(f"/sample?kind={kind}&type=application/octet-stream"), types=HTML)
    assert (exchange.failure, exchange.type_refused, exchange.body) == (None, True, b"")
    assert "application/octet-stream" in (exchange.detail or "")


@pytest.mark.parametrize(("kind", "is_refused"), [("text", False), ("html", False), ("utf16", False), ("bytes", True)])
def test_without_a_type_all_text_is_taken(fetch: Fetch, site: ViciousSite, kind: str, is_refused: bool) -> None:
    assert fetch(site.url(f"/sample?kind={kind}"), types=HTML).type_refused is is_refused


def test_text_that_a_site_calls_plain_is_no_html(fetch: Fetch, site: ViciousSite) -> None:
    assert fetch(site.url("/sample?kind=html&type=text/plain"), types=HTML).type_refused


def test_open_types_are_refused_with_their_head_where_no_html_is_wanted(fetch: Fetch, site: ViciousSite) -> None:
    url = site.url("/sample?kind=html&type=application/octet-stream")
    assert fetch(url, types=("application/json",)).type_refused
    assert not fetch(url, types=("application/octet-stream",)).type_refused


def test_a_kind_that_is_wanted_is_taken_under_a_wrong_name(fetch: Fetch, site: ViciousSite) -> None:
    exchange = fetch(site.url("/sample?kind=pdf&type=text/html"), types=("text/html", "application/pdf"))
    assert (exchange.type_refused, exchange.body) == (False, SAMPLES["pdf"])


@pytest.mark.parametrize(
    "types",
    [
        "text/html;;charset=utf-8",
        "TEXT/HTML",
        "text/html;",
        "|text/html",
        "text/html|",
        "image/png|text/html",
        "text/html, */*",
        ";charset=utf-8",
        " text/html ",
    ],
)
def test_sloppy_headers_are_read(fetch: Fetch, site: ViciousSite, types: str) -> None:
    exchange = fetch(site.url(f"/sample?kind=html&type={quote(types)}"), types=HTML)
    assert (exchange.failure, exchange.type_refused, exchange.body) == (None, False, SAMPLES["html"])


@given(st.binary(max_size=200), st.sampled_from([None, "text/html", "application/octet-stream"]))
def test_no_bytes_make_it_raise(head: bytes, declared: str | None) -> None:
    found = refusal(declared, head, HTML)
    assert found is None or "\n" not in found


def test_looking_for_html_takes_time_in_proportion() -> None:
    assert not begins_as_html(b"<!--" * 400)
    assert not begins_as_html(b"<!---->" * 200 + b"x")

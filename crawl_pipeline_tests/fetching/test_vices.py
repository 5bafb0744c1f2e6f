"""What each vice of a server comes to, for both clients."""

from __future__ import annotations

import pytest

from crawl_pipeline.domain.pages import FetchFailure
from crawl_pipeline.fetching.transport import ClientName
from crawl_pipeline_tests.fetching.conftest import Fetch
from crawl_pipeline_tests.fetching.vicious_site import PAGE, ViciousSite

HTML = ("text/html", "application/xhtml+xml")

# path, status, failure, body; one answer for both clients
OUTCOMES: list[tuple[str, int | None, FetchFailure | None, bytes]] = [
    ("/page", 200, None, PAGE),
    ("/steady", 200, None, b"s" * 4000),
    ("/never-answers", None, FetchFailure.TIMEOUT, b""),
    ("/slow-head", None, FetchFailure.TIMEOUT, b""),
    ("/slow-drip", 200, FetchFailure.TIMEOUT, b""),
    ("/closes-at-once", None, FetchFailure.CONNECTION, b""),
    ("/resets", None, FetchFailure.CONNECTION, b""),
    ("/resets-midway", 200, FetchFailure.TRUNCATED, b""),
    ("/drops-midway", 200, FetchFailure.TRUNCATED, b""),
    ("/cut-head", None, FetchFailure.TRUNCATED, b""),
    ("/cut-after-header", None, FetchFailure.TRUNCATED, b""),
    ("/lies-about-length-short", 200, FetchFailure.TRUNCATED, b""),
    ("/lies-about-length-long", 200, None, b"12345"),
    ("/two-lengths", None, FetchFailure.PROTOCOL, b""),
    ("/length-is-no-number", None, FetchFailure.PROTOCOL, b""),
    ("/same-length-twice", 200, None, PAGE),
    ("/big", 200, FetchFailure.TOO_LARGE, b""),
    ("/endless", 200, FetchFailure.TOO_LARGE, b""),
    ("/until-close", 200, None, PAGE),
    ("/empty-200", 200, None, b""),
    ("/chunked", 200, None, PAGE),
    ("/chunked-without-end", 200, FetchFailure.TRUNCATED, b""),
    ("/chunked-forever", 200, FetchFailure.TOO_LARGE, b""),
    ("/bad-chunks", 200, FetchFailure.TRUNCATED, b""),
    ("/garbage", None, FetchFailure.PROTOCOL, b""),
    ("/headers-never-end", None, FetchFailure.PROTOCOL, b""),
    ("/huge-headers", None, FetchFailure.PROTOCOL, b""),
    ("/large-headers", 200, None, PAGE),
    ("/header-without-colon", None, FetchFailure.PROTOCOL, b""),
    ("/cr-in-header", None, FetchFailure.PROTOCOL, b""),
    ("/nul-in-header", None, FetchFailure.PROTOCOL, b""),
    ("/folded-header", 200, None, PAGE),
    ("/1xx-flood", None, FetchFailure.PROTOCOL, b""),
    ("/early-hints", 200, None, PAGE),
    ("/wrong-type", 200, None, b""),
    ("/no-content-type", 200, None, PAGE),
    ("/gzip", 200, None, PAGE),
    ("/x-gzip", 200, None, PAGE),
    ("/deflate", 200, None, PAGE),
    ("/bare-deflate", 200, None, PAGE),
    ("/gzip-twice", 200, None, PAGE),
    ("/gzip-members", 200, None, PAGE),
    ("/gzip-padded", 200, None, PAGE),
    ("/gzip-bomb", 200, FetchFailure.TOO_LARGE, b""),
    ("/gzip-bomb?layers=2", 200, FetchFailure.TOO_LARGE, b""),
    ("/empty-blocks", 200, FetchFailure.TOO_LARGE, b""),
    ("/bad-gzip", 200, FetchFailure.BAD_ENCODING, b""),
    ("/cut-gzip", 200, FetchFailure.TRUNCATED, b""),
    ("/corrupt-gzip", 200, FetchFailure.BAD_ENCODING, b""),
    ("/empty-gzip", 200, None, b""),
    ("/unasked-brotli", 200, FetchFailure.BAD_ENCODING, b""),
    ("/four-layers", 200, FetchFailure.BAD_ENCODING, b""),
    ("/encoding-is-charset", 200, None, PAGE),
    ("/404-bad-gzip", 404, None, b""),
    ("/redirect", 302, None, b"moved"),
    ("/redirect-cut", 301, None, b"mov"),
    ("/304", 304, None, b""),
    ("/204", 204, None, b""),
    ("/404", 404, None, b"no such page"),
]


@pytest.mark.parametrize(("path", "status", "failure", "body"), OUTCOMES, ids=[case[0] for case in OUTCOMES])
def test_each_vice_has_its_outcome(
    fetch: Fetch, site: ViciousSite, path: str, status: int | None, failure: FetchFailure | None, body: bytes
) -> None:
    exchange = fetch(site.url(path), types=HTML, max_bytes=1_000_000, timeout=1.5)
    # Within an answer that is not HTTP, one client has the status already and the other has not.
    found = None if failure is FetchFailure.PROTOCOL else exchange.status
    assert (found, exchange.failure, exchange.body) == (status, failure, body), exchange.detail
    assert (exchange.detail is None) or "\n" not in exchange.detail
    assert failure is None or exchange.detail
    assert len(site.arrivals) == 1


# What `requests` cannot do, because http.client fixes it: more than 100 header lines.
MANY_HEADERS = {"libcurl": (200, None), "requests": (None, FetchFailure.PROTOCOL)}


def test_many_header_lines_are_taken_as_far_as_the_client_can(
    fetch: Fetch, site: ViciousSite, client: ClientName
) -> None:
    exchange = fetch(site.url("/many-headers"))
    assert (exchange.status, exchange.failure) == MANY_HEADERS[client]


@pytest.mark.parametrize("path", ["/redirect-endless", "/503-big"])
def test_of_an_answer_other_than_200_no_more_than_64_kib_is_kept(fetch: Fetch, site: ViciousSite, path: str) -> None:
    exchange = fetch(site.url(path), timeout=5.0)
    assert exchange.failure is None
    assert exchange.status in (301, 503)
    assert len(exchange.body) <= 65_536
    assert site.sent[path] < 20_000_000


def test_a_redirect_whose_body_drips_is_a_redirect(fetch: Fetch, site: ViciousSite) -> None:
    exchange = fetch(site.url("/redirect-slow-drip"), timeout=5.0)
    assert (exchange.status, exchange.failure, exchange.header("location")) == (301, None, "/page")


def test_a_redirect_is_not_followed(fetch: Fetch, site: ViciousSite) -> None:
    exchange = fetch(site.url("/redirect"))
    assert exchange.header("location") == "/page"
    assert [arrival.target for arrival in site.arrivals] == ["/redirect"]


def test_headers_come_back_in_lower_case_as_sent_and_of_the_final_block_only(fetch: Fetch, site: ViciousSite) -> None:
    exchange = fetch(site.url("/early-hints"))
    assert exchange.header("content-type") == "text/html; charset=utf-8"
    assert exchange.header("x-hint") is None
    assert exchange.http_version == "1.1"
    assert exchange.address == "127.0.0.1"
    assert fetch(site.url("/folded-header")).header("x-folded") == "one two"


def test_trailers_are_no_headers(fetch: Fetch, site: ViciousSite) -> None:
    exchange = fetch(site.url("/chunked"), types=HTML)
    assert exchange.header("x-trailer") is None
    assert exchange.header("content-type") == "text/html"


def test_a_header_with_control_characters_can_be_sent_back(fetch: Fetch, site: ViciousSite) -> None:
    etag = fetch(site.url("/controls-in-header")).header("etag")
    assert etag == '"a b"'
    echo = fetch(site.url("/echo"), headers={"If-None-Match": etag})
    assert b'\r\nIf-None-Match: "a b"\r\n' in echo.body


@pytest.mark.parametrize(
    ("types", "is_refused"),
    [
        ("image/png,text/html", False),
        ("text/html,image/png", True),
        ("text/html;charset=x,nonsense", False),
        ("nonsense", False),
        ("TEXT/HTML", False),
        ("application/pdf", True),
    ],
)
def test_the_last_valid_content_type_decides(fetch: Fetch, site: ViciousSite, types: str, is_refused: bool) -> None:
    exchange = fetch(site.url(f"/double-content-type?types={types}"), types=HTML)
    assert exchange.failure is None
    assert exchange.type_refused is is_refused
    assert exchange.body == (b"" if is_refused else PAGE)


def test_a_body_of_a_wrong_type_is_not_read(fetch: Fetch, site: ViciousSite) -> None:
    exchange = fetch(site.url("/wrong-type"), types=HTML)
    assert exchange.type_refused
    assert exchange.header("content-type") == "image/png"
    assert "image/png" in (exchange.detail or "")
    assert site.sent["/wrong-type"] < 15_000_000


def test_any_type_is_read_where_none_is_named(fetch: Fetch, site: ViciousSite) -> None:
    exchange = fetch(site.url("/double-content-type?types=application/pdf"), types=None)
    assert (exchange.type_refused, exchange.body) == (False, PAGE)


@pytest.mark.parametrize(("size", "failure"), [(len(PAGE), None), (len(PAGE) - 1, FetchFailure.TOO_LARGE)])
@pytest.mark.parametrize("path", ["/page", "/gzip", "/chunked", "/until-close"])
def test_max_bytes_is_exact(
    fetch: Fetch, site: ViciousSite, path: str, size: int, failure: FetchFailure | None
) -> None:
    assert fetch(site.url(path), max_bytes=size).failure == failure


def test_a_body_that_says_it_is_too_large_is_not_begun(fetch: Fetch, site: ViciousSite) -> None:
    exchange = fetch(site.url("/big"), max_bytes=1_000_000)
    assert exchange.failure is FetchFailure.TOO_LARGE
    assert "50000000" in (exchange.detail or "")


def test_an_answer_hidden_behind_another_is_never_served(fetch: Fetch, site: ViciousSite) -> None:
    assert fetch(site.url("/lies-about-length-long")).body == b"12345"
    assert fetch(site.url("/page")).body == PAGE


def test_a_tried_connection_that_the_server_closed_is_replaced(fetch: Fetch, site: ViciousSite) -> None:
    for _ in range(5):
        assert fetch(site.url("/closes-after")).body == PAGE
    assert len(site.arrivals) == 5

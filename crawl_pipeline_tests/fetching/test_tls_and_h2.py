"""Certificates are verified; HTTP/2 is spoken where the client can."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from crawl_pipeline.domain.pages import FetchFailure, FetchRequest
from crawl_pipeline.fetching.transport import ClientName, Transport, make_transport
from crawl_pipeline_tests.fetching.conftest import Fetch, tls_context
from crawl_pipeline_tests.fetching.driving import LOOPBACK, collect, fetch_one
from crawl_pipeline_tests.fetching.h2_site import PAGE as H2_PAGE
from crawl_pipeline_tests.fetching.h2_site import H2Site
from crawl_pipeline_tests.fetching.vicious_site import PAGE, ViciousSite


@pytest.fixture
def h2_site(authority: trustme.CA) -> Iterator[H2Site]:
    """An HTTP/2 site."""
    with H2Site(tls_context(authority, "127.0.0.1")) as site:
        yield site


@pytest.fixture
def curl(ca_file: Path) -> Iterator[Transport]:
    """libcurl's transport: `requests` knows no HTTP/2."""
    transport = make_transport("libcurl", max_in_flight=8, ca_file=str(ca_file))
    yield transport
    transport.close()


def test_a_page_over_tls_is_fetched_and_the_connection_kept(fetch: Fetch, tls_site: ViciousSite) -> None:
    for _ in range(3):
        assert fetch(tls_site.url("/page")).body == PAGE
    assert tls_site.connections == 1


def test_a_certificate_for_another_name_is_refused(fetch: Fetch, tls_site: ViciousSite) -> None:
    exchange = fetch(tls_site.url("/page", host="localhost"), allow_networks=("127.0.0.0/8",))
    assert (exchange.failure, tls_site.arrivals) == (FetchFailure.TLS, [])


def test_a_certificate_of_an_unknown_authority_is_refused(client: ClientName, tls_site: ViciousSite) -> None:
    transport = make_transport(client, max_in_flight=1)
    try:
        exchange = fetch_one(transport, FetchRequest(url=tls_site.url("/page"), allow_networks=LOOPBACK))
    finally:
        transport.close()
    assert (exchange.failure, tls_site.arrivals) == (FetchFailure.TLS, [])


def test_a_server_that_speaks_no_tls_is_a_tls_failure(fetch: Fetch, site: ViciousSite) -> None:
    exchange = fetch(site.url("/page").replace("http://", "https://"), timeout=5.0)
    assert exchange.failure is FetchFailure.TLS


def test_a_body_cut_short_within_tls_is_truncated(fetch: Fetch, tls_site: ViciousSite) -> None:
    assert fetch(tls_site.url("/drops-midway")).failure is FetchFailure.TRUNCATED
    assert fetch(tls_site.url("/resets-midway")).failure is FetchFailure.TRUNCATED


def test_a_silent_server_behind_tls_times_out(fetch: Fetch, tls_site: ViciousSite) -> None:
    assert fetch(tls_site.url("/never-answers"), timeout=0.5).failure is FetchFailure.TIMEOUT


def test_the_address_rule_holds_over_tls(fetch: Fetch, tls_site: ViciousSite) -> None:
    assert fetch(tls_site.url("/page"), allow_networks=()).failure is FetchFailure.ADDRESS_REFUSED
    assert tls_site.connections == 0


def test_http_2_is_spoken_and_one_connection_serves_many(curl: Transport, h2_site: H2Site) -> None:
    target = "/page?x=%e2%98%83&y"
    first = fetch_one(curl, FetchRequest(url=h2_site.url("/page"), allow_networks=LOOPBACK))
    assert (first.body, first.http_version, first.status) == (H2_PAGE, "2", 200)
    for n in range(5):
        curl.start(FetchRequest(url=h2_site.url("/page"), allow_networks=LOOPBACK), n)
    assert {exchange.body for exchange in collect(curl, 5).values()} == {H2_PAGE}
    assert h2_site.connections == 1
    fetch_one(curl, FetchRequest(url=h2_site.url(target), timeout=1.0, allow_networks=LOOPBACK))
    assert h2_site.targets[-1] == target


@pytest.mark.parametrize("path", ["/cuts-stream", "/cuts-connection"])
def test_an_http_2_stream_cut_short_is_truncated(curl: Transport, h2_site: H2Site, path: str) -> None:
    exchange = fetch_one(curl, FetchRequest(url=h2_site.url(path), timeout=5.0, allow_networks=LOOPBACK))
    assert (exchange.status, exchange.failure) == (200, FetchFailure.TRUNCATED), exchange.detail


def test_an_http_2_body_that_is_not_wanted_leaves_the_connection_open(curl: Transport, h2_site: H2Site) -> None:
    request = FetchRequest(url=h2_site.url("/endless"), types=("application/pdf",), allow_networks=LOOPBACK)
    assert fetch_one(curl, request).type_refused
    assert fetch_one(curl, FetchRequest(url=h2_site.url("/page"), allow_networks=LOOPBACK)).body == H2_PAGE
    assert h2_site.connections == 1

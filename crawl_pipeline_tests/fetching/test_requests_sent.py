"""What goes over the wire, seen from the server's side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import requests

from crawl_pipeline.domain.pages import FetchRequest
from crawl_pipeline.fetching.reception import Limits
from crawl_pipeline.fetching.requests_transport import RequestsTransport
from crawl_pipeline.fetching.transport import Transport
from crawl_pipeline_tests.fetching.conftest import Fetch
from crawl_pipeline_tests.fetching.driving import LOOPBACK, fetch_one
from crawl_pipeline_tests.fetching.vicious_site import PAGE, ViciousSite

TARGETS = [
    "/",
    "/?",
    "/?q",
    "/a/../b/./c",
    "//double//slashes",
    "/%e2%98%83/%7Euser/%7euser",
    "/%zz%",
    "/a|b^c{d}[e]",
    "/a'b(c)*d!e;f=g,h@i:j$k&l+m",
    "/path?a=1&a=2&b=%20+%2B&c=[]{}|^`",
    "/?u=http://example.com/?x=y",
    "/[1-3]{a,b}",
    "/back\\slash",
    '/"quotes"<tags>',
]


@pytest.mark.parametrize("target", TARGETS)
def test_the_target_is_sent_exactly_as_the_url_has_it(fetch: Fetch, site: ViciousSite, target: str) -> None:
    assert fetch(site.url(target + "#fragment")).failure is None
    assert [arrival.target for arrival in site.arrivals] == [target]


def test_a_url_without_a_path_asks_for_the_root(fetch: Fetch, site: ViciousSite) -> None:
    assert fetch(site.url("")).failure is None
    assert fetch(site.url("?q=1")).failure is None
    assert [arrival.target for arrival in site.arrivals] == ["/", "/?q=1"]


def test_headers_are_sent_as_given_and_only_what_can_be_decoded_is_accepted(fetch: Fetch, site: ViciousSite) -> None:
    headers = {
        "User-Agent": "example-bot/1.0 (+https://example.com/bot)",
        "Accept": "text/html",
        "If-None-Match": 'W/"caf\xe9"',
        "X-Empty": "",
        "accept-encoding": "br, zstd",
        "Host": "elsewhere.example",
    }
    fetch(site.url("/page"), headers=headers)
    (arrival,) = site.arrivals
    assert arrival.header("user-agent") == "example-bot/1.0 (+https://example.com/bot)"
    assert arrival.header("accept") == "text/html"
    assert arrival.header("if-none-match") == 'W/"caf\xe9"'
    assert arrival.header("x-empty") == ""
    assert arrival.header("accept-encoding") == "gzip, deflate"
    assert arrival.header("host") == f"127.0.0.1:{site.port}"
    assert arrival.head.lower().count(b"\r\naccept-encoding:") == 1


@pytest.mark.parametrize(
    "headers",
    [{"X-A": "b\r\nX-Injected: c"}, {"X-A": "b\0"}, {"X A": "b"}, {"X-A:": "b"}, {"": "b"}, {"X-A": "\u2603"}],
)
def test_headers_that_would_break_a_request_apart_are_refused_at_the_start(
    transport: Transport, site: ViciousSite, headers: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        transport.start(FetchRequest(url=site.url("/page"), headers=headers, allow_networks=LOOPBACK), 1)
    assert transport.in_flight == 0
    assert fetch_one(transport, FetchRequest(url=site.url("/page"), allow_networks=LOOPBACK)).body == PAGE


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/caf\xe9", "http://127.0.0.1:{port}/\u2603"])
def test_a_url_that_is_not_ascii_is_refused_at_the_start(transport: Transport, site: ViciousSite, url: str) -> None:
    with pytest.raises(ValueError, match="ascii"):
        transport.start(FetchRequest(url=url.format(port=site.port), allow_networks=LOOPBACK), 1)
    assert transport.in_flight == 0


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX-Injected: b", "/a\x7f", "/a\tb"])
def test_a_url_with_forbidden_characters_never_reaches_a_server(fetch: Fetch, site: ViciousSite, path: str) -> None:
    assert fetch(site.url(path)).failure is not None
    assert site.arrivals == []


def test_cookies_are_not_kept(fetch: Fetch, site: ViciousSite) -> None:
    assert fetch(site.url("/cookie")).header("set-cookie") == "session=1; Path=/"
    fetch(site.url("/page"))
    assert [arrival.header("cookie") for arrival in site.arrivals] == [None, None]


@pytest.fixture
def _tempting_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, site: ViciousSite) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login user password pass\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)


@pytest.mark.usefixtures("_tempting_environment")
def test_neither_proxies_nor_netrc_of_the_environment_are_used(fetch: Fetch, site: ViciousSite) -> None:
    exchange = fetch(site.url("/page"))
    assert (exchange.failure, exchange.body) == (None, PAGE)
    assert site.arrivals[0].header("authorization") is None


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/", "gopher://127.0.0.1:9/"])
def test_only_http_is_spoken(fetch: Fetch, url: str) -> None:
    exchange = fetch(url)
    assert exchange.failure is not None
    assert exchange.body == b""


def test_a_session_with_an_auth_plugin_answers_a_challenge(site: ViciousSite) -> None:
    class Login(requests.auth.AuthBase):
        """Asks first without, then with the password, as Digest and NTLM do."""

        def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
            request.register_hook("response", self._log_in)  # type: ignore[no-untyped-call]  # of the stubs
            return request

        def _log_in(self, response: requests.Response, **options: Any) -> requests.Response:
            if response.status_code != 401:
                return response
            _ = response.content
            request = response.request.copy()
            request.headers["Authorization"] = "Basic dXNlcjpwYXNz"
            return response.connection.send(request, **options)

    def make_session() -> requests.Session:
        session = requests.Session()
        session.auth = Login()
        return session

    transport = RequestsTransport(max_in_flight=1, limits=Limits(), ca_file="", make_session=make_session)
    exchange = fetch_one(transport, FetchRequest(url=site.url("/asks-for-login"), allow_networks=LOOPBACK))
    transport.close()
    assert (exchange.status, exchange.body) == (200, b"welcome")
    assert [arrival.header("authorization") for arrival in site.arrivals] == [None, "Basic dXNlcjpwYXNz"]

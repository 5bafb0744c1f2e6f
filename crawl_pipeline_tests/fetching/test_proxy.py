"""A proxy is used only where the operator says that it enforces the address rule; then by both clients, for all."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from crawl_pipeline.domain.pages import FetchFailure, FetchRequest
from crawl_pipeline.errors import UsageError
from crawl_pipeline.fetching.proxy import trusted_proxy
from crawl_pipeline.fetching.transport import ClientName, Transport, make_transport
from crawl_pipeline_tests.fetching.driving import fetch_one
from crawl_pipeline_tests.fetching.vicious_site import PAGE, ViciousSite


class Proxy:
    """A small forward proxy: tunnels, whole URLs, Basic credentials; it refuses port 9."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.credentials: set[str | None] = set()
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        ).result(10)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            request, *lines = head.split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            self.credentials.add(headers.get("proxy-authorization"))
            method, target, _ = request.split(" ")
            self.asked.append(f"{method} {target}")
            authority = target if method == "CONNECT" else target.split("/", 3)[2]
            host, _, port = authority.rpartition(":")
            if port == "9":
                writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()
                writer.close()
                return
            there, away = await asyncio.open_connection(host, int(port))
            self._writers.append(away)
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\nX-Proxy: yes\r\n\r\n")
            else:
                away.write(head.replace(f"http://{authority}", "", 1).encode("latin-1"))
            await asyncio.gather(self._pass_on(reader, away), self._pass_on(there, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy on loopback."""
    with Proxy() as proxy:
        yield proxy


@pytest.fixture
def through(client: ClientName, ca_file: Path, proxy: Proxy) -> Iterator[Transport]:
    """The client behind the proxy. Its own address rule permits nothing on loopback."""
    url = f"http://name:pass@127.0.0.1:{proxy.port}"
    transport = make_transport(client, max_in_flight=8, ca_file=str(ca_file), proxy=url)
    yield transport
    transport.close()


def test_http_is_asked_of_the_proxy_as_a_whole_url(through: Transport, proxy: Proxy, site: ViciousSite) -> None:
    exchange = fetch_one(through, FetchRequest(url=site.url("/page?x=%e2%98%83&y")))
    assert (exchange.failure, exchange.body) == (None, PAGE)
    assert proxy.asked == [f"GET {site.url('/page?x=%e2%98%83&y')}"]
    assert [arrival.target for arrival in site.arrivals] == ["/page?x=%e2%98%83&y"]
    assert proxy.credentials == {"Basic " + base64.b64encode(b"name:pass").decode()}


def test_https_goes_through_a_tunnel_whose_answer_is_not_the_sites(
    through: Transport, proxy: Proxy, tls_site: ViciousSite
) -> None:
    exchange = fetch_one(through, FetchRequest(url=tls_site.url("/page")))
    assert (exchange.failure, exchange.status, exchange.body) == (None, 200, PAGE)
    assert exchange.header("x-proxy") is None
    assert proxy.asked == [f"CONNECT 127.0.0.1:{tls_site.port}"]


def test_what_the_proxy_refuses_is_an_answer_or_a_failed_connection(through: Transport, proxy: Proxy) -> None:
    assert fetch_one(through, FetchRequest(url="http://127.0.0.1:9/")).status == 403
    exchange = fetch_one(through, FetchRequest(url="https://127.0.0.1:9/"))
    assert (exchange.failure, exchange.status) == (FetchFailure.CONNECTION, None)


def test_the_environments_own_proxies_are_never_used(
    client: ClientName, proxy: Proxy, site: ViciousSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    transport = make_transport(client, max_in_flight=1)
    try:
        exchange = fetch_one(transport, FetchRequest(url=site.url("/page"), allow_networks=("127.0.0.0/8",)))
    finally:
        transport.close()
    assert (exchange.body, proxy.asked) == (PAGE, [])


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"CRAWL_PROXY": "http://secret@proxy:3128"}, "CRAWL_PROXY_ENFORCES_ADDRESS_RULE=yes if the proxy itself"),
        ({"CRAWL_PROXY": "socks5://secret:1", "CRAWL_PROXY_ENFORCES_ADDRESS_RULE": "yes"}, "no proxy's URL"),
        ({"CRAWL_PROXY": "http://secret", "CRAWL_PROXY_ENFORCES_ADDRESS_RULE": "yes"}, "no proxy's URL"),
        ({"CRAWL_PROXY": "http://secret:x", "CRAWL_PROXY_ENFORCES_ADDRESS_RULE": "yes"}, "no proxy's URL"),
    ],
)
def test_a_proxy_without_its_promise_or_that_is_none_is_refused_without_repeating_it(
    environment: dict[str, str], sentence: str
) -> None:
    with pytest.raises(UsageError, match="CRAWL_PROXY") as refused:
        trusted_proxy(environment)
    assert sentence in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_proxy_with_its_promise_is_taken() -> None:
    assert trusted_proxy({}) is None
    assert trusted_proxy({"CRAWL_PROXY": ""}) is None
    url = "http://name:pass@proxy.example:3128"
    assert trusted_proxy({"CRAWL_PROXY": url, "CRAWL_PROXY_ENFORCES_ADDRESS_RULE": "yes"}) == url

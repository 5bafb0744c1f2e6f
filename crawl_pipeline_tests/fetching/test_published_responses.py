"""Raw answers out of llhttp's own tests: both clients come to an end with each, and to the same one."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crawl_pipeline.domain.pages import Exchange, FetchRequest
from crawl_pipeline.fetching.transport import make_transport
from crawl_pipeline_tests.conftest import Score
from crawl_pipeline_tests.fetching.conftest import CLIENTS
from crawl_pipeline_tests.fetching.driving import LOOPBACK, fetch_one

CORPUS = Path(__file__).parents[2].parent / "shared" / "corpora" / "http" / "llhttp_responses.json"

# What llhttp takes for a whole answer, and we for a broken one.
REFUSED = {
    "HTTP 100 first, then 400",  # an empty line between two answers
    "HTTP 103 first, then 200",  # one byte less than its Content-Length
    "Content-Length reset when no body is received",  # two answers, the first without its body
    "Bare CR after response line (lenient)",
    "Response starting with CRLF",
}
# Where the two clients differ: libcurl is strict about the status line, http.client about chunk extensions.
DIFFERENT = {
    "Extra digit in HTTP minor version",
    "Extra space between HTTP version and status code",
    "HTTP version 0.9",
    "No semicolon before chunk extensions",
    "Chunk extensions quoting",
    "Unbalanced chunk extensions quoting",
    # 101, which nobody asked for
    "HTTP 101 response with Upgrade and Content-Length header",
    "HTTP 101 response with Upgrade and Transfer-Encoding header",
}


class RawServer:
    """Answers every connection with the same bytes, and closes it."""

    def __init__(self) -> None:
        self.answer = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"

    def __enter__(self) -> RawServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.recv(65_536)
                    connection.sendall(self.answer)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65_536):
                        pass
                except OSError:  # the client has heard enough
                    pass


@pytest.fixture
def raw_server() -> Iterator[RawServer]:
    """A server whose answer a test sets."""
    with RawServer() as server:
        yield server


@pytest.mark.conformance
def test_published_answers_come_to_the_same_end_with_both_clients(raw_server: RawServer, score: Score) -> None:
    if not CORPUS.exists():
        pytest.skip("../shared/corpora/http is absent: the published responses were not run")
    cases: list[dict[str, Any]] = json.loads(CORPUS.read_text())
    found: dict[str, list[Exchange]] = {}
    for client in CLIENTS:
        transport = make_transport(client, max_in_flight=1)
        found[client] = []
        for case in cases:
            raw_server.answer = case["raw"].encode("latin-1")
            request = FetchRequest(url=raw_server.url, timeout=20.0, allow_networks=LOOPBACK)
            found[client].append(fetch_one(transport, request))
        transport.close()
    refused, different = set(), set()
    for case, by_curl, by_requests in zip(cases, found["libcurl"], found["requests"], strict=True):
        if case["complete"] and not case["error"] and (by_curl.failure or by_requests.failure):
            refused.add(case["title"])
        if (by_curl.failure is None, by_curl.body) != (by_requests.failure is None, by_requests.body):
            different.add(case["title"])
        assert "timeout" not in (by_curl.failure, by_requests.failure), case["title"]
    assert len(cases) == 84
    assert (refused, different) == (REFUSED, DIFFERENT)
    score("http: raw responses, both clients", len(cases) - len(REFUSED | DIFFERENT), len(cases))

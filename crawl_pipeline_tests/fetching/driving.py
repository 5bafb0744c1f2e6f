"""Driving a transport from a test."""

from __future__ import annotations

import time

from crawl_pipeline.domain.pages import Exchange, FetchRequest
from crawl_pipeline.fetching.transport import Transport

LOOPBACK = ("127.0.0.0/8", "::1/128")


def collect(transport: Transport, count: int, within: float = 30.0) -> dict[object, Exchange]:
    """Poll until `count` exchanges have come back."""
    found: dict[object, Exchange] = {}
    deadline = time.monotonic() + within
    while len(found) < count:
        left = deadline - time.monotonic()
        assert left > 0, f"{len(found)} of {count} exchanges came back within {within:g} s"
        for tag, exchange in transport.poll(left):
            assert tag not in found, f"{tag} came back twice"
            found[tag] = exchange
    return found


def fetch_one(transport: Transport, request: FetchRequest) -> Exchange:
    """One exchange from beginning to end."""
    transport.start(request, "only")
    (exchange,) = collect(transport, 1).values()
    return exchange

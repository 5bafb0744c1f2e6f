"""What the origin can do at most: many keep-alive connections that only ask and count bytes."""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from crawl_pipeline_tests.bench.origin import Origin
from crawl_pipeline_tests.bench.sites import LinkSite


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """Requests a second that the origin answered, and its own CPU seconds for one of them."""

    requests_per_second: float
    cpu_per_request: float


def origin_ceiling(site: LinkSite, *, processes: int = 1, connections: int = 64, seconds: float = 3.0) -> Ceiling:
    """Load a fresh origin from a client process of its own for that long."""
    with Origin(site, processes) as origin:
        tree = [psutil.Process(origin.pid), *psutil.Process(origin.pid).children()]
        before = sum(sum(process.cpu_times()[:2]) for process in tree)
        command = [sys.executable, "-m", "crawl_pipeline_tests.bench.load", "--port", str(origin.port)]
        command += ["--pages", str(site.pages), "--connections", str(connections), "--seconds", str(seconds)]
        client = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        cpu = sum(sum(process.cpu_times()[:2]) for process in tree) - before
    counted = json.loads(client.stdout)
    return Ceiling(
        requests_per_second=counted["requests"] / counted["elapsed"], cpu_per_request=cpu / counted["requests"]
    )


@dataclass(slots=True)
class _Exchange:
    """Bytes still to come on a connection; None until the head is read."""

    left: int | None = None
    head: bytes = b""


def _ask(sock: socket.socket, number: int) -> _Exchange:
    sock.sendall(b"GET /p/%d HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % number)
    return _Exchange()


def _is_complete(exchange: _Exchange, data: memoryview) -> bool:
    if exchange.left is not None:
        exchange.left -= len(data)
        return exchange.left == 0
    exchange.head += data
    head, end, body = exchange.head.partition(b"\r\n\r\n")
    if not end:
        return False
    exchange.left = int(head.rpartition(b"Content-Length: ")[2].split(b"\r\n")[0]) - len(body)
    return exchange.left == 0


def _load(port: int, pages: int, connections: int, seconds: float) -> dict[str, float]:
    selector = selectors.DefaultSelector()
    for number in range(connections):
        opened = socket.create_connection(("127.0.0.1", port))
        selector.register(opened, selectors.EVENT_READ, _ask(opened, number % pages))
    buffer = memoryview(bytearray(262_144))
    began, requests = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        for key, _ in selector.select():
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            if _is_complete(key.data, buffer[: sock.recv_into(buffer)]):
                requests += 1
                selector.modify(sock, selectors.EVENT_READ, _ask(sock, requests % pages))
    return {"requests": requests, "elapsed": time.monotonic() - began}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Load an origin and print the count as JSON.")
    for name, kind in (("port", int), ("pages", int), ("connections", int), ("seconds", float)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    options = parser.parse_args(arguments)
    print(json.dumps(_load(options.port, options.pages, options.connections, options.seconds)))


if __name__ == "__main__":
    main()

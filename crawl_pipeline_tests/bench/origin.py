"""The benchmark's origin: serves a `LinkSite` from memory as fast as one Python process can, in its own process.

Owns the sockets and the counts of what was asked; it ends when the pipe to its stdin closes.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from urllib.request import ProxyHandler, build_opener

from crawl_pipeline_tests.bench.sites import LinkSite

_STATS_PATH = b"/-/stats"
_COUNTS = struct.Struct("Qdd")  # page requests, time of the first, time of the last
_Selector = selectors.DefaultSelector


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginStats:
    """Page requests so far; the times are seconds since the epoch, 0 before the first."""

    requests: int
    first_at: float
    last_at: float


class Origin:
    """A running origin process; the end of its `with` block ends it."""

    def __init__(self, site: LinkSite, processes: int = 1) -> None:
        command = [sys.executable, "-m", "crawl_pipeline_tests.bench.origin"]
        command += ["--pages", str(site.pages), "--page-bytes", str(site.page_bytes), "--links", str(site.links)]
        self._process = subprocess.Popen(
            [*command, "--processes", str(processes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"the benchmark's origin ended at once, exit code {self._process.wait()}")
        self.pid = self._process.pid
        self.port = int(port)
        self.base_url = f"http://127.0.0.1:{port}"
        self.seed = self.base_url + site.path(0)

    def __enter__(self) -> Origin:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def stats(self) -> OriginStats:
        """What was asked of it so far; asking is not counted."""
        direct = build_opener(ProxyHandler({}))
        with direct.open(self.base_url + _STATS_PATH.decode(), timeout=10) as answer:
            return OriginStats(**json.load(answer))


@dataclass(slots=True)
class _Client:
    """One connection: bytes received but not answered, and bytes owed."""

    received: bytes = b""
    owed: memoryview = field(default_factory=lambda: memoryview(b""))
    closes: bool = False


class _Counts:
    """One shared row a process, so that any of them can answer for all."""

    def __init__(self, processes: int) -> None:
        self._rows = mmap.mmap(-1, _COUNTS.size * processes)
        self._processes = processes
        self.mine = 0
        self._count = 0
        self._first_at = 0.0

    def add(self) -> None:
        now = time.time()
        self._count += 1
        self._first_at = self._first_at or now
        _COUNTS.pack_into(self._rows, self.mine * _COUNTS.size, self._count, self._first_at, now)

    def as_json(self) -> bytes:
        rows = [_COUNTS.unpack_from(self._rows, row * _COUNTS.size) for row in range(self._processes)]
        stats = {
            "requests": sum(row[0] for row in rows),
            "first_at": min((row[1] for row in rows if row[0]), default=0.0),
            "last_at": max(row[2] for row in rows),
        }
        return json.dumps(stats).encode()


class _Server:
    """Answers whole heads from `answers`; anything else is 404."""

    def __init__(self, listener: socket.socket, answers: dict[bytes, bytes], counts: _Counts) -> None:
        self._answers = answers
        self._counts = counts
        self._selector = _Selector()
        self._clients: dict[socket.socket, _Client] = {}
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until stdin closes."""
        while True:
            for key, events in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._serve(key.fileobj, events)
                elif not os.read(sys.stdin.fileno(), 4096):
                    return

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except BlockingIOError:  # another process took it
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._clients[client] = _Client()
        self._selector.register(client, selectors.EVENT_READ)

    def _serve(self, sock: socket.socket, events: int) -> None:
        client = self._clients[sock]
        try:
            if events & selectors.EVENT_READ:
                data = sock.recv(65_536)
                if not data:
                    self._drop(sock)
                    return
                client.received += data
            self._send(sock, client)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._drop(sock)

    def _send(self, sock: socket.socket, client: _Client) -> None:
        """Send what is owed, then answer the next head, until the socket is full or nothing is left."""
        while True:
            if client.owed:
                try:
                    client.owed = client.owed[sock.send(client.owed) :]
                except BlockingIOError:
                    self._selector.modify(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
                    return
                continue
            if client.closes:
                self._drop(sock)
                return
            head, end, rest = client.received.partition(b"\r\n\r\n")
            if not end:
                break
            client.received = rest
            client.owed = memoryview(self._answer(head))
            client.closes = b"\nconnection: close" in head.lower()
        if self._selector.get_key(sock).events & selectors.EVENT_WRITE:
            self._selector.modify(sock, selectors.EVENT_READ)

    def _answer(self, head: bytes) -> bytes:
        path = head.split(b" ", 2)[1] if head.startswith(b"GET ") else b""
        found = self._answers.get(path)
        if found is not None:
            if path != b"/robots.txt":
                self._counts.add()
            return found
        if path == _STATS_PATH:
            return _response("200 OK", "application/json", self._counts.as_json())
        return _response("404 Not Found", "text/plain", b"not found\n")

    def _drop(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        del self._clients[sock]
        sock.close()


def _response(status: str, media_type: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(1024)
    listener.setblocking(False)
    return listener


def main(arguments: Sequence[str] | None = None) -> None:
    """Render every page, print the port, and serve until stdin closes."""
    parser = argparse.ArgumentParser(description="Serve the link-heavy site.")
    parser.add_argument("--pages", type=int, required=True)
    parser.add_argument("--page-bytes", type=int, required=True)
    parser.add_argument("--links", type=int, required=True)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args(arguments)
    site = LinkSite(pages=options.pages, page_bytes=options.page_bytes, links=options.links)
    html = "text/html; charset=utf-8"
    answers = {site.path(n).encode(): _response("200 OK", html, site.html(n)) for n in range(site.pages)}
    answers[b"/robots.txt"] = _response("200 OK", "text/plain", b"User-agent: *\nAllow: /\n")
    counts = _Counts(options.processes)
    listener = _listen(0)
    port = listener.getsockname()[1]
    for row in range(1, options.processes):
        if os.fork() == 0:  # shares the rendered pages; sees the same stdin close
            counts.mine = row
            listener.close()
            listener = _listen(port)
            break
    if counts.mine == 0:
        print(port, flush=True)
    _Server(listener, answers, counts).run()


if __name__ == "__main__":
    main()

"""The demo shop as a site on loopback: in a thread of its owner, or as a process of its own.

Owns the address, the day and the request log; `demo.pages` owns what is shown.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from crawl_pipeline.demo import catalogue, pages
from crawl_pipeline.demo.server import Connection, Content, Site, content

OTHER_PATHS = frozenset({"/robots.txt", "/sitemap.xml"})  # logged apart: they are not page requests


class LoggedRequest(NamedTuple):
    """One request: when it arrived (seconds since the epoch), its target, and the status that it got."""

    at: float
    path: str
    status: int


class Shop:
    """A running shop; `start` makes one, `stop` (or the end of its `with` block) ends it.

    `requests` holds page requests and requests for paths that are not there, `other_requests` those for robots.txt
    and the sitemap, in order of arrival. Both grow while the shop runs.
    """

    def __init__(self, *, day: int, latency: float, log: Path | None) -> None:
        self.latency = latency
        self.requests: list[LoggedRequest] = []
        self.other_requests: list[LoggedRequest] = []
        self.port = 0
        self._day = day
        self._paths = pages.page_paths()
        self._contents: dict[tuple[int, str], Content] = {}
        self._log: IO[str] | None = log.open("a", encoding="utf-8", buffering=1) if log is not None else None
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._run, name="demo-shop", daemon=True)
        self._connections: set[Connection] = set()

    @classmethod
    def start(cls, port: int = 0, day: int = 0, latency: float = 0.02, log: Path | None = None) -> Shop:
        """Serve on 127.0.0.1 until `stop`. Port 0 takes a free one. Raises OSError if the port is taken and
        OverflowError if there is no such port.

        `log` gets one line a request, written at its arrival: time, status and target, parted by spaces.
        """
        shop = cls(day=_checked_day(day), latency=latency, log=log)
        try:
            shop._server = shop._loop.run_until_complete(
                shop._loop.create_server(shop._connect, "127.0.0.1", port, backlog=1024)
            )
        except (OSError, OverflowError):
            shop._close()
            raise
        shop.port = shop._server.sockets[0].getsockname()[1]
        shop._thread.start()
        return shop

    def stop(self) -> None:
        """Close every connection and free the port. Safe to call twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._close()

    def __enter__(self) -> Shop:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def day(self) -> int:
        return self._day

    def set_day(self, day: int) -> None:
        """Show the prices of `day` from the next request on."""
        self._day = _checked_day(day)

    def expected_records(self, day: int | None = None) -> dict[str, dict[str, object]]:
        """What a crawl on `day` (default: the shop's) must have stored, by SKU."""
        return catalogue.expected_records(self._day if day is None else _checked_day(day))

    def _run(self) -> None:
        self._loop.run_forever()

    def _close(self) -> None:
        if not self._loop.is_closed():
            if self._server is not None:
                self._server.close()
            for connection in tuple(self._connections):
                connection.abort()
            self._loop.run_until_complete(asyncio.sleep(0))  # lets the sockets close
            self._loop.close()
        if self._log is not None:
            self._log.close()

    def _connect(self) -> Connection:
        site = Site(lookup=self._lookup, observe=self._observe, latency=lambda: self.latency)
        return Connection(site, self._connections)

    def _observe(self, target: str, status: int) -> None:
        request = LoggedRequest(time.time(), target, status)
        (self.other_requests if target in OTHER_PATHS else self.requests).append(request)
        if self._log is not None:
            self._log.write(f"{request.at:.6f} {status} {target}\n")

    def _lookup(self, path: str) -> Content | None:
        day = self._day
        known = self._contents.get((day, path))
        if known is None:
            known = self._render(path, day)
            if known is not None:
                self._contents[day, path] = known
        return known

    def _render(self, path: str, day: int) -> Content | None:
        if path == "/robots.txt":
            return content(pages.robots_txt(self.base_url), "text/plain", catalogue.modified_at(0))
        if path == "/sitemap.xml":
            newest = catalogue.last_change(day)
            return content(pages.sitemap_xml(self.base_url, day), "application/xml", newest)
        if path not in self._paths:
            return None
        number = self._paths[path]
        if number is None:
            return content(pages.list_page(int(path.removeprefix("/list/"))), "text/html", catalogue.modified_at(day))
        return content(pages.product_page(number, day), "text/html", catalogue.modified_at(day, number))


def _checked_day(day: int) -> int:
    if day < 0:
        raise ValueError(f"the demo shop opened on day 0; {day} is before that")
    return day


def read_log(path: Path) -> list[LoggedRequest]:
    """The page requests in a log file so far, oldest first; robots.txt and the sitemap are left out.

    A last line that is still being written is not there yet.
    """
    requests = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            at, status, target = line.split(" ", 2)
            requests.append(LoggedRequest(float(at), target.rstrip("\n"), int(status)))
    return [request for request in requests if request.path not in OTHER_PATHS]


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, or until the parent is gone (its pipe on our stdin closes, or it ended)."""
    parser = argparse.ArgumentParser(prog="python -m crawl_pipeline.demo.shop", description="Serve the demo shop.")
    parser.add_argument("--port", type=int, default=8800, help="0 takes a free one (default: %(default)s)")
    parser.add_argument("--day", type=int, default=0, help="which day's prices to show (default: %(default)s)")
    parser.add_argument("--latency", type=float, default=0.02, help="seconds before each answer (default: %(default)s)")
    parser.add_argument("--log", type=Path, help="append one line a request: time, status, path")
    options = parser.parse_args(arguments)
    parent = os.getppid()
    ended = threading.Event()
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # also where a script started us in the background with SIGINT ignored
        signal.signal(number, lambda *_: ended.set())
    try:
        shop = Shop.start(port=options.port, day=options.day, latency=options.latency, log=options.log)
    except (OSError, OverflowError, ValueError) as error:
        parser.exit(1, f"the demo shop cannot be served on 127.0.0.1:{options.port}: {error}; try another --port\n")
    with shop:
        print(f"demo shop ready at {shop.base_url}/list/0 (day {shop.day})", flush=True)
        while not ended.wait(0.2) and not _parent_is_gone(parent):
            pass
    return 0


def _parent_is_gone(parent: int) -> bool:
    """A parent that holds a pipe to our stdin is gone when that closes; any other when we are handed to another."""
    if os.getppid() != parent:
        return True
    try:
        if not stat.S_ISFIFO(os.fstat(0).st_mode):
            return False
        return bool(select.select([0], [], [], 0)[0]) and os.read(0, 4096) == b""
    except OSError:  # stdin was closed before we began
        return False


if __name__ == "__main__":
    sys.exit(main())

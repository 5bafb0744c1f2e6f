"""A site on loopback whose answers a test writes as a function, on as many hosts as it likes (127.0.0.x, one port).

It records what arrived and when: politeness and repetition are judged from here, from the server's side.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Self

ROBOTS = "/robots.txt"
MADE_UP = "/no-such-page-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request: when it arrived (monotonic), at which host, for what."""

    at: float
    host: str
    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the site says. `delay` in seconds; `hangs`: never; `resets`: the connection is cut instead."""

    body: bytes | str = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str = "text/html; charset=utf-8"
    delay: float = 0.0
    hangs: bool = False
    resets: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A request and when its answer was done with. `was_cut`: whoever asked was gone by then."""

    asked: Asked
    status: int
    until: float
    was_cut: bool


Handler = Callable[[Asked], Answer]


def page(title: str, *links: str, text: str = "Some words.") -> Answer:
    """A small page with links."""
    anchors = "".join(f'<a href="{link}">{link}</a> ' for link in links)
    return Answer(
        body=f"<html><head><title>{title}</title></head><body><h1>{title}</h1><p>{text}</p>{anchors}</body></html>"
    )


NOT_FOUND = Answer(status=404, body="not here")


class Site:
    """`with Site(handler) as site:` serves until the block ends. `hosts`: how many addresses from 127.0.0.1 on."""

    def __init__(self, handler: Handler, *, hosts: int = 1, robots: Answer | Handler = NOT_FOUND) -> None:
        self._handler = handler
        self._hosts = hosts
        self.robots: Handler = (lambda _: robots) if isinstance(robots, Answer) else robots
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="site", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self.asked: list[Asked] = []
        self.served: list[Served] = []
        self.open_now: dict[str, int] = {}
        self.most_open: dict[str, int] = {}
        self.most_open_in_all = 0
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def authorities(self) -> list[str]:
        """The site's hosts, as a contract names them."""
        return [f"127.0.0.{number}:{self.port}" for number in range(1, self._hosts + 1)]

    @property
    def url(self) -> str:
        """The first host's root, without the slash."""
        return f"http://{self.authorities[0]}"

    @property
    def pages_asked(self) -> list[Asked]:
        """All but robots.txt, sitemaps, and the made-up page that a host with a suspicious one is asked for."""
        return [
            asked for asked in self.asked if asked.path not in (ROBOTS, "/sitemap.xml") and MADE_UP not in asked.path
        ]

    def paths(self) -> list[str]:
        """The paths of `pages_asked`, in order of arrival."""
        return [asked.path for asked in self.pages_asked]

    def stop_listening(self) -> None:
        """The hosts go down: connections are refused from now on, open ones are cut."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)

    def listen_again(self) -> None:
        """The hosts are back, on the same port."""
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    async def _listen(self) -> None:
        for number in range(1, self._hosts + 1):
            server = await asyncio.start_server(self._serve, f"127.0.0.{number}", self.port, backlog=1024)
            self.port = server.sockets[0].getsockname()[1]
            self._servers.append(server)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
                asked = Asked(at=time.monotonic(), host=headers["host"], path=head[0].split(" ")[1], headers=headers)
                if not await self._answer(asked, reader, writer):
                    break
        self._writers.discard(writer)
        writer.close()

    async def _answer(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self.asked.append(asked)
        self.open_now[asked.host] = self.open_now.get(asked.host, 0) + 1
        self.most_open[asked.host] = max(self.most_open.get(asked.host, 0), self.open_now[asked.host])
        self.most_open_in_all = max(self.most_open_in_all, sum(self.open_now.values()))
        try:
            answer = (self.robots if asked.path == ROBOTS else self._handler)(asked)
            if answer.hangs:
                await asyncio.sleep(3600)
            if answer.delay:
                await asyncio.sleep(answer.delay)
            if answer.resets:
                writer.transport.abort()
                return False
            was_cut = reader.at_eof() or writer.transport.is_closing()
            self.served.append(Served(asked=asked, status=answer.status, until=time.monotonic(), was_cut=was_cut))
            writer.write(_bytes(answer))
            await writer.drain()
            return True
        finally:
            self.open_now[asked.host] -= 1


def _bytes(answer: Answer) -> bytes:
    body = answer.body.encode() if isinstance(answer.body, str) else answer.body
    lines = [f"HTTP/1.1 {answer.status} Whatever", f"Content-Type: {answer.kind}"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    if answer.status == 304:
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    return ("\r\n".join([*lines, f"Content-Length: {len(body)}"]) + "\r\n\r\n").encode("latin-1") + body


def gaps(asked: Sequence[Asked]) -> list[float]:
    """Seconds between the arrivals of requests, per host."""
    by_host: dict[str, list[float]] = {}
    for one in asked:
        by_host.setdefault(one.host, []).append(one.at)
    return [later - sooner for times in by_host.values() for sooner, later in pairwise(times)]

"""A small HTTP/1.1 server for sites whose answers are known beforehand: GET and HEAD, keep-alive, validators.

Owns connections and status codes; what a path answers with is the site's.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime

_MAX_HEAD_BYTES = 16_384
_REASONS = {
    200: "OK",
    304: "Not Modified",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a path answers with. `etag` is strong: two contents share it only if their bytes are equal."""

    body: bytes
    media_type: str
    modified_at: datetime
    etag: str


def content(text: str, media_type: str, modified_at: datetime) -> Content:
    """UTF-8 content, tagged by the hash of its bytes."""
    body = text.encode("utf-8")
    tag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    return Content(body=body, media_type=f"{media_type}; charset=utf-8", modified_at=modified_at, etag=tag)


Lookup = Callable[[str], Content | None]  # a path without its query
Observe = Callable[[str, int], None]  # the target as requested, and the status that it will get


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What a connection serves. `latency` (seconds) is read anew for each request."""

    lookup: Lookup
    observe: Observe
    latency: Callable[[], float]


class Connection(asyncio.Protocol):
    """One client. Requests are answered in order, one at a time; each is observed when it arrives."""

    def __init__(self, site: Site, open_connections: set[Connection]) -> None:
        self._site = site
        self._open_connections = open_connections
        self._received = b""
        self._is_answering = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._open_connections.discard(self)

    def abort(self) -> None:
        """Drop the connection without sending what is still owed."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._is_answering:
            self._next_request()

    def _next_request(self) -> None:
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end:
            if len(head) > _MAX_HEAD_BYTES and self._transport is not None:
                self._transport.write(_answer(431, keep_alive=False))
                self._transport.close()
            return
        self._received = rest
        target, status, answer, keep_alive = _respond(head, self._site.lookup)
        if target is not None:
            self._site.observe(target, status)
        self._is_answering = True
        loop = asyncio.get_running_loop()
        loop.call_later(self._site.latency(), self._send, answer, keep_alive)

    def _send(self, answer: bytes, keep_alive: bool) -> None:
        self._is_answering = False
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(answer)
        if not keep_alive:
            self._transport.close()
        elif self._received:
            self._next_request()


def _respond(head: bytes, lookup: Lookup) -> tuple[str | None, int, bytes, bool]:
    """The request's target (None if it is not HTTP), its status, the whole answer, whether to keep the connection."""
    lines = head.decode("latin-1").lstrip("\r\n").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return None, 400, _answer(400, keep_alive=False), False
    method, target, version = words
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    keep_alive = _keeps_alive(version, headers)
    if method not in ("GET", "HEAD"):
        return target, 405, _answer(405, keep_alive=False, extra="Allow: GET, HEAD\r\n"), False
    found = lookup(target.partition("?")[0])
    if found is None:
        return target, 404, _answer(404, keep_alive=keep_alive, is_head=method == "HEAD"), keep_alive
    status = 304 if _is_current(found, headers) else 200
    return target, status, _answer(status, found, keep_alive=keep_alive, is_head=method == "HEAD"), keep_alive


def _keeps_alive(version: str, headers: dict[str, str]) -> bool:
    """A request with a body is answered and then hung up on: the body is never read."""
    wish = headers.get("connection", "").lower()
    if "close" in wish or "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        return False
    return version != "HTTP/1.0" or "keep-alive" in wish


def _is_current(found: Content, headers: dict[str, str]) -> bool:
    """RFC 9110 section 13.2.2: If-Modified-Since counts only where there is no If-None-Match."""
    tags = headers.get("if-none-match")
    if tags is not None:
        known = [tag.strip().removeprefix("W/") for tag in tags.split(",")]
        return "*" in known or found.etag in known
    with suppress(ValueError, OverflowError):
        since = parsedate_to_datetime(headers.get("if-modified-since", ""))
        return found.modified_at <= (since if since.tzinfo else since.replace(tzinfo=UTC))
    return False


def _answer(
    status: int, found: Content | None = None, *, keep_alive: bool, is_head: bool = False, extra: str = ""
) -> bytes:
    reason = _REASONS[status]
    body, media_type = f"{status} {reason}\n".encode(), "text/plain; charset=utf-8"
    if found is not None:
        body, media_type = found.body, found.media_type
        modified = format_datetime(found.modified_at, usegmt=True)
        extra += f"ETag: {found.etag}\r\nLast-Modified: {modified}\r\nCache-Control: no-cache\r\n"
    if status != 304:
        extra += f"Content-Type: {media_type}\r\nContent-Length: {len(body)}\r\n"
    date = format_datetime(datetime.now(UTC), usegmt=True)
    connection = "keep-alive" if keep_alive else "close"
    head = f"HTTP/1.1 {status} {reason}\r\nDate: {date}\r\n{extra}Connection: {connection}\r\n\r\n"
    return head.encode("latin-1") + (b"" if is_head or status == 304 else body)

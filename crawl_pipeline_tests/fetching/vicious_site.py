"""A local site whose paths are named for their vice.

It records what arrived, when, and on which connection, so that a test sees the client from the server's side.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import ssl
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from urllib.parse import parse_qs, urlsplit

PAGE = b"<!doctype html><title>A page</title><h1>A page</h1>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request as it arrived."""

    target: str
    at: float  # on the monotonic clock
    connection: int
    head: bytes

    def header(self, name: str) -> str | None:
        """The value of one header line."""
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.decode().lower() == name:
                return value.strip().decode("latin-1")
        return None


class Call:
    """One request being answered."""

    def __init__(
        self, site: ViciousSite, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, arrival: Arrival
    ) -> None:
        parts = urlsplit("http://site" + arrival.target)
        self.site = site
        self.arrival = arrival
        self.path = parts.path
        self.query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        self._reader = reader
        self._writer = writer

    async def until_gone(self) -> None:
        """Wait until the client closes the connection."""
        while await self._reader.read(65_536):
            pass

    async def hold(self) -> None:
        """Wait until the site lets go, or the client is gone."""
        self.site.waiting += 1
        gone = asyncio.create_task(self.until_gone())
        opened = asyncio.create_task(self.site.gate.wait())
        await asyncio.wait({gone, opened}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        opened.cancel()
        await asyncio.gather(gone, opened, return_exceptions=True)

    async def send(self, data: bytes) -> None:
        """Send bytes; raises ConnectionError once the client is gone."""
        self._writer.write(data)
        await self._writer.drain()
        self.site.sent[self.path] += len(data)
        await asyncio.sleep(0)

    async def answer(
        self, body: bytes = PAGE, *headers: str, status: str = "200 OK", length: int | None = None
    ) -> None:
        """Send a whole answer, or one whose Content-Length is a lie."""
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers, "", ""]
        await self.send("\r\n".join(lines).encode("latin-1") + body)

    async def html(self, body: bytes = PAGE, *headers: str, status: str = "200 OK", length: int | None = None) -> None:
        """`answer` as text/html."""
        await self.answer(body, "Content-Type: text/html; charset=utf-8", *headers, status=status, length=length)

    def reset(self) -> None:
        """Close the connection with a TCP reset."""
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Vice = Callable[[Call], Awaitable[bool]]
VICES: dict[str, Vice] = {}


def vice(path: str, *, closes: bool = True) -> Callable[[Callable[[Call], Awaitable[None]]], None]:
    """Register a vice; `closes`: the connection ends with it."""

    def register(function: Callable[[Call], Awaitable[None]]) -> None:
        async def run(call: Call) -> bool:
            await function(call)
            return not closes

        VICES[path] = run

    return register


class ViciousSite:
    """A server in a thread of its own, on a port that the system chooses, at `hosts` addresses from 127.0.0.1 on."""

    def __init__(self, tls: ssl.SSLContext | None = None, *, hosts: int = 1) -> None:
        self.arrivals: list[Arrival] = []
        self.connections = 0  # accepted, ever
        self.open_connections = 0
        self.sent: Counter[str] = Counter()
        self.waiting = 0  # requests that /waits holds back
        self._tls = tls
        self._hosts = hosts
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.new_event_loop()
        self.gate = asyncio.Event()  # opened by `let_go`
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self.port = 0

    def __enter__(self) -> ViciousSite:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._loop.close()

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        """The absolute URL of a path."""
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}{path}"

    def let_go(self) -> None:
        """Answer every request that /waits holds back."""
        self._loop.call_soon_threadsafe(self.gate.set)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        with contextlib.ExitStack() as listeners:
            for number in range(1, self._hosts + 1):
                listener = socket.create_server((f"127.0.0.{number}", self.port), backlog=2048)
                listeners.enter_context(listener)
                listener.setblocking(False)
                self.port = listener.getsockname()[1]
                # Not asyncio's Server: closed while it accepts a connection, it loses that connection's socket.
                self._loop.add_reader(listener, self._accept, listener)
                listeners.callback(self._loop.remove_reader, listener)
            self._ready.set()
            await self._stop.wait()
        await asyncio.sleep(0.01)  # every connection's task has begun
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()  # also those that are closing, but not rid of their bytes yet
        await asyncio.sleep(0.01)  # what was aborted is closed

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # gone again already
            sock, _ = listener.accept()
            sock.setblocking(False)
            self.connections += 1
            self._tasks.append(self._loop.create_task(self._connection(sock, self.connections)))

    async def _connection(self, sock: socket.socket, number: int) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        self.open_connections += 1
        writer: asyncio.StreamWriter | None = None
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, sock, ssl=self._tls)
                writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
                self._writers.append(writer)
                while await self._request(reader, writer, number):
                    pass
        finally:
            self.open_connections -= 1
            if writer is not None:
                writer.close()
            else:
                sock.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        first = await reader.readexactly(1)
        if first == b"\x16":  # a TLS greeting
            writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            return False
        head = first + await reader.readuntil(b"\r\n\r\n")
        target = head.split(b" ", 2)[1].decode("latin-1")
        arrival = Arrival(target=target, at=time.monotonic(), connection=number, head=head)
        self.arrivals.append(arrival)
        call = Call(self, reader, writer, arrival)
        return await VICES.get(call.path, _ordinary)(call)


async def _ordinary(call: Call) -> bool:
    await call.html()
    return True


async def _forever(call: Call, piece: bytes, every: float = 0.0) -> None:
    while True:
        await call.send(piece)
        if every:
            await asyncio.sleep(every)


# Time


@vice("/never-answers")
async def _never_answers(call: Call) -> None:
    await call.until_gone()


@vice("/waits", closes=False)
async def _waits(call: Call) -> None:
    await call.hold()
    await call.html()


@vice("/slow-drip")
async def _slow_drip(call: Call) -> None:
    await call.html(b"", length=1_000_000)
    await _forever(call, b"x", every=0.05)


@vice("/slow-head")
async def _slow_head(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    await _forever(call, b"x", every=0.05)


@vice("/steady", closes=False)
async def _steady(call: Call) -> None:
    """Slow, but within reason: 200 bytes every 50 ms."""
    await call.html(b"", length=4000)
    for _ in range(20):
        await call.send(b"s" * 200)
        await asyncio.sleep(0.05)


# Connections


@vice("/closes-at-once")
async def _closes_at_once(call: Call) -> None:
    pass


@vice("/resets")
async def _resets(call: Call) -> None:
    call.reset()


@vice("/resets-midway")
async def _resets_midway(call: Call) -> None:
    await call.html(b"x" * 100, length=10_000)
    await asyncio.sleep(0.1)
    call.reset()


@vice("/drops-midway")
async def _drops_midway(call: Call) -> None:
    await call.html(b"x" * 5000, length=10_000)


@vice("/cut-head")
async def _cut_head(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/h")


@vice("/cut-after-header")
async def _cut_after_header(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n")


# Lengths


@vice("/lies-about-length-short")
async def _lies_short(call: Call) -> None:
    """Sends less than it promises."""
    await call.html(b"x" * 10, length=1000)


@vice("/lies-about-length-long", closes=False)
async def _lies_long(call: Call) -> None:
    """Sends more than it promises: a second answer, hidden behind the first."""
    await call.html(b"12345HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nHIDDEN", length=5)


@vice("/answers-twice", closes=False)
async def _answers_twice(call: Call) -> None:
    """Sends an answer, and a moment later one that nobody asked for."""
    await call.html(PAGE)
    await asyncio.sleep(0.02)
    await call.html(b"<title>unasked</title>")


@vice("/two-lengths")
async def _two_lengths(call: Call) -> None:
    await call.html(b"x" * 10, "Content-Length: 5", length=10)


@vice("/length-is-no-number")
async def _no_number(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: ten\r\n\r\n0123456789")


@vice("/same-length-twice", closes=False)
async def _same_twice(call: Call) -> None:
    await call.html(PAGE, f"Content-Length: {len(PAGE)}")


@vice("/big")
async def _big(call: Call) -> None:
    """Says at once that it is 50 MB."""
    await call.html(b"", length=50_000_000)
    await _forever(call, bytes(65_536))


@vice("/endless")
async def _endless(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n")
    await _forever(call, b"x" * 65_536)


@vice("/until-close")
async def _until_close(call: Call) -> None:
    await call.send(b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n" + PAGE)


@vice("/empty-200", closes=False)
async def _empty(call: Call) -> None:
    await call.html(b"")


# Chunks


async def _chunked(call: Call, *chunks: bytes, headers: bytes = b"") -> None:
    await call.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n" + headers + b"\r\n")
    for chunk in chunks:
        await call.send(b"%x\r\n%s\r\n" % (len(chunk), chunk))


@vice("/chunked", closes=False)
async def _chunked_well(call: Call) -> None:
    await _chunked(call, PAGE[:10], PAGE[10:])
    await call.send(b"0\r\nX-Trailer: last\r\nContent-Type: image/png\r\n\r\n")


@vice("/chunked-without-end")
async def _chunked_without_end(call: Call) -> None:
    await _chunked(call, PAGE[:10], PAGE[10:])


@vice("/chunked-forever")
async def _chunked_forever(call: Call) -> None:
    await _chunked(call)
    await _forever(call, b"10000\r\n" + bytes(65_536) + b"\r\n")


@vice("/bad-chunks")
async def _bad_chunks(call: Call) -> None:
    await _chunked(call, PAGE)
    await call.send(b"no number\r\nmore\r\n")


# Heads


@vice("/garbage")
async def _garbage(call: Call) -> None:
    await call.send(b"\x00\x01\x02 this is no HTTP at all\r\n\r\n")


@vice("/headers-never-end")
async def _headers_never_end(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\n")
    await _forever(call, b"X-More: " + b"x" * 8000 + b"\r\n")


@vice("/huge-headers")
async def _huge_headers(call: Call) -> None:
    filler = [f"X-Filler-{n}: {'x' * 30_000}" for n in range(10)]
    await call.html(PAGE, *filler)


@vice("/large-headers", closes=False)
async def _large_headers(call: Call) -> None:
    """Large, but within reason: 60 lines, 60 kB."""
    await call.html(PAGE, *[f"X-Filler-{n}: {'x' * 1000}" for n in range(60)])


@vice("/many-headers", closes=False)
async def _many_headers(call: Call) -> None:
    await call.html(PAGE, *[f"X-Many-{n}: {n}" for n in range(500)])


@vice("/header-without-colon")
async def _without_colon(call: Call) -> None:
    await call.html(PAGE, "this is no header")


@vice("/folded-header", closes=False)
async def _folded(call: Call) -> None:
    await call.html(PAGE, "X-Folded: one\r\n two")


@vice("/controls-in-header", closes=False)
async def _controls(call: Call) -> None:
    await call.html(PAGE, 'ETag: "a\x01b"')


@vice("/cr-in-header")
async def _cr_in_header(call: Call) -> None:
    await call.html(PAGE, "X-Split: a\rX-Injected: b")


@vice("/nul-in-header")
async def _nul_in_header(call: Call) -> None:
    await call.html(PAGE, "X-Nul: a\0b")


@vice("/1xx-flood")
async def _flood(call: Call) -> None:
    await _forever(call, b"HTTP/1.1 102 Processing\r\nX-Patience: " + b"x" * 4000 + b"\r\n\r\n")


@vice("/early-hints", closes=False)
async def _early_hints(call: Call) -> None:
    await call.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nX-Hint: 1\r\n\r\n")
    await call.html()


# Types


@vice("/wrong-type")
async def _wrong_type(call: Call) -> None:
    await call.answer(b"", "Content-Type: image/png", length=20_000_000)
    await _forever(call, bytes(65_536))


@vice("/double-content-type", closes=False)
async def _double_type(call: Call) -> None:
    types = call.query.get("types", "image/png,text/html").split(",")
    await call.answer(PAGE, *[f"Content-Type: {each}" for each in types])


@vice("/no-content-type", closes=False)
async def _no_type(call: Call) -> None:
    await call.answer(PAGE)


SAMPLES = {
    "html": PAGE,
    "comment": b"\n<!-- a > b --><!-- c -->\r\n<HTML lang=en><p>x</p></HTML>",
    "xhtml": b'\xef\xbb\xbf<?xml version="1.0"?>\n<html xmlns="http://www.w3.org/1999/xhtml"><p>x</p></html>',
    "utf16": "\ufeff<!doctype html><p>x</p>".encode("utf-16-le"),
    "text": b"PK is no archive, %PDF is no document, <b is no tag",
    "bytes": b"a\x00b\x01c",
    "pdf": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n" + b"1 0 obj <a href=/x>y</a> " * 4000,
    "zip": b"PK\x03\x04\x14\x00",
    "gzip": gzip.compress(PAGE),
    "png": b"\x89PNG\r\n\x1a\n\x00\x00",
    "jpeg": b"\xff\xd8\xff\xe0\x00\x10JFIF",
    "gif": b"GIF89a\x01\x00",
    "webp": b"RIFF\x24\x00\x00\x00WEBPVP8 ",
    "mp4": b"\x00\x00\x00\x20ftypisom",
    "tar": b"file.html".ljust(257, b"\x00") + b"ustar\x0000",
}


@vice("/sample", closes=False)
async def _sample(call: Call) -> None:
    """`kind` names the body, `type` the Content-Type; with `goes-on` there is more of it than anybody wants."""
    headers = [f"Content-Type: {value}" for value in call.query.get("type", "").split("|") if value]
    body = SAMPLES[call.query["kind"]]
    if "goes-on" not in call.query:
        await call.answer(body, *headers)
        return
    await call.answer(body, *headers, length=20_000_000)
    await _forever(call, bytes(65_536))


# Encodings


@cache
def _block(size: int) -> bytes:
    """Deflate blocks of zeros that can be repeated at will."""
    engine = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return engine.compress(bytes(size)) + engine.flush(zlib.Z_FULL_FLUSH)


_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff"


@cache
def _nested_bomb() -> bytes:
    return gzip.compress(_GZIP_HEAD + _block(1_000_000) * 10_000, 1)


@vice("/gzip-bomb")
async def _gzip_bomb(call: Call) -> None:
    """1 GB of zeros; with ?layers=2, 10 GB in some 50 kB."""
    if call.query.get("layers") == "2":
        await call.html(_nested_bomb(), "Content-Encoding: gzip, gzip")
        return
    await call.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\n\r\n" + _GZIP_HEAD)
    for _ in range(100):
        await call.send(_block(10_000_000))


@vice("/empty-blocks")
async def _empty_blocks(call: Call) -> None:
    """Decodes to nothing, for ever."""
    await call.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\n\r\n" + _GZIP_HEAD)
    await _forever(call, b"\x00\x00\x00\xff\xff" * 10_000)


def _encoded(path: str, body: bytes, encoding: str, status: str = "200 OK") -> None:
    async def run(call: Call) -> None:
        await call.html(body, f"Content-Encoding: {encoding}", status=status)

    vice(path, closes=False)(run)


_SQUEEZED = gzip.compress(PAGE)
_encoded("/gzip", _SQUEEZED, "gzip")
_encoded("/x-gzip", _SQUEEZED, "X-GZip")
_encoded("/deflate", zlib.compress(PAGE), "deflate")
_encoded("/bare-deflate", zlib.compress(PAGE)[2:-4], "deflate")
_encoded("/gzip-twice", gzip.compress(_SQUEEZED), "gzip, gzip")
_encoded("/gzip-members", gzip.compress(PAGE[:20]) + gzip.compress(PAGE[20:]), "gzip")
_encoded("/gzip-padded", _SQUEEZED + b"\0" * 30, "gzip")
_encoded("/bad-gzip", b"this is not compressed at all", "gzip")
_encoded("/cut-gzip", _SQUEEZED[:-12], "gzip")
_encoded("/corrupt-gzip", _SQUEEZED[:-8] + b"\0\0\0\0" + _SQUEEZED[-4:], "gzip")
_encoded("/empty-gzip", b"", "gzip")
_encoded("/unasked-brotli", b"\x0b\x02\x80hello\x03", "br")
_encoded("/four-layers", _SQUEEZED, "gzip, gzip, gzip, gzip")
_encoded("/encoding-is-charset", PAGE, "utf-8")
_encoded("/404-bad-gzip", b"not compressed", "gzip", status="404 Not Found")


# Statuses


@vice("/redirect", closes=False)
async def _redirect(call: Call) -> None:
    await call.html(b"moved", "Location: /page", status="302 Found")


@vice("/redirect-endless")
async def _redirect_endless(call: Call) -> None:
    await call.send(b"HTTP/1.1 301 Moved Permanently\r\nLocation: /page\r\n\r\n")
    await _forever(call, bytes(65_536))


@vice("/redirect-slow-drip")
async def _redirect_drip(call: Call) -> None:
    await call.html(b"", "Location: /page", status="301 Moved Permanently", length=1000)
    await _forever(call, b"x", every=0.05)


@vice("/redirect-cut")
async def _redirect_cut(call: Call) -> None:
    await call.html(b"mov", "Location: /page", status="301 Moved Permanently", length=1000)


@vice("/304", closes=False)
async def _not_modified(call: Call) -> None:
    await call.send(b'HTTP/1.1 304 Not Modified\r\nETag: "1"\r\nContent-Length: 500\r\n\r\n')


@vice("/204", closes=False)
async def _no_content(call: Call) -> None:
    await call.send(b"HTTP/1.1 204 No Content\r\n\r\n")


@vice("/404", closes=False)
async def _not_found(call: Call) -> None:
    await call.answer(b"no such page", "Content-Type: image/png", status="404 Not Found")


@vice("/503-big")
async def _unavailable(call: Call) -> None:
    await call.html(b"", "Retry-After: 7", status="503 Service Unavailable", length=50_000_000)
    await _forever(call, bytes(65_536))


# Behaviour over several requests


@vice("/cookie", closes=False)
async def _cookie(call: Call) -> None:
    await call.html(PAGE, "Set-Cookie: session=1; Path=/")


@vice("/closes-after")
async def _closes_after(call: Call) -> None:
    """Promises to keep the connection, and closes it."""
    await call.html(PAGE, "Connection: keep-alive")


@vice("/asks-for-login", closes=False)
async def _login(call: Call) -> None:
    if call.arrival.header("authorization") == "Basic dXNlcjpwYXNz":
        await call.html(b"welcome")
    else:
        await call.html(b"", 'WWW-Authenticate: Basic realm="site"', status="401 Unauthorized")


@vice("/echo", closes=False)
async def _echo(call: Call) -> None:
    await call.html(call.arrival.head)

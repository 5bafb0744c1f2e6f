"""One libcurl easy handle: the options every request shares, and the exchange that it carries now."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pycurl

from crawl_pipeline.domain.pages import FetchFailure
from crawl_pipeline.fetching.addresses import permitted, refusal
from crawl_pipeline.fetching.reception import Reception
from crawl_pipeline.fetching.request_lines import header_lines, request_target

# CURLOPT_QUICK_EXIT, which pycurl has no name for: never wait for a resolver thread that is still busy.
_QUICK_EXIT = 322
# CURLOPT_SUPPRESS_CONNECT_HEADERS, nameless there too: a proxy's answer to CONNECT is not the site's.
_SUPPRESS_CONNECT_HEADERS = 265
_KEPT_FOR = 60  # seconds that an idle connection may still be used
_MOST_KEPT = 4096  # idle connections whose sockets are remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What libcurl's callbacks share with the loop that runs them.

    Exceptions of callbacks are left in `faults` for the loop to raise: pycurl would print and forget them.
    """

    clock: Callable[[], float]
    ca_file: str
    proxy: str | None
    faults: list[BaseException] = field(default_factory=list)
    opened: list[socket.socket] = field(default_factory=list)  # pycurl uses a duplicate: these are to be closed
    kept: dict[tuple[str, int], int] = field(default_factory=dict)  # local address of an idle connection -> its socket


class Hand:
    """Carries one exchange after another; made once, used again and again."""

    __slots__ = (
        *("_connect_ms", "_has_opened", "_loop", "_refused", "_timeout_ms"),
        *("easy", "is_answered_unasked", "reception", "tag"),
    )

    def __init__(self, loop: Loop) -> None:
        self.easy: Any = pycurl.Curl()
        self.tag: object = None
        self.reception: Reception | None = None
        self._loop = loop
        self.is_answered_unasked = False  # the kept connection had bytes to read before anything was asked over it
        self._refused: list[str] = []  # addresses that the rule kept it from
        self._has_opened = False  # a socket, to an address that the rule permits
        self._timeout_ms = self._connect_ms = 0
        self._set_shared_options(loop.ca_file)

    def _set_shared_options(self, ca_file: str) -> None:
        set_option = self.easy.setopt
        set_option(pycurl.NOSIGNAL, 1)
        set_option(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        set_option(pycurl.FOLLOWLOCATION, 0)
        set_option(pycurl.PATH_AS_IS, 1)
        set_option(pycurl.PROXY, self._loop.proxy or "")  # never the environment's
        set_option(pycurl.NOPROXY, "" if self._loop.proxy else "*")
        set_option(_SUPPRESS_CONNECT_HEADERS, 1)
        set_option(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS)
        set_option(pycurl.HTTP09_ALLOWED, 0)
        set_option(pycurl.HTTP_CONTENT_DECODING, 0)
        set_option(pycurl.USERAGENT, "")  # else pycurl names itself
        set_option(pycurl.SSL_VERIFYPEER, 1)
        set_option(pycurl.SSL_VERIFYHOST, 2)
        set_option(pycurl.CAINFO, ca_file)
        set_option(pycurl.MAXAGE_CONN, _KEPT_FOR)
        set_option(pycurl.HEADERFUNCTION, self._on_header)
        set_option(pycurl.WRITEFUNCTION, self._on_body)
        set_option(pycurl.OPENSOCKETFUNCTION, self._on_socket)
        set_option(pycurl.PREREQFUNCTION, self._on_connection)
        with contextlib.suppress(pycurl.error, TypeError):
            set_option(_QUICK_EXIT, 1)

    def take(self, tag: object, reception: Reception) -> None:
        """Prepare for one request. Raises ValueError for headers that cannot be sent."""
        request = reception.request
        lines = header_lines(request.headers)
        # An empty value is written "Name;" to libcurl: "Name:" would mean that the header is not to be sent.
        header = [(f"{name}: {value}" if value else f"{name};").encode("latin-1") for name, value in lines]
        set_option = self.easy.setopt
        set_option(pycurl.HTTPHEADER, header)
        set_option(pycurl.URL, request.url)
        # As written: libcurl alone would turn %e2 into %E2.
        set_option(pycurl.REQUEST_TARGET, request_target(request.url, self._loop.proxy))
        timeout_ms, connect_ms = max(1, round(request.timeout * 1000)), max(1, round(request.connect_timeout * 1000))
        if timeout_ms != self._timeout_ms:
            set_option(pycurl.TIMEOUT_MS, timeout_ms)
            self._timeout_ms = timeout_ms
        if connect_ms != self._connect_ms:
            set_option(pycurl.CONNECTTIMEOUT_MS, connect_ms)
            self._connect_ms = connect_ms
        self.reception = reception
        self.tag = tag
        self._refused.clear()
        self._has_opened = False
        self.is_answered_unasked = False

    def drop(self) -> None:
        """Forget the exchange; the handle may be taken again."""
        self.reception = None
        self.tag = None

    def keep(self) -> None:
        """The exchange is over, and its connection may serve another: remember its socket (before it leaves libcurl's
        multi handle). HTTP/2 tells answers apart by itself."""
        fd = self.easy.getinfo(pycurl.ACTIVESOCKET)
        if fd >= 0 and self.reception is not None and self.reception.http_version != "2":
            if len(self._loop.kept) >= _MOST_KEPT:
                self._loop.kept.clear()
            self._loop.kept[self.easy.getinfo(pycurl.LOCAL_IP), self.easy.getinfo(pycurl.LOCAL_PORT)] = fd

    def refusal(self) -> str | None:
        """The sentence for people when the address rule left no address to connect to."""
        if not self._refused or self._has_opened or self.reception is None:
            return None
        host = urlsplit(self.reception.request.url).hostname or ""
        return refusal(host, self._refused)

    # Callbacks: libcurl calls them inside socket_action.

    def _on_header(self, line: bytes) -> int | None:
        try:
            assert self.reception is not None
            return None if self.reception.take_line(line, self._loop.clock()) else 0
        except BaseException as error:
            self._loop.faults.append(error)
            return 0

    def _on_body(self, chunk: bytes) -> int | None:
        try:
            assert self.reception is not None
            return None if self.reception.take_body(chunk) else 0
        except BaseException as error:
            self._loop.faults.append(error)
            return 0

    def _on_connection(self, _ip: str, local_ip: str, _port: int, local_port: int) -> int:
        """A connection is had. What it has to say before it is asked is no answer to this request (RFC 9112, 9.2):
        libcurl would take it for one, and every later answer for the one before."""
        try:
            fd = self._loop.kept.pop((local_ip, local_port), None)
            if fd is None:
                return pycurl.PREREQFUNC_OK  # type: ignore[no-any-return]
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            self.is_answered_unasked = bool(poll.poll(0))
            return pycurl.PREREQFUNC_ABORT if self.is_answered_unasked else pycurl.PREREQFUNC_OK  # type: ignore[no-any-return]
        except BaseException as error:
            self._loop.faults.append(error)
            return pycurl.PREREQFUNC_ABORT  # type: ignore[no-any-return]

    def _on_socket(self, purpose: int, address: Any) -> Any:
        try:
            assert self.reception is not None
            family, kind, protocol, (ip, *_) = address
            if self._loop.proxy is None and not permitted(ip, self.reception.request.allow_networks):
                self._refused.append(ip)
                return pycurl.SOCKET_BAD
            self._has_opened = True
            opened = socket.socket(family, kind, protocol)
            self._loop.opened.append(opened)
            return opened
        except OSError as error:
            if self.reception is not None:
                self.reception.end(FetchFailure.CONNECTION, f"no socket could be opened: {error}")
            return pycurl.SOCKET_BAD
        except BaseException as error:
            self._loop.faults.append(error)
            return pycurl.SOCKET_BAD

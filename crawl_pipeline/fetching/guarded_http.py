"""urllib3 connections that obey the address rule and report to the exchange they serve.

The exchange is the one of the thread that uses the connection: a connection goes from thread to thread in its pool,
and lives in the pool of one set of `allow_networks` only.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from typing import Any

import requests.adapters
import urllib3.connection
import urllib3.connectionpool
from urllib3.exceptions import NewConnectionError

from crawl_pipeline.domain.pages import FetchFailure
from crawl_pipeline.fetching.addresses import permitted, refusal
from crawl_pipeline.fetching.reception import Reception

_EVERYWHERE = ("0.0.0.0/0", "::/0")


class Ended(http.client.HTTPException):
    """The exchange was ended by its own limits, or is no longer wanted; its verdict is in its reception."""


class Carriage:
    """One exchange on its way through a thread, and the socket it uses now."""

    def __init__(self, reception: Reception, target: str) -> None:
        self.reception = reception
        self.target = target
        self._has_opened = False  # a connection of its own, rather than one that is kept
        self._is_kept = False  # the request went over a kept connection
        self.is_over = False  # its Exchange was handed out: whatever still runs for it must stop
        self._socket: socket.socket | None = None

    def takes_back_kept(self) -> bool:
        """Whether the request went over a kept connection, and so may be sent again over another."""
        was_kept, self._is_kept = self._is_kept, False
        return was_kept and not self.is_over

    def use_kept(self, sock: socket.socket | None) -> None:
        """Note the socket a request is sent over, if there is one yet. Raises Ended when the exchange is over."""
        self.use(sock)
        self._is_kept = sock is not None and not self._has_opened

    def use_new(self, sock: socket.socket) -> None:
        """Note a socket that is about to connect. Raises Ended when the exchange is over."""
        self._has_opened = True
        self.use(sock)

    def use(self, sock: socket.socket | None) -> None:
        """Note the socket, so that `cut` can reach it. Raises Ended when the exchange is over."""
        self._socket = sock
        if sock is not None:
            self.reception.address = sock.getpeername()[0] if _is_connected(sock) else self.reception.address
        if self.is_over:
            raise Ended("the exchange is over")

    def cut(self) -> None:
        """Shut the socket down, which makes the thread that waits for it return. May be called from any thread."""
        self.is_over = True
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):  # not connected, or closed
                # Not SSLSocket's own: that would take the TLS state from under the thread that reads.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)


class _Current(threading.local):
    carriage: Carriage


current = _Current()


def _is_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


class _Head:
    """The head of an answer as http.client reads it, each line shown to the reception first."""

    def __init__(self, stream: Any, reception: Reception) -> None:
        self._stream = stream
        self._reception = reception
        self._has_begun = False

    def readline(self, size: int = -1) -> bytes:
        line: bytes = self._stream.readline(size)
        if not line:
            if self._has_begun:
                self._reception.end(FetchFailure.TRUNCATED, "the connection was closed within the headers")
                raise Ended("cut within the headers")
            return line
        self._has_begun = True
        if not self._reception.take_line(line, time.monotonic()):
            raise Ended("ended at the headers")
        return line

    def close(self) -> None:
        self._stream.close()


class _Response(http.client.HTTPResponse):
    """An answer whose head goes through the reception, and whose interim answers are passed over (RFC 9110, 15.2)."""

    fp: Any

    def begin(self) -> None:
        stream = self.fp
        self.fp = _Head(stream, current.carriage.reception)
        try:
            super().begin()
        finally:
            if self.fp is not None:
                self.fp = stream

    def _read_status(self) -> tuple[str, int, str]:
        while True:
            found: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]  # not in the stubs
            if not 100 < found[1] < 200 or found[1] == 101:
                return found
            while self.fp.readline(65537) not in (b"\r\n", b"\n", b""):
                pass


class _Guard:
    """Connecting by the address rule; for both connection classes."""

    response_class = _Response
    allow_networks: tuple[str, ...] = ()
    _dns_host: str
    port: int
    timeout: Any
    socket_options: Any
    sock: socket.socket | None

    def _new_conn(self) -> socket.socket:
        carriage = current.carriage
        host = self._dns_host.strip("[]")
        found = _resolve(carriage, host, self.port)
        allowed = [entry for entry in found if permitted(str(entry[4][0]), self.allow_networks)]
        if not allowed:
            detail = refusal(host, [str(entry[4][0]) for entry in found])
            carriage.reception.end(FetchFailure.ADDRESS_REFUSED, detail)
            raise Ended(detail)
        carriage.use(None)
        return self._connect_to_one(carriage, allowed)

    def _connect_to_one(self, carriage: Carriage, addresses: list[Any]) -> socket.socket:
        deadline = time.monotonic() + self.timeout
        fault: OSError | None = None
        for family, kind, protocol, _, address in addresses:
            sock = socket.socket(family, kind, protocol)
            try:
                for option in self.socket_options or ():
                    sock.setsockopt(*option)
                carriage.use_new(sock)
                sock.settimeout(max(0.001, deadline - time.monotonic()))
                sock.connect(address)
                carriage.use(sock)
                return sock
            except OSError as error:
                sock.close()
                fault = error
            except BaseException:
                sock.close()
                raise
        is_late = isinstance(fault, TimeoutError)
        carriage.reception.end(
            FetchFailure.TIMEOUT if is_late else FetchFailure.CONNECTION,
            f"no connection to {self._dns_host}: {fault}",
        )
        raise NewConnectionError(self, str(fault)) from fault  # type: ignore[arg-type]  # _Guard is mixed into one

    def putrequest(self, method: str, url: str, *args: Any, **options: Any) -> None:
        """Send the request line with the target exactly as the URL has it: urllib3 would re-encode it."""
        carriage = current.carriage
        carriage.use_kept(self.sock)
        carriage.reception.restart()
        super().putrequest(method, carriage.target, *args, **options)  # type: ignore[misc]  # mixed in


class GuardedHTTPConnection(_Guard, urllib3.connection.HTTPConnection):  # type: ignore[misc]  # response_class
    pass


class GuardedHTTPSConnection(_Guard, urllib3.connection.HTTPSConnection):  # type: ignore[misc]  # response_class
    pass


def _resolve(carriage: Carriage, host: str, port: int) -> list[Any]:
    try:
        return socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: a label that no DNS query can carry
        carriage.reception.end(FetchFailure.CONNECTION, f"{host} could not be resolved: {error}")
        raise Ended("not resolved") from error


def _pool_class(pool: type, connection: type, allow_networks: tuple[str, ...]) -> Any:
    bound = type(connection.__name__, (connection,), {"allow_networks": allow_networks})
    return type(pool.__name__, (pool,), {"ConnectionCls": bound})


class GuardedAdapter(requests.adapters.HTTPAdapter):
    """An adapter whose every connection was opened to an address that `allow_networks` permits, or to the proxy."""

    def __init__(self, allow_networks: tuple[str, ...], *, pool_size: int, proxy: str | None = None) -> None:
        self._allow_networks = _EVERYWHERE if proxy else allow_networks
        super().__init__(pool_connections=max(10, pool_size), pool_maxsize=pool_size, max_retries=0)

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **options: Any) -> None:
        super().init_poolmanager(connections, maxsize, block, **options)
        self._guard(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **options)
        self._guard(manager)
        return manager

    def _guard(self, manager: Any) -> None:
        manager.pool_classes_by_scheme = {
            "http": _pool_class(urllib3.HTTPConnectionPool, GuardedHTTPConnection, self._allow_networks),
            "https": _pool_class(urllib3.HTTPSConnectionPool, GuardedHTTPSConnection, self._allow_networks),
        }

    def close(self) -> None:
        """Close every idle connection now: urllib3 leaves that to the garbage collector."""
        for manager in (self.poolmanager, *self.proxy_manager.values()):
            for key in manager.pools.keys():  # noqa: SIM118  # no mapping that can be iterated
                pool = manager.pools.get(key)
                if pool is not None:
                    pool.close()
        super().close()

"""The `requests` client: the same exchanges, each in a thread of its own while it lasts.

For sources that need its auth plugins. It knows HTTP/1.1 only, and takes some ten times libcurl's CPU time.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from http.client import HTTPException, RemoteDisconnected
from http.cookiejar import DefaultCookiePolicy

import requests
from requests.structures import CaseInsensitiveDict
from urllib3.exceptions import HTTPError, SSLError
from urllib3.exceptions import TimeoutError as Urllib3Timeout

from crawl_pipeline.domain.pages import Exchange, FetchFailure, FetchRequest
from crawl_pipeline.fetching.addresses import parse_networks
from crawl_pipeline.fetching.guarded_http import Carriage, GuardedAdapter, current
from crawl_pipeline.fetching.reception import Limits, Reception
from crawl_pipeline.fetching.request_lines import header_lines, request_target

_CHUNK = 65_536
_LOOK_EVERY = 0.25  # seconds between looks for late and stalled exchanges
_IDLE_SESSIONS = 8  # sets of allow_networks whose idle connections are kept

_Job = tuple[object, Carriage, requests.Session]


class RequestsTransport:
    """Implements `Transport`. Starts, polls and aborts belong to one thread; `wake` to any.

    A thread that hangs in the resolver is left behind at the exchange's deadline and used again once it is back.
    """

    def __init__(
        self,
        *,
        max_in_flight: int,
        limits: Limits,
        ca_file: str,
        proxy: str | None = None,
        make_session: Callable[[], requests.Session] = requests.Session,
    ) -> None:
        self._max_in_flight = max_in_flight
        self._limits = limits
        self._ca_file = ca_file
        self._proxy = proxy
        self._proxies = {"http": proxy, "https": proxy} if proxy else {}
        self._make_session = make_session
        self._sessions: dict[tuple[str, ...], requests.Session] = {}
        self._in_flight: dict[object, Carriage] = {}
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[object, Carriage, Exchange | BaseException] | None] = queue.SimpleQueue()
        self._ended: list[tuple[object, Exchange]] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._busy = 0  # threads with an exchange, those left behind included
        self._look_at = 0.0
        self._is_closed = False

    @property
    def max_in_flight(self) -> int:
        return self._max_in_flight

    @property
    def in_flight(self) -> int:
        return len(self._in_flight) + len(self._ended)

    def start(self, request: FetchRequest, tag: object) -> None:
        if self.in_flight >= self._max_in_flight:
            raise RuntimeError(f"{self._max_in_flight} exchanges are in flight; no more can be started")
        if tag in self._in_flight:
            raise RuntimeError(f"an exchange with the tag {tag!r} is in flight already")
        parse_networks(request.allow_networks)
        header_lines(request.headers)
        request.url.encode("ascii")
        reception = Reception(request, self._limits, started_at=datetime.now(UTC), started=time.monotonic())
        carriage = Carriage(reception, request_target(request.url, self._proxy))
        self._in_flight[tag] = carriage
        with self._lock:
            self._busy += 1
            has_thread = self._busy <= len(self._threads)
        if not has_thread:
            thread = threading.Thread(target=self._work, name=f"fetch-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((tag, carriage, self._session(request.allow_networks)))

    def poll(self, timeout: float) -> list[tuple[object, Exchange]]:
        deadline = time.monotonic() + timeout
        finished, self._ended = self._ended, []
        while True:
            self._look(time.monotonic())
            finished += self._ended
            self._ended = []
            left = 0.0 if finished else max(0.0, deadline - time.monotonic())
            is_woken = self._gather(min(left, _LOOK_EVERY), finished)
            if finished or is_woken or time.monotonic() >= deadline:
                return finished

    def abort(self, tag: object) -> None:
        carriage = self._in_flight.get(tag)
        if carriage is not None:
            self._leave(tag, carriage, FetchFailure.ABORTED, "ended by the crawl")

    def wake(self) -> None:
        self._results.put(None)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for carriage in self._in_flight.values():
            carriage.cut()
        self._in_flight.clear()
        self._ended.clear()
        for _ in self._threads:
            self._jobs.put(None)
        deadline = time.monotonic() + 1.0
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for session in self._sessions.values():
            session.close()

    # The polling thread

    def _gather(self, timeout: float, finished: list[tuple[object, Exchange]]) -> bool:
        """Wait for one result, take all that are there; whether it was woken."""
        is_woken = False
        with contextlib.suppress(queue.Empty):
            item = self._results.get(timeout=timeout) if timeout > 0 else self._results.get_nowait()
            while True:
                if item is None:
                    is_woken = True
                elif not item[1].is_over:
                    tag, carriage, result = item
                    carriage.is_over = True
                    del self._in_flight[tag]
                    if isinstance(result, BaseException):
                        self._ended += finished
                        raise result
                    finished.append((tag, result))
                item = self._results.get_nowait()
        return is_woken

    def _look(self, now: float) -> None:
        """End what is late or stalled."""
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY
        for tag, carriage in list(self._in_flight.items()):
            reception = carriage.reception
            if now - reception.started > reception.request.timeout:
                took = f"no complete answer within {reception.request.timeout:g} s"
                self._leave(tag, carriage, FetchFailure.TIMEOUT, took)
            elif reception.is_stalled(now):
                self._leave(tag, carriage, FetchFailure.TIMEOUT, reception.stall())

    def _leave(self, tag: object, carriage: Carriage, failure: FetchFailure | None, detail: str | None) -> None:
        carriage.reception.end(failure, detail)  # before the cut, which the thread would see as the server's doing
        carriage.cut()
        del self._in_flight[tag]
        self._ended.append((tag, carriage.reception.exchange(failure, detail, now=time.monotonic())))

    def _session(self, networks: tuple[str, ...]) -> requests.Session:
        session = self._sessions.pop(networks, None)
        if session is None:
            self._forget_idle_sessions()
            session = self._make_session()
            session.trust_env = False
            session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
            # Else `send` would read a redirect's whole body to prepare the next request.
            session.get_redirect_target = _no_redirect  # type: ignore[method-assign]  # its only switch
            for scheme in ("http://", "https://"):
                session.mount(scheme, GuardedAdapter(networks, pool_size=self._max_in_flight, proxy=self._proxy))
        self._sessions[networks] = session  # the last used is the last in order
        return session

    def _forget_idle_sessions(self) -> None:
        used = {carriage.reception.request.allow_networks for carriage in self._in_flight.values()}
        idle = [networks for networks in self._sessions if networks not in used]
        for networks in idle[: max(0, len(idle) - _IDLE_SESSIONS + 1)]:
            self._sessions.pop(networks).close()

    # The threads

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            tag, carriage, session = job
            current.carriage = carriage
            result: Exchange | BaseException
            try:
                result = self._carry(carriage, session)
            except BaseException as error:
                result = error
            with self._lock:
                self._busy -= 1
            self._results.put((tag, carriage, result))

    def _carry(self, carriage: Carriage, session: requests.Session) -> Exchange:
        reception = carriage.reception
        while True:
            failure: FetchFailure | None = None
            detail: str | None = None
            try:
                self._send_and_read(carriage, session)
            except (requests.RequestException, HTTPError, HTTPException, OSError) as error:
                failure, detail = failure_of(error, has_begun=reception.has_head), _one_line(_causes(error)[-1])
            # A kept connection that the server was just closing: asked again on another one (RFC 9112, 9.3.1).
            if failure is not FetchFailure.CONNECTION or reception.is_ended or not carriage.takes_back_kept():
                return reception.exchange(failure, detail, now=time.monotonic())

    def _send_and_read(self, carriage: Carriage, session: requests.Session) -> None:
        reception = carriage.reception
        request = reception.request
        prepared = session.prepare_request(requests.Request("GET", request.url))
        prepared.url = request.url
        prepared.headers = CaseInsensitiveDict({**prepared.headers, **dict(header_lines(request.headers))})
        response = session.send(
            prepared,
            stream=True,
            allow_redirects=False,
            verify=self._ca_file,
            proxies=self._proxies,
            timeout=(request.connect_timeout, request.timeout),
        )
        with contextlib.closing(response):
            if response.headers.get("transfer-encoding", "chunked").lower() != "chunked":
                reception.end(FetchFailure.PROTOCOL, "the Transfer-Encoding is not chunked")
                return
            while chunk := response.raw.read1(_CHUNK, decode_content=False):
                if not reception.take_body(chunk):
                    return


def _no_redirect(resp: requests.Response) -> str | None:
    return None


def failure_of(error: BaseException, *, has_begun: bool) -> FetchFailure:
    """The failure behind an exception of requests, urllib3 or http.client, which wrap one another."""
    causes = _causes(error)

    def has(*types: type[BaseException]) -> bool:
        return any(isinstance(cause, types) for cause in causes)

    if has(TimeoutError, Urllib3Timeout, requests.Timeout):
        return FetchFailure.TIMEOUT
    if has_begun:
        return FetchFailure.TRUNCATED
    if has(SSLError, requests.exceptions.SSLError):
        return FetchFailure.TLS
    if has(RemoteDisconnected, ConnectionError):
        return FetchFailure.CONNECTION
    if has(HTTPException, requests.exceptions.InvalidHeader, requests.exceptions.InvalidSchema):
        return FetchFailure.PROTOCOL
    return FetchFailure.CONNECTION


def _causes(error: BaseException) -> list[BaseException]:
    """The exception and those it wraps, the outermost first; each library has its own way to hold them."""
    found: list[BaseException] = []
    left: list[object] = [error]
    while left:
        cause = left.pop(0)
        if isinstance(cause, BaseException) and cause not in found:
            found.append(cause)
            left += [*cause.args, getattr(cause, "reason", None), cause.__cause__]
    return found


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:300]

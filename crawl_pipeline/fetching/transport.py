"""What a crawl loop asks of an HTTP client, and which client it gets.

One thread starts, polls and aborts; any thread may wake it. One request is one hop: no redirect is followed, no
cookie kept, certificates are verified.
"""

from __future__ import annotations

import ssl
from typing import Literal, Protocol

import certifi

from crawl_pipeline.domain.pages import Exchange, FetchRequest
from crawl_pipeline.errors import InfrastructureError
from crawl_pipeline.fetching.reception import Limits

ClientName = Literal["libcurl", "requests"]


class Transport(Protocol):
    """Many exchanges at once: every `start` has exactly one Exchange from `poll`, whatever the server does."""

    @property
    def max_in_flight(self) -> int:
        """How many exchanges it can carry at once."""
        ...

    @property
    def in_flight(self) -> int:
        """How many were started and not yet returned by `poll`."""
        ...

    def start(self, request: FetchRequest, tag: object) -> None:
        """Begin one exchange; it comes back under `tag` (hashable, unique among those in flight).

        Raises ValueError for a request that cannot be put into HTTP, RuntimeError beyond `max_in_flight`.
        """
        ...

    def poll(self, timeout: float) -> list[tuple[object, Exchange]]:
        """What has finished: returns as soon as something has, at `wake`, or after `timeout` seconds.

        What the web does wrong is in the Exchange; an exception here is a fault of this program.
        """
        ...

    def abort(self, tag: object) -> None:
        """End one exchange now; the next `poll` returns it as ABORTED. Nothing happens if it is not in flight."""
        ...

    def wake(self) -> None:
        """Make the running or the next `poll` return. May be called from any thread."""
        ...

    def close(self) -> None:
        """End everything and close every connection; what was in flight is forgotten. Idempotent."""
        ...


def make_transport(
    client: ClientName,
    *,
    max_in_flight: int,
    limits: Limits | None = None,
    ca_file: str | None = None,
    proxy: str | None = None,
) -> Transport:
    """The client named by `fetch.client`.

    `proxy` (of `trusted_proxy`) enforces the address rule in the client's place. `ca_file` holds the trusted
    certificates; by default OpenSSL's (SSL_CERT_FILE is honoured), else certifi's.
    Raises InfrastructureError when the process may not open as many sockets as `max_in_flight` needs.
    """
    ensure_descriptors(2 * max_in_flight + 128)
    ca_file = ca_file or ssl.get_default_verify_paths().cafile or certifi.where()
    limits = limits or Limits()
    match client:
        case "libcurl":
            from crawl_pipeline.fetching.curl_transport import CurlTransport

            return CurlTransport(max_in_flight=max_in_flight, limits=limits, ca_file=ca_file, proxy=proxy)
        case "requests":
            from crawl_pipeline.fetching.requests_transport import RequestsTransport

            return RequestsTransport(max_in_flight=max_in_flight, limits=limits, ca_file=ca_file, proxy=proxy)
    raise ValueError(f'no HTTP client named "{client}"; clients are libcurl and requests')


def ensure_descriptors(count: int) -> None:
    """Let this process open `count` files, raising its own (soft) limit where the system allows it."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise InfrastructureError(
            f"this process may open {hard} files and so many transfers need {count}: "
            "raise the limit (ulimit -Hn) or lower limits.max_in_flight"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))

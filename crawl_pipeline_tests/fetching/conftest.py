"""A misbehaving site a test, and each client in turn."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from crawl_pipeline.domain.pages import Exchange, FetchRequest
from crawl_pipeline.fetching.reception import Limits
from crawl_pipeline.fetching.transport import ClientName, Transport, make_transport
from crawl_pipeline_tests.fetching.driving import LOOPBACK, fetch_one
from crawl_pipeline_tests.fetching.vicious_site import ViciousSite

CLIENTS: tuple[ClientName, ...] = ("libcurl", "requests")
# As in production, but for the patience with slow bodies.
QUICK = Limits(low_speed_for=0.5)

Fetch = Callable[..., Exchange]


@pytest.fixture
def site() -> Iterator[ViciousSite]:
    """A site over HTTP."""
    with ViciousSite() as site:
        yield site


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """A certificate authority that only these tests trust."""
    return trustme.CA()


@pytest.fixture(scope="session")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The authority's own certificate."""
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


@pytest.fixture
def tls_site(authority: trustme.CA) -> Iterator[ViciousSite]:
    """A site over HTTPS whose certificate is for 127.0.0.1 only."""
    with ViciousSite(tls_context(authority, "127.0.0.1")) as site:
        yield site


def tls_context(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    """A server's TLS with a certificate for these names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> ClientName:
    """Each client in turn."""
    name: ClientName = request.param
    return name


@pytest.fixture
def transport(client: ClientName, ca_file: Path) -> Iterator[Transport]:
    """The client's transport, which trusts the tests' authority and nobody else."""
    transport = make_transport(client, max_in_flight=64, limits=QUICK, ca_file=str(ca_file))
    yield transport
    transport.close()


@pytest.fixture
def fetch(transport: Transport) -> Fetch:
    """Fetch one URL from the loopback; keyword arguments are FetchRequest's."""

    def run(url: str, **options: object) -> Exchange:
        options.setdefault("allow_networks", LOOPBACK)
        options.setdefault("timeout", 10.0)
        return fetch_one(transport, FetchRequest(url=url, **options))  # type: ignore[arg-type]  # as the test wrote them

    return run

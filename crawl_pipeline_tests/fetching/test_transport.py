"""Many exchanges at once: what a crawl loop relies on, for both clients."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from crawl_pipeline.domain.pages import FetchFailure, FetchRequest
from crawl_pipeline.errors import InfrastructureError
from crawl_pipeline.fetching import transport as transport_module
from crawl_pipeline.fetching.reception import Limits, Reception
from crawl_pipeline.fetching.transport import ClientName, Transport, ensure_descriptors, make_transport
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.fetching.conftest import Fetch
from crawl_pipeline_tests.fetching.driving import LOOPBACK, collect, fetch_one
from crawl_pipeline_tests.fetching.vicious_site import PAGE, ViciousSite

Start = Callable[..., None]


@pytest.fixture
def start(transport: Transport, site: ViciousSite) -> Start:
    """Start one request to the site under its path as tag; keyword arguments are FetchRequest's."""

    def run(path: str, tag: object = None, **options: object) -> None:
        request = FetchRequest(url=site.url(path), allow_networks=LOOPBACK, **options)  # type: ignore[arg-type]
        transport.start(request, tag or path)

    return run


def test_a_poll_with_nothing_in_flight_lasts_its_time_and_returns_nothing(transport: Transport) -> None:
    started = time.monotonic()
    assert transport.poll(0.2) == []
    assert time.monotonic() - started >= 0.19


def test_finished_exchanges_come_back_while_others_hang(transport: Transport, start: Start, site: ViciousSite) -> None:
    bad = ["/never-answers", "/slow-head", "/headers-never-end", "/1xx-flood", "/waits"]
    for path in bad:
        start(path, timeout=60.0)
    for n in range(30):
        start(f"/page/{n}")
    found = collect(transport, 32)
    assert sum(exchange.body == PAGE for exchange in found.values()) == 30
    assert transport.in_flight == 3
    site.let_go()
    assert collect(transport, 1)["/waits"].body == PAGE


def test_an_aborted_exchange_comes_back_once_as_aborted(transport: Transport, start: Start, site: ViciousSite) -> None:
    start("/never-answers")
    start("/waits")
    wait_until(lambda: transport.poll(0.01) == [] and len(site.arrivals) == 2)
    transport.abort("/never-answers")
    transport.abort("/never-answers")
    transport.abort("unknown")
    found = collect(transport, 1)
    assert found["/never-answers"].failure is FetchFailure.ABORTED
    assert transport.in_flight == 1
    site.let_go()
    assert collect(transport, 1)["/waits"].failure is None
    assert transport.poll(0.05) == []
    wait_until(lambda: site.open_connections <= 1)


def test_an_exchange_may_be_aborted_before_it_was_sent(transport: Transport, start: Start) -> None:
    start("/page")
    transport.abort("/page")
    assert collect(transport, 1)["/page"].failure is FetchFailure.ABORTED
    start("/page")
    assert collect(transport, 1)["/page"].body == PAGE


def test_a_poll_is_woken_from_another_thread(transport: Transport, start: Start) -> None:
    start("/never-answers", timeout=60.0)
    thread = threading.Thread(target=transport.wake)
    started = time.monotonic()
    thread.start()
    assert transport.poll(60.0) == []
    thread.join()
    assert time.monotonic() - started < 50
    assert transport.poll(0.0) == []


def test_a_wake_before_the_poll_is_not_lost(transport: Transport) -> None:
    for _ in range(10_000):
        transport.wake()
    started = time.monotonic()
    assert transport.poll(60.0) == []
    assert time.monotonic() - started < 50


def test_no_more_than_max_in_flight_are_taken(client: ClientName, site: ViciousSite) -> None:
    transport = make_transport(client, max_in_flight=2)
    request = FetchRequest(url=site.url("/never-answers"), allow_networks=LOOPBACK)
    transport.start(request, 1)
    transport.start(request, 2)
    with pytest.raises(RuntimeError, match="2 exchanges are in flight"):
        transport.start(request, 3)
    transport.abort(1)
    with pytest.raises(RuntimeError, match="in flight"):
        transport.start(request, 3)
    collect(transport, 1)
    with pytest.raises(RuntimeError, match="the tag 2"):
        transport.start(request, 2)
    transport.start(request, 3)
    assert (transport.in_flight, transport.max_in_flight) == (2, 2)
    transport.close()


def test_closing_ends_everything(client: ClientName, site: ViciousSite) -> None:
    transport = make_transport(client, max_in_flight=8)
    for n in range(4):
        transport.start(FetchRequest(url=site.url("/never-answers"), allow_networks=LOOPBACK), n)
    fetch_one(transport, FetchRequest(url=site.url("/page"), allow_networks=LOOPBACK))
    wait_until(lambda: transport.poll(0.01) == [] and len(site.arrivals) == 5)
    transport.close()
    transport.close()
    wait_until(lambda: site.open_connections == 0)


def test_the_time_limit_is_for_the_whole_exchange(transport: Transport, start: Start) -> None:
    """A drip that is fast enough to count as progress does not stretch it."""
    start("/slow-head", timeout=0.5)
    start("/endless", timeout=0.5, max_bytes=10**12)
    found = collect(transport, 2)
    assert {exchange.failure for exchange in found.values()} == {FetchFailure.TIMEOUT}
    assert all(0.4 < exchange.elapsed < 20 for exchange in found.values())


def test_a_connection_that_is_never_made_ends_at_the_connect_timeout(transport: Transport) -> None:
    """A full backlog lets no further connection through, and says nothing."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}/"
        request = FetchRequest(url=url, connect_timeout=0.5, timeout=60.0, allow_networks=LOOPBACK)
        exchange = fetch_one(transport, request)
        for filler in fillers:
            filler.close()
    assert exchange.failure is FetchFailure.TIMEOUT
    assert exchange.elapsed < 30


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "a..b.example", "!"])
def test_a_host_that_no_resolver_can_know_is_a_connection_failure(transport: Transport, host: str) -> None:
    exchange = fetch_one(transport, FetchRequest(url=f"http://{host}/", timeout=20.0))
    assert exchange.failure is FetchFailure.CONNECTION, exchange.detail


def test_connections_are_kept_and_used_again(transport: Transport, start: Start, site: ViciousSite) -> None:
    for n in range(50):
        start(f"/{n}")
        collect(transport, 1)
    assert (site.connections, len(site.arrivals)) == (1, 50)


def test_times_are_those_of_the_exchange(transport: Transport, start: Start) -> None:
    before = datetime.now(UTC)
    start("/page")
    exchange = collect(transport, 1)["/page"]
    assert before <= exchange.started_at <= datetime.now(UTC)
    assert 0 < exchange.elapsed < 30


def test_a_fault_of_this_program_is_raised_and_not_printed(
    transport: Transport, start: Start, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> bool:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(Reception, "take_body", fail)
    start("/page")
    with pytest.raises(ZeroDivisionError, match="a fault"):
        collect(transport, 1)
    monkeypatch.undo()
    start("/page", "after")
    after = wait_until(lambda: dict(transport.poll(0.1)).get("after"))
    assert after is not None
    assert after.body == PAGE
    assert capfd.readouterr().err == ""


def test_nothing_is_left_behind(client: ClientName, site: ViciousSite) -> None:
    """Descriptors, as ResourceWarnings of sockets left to the collector are errors here."""
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        descriptors = Path("/dev/fd")
    before = len(list(descriptors.iterdir()))
    transport = make_transport(client, max_in_flight=16)
    for path in ["/page", "/resets", "/bad-gzip", "/closes-after", "/big", "/cut-head", "/gzip"] * 3:
        fetch_one(transport, FetchRequest(url=site.url(path), allow_networks=LOOPBACK))
    transport.start(FetchRequest(url=site.url("/never-answers"), allow_networks=LOOPBACK), 1)
    transport.poll(0.05)
    transport.close()
    gc.collect()
    wait_until(lambda: len(list(descriptors.iterdir())) <= before)


# Many


@pytest.mark.parametrize(("client", "count"), [("libcurl", 800), ("requests", 200)], indirect=["client"])
def test_many_exchanges_are_in_flight_at_once(client: ClientName, count: int, site: ViciousSite) -> None:
    transport = make_transport(client, max_in_flight=count)
    for n in range(count):
        request = FetchRequest(url=site.url("/waits"), timeout=120.0, connect_timeout=60.0, allow_networks=LOOPBACK)
        transport.start(request, n)
    wait_until(lambda: transport.poll(0.05) == [] and site.waiting == count, within=60)
    assert transport.in_flight == count
    assert site.open_connections == count
    site.let_go()
    found = collect(transport, count, within=60)
    assert {exchange.body for exchange in found.values()} == {PAGE}
    transport.close()


BOMB = """
    import resource, sys
    from crawl_pipeline.domain.pages import FetchRequest
    from crawl_pipeline.fetching.transport import make_transport
    from crawl_pipeline_tests.fetching.driving import LOOPBACK, fetch_one

    client, base = sys.argv[1:]
    transport = make_transport(client, max_in_flight=4)
    fetch_one(transport, FetchRequest(url=base + "/page", allow_networks=LOOPBACK))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path in sys.stdin.read().split():
        exchange = fetch_one(transport, FetchRequest(url=base + path, max_bytes=4_000_000, allow_networks=LOOPBACK))
        assert exchange.failure == "too_large", exchange
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_bomb_costs_its_limit_in_memory_and_no_more(client: ClientName, site: ViciousSite) -> None:
    """1 GB and 10 GB of zeros, against a limit of 4 MB, in a process of its own."""
    paths = "/gzip-bomb /gzip-bomb?layers=2 /endless /empty-blocks /chunked-forever"
    command = [sys.executable, "-c", textwrap.dedent(BOMB), client, site.url("")]
    done = subprocess.run(command, input=paths, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    kilobytes = int(done.stdout) // (1024 if sys.platform == "darwin" else 1)
    assert kilobytes < 30_000


# Descriptors


@pytest.fixture
def descriptor_limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The limits asked for; none is really set."""
    resource = pytest.importorskip("resource")
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    return asked


def test_an_answer_that_nobody_asked_for_is_no_later_requests(fetch: Fetch, site: ViciousSite) -> None:
    """Guard: `_on_connection`; without it libcurl takes it for the next answer, and each answer for the one before."""
    for number in range(4):
        assert fetch(site.url(f"/answers-twice?{number}")).body == PAGE
        asked = len(site.arrivals)
        began = time.monotonic()
        wait_until(lambda began=began: time.monotonic() > began + 0.06)  # type: ignore[misc]  # until it has arrived
        assert fetch(site.url(f"/page?{number}")).body == PAGE
        assert len(site.arrivals) == asked + 1


def test_the_limit_of_open_files_is_raised_as_far_as_needed(descriptor_limits: list[tuple[int, int]]) -> None:
    ensure_descriptors(200)
    ensure_descriptors(1000)
    assert descriptor_limits == [(1000, 4096)]


def test_too_low_a_limit_of_open_files_is_said_at_once(descriptor_limits: list[tuple[int, int]]) -> None:
    with pytest.raises(InfrastructureError, match=r"4096 files .* 200128: raise the limit"):
        make_transport("libcurl", max_in_flight=100_000)
    assert descriptor_limits == []


def test_an_unknown_client_is_named() -> None:
    with pytest.raises(ValueError, match='"httpx"; clients are libcurl and requests'):
        transport_module.make_transport("httpx", max_in_flight=1)  # type: ignore[arg-type]  # that is the test


def test_slow_is_judged_over_the_whole_span(site: ViciousSite) -> None:
    """The same drip passes a lower bar."""
    for client in ("libcurl", "requests"):
        transport = make_transport(client, max_in_flight=1, limits=Limits(low_speed_bytes=2, low_speed_for=0.3))
        request = FetchRequest(url=site.url("/slow-drip"), timeout=2.0, allow_networks=LOOPBACK)
        exchange = fetch_one(transport, request)
        assert exchange.failure is FetchFailure.TIMEOUT
        assert exchange.elapsed > 1.9
        transport.close()

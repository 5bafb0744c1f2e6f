"""A worker process: what a fork of the nursery runs, for the supervisor or a re-extraction.

Reads its orders as one line of JSON from standard input, then crawls until that pipe closes: a stop, or the parent's
death. Imports no Dagster. Exit codes: 0 stopped as asked; `orders.exit_code` where it gave up, with the sentence on
standard output.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.pages import CrawlId, LeaseToken
from crawl_pipeline.errors import CrawlError
from crawl_pipeline.fetching.proxy import trusted_proxy
from crawl_pipeline.fetching.transport import make_transport
from crawl_pipeline.pipeline.claims import Share
from crawl_pipeline.pipeline.crawl_loop import CrawlLoop
from crawl_pipeline.pipeline.hand import Hand
from crawl_pipeline.pipeline.heartbeat import Heartbeat
from crawl_pipeline.pipeline.leases import DatabaseClock, LeaseTable
from crawl_pipeline.pipeline.observations import Observations
from crawl_pipeline.pipeline.orders import Orders, exit_code
from crawl_pipeline.pipeline.processes import machine_name
from crawl_pipeline.pipeline.re_extract import read_stale
from crawl_pipeline.pipeline.reading import PageReader
from crawl_pipeline.storage import crawls
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.frontier import Frontier


def main(hand_fd: int) -> int:
    """Work as ordered; see the module. `hand_fd`: the file that is shared with the supervisor."""
    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent decides
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    report = os.dup(1)
    os.dup2(2, 1)  # what an extractor prints must not fill the pipe that nobody reads meanwhile
    orders = Orders.from_line(sys.stdin.buffer.readline())
    try:
        if orders.kind == "crawl":
            _crawl(orders, hand_fd, stop)
        else:
            _re_extract(orders, hand_fd, stop)
    except CrawlError as error:
        os.write(report, str(error).encode())
        return exit_code(error)
    return 0


def _crawl(orders: Orders, hand_fd: int, stop: threading.Event) -> None:
    contract = Contract.from_json(orders.contract)
    url = os.environ["CRAWL_WORKER_DATABASE"]
    lease_for = timedelta(seconds=orders.lease_for)
    database = Database.connect(
        url, patience=timedelta(seconds=orders.patience), application_name=f"crawl {contract.source}", stop=stop
    )
    # The heartbeat gives up sooner, and tries again at its next beat: it must not hold up the stop.
    pulse = Database.connect(url, patience=lease_for / 6, application_name=f"heartbeat {contract.source}")
    crawl_id = CrawlId(UUID(orders.crawl_id))
    frontier = Frontier(
        database,
        source_id=orders.source_id,
        crawl_id=crawl_id,
        run_id=orders.run_id,
        worker_id=orders.worker_id,
        lease_for=lease_for,
    )
    database.retry(
        lambda connection: crawls.start_worker(connection, orders.worker_id, crawl_id, machine_name(), os.getpid())
    )
    transport = make_transport(
        contract.fetch.client, max_in_flight=orders.in_flight + 8, proxy=trusted_proxy(os.environ)
    )
    clock = DatabaseClock()
    leases = LeaseTable(clock, lease_for)
    observations = Observations()
    hand = _hand(hand_fd)
    share = Share(in_flight=orders.in_flight, slots=orders.slots)
    loop = CrawlLoop(
        database,
        frontier,
        contract,
        transport,
        leases,
        clock,
        hand,
        observations,
        source_id=orders.source_id,
        share=share,
    )

    def counts() -> tuple[int, int]:
        return loop.tally.page_requests, loop.tally.other_requests

    def on_renewed(asked: Sequence[LeaseToken], living: dict[LeaseToken, datetime]) -> None:
        leases.renewed(asked, living)
        transport.wake()

    def on_drain(hosts: Sequence[int]) -> None:
        leases.drain_hosts(hosts)
        transport.wake()

    pulse_stop = threading.Event()
    heartbeat = Heartbeat(
        pulse,
        Frontier(
            pulse,
            source_id=orders.source_id,
            crawl_id=crawl_id,
            run_id=orders.run_id,
            worker_id=orders.worker_id,
            lease_for=lease_for,
            stop=pulse_stop,
        ),
        clock,
        worker_id=orders.worker_id,
        tokens=leases.tokens,
        counts=counts,
        on_renewed=on_renewed,
        observations=observations,
        on_drain=on_drain,
        on_failed=loop.thread.fail,
        stop=pulse_stop,
        lease_for=lease_for,
    )
    _stop_when_told(stop, transport.wake)
    heartbeat.beat()  # the clock first: starts are planned in database time
    heartbeat.start()
    try:
        loop.run(stop, timedelta(seconds=orders.grace))
    finally:
        heartbeat.stop(timeout=5)
        loop.thread.close(timeout=orders.grace / 2)
        transport.close()
    ended = "stopped"
    pages, others = counts()
    database.retry(lambda connection: crawls.end_worker(connection, orders.worker_id, ended, pages, others))


def _re_extract(orders: Orders, hand_fd: int, stop: threading.Event) -> None:
    contract = Contract.from_json(orders.contract)
    database = Database.connect(
        os.environ["CRAWL_WORKER_DATABASE"],
        patience=timedelta(seconds=orders.patience),
        application_name=f"re-extraction {contract.source}",
        stop=stop,
    )
    _stop_when_told(stop, lambda: None)
    read_stale(database, contract, PageReader(contract, _hand(hand_fd)), orders, stop)


def _hand(hand_fd: int) -> Hand:
    with os.fdopen(hand_fd, "r+b") as file:
        return Hand(file)


def _stop_when_told(stop: threading.Event, wake: Callable[[], None]) -> None:
    """Stop at SIGTERM, and when the parent closes our standard input or dies."""

    def tell(*_: object) -> None:
        stop.set()
        wake()

    def watch() -> None:
        while os.read(0, 4096):  # not sys.stdin: its lock would be held while the interpreter ends
            pass
        tell()

    signal.signal(signal.SIGTERM, tell)
    threading.Thread(target=watch, name="parent", daemon=True).start()

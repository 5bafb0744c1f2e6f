"""The one stack that the tests of a session share, with a shop for each of them."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from crawl_pipeline.demo.shop import Shop
from crawl_pipeline.storage.embedded import server_processes
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.conftest import end_home
from crawl_pipeline_tests.live.stack import Stack, served

# A source a test: they run in any order.
SOURCES = ("single", "first", "second", "third", "stopped", "clicked", "bulk_one", "bulk_two")
# All tests with the stack belong into one process of pytest-xdist: each process would start its own.
IN_ONE_PROCESS = pytest.mark.xdist_group("live")


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Started for the first test that asks for it. At the end SIGTERM stops all of it, quietly, and nothing is left."""
    home = Path(tempfile.mkdtemp(prefix="crawl-home-")) / "home"
    try:
        with ExitStack() as shops:
            running = {name: shops.enter_context(Shop.start(latency=0.0)) for name in SOURCES}
            with served(tmp_path_factory.mktemp("live"), home, running) as stack:
                yield stack
                stack.command.process.send_signal(signal.SIGTERM)
                assert stack.command.wait(100) == 143
                assert stack.command.out.count("\n") == 1, stack.command.out
                assert stack.command.err in {"", "port 8800 is in use, so the demo shop is not started\n"}
                wait_until(lambda: not any(process.is_running() for process in stack.processes), within=5)
                assert server_processes(home) == []
    finally:
        end_home(home)

"""`python -m crawl_pipeline.demo`, what `make demo` runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crawl_pipeline.demo.shop import Shop
from crawl_pipeline.storage.embedded import server_processes
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.defs.commands import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def start_demo(home: Path, output: Path) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CRAWL_", "DAGSTER_"))}
    with output.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "crawl_pipeline.demo"],
            cwd=output.parent,
            env={**environment, "CRAWL_HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def test_the_demo_shows_its_records_and_leaves_no_server(tmp_path: Path, crawl_home: Path) -> None:
    demo = start_demo(crawl_home, tmp_path / "output")
    assert demo.wait(400) == 0, (tmp_path / "output").read_text()
    said = (tmp_path / "output").read_text(encoding="utf-8")
    assert re.search(r"demo_shop\w*: \d+ of \d+ pages done, ", said)
    assert "500 records (500 new, 0 changed), 525 page versions (525 new)" in said
    assert "500 product records, the first 10 shown" in said
    assert "DS-0001  Oak Bookshelf" in said
    assert "Where to look next" in said
    assert "Traceback" not in said
    assert server_processes(crawl_home) == []


def test_the_demo_plays_on_another_port_and_ends_at_a_signal(tmp_path: Path, crawl_home: Path) -> None:
    """Where the demo's port is taken, by this test or by another program, the demo is a source of its own."""
    output = tmp_path / "output"
    try:
        blocker = Shop.start(port=8800)
    except OSError:
        blocker = None
    try:
        demo = start_demo(crawl_home, output)
        wait_until(lambda: "opened crawl" in output.read_text() or demo.poll() is not None, within=300)
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(60) == 143, output.read_text()
    finally:
        if blocker is not None:
            blocker.stop()
    said = output.read_text(encoding="utf-8")
    assert "Port 8800 is in use, so the demo is the source demo_shop_88" in said
    assert "stopped; run the same command to go on" in said
    wait_until(lambda: server_processes(crawl_home) == [])

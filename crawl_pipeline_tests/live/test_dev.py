"""`crawl-pipeline dev` when runs are killed, when it is interrupted, and when its port is taken."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from crawl_pipeline.cli.services import is_taken
from crawl_pipeline.demo.shop import Shop
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.defs.commands import Command, run
from crawl_pipeline_tests.live.stack import served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_killed_run_is_launched_again_and_one_under_way_at_the_end_gives_its_leases_back(
    crawl_home: Path, tmp_path: Path
) -> None:
    with Shop.start(latency=0.3) as shop, served(tmp_path, crawl_home, {"first": shop}) as stack:
        killed = stack.ui.launch("first")
        wait_until(lambda: len(shop.requests) > 10, within=400)
        run_process(stack.command).kill()
        assert stack.ui.wait_for(killed, within=60) == "FAILURE"
        wait_until(lambda: "STARTED" in [run.status for run in stack.ui.runs("first")], within=400, every=0.5)
        asked = len(shop.requests)
        wait_until(lambda: len(shop.requests) > asked + 10, within=400)
        processes = psutil.Process(stack.command.process.pid).children(recursive=True)
        stack.command.process.send_signal(signal.SIGINT)
        assert stack.command.wait(100) == 130
        wait_until(lambda: not any(process.is_running() for process in processes), within=5)
        status = stack.status("first")
    assert status["urls"]["active"] == 0
    assert status["urls"]["accepted"] > 0


def run_process(command: Command) -> psutil.Process:
    """The process of the run that is under way: the one that has a nursery."""
    (nursery, *_) = [
        process
        for process in psutil.Process(command.process.pid).children(recursive=True)
        if "crawl_pipeline.pipeline.nursery" in process.cmdline()
    ]
    parent = nursery.parent()
    assert parent is not None
    return parent


def test_a_taken_port_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    with Shop.start() as shop:
        assert is_taken(shop.port)
        code, out, err = run(tmp_path / "cwd", "dev", "--port", str(shop.port), environment={})
    assert (code, out) == (2, "")
    assert (
        err == f"crawl-pipeline: port {shop.port} is taken; choose another: crawl-pipeline dev --port {shop.port + 1}\n"
    )

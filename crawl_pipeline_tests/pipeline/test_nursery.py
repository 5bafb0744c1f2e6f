"""Forks of a process that has imported all they need: they start, end and are told of as processes of their own are."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import psutil
import pytest

from crawl_pipeline.pipeline.nursery import Fork, Nursery
from crawl_pipeline_tests import wait_until


class Ward:
    """A nursery and the files of its forks, which wait for orders that never come."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.nursery = Nursery()
        self.output, self.errors, self.hand = (self._file() for _ in range(3))
        stack.callback(self.nursery.close)

    def _file(self) -> IO[bytes]:
        return self._stack.enter_context(tempfile.TemporaryFile())

    def fork(self, **environment: str) -> Fork:
        fork = self.nursery.fork(
            output=self.output.fileno(),
            errors=self.errors.fileno(),
            hand=self.hand.fileno(),
            environment={**os.environ, **environment},
        )
        self._stack.callback(fork.stdin.close)
        return fork

    def said(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode()

    @property
    def process(self) -> psutil.Process:
        """The nursery's own."""
        assert self.nursery._process is not None
        return psutil.Process(self.nursery._process.pid)


@pytest.fixture
def ward() -> Iterator[Ward]:
    with ExitStack() as stack:
        yield Ward(stack)


def test_fork_is_a_process_of_its_own_whose_end_is_told(ward: Ward) -> None:
    first, second = ward.fork(), ward.fork()
    assert first.pid != second.pid
    assert {child.pid for child in ward.process.children()} == {first.pid, second.pid}
    assert (first.poll(), second.poll()) == (None, None)
    first.kill()
    assert first.wait() == -signal.SIGKILL
    assert second.poll() is None
    second.stdin.close()  # no orders: that is an error of its own
    assert second.wait() == 1
    assert "Traceback" in ward.said()
    wait_until(lambda: ward.process.children() == [], within=5)
    for fork in (first, second):
        fork.kill()  # it is over: nobody else's process is hit


def test_fork_has_the_environment_the_folder_and_the_path_of_its_supervisor(
    ward: Ward, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ward.fork()
    monkeypatch.chdir(tmp_path)
    fork = ward.fork(CRAWL_ONE="1")
    wait_until(lambda: psutil.Process(fork.pid).cwd() == str(tmp_path), within=10)
    assert Path(f"/proc/{fork.pid}/fd/0").resolve() != Path(f"/proc/{ward.process.pid}/fd/0").resolve()


def test_nursery_that_was_killed_is_replaced_and_its_forks_end(ward: Ward) -> None:
    """Guard: `_died` kills them; they could not be watched any more."""
    fork, nursery = ward.fork(), ward.process
    nursery.kill()
    wait_until(lambda: fork.poll() == -signal.SIGKILL, within=10)
    wait_until(lambda: not psutil.pid_exists(fork.pid) or psutil.Process(fork.pid).status() == "zombie", within=10)
    again = ward.fork()
    assert again.poll() is None
    assert ward.process.pid != nursery.pid
    again.kill()


def test_signals_to_the_whole_group_leave_the_nursery_to_its_supervisor(ward: Ward) -> None:
    """Guard: they are ignored there, and their meaning is given back to the forks."""
    fork = ward.fork()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        ward.process.send_signal(number)
    wait_until(lambda: os.readlink(f"/proc/{fork.pid}/fd/0").startswith("pipe:"), within=10)  # it is itself by now
    os.kill(fork.pid, signal.SIGTERM)
    assert fork.wait() == -signal.SIGTERM
    assert ward.fork().poll() is None


def test_closed_nursery_is_gone_and_its_forks_go_with_their_pipes(ward: Ward) -> None:
    fork, nursery = ward.fork(), ward.process
    ward.nursery.close()
    assert not nursery.is_running()
    orphan = psutil.Process(fork.pid)
    fork.stdin.close()
    wait_until(lambda: not orphan.is_running() or orphan.status() == "zombie", within=10)


def test_nothing_is_left_open_by_forks_that_came_and_went(ward: Ward) -> None:
    ward.fork().kill()
    ours, theirs = len(os.listdir("/proc/self/fd")), ward.process.num_fds()
    for _ in range(20):
        fork = ward.fork()
        fork.kill()
        fork.wait()
        fork.stdin.close()
    wait_until(lambda: ward.process.children() == [], within=5)
    assert ward.process.num_fds() == theirs
    assert len(os.listdir("/proc/self/fd")) <= ours


def test_nursery_that_cannot_start_is_a_fork_that_has_ended(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crawl_pipeline.pipeline.nursery.sys.executable", "/bin/false")
    assert ward.fork().poll() == 1

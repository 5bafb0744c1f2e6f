"""The processes that `dev` keeps: started with a log each, stopped in time, gone when their parent is."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from crawl_pipeline.errors import InfrastructureError

_SET_PARENT_DEATH_SIGNAL = 1


class Service:
    """One child process in a session of its own, so that a terminal's Ctrl-C reaches it only through its parent."""

    def __init__(self, name: str, arguments: Sequence[str], *, environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def wait_until(self, is_ready: Callable[[], bool], *, within: float) -> None:
        """Return when it is ready. Raises InfrastructureError when it ends before, or takes over `within` seconds."""
        deadline = time.monotonic() + within
        while not is_ready():
            if self.has_ended():
                raise InfrastructureError(f"the {self.name} ended while it started; see {self.log}")
            if time.monotonic() > deadline:
                raise InfrastructureError(f"the {self.name} was not ready after {within:.0f} s; see {self.log}")
            time.sleep(0.1)

    def children(self) -> list[psutil.Process]:
        """All processes below it."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def ask_to_stop(self) -> None:
        """Send SIGTERM."""
        if not self.has_ended():
            self._process.terminate()

    def stop(self, *, within: float) -> None:
        """Stop it and all below it: kindly at first, by force after `within` seconds."""
        below = self.children()
        self.ask_to_stop()
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        end(below, within=1.0)


def end(processes: Sequence[psutil.Process], *, within: float) -> None:
    """Wait for processes to end, then kill what is left."""
    _, alive = psutil.wait_procs(processes, timeout=within)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=within)


def free_port() -> int:
    """A TCP port of this machine that nobody uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def is_taken(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _die_with_parent() -> None:
    # Linux only; elsewhere a killed parent leaves its services to whoever kills them.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        if os.getppid() == 1:
            os._exit(1)

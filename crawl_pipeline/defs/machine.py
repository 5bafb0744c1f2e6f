"""The process behind a run at a terminal, kept in a tag of the run: whether it still lives."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil

from crawl_pipeline.pipeline.processes import machine_name

SAME_WITHIN = 5.0  # seconds: start times are reckoned from the boot time, which moves when the clock is set


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One life of one process on one machine; `started` (epoch) tells it from a later process with the same id."""

    machine: str  # host name and boot, parted by a slash
    pid: int
    started: float

    @classmethod
    def own(cls) -> ProcessIdentity:
        """This process."""
        return cls(machine=machine_name(), pid=os.getpid(), started=round(psutil.Process().create_time(), 2))

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity | None:
        """What `str` gave; None for any other text."""
        machine, _, rest = text.rpartition("/")
        pid, _, started = rest.partition("@")
        try:
            return cls(machine=machine, pid=int(pid), started=float(started)) if machine else None
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.machine}/{self.pid}@{self.started}"

    def is_gone(self) -> bool:
        """Whether the process has certainly ended: False for processes of other machines, which nobody here can see."""
        here = machine_name()
        if self.machine != here:
            was_rebooted = self.machine.rpartition("/")[0] == here.rpartition("/")[0]
            return was_rebooted
        try:
            process = psutil.Process(self.pid)
            is_another = abs(process.create_time() - self.started) > SAME_WITHIN
            return is_another or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

"""The terminal kept for the command's own words, while everything else that is printed goes to a log file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from crawl_pipeline.errors import InfrastructureError

LOG_MAX_BYTES = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """What stdout and stderr were before the block, and where their output goes meanwhile."""

    out: TextIO
    err: TextIO
    log: Path


@contextmanager
def kept_terminal(log: Path) -> Iterator[Terminal]:
    """Send descriptors 1 and 2 (of child processes, too) to `log` within the block, and yield the real ones."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = _open_log(log)
    real = [os.dup(1), os.dup(2)]
    try:
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        with (
            os.fdopen(real[0], "w", encoding="utf-8", errors="replace", closefd=False) as out,
            os.fdopen(real[1], "w", encoding="utf-8", errors="replace", closefd=False, buffering=1) as err,
        ):
            yield Terminal(out=out, err=err, log=log)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(real[0], 1)
        os.dup2(real[1], 2)
        for number in (*real, descriptor):
            os.close(number)


def _open_log(log: Path) -> int:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > LOG_MAX_BYTES:
            log.replace(log.with_suffix(".log.1"))
        return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InfrastructureError(
            f"the log {log} cannot be written ({error.strerror}); choose another CRAWL_HOME"
        ) from error

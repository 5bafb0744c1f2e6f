"""Advisory locks on files between processes. The kernel drops them with the process, however it dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crawl_pipeline.errors import InfrastructureError

_POLL_EVERY = 0.02  # seconds; a blocking flock could not be given up


def try_lock(descriptor: int, *, exclusive: bool) -> bool:
    """Take the lock if nobody holds one that excludes it. It belongs to the open file and all who inherit it."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_locked(path: Path, *, exclusive: bool, within: float) -> int:
    """Open and lock the file, waiting at most `within` seconds; closing the descriptor gives the lock back.

    A program started from here does not inherit the descriptor. Raises InfrastructureError when time is up.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InfrastructureError(
            f"cannot open {path} ({error.strerror}); run as the user that it belongs to, or choose another CRAWL_HOME"
        ) from error
    try:
        deadline = time.monotonic() + within
        while not try_lock(descriptor, exclusive=exclusive):
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"another process has held {path} for {within:.0f} s; see which with `fuser {path}` and end it"
                )
            time.sleep(_POLL_EVERY)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def file_lock(path: Path, *, exclusive: bool = True, within: float) -> Iterator[int]:
    """Hold the lock for the length of the block; gives the descriptor, for children that must keep it."""
    descriptor = open_locked(path, exclusive=exclusive, within=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)

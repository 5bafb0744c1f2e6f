"""Which signal asked the command to stop, whoever handles signals meanwhile."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Remembers the stopping signals that arrived."""

    def __init__(self, reader: socket.socket) -> None:
        self._reader = reader
        self._first: int | None = None

    @property
    def exit_code(self) -> int | None:
        """128 + the first signal's number, as shells report it; None: none arrived."""
        if self._first is None:
            self._first = next((number for number in self._arrived() if number in STOPPING), None)
        return None if self._first is None else 128 + self._first

    def _arrived(self) -> bytes:
        try:
            return self._reader.recv(4096)
        except BlockingIOError:
            return b""


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Within the block SIGINT and SIGTERM raise KeyboardInterrupt and are remembered. Call it in the main thread.

    Enter it before Dagster is imported or run. A script starts background processes with SIGINT ignored, and Dagster
    copies that to SIGTERM, so that nothing could stop them. And once Dagster has put its own handlers in their place,
    only the wakeup descriptor still tells which signal it was.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        handlers = [signal.signal(number, signal.default_int_handler) for number in STOPPING]
        wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield StopSignals(reader)
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in zip(STOPPING, handlers, strict=True):
                signal.signal(number, handler)

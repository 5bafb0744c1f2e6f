"""Worker processes as forks of one process that has imported all they need.

The imports of a worker cost seconds of CPU and most of its memory; a fork costs milliseconds and shares them. A process
that supervises has one nursery, started on first use. It has no thread, no connection and nothing of any crawl, so that
a fork of it is as good as a new process. It ends with the process that started it.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, NoReturn

_HEAD = struct.Struct("<I")  # the length of an order, beside which the file descriptors travel
_END = struct.Struct("<ii")  # pid and exit code; the answer to an order is the pid and 0
_FDS = 4  # standard input, output and error, and the hand


class Fork:
    """A forked process, with as much of `subprocess.Popen` as its supervisor uses."""

    def __init__(self, nursery: Nursery, pid: int, stdin: IO[bytes], returncode: int | None = None) -> None:
        self.pid = pid
        self.stdin = stdin
        self._nursery = nursery
        self._returncode = returncode

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it lives."""
        if self._returncode is None:
            self._returncode = self._nursery.end_of(self.pid)
        return self._returncode

    def kill(self) -> None:
        """SIGKILL, if it lives: its pid is not free before its end was told."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end; the exit code."""
        while (code := self.poll()) is None:
            time.sleep(0.005)
        return code


class Nursery:
    """The supervisor's end. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lives: set[int] = set()
        self._ended: dict[int, int] = {}
        self._unread = b""

    def fork(self, *, output: int, errors: int, hand: int, environment: Mapping[str, str]) -> Fork:
        """A new worker process with these files; its standard input is the returned `stdin`.

        Where no process can be had, what is returned has ended already, and `errors` says of what.
        """
        order = json.dumps({"environment": dict(environment), "path": sys.path, "folder": _folder()}).encode()
        ours, theirs = os.pipe()[::-1]
        stdin = os.fdopen(ours, "wb")
        try:
            with self._lock:
                for _ in range(2):  # an old nursery may have died, and not be missed before it is needed
                    is_new = self._socket is None
                    if is_new:
                        self._start(errors, environment)
                    pid = self._ask(order, (theirs, output, errors, hand))
                    if pid is not None:
                        self._lives.add(pid)
                        return Fork(self, pid, stdin)
                    code, number = self._died()
                    if is_new:
                        break
            return Fork(self, number, stdin, returncode=code or 1)
        finally:
            os.close(theirs)

    def end_of(self, pid: int) -> int | None:
        """The exit code of a fork that has ended. Where the nursery itself was killed, its forks are killed too."""
        with self._lock:
            self._read(wait=False)
            return self._ended.pop(pid, None)

    def close(self) -> None:
        """End the nursery; its forks end by their own pipes."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            if self._process is not None:
                self._process.wait()
                self._process = None

    def _start(self, errors: int, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "crawl_pipeline.pipeline.nursery"],
                stdin=theirs.fileno(),
                stdout=errors,
                stderr=errors,
                env=dict(environment),
            )
        self._socket, self._unread = ours, b""

    def _ask(self, order: bytes, fds: Sequence[int]) -> int | None:
        assert self._socket is not None
        try:
            socket.send_fds(self._socket, [_HEAD.pack(len(order))], fds)
            self._socket.sendall(order)
        except OSError:
            return None
        return self._read(wait=True)

    def _read(self, *, wait: bool) -> int | None:
        """Take in what was told; with `wait`, until the answer to an order, which is the pid that is returned."""
        while self._socket is not None:
            while len(self._unread) >= _END.size:
                pid, code = _END.unpack(self._unread[: _END.size])
                self._unread = self._unread[_END.size :]
                if pid in self._lives:
                    self._lives.discard(pid)
                    self._ended[pid] = code
                else:
                    return int(pid)
            try:
                self._socket.setblocking(wait)
                data = self._socket.recv(4096)
            except BlockingIOError:
                return None
            except OSError:
                data = b""
            if not data:
                self._died()
                return None
            self._unread += data
        return None

    def _died(self) -> tuple[int, int]:
        """The nursery is gone: so are its forks, by our hand. Returns its exit code and pid."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        for pid in self._lives:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._ended[pid] = -signal.SIGKILL
        self._lives.clear()
        assert self._process is not None
        return self._process.wait(), self._process.pid


_nursery = Nursery()
atexit.register(lambda: _nursery.close())


def nursery() -> Nursery:
    """This process's."""
    return _nursery


def _forget() -> None:
    global _nursery
    _nursery = Nursery()  # the old one is the parent's


os.register_at_fork(after_in_child=_forget)


# The nursery's own end


def main(work: Callable[[int], int]) -> None:
    """Fork a process for each order, which runs `work(hand)`; until the other end is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they reach the whole group: the supervisor decides
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    children: set[int] = set()
    gc.collect()
    gc.freeze()  # what is there now stays shared with the forks
    with socket.socket(fileno=os.dup(0)) as control, selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(ear, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == ear:
                    os.read(ear, 4096)
                    continue
                order, fds = _take(control)
                if order is None:
                    return
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    selector.close()
                    control.close()
                    os.close(ear)
                    os.close(mouth)
                    _be(order, fds, work)
                for fd in fds:
                    os.close(fd)
                children.add(pid)
                control.sendall(_END.pack(pid, 0))
            _tell_of_ends(control, children)


def _take(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    head, fds, _, _ = socket.recv_fds(control, _HEAD.size, _FDS)
    if not head:
        return None, []
    (left,) = _HEAD.unpack(head)
    body = b""
    while len(body) < left:
        piece = control.recv(left - len(body))
        if not piece:
            return None, []
        body += piece
    order: dict[str, Any] = json.loads(body)
    return order, list(fds)


def _tell_of_ends(control: socket.socket, children: set[int]) -> None:
    """Tell first and reap then, so that no pid is another's while it is taken for a worker's."""
    for pid in tuple(children):
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None:
            code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            with suppress(OSError):
                control.sendall(_END.pack(pid, code))
            os.waitpid(pid, 0)
            children.discard(pid)


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed: whoever starts there starts in none as well
        return "/"


def _be(order: Mapping[str, Any], fds: Sequence[int], work: Callable[[int], int]) -> NoReturn:
    """Become the worker: its files, folder, environment and path; never returns."""
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        *standard, hand = fds
        for target, fd in enumerate(standard):
            os.dup2(fd, target)
            os.close(fd)
        with suppress(OSError):
            os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        sys.path[:] = order["path"]
        code = work(hand)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    from crawl_pipeline.pipeline import child

    main(child.main)

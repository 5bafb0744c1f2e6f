"""One PostgreSQL data folder: made whole or not at all, started, watched, stopped.

Every method but `postmaster` expects the caller to hold the folder's lock; who may is decided in `storage.embedded`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from crawl_pipeline.errors import InfrastructureError
from crawl_pipeline.storage.filelock import try_lock
from crawl_pipeline.storage.folders import sync_folder
from crawl_pipeline.storage.programs import major_version, run_program, server_user

SUPERUSER = "postgres"
READY_WITHIN = 600.0  # seconds: recovery after a crash replays up to max_wal_size
STOPPED_WITHIN = 60.0
ORPHANS_END_WITHIN = 10.0
ORPHANS_GRACE = 1.0
LOG_MAX_BYTES = 10_000_000
SOCKET_NAME = ".s.PGSQL.5432"
PLAIN_PATH = re.compile(r"[A-Za-z0-9/._-]+")
SOCKET_PATH_MAX = 103  # macOS takes 104 bytes with the closing zero, Linux 108

SERVER_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "wal_compression": "on",
    "random_page_cost": "1.1",
    "jit": "off",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    # Not in /dev/shm: containers give it 64 MB, and logind empties it when the user logs out.
    "dynamic_shared_memory_type": "mmap",
    "log_line_prefix": "%m [%p] %a ",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Postmaster:
    """A live server of the folder, as its `postmaster.pid` describes it."""

    process: psutil.Process
    socket_folder: Path
    is_ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A data folder and the binaries that serve it; `alive` is a file that every server process keeps locked."""

    folder: Path
    alive: Path
    binaries: Path

    def exists(self) -> bool:
        """Whether the folder was made; a half-made one never has this name."""
        return (self.folder / "PG_VERSION").exists()

    def make(self, keep: Sequence[int]) -> None:
        """Make the folder in one step: initdb beside it, then rename. A kill leaves nothing under its name.

        initdb inherits `keep` (the caller's lock), so that one which outlives its caller is still waited for.
        """
        new = self.folder.with_name(self.folder.name + ".new")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700, parents=True)
        user = server_user(new)
        if user is not None:
            os.chown(new, *user)
        locale = ["--locale=C.UTF-8"]
        if major_version(self.binaries) >= 17:  # the same order on every system and after every system update
            locale = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
        arguments = ["-D", ".", "-U", SUPERUSER, "--auth-local=trust", "--auth-host=reject", "--encoding=UTF8"]
        run_program(self.binaries / "initdb", [*arguments, "--data-checksums", *locale], cwd=new, keep=keep)
        try:
            new.rename(self.folder)
        except OSError as error:
            raise InfrastructureError(
                f"{self.folder} is not a PostgreSQL data folder; move it away or choose another CRAWL_HOME"
            ) from error
        sync_folder(self.folder.parent)

    def postmaster(self) -> Postmaster | None:
        """The live server, or None. A left-over pid file, or one whose pid now belongs to another program, is None."""
        try:
            lines = (self.folder / "postmaster.pid").read_text().splitlines()
            process = psutil.Process(int(lines[0]))
        except (OSError, IndexError, ValueError, psutil.NoSuchProcess):
            return None
        if not self._serves(process):
            return None
        return Postmaster(
            process=process,
            socket_folder=Path(lines[4]) if len(lines) > 4 else self.folder,
            is_ready=len(lines) > 7 and lines[7].strip() == "ready",
        )

    def start(self) -> None:
        """Start the server, detached from this process and its group, and return when it takes connections.

        Nothing of an earlier server may live on (its backends write to the same files): they are waited for, then
        killed. What that server left behind (pid file, socket lock) is removed, whoever has its pid now.
        """
        self._refuse_other_version()
        socket_folder = self.socket_folder()
        descriptor = self._take_alive()
        try:
            (self.folder / "postmaster.pid").unlink(missing_ok=True)
            (socket_folder / f"{SOCKET_NAME}.lock").unlink(missing_ok=True)
            chosen = {**SERVER_SETTINGS, "unix_socket_directories": str(socket_folder)}
            options = " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in chosen.items())
            log = self._fresh_log()
            # The server inherits `alive`'s lock and all its processes keep it until the last of them is gone.
            run_program(
                self.binaries / "pg_ctl",
                ["-D", ".", "-s", "-w", "-t", f"{READY_WITHIN:.0f}", "-l", log.name, "-o", options, "start"],
                cwd=self.folder,
                keep=[descriptor],
                log=log,
            )
        finally:
            os.close(descriptor)

    def stop(self) -> None:
        """Stop the server, if there is one, and return when its processes are gone. Sessions are cut off."""
        postmaster = self.postmaster()
        if postmaster is None:
            return
        # A fast stop, then an immediate one: the next start recovers, as after a crash.
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            with suppress(psutil.NoSuchProcess):
                postmaster.process.send_signal(number)
            deadline = time.monotonic() + STOPPED_WITHIN
            while time.monotonic() < deadline:
                if not self._serves(postmaster.process):
                    self._remove_short_folder(postmaster.socket_folder)
                    return
                time.sleep(0.01)

    def processes(self) -> list[psutil.Process]:
        """Every live server process of the folder: the postmaster, its children and any orphans."""
        return [process for process in psutil.process_iter() if self._serves(process)]

    def socket_folder(self) -> Path:
        """Where the socket goes: the data folder, or a private short one where that path cannot be used.

        It may be too long for a socket, or hold characters that URLs, libpq (a comma) or Alembic (a per cent sign)
        give a meaning to.
        """
        if len(os.fsencode(self.folder / SOCKET_NAME)) <= SOCKET_PATH_MAX and PLAIN_PATH.fullmatch(str(self.folder)):
            return self.folder
        owner = self.folder.stat().st_uid
        # Not the temporary folder of TMPDIR: every process has to find the same one.
        short = Path("/tmp") / f"crawl-{hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:16]}"
        try:
            short.mkdir(mode=0o700)
            os.chown(short, owner, -1)
        except FileExistsError:
            found = short.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner or found.st_mode & 0o077:
                raise InfrastructureError(
                    f"{short} should be a private folder of this user for PostgreSQL's socket; remove it, "
                    f"or choose a shorter CRAWL_HOME"
                ) from None
        return short

    def _serves(self, process: psutil.Process) -> bool:
        # Postgres makes the data folder its working directory before it writes its pid file.
        try:
            return process.name() == "postgres" and Path(process.cwd()) == self.folder
        except (psutil.Error, OSError):
            return False

    def _remove_short_folder(self, folder: Path) -> None:
        if folder != self.folder:
            with suppress(OSError):
                folder.rmdir()

    def _take_alive(self) -> int:
        """Lock `alive`, waiting for the processes of a server whose postmaster is gone, then ending them."""
        descriptor = os.open(self.alive, os.O_RDWR | os.O_CREAT, 0o600)
        since = time.monotonic()
        while not try_lock(descriptor, exclusive=True):
            waited = time.monotonic() - since
            if waited > ORPHANS_END_WITHIN:
                os.close(descriptor)
                raise InfrastructureError(
                    f"a PostgreSQL server of {self.folder} runs where this process cannot see it (another container "
                    f"or machine?); stop it there, or choose another CRAWL_HOME"
                )
            if waited > ORPHANS_GRACE:
                for orphan in self.processes():
                    with suppress(psutil.NoSuchProcess):
                        orphan.kill()
            time.sleep(0.02)
        return descriptor

    def _fresh_log(self) -> Path:
        log = self.folder / "server.log"
        if log.exists() and log.stat().st_size > LOG_MAX_BYTES:
            log.replace(log.with_suffix(".log.1"))
        return log

    def _refuse_other_version(self) -> None:
        made_by = (self.folder / "PG_VERSION").read_text().strip()
        ours = str(major_version(self.binaries))
        if made_by != ours:
            raise InfrastructureError(
                f"{self.folder} was made by PostgreSQL {made_by}, and this is {ours}; move its data "
                f"with pg_dump of that version, or choose another CRAWL_HOME"
            )

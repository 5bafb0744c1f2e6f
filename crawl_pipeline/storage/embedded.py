"""The embedded PostgreSQL of one home: shared by its processes, stopped by the last one that leaves.

Owns who uses the server; how a data folder is made, started and stopped is `storage.cluster`'s. Every user holds a
shared lock on `postgres.users`, which the kernel drops even on SIGKILL; start and stop happen under `postgres.lock`.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import psutil
import psycopg

from crawl_pipeline.errors import DatabaseUnavailable, InfrastructureError
from crawl_pipeline.storage.cluster import READY_WITHIN, STOPPED_WITHIN, SUPERUSER, Cluster
from crawl_pipeline.storage.filelock import file_lock, open_locked, try_lock
from crawl_pipeline.storage.folders import make_home
from crawl_pipeline.storage.programs import bundled_binaries

DATABASES = ("crawl", "dagster")


def server_processes(home: Path) -> list[psutil.Process]:
    """The live processes of the server of `home`, whoever started it."""
    return _cluster(home.resolve(), None).processes()


def _cluster(home: Path, binaries: Path | None) -> Cluster:
    return Cluster(folder=home / "postgres", alive=home / "postgres.alive", binaries=binaries or bundled_binaries())


class EmbeddedServer:
    """One process's share in the server of a home. Made by `attach`; usable from every thread."""

    _attached: ClassVar[dict[Path, EmbeddedServer]] = {}
    _guard: ClassVar[threading.RLock] = threading.RLock()

    def __init__(self, home: Path, cluster: Cluster) -> None:
        self.home = home
        self._cluster = cluster
        self._users: int | None = None  # the descriptor whose shared lock says that this process uses the server
        self._shares = 0
        self._socket_folder: Path | None = None

    @classmethod
    def attach(cls, home: Path, *, binaries: Path | None = None) -> EmbeddedServer:
        """Join the server of `home`, made and started first where need be, with the databases of `DATABASES`.

        In one process every call returns the same object and is undone by one `release` (all are, at exit).
        Any number of processes may do so at once. After SIGKILL of anything the next call mends what is left.
        """
        home = make_home(home.absolute()).resolve()
        with cls._guard:
            server = cls._attached.get(home)
            if server is None:
                server = cls._attached[home] = cls(home, _cluster(home, binaries))
            server._shares += 1
            try:
                server.ensure_running()
            except BaseException:
                server.release()
                raise
            return server

    @classmethod
    def attached(cls, home: Path) -> EmbeddedServer | None:
        """This process's share in the server of `home`, if it has one."""
        with cls._guard:
            return cls._attached.get(home.resolve())

    def url(self, database: str) -> str:
        """The SQLAlchemy URL of a database of this server, over psycopg 3."""
        return f"postgresql+psycopg://{self._address(database)}"

    def dagster_url(self, database: str) -> str:
        """The same over psycopg 2, which Dagster's storage needs."""
        return f"postgresql+psycopg2://{self._address(database)}"

    def ensure_running(self) -> None:
        """Return when the server takes connections, started again if it died. Costs a file read while it lives."""
        with self._guard:
            entered = self._users is not None
            if not entered:
                self._users = open_locked(self._users_file, exclusive=False, within=STOPPED_WITHIN * 3)
            postmaster = self._cluster.postmaster()
            if entered and postmaster is not None and postmaster.is_ready:
                return
            with self._locked() as descriptor:
                self._bring_up(descriptor)
                self._create_databases(DATABASES)

    def release(self) -> None:
        """Give up one `attach`. The last of the process leaves the server, and the last process stops it."""
        with self._guard:
            self._shares -= 1
            if self._shares > 0:
                return
            self._attached.pop(self.home, None)
            if self._users is not None:
                os.close(self._users)
                self._users = None
            # Nobody starts it meanwhile: who wants to use it gets `postgres.users` only after this.
            with self._locked():
                descriptor = os.open(self._users_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    if try_lock(descriptor, exclusive=True):
                        self._cluster.stop()
                finally:
                    os.close(descriptor)

    @property
    def _users_file(self) -> Path:
        return self.home / "postgres.users"

    def _locked(self) -> AbstractContextManager[int]:
        return file_lock(self.home / "postgres.lock", within=READY_WITHIN + STOPPED_WITHIN)

    def _bring_up(self, descriptor: int) -> None:
        """Make the data folder and start its server, or wait for one that another process began to start or stop."""
        if not self._cluster.exists():
            self._cluster.make(keep=[descriptor])
        deadline = time.monotonic() + READY_WITHIN
        while (postmaster := self._cluster.postmaster()) is None or not postmaster.is_ready:
            if postmaster is None:
                self._cluster.start()
            elif time.monotonic() > deadline:
                raise InfrastructureError(
                    f"the PostgreSQL server of {self.home} (process {postmaster.process.pid}) has not become ready "
                    f"for {READY_WITHIN:.0f} s; see {self._cluster.folder / 'server.log'}"
                )
            else:
                time.sleep(0.02)
        self._socket_folder = postmaster.socket_folder

    def _create_databases(self, names: Sequence[str]) -> None:
        try:
            with psycopg.connect(self._conninfo("postgres"), autocommit=True, connect_timeout=5) as connection:
                there = {row[0] for row in connection.execute("SELECT datname FROM pg_database")}
                for name in names:
                    if name not in there:
                        connection.execute(f'CREATE DATABASE "{name}"'.encode())
        except psycopg.OperationalError as error:
            raise DatabaseUnavailable(
                f"the embedded PostgreSQL of {self.home} does not answer ({str(error).strip()}); "
                f"see {self._cluster.folder / 'server.log'}"
            ) from error

    def _conninfo(self, database: str) -> str:
        return psycopg.conninfo.make_conninfo(host=str(self._socket_folder), dbname=database, user=SUPERUSER)

    def _address(self, database: str) -> str:
        return f"{SUPERUSER}@/{quote(database, safe='')}?host={quote(str(self._socket_folder), safe='/')}"

    @classmethod
    def _release_all(cls) -> None:
        for server in list(cls._attached.values()):
            server._shares = 1
            server.release()

    @classmethod
    def _forget_after_fork(cls) -> None:
        # A forked child shares the parent's open file, and would keep its lock beyond the parent's death.
        cls._guard = threading.RLock()
        for server in cls._attached.values():
            if server._users is not None:
                os.close(server._users)
                server._users = None
            server._shares = 0
        cls._attached.clear()


atexit.register(EmbeddedServer._release_all)
os.register_at_fork(after_in_child=EmbeddedServer._forget_after_fork)

"""The embedded server: one a home, stopped by the last that leaves, mended after any SIGKILL."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from crawl_pipeline.errors import InfrastructureError
from crawl_pipeline.storage.cluster import SOCKET_NAME
from crawl_pipeline.storage.embedded import EmbeddedServer, server_processes
from crawl_pipeline.storage.programs import server_user
from crawl_pipeline_tests import wait_until

# Attaches, says so, and leaves when its standard input closes.
USER = """
import sys
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from crawl_pipeline.storage.embedded import EmbeddedServer
server = EmbeddedServer.attach(Path(sys.argv[1]))
print(server.url("crawl"), flush=True)
sys.stdin.read()
"""
# The same, with a forked child that outlives it.
FORKING_USER = USER.replace(
    "sys.stdin.read()",
    "import os, time\nr, w = os.pipe()\nif os.fork() == 0:\n    os.write(w, b'1')\n    time.sleep(600)\n"
    "os.read(r, 1)\nsys.stdin.read()",
)

UserProcess = subprocess.Popen[str]


@pytest.fixture
def start_user(crawl_home: Path) -> Iterator[Callable[..., UserProcess]]:
    """Starts a process that attaches to `crawl_home`, in a session of its own; all are ended afterwards."""
    started: list[UserProcess] = []

    def start(script: str = USER) -> UserProcess:
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(crawl_home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:  # else its number may be another process's by now
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


def ready(process: UserProcess) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def leave(process: UserProcess) -> None:
    process.communicate(timeout=60)
    assert process.returncode == 0


def run(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True, connect_timeout=5) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def postmaster_of(home: Path) -> psutil.Process:
    return psutil.Process(int((home / "postgres" / "postmaster.pid").read_text().split()[0]))


def kill_server(home: Path) -> None:
    """SIGKILL the postmaster and all its children."""
    for process in server_processes(home):
        with _gone_is_fine():
            process.kill()
    wait_until(lambda: not server_processes(home))


def test_first_start_by_two_processes_at_once_makes_one_server(
    crawl_home: Path, start_user: Callable[..., UserProcess]
) -> None:
    """Without `postgres.lock` both run initdb in the same folder."""
    users = [start_user(), start_user()]
    urls = [ready(user) for user in users]
    assert urls[0] == urls[1]
    assert urls[0].startswith("postgresql+psycopg://postgres@/crawl?host=")
    assert (
        len([p for p in server_processes(crawl_home) if p.ppid() == 1 or p.pid == postmaster_of(crawl_home).pid]) == 1
    )
    assert {row[0] for row in run(urls[0], "SELECT datname FROM pg_database")} >= {"crawl", "dagster"}


def test_last_one_that_leaves_stops_the_server_and_no_one_before(
    ready_home: Path, start_user: Callable[..., UserProcess]
) -> None:
    """Without the shared lock on `postgres.users` the first one that leaves stops it under the other."""
    first, second = start_user(), start_user()
    url = ready(first)
    ready(second)
    leave(first)
    assert run(url, "SELECT 1") == [(1,)]
    leave(second)
    assert server_processes(ready_home) == []
    assert not (ready_home / "postgres" / "postmaster.pid").exists()


def test_killed_user_neither_stops_the_server_nor_keeps_it_alive(
    ready_home: Path, start_user: Callable[..., UserProcess]
) -> None:
    killed, other = start_user(), start_user()
    url = ready(other)
    ready(killed)
    killed.kill()
    killed.wait()
    assert run(url, "SELECT 1") == [(1,)]
    leave(other)
    assert server_processes(ready_home) == []


def test_forked_child_does_not_keep_its_parents_share(ready_home: Path, start_user: Callable[..., UserProcess]) -> None:
    """Without `_forget_after_fork` the child's copy of the descriptor keeps the lock."""
    user = start_user(FORKING_USER)
    ready(user)
    assert user.stdin is not None
    user.stdin.close()
    try:
        assert user.wait(timeout=60) == 0
        assert server_processes(ready_home) == []
    finally:
        os.killpg(user.pid, signal.SIGKILL)  # the child lives on, and with it the group's number


def test_killing_a_users_process_group_does_not_touch_the_server(
    ready_home: Path, start_user: Callable[..., UserProcess]
) -> None:
    """pg_ctl gives the server a session of its own; as a plain child of its starter it would die with it."""
    user = start_user()
    url = ready(user)
    assert os.getsid(postmaster_of(ready_home).pid) != os.getsid(user.pid)
    os.killpg(user.pid, signal.SIGKILL)
    user.wait()
    assert run(url, "SELECT 1") == [(1,)]


def test_data_survive_the_killing_of_every_process(ready_home: Path, start_user: Callable[..., UserProcess]) -> None:
    user = start_user()
    url = ready(user)
    run(url, "CREATE TABLE kept AS SELECT 42 AS answer")
    user.kill()
    kill_server(ready_home)
    assert (ready_home / "postgres" / "postmaster.pid").exists()
    server = EmbeddedServer.attach(ready_home)
    assert run(server.url("crawl"), "SELECT answer FROM kept") == [(42,)]


def test_busy_backend_of_a_killed_postmaster_is_ended_before_the_next_start(ready_home: Path) -> None:
    """Without `_take_alive` the new server finds the old one's shared memory in use and does not start."""
    server = EmbeddedServer.attach(ready_home)
    with closing(psycopg.connect(server.url("crawl").replace("+psycopg", ""), autocommit=True)) as busy:
        backend = psutil.Process(busy.info.backend_pid)
        # Computes without ever looking whether its postmaster lives.
        busy.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 1000000000) a")
        wait_until(lambda: backend.cpu_times().user > 0.05)
        postmaster = postmaster_of(ready_home)
        postmaster.kill()
        wait_until(lambda: postmaster not in server_processes(ready_home))
        assert backend in server_processes(ready_home)
        server.ensure_running()
        assert backend not in server_processes(ready_home)
    assert run(server.url("crawl"), "SELECT 1") == [(1,)]


def test_server_that_died_is_started_again_by_ensure_running(ready_home: Path) -> None:
    server = EmbeddedServer.attach(ready_home)
    before = postmaster_of(ready_home).pid
    server.ensure_running()
    assert postmaster_of(ready_home).pid == before
    kill_server(ready_home)
    server.ensure_running()
    assert run(server.url("crawl"), "SELECT 1") == [(1,)]


def test_stale_pid_files_whose_pid_belongs_to_another_program_do_not_block_the_start(ready_home: Path) -> None:
    """PostgreSQL refuses to start while the process that its pid files name lives; `start` removes them first."""
    EmbeddedServer.attach(ready_home)
    folder = ready_home / "postgres"
    socket_lock = folder / f"{SOCKET_NAME}.lock"
    kill_server(ready_home)
    # Of the server's user: PostgreSQL takes a process that it may not signal for none of its own.
    owner = server_user(folder)
    foreign = subprocess.Popen(["sleep", "600"], user=owner[0] if owner else None)
    try:
        for file in (folder / "postmaster.pid", socket_lock):
            lines = file.read_text().splitlines(keepends=True)
            file.write_text("".join([f"{foreign.pid}\n", *lines[1:]]))
        server = EmbeddedServer.attach(ready_home)
        assert run(server.url("crawl"), "SELECT 1") == [(1,)]
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()


def test_kill_during_initdb_leaves_nothing_that_blocks_the_next_start(
    crawl_home: Path, start_user: Callable[..., UserProcess]
) -> None:
    """Without the rename `postgres` exists half made, and every later start fails."""
    user = start_user()
    half_made = crawl_home / "postgres.new" / "PG_VERSION"
    wait_until(half_made.exists, within=30, every=0.001)
    user.kill()
    user.wait()
    server = EmbeddedServer.attach(crawl_home)
    assert run(server.url("crawl"), "SELECT 1") == [(1,)]
    assert not (crawl_home / "postgres.new").exists()


def test_attach_twice_in_a_process_needs_release_twice(ready_home: Path) -> None:
    server = EmbeddedServer.attach(ready_home)
    assert EmbeddedServer.attach(ready_home) is server
    server.release()
    assert run(server.url("crawl"), "SELECT 1") == [(1,)]
    server.release()
    assert server_processes(ready_home) == []


def test_server_listens_on_a_private_socket_only(ready_home: Path) -> None:
    server = EmbeddedServer.attach(ready_home)
    assert stat.S_IMODE((ready_home / "postgres").stat().st_mode) == 0o700
    assert stat.S_IMODE((ready_home / "postgres" / SOCKET_NAME).stat().st_mode) == 0o700
    assert run(server.url("crawl"), "SHOW listen_addresses") == [("",)]
    assert [c for p in server_processes(ready_home) for c in p.net_connections(kind="inet")] == []


def test_dagster_url_is_of_psycopg2_on_the_same_socket(ready_home: Path) -> None:
    server = EmbeddedServer.attach(ready_home)
    assert server.dagster_url("dagster") == server.url("dagster").replace("+psycopg:", "+psycopg2:")


@pytest.mark.parametrize(
    "name",
    [pytest.param("x" * 120, id="too long for a socket"), pytest.param('it\'s a $HOME, "100 %" & more', id="odd")],
)
def test_home_may_have_any_name(crawl_home: Path, name: str) -> None:
    home = crawl_home / name
    server = EmbeddedServer.attach(home)
    try:
        assert run(server.url("crawl"), "SELECT 1") == [(1,)]
        folder = Path(str(run(server.url("crawl"), "SHOW unix_socket_directories")[0][0]))
        assert folder != home / "postgres"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        server.release()
    assert server_processes(home) == []
    assert not folder.exists()


def test_data_folder_of_another_version_is_refused_in_a_sentence(ready_home: Path) -> None:
    EmbeddedServer.attach(ready_home).release()
    (ready_home / "postgres" / "PG_VERSION").write_text("9\n")
    with pytest.raises(InfrastructureError, match=r"was made by PostgreSQL 9, and this is \d+; .*CRAWL_HOME"):
        EmbeddedServer.attach(ready_home)


def test_foreign_folder_in_its_place_is_refused_and_kept(crawl_home: Path) -> None:
    mine = crawl_home / "postgres" / "mine"
    mine.parent.mkdir(parents=True)
    mine.touch()
    with pytest.raises(InfrastructureError, match="is not a PostgreSQL data folder"):
        EmbeddedServer.attach(crawl_home)
    assert mine.exists()


def test_start_that_fails_says_what_the_log_says(ready_home: Path) -> None:
    EmbeddedServer.attach(ready_home).release()
    (ready_home / "postgres" / "postgresql.auto.conf").write_text("no_such_setting = 1\n")
    with pytest.raises(InfrastructureError, match=r"no_such_setting.*server\.log"):
        EmbeddedServer.attach(ready_home)
    assert EmbeddedServer.attached(ready_home) is None


def _gone_is_fine() -> AbstractContextManager[None]:
    return suppress(ProcessLookupError, psutil.NoSuchProcess)

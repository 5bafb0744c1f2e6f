"""A file that is written appears whole or not at all, whatever ends the command midway."""

from __future__ import annotations

import errno
import io
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawl_pipeline.cli import files
from crawl_pipeline.cli.files import Format, whole_file, write_rows
from crawl_pipeline.errors import CrawlError, UsageError
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.exports import Column, Kind
from crawl_pipeline_tests.storage.commanding import Desk
from crawl_pipeline_tests.storage.filled import ALL_FIELDS, fill

COLUMNS = [Column(name="n", kind=Kind.INTEGER)]

# Writes a million rows, says so, and waits for its death before the last one.
DIES_MIDWAY = """
import sys
from pathlib import Path
from crawl_pipeline.cli.files import Format, write_rows
from crawl_pipeline.storage.exports import Column, Kind

def rows():
    for n in range(1_000_000):
        yield (n,)
    print("midway", flush=True)
    sys.stdin.read()

write_rows(Format(sys.argv[1]), [Column(name="n", kind=Kind.INTEGER)], rows(), Path(sys.argv[2]))
"""


def broken_rows() -> Iterator[tuple[int]]:
    """Rows of a database that fails midway."""
    yield (1,)
    raise RuntimeError("the database went away")


@pytest.mark.parametrize("chosen", [Format.JSONL, Format.CSV, Format.PARQUET])
def test_a_killed_export_leaves_the_old_file(tmp_path: Path, chosen: Format) -> None:
    """Fails where `whole_file` opens its target itself."""
    target = tmp_path / "records"
    target.write_text("old")
    with subprocess.Popen(
        [sys.executable, "-c", DIES_MIDWAY, chosen.value, str(target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"midway\n"
        (part,) = tmp_path.glob(".records.*.part")
        assert part.stat().st_size > 0
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    assert target.read_text() == "old"
    assert write_rows(chosen, COLUMNS, [(1,)], target) == 1
    assert target.read_bytes() != b"old"


@pytest.mark.parametrize("chosen", [Format.JSONL, Format.CSV, Format.PARQUET])
def test_a_failed_export_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path, chosen: Format) -> None:
    target = tmp_path / "records"
    target.write_text("old")
    with pytest.raises(RuntimeError):
        write_rows(chosen, COLUMNS, broken_rows(), target)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("records", "old")]


def test_a_failure_midway_prints_nothing_to_stdout(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with pytest.raises(RuntimeError):
        write_rows(Format.CSV, COLUMNS, broken_rows(), None)
    assert capfdbinary.readouterr().out == b""


def test_a_full_disk_is_one_sentence() -> None:
    with pytest.raises(
        CrawlError, match=r'writing "/dev/full" failed \(No space left on device\); nothing was written'
    ):
        write_rows(Format.CSV, COLUMNS, [(n,) for n in range(100_000)], Path("/dev/full"))


def test_a_new_file_gets_the_usual_permissions_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_rows(Format.CSV, COLUMNS, [(1,)], tmp_path / "new")
        (tmp_path / "old").touch()
        (tmp_path / "old").chmod(0o604)
        write_rows(Format.CSV, COLUMNS, [(1,)], tmp_path / "old")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == 0o604


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_rows(Format.CSV, COLUMNS, [(1,)], tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "n\n1\n"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE) as reader:
        write_rows(Format.CSV, COLUMNS, [(1,)], tmp_path / "pipe")
        assert reader.communicate(timeout=30)[0] == b"n\n1\n"
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder; name a file with --output"), whole_file(tmp_path):
        pass
    with pytest.raises(UsageError, match="cannot write to the folder"), whole_file(tmp_path / "none" / "records"):
        pass


def test_a_folder_that_cannot_be_synced_spoils_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems sync no folder (EINVAL); where one fails, nobody hears that nothing was written."""
    sync, failure = os.fsync, errno.EINVAL

    def fails_for_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(failure, os.strerror(failure))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fails_for_folders)
    target = tmp_path / "records"
    with whole_file(target) as stream:
        stream.write(b"new")
    assert target.read_bytes() == b"new"
    failure = errno.EIO
    with (
        pytest.raises(CrawlError, match="is written, but its folder"),
        whole_file(target) as stream,
    ):
        stream.write(b"newer")
    assert target.read_bytes() == b"newer"


def test_parquet_is_refused_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    with pytest.raises(UsageError, match="Parquet is no text for a terminal"):
        files.chosen_format("parquet", None)


def test_a_reader_that_has_had_enough_is_no_error(desk: Desk, database: Database) -> None:
    """`crawl-pipeline records shop --format jsonl | head -1` says nothing on stderr."""
    fill(database).accept_products(*({**ALL_FIELDS, "sku": f"{n:04}", "image": "x" * 5000} for n in range(60)))
    command = [sys.executable, "-m", "crawl_pipeline.cli", "records", "shop", "--format", "jsonl"]
    with subprocess.Popen(
        command, env={**os.environ, **desk.environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1) == b"{"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 141

"""The command as a person runs it: a process of its own, with a terminal's streams kept apart."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from crawl_pipeline_tests import wait_until

ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Command:
    """A running `crawl-pipeline`; its output goes to files, so that nothing waits for a reader."""

    process: subprocess.Popen[bytes]
    out_file: Path
    err_file: Path

    @property
    def out(self) -> str:
        """Its stdout so far."""
        return self.out_file.read_text(encoding="utf-8")

    @property
    def err(self) -> str:
        """Its stderr so far."""
        return self.err_file.read_text(encoding="utf-8")

    def wait(self, within: float = 150) -> int:
        """Its exit code."""
        return self.process.wait(within)

    def wait_for(self, text: str, within: float = 150) -> None:
        """Return when it has said `text` on stderr. Fails at once when it ends before."""

        def has_said() -> bool:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.err}"
            return text in self.err

        wait_until(has_said, within=within)


def start(folder: Path, *arguments: str, environment: Mapping[str, str]) -> Command:
    """Start `crawl-pipeline` with these arguments, in a group of its own."""
    folder.mkdir(exist_ok=True)
    number = len(list(folder.glob("*.out")))
    out_file, err_file = folder / f"{number}.out", folder / f"{number}.err"
    with out_file.open("wb") as out, err_file.open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "crawl_pipeline.cli", *arguments],
            cwd=folder,
            env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    return Command(process, out_file, err_file)


def run(folder: Path, *arguments: str, environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Run it to its end: exit code, stdout, stderr."""
    command = start(folder, *arguments, environment=environment)
    code = command.wait()
    return code, command.out, command.err

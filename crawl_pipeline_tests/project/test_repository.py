"""What holds for the repository as a whole: commands, sizes of modules, words that must not be in it."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROMISED_TARGETS = {
    "browser",
    "demo",
    "test",
    "dev",
    "check",
    "bench",
    "drill",
    "conformance",
    "format",
    "clean",
    "help",
}
PACKAGE_LINES_MAX = 400
MODULES = sorted((ROOT / "crawl_pipeline").rglob("*.py"))


def test_make_alone_lists_every_promised_target_with_what_it_does() -> None:
    said = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = dict(re.findall(r"^  ([a-z]+) +(\S.*)$", said, flags=re.MULTILINE))
    assert set(listed) == PROMISED_TARGETS


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_says_what_it_is_and_stays_readable(module: Path) -> None:
    text = module.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree) or not tree.body, "no docstring"
    assert len(text.splitlines()) <= PACKAGE_LINES_MAX, "split it: one file, one noun"


def test_no_path_of_one_machine_is_in_the_repository() -> None:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    # An archive without its git folder: what is there is what was packed.
    files = [ROOT / name for name in names.split("\0") if name] or [
        path for path in ROOT.rglob("*") if path.is_file() and not {".venv", ".git"} & set(path.parts)
    ]
    machine = re.compile(r"(?<![\w./])/(?:work|home/\w+|Users/\w+|root)/")
    found = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        found += [f"{file.relative_to(ROOT)}: {match[0]}" for match in machine.finditer(text) if file != Path(__file__)]
    assert found == []

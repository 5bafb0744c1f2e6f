"""The wheel carries everything that the commands need, and the lock names nothing but PyPI."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from crawl_pipeline.storage.schema import known_versions

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return folder / built.stdout.split()[-1]


def test_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    package = ROOT / "crawl_pipeline"
    wanted = {
        str(path.relative_to(ROOT))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    with zipfile.ZipFile(wheel) as archive:
        there = set(archive.namelist())
    assert wanted - there == set()
    assert {"crawl_pipeline/dagster.yaml", "crawl_pipeline/workspace.yaml"} <= there
    assert {name.split("/")[0] for name in there if not name.startswith("crawl_pipeline/")} == {
        f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"
    }


def test_migrations_run_from_the_wheel(wheel: Path, tmp_path: Path, empty_database_url: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from crawl_pipeline.storage import schema\n"
        "assert schema.__file__.startswith(sys.argv[1]), schema.__file__\n"
        "print(schema.upgrade(sys.argv[2]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), empty_database_url],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.strip() == known_versions()[-1], ran.stderr


def test_lock_names_no_index_but_pypi() -> None:
    lock = (ROOT / "uv.lock").read_text()
    assert set(re.findall(r'registry = "([^"]*)"', lock)) == {"https://pypi.org/simple"}
    assert set(re.findall(r'(?:url|path) = "(\w+://[^/"]*|[^h][^"]*)', lock)) == {"https://files.pythonhosted.org"}


def test_dagster_versions_are_exact_in_project_and_lock() -> None:
    project, lock = (ROOT / "pyproject.toml").read_text(), (ROOT / "uv.lock").read_text()
    pins = dict(re.findall(r'"(dagster(?:-\w+)?)==([\d.]+)"', project))
    assert set(pins) == {"dagster", "dagster-webserver", "dagster-postgres"}
    for name, version in pins.items():
        assert f'name = "{name}"\nversion = "{version}"\n' in lock

"""`python -m crawl_pipeline.demo`: crawl the demo shop with the real command, and show what came of it.

Every step is a command that a person could type, and is shown as such.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from crawl_pipeline.demo.contract import DEMO_SOURCE, demo_contract_text, demo_sources_folder
from crawl_pipeline.demo.shop import Shop
from crawl_pipeline.errors import CrawlError
from crawl_pipeline.settings import Settings
from crawl_pipeline.storage.opening import open_database

PORT = 8800
MORE_PORTS = range(8801, 8821)
PREVIEW_ROWS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A running shop, and the source that crawls it."""

    shop: Shop
    source: str
    sources_folder: Path


def main() -> int:
    """Run the demo; returns the exit code of the first command that fails, 128 + signal when stopped."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        settings = Settings.from_environment(os.environ, Path.cwd())
        with _stage(settings) as stage:
            return _play(settings, stage)
    except CrawlError as error:
        print(f"demo: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _play(settings: Settings, stage: Stage) -> int:
    print(f"The demo shop is open at {stage.shop.base_url}/list/0: 25 lists, 500 products.")
    open_database(settings).close()  # this process keeps the embedded Postgres between the commands
    environment = {**os.environ, "CRAWL_SOURCES": str(stage.sources_folder)}
    rows = str(PREVIEW_ROWS)
    for arguments in (
        ["crawl", stage.source],
        ["records", stage.source, "--limit", rows],
        ["status", stage.source],
    ):
        print(f"\n$ crawl-pipeline {shlex.join(arguments)}", flush=True)
        code = _run([sys.executable, "-m", "crawl_pipeline.cli", *arguments], environment)
        if code != 0:
            return code
    print(_where_next(settings, stage))
    return 0


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run a command to its end. Ctrl-C reaches it from the terminal by itself; SIGTERM is passed on."""
    process = subprocess.Popen(command, env=environment)
    while True:
        try:
            code = process.wait()
            return code if code >= 0 else 128 - code
        except KeyboardInterrupt:
            pass  # it gives back what it holds, and ends
        except SystemExit:
            process.terminate()


def _terminate(_number: int, _frame: object) -> None:
    raise SystemExit(143)


@contextmanager
def _stage(settings: Settings) -> Iterator[Stage]:
    """Open the shop at its own address, where the bundled contract expects it, or beside it as a source of its own.

    A source keeps its address: pages that were crawled elsewhere would be out of its scope.
    """
    try:
        shop = Shop.start(port=PORT)
    except OSError:
        shop = _start_elsewhere()
    with shop:
        if shop.port == PORT:
            yield Stage(shop=shop, source=DEMO_SOURCE, sources_folder=demo_sources_folder())
            return
        source = f"{DEMO_SOURCE}_{shop.port}"
        print(f"Port {PORT} is in use, so the demo is the source {source} on port {shop.port}.")
        folder = settings.home / "demo_sources"
        folder.mkdir(parents=True, exist_ok=True)
        text = demo_contract_text(shop.base_url).replace(f"source: {DEMO_SOURCE}\n", f"source: {source}\n", 1)
        (folder / f"{source}.yaml").write_text(text, encoding="utf-8")
        yield Stage(shop=shop, source=source, sources_folder=folder)


def _start_elsewhere() -> Shop:
    for port in MORE_PORTS:
        try:
            return Shop.start(port=port)
        except OSError:
            continue
    raise CrawlError(f"ports {PORT} to {MORE_PORTS[-1]} are all in use; free one of them")


def _where_next(settings: Settings, stage: Stage) -> str:
    command = _short(Path(sys.executable).parent / "crawl-pipeline")
    return f"""
Where to look next (what was crawled is kept in {_short(settings.home)}):
  export CRAWL_SOURCES={shlex.quote(_short(stage.sources_folder))}
  {command} records {stage.source} --format csv
  {command} explain {stage.shop.base_url}/list/0 --source {stage.source}
  make demo    once more: nothing is due, so nothing is requested
  make dev     the web UI, with this run in it"""


def _short(path: Path) -> str:
    """The path from here, where it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


if __name__ == "__main__":
    sys.exit(main())

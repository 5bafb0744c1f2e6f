"""`crawl-pipeline crawl SOURCE`: the Dagster job `crawl` for one source, in the foreground."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from crawl_pipeline.cli.output import plain
from crawl_pipeline.cli.signals import stop_signals
from crawl_pipeline.cli.terminal import kept_terminal
from crawl_pipeline.domain.durations import parse_duration
from crawl_pipeline.errors import CrawlError
from crawl_pipeline.settings import Settings

if TYPE_CHECKING:
    from crawl_pipeline.pipeline.crawl import CrawlReport


def _duration(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    if text is not None:
        try:
            parse_duration(text)
        except ValueError as error:
            raise click.BadParameter(f"{text}: {error}") from error
    return text


@click.command()
@click.argument("source")
@click.option("--workers", type=click.IntRange(min=1), help="Worker processes; default: one per core.")
@click.option("--force", is_flag=True, help="Make every known page due, whenever it was last checked.")
@click.option(
    "--max-pages", type=click.IntRange(min=1), help="Stop after so many pages; default: the contract's limit."
)
@click.option(
    "--max-duration", metavar="DURATION", callback=_duration, help="Stop after this time, such as 90s, 30m or 2h."
)
@click.option("--json", "as_json", is_flag=True, help="Write the report as JSON to stdout.")
def crawl(
    source: str,
    workers: int | None,
    force: bool,
    max_pages: int | None,
    max_duration: str | None,
    as_json: bool,
) -> int:
    """Crawl SOURCE now, in the foreground: progress on stderr, the crawl's id and why it ended on stdout.

    It is the Dagster job `crawl`, and the web UI shows it like any other run. A crawl that was cut short is resumed.
    Exit 0: ended (also when a limit ended it, hosts are resting, or nothing was due); 1: the machine failed;
    2: wrong use or contract, or the source is being crawled already; 130 or 143: stopped by Ctrl-C or SIGTERM.
    """
    settings = Settings.from_environment(os.environ, Path.cwd())
    options: dict[str, Any] = {
        "workers": workers,
        "force": force,
        "max_pages": max_pages,
        "max_duration": max_duration,
    }
    with stop_signals() as signals, kept_terminal(settings.home / "logs" / f"crawl-{_safe(source)}.log") as terminal:
        report = None
        try:
            report = _crawl(settings, source, options, terminal.err)
        except (CrawlError, KeyboardInterrupt):
            if signals.exit_code is None:  # else whatever failed, failed because it was stopped
                raise
        if signals.exit_code is not None:
            print(f"{source}: stopped; run the same command to go on", file=terminal.err)
            return signals.exit_code
        if report is not None:
            text = json.dumps(plain(report)) if as_json else f"{report.crawl_id} {report.stop_reason}"
            print(text, file=terminal.out)
    return 0


def _crawl(settings: Settings, source: str, options: dict[str, Any], err: TextIO) -> CrawlReport | None:
    """Check the request, start what is needed, run. What takes its time in other processes runs beside the imports."""
    from crawl_pipeline.cli.progress import display, summary
    from crawl_pipeline.defs.contracts import contract_of
    from crawl_pipeline.defs.instance import prepare_instance
    from crawl_pipeline.storage.opening import open_database

    with display(source, err) as shown, ThreadPoolExecutor(1) as beside:
        contract_of(settings, source)
        shown.says("starting the database and Dagster")
        home = beside.submit(prepare_instance, settings)
        schema = beside.submit(lambda: open_database(settings).close())
        from crawl_pipeline.defs import launch
        from crawl_pipeline.defs.configuration import run_config

        with launch.opened_instance(home.result()) as instance:
            schema.result()
            launch.run_crawl(instance, source, run_config(**options), shown)
    if shown.error is not None:
        raise shown.error
    if shown.report is not None:
        print("\n".join(summary(shown.report)), file=err)
    return shown.report


def _safe(source: str) -> str:
    return "".join(character for character in source if character.isalnum() or character == "_")[:60] or "source"

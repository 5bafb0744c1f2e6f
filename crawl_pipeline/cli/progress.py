"""How a crawl in the foreground is shown: a live line on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from crawl_pipeline.defs.observers import Observer
from crawl_pipeline.errors import CrawlError
from crawl_pipeline.pipeline import supervisor
from crawl_pipeline.pipeline.crawl import CrawlReport, OpenedCrawl

PLAIN_EVERY = 5.0  # seconds
WIDE = 110  # columns of a terminal with room for a bar


class Display(Observer):
    """What the command knows of its crawl: the newest report, the first error; subclasses show the rest."""

    def __init__(self) -> None:
        self.crawl: OpenedCrawl | None = None
        self.report: CrawlReport | None = None
        self.error: CrawlError | None = None

    def says(self, text: str) -> None:
        """Show a line, or what goes on at the moment."""

    def opened(self, crawl: OpenedCrawl) -> None:
        """Keep the crawl and say whether it is a new one."""
        self.crawl = crawl
        verb = "resuming" if crawl.is_resumed else "opened"
        self.says(f"{verb} crawl {crawl.crawl_id}, {crawl.workers} worker{'s' if crawl.workers != 1 else ''}")

    def closed(self, report: CrawlReport) -> None:
        """Keep the report."""
        self.report = report

    def failed(self, error: CrawlError) -> None:
        """Keep the first error: it is the cause."""
        super().failed(error)
        self.error = self.error or error


class PlainDisplay(Display):
    """Lines for logs and pipes."""

    def __init__(self, source: str, out: TextIO) -> None:
        super().__init__()
        self._source = source
        self._out = out
        self._said_at = float("-inf")

    def says(self, text: str) -> None:
        """Write a line."""
        print(f"{self._source}: {text}", file=self._out, flush=True)

    def progressed(self, progress: supervisor.Progress) -> None:
        """Write a line, unless one was written a moment ago."""
        now = time.monotonic()
        if now - self._said_at >= PLAIN_EVERY:
            self._said_at = now
            self.says(f"{progress.done} of {progress.known} pages done, {_rates(progress)}, {progress.elapsed:.0f} s")


class LiveDisplay(Display):
    """One line that moves."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        super().__init__()
        self._bar = bar
        self._task = task

    def says(self, text: str) -> None:
        """Show it beside the bar until there is something newer."""
        self._bar.update(self._task, said=text)

    def progressed(self, progress: supervisor.Progress) -> None:
        """Move the bar."""
        self._bar.update(
            self._task,
            total=max(progress.known, 1),
            completed=progress.done,
            said=f"{progress.done} of {progress.known} pages, {_rates(progress)}",
        )


@contextmanager
def display(source: str, out: TextIO) -> Iterator[Display]:
    """The display that suits `out`; a live one leaves no trace at the end of the block."""
    console = Console(file=out)
    if not console.is_terminal:
        yield PlainDisplay(source, out)
        return
    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}", markup=False)]
    if console.width >= WIDE:
        columns.append(BarColumn(bar_width=24))
    columns += [TimeElapsedColumn(), TextColumn("{task.fields[said]}", markup=False)]
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        yield LiveDisplay(bar, bar.add_task(source, total=None, said="starting"))


def summary(report: CrawlReport) -> list[str]:
    """What came of a crawl, in a few lines for people."""
    urls = report.urls
    stored = f"{report.records} records ({report.records_added} new, {report.records_changed} changed)"
    lines = [
        f"{report.source}: {report.stop_reason.replace('_', ' ')} after {report.elapsed:.1f} s, "
        f"{report.pages_per_second:.1f} pages/s",
        f"  pages    {', '.join(f'{count} {state}' for state, count in urls.items() if count) or 'none'}",
        f"  stored   {stored}, {report.page_versions} page versions ({report.versions_added} new)",
        f"  requests {report.requests} for pages, {report.other_requests} others",
    ]
    if report.over_max_urls:
        lines.append(f"  left out {report.over_max_urls} URLs beyond limits.max_urls")
    if report.traps:
        lines.append(f"  left out {report.traps} URLs that are crawl traps (limits.max_repeats and those after it)")
    if report.records_gone:
        lines.append(f"  removed  {report.records_gone} records that no page yields any more")
    if report.holds:
        lines.append(f"  held     removals wait for you: crawl-pipeline quarantine list {report.source}")
    if urls.get("quarantined"):
        lines.append(f"  set aside {urls['quarantined']} pages: crawl-pipeline quarantine list {report.source}")
    if report.next_due_at is not None:
        lines.append(f"  next due {report.next_due_at:%Y-%m-%d %H:%M} UTC")
    return lines


def _rates(progress: supervisor.Progress) -> str:
    queued, active = progress.urls.get("queued", 0), progress.urls.get("active", 0)
    parts = [f"{progress.pages_per_second:.1f} pages/s", f"{queued} queued", f"{active} active"]
    parts.append(f"{progress.rejected} rejected")
    if progress.quarantined:
        parts.append(f"{progress.quarantined} quarantined")
    return ", ".join(parts)

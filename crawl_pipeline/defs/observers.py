"""Who watches the crawl that runs in this process: the command line, or nobody.

A process runs one crawl at a time, so there is one observer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from crawl_pipeline.errors import CrawlError
from crawl_pipeline.pipeline.crawl import CrawlReport, OpenedCrawl
from crawl_pipeline.pipeline.re_extract import ReExtractReport
from crawl_pipeline.pipeline.supervisor import Progress


class Observer:
    """Watches one crawl; subclass what is of interest. Called from the threads of the run, never two at once."""

    has_failed = False

    def opened(self, crawl: OpenedCrawl) -> None:
        """The crawl is open (new, or resumed)."""

    def progressed(self, progress: Progress) -> None:
        """About once a second while workers run."""

    def closed(self, report: CrawlReport) -> None:
        """The crawl is closed."""

    def re_extracted(self, report: ReExtractReport) -> None:
        """Stored pages were extracted anew by today's rules."""

    def failed(self, error: CrawlError) -> None:
        """A step gave up; the run will fail with this sentence."""
        self.has_failed = True


_nobody = Observer()
_current = _nobody


def current() -> Observer:
    """The observer of this process's crawl; one that ignores everything if nobody watches."""
    return _current


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Let `observer` watch what this process runs within the block."""
    global _current
    _current = observer
    try:
        yield
    finally:
        _current = _nobody

"""The run configuration of a crawl, as the launchpad shows it."""

from __future__ import annotations

from datetime import timedelta

import dagster as dg
from pydantic import Field

from crawl_pipeline.domain.durations import parse_duration
from crawl_pipeline.errors import UsageError
from crawl_pipeline.pipeline.crawl import CrawlOptions


class CrawlConfig(dg.Config):
    """Options of one crawl; what is left out is as the contract and the machine say."""

    workers: int | None = Field(default=None, description="Worker processes; default: one per core.")
    force: bool = Field(default=False, description="Make every known page due, whenever it was last checked.")
    max_pages: int | None = Field(default=None, description="Stop after so many pages; default: the contract's limit.")
    max_duration: str | None = Field(
        default=None, description="Stop after this time, such as 90s, 30m or 2h; default: the contract's limit."
    )

    def options(self) -> CrawlOptions:
        """The same, checked. Raises UsageError."""
        for name, value in (("workers", self.workers), ("max_pages", self.max_pages)):
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}; use a number from 1 up, or leave it out")
        return CrawlOptions(
            workers=self.workers, force=self.force, max_pages=self.max_pages, max_duration=self._max_duration()
        )

    def _max_duration(self) -> timedelta | None:
        if self.max_duration is None:
            return None
        try:
            duration = parse_duration(self.max_duration)
        except ValueError as error:
            raise UsageError(f'max_duration is "{self.max_duration}"; {error}') from error
        if not duration:
            raise UsageError("max_duration is 0; use a time such as 90s, 30m or 2h, or leave it out")
        return duration


def run_config(
    *, workers: int | None, force: bool, max_pages: int | None, max_duration: str | None
) -> dict[str, object]:
    """The run configuration of the job `crawl` with these options; Nones are left out."""
    chosen: dict[str, object] = {
        name: value
        for name, value in (("workers", workers), ("max_pages", max_pages), ("max_duration", max_duration))
        if value is not None
    }
    if force:
        chosen["force"] = True
    if not chosen:
        return {}
    return {"ops": {"page_versions": {"ops": {"open_crawl": {"config": chosen}}}}}

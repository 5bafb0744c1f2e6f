"""Partitions: one a source, never one a page.

Owns the partition set `source` and the refusal of launches that name no single source.
"""

from __future__ import annotations

from typing import Protocol

import dagster as dg

from crawl_pipeline.errors import UsageError

SOURCES = "source"
sources = dg.DynamicPartitionsDefinition(name=SOURCES)


class Partitioned(Protocol):
    """What an op's and an asset's context have in common here."""

    @property
    def has_partition_key(self) -> bool: ...

    @property
    def has_partition_key_range(self) -> bool: ...

    @property
    def partition_key(self) -> str: ...


def source_of(context: Partitioned) -> str:
    """The source that a run is for. Raises UsageError when the run names none, or more than one."""
    if context.has_partition_key:
        return context.partition_key
    if context.has_partition_key_range:
        raise UsageError(
            "a run crawls one source, and this one was launched for a range of them; "
            "launch a backfill with one run per partition, or one run per source"
        )
    raise UsageError("no source was chosen; launch the job with a partition, which is the name of a source")

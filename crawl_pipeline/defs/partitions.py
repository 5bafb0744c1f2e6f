"""Partitions: one a source, never one a page.

Owns the partition set `source` and the refusal of launches that name no single source.
"""

from __future__ import annotations

from typing import Protocol

import dagster as dg
from dagster import DagsterInstance

from crawl_pipeline.defs.contracts import contracts
from crawl_pipeline.errors import UsageError
from crawl_pipeline.settings import Settings

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


def add_partitions(instance: DagsterInstance, settings: Settings) -> list[str]:
    """Add a partition for each valid contract that has none, and return their sources; then raise ContractErrors if
    others are faulty.
    """
    found = contracts(settings)
    new = sorted(set(found.valid) - set(instance.get_dynamic_partitions(SOURCES)))
    if new:
        instance.add_dynamic_partitions(SOURCES, new)
    if found.faults is not None:
        raise found.faults
    return new


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

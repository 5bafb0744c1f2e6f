"""What a test of this folder works with, and what it asks of a finished run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from dagster import AssetKey, DagsterEventType, DagsterInstance, ExecuteInProcessResult

from crawl_pipeline.definitions import defs
from crawl_pipeline.domain.pages import CrawlId
from crawl_pipeline.settings import Settings
from crawl_pipeline.storage import crawls
from crawl_pipeline.storage.crawls import Holder
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.frontier import Frontier
from crawl_pipeline_tests import crawling


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The settings of a crawl, as an environment and as an object, and the folder of its contracts."""

    settings: Settings
    environment: Mapping[str, str]
    sources: Path


def run_job(
    instance: DagsterInstance,
    source: str | None = "demo_shop",
    *,
    assets: list[str] | None = None,
    tags: Mapping[str, str] | None = None,
    **options: Any,
) -> ExecuteInProcessResult:
    """Run the job `crawl` in this process, as a launch with a partition (or without) would."""
    if source is not None:
        instance.add_dynamic_partitions("source", [source])
    config = {"ops": {"page_versions": {"ops": {"open_crawl": {"config": options}}}}} if options else {}
    return defs.resolve_job_def("crawl").execute_in_process(
        instance=instance,
        partition_key=source,
        asset_selection=[_key(asset) for asset in assets] if assets else None,
        run_config=config,
        tags=dict(tags or {}),
        raise_on_error=False,
    )


def steps(result: ExecuteInProcessResult) -> list[str]:
    """The steps that ran, in order."""
    started = (event for event in result.all_events if event.event_type is DagsterEventType.STEP_START)
    return [str(event.step_key) for event in started]


def why_failed(result: ExecuteInProcessResult) -> str:
    """The sentence of the first step that failed."""
    assert not result.success
    failure = next(event for event in result.all_events if event.is_step_failure)
    data = failure.step_failure_data
    assert data.user_failure_data is not None, data.error
    return data.user_failure_data.description or ""


def said_of(result: ExecuteInProcessResult, asset: str) -> dict[str, object]:
    """The metadata of an asset's materialization, as plain values."""
    found = [event for event in result.get_asset_materialization_events() if event.asset_key == _key(asset)]
    assert len(found) == 1
    assert found[0].partition == "demo_shop"
    return {name: value.value for name, value in found[0].materialization.metadata.items()}


def _key(asset: str) -> AssetKey:
    return AssetKey([asset])


def insert_due_url(database: Database, source_id: int) -> None:
    """One URL that was never visited."""
    crawling.rows(
        database,
        "SELECT discover(:s, ARRAY[gen_random_uuid()], ARRAY['127.0.0.1'], ARRAY['http://127.0.0.1/'], "
        "ARRAY[0]::smallint[], ARRAY[NULL]::uuid[], false)",
        s=source_id,
    )


def insert_crawl(
    database: Database, source_id: int, *, run_id: str, machine: str, silent_for: str = "0 seconds"
) -> CrawlId:
    """An open crawl that a run on some machine holds and last spoke for `silent_for` ago."""
    crawl_id = CrawlId(uuid4())
    holder = Holder(run_id=run_id, machine=machine, pid=1, pid_started=1.0)
    with database.connection() as connection:
        assert crawls.insert(
            connection,
            crawl_id=crawl_id,
            source_id=source_id,
            kind="crawl",
            contract_version="1",
            max_duration=timedelta(hours=1),
            max_pages=100,
            options={},
            holder=holder,
        )
        connection.execute(
            sa.text(
                "UPDATE crawls SET heartbeat_at = clock_timestamp() - CAST(:silent AS interval) WHERE crawl_id = :c"
            ),
            {"silent": silent_for, "c": crawl_id},
        )
    return crawl_id


def insert_lease(database: Database, source_id: int, crawl_id: CrawlId, *, run_id: str, expires_in: timedelta) -> None:
    """One URL, leased to a worker of a run until `expires_in` from now."""
    insert_due_url(database, source_id)
    frontier = Frontier(database, source_id=source_id, crawl_id=crawl_id, run_id=run_id, worker_id="worker")
    (lease,) = frontier.claim(want=1, batch=1, share=1, is_idle=True)
    crawling.rows(
        database,
        "UPDATE leases SET expires_at = clock_timestamp() + :left WHERE lease_token = :token RETURNING 1",
        left=expires_in,
        token=lease.token,
    )

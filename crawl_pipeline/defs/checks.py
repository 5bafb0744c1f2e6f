"""Asset checks: what each source promises, judged per partition after its runs, and between them by a sensor.

One step judges all of a source: a check a step would cost more than the judging.
"""

# No `from __future__ import annotations`: Dagster reads the parameters' types from the annotations as they are.

import json
import warnings
from collections.abc import Iterator
from typing import Any

import dagster as dg
from dagster import AssetCheckEvaluation

from crawl_pipeline.defs.failures import reported_failures
from crawl_pipeline.defs.partitions import SOURCES, source_of, sources
from crawl_pipeline.defs.resources import CrawlDatabase
from crawl_pipeline.domain.health import Finding, findings
from crawl_pipeline.storage import health

CHECKS = {
    ("page_versions", "pages_within_window"): "No page was checked longer ago than its freshness.window.",
    ("page_versions", "window_within_budget"): "The freshness budget suffices to keep every page within its window.",
    ("page_versions", "quarantine_is_attended"): "No page has waited for a person for over a week.",
    ("page_versions", "rejections_as_usual"): "The last crawl rejected no larger share than those before it.",
    ("page_versions", "no_orphaned_leases"): "No lease has outlived its worker.",
    ("records", "natural_keys_agree"): "No two pages claim one natural key with different data.",
    ("records", "requests_as_usual"): "The last crawl made no more requests than usual.",
    ("records", "no_removal_is_held"): "No removal is held by a guard.",
}


def _specs() -> list[dg.AssetCheckSpec]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)  # partitions of checks; their UI is there
        return [
            dg.AssetCheckSpec(name, asset=asset, description=text, partitions_def=sources)
            for (asset, name), text in CHECKS.items()
        ]


@dg.multi_asset_check(name="source_health", specs=_specs(), can_subset=True)
def source_health(
    context: dg.AssetCheckExecutionContext, crawl_database: CrawlDatabase
) -> Iterator[dg.AssetCheckResult]:
    """Judge the source by what the database says of it now."""
    with reported_failures(context.op_execution_context):
        source = source_of(context.op_execution_context)
        with crawl_database.opened() as database:
            facts = health.facts(database, source)
    chosen = context.op_execution_context.selected_asset_check_keys
    for one in findings(facts) if facts is not None else ():
        if dg.AssetCheckKey(dg.AssetKey(one.asset), one.name) not in chosen:
            continue
        yield dg.AssetCheckResult(**_said(one))


@dg.sensor(
    minimum_interval_seconds=300,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Reports the checks of each source whose verdict changed since they were reported last, without a run.",
)
def source_health_changes(context: dg.SensorEvaluationContext, crawl_database: CrawlDatabase) -> dg.SensorResult:
    said: dict[str, str] = json.loads(context.cursor or "{}")
    now, events = {}, []
    with crawl_database.opened() as database:
        for source in sorted(context.instance.get_dynamic_partitions(SOURCES)):
            facts = health.facts(database, source)
            if facts is None:
                continue
            found = findings(facts)
            now[source] = "".join("." if one.is_passed else "E" if one.is_error else "W" for one in found)
            before = said.get(source, "." * len(found)).ljust(len(found), ".")
            events += [
                AssetCheckEvaluation(**_said(one), partition=source)
                for one, verdict, last in zip(found, now[source], before, strict=False)
                if verdict != last
            ]
    changed = sorted({str(event.partition) for event in events})
    return dg.SensorResult(
        asset_events=events,
        cursor=json.dumps(now),
        skip_reason=f"{len(events)} verdicts changed: {', '.join(changed)}" if events else "no verdict changed",
    )


def _said(one: Finding) -> dict[str, Any]:
    return {
        "asset_key": dg.AssetKey(one.asset),
        "check_name": one.name,
        "passed": one.is_passed,
        "severity": dg.AssetCheckSeverity.ERROR if one.is_error else dg.AssetCheckSeverity.WARN,
        "description": one.said,
        "metadata": dict(one.numbers),
    }

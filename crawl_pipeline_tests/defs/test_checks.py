"""Asset checks: judged per source with each run, and between runs by a sensor, only where a verdict changes."""

from __future__ import annotations

import dagster as dg
from dagster import DagsterInstance

from crawl_pipeline.definitions import defs
from crawl_pipeline.defs.checks import CHECKS, source_health_changes
from crawl_pipeline.defs.resources import CrawlDatabase
from crawl_pipeline.demo.shop import Shop
from crawl_pipeline.domain.health import findings
from crawl_pipeline.storage import health
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests import crawling
from crawl_pipeline_tests.defs.worlds import World, run_job


def tick(instance: DagsterInstance, cursor: str | None) -> dg.SensorResult:
    context = dg.build_sensor_context(
        instance=instance, cursor=cursor, definitions=defs, resources={"crawl_database": CrawlDatabase()}
    )
    result = source_health_changes(context)
    assert isinstance(result, dg.SensorResult)
    return result


def test_each_run_judges_its_source_and_the_sensor_tells_what_changed_since(
    instance: DagsterInstance, world: World, shop: Shop, database: Database
) -> None:
    result = run_job(instance, workers=1)
    assert result.success
    judged = result.get_asset_check_evaluations()
    assert {(one.asset_key.to_user_string(), one.check_name) for one in judged} == set(CHECKS)
    assert {(one.passed, one.partition) for one in judged} == {(True, "demo_shop")}

    first = tick(instance, None)
    assert (first.asset_events, first.skip_reason and first.skip_reason.skip_message) == ([], "no verdict changed")
    crawling.rows(database, "UPDATE urls SET last_fetched_at = 'epoch', due_at = 'epoch' RETURNING 1")
    crawling.rows(database, "UPDATE queues SET next_due_at = 'epoch', not_before = 'epoch' RETURNING 1")
    second = tick(instance, first.cursor)
    (event,) = second.asset_events
    assert isinstance(event, dg.AssetCheckEvaluation)
    assert (event.check_name, event.passed, event.partition) == ("pages_within_window", False, "demo_shop")
    assert event.severity is dg.AssetCheckSeverity.ERROR
    assert event.metadata["stale pages"].value == 525
    assert tick(instance, second.cursor).asset_events == []


def test_facts_are_what_the_database_holds(
    instance: DagsterInstance, world: World, shop: Shop, database: Database
) -> None:
    assert health.facts(database, "demo_shop") is None
    assert run_job(instance, workers=1).success
    crawling.rows(
        database,
        """UPDATE urls SET state = 'quarantined', reason = 'poison', due_at = NULL
            WHERE url_key = (SELECT url_key FROM urls LIMIT 1) RETURNING 1""",
    )
    crawling.rows(database, "UPDATE fetches SET started_at = started_at - interval '30 days' RETURNING 1")
    crawling.rows(
        database,
        """UPDATE record_pages SET data = '{}' WHERE record_id = (SELECT record_id FROM record_pages LIMIT 1)
           RETURNING 1""",
    )
    facts = health.facts(database, "demo_shop")
    assert facts is not None
    assert (facts.pages, facts.records, facts.conflicts, facts.quarantine) == (524, 500, 1, {"poison": 1})
    assert [(one.accepted, one.rejected, one.requests) for one in facts.crawls] == [(525, 0, 525)]
    failed = {one.name for one in findings(facts) if not one.is_passed}
    assert failed == {"quarantine_is_attended", "natural_keys_agree"}

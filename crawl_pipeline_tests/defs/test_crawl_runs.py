"""Whole runs: both assets of the demo shop, what they say of themselves, and what a later run does not do."""

from __future__ import annotations

import dagster as dg
from dagster import DagsterInstance

from crawl_pipeline.defs.contracts import contract_of
from crawl_pipeline.demo.shop import Shop
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests import crawling
from crawl_pipeline_tests.defs.worlds import World, run_job, said_of, steps

OPEN, WORK, CLOSE, RECORDS, CHECKS = (
    "page_versions.open_crawl",
    "page_versions.crawl_worker[machine_0]",
    "page_versions.close_crawl",
    "records",
    "source_health",
)


def requests(shop: Shop) -> int:
    return len(shop.requests) + len(shop.other_requests)


def test_a_run_crawls_the_source_and_a_second_one_finds_nothing_due(
    instance: DagsterInstance, world: World, shop: Shop, database: Database
) -> None:
    result = run_job(instance, workers=1)
    assert result.success
    assert steps(result) == [OPEN, WORK, CLOSE, RECORDS, CHECKS]
    pages, records = said_of(result, "page_versions"), said_of(result, "records")
    (crawl,) = crawling.rows(database, "SELECT crawl_id, run_id, stop_reason FROM crawls")
    assert (crawl.run_id, crawl.stop_reason) == (result.run_id, "finished")
    assert (pages["crawl"], pages["stop reason"]) == (str(crawl.crawl_id), "finished")
    assert (pages["dagster/row_count"], pages["urls accepted"], pages["requests"]) == (525, 525, len(shop.requests))
    assert pages["requests per stored record"] == 1.05
    assert (records["dagster/row_count"], records["versions re-extracted"]) == (500, 0)
    assert_previewed(instance, shop)
    assert str(pages["picture"]).startswith("![pages per second](data:image/svg+xml;base64,")
    for said, n in ((pages, 100), (records, 100)):
        assert (said["contract"], said["owner"]) == (str(world.sources / "demo_shop.yaml"), "team:data")
        query = str(said["query"]).removeprefix("```sql\n").removesuffix("\n```")
        assert len(crawling.rows(database, query)) == n
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert 30 * 60 < float(run.tags["dagster/max_runtime"]) < 3 * 3600

    asked = requests(shop)
    second = run_job(instance)
    assert second.success
    assert steps(second) == [OPEN, CLOSE, RECORDS, CHECKS]
    assert str(said_of(second, "page_versions")["stop reason"]).startswith("nothing_due: 0 due, next at 2")
    assert requests(shop) == asked


def assert_previewed(instance: DagsterInstance, shop: Shop) -> None:
    """The preview holds the first rows by natural key."""
    event = instance.get_latest_materialization_event(dg.AssetKey(["records"]))
    assert event is not None
    assert event.asset_materialization is not None
    table = event.asset_materialization.metadata["preview"]
    assert isinstance(table, dg.TableMetadataValue)
    expected = shop.expected_records()
    assert [record.data["sku"] for record in table.records] == sorted(expected)[:10]
    assert table.records[0].data["price"] == str(expected["DS-0001"]["price"])


def test_a_limit_ends_a_run_as_a_success_and_force_makes_all_pages_due_again(
    instance: DagsterInstance, world: World, shop: Shop
) -> None:
    limited = run_job(instance, workers=1, max_pages=30)
    said = said_of(limited, "page_versions")
    assert (limited.success, said["stop reason"]) == (True, "max_pages")
    first = said["urls accepted"]
    assert isinstance(first, int)
    assert 30 <= first < 200
    assert said["urls cancelled"] != 0

    forced = said_of(run_job(instance, workers=1, force=True, max_pages=1000), "page_versions")
    assert (forced["urls unchanged"], forced["versions added"]) == (first, 525 - first)
    assert len(shop.requests) == first + 525


def test_records_alone_run_one_step_and_make_no_request(
    instance: DagsterInstance, world: World, shop: Shop, database: Database
) -> None:
    crawling.crawl(database, contract_of(world.settings, "demo_shop"), max_pages=60)
    products = crawling.rows(database, "SELECT count(*) AS n FROM records")[0].n
    contract = world.sources / "demo_shop.yaml"
    text = contract.read_text(encoding="utf-8")
    contract.write_text(text.replace("price:       {css", "cost:        {css"), encoding="utf-8")
    asked = requests(shop)
    result = run_job(instance, assets=["records"])
    assert (result.success, steps(result)) == (True, [RECORDS, CHECKS])
    said = said_of(result, "records")
    assert said["records changed by re-extraction"] == products
    assert products > 0
    assert requests(shop) == asked

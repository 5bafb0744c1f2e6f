"""The demo shop from beginning to end: everything once, nothing again without need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal

import pytest
import yaml

from crawl_pipeline.demo.contract import demo_contract_text
from crawl_pipeline.demo.shop import Shop
from crawl_pipeline.pipeline.contract_files import LoadedContract
from crawl_pipeline.pipeline.re_extract import re_extract
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests.crawling import crawl, load, rows


@pytest.fixture
def shop() -> Iterator[Shop]:
    with Shop.start(latency=0.002) as shop:
        yield shop


def shop_contract(shop: Shop, **changes: object) -> LoadedContract:
    return load({**yaml.safe_load(demo_contract_text(shop.base_url)), **changes})


def stored_prices(database: Database) -> dict[str, Decimal]:
    found = rows(database, "SELECT data FROM records WHERE gone_at IS NULL")
    return {row.data["sku"]: Decimal(row.data["price"]) for row in found}


def expected_prices(shop: Shop, day: int) -> dict[str, Decimal]:
    return {sku: Decimal(str(record["price"])) for sku, record in shop.expected_records(day).items()}


def test_first_crawl_stores_every_page_and_record_once_with_one_request_each(database: Database, shop: Shop) -> None:
    report = crawl(database, shop_contract(shop), workers=2)
    assert (report.stop_reason, report.urls["accepted"], report.records) == ("finished", 525, 500)
    assert report.page_versions == report.versions_added == report.records_added + 25 == 525
    assert report.requests == len(shop.requests) == 525
    assert stored_prices(database) == expected_prices(shop, 0)
    assert rows(database, "SELECT 1 FROM urls WHERE state <> 'accepted' AND NOT is_sitemap") == []
    assert rows(database, "SELECT 1 FROM leases") == []


def test_second_crawl_has_nothing_due_and_asks_for_nothing(database: Database, shop: Shop) -> None:
    crawl(database, shop_contract(shop), workers=2)
    asked = len(shop.requests) + len(shop.other_requests)
    report = crawl(database, shop_contract(shop))
    assert (report.stop_reason, report.requests, report.other_requests) == ("nothing_due", 0, 0)
    assert len(shop.requests) + len(shop.other_requests) == asked
    assert report.next_due_at is not None


def test_forced_crawl_of_an_unchanged_site_writes_no_version_and_no_record(database: Database, shop: Shop) -> None:
    crawl(database, shop_contract(shop), workers=2)
    before = rows(database, "SELECT record_id, xmin::text, last_changed_at FROM records ORDER BY 1")
    report = crawl(database, shop_contract(shop), workers=2, force=True)
    assert (report.urls["unchanged"], report.versions_added, report.records_added, report.records_changed) == (
        525,
        0,
        0,
        0,
    )
    assert report.requests == 525
    assert [row.status for row in shop.requests[525:]] == [304] * 525
    after = rows(database, "SELECT record_id, xmin::text, last_changed_at FROM records ORDER BY 1")
    assert [row[::2] for row in before] == [row[::2] for row in after]


def test_forced_crawl_after_seven_price_changes_writes_exactly_seven(database: Database, shop: Shop) -> None:
    crawl(database, shop_contract(shop), workers=2)
    shop.set_day(1)
    report = crawl(database, shop_contract(shop), workers=2, force=True)
    assert (report.versions_added, report.records_changed, report.records_added) == (7, 7, 0)
    assert (report.urls["accepted"], report.urls["unchanged"]) == (7, 518)
    assert stored_prices(database) == expected_prices(shop, 1)
    history = rows(database, "SELECT count(*) AS n, count(valid_to) AS closed FROM record_versions")[0]
    assert (history.n, history.closed) == (507, 7)


def test_changed_rule_makes_no_version_and_re_extraction_asks_for_nothing(database: Database, shop: Shop) -> None:
    crawl(database, shop_contract(shop), workers=2)
    asked = len(shop.requests) + len(shop.other_requests)
    rules = json.loads(json.dumps(yaml.safe_load(demo_contract_text(shop.base_url))["records"]))
    rules[0]["fields"]["again"] = {"css": "h1"}
    changed = shop_contract(shop, records=rules)
    report = re_extract(database, changed, run_id="again")
    assert (report.re_extracted, report.records_changed, report.records_added) == (525, 500, 0)
    assert rows(database, "SELECT count(*) AS n FROM page_versions")[0].n == 525
    assert len(shop.requests) + len(shop.other_requests) == asked
    assert re_extract(database, changed, run_id="third").re_extracted == 0
    shop.set_day(1)
    crawled = crawl(database, changed, workers=2, force=True)
    assert (crawled.versions_added, crawled.records_changed) == (7, 7)


def test_crawl_under_a_changed_rule_makes_versions_only_of_changed_pages(database: Database, shop: Shop) -> None:
    crawl(database, shop_contract(shop), workers=2)
    rules = json.loads(json.dumps(yaml.safe_load(demo_contract_text(shop.base_url))["records"]))
    rules[0]["fields"]["again"] = {"css": "h1"}
    shop.set_day(1)
    report = crawl(database, shop_contract(shop, records=rules), workers=2, force=True)
    assert report.versions_added == 7

"""Launches that cannot be are refused in one sentence, without a retry and without a request."""

from __future__ import annotations

from typing import Any

import pytest
from dagster import DagsterInstance

from crawl_pipeline.defs.contracts import contract_in_force, contract_of
from crawl_pipeline.demo.shop import Shop
from crawl_pipeline.errors import ContractErrors, UnknownSource
from crawl_pipeline.pipeline.contract_files import LoadedContract
from crawl_pipeline.pipeline.crawl import sync_source
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests import crawling
from crawl_pipeline_tests.defs.worlds import World, run_job, steps, why_failed

BOTH_ASSETS = pytest.mark.parametrize("assets", [["page_versions"], ["records"]])


@BOTH_ASSETS
def test_a_launch_without_a_partition_is_refused(
    instance: DagsterInstance, bare_world: World, assets: list[str]
) -> None:
    result = run_job(instance, None, assets=assets)
    assert why_failed(result).startswith("no source was chosen; launch the job with a partition")


@BOTH_ASSETS
def test_a_launch_for_a_range_of_partitions_is_refused(
    instance: DagsterInstance, bare_world: World, assets: list[str]
) -> None:
    instance.add_dynamic_partitions("source", ["demo_shop", "other"])
    tags = {
        "dagster/asset_partition_range_start": "demo_shop",
        "dagster/asset_partition_range_end": "other",
    }
    result = run_job(instance, None, assets=assets, tags=tags)
    assert "launched for a range of them" in why_failed(result)


@BOTH_ASSETS
def test_a_source_without_a_contract_is_refused_with_those_that_there_are(
    instance: DagsterInstance, world: World, assets: list[str]
) -> None:
    result = run_job(instance, "nowhere", assets=assets)
    assert why_failed(result) == 'no source named "nowhere"; sources are: demo_shop'


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_duration": "1 sec"}, 'max_duration is "1 sec"; use a duration such as 1s, 500ms or 2m'),
        ({"max_duration": "0s"}, "max_duration is 0; use a time such as"),
        ({"max_pages": 0}, "max_pages is 0; use a number from 1 up"),
        ({"workers": -1}, "workers is -1; use a number from 1 up"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    instance: DagsterInstance, bare_world: World, shop: Shop, options: dict[str, Any], sentence: str
) -> None:
    result = run_job(instance, **options)
    assert why_failed(result).startswith(sentence)
    assert steps(result) == ["page_versions.open_crawl"]
    assert (shop.requests, shop.other_requests) == ([], [])


def test_a_source_that_is_being_crawled_is_refused_by_naming_the_crawl(
    instance: DagsterInstance, world: World, database: Database, shop: Shop
) -> None:
    loaded = contract_of(world.settings, "demo_shop")
    running = crawling.start(database, loaded)
    try:
        sentence = why_failed(run_job(instance))
    finally:
        running.stop.set()
        running.join()
    assert sentence.startswith(f'"demo_shop" already has a live crawl, {running.opened.crawl_id}')


def test_a_database_that_does_not_answer_fails_the_run_in_one_sentence(
    instance: DagsterInstance, bare_world: World, shop: Shop
) -> None:
    sentence = why_failed(run_job(instance))
    assert sentence.startswith('database "crawl" at 127.0.0.1:1 could not be used')
    assert "secret" not in sentence
    assert shop.requests == []


def test_a_faulty_contract_stops_no_other_source(bare_world: World) -> None:
    (bare_world.sources / "broken.yaml").write_text("source: broken\nseeds: []\n", encoding="utf-8")
    assert contract_of(bare_world.settings, "demo_shop").contract.source == "demo_shop"
    with pytest.raises(ContractErrors, match=r"broken\.yaml"):
        contract_of(bare_world.settings, "broken")


def test_a_faulty_contract_leaves_the_last_good_one_in_force(world: World, database: Database) -> None:
    good = contract_of(world.settings, "demo_shop")
    sync_source(database, good)
    file = world.sources / "demo_shop.yaml"
    file.write_text("source: demo_shop\nseeds: []\n", encoding="utf-8")
    assert contract_in_force(world.settings, database, "demo_shop").contract == good.contract
    file.unlink()  # what is gone is another matter: nobody asks for this source any more
    with pytest.raises(UnknownSource):
        contract_in_force(world.settings, database, "demo_shop")


def test_a_source_that_never_had_a_file_goes_by_the_contract_of_the_database(world: World, database: Database) -> None:
    contract = contract_of(world.settings, "demo_shop").contract.model_copy(update={"source": "submitted"})
    sync_source(database, LoadedContract(contract=contract, file=None))
    assert contract_in_force(world.settings, database, "submitted").contract == contract


def test_a_source_that_two_files_claim_is_refused(bare_world: World) -> None:
    text = (bare_world.sources / "demo_shop.yaml").read_text(encoding="utf-8")
    (bare_world.sources / "again.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ContractErrors, match="demo_shop"):
        contract_of(bare_world.settings, "demo_shop")

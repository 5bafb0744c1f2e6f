"""Launches, backfills and terminations through the UI's own interface, carried out by the daemon."""

from __future__ import annotations

import pytest

from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.live.stack import IN_ONE_PROCESS, Stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), IN_ONE_PROCESS]


def test_a_launched_partition_is_crawled_once(stack: Stack) -> None:
    assert stack.ui.wait_for(stack.ui.launch("single")) == "SUCCESS"
    assert len(stack.shops["single"].requests) == 525
    (pages,), (records,) = stack.ui.said("page_versions", "single"), stack.ui.said("records", "single")
    assert (pages["urls accepted"], records["dagster/row_count"]) == (525, 500)
    assert "data:image/svg+xml" in pages["picture"]
    assert stack.status("single")["crawl_id"] == pages["crawl"]


def test_a_backfill_makes_one_run_a_partition_each_with_numbers_of_its_own(stack: Stack) -> None:
    names = ("first", "second", "third")
    stack.ui.backfill(*names)
    wait_until(
        lambda: sorted((run.source, run.status) for run in stack.ui.runs(*names)) == [(n, "SUCCESS") for n in names],
        within=400,
        every=0.5,
    )
    assert [len(stack.shops[name].requests) for name in names] == [525] * 3
    crawls = {stack.ui.said("page_versions", name)[0]["crawl"] for name in names}
    assert len(crawls) == 3


def test_a_terminated_run_is_cancelled_keeps_what_it_stored_and_is_resumed_by_the_next(stack: Stack) -> None:
    shop = stack.shops["stopped"]
    shop.latency = 0.3
    run_id = stack.ui.launch("stopped")
    wait_until(lambda: len(shop.requests) > 10, within=400)
    stack.ui.terminate(run_id)
    assert stack.ui.wait_for(run_id, within=60) == "CANCELED"
    halfway = stack.status("stopped")
    assert halfway["urls"]["active"] == 0
    assert 0 < halfway["urls"]["accepted"] < 525
    asked = len(shop.requests)
    shop.latency = 0.0
    assert stack.ui.wait_for(stack.ui.launch("stopped")) == "SUCCESS"
    done = stack.status("stopped")
    assert (done["crawl_id"], done["urls"]["accepted"], done["records"]) == (halfway["crawl_id"], 525, 500)
    # Nothing that was committed is asked for again; what was in flight may be, which is at most the host's slots.
    assert len(shop.requests) - asked <= 525 - halfway["urls"]["accepted"]
    assert halfway["urls"]["accepted"] >= asked - 8

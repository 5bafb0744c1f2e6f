"""`quarantine`: what it lists, and that a release moves what was asked for and nothing else."""

from __future__ import annotations

import pytest

from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.quarantine import like_pattern
from crawl_pipeline_tests.storage.commanding import Desk
from crawl_pipeline_tests.storage.filled import ALL_FIELDS, SITE, FilledSource, fill


@pytest.fixture
def filled(database: Database) -> FilledSource:
    """Five quarantined URLs of two reasons, one accepted page, and a hold over 2 of 2 records."""
    filled = fill(database)
    filled.discover(*(f"/product/{n}" for n in range(5)))
    filled.claim()
    for n in range(4):
        filled.complete(
            f"/product/{n}",
            UrlState.QUARANTINED,
            reason="tries_exhausted",
            due_in=None,
            tries=4,
            detail="connection reset by peer",
            status=None,
        )
    filled.complete("/product/4", UrlState.QUARANTINED, reason="key_conflict", due_in=None)
    filled.accept_products(ALL_FIELDS, {**ALL_FIELDS, "sku": "A-2"})
    filled.execute("UPDATE records SET missing_since = now()")
    filled.execute("SELECT apply_removals(:s, :c, 'product', 0.5)")
    return filled


def states(desk: Desk) -> tuple[int, int]:
    """How many URLs are quarantined, and queued."""
    urls = desk.json("status", "shop")["urls"]
    return urls["quarantined"], urls["queued"]


def test_the_list_counts_by_reason_with_samples_and_holds(desk: Desk, filled: FilledSource) -> None:
    found = desk.json("quarantine", "list")
    assert [(one["source"], one["reason"], one["count"]) for one in found["urls"]] == [
        ("shop", "tries_exhausted", 4),
        ("shop", "key_conflict", 1),
    ]
    assert len(found["urls"][0]["samples"]) == 3
    assert found["urls"][0]["samples"][0]["detail"] == "connection reset by peer"
    (hold,) = found["holds"]
    assert (hold["source"], hold["reason"], hold["missing_count"], hold["record_count"]) == (
        "shop",
        "held_removals",
        2,
        2,
    )
    text = desk.run("quarantine", "list", "shop")
    assert "connection reset by peer, 4 failures in a row" in text
    assert "and 1 more" in text
    assert "shop: the removal of 2 of 2 product records is held (held_removals, more than 50%)" in text


def test_quarantined_sitemaps_are_listed_apart(desk: Desk, database: Database) -> None:
    filled = fill(database)
    filled.discover("/list/map", is_sitemap=True)
    filled.claim()
    filled.complete("/list/map", UrlState.QUARANTINED, reason="tries_exhausted", due_in=None, is_sitemap=True)
    assert "tries_exhausted (sitemap)" in desk.run("quarantine", "list")
    assert desk.json("status", "shop")["quarantine"] == {}


def test_nothing_in_quarantine_is_said(desk: Desk, database: Database) -> None:
    fill(database)
    assert desk.run("quarantine", "list") == "nothing is quarantined\n"
    assert desk.run("quarantine", "release", "shop") == "0 URLs released\n"


def test_a_release_by_reason_leaves_the_others(desk: Desk, filled: FilledSource) -> None:
    text = desk.run("quarantine", "release", "shop", "--reason", "tries_exhausted")
    assert text == "4 URLs released; due now\nstill quarantined: 1 key_conflict, 2 held_removals\n"
    assert states(desk) == (1, 4)
    filled.claim()
    assert {url for url in filled.leases} == {f"{SITE}/product/{n}" for n in range(4)}
    assert {claimed.tries for _, claimed in filled.leases.values()} == {0}


def test_a_release_by_url_takes_whole_urls(desk: Desk, filled: FilledSource) -> None:
    assert desk.run("quarantine", "release", "shop", "--url", "*/product/2").startswith("1 URL released")
    assert desk.run("quarantine", "release", "shop", "--url", "/product/*").startswith("0 URLs released")
    assert states(desk) == (4, 1)


def test_held_removals_are_applied_when_they_are_released(desk: Desk, filled: FilledSource) -> None:
    text = desk.run("quarantine", "release", "shop", "--reason", "held_removals")
    assert text.splitlines()[0] == "2 product records of 2 removed, as was held"
    assert desk.json("status", "shop")["records"] == 0
    assert desk.json("status", "shop")["holds"] == []
    assert states(desk) == (5, 0)
    assert desk.run("quarantine", "release", "shop", "--reason", "held_removals").startswith("no removal is held")


def test_a_record_that_came_back_is_not_removed(desk: Desk, filled: FilledSource) -> None:
    filled.execute("UPDATE records SET missing_since = NULL WHERE record_key = '[\"A-1\"]'")
    desk.run("quarantine", "release", "shop", "--reason", "held_removals")
    assert desk.json("status", "shop")["records"] == 1


def test_a_release_without_a_reason_takes_all(desk: Desk, filled: FilledSource) -> None:
    text = desk.run("quarantine", "release", "shop")
    assert text == "5 URLs released; due now\n2 product records of 2 removed, as was held\n"
    assert states(desk) == (0, 5)
    assert desk.run("quarantine", "list") == "nothing is quarantined\n"


def test_wrong_words_are_refused(desk: Desk, filled: FilledSource) -> None:
    assert desk.try_("quarantine", "release", "shop", "--reason", "tired").exit_code == 2
    sentence = desk.refused("quarantine", "release", "shop", "--reason", "held_removals", "--url", "*")
    assert "held_removals are of records, not of URLs" in sentence
    assert 'no source named "shap"' in desk.refused("quarantine", "release", "shap")
    assert 'no source named "shap"' in desk.refused("quarantine", "list", "shap")


def test_a_source_that_was_never_crawled_has_nothing_to_release(desk: Desk) -> None:
    assert desk.run("quarantine", "release", "shop") == "shop was never crawled; there is nothing to release\n"


def test_only_the_asterisk_is_special_in_a_url_glob() -> None:
    assert like_pattern("*/a_b?c=100%") == "%/a\\_b?c=100\\%"
    assert like_pattern("\\*") == "\\\\%"


def test_released_pages_of_a_dead_worker_start_with_a_clean_slate(desk: Desk, database: Database) -> None:
    filled = fill(database)
    filled.discover("/product/1")
    filled.claim()
    filled.complete("/product/1", UrlState.QUARANTINED, reason="poison", due_in=None)
    filled.execute("UPDATE urls SET expiries = 5")
    assert "5 workers died with it" in desk.run("quarantine", "list")
    desk.run("quarantine", "release", "shop", "--reason", "poison")
    found = desk.json("explain", f"{SITE}/product/1", "--source", "shop")
    assert (found["state"], found["expiries"], found["reason"]) == ("queued", 0, None)

"""`explain`: what is said of a URL in each state, of its host, its robots.txt, its history and its records."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

import pytest

from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.storage import robots
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests.storage.commanding import Desk
from crawl_pipeline_tests.storage.filled import ALL_FIELDS, CONTRACT, SITE, FilledSource, fill

ROBOTS = b"User-agent: shop-bot\nDisallow: /product/private/\nCrawl-delay: 3\n"


@pytest.fixture
def filled(database: Database) -> FilledSource:
    """The source with its crawl open."""
    return fill(database)


def explained(desk: Desk, path: str) -> Any:
    """What `explain --json` says of a path of the site."""
    return desk.json("explain", SITE + path, "--source", "shop")


def store_robots(filled: FilledSource, **changes: Any) -> None:
    """Store an answer for the site's robots.txt."""
    robots.ask(filled.database, SITE)
    answer = {"state": "rules", "status": 200, "body": ROBOTS, "detail": None, "fresh_for": timedelta(hours=5)}
    robots.store(filled.database, SITE, **{**answer, **changes})


@pytest.mark.parametrize(
    ("state", "reason", "because"),
    [
        (UrlState.QUEUED, None, "never visited yet"),
        (UrlState.QUEUED, "timeout", "tried again after 2 failures in a row (timeout)"),
        (UrlState.ACTIVE, None, "a worker has it in hand"),
        (UrlState.ACCEPTED, None, "checked again 19 h after the last check, no later than 24 h (freshness)"),
        (UrlState.UNCHANGED, None, "checked again 19 h after the last check, no later than 24 h (freshness)"),
        (
            UrlState.REJECTED,
            "not_found",
            "not found once; looked at again soon, because it may be a mistake of the site",
        ),
        (UrlState.REJECTED, "gone", "gone, confirmed by a second visit; looked at again now and then"),
        (
            UrlState.REJECTED,
            "content_type",
            "a complete answer that is not what the contract asks for (content_type); "
            "visited again after 24 h (freshness)",
        ),
        (
            UrlState.QUARANTINED,
            "tries_exhausted",
            "no decision could be made (every try failed); to release it: "
            "crawl-pipeline quarantine release shop --url 'http://shop.test/product/1'",
        ),
        (
            UrlState.CANCELLED,
            "max_pages",
            "ended before its first fetch (limits.max_pages was reached); the next crawl that allows it opens it again",
        ),
    ],
)
def test_each_state_says_why(
    desk: Desk, filled: FilledSource, state: UrlState, reason: str | None, because: str
) -> None:
    filled.discover("/product/1")
    if state is not UrlState.QUEUED or reason:
        filled.claim()
    if state is not UrlState.ACTIVE and filled.leases:
        is_final = state in (UrlState.QUARANTINED, UrlState.CANCELLED)
        tries = 2 if state is UrlState.QUEUED else 0
        filled.complete(
            "/product/1", state, reason=reason, due_in=None if is_final else timedelta(hours=2), tries=tries
        )
    found = explained(desk, "/product/1")
    assert (found["state"], found["reason"]) == (state.value, reason)
    assert found["why"][0] == because
    assert (found["lease"] is not None) == (state is UrlState.ACTIVE)
    assert because in desk.run("explain", f"{SITE}/product/1", "--source", "shop")


def test_identity_follows_the_contract(desk: Desk, filled: FilledSource) -> None:
    filled.discover("/product/1?b=2&a=1&utm_source=mail")
    found = explained(desk, "/product/1?a=1&b=2#top")
    assert found["url"] == f"{SITE}/product/1?b=2&a=1"
    assert found["canonical_url"] == f"{SITE}/product/1?a=1&b=2"
    assert found["url_key"] == str(filled.page("/product/1?a=1&b=2").key)
    assert found["state"] == "queued"


def test_an_unknown_url_still_has_a_scope_and_robots_verdict(desk: Desk, filled: FilledSource) -> None:
    store_robots(filled)
    found = explained(desk, "/product/private/1")
    assert (found["state"], found["due_at"], found["fetches"]) == ("unknown", None, [])
    assert found["scope"] == {"allowed": True, "reason": None, "rule": "scope.include /product/**"}
    assert (found["robots"]["allowed"], found["robots"]["rule"]) == (False, "Disallow: /product/private/")
    assert found["robots"]["crawl_delay"] == 3
    assert found["why"][1] == "it would be cancelled: robots.txt disallows it"
    found = explained(desk, "/product/secret/1")
    assert found["scope"] == {"allowed": False, "reason": "scope", "rule": "scope.exclude /product/secret/**"}
    assert found["why"][1] == "it would be refused: scope.exclude /product/secret/**"


def test_a_source_that_was_never_crawled_can_be_asked(desk: Desk) -> None:
    found = explained(desk, "/product/1")
    assert (found["state"], found["host"]) == ("unknown", None)
    assert (found["robots"]["state"], found["robots"]["allowed"]) == ("unknown", None)


@pytest.mark.parametrize(
    ("answer", "allowed", "sentence"),
    [
        ({"state": "allow_all", "status": 404, "body": None}, True, "there is none (404): allowed"),
        (
            {"state": "unavailable", "status": 503, "body": None, "detail": "status 503"},
            None,
            "unavailable (status 503, 1 time in a row): the source requests nothing there",
        ),
        ({}, True, "allowed: no rule takes it"),
    ],
)
def test_robots_states_are_told_apart(
    desk: Desk, filled: FilledSource, answer: dict[str, Any], allowed: bool | None, sentence: str
) -> None:
    store_robots(filled, **answer)
    found = explained(desk, "/product/1")["robots"]
    assert (found["allowed"], found["sentence"]) == (allowed, sentence)


def test_what_robots_said_before_is_shown_with_when_it_was_kept_to(desk: Desk, filled: FilledSource) -> None:
    store_robots(filled, body=b"User-agent: *\nDisallow: /product/")
    store_robots(filled, state="unavailable", status=503, body=None)
    store_robots(filled, state="allow_all", status=404, body=None)
    store_robots(filled)
    found = explained(desk, "/product/private/1")["robots"]
    said = [(change["state"], change["status"], change["body_bytes"]) for change in found["changes"]]
    assert said == [("rules", 200, len(ROBOTS)), ("allow_all", 404, None), ("rules", 200, 33)]
    assert all(change["fetched_at"] < change["valid_until"] for change in found["changes"])
    assert found["changes"][0]["body_hash"] == hashlib.sha256(ROBOTS).hexdigest()
    shown = desk.run("explain", SITE + "/product/private/1", "--source", "shop")
    assert "robots.txt, its last changes, the newest first" in shown
    assert "Disallow: /product/private/" in shown


def test_crawl_delay_beyond_the_contract_is_shown_with_what_is_kept_to(desk: Desk, filled: FilledSource) -> None:
    store_robots(filled, body=b"User-agent: *\nCrawl-delay: 600")
    found = explained(desk, "/product/1")["robots"]
    assert (found["crawl_delay"], found["crawl_delay_kept"]) == (600, 60)
    shown = desk.run("explain", SITE + "/product/1", "--source", "shop")
    assert "asks for 10 min between requests; politeness.max_crawl_delay cuts that to 60 s" in shown


def test_robots_that_the_contract_ignores_are_said_to_be(desk: Desk, filled: FilledSource) -> None:
    desk.write_contract({**CONTRACT, "politeness": {"robots": "ignore"}})
    store_robots(filled)
    found = explained(desk, "/product/private/1")["robots"]
    assert (found["state"], found["allowed"]) == ("ignored", True)


def test_the_contract_file_judges_before_it_is_in_force(desk: Desk, filled: FilledSource) -> None:
    filled.discover("/product/1")
    desk.write_contract({**CONTRACT, "scope": {"include": ["/list/**"]}})
    found = explained(desk, "/product/1")
    assert found["scope"]["allowed"] is False
    assert "when it is claimed it is cancelled" in found["why"][-1]


def test_a_resting_host_and_its_budget_are_said(desk: Desk, filled: FilledSource) -> None:
    filled.discover("/product/1")
    filled.claim()
    filled.complete("/product/1", UrlState.QUEUED, reason="throttled", due_in=timedelta(0))
    with filled.database.connection() as connection:
        connection.exec_driver_sql("SELECT block_host(host_id, now() + interval '10 minutes', 'throttled') FROM hosts")
    found = explained(desk, "/product/1")
    assert (found["host"]["slots"], found["host"]["slots_in_use"]) == (4, 0)
    assert found["host"]["blocked_reason"] == "throttled"
    assert "the host rests until in 10 min (throttled)" in found["why"]
    text = desk.run("explain", f"{SITE}/product/1", "--source", "shop")
    assert "4 slots, no pause between requests (0 slots in use)" in text
    assert "rests until" in text


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("slow", "2 s between requests (it answers slower than it used to)"),
        ("failing", "2 s between requests (40% of its latest answers failed)"),
        ("throttled", "2 s between requests (it answered 429 or 503)"),
    ],
)
def test_a_host_in_trouble_says_its_adaptive_delay_and_why(
    desk: Desk, filled: FilledSource, reason: str, said: str
) -> None:
    filled.discover("/product/1")
    filled.execute(
        "UPDATE hosts SET latency = 1.4, usual_latency = 0.04, error_share = 0.4, observed_at = now(), "
        f"adaptive_delay = '1.9 seconds', adaptive_reason = '{reason}'"
    )
    found = explained(desk, "/product/1")["host"]
    assert (found["adaptive_delay"], found["asked_min_delay"], found["adaptive_reason"]) == (2, 2, reason)
    text = desk.run("explain", f"{SITE}/product/1", "--source", "shop")
    assert said in text
    assert "1.4 s, at its best 40 ms" in text


def test_a_pause_and_a_later_due_time_are_what_it_waits_for(desk: Desk, filled: FilledSource) -> None:
    filled.discover("/product/1")
    filled.claim()
    filled.complete("/product/1")
    assert "it belongs to the next crawl" in explained(desk, "/product/1")["why"][1]
    filled.close()
    assert explained(desk, "/product/1")["why"][1] == "no crawl is open: the next one claims it when it is due"
    desk.run("sources", "pause", "shop")
    assert explained(desk, "/product/1")["why"][1].startswith("the source is paused")


def test_a_lease_names_its_worker_and_its_end(desk: Desk, filled: FilledSource) -> None:
    filled.discover("/product/1", "/product/2")
    filled.claim()
    lease = explained(desk, "/product/1")["lease"]
    assert (lease["worker_id"], lease["machine"], lease["pid"]) == (f"worker-{filled.crawl_id}", "here", 4_000_001)
    assert (lease["urls"], lease["remaining"]) == (2, 2)
    assert "worker" in desk.run("explain", f"{SITE}/product/1", "--source", "shop")


def test_where_it_was_found_and_what_happened_since(desk: Desk, filled: FilledSource) -> None:
    filled.discover("/list/0")
    filled.claim()
    filled.complete("/list/0", links=["/product/1"])
    for text in ("one", "two"):
        filled.execute("UPDATE urls SET due_at = 'epoch', state = 'queued' WHERE url LIKE '%/product/1'")
        filled.execute("UPDATE queues SET next_due_at = 'epoch', not_before = 'epoch' WHERE lane = 0")
        filled.claim()
        filled.complete("/product/1", text=text, title=text, detail=f"saw {text}")
    found = explained(desk, "/product/1")
    assert (found["found_on"], found["depth"]) == (f"{SITE}/list/0", 1)
    assert [fetch["detail"] for fetch in found["fetches"]] == ["saw two", "saw one"]
    assert [(v["version_no"], v["title"], v["is_current"]) for v in found["versions"]] == [
        (2, "two", True),
        (1, "one", False),
    ]
    assert found["version_count"] == 2
    assert explained(desk, "/list/0")["found_on"] is None


def test_records_and_their_conflicts_are_listed(desk: Desk, filled: FilledSource) -> None:
    filled.discover("/product/1", "/product/2")
    filled.claim()
    filled.complete("/product/1", records=[ALL_FIELDS])
    filled.complete("/product/2", records=[{**ALL_FIELDS, "price": "1.00"}])
    (own,) = explained(desk, "/product/1")["records"]
    (other,) = explained(desk, "/product/2")["records"]
    assert (own["is_owner"], own["is_conflict"], own["claims"], own["conflicts"]) == (True, False, 2, 1)
    assert (other["is_owner"], other["is_conflict"], other["owner_url"]) == (False, True, f"{SITE}/product/1")
    assert "kept as a conflict" in desk.run("explain", f"{SITE}/product/2", "--source", "shop")


def test_what_is_no_url_is_refused_in_a_sentence(desk: Desk) -> None:
    hint = "crawl-pipeline: the URL is refused: not a URL; write it whole, with http:// or https://"
    assert desk.refused("explain", "shop.test/x", "--source", "shop") == hint
    sentence = desk.refused("explain", "http://me:secret@shop.test/", "--source", "shop")
    assert sentence == "crawl-pipeline: the URL is refused: carries credentials"

"""`status`: what it counts, how it says where a crawl stands, and that it scans no table."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import sqlalchemy as sa

from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.storage import reports
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.status import Windows, source_status
from crawl_pipeline_tests.storage.commanding import Desk
from crawl_pipeline_tests.storage.filled import ALL_FIELDS, CONTRACT, SITE, FilledSource, fill

KEYS = ["source", "crawl_id", "state", "stop_reason", "urls", "records", "page_versions", "requests", "other_requests"]


def one_of_each_state(filled: FilledSource) -> None:
    """Seven pages, one in each state, and a sitemap."""
    paths = [f"/product/{state.value}" for state in UrlState]
    filled.discover(*paths)
    filled.discover("/list/sitemap", is_sitemap=True)
    filled.claim()
    for state in (UrlState.ACCEPTED, UrlState.UNCHANGED, UrlState.REJECTED, UrlState.QUEUED):
        filled.complete(f"/product/{state.value}", state, due_in=timedelta(hours=1))
    filled.complete("/product/quarantined", UrlState.QUARANTINED, reason="tries_exhausted", due_in=None)
    filled.complete("/product/cancelled", UrlState.CANCELLED, reason="scope", due_in=None)
    filled.complete("/list/sitemap", is_sitemap=True)


def test_urls_are_counted_per_state_without_sitemaps(desk: Desk, database: Database) -> None:
    one_of_each_state(fill(database))
    assert desk.json("status", "shop")["urls"] == {state.value: 1 for state in UrlState}


def test_json_has_its_promised_keys_first_and_says_what_a_crawl_did(desk: Desk, database: Database) -> None:
    filled = fill(database)
    one_of_each_state(filled)
    filled.close("max_pages")
    found = desk.json("status", "shop")
    assert list(found)[: len(KEYS) + 1] == [*KEYS, "quarantine"]
    assert (found["source"], found["crawl_id"]) == ("shop", str(filled.crawl_id))
    assert (found["state"], found["stop_reason"]) == ("closed", "max_pages")
    assert found["quarantine"] == {"tries_exhausted": 1}
    assert found["crawl"]["counters"]["accepted"] == 1


def test_a_crawl_id_asks_for_that_crawl_not_the_last(desk: Desk, database: Database) -> None:
    filled = fill(database)
    first = filled.crawl_id
    filled.close("deferred")
    filled.open()
    assert desk.json("status", "shop")["crawl_id"] == str(filled.crawl_id)
    found = desk.json("status", first)
    assert (found["source"], found["crawl_id"], found["stop_reason"]) == ("shop", str(first), "deferred")


def test_requests_of_living_dead_and_forgotten_workers_all_count(desk: Desk, database: Database) -> None:
    filled = fill(database)
    filled.accept_products(ALL_FIELDS, {**ALL_FIELDS, "sku": "A-2"})
    filled.execute(
        """
        INSERT INTO workers (worker_id, crawl_id, machine, pid, started_at, heartbeat_at, ended_at, ended_by, requests)
        VALUES ('killed', :c, 'here', 1, now(), now(), now(), 'signal 9', 100)
        """
    )
    filled.execute("UPDATE crawls SET requests = 1000, other_requests = 10 WHERE crawl_id = :c")
    found = desk.json("status", "shop")
    assert (found["requests"], found["other_requests"]) == (1107, 12)
    assert found["requests_per_record"] == 553.5
    filled.close()
    found = desk.json("status", "shop")
    assert (found["requests"], found["other_requests"]) == (1107, 12)


def test_records_that_are_gone_and_versions_of_the_past_are_counted_as_such(desk: Desk, database: Database) -> None:
    filled = fill(database)
    filled.accept_products(*({**ALL_FIELDS, "sku": f"A-{n}"} for n in range(3)))
    for text in ("B", "A"):
        filled.execute("UPDATE urls SET due_at = 'epoch' WHERE url LIKE '%/A-1'")
        filled.execute("UPDATE queues SET next_due_at = 'epoch', not_before = 'epoch'")
        filled.claim()
        filled.complete("/product/A-1", text=text)
    filled.execute("UPDATE records SET gone_at = now() WHERE record_key = '[\"A-0\"]'")
    found = desk.json("status", "shop")
    assert (found["records"], found["records_by_type"], found["page_versions"]) == (2, {"product": 2}, 5)


def test_only_pages_older_than_the_window_of_their_own_rule_are_stale(desk: Desk, database: Database) -> None:
    filled = fill(database)
    paths = ("/list/0", "/list/1", "/product/1", "/product/2")
    filled.discover(*paths)
    filled.claim()
    for path in paths:
        filled.complete(path)
    filled.execute("UPDATE urls SET due_at = now() - interval '1 minute' WHERE url NOT LIKE '%/list/1'")
    filled.execute(
        "UPDATE urls SET last_fetched_at = now() - interval '2 hours' WHERE url LIKE '%0' OR url LIKE '%product/1'"
    )
    filled.execute("UPDATE urls SET last_fetched_at = now() - interval '25 hours' WHERE url LIKE '%product/2'")
    filled.execute("UPDATE queues SET next_due_at = 'epoch'")
    fresh = desk.json("status", "shop")["freshness"]
    assert (fresh["window"], fresh["due"], fresh["stale"]) == (86_400, 3, 2)
    assert "3 pages, 2 of them older than promised" in desk.run("status", "shop")


def test_a_crawl_without_a_sign_of_life_is_interrupted_not_running(desk: Desk, database: Database) -> None:
    filled = fill(database)
    assert desk.json("status", "shop")["crawl"]["is_live"] is True
    assert "running" in desk.run("status")
    filled.execute("UPDATE crawls SET heartbeat_at = now() - interval '2 minutes' WHERE crawl_id = :c")
    assert desk.json("status", "shop")["crawl"]["is_live"] is False
    assert "interrupted" in desk.run("status")


def test_work_in_hand_is_shown_per_worker(desk: Desk, database: Database) -> None:
    filled = fill(database)
    filled.discover("/product/1", "/product/2", "/product/3")
    filled.claim()
    filled.complete("/product/1")
    (worker,) = desk.json("status", "shop")["crawl"]["workers"]
    assert (worker["pid"], worker["leases"], worker["urls_in_hand"], worker["requests"]) == (4_000_001, 1, 2, 7)
    assert "2 URLs in 1 lease" in desk.run("status", "shop")


def test_held_removals_are_said_and_counted(desk: Desk, database: Database) -> None:
    filled = fill(database)
    filled.accept_products(*({**ALL_FIELDS, "sku": f"A-{n}"} for n in range(4)))
    filled.execute("UPDATE records SET missing_since = now() WHERE record_key <> '[\"A-0\"]'")
    filled.execute("SELECT apply_removals(:s, :c, 'product', 0.5)")
    found = desk.json("status", "shop")
    assert found["quarantine"] == {"held_removals": 3}
    assert found["holds"][0]["record_count"] == 4
    assert "3 of 4 product records went missing, more than 50%" in desk.run("status", "shop")


def test_a_source_with_a_contract_only_was_never_crawled(desk: Desk) -> None:
    found = desk.json("status", "shop")
    assert (found["crawl_id"], found["state"], found["records"]) == (None, "never_crawled", 0)
    assert [one["source"] for one in desk.json("status")] == ["shop"]
    assert "never crawled" in desk.run("status")


def test_re_extractions_are_not_the_last_crawl(desk: Desk, database: Database) -> None:
    filled = fill(database)
    filled.close()
    filled.execute(
        """
        INSERT INTO crawls (crawl_id, source_id, kind, contract_version, opened_at, deadline_at, max_pages, run_id,
                            machine, pid, pid_started, heartbeat_at)
        VALUES (:other, :s, 're_extraction', 'v', now(), now(), 1, 'run-2', 'here', 1, 1, now())
        """,
        other=uuid4(),
    )
    assert desk.json("status", "shop")["crawl_id"] == str(filled.crawl_id)


def test_unknown_names_are_refused_in_a_sentence(desk: Desk, database: Database) -> None:
    fill(database)
    assert desk.refused("status", "shap") == 'crawl-pipeline: no source named "shap"; sources are: shop'
    unknown = uuid4()
    assert f"no crawl has the id {unknown}" in desk.refused("status", unknown)


def test_a_faulty_contract_file_hides_no_source_that_was_crawled(desk: Desk, database: Database) -> None:
    fill(database)
    (desk.folder / "sources" / "broken.yaml").write_text("source: Bad Name")
    result = desk.try_("status")
    assert result.exit_code == 0
    assert "shop" in result.stdout
    assert "1 contract file faulty" in result.stderr


def test_windows_are_those_of_the_first_rule_that_takes_the_path() -> None:
    filled = Windows.of('{"freshness": {"window": "2d", "rules": [{"match": ["/a/**"], "window": "10m"}]}}')
    assert filled.window(f"{SITE}/a/b?q=1") == timedelta(minutes=10)
    assert filled.window(f"{SITE}/ab") == timedelta(days=2)
    assert (filled.differ, filled.shortest) == (True, timedelta(minutes=10))


def test_status_scans_no_large_table(database: Database) -> None:
    """Fails with `count(*)` over urls, or a due backlog that is not read queue by queue."""
    filled = fill(database, freshness=CONTRACT["freshness"])
    filled.discover("/product/1")
    filled.execute(
        """
        INSERT INTO urls (source_id, url_key, host_id, url, state, outcome, due_at, last_fetched_at)
        SELECT :s, gen_random_uuid(), host_id, 'http://shop.test/product/x' || n, 'accepted', 'accepted',
               now() + interval '1 hour', now() FROM hosts, generate_series(1, 30000) n
        """
    )
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("VACUUM ANALYZE urls"))
    statement = sa.text("SELECT seq_scan, seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'urls'")
    with reports.snapshot(database) as connection:
        before = connection.execute(statement).one()  # what the session has not told the server yet
        known = reports.find_source(connection, "shop")
        assert known is not None
        status = source_status(connection, known)
        scans = connection.execute(statement).one()
    assert status.urls["accepted"] == 30_000
    assert (scans.seq_scan - before.seq_scan, scans.seq_tup_read - before.seq_tup_read) == (0, 0)

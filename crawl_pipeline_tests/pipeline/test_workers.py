"""Workers that die, stall or are stopped, and pages that kill them."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.errors import (
    CrawlError,
    CrawlInProgress,
    DatabaseUnavailable,
    InfrastructureError,
    UsageError,
    WorkersKeepDying,
)
from crawl_pipeline.parsing.extraction import Extractor
from crawl_pipeline.pipeline.crawl import load_open_crawl
from crawl_pipeline.pipeline.nursery import nursery
from crawl_pipeline.pipeline.orders import error_of, exit_code
from crawl_pipeline.pipeline.re_extract import re_extract
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.crawling import contract, crawl, rows, start, states
from crawl_pipeline_tests.site import Answer, Asked, Site, page

GOOD = {"type": "page", "key": ["url"], "match": ["/page/**", "/poison", "/loops", "/sleeps", "/regex", "/swallows"]}
EXTRACTORS = "crawl_pipeline_tests.extractors"


@pytest.mark.parametrize("how", ["kills_its_process_on_poison", "interrupts_on_poison"])
def test_poison_page_is_quarantined_alone(database: Database, how: str) -> None:
    """Guards: the page in hand pays (`Hand.take`, `charge`); without it all pages of its lease would. What its reading
    raises, and ends the process with, leaves it in hand (`is_survived`): else it would kill workers for ever."""

    def answer(asked: Asked) -> Answer:
        if asked.path == "/":
            poison = ["/poison"] if asked.host == site.authorities[7] else []
            return page("start", *(f"/page/{n}" for n in range(9)), *poison)
        return page(asked.path)

    with Site(answer, hosts=20) as site:
        rule = {**GOOD, "python": f"{EXTRACTORS}:{how}"}
        report = crawl(database, contract(site, records=[rule]), workers=2, within=120)
    assert report.urls["accepted"] == 200
    quarantined = rows(database, "SELECT url, reason FROM urls WHERE state = 'quarantined'")
    assert [(row.url.rpartition("/")[2], row.reason) for row in quarantined] == [("poison", "poison")]


def test_extractor_that_hangs_is_really_stopped_and_only_its_page_quarantined(database: Database) -> None:
    """Guards: the signal in `PageReader`, and the supervisor's kill for what swallows it."""
    bad = ["/loops", "/sleeps", "/regex", "/swallows"]
    good = [f"/page/{n}" for n in range(20)]
    with Site(lambda asked: page("start", *bad, *good) if asked.path == "/" else page(asked.path)) as site:
        rule = {**GOOD, "python": f"{EXTRACTORS}:hangs"}
        loaded = contract(site, records=[rule], fetch={"page_timeout": "4s"})
        report = crawl(database, loaded, within=180)
    found = states(database)
    assert {found[path] for path in bad} == {"quarantined timeout"}
    assert {found[path] for path in good} == {"accepted"}
    assert report.stop_reason == "finished"


def test_external_kills_quarantine_no_page(database: Database) -> None:
    def answer(asked: Asked) -> Answer:
        return Answer(body=page(asked.path).body, delay=1.0)

    with Site(answer, hosts=10) as site:
        running = start(database, contract(site, limits={"max_in_flight": 2}))
        for _ in range(5):
            asked = len(site.pages_asked)
            wait_until(lambda asked=asked: len(site.pages_asked) > asked and running.pids() != [], within=30)  # type: ignore[misc]
            for pid in running.pids():
                os.kill(pid, signal.SIGKILL)
        report = running.finish(within=90)
    assert report.urls == {"accepted": 10, "queued": 0, "active": 0}


def test_worker_stalled_past_its_lease_changes_nothing_when_it_goes_on(database: Database) -> None:
    """Guards: the token compared in `complete`, `release` and `renew`."""

    def answer(asked: Asked) -> Answer:
        return Answer(body=page("start", *(f"/page/{n}" for n in range(60))).body, delay=0.05)

    with Site(answer) as site:
        loaded = contract(site, politeness={"slots": 4})
        running = start(database, loaded, workers=2, lease_for=timedelta(seconds=4))
        wait_until(lambda: len(site.pages_asked) > 10 and len(running.pids()) == 2, within=30)
        stalled = running.pids()[0]
        os.kill(stalled, signal.SIGSTOP)
        held = rows(
            database, "SELECT l.lease_token FROM leases l JOIN workers w USING (worker_id) WHERE w.pid = :p", p=stalled
        )
        wait_until(
            lambda: rows(database, "SELECT count(*) AS n FROM urls WHERE state = 'accepted'")[0].n == 61, within=60
        )
        os.kill(stalled, signal.SIGCONT)
        report = running.finish()
    assert report.urls["accepted"] == 61
    assert rows(database, "SELECT count(*) AS n FROM page_versions")[0].n == 61
    assert rows(database, "SELECT 1 FROM urls WHERE expiries > 0 OR state = 'quarantined'") == []
    left = rows(database, "SELECT 1 FROM leases WHERE lease_token = ANY(:t)", t=[row.lease_token for row in held])
    assert left == []


def test_stop_releases_leases_within_the_grace_time_and_claims_nothing_more(database: Database) -> None:
    """Guard: the stop looked at again after every claim."""

    def answer(asked: Asked) -> Answer:
        return page("start", *(f"/page/{n}" for n in range(100))) if asked.path == "/" else Answer(hangs=True)

    with Site(answer) as site:
        running = start(database, contract(site), grace=timedelta(seconds=4))
        wait_until(lambda: site.open_now.get(site.authorities[0], 0) == 4, within=30)
        asked = len(site.asked)
        stopped_at = time.monotonic()
        running.stop.set()
        running.join(within=15)
        took = time.monotonic() - stopped_at
        assert len(site.asked) == asked
    assert running.ending == "stopped"
    assert took < 10
    assert rows(database, "SELECT 1 FROM leases") == []
    assert rows(database, "SELECT 1 FROM urls WHERE state = 'active' OR tries > 0 OR expiries > 0") == []
    with pytest.raises(UsageError, match="was stopped; the next launch resumes it"):
        running.finish()


def test_stopped_crawl_is_resumed_under_its_id(database: Database) -> None:
    with Site(lambda asked: page("start", *(f"/page/{n}" for n in range(100)))) as site:
        loaded = contract(site, politeness={"min_delay": "20ms"})
        first = start(database, loaded, run_id="first")
        wait_until(lambda: len(site.pages_asked) > 20, within=30)
        first.stop.set()
        first.join()
        with database.connection() as connection:  # its process is gone
            connection.exec_driver_sql("UPDATE crawls SET pid = 2147483647")
        second = start(database, loaded, run_id="second")
        assert second.opened.is_resumed
        assert second.opened.crawl_id == first.opened.crawl_id
        report = second.finish()
    assert report.urls["accepted"] == 101
    assert report.requests == len(site.pages_asked) == 101


def test_second_live_crawl_is_refused_in_a_sentence(database: Database) -> None:
    with Site(lambda asked: Answer(hangs=True)) as site:
        loaded = contract(site)
        running = start(database, loaded, grace=timedelta(seconds=2))
        with pytest.raises(CrawlInProgress, match=f'"site" already has a live crawl, {running.opened.crawl_id}'):
            start(database, loaded)
        running.stop.set()
        running.join()


def test_refused_launch_changes_no_contract_and_a_resumed_crawl_goes_on_under_the_newer_one(database: Database) -> None:
    """Guards: the source is held before its contract is put in force; `set_contract_version`."""

    def in_force() -> tuple[str, str, int]:
        columns = "s.contract_version AS s, c.contract_version AS c, s.slots"
        row = rows(database, f"SELECT {columns} FROM sources s JOIN crawls c USING (source_id)")[0]
        return row.s, row.c, row.slots

    with Site(lambda asked: Answer(hangs=True)) as site:
        old, new = contract(site), contract(site, politeness={"slots": 7}, scope={"exclude": ["/none"]})
        running = start(database, old, run_id="first", grace=timedelta(seconds=2))
        with pytest.raises(CrawlInProgress):
            start(database, new)
        assert re_extract(database, new, run_id="again").re_extracted == 0  # nothing is stale
        assert in_force() == (old.contract.version, old.contract.version, 4)
        assert Contract.from_json(load_open_crawl(database, "site", "first").contract) == old.contract
        running.stop.set()
        running.join()
        with database.connection() as connection:  # its process is gone
            connection.exec_driver_sql("UPDATE crawls SET pid = 2147483647")
        second = start(database, new, run_id="second", grace=timedelta(seconds=2))
        assert second.opened.is_resumed
        assert in_force() == (new.contract.version, new.contract.version, 7)
        second.stop.set()
        second.join()


def test_workers_that_cannot_start_end_the_crawl_in_a_sentence(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawl_pipeline.pipeline.supervisor._MOST_DEATHS", 3)
    nursery().close()
    monkeypatch.setattr("crawl_pipeline.pipeline.nursery.sys.executable", "/bin/false")
    with Site(lambda asked: page("start")) as site:
        running = start(database, contract(site))
        with pytest.raises(WorkersKeepDying, match="worker processes ended 3 times in a row"):
            running.finish(within=60)


def test_max_pages_is_never_passed_and_the_rest_is_reopened_by_the_next_crawl(database: Database) -> None:
    """Guard: claim's `v_left` near the limit."""
    links = [f"/page/{n}" for n in range(50)]
    with Site(lambda asked: page("start", *links) if asked.path == "/" else page(asked.path), hosts=1) as site:
        loaded = contract(site)
        report = crawl(database, loaded, workers=2, max_pages=17)
        assert (report.stop_reason, report.urls["accepted"], report.requests) == ("max_pages", 17, 17)
        assert report.urls["cancelled"] == 34
        report = crawl(database, loaded, workers=2)
    assert report.urls["accepted"] == 51
    assert len(site.pages_asked) == 51


def test_deadline_cancels_what_was_never_visited(database: Database) -> None:
    links = [f"/page/{n}" for n in range(500)]
    with Site(lambda asked: Answer(body=page("start", *links).body, delay=0.05)) as site:
        report = crawl(database, contract(site, politeness={"slots": 1}), max_duration=timedelta(seconds=8))
    assert report.stop_reason == "max_duration"
    assert report.urls["cancelled"] + report.urls.get("accepted", 0) == 501
    assert report.urls["active"] == report.urls["queued"] == 0
    assert rows(database, "SELECT 1 FROM urls WHERE state = 'cancelled' AND reason <> 'deadline'") == []


def test_re_extraction_passes_over_a_page_that_hangs_or_kills(database: Database) -> None:
    """Guards: the signal and the supervisor's kill in the child that reads; `pass_over`."""
    bad = ["/sleeps", "/swallows"]
    good = [f"/page/{n}" for n in range(10)]
    with Site(lambda asked: page("start", *bad, *good) if asked.path == "/" else page(asked.path)) as site:
        rule = {**GOOD, "python": f"{EXTRACTORS}:title"}
        crawl(database, contract(site, records=[rule]))
        asked = len(site.asked)
        changed = contract(site, records=[{**rule, "python": f"{EXTRACTORS}:hangs"}], fetch={"page_timeout": "4s"})
        report = re_extract(database, changed, run_id="again")
        assert len(site.asked) == asked
    assert (report.re_extracted, report.skipped, report.records) == (13, 2, 12)
    assert re_extract(database, changed, run_id="third").re_extracted == 0


def test_re_extraction_reads_a_redirected_page_from_where_it_ended(database: Database) -> None:
    """Guard: `StoredPage.final_url`; with the page's own URL its relative links lead elsewhere."""

    def answer(asked: Asked) -> Answer:
        if asked.path == "/a":
            return Answer(status=301, headers={"Location": "/a/"})
        return page("start", "/a") if asked.path == "/" else page(asked.path, "next")

    rule = {
        "type": "page",
        "key": ["title"],
        "match": ["/a"],
        "fields": {"title": {"css": "h1"}, "next": {"css": "a", "attr": "href", "type": "url"}},
    }
    with Site(answer) as site:
        scope = {"exclude": ["/a/next", "/next"]}
        urls = {"trailing_slash": "strip"}
        crawl(database, contract(site, records=[rule], scope=scope, urls=urls))
        more = {**rule, "fields": {**rule["fields"], "again": {"css": "h1"}}}  # type: ignore[dict-item]
        report = re_extract(database, contract(site, records=[more], scope=scope, urls=urls), run_id="again")
        found = rows(database, "SELECT data FROM records")
        assert [row.data["next"] for row in found] == [f"{site.url}/a/next"]
    assert (report.re_extracted, report.records_changed, report.new_urls) == (2, 1, 0)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UsageError("a header has no value"), UsageError),
        (CrawlInProgress("site", "crawl", "1", "here"), UsageError),
        (DatabaseUnavailable("away"), DatabaseUnavailable),
        (InfrastructureError("too few files"), InfrastructureError),
    ],
)
def test_what_a_worker_gave_up_for_keeps_its_kind_and_words(error: CrawlError, kind: type[CrawlError]) -> None:
    told = error_of(exit_code(error), str(error))
    assert (type(told), str(told)) == (kind, str(error))
    assert error_of(1, "a traceback") is None


def test_extractor_that_only_its_workers_cannot_import_is_the_persons_to_mend(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "vanishing_rules.py"
    module.write_text("def title(page):\n    yield {'url': page.url, 'title': 'x'}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with Site(lambda asked: page("start")) as site:
        loaded = contract(site, records=[{**GOOD, "python": "vanishing_rules:title"}])
        Extractor(loaded.contract)  # this process has it now
        module.unlink()
        with pytest.raises(UsageError, match="vanishing_rules"):
            start(database, loaded).finish()


def test_extractor_that_ends_its_process_quietly_is_poison_and_what_it_forked_holds_nobody_up(
    database: Database,
) -> None:
    """Guards: the hand is read whatever the exit code; a worker's last words lie in a file, not in a pipe."""
    with Site(lambda asked: page("start", "/page/0", "/page/1", "/poison")) as site:
        rule = {**GOOD, "python": f"{EXTRACTORS}:exits_and_leaves_a_child"}
        report = crawl(database, contract(site, records=[rule]), within=120)
    assert states(database)["/poison"] == "quarantined poison"
    assert report.urls["accepted"] == 3

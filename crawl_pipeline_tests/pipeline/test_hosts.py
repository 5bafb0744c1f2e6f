"""What a host does to a crawl: outages, throttling, robots.txt, budgets. Judged from the host's side."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.crawling import contract, crawl, rows, start, states
from crawl_pipeline_tests.site import NOT_FOUND, Answer, Asked, Site, gaps, page

MANY = [f"/page/{n}" for n in range(1000)]


def many_pages(asked: Asked) -> Answer:
    return page("start", *MANY) if asked.path == "/" else page(asked.path)


def test_host_that_is_down_is_probed_a_few_times_and_no_page_is_quarantined(database: Database) -> None:
    """Guard: settle's `blocked_until` on the fifth failure, and `is_draining` in the loop."""
    with Site(many_pages) as site:
        running = start(database, contract(site, politeness={"slots": 2, "robots": "ignore"}))
        wait_until(lambda: len(site.pages_asked) > 20, within=30)
        site.stop_listening()
        wait_until(lambda: rows(database, "SELECT 1 FROM hosts WHERE outages >= 2") != [], within=60)
        running.stop.set()
        running.join()
    failed = rows(database, "SELECT count(*) AS n FROM fetches WHERE reason = 'connection'")[0].n
    assert 5 <= failed <= 20
    assert rows(database, "SELECT 1 FROM urls WHERE state = 'quarantined'") == []
    assert rows(database, "SELECT 1 FROM leases") == []


@pytest.mark.drill
@pytest.mark.timeout(400)
def test_host_that_is_down_for_two_minutes_is_asked_at_most_twenty_times(database: Database) -> None:
    with Site(many_pages) as site:
        running = start(database, contract(site, politeness={"slots": 2, "robots": "ignore"}))
        wait_until(lambda: len(site.pages_asked) > 20, within=30)
        site.stop_listening()
        time.sleep(120)
        failed = rows(database, "SELECT count(*) AS n FROM fetches WHERE reason = 'connection'")[0].n
        print(f"{failed} requests in two minutes")
        assert 5 <= failed <= 20
        site.listen_again()
        report = running.finish(within=240)
    assert report.urls == {"accepted": 1001, "queued": 0, "active": 0}


def test_retry_after_stops_every_worker_at_the_host_and_spends_no_try(database: Database) -> None:
    """Guard: `throttle_host` before the page goes back."""
    refused: list[float] = []

    def answer(asked: Asked) -> Answer:
        if asked.path == "/":
            return page("start", *MANY[:40])
        if len(site.pages_asked) == 12:
            refused.append(asked.at)
            return Answer(status=429, headers={"Retry-After": "3"})
        return page(asked.path)

    with Site(answer) as site:
        report = crawl(database, contract(site, politeness={"slots": 2}), workers=2)
    assert report.urls["accepted"] == 41
    later = [asked.at for asked in site.pages_asked if asked.at > refused[0] + 0.2]
    assert min(later) - refused[0] >= 2.9
    assert rows(database, "SELECT 1 FROM urls WHERE tries > 0") == []
    assert rows(database, "SELECT 1 FROM fetches WHERE reason = 'throttled'") != []


@pytest.mark.parametrize("client", ["libcurl", "requests"])
def test_every_retry_after_is_kept_to_within_the_cap(database: Database, client: str) -> None:
    """No value raises; what is none rests a minute, and all rest for the cap (3 s) at most, a second at least."""
    soon = format_datetime(datetime.now(UTC) + timedelta(days=900), usegmt=True)
    asked_and_kept = {
        None: 3,
        "2": 2,
        "0": 1,
        "-5": 3,
        "1.5": 3,
        "9" * 400: 3,
        "soon": 3,
        soon: 3,
        "Thu, 01 Jan 1970 00:00:00 GMT": 1,
        "Fri, 31 Dec 9999 23:59:59 GMT": 3,
    }
    refused: dict[str, float] = {}

    def answer(asked: Asked) -> Answer:
        if asked.host in refused:
            return page(asked.path)
        refused[asked.host] = asked.at
        value = list(asked_and_kept)[site.authorities.index(asked.host)]
        return Answer(status=503 if client == "requests" else 429, headers={"Retry-After": value} if value else {})

    with Site(answer, hosts=len(asked_and_kept)) as site:
        politeness = {"max_retry_after": "3s", "robots": "ignore", "adaptive": False}
        report = crawl(database, contract(site, politeness=politeness, fetch={"client": client}), within=120)
        kept = {one.host: one.at - refused[one.host] for one in site.pages_asked}
    assert report.urls["accepted"] == len(asked_and_kept)
    assert len(site.pages_asked) == 2 * len(asked_and_kept)
    for host, (value, rest) in zip(site.authorities, asked_and_kept.items(), strict=True):
        assert kept[host] >= rest - 0.1, (value, kept[host])
    assert rows(database, "SELECT 1 FROM hosts WHERE blocked_until > throttled_at + interval '3.01 seconds'") == []
    assert rows(database, "SELECT 1 FROM urls WHERE tries > 0") == []


def test_transient_failure_waits_for_its_retry_without_holding_a_slot(database: Database) -> None:
    failures = 2

    def answer(asked: Asked) -> Answer:
        nonlocal failures
        if asked.path == "/flaky" and failures:
            failures -= 1
            return Answer(status=500)
        return page("start", "/flaky", *MANY[:5])

    with Site(answer) as site:
        running = start(database, contract(site))
        for tries in (1, 2):
            waiting = f"SELECT 1 FROM urls WHERE url LIKE '%/flaky' AND state = 'queued' AND tries = {tries}"
            wait_until(lambda waiting=waiting: rows(database, waiting) != [], within=20)  # type: ignore[misc]
            due = rows(database, "SELECT due_at - clock_timestamp() AS wait FROM urls WHERE url LIKE '%/flaky'")[0].wait
            assert timedelta(seconds=5) < due < timedelta(seconds=61)
            wait_until(lambda: rows(database, "SELECT 1 FROM leases") == [], within=20)
            with database.connection() as connection:
                connection.exec_driver_sql("UPDATE urls SET due_at = now() WHERE url LIKE '%%/flaky'")
                connection.exec_driver_sql("UPDATE queues SET next_due_at = now(), not_before = 'epoch'")
        report = running.finish()
    assert report.urls["accepted"] == 7
    assert site.paths().count("/flaky") == 3


def test_page_that_fails_again_and_again_is_quarantined_after_its_tries(database: Database) -> None:
    with Site(lambda asked: Answer(status=500) if asked.path == "/broken" else page("start", "/broken")) as site:
        report = crawl(database, contract(site, fetch={"tries": 1}))
    assert states(database) == {"/": "accepted", "/broken": "quarantined tries_exhausted"}
    assert report.stop_reason == "finished"


def test_budget_of_a_host_is_the_strictest_of_two_sources_and_both_finish(database: Database) -> None:
    """Guards: `host_budget`, the host's row lock, and turns where slots are fewer than sources."""

    def answer(asked: Asked) -> Answer:
        if asked.path in ("/one", "/two"):
            return page(asked.path, *(f"{asked.path}/{n}" for n in range(40)))
        return Answer(body=page(asked.path).body, delay=0.01)

    with Site(answer) as site:
        one = contract(site, ["/one"], source="one", politeness={"slots": 4}, scope={"include": ["/one/**", "/one"]})
        two = contract(site, ["/two"], source="two", politeness={"slots": 1}, scope={"include": ["/two/**", "/two"]})
        first, second = start(database, one), start(database, two)
        reports = [first.finish(), second.finish()]
    assert [report.urls["accepted"] for report in reports] == [41, 41]
    both = site.pages_asked
    overlap = [asked for asked in both if asked.at > max(both[0].at, next(a.at for a in both if a.path == "/two"))]
    assert len(overlap) > 40
    assert site.most_open[site.authorities[0]] <= 4


def test_private_address_is_refused_at_connect_time(database: Database) -> None:
    with Site(many_pages) as site:
        crawl(database, contract(site, fetch={"allow_networks": []}, politeness={"robots": "ignore"}))
    assert site.asked == []
    assert states(database) == {"/": "rejected address_refused"}


def test_page_not_found_twice_is_gone_and_takes_its_records_along(database: Database) -> None:
    is_there = True
    record = {
        "type": "page",
        "match": ["/item"],
        "key": ["title"],
        "fields": {"title": {"css": "h1", "required": True}},
    }

    def answer(asked: Asked) -> Answer:
        if asked.path == "/item":
            return page("item") if is_there else NOT_FOUND
        return page("start", "/item")

    with Site(answer) as site:
        loaded = contract(site, records=[{**record, "guard": {"max_drop": 1.0}}])
        crawl(database, loaded)
        is_there = False
        crawl(database, loaded, force=True)
        assert states(database)["/item"] == "rejected not_found"
        assert rows(database, "SELECT 1 FROM records WHERE gone_at IS NULL") != []
        report = crawl(database, loaded, force=True)
    assert states(database)["/item"] == "rejected gone"
    assert (report.records, report.records_gone) == (0, 1)


def test_window_shorter_than_the_crawl_does_not_keep_it_from_ending(database: Database) -> None:
    """Guard: the cutoff in `claim` and `finished`."""

    def answer(asked: Asked) -> Answer:
        return Answer(body=many_pages(asked).body, delay=0.03) if asked.path != "/" else page("start", *MANY[:120])

    with Site(answer) as site:
        loaded = contract(site, freshness={"window": "1s", "min": "0s"}, politeness={"slots": 2})
        begun = datetime.now(UTC)
        report = crawl(database, loaded)
    assert report.stop_reason == "finished"
    assert report.requests == 121
    assert datetime.now(UTC) - begun > timedelta(seconds=1.5)


def test_requests_in_flight_stay_within_the_limit_over_many_hosts(database: Database) -> None:
    """Guard: `p_max_slots` in claim; without it a claim brings more slots than the client may carry."""
    with Site(lambda asked: Answer(body=page("start").body, delay=0.1), hosts=40) as site:
        report = crawl(database, contract(site, limits={"max_in_flight": 3}, politeness={"slots": 1}), workers=1)
    assert report.urls["accepted"] == 40
    assert 1 < site.most_open_in_all <= 3


def test_host_that_another_worker_put_to_rest_rests_here_too(database: Database) -> None:
    """Guard: the heartbeat's `_look_at_hosts`; without it a lease in hand goes on until it is used up."""
    with Site(lambda asked: Answer(body=page("start", *MANY[:300]).body, delay=0.05)) as site:
        running = start(database, contract(site, politeness={"slots": 2}))
        wait_until(lambda: len(site.pages_asked) > 10, within=60)
        rows(database, "SELECT block_host(host_id, clock_timestamp() + interval '8 seconds', 'throttled') FROM hosts")
        at = time.monotonic()
        wait_until(lambda: time.monotonic() > at + 8, within=20)
        during = [asked for asked in site.pages_asked if at + 4 < asked.at < at + 7.5]
        running.stop.set()
        running.join()
    assert during == []


def test_host_that_slows_under_load_is_asked_less_often_until_it_is_well_again(database: Database) -> None:
    """Guards: `to_drain` for hosts in trouble, `observe_hosts` and the branch `slow` of `observed`.

    The site answers at once as long as two requests are open at most, which eight slots without a delay never keep to.
    """

    def answer(asked: Asked) -> Answer:
        body = page("start", *MANY).body if asked.path == "/" else page(asked.path).body
        return Answer(body=body, delay=1.5 if site.open_now[asked.host] > 2 else 0.02)

    with Site(answer) as site:
        running = start(database, contract(site, politeness={"slots": 8, "robots": "ignore"}), workers=2)
        is_slowed = "SELECT 1 FROM hosts WHERE adaptive_reason = 'slow' AND min_delay >= '1 second'"
        wait_until(lambda: rows(database, is_slowed) != [], within=60)
        slowed = time.monotonic()
        wait_until(lambda: rows(database, "SELECT 1 FROM hosts WHERE min_delay < '0.3 seconds'") != [], within=120)
        freed = time.monotonic()
        running.stop.set()
        running.join()
    during = [asked for asked in site.pages_asked if slowed < asked.at < freed]
    assert len(during) >= 7
    slow, last = gaps(during)[:5], gaps(during)[-3:]
    assert min(slow) > 0.9, slow  # one second at least, less what an arrival may be late
    assert max(last) < min(slow), (slow, last)


def test_healthy_host_keeps_its_full_speed(database: Database) -> None:
    with Site(lambda asked: page("start", *MANY) if asked.path == "/" else page(asked.path)) as site:
        report = crawl(database, contract(site, politeness={"slots": 16}))
    assert report.urls["accepted"] == 1001
    assert rows(database, "SELECT 1 FROM hosts WHERE adaptive_delay > '0' OR min_delay > '0'") == []
    assert rows(database, "SELECT 1 FROM hosts WHERE latency IS NULL") == []

"""robots.txt as a site sees it obeyed (RFC 9309). Judged from the host's side."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from crawl_pipeline.pipeline.re_extract import re_extract
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.crawling import contract, crawl, rows, start, states
from crawl_pipeline_tests.site import NOT_FOUND, ROBOTS, Answer, Asked, Site, gaps, page

MANY = [f"/page/{n}" for n in range(60)]


def rules(*lines: str, **headers: str) -> Answer:
    """A robots.txt for every crawler."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(body="\n".join(["User-agent: *", *lines, ""]), kind="text/plain", headers=named)


def many_pages(asked: Asked) -> Answer:
    return page("start", *MANY) if asked.path == "/" else page(asked.path)


def robots_asked(site: Site) -> list[Asked]:
    return [asked for asked in site.asked if asked.path == ROBOTS]


def expire_robots(database: Database) -> None:
    with database.connection() as connection:
        connection.exec_driver_sql("UPDATE robots SET expires_at = 'epoch'")


# Fetched once


def test_robots_is_asked_for_once_by_two_workers_of_two_sources(database: Database) -> None:
    """Guard: `fetching_until` in `storage.robots.ask`."""
    slow = Answer(body=rules("Disallow: /private/").body, kind="text/plain", delay=0.5)
    links = ["/private/a", "/private/b", *MANY]

    def answer(asked: Asked) -> Answer:
        return page("start", *links) if asked.path == "/" else page(asked.path)

    with Site(answer, robots=slow, hosts=2) as site:
        first = start(database, contract(site, source="one"), workers=2)
        second = start(database, contract(site, source="two"), workers=2)
        reports = [first.finish(), second.finish()]
    assert [report.urls["accepted"] for report in reports] == [122, 2 * 61]
    assert not [path for path in site.paths() if path.startswith("/private/")]
    assert sorted(asked.host for asked in robots_asked(site)) == site.authorities
    assert states(database)["/private/a"] == "cancelled robots"
    assert sum(report.other_requests for report in reports) == 2


# Unavailable


UNAVAILABLE = {
    "503": Answer(status=503),
    "429": Answer(status=429),
    "cut": Answer(resets=True),
    "silence": Answer(hangs=True),
}


@pytest.mark.parametrize("how", UNAVAILABLE)
def test_source_that_obeys_waits_for_robots_and_one_that_ignores_it_goes_on(database: Database, how: str) -> None:
    """Guard: `rest_source`; `block_host` in its place stops the source that ignores robots.txt too."""
    is_back = False

    def robots(_: Asked) -> Answer:
        return NOT_FOUND if is_back else UNAVAILABLE[how]

    with Site(many_pages, hosts=2, robots=lambda asked: robots(asked) if "0.0.1" in asked.host else NOT_FOUND) as site:
        ill, well = site.authorities
        obeying = contract(site, source="obeying", fetch={"timeout": "1s"})
        running = start(database, obeying, workers=2)
        wait_until(lambda: rows(database, "SELECT 1 FROM robots WHERE state = 'unavailable'") != [], within=30)
        ignoring = contract(site, ["/"], source="ignoring", politeness={"robots": "ignore"})
        report = crawl(database, ignoring, workers=1, within=30)
        assert report.urls["accepted"] == 61
        of_ill = """SELECT u.state, u.reason, u.tries FROM urls u JOIN hosts USING (host_id)
                     WHERE authority = :a AND source_id = :s"""
        source_id = running.opened.source_id
        wait_until(lambda: len([a for a in robots_asked(site) if a.host == ill]) >= 2, within=30)
        assert set(rows(database, of_ill, a=ill, s=source_id)) <= {
            ("queued", "robots_unavailable", 0),
            ("active", "robots_unavailable", 0),
        }
        assert sum(asked.host == well for asked in site.pages_asked) == 61
        assert sum(asked.host == ill for asked in site.pages_asked) == 61  # the ignoring source's
        is_back = True
        report = running.finish(within=60)
    assert (report.stop_reason, report.urls["accepted"]) == ("finished", 122)
    asked = [one.at for one in robots_asked(site) if one.host == ill]
    assert 3 <= len(asked) <= 4
    waits = [later - sooner for sooner, later in pairwise(asked)]
    assert waits[0] > 4.5
    assert waits[1] > 9.5
    assert rows(database, "SELECT 1 FROM urls WHERE tries > 0") == []


def test_backlog_of_a_resting_source_is_left_alone(database: Database) -> None:
    """Guard: `rests_until` in `queues.ready_at`; without it every queued page is claimed, and postponed one by one."""
    with Site(many_pages, robots=Answer(status=503, headers={"Retry-After": "600"})) as site:
        seeds = [f"/page/{n}" for n in range(2000)]
        crawl(database, contract(site, seeds, limits={"max_idle": "5s"}))
    assert [asked.path for asked in site.asked] == [ROBOTS]
    postponed = rows(database, "SELECT count(*) AS n FROM urls WHERE reason = 'robots_unavailable'")[0].n
    assert 1 <= postponed <= 500


def test_robots_that_stay_unavailable_defer_the_crawl_and_no_page_is_asked_for(database: Database) -> None:
    robots = Answer(status=503, headers={"Retry-After": "600"})
    with Site(many_pages, robots=robots) as site:
        report = crawl(database, contract(site, limits={"max_idle": "7s"}))
    assert report.stop_reason == "deferred"
    assert [asked.path for asked in site.asked] == [ROBOTS]
    assert states(database) == {"/": "queued robots_unavailable"}
    assert rows(database, "SELECT tries FROM urls")[0].tries == 0


def test_robots_that_fails_at_tls_defers_its_origin_and_no_other(database: Database) -> None:
    """The site speaks no TLS, so that nothing of its https origin can be had; its other host goes on."""
    with Site(many_pages, hosts=2) as site:
        ill, well = site.authorities
        loaded = contract(site, [f"https://{ill}/", f"http://{well}/"], limits={"max_idle": "4s"})
        report = crawl(database, loaded)
    assert (report.stop_reason, report.urls["accepted"], report.urls["queued"]) == ("deferred", 61, 1)
    assert {asked.host for asked in site.asked} == {well}
    assert rows(database, "SELECT reason, tries FROM urls WHERE url LIKE 'https:%'") == [("robots_unavailable", 0)]
    assert rows(database, "SELECT state FROM robots WHERE origin LIKE 'https:%'") == [("unavailable",)]


def test_source_that_may_ignore_robots_by_now_waits_no_longer(database: Database) -> None:
    """Guard: `end_rests` when a crawl opens."""
    with Site(many_pages, robots=Answer(status=503, headers={"Retry-After": "600"})) as site:
        crawl(database, contract(site, limits={"max_idle": "1s"}))
        rows(database, "UPDATE urls SET due_at = now() RETURNING 1")  # what was in hand was put off as well
        rows(database, "UPDATE queues SET next_due_at = now() RETURNING 1")
        report = crawl(database, contract(site, politeness={"robots": "ignore"}), within=30)
    assert report.urls["accepted"] == 61


# Changes


def test_denied_pages_are_looked_at_again_when_robots_allows_them(database: Database) -> None:
    """Guards: the single URL that is looked at because robots.txt expired, and `reopen_denied` where it changed."""
    denied = True

    def robots(_: Asked) -> Answer:
        return rules("Disallow: /page/") if denied else rules("Disallow: /page/7")

    with Site(many_pages, robots=robots) as site:
        loaded = contract(site)
        assert crawl(database, loaded).urls["cancelled"] == 60
        expire_robots(database)
        assert crawl(database, loaded).urls["cancelled"] == 60  # still so: one look, no request
        assert (len(robots_asked(site)), len(site.pages_asked)) == (2, 1)
        denied = False
        assert crawl(database, loaded).urls["cancelled"] == 60  # fresh: nobody asks
        assert len(robots_asked(site)) == 2
        expire_robots(database)
        report = crawl(database, loaded, workers=2)
    assert report.urls["accepted"] == 60
    assert states(database)["/page/7"] == "cancelled robots"
    assert "/page/7" not in site.paths()
    assert sorted(site.paths()) == sorted(["/", *(link for link in MANY if link != "/page/7")])


def test_denied_pages_of_other_sources_are_looked_at_again_too(database: Database) -> None:
    denied = True

    def robots(_: Asked) -> Answer:
        return rules("Disallow: /page/") if denied else rules()

    with Site(many_pages, hosts=2, robots=robots) as site:
        one, other = contract(site, source="one"), contract(site, source="other")
        crawl(database, one)
        crawl(database, other)
        denied = False
        rows(database, "UPDATE robots SET expires_at = 'epoch' WHERE origin LIKE '%127.0.0.1:%' RETURNING 1")
        crawl(database, one)
        counts = rows(
            database,
            """SELECT source, authority, state, count(*) AS n FROM urls JOIN hosts USING (host_id)
                 JOIN sources USING (source_id) WHERE url LIKE '%/page/%' GROUP BY 1, 2, 3 ORDER BY 1, 2""",
        )
        first, second = site.authorities
        assert counts == [
            ("one", first, "accepted", 60),
            ("one", second, "cancelled", 60),
            ("other", first, "queued", 60),
            ("other", second, "cancelled", 60),
        ]


def test_queued_and_visited_pages_that_robots_denies_by_now_are_cancelled_without_a_request(
    database: Database,
) -> None:
    """Guard: the gate before each request."""
    denied = False

    def robots(_: Asked) -> Answer:
        return rules("Disallow: /page/") if denied else rules()

    with Site(many_pages, robots=robots) as site:
        loaded = contract(site)
        crawl(database, loaded, max_pages=20)
        assert len(site.paths()) >= 20
        denied = True
        expire_robots(database)
        before = len(site.pages_asked)
        report = crawl(database, loaded, force=True)
    assert site.paths()[before:] == ["/"]
    assert report.urls["cancelled"] == 60
    assert {state for path, state in states(database).items() if path != "/"} == {"cancelled robots"}


# Crawl-delay


def test_crawl_delay_spaces_all_starts_over_two_workers_robots_included(database: Database) -> None:
    """Guards: the slots' phases in `claim` (grid_anchor + k * min_delay), and `ask_crawl_delay`: without its answer
    the lease in hand, which was given before the delay was known, goes on at the contract's pace."""
    robots = Answer(body=rules("Crawl-delay: 0.35").body, kind="text/plain", delay=0.3)
    links = MANY[:12]
    with Site(lambda asked: page("start", *links) if asked.path == "/" else page(asked.path), robots=robots) as site:
        report = crawl(database, contract(site, ["/", "/page/20", "/page/21"], politeness={"slots": 4}), workers=2)
    assert report.urls["accepted"] == 15
    assert site.asked[0].path == ROBOTS
    assert min(gaps(site.asked)) > 0.2, gaps(site.asked)  # 0.35, but for starts that a busy machine delays


def test_crawl_delay_that_comes_later_slows_every_source_of_the_host(database: Database) -> None:
    """Guard: `block_host` in `ask_crawl_delay`; without it the other source's lease goes on until it is used up."""
    robots = rules("Crawl-delay: 0.4")
    links = [f"/page/{n}" for n in range(400)]

    def answer(asked: Asked) -> Answer:
        return Answer(body=page("page", *links).body, delay=0.02)

    with Site(answer, robots=robots) as site:
        ignoring = contract(site, source="ignoring", politeness={"robots": "ignore", "slots": 2})
        running = start(database, ignoring)
        wait_until(lambda: len(site.pages_asked) > 20, within=30)
        other = start(database, contract(site, source="obeying"))
        wait_until(lambda: robots_asked(site) != [], within=60)
        wait_until(lambda: time.monotonic() > robots_asked(site)[0].at + 8, within=30)
        for one in (running, other):
            one.stop.set()
            one.join()
    slow = [asked for asked in site.asked if asked.at > robots_asked(site)[0].at + 3]
    assert len(slow) > 3
    assert min(gaps(slow)) > 0.2, gaps(slow)  # 0.4, but for starts that a busy machine delays


# Redirects


def redirecting(to: str) -> Callable[[Asked], Answer]:
    """The first host's robots.txt is said to be elsewhere; the others' forbids /page/1."""

    def robots(asked: Asked) -> Answer:
        is_first = asked.host.startswith("127.0.0.1:")
        return Answer(status=301, headers={"Location": to}) if is_first else rules("Disallow: /page/1")

    return robots


def test_robots_of_another_host_is_asked_for_in_that_hosts_own_budget(database: Database) -> None:
    """Guard: `_ask_elsewhere`; without it the hop is made at once, within the other host's delay."""
    with Site(many_pages, hosts=2) as site:
        first, other = site.authorities
        site.robots = redirecting(f"http://{other}/robots.txt")
        rows(database, "INSERT INTO hosts (authority, min_delay) VALUES (:a, '4 s') RETURNING 1", a=other)
        rows(database, "UPDATE hosts SET next_request_at = clock_timestamp() + interval '4 s' RETURNING 1")
        begun = time.monotonic()
        report = crawl(database, contract(site, ["/"], scope={"hosts": [first]}))
    asked = [one for one in site.asked if one.host == other]
    assert [one.path for one in asked] == [ROBOTS]
    assert asked[0].at - begun > 3.5
    assert report.urls["accepted"] == 61 - 11  # /page/1 and those that begin so
    assert "/page/1" not in site.paths()
    assert rows(database, "SELECT 1 FROM leases") == []


def test_robots_of_a_host_that_rests_is_asked_for_later(database: Database) -> None:
    """Guard: the rest in `claim_slot`."""
    with Site(many_pages, hosts=2) as site:
        first, other = site.authorities
        site.robots = redirecting(f"http://{other}/robots.txt")
        rows(database, "INSERT INTO hosts (authority, blocked_until) VALUES (:a, '2100-01-01') RETURNING 1", a=other)
        running = start(database, contract(site, ["/"], scope={"hosts": [first]}))
        wait_until(lambda: rows(database, "SELECT 1 FROM robots WHERE state = 'unavailable'") != [], within=60)
        running.stop.set()
        running.join()
    assert {(one.host, one.path) for one in site.asked} == {(first, ROBOTS)}


def test_robots_that_redirects_to_another_path_elsewhere_counts_as_none(database: Database) -> None:
    """Guard: `robots_redirect`; nothing outside the scope is requested but a robots.txt."""
    with Site(many_pages, hosts=2) as site:
        first, other = site.authorities
        site.robots = redirecting(f"http://{other}/login?return=/robots.txt")
        report = crawl(database, contract(site, ["/"], scope={"hosts": [first]}))
    assert report.urls["accepted"] == 61
    assert {one.host for one in site.asked} == {first}


# What pages ask


SAYING = {
    "meta": ('<meta name="robots" content="{}">', {}),
    "named meta": ('<meta name="Shop-Bot" content="{}">', {}),
    "header": ("", {"X-Robots-Tag": "max-snippet: 5, {}"}),
    "named header": ("", {"X-Robots-Tag": "other-bot: none", "x-robots-tag": "shop-bot: {}"}),
}


def saying(how: str, directive: str, *links: str) -> Answer:
    """A page with links that asks for a directive in one of the ways of `SAYING`."""
    head, headers = SAYING[how]
    anchors = "".join(f'<a href="{link}">{link}</a>' for link in links)
    return Answer(
        body=f"<html><head>{head.format(directive)}</head><body><h1>Words</h1>{anchors}</body></html>",
        headers={name: value.format(directive) for name, value in headers.items()},
    )


@pytest.mark.parametrize("client", ["libcurl", "requests"])
def test_links_of_a_page_that_says_nofollow_are_followed_only_where_the_contract_says_so(
    database: Database, client: str
) -> None:
    """Guard: `NOFOLLOW in asked` in the reader."""
    pages = {f"/{number}": how for number, how in enumerate(SAYING)}

    def answer(asked: Asked) -> Answer:
        if asked.path == "/":
            return page("start", *pages)
        return saying(pages[asked.path], "nofollow", asked.path + "/x") if asked.path in pages else page(asked.path)

    with Site(answer) as site:
        politeness = {"user_agent": "shop-bot/1.0"}
        loaded = contract(site, politeness=politeness, fetch={"client": client})
        assert crawl(database, loaded).urls["accepted"] == 5
        assert not [path for path in site.paths() if path.endswith("/x")]
        scope = {"follow_nofollow": True}
        loaded = contract(site, politeness=politeness, fetch={"client": client}, scope=scope)
        assert crawl(database, loaded, force=True).urls["accepted"] == 4
    assert sorted(path for path in site.paths() if path.endswith("/x")) == ["/0/x", "/1/x", "/2/x", "/3/x"]


@pytest.mark.parametrize("client", ["libcurl", "requests"])
def test_page_that_says_noindex_is_stored_with_a_flag_or_rejected_and_its_links_are_followed(
    database: Database, client: str
) -> None:
    """Guards: `is_noindex` in `complete`, and the reader's verdict."""
    pages = {f"/{number}": how for number, how in enumerate(SAYING)}
    word = "noindex"

    def answer(asked: Asked) -> Answer:
        if asked.path == "/":
            return page("start", *pages)
        return saying(pages[asked.path], word, asked.path + "/x") if asked.path in pages else page(asked.path)

    def flagged() -> list[str]:
        found = rows(database, "SELECT url FROM urls WHERE is_noindex ORDER BY url")
        return ["/" + row.url.split("/", 3)[3] for row in found]

    with Site(answer) as site:
        politeness, fetch = {"user_agent": "shop-bot/1.0"}, {"client": client}
        loaded = contract(site, politeness=politeness, fetch=fetch)
        assert crawl(database, loaded).urls["accepted"] == 9
        assert flagged() == list(pages)
        word = "all"
        crawl(database, loaded, force=True)
        assert flagged() == []
        word = "noindex"
        rejecting = contract(site, source="other", politeness=politeness, fetch=fetch, accept={"noindex": "reject"})
        report = crawl(database, rejecting)
    assert (report.urls["accepted"], report.urls["rejected"]) == (5, 4)
    assert {row.reason for row in rows(database, "SELECT reason FROM urls WHERE state = 'rejected'")} == {"noindex"}


def test_header_that_says_nofollow_holds_for_re_extraction_too(database: Database) -> None:
    """Guard: `robots_tags` of the last answer; without it changed rules alone would follow the links."""
    links = {"/closed": Answer(body=page("closed", "/behind").body, headers={"X-Robots-Tag": "nofollow"})}
    with Site(lambda asked: links.get(asked.path) or page(asked.path, "/closed")) as site:
        crawl(database, contract(site))
        changed = contract(site, records=[{"type": "item", "key": ["title"], "fields": {"title": {"css": "h1"}}}])
        report = re_extract(database, changed, run_id="again")
    assert (report.re_extracted, report.records, report.new_urls) == (2, 2, 0)
    assert set(states(database)) == {"/", "/closed"}


def test_source_that_obeys_no_more_holds_its_host_back_no_more(database: Database) -> None:
    """Guard: `forget_delays` when a crawl opens."""
    with Site(many_pages, robots=rules("Crawl-delay: 2")) as site:
        crawl(database, contract(site), max_pages=1)
        assert [row.crawl_delay.total_seconds() for row in rows(database, "SELECT * FROM host_policies")] == [2]
        crawl(database, contract(site, politeness={"robots": "ignore"}), within=50)  # 61 pages; two minutes at 2 s
    assert rows(database, "SELECT 1 FROM host_policies") == []


@pytest.mark.parametrize("client", ["libcurl", "requests"])
def test_first_500_kib_of_an_endless_robots_count(database: Database, client: str) -> None:
    """Guard: `keeps_beginning`; a longer one would be unavailable for ever."""
    lines = "User-agent: *\nDisallow: /page/7\n" + "# filler\n" * 700_000 + "Disallow: /page/\n"
    with Site(many_pages, robots=Answer(body=lines, kind="text/plain")) as site:
        report = crawl(database, contract(site, fetch={"client": client}))
    assert (report.urls["accepted"], report.urls["cancelled"]) == (60, 1)


def test_robots_that_would_hold_up_the_worker_disallows_all(database: Database) -> None:
    """Guard: `MOST_WILDCARDS`; each URL would cost a tenth of a second, in which other hosts stand still."""
    trap = rules(*(f"Disallow: /*a*a*a*{n}$" for n in range(20_000)))
    with Site(many_pages, hosts=2, robots=lambda asked: trap if "0.0.1" in asked.host else NOT_FOUND) as site:
        report = crawl(database, contract(site))
    assert (report.urls["accepted"], report.urls["cancelled"]) == (61, 1)

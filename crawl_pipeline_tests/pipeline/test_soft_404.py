"""Pages that claim to be there: found out by one made-up path a host, for any number of workers."""

from __future__ import annotations

from collections.abc import Callable

from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests.crawling import contract, crawl, rows, states
from crawl_pipeline_tests.site import MADE_UP, NOT_FOUND, Answer, Asked, Site, page

HEADLINE = {
    "type": "page",
    "match": ["/item/*"],
    "key": ["title"],
    "fields": {"title": {"css": "h1", "required": True}},
    "guard": {"max_drop": 1.0},
}


def sorry(asked: Asked) -> Answer:
    """What many a shop says, with status 200, of whatever it does not have."""
    return page("Oh no", "/", text=f"Sorry, we could not find {asked.path} in our shop.")


def shop(*links: str, has: Callable[[str], bool]) -> Callable[[Asked], Answer]:
    def answer(asked: Asked) -> Answer:
        if asked.path == "/":
            return page("A shop", *links)
        if has(asked.path):
            return page(f"Thing {asked.path}", text=f"A very fine thing, number {len(asked.path)}.")
        return sorry(asked)

    return answer


def probes(site: Site) -> list[Asked]:
    return [asked for asked in site.asked if MADE_UP in asked.path]


def test_pages_that_say_what_a_made_up_path_says_are_not_found(database: Database) -> None:
    """Guard: `soft_404s.ask` grants one request; without its `asking_until` both workers ask."""
    links = [f"/item/{n}" for n in range(30)]
    has = {link for number, link in enumerate(links) if number % 3}
    robots = Answer(body="User-agent: *\nDisallow: /private/\n", kind="text/plain")
    with Site(shop(*links, has=lambda path: path in has), hosts=2, robots=robots) as site:
        report = crawl(database, contract(site), workers=2)
    found = states(database)
    assert {path for path, state in found.items() if state == "accepted"} == {"/", *has}
    assert {path for path, state in found.items() if state == "rejected soft_404"} == set(links) - has
    assert sorted(asked.host for asked in probes(site)) == site.authorities
    assert (report.requests, report.other_requests) == (62, 4)
    assert len(rows(database, "SELECT 1 FROM page_versions")) == 2 + 2 * len(has)
    detail = rows(database, "SELECT DISTINCT detail FROM fetches WHERE reason = 'soft_404'")
    assert [row.detail for row in detail] == ["says what the host says of a made-up path"]


def test_a_soft_404_takes_records_along_only_when_it_is_confirmed(database: Database) -> None:
    """Guard: SOFT_404 in `decide._MISSING`; without it a page's records outlive it for ever."""
    is_there = True
    with Site(
        shop("/item/1", "/item/2", has=lambda path: path == "/item/2" or (is_there and path == "/item/1"))
    ) as site:
        loaded = contract(site, records=[HEADLINE])
        assert crawl(database, loaded).records == 2
        is_there = False
        report = crawl(database, loaded, force=True)
        assert states(database)["/item/1"] == "rejected soft_404"
        assert (report.records, report.records_missing) == (2, 0)
        report = crawl(database, loaded, force=True)
        assert states(database)["/item/1"] == "rejected gone"
        assert (report.records, report.records_gone) == (1, 1)
    assert len(probes(site)) == 1


def test_a_host_that_says_404_is_asked_once_and_all_its_pages_are_taken(database: Database) -> None:
    same = "This page will be written soon, please come back later."
    links = [f"/item/{n}" for n in range(10)]

    def answer(asked: Asked) -> Answer:
        if MADE_UP in asked.path:
            return NOT_FOUND
        return page("start", *links) if asked.path == "/" else page("Soon", text=same)

    with Site(answer) as site:
        report = crawl(database, contract(site), workers=2)
    assert report.urls["accepted"] == 11
    assert len(probes(site)) == 1


def test_no_host_is_asked_that_gives_no_reason_or_must_not_be(database: Database) -> None:
    """Long pages that differ, robots.txt, scope, the contract: each keeps the made-up path from being asked for."""
    links = [f"/item/{n}" for n in range(5)]
    robots = Answer(body=f"User-agent: *\nDisallow: /item{MADE_UP}\nDisallow: /item/no-\n", kind="text/plain")

    def long(asked: Asked) -> Answer:
        return page("start", *links) if asked.path == "/" else page(asked.path, text=f"{asked.path} " * 500)

    never = shop(*links, has=lambda _: False)
    with Site(long) as good, Site(never, robots=robots) as disallowed, Site(never) as narrow, Site(never) as off:
        crawl(database, contract(good, source="good"))
        crawl(database, contract(disallowed, source="disallowed"))
        crawl(database, contract(narrow, ["/"], source="narrow", scope={"include": ["/", *links]}))
        crawl(database, contract(off, source="off", accept={"soft_404": False}))
    assert [len(probes(site)) for site in (good, disallowed, narrow, off)] == [0, 0, 0, 0]
    assert {state for state in states(database).values()} == {"accepted"}


def test_a_made_up_path_that_gets_no_answer_calls_nothing_a_soft_404(database: Database) -> None:
    has = shop("/item/1", "/item/2", has=lambda _: False)
    with Site(lambda asked: Answer(status=500) if MADE_UP in asked.path else has(asked)) as site:
        report = crawl(database, contract(site, politeness={"robots": "ignore"}))
    assert report.urls["accepted"] == 3
    assert len(probes(site)) == 1
    again = rows(database, "SELECT expires_at - asked_at AS wait FROM soft_404s")[0].wait
    assert again.total_seconds() == 600

"""Redirects: one page is stored once whatever leads to it, each hop is asked for on its own terms, nothing is lost."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests.crawling import contract, crawl, rows, states
from crawl_pipeline_tests.site import NOT_FOUND, Answer, Asked, Site, page
from crawl_pipeline_tests.storage.invariants import broken_invariants

RECORD = {"type": "item", "key": ["title"], "fields": {"title": {"css": "h1"}, "text": {"css": "p"}}}


def to(location: str, status: int = 302) -> Answer:
    return Answer(status=status, headers={"Location": location})


def answers(pages: dict[str, Answer]) -> Callable[[Asked], Answer]:
    return lambda asked: pages.get(asked.path, NOT_FOUND)


def items(database: Database) -> dict[str, Any]:
    """The page that each current record belongs to, by its title."""
    found = rows(
        database,
        """SELECT r.data ->> 'title' AS title, u.url FROM records r JOIN urls u USING (source_id, url_key)
            WHERE r.gone_at IS NULL AND r.missing_since IS NULL""",
    )
    return {row.title: "/" + row.url.split("/", 3)[3] for row in found}


def test_page_that_three_urls_lead_to_is_stored_once_and_not_asked_for_again(database: Database) -> None:
    """Guards: `redirected` in `Answers`; `adopt` (without it the target is fetched once more)."""
    pages = {"/": page("start", "/old"), "/old": to("/new", 301), "/new": page("new", "/older"), "/older": to("/old")}
    with Site(answers(pages)) as site:
        report = crawl(database, contract(site, records=[{**RECORD, "match": ["/old", "/new"]}]))
        assert sorted(site.paths()) == ["/", "/new", "/new", "/old", "/old", "/older"]
    assert states(database) == {
        "/": "accepted",
        "/new": "accepted",
        "/old": "rejected redirected",
        "/older": "rejected redirected",
    }
    assert report.requests == len(site.pages_asked)
    assert (report.page_versions, report.records, report.new_urls) == (2, 1, 3)
    stored = rows(database, "SELECT u.url, v.final_url FROM page_versions v JOIN urls u USING (version_id)")
    assert {row.url for row in stored} == {row.final_url for row in stored} == {f"{site.url}/", f"{site.url}/new"}
    log = rows(database, "SELECT f.url, u.url AS page, f.detail FROM fetches f JOIN urls u USING (source_id, url_key)")
    assert len(log) == len(site.pages_asked)
    assert {row.detail for row in log if row.page == f"{site.url}/older" and row.detail} == {f"to {site.url}/new"}
    assert broken_invariants(database) == {}


def test_targets_found_beside_their_redirects_are_stored_once_each(database: Database) -> None:
    """Whichever comes first: a target that waits in the same lease is visited there, one visited before stays."""
    old, new = [f"/old/{n}" for n in range(9)], [f"/new/{n}" for n in range(9)]
    pages = {"/": page("start", *old, *new), **{path: to(path.replace("old", "new")) for path in old}}
    with Site(lambda asked: pages.get(asked.path) or page(asked.path)) as site:
        report = crawl(database, contract(site))
        asked = site.paths()
    assert (report.urls["accepted"], report.urls["rejected"], report.page_versions) == (10, 9, 10)
    assert report.requests == len(asked) == len(rows(database, "SELECT 1 FROM fetches"))
    assert {asked.count(path) for path in ["/", *old]} == {1}
    assert max(asked.count(path) for path in new) <= 2


def test_seed_that_redirects_gives_its_place_to_its_target_and_is_revisited_with_it(database: Database) -> None:
    pages = {"/": to("/en/"), "/en/": page("home", "next"), "/en/next": page("next")}
    with Site(answers(pages)) as site:
        loaded = contract(site, ["/"])
        crawl(database, loaded)
        depths = rows(database, "SELECT url, depth, due_at FROM urls ORDER BY length(url)")
        assert [row.depth for row in depths] == [0, 0, 1]
        assert all(row.due_at is not None for row in depths)
        pages["/en/"] = page("home", text="Other words.")
        report = crawl(database, loaded, force=True)
    assert states(database) == {"/": "rejected redirected", "/en/": "accepted", "/en/next": "unchanged"}
    assert report.versions_added == 1


def test_redirect_between_spellings_of_one_page_stays_one_page(database: Database) -> None:
    pages = {
        "/": page("start", "/a", "/b"),
        "/a": to("/a/"),
        "/a/": page("a"),
        "/b": to("/b?utm_source=x"),
        "/b?utm_source=x": page("b"),
    }
    with Site(answers(pages)) as site:
        crawl(database, contract(site, urls={"trailing_slash": "strip"}))
    assert set(states(database).values()) == {"accepted"}
    final = rows(database, "SELECT final_url FROM page_versions ORDER BY 1")
    assert [row.final_url for row in final] == [f"{site.url}/", f"{site.url}/a/", f"{site.url}/b?utm_source=x"]


def test_target_on_another_host_is_a_url_of_its_own_where_it_is_in_scope(database: Database) -> None:
    """Guards: the authority compared in `Requests.redirect`; the scope asked in `_admitted`."""
    with socket.create_server(("127.0.0.9", 0)) as listener, Site(lambda asked: answer(asked), hosts=2) as site:
        listener.setblocking(False)
        outside = "http://{}:{}/".format(*listener.getsockname())

        def answer(asked: Asked) -> Answer:
            if asked.host == site.authorities[1]:
                return page("there")
            inside = f"http://{site.authorities[1]}"
            pages = {
                "/": page("start", "/in", "/out", "/both"),
                "/in": to(f"{inside}/x?utm_source=1"),
                "/out": to(outside),
            }
            return pages.get(asked.path) or to(f"{inside}/private/1")

        crawl(database, contract(site, ["/"], scope={"exclude": ["/private/**"]}, limits={"max_depth": 2}))
        there = [asked for asked in site.asked if asked.host == site.authorities[1]]
        with pytest.raises(BlockingIOError):  # nobody ever connected
            listener.accept()
    assert [asked.path for asked in there] == ["/robots.txt", "/x"]
    found = {row.url: row for row in rows(database, "SELECT url, state, reason, depth FROM urls")}
    assert set(found) == {f"{site.url}{path}" for path in ("/", "/in", "/out", "/both")} | {
        f"http://{site.authorities[1]}/x"
    }
    assert {row.reason for url, row in found.items() if url.endswith(("/in", "/out", "/both"))} == {"redirect_out"}
    target = found[f"http://{site.authorities[1]}/x"]
    assert (target.state, target.depth) == ("accepted", 2)
    details = {row.detail for row in rows(database, "SELECT detail FROM fetches WHERE reason = 'redirect_out'")}
    assert f"to {outside}" in details


def test_loop_ends_after_one_cycle_and_a_chain_after_ten_hops(database: Database) -> None:
    """Guards: `visit.hops`; `MAX_REDIRECTS`."""

    def answer(asked: Asked) -> Answer:
        match asked.path.split("/")[1:]:
            case [""]:
                return page("start", "/self", "/ring/0", "/deep/0", "/ten/10")
            case ["self"]:
                return to("/self")
            case ["ring", n]:
                return to(f"/ring/{(int(n) + 1) % 3}")
            case ["deep", n]:
                return to(f"/deep/{int(n) + 1}")
            case ["ten", n]:
                return to(f"/ten/{int(n) - 1}") if n != "0" else page("the end")
        return NOT_FOUND

    with Site(answer) as site:
        report = crawl(database, contract(site))
        assert report.requests == len(site.pages_asked)
        asked = site.paths()
    assert states(database) == {
        "/": "accepted",
        "/self": "rejected redirect_loop",
        "/ring/0": "rejected redirect_loop",
        "/deep/0": "rejected redirect_loop",
        "/ten/10": "rejected redirected",
        "/ten/0": "accepted",
    }
    assert [asked.count(f"/ring/{n}") for n in range(3)] == [1, 1, 1]
    assert (asked.count("/self"), sum(path.startswith("/deep/") for path in asked)) == (1, 11)


def test_two_hosts_that_lead_on_to_each_other_end_at_max_depth(database: Database) -> None:
    """Guard: the target on another host lies one step deeper."""
    with Site(lambda asked: answer(asked), hosts=2) as site:

        def answer(asked: Asked) -> Answer:
            other = site.authorities[asked.host == site.authorities[0]]
            number = int(asked.path.partition("?")[2] or 0)
            return to(f"http://{other}/r?{number + 1}")

        report = crawl(database, contract(site, ["/r?0"], limits={"max_depth": 3}))
        assert site.paths() == [f"/r?{number}" for number in range(4)]
    assert report.urls["rejected"] == 4


def test_location_beyond_ascii_is_followed_as_the_bytes_that_were_sent(database: Database) -> None:
    """Guard: `_location`."""
    there = "/caf\u00e9/\u00e0"
    moved = there.encode().decode("latin-1")  # as a header carries it
    pages = {"/": to(moved), "/caf%C3%A9/%C3%A0": page("there")}
    with Site(answers(pages)) as site:
        crawl(database, contract(site, ["/"]))
    assert states(database)["/caf%C3%A9/%C3%A0"] == "accepted"


def test_each_hop_is_asked_of_robots_and_scope(database: Database) -> None:
    pages = {
        "/": page("start", "/1", "/2"),
        "/1": to("/hidden"),
        "/2": to("/cart/1"),
        "/hidden": page("hidden"),
        "/cart/1": page("cart"),
    }
    with Site(answers(pages), robots=Answer(body="User-agent: *\nDisallow: /hidden", kind="text/plain")) as site:
        crawl(database, contract(site, scope={"exclude": ["/cart/**"]}))
    assert sorted(site.paths()) == ["/", "/1", "/2"]
    assert states(database) == {"/": "accepted", "/1": "rejected redirect_out", "/2": "rejected redirect_out"}


def test_answer_at_the_end_of_redirects_is_the_target_s(database: Database) -> None:
    pages = {
        "/": page("start", "/to-missing", "/to-empty", "/to-error"),
        "/to-missing": to("/missing"),
        "/to-empty": to("/empty"),
        "/empty": Answer(body="<html></html>"),
        "/to-error": to("/error"),
        "/error": Answer(status=500),
    }
    with Site(answers(pages)) as site:
        crawl(database, contract(site, fetch={"tries": 1}))
    assert states(database) == {
        "/": "accepted",
        "/to-missing": "rejected redirected",
        "/missing": "rejected not_found",
        "/to-empty": "rejected redirected",
        "/empty": "rejected content_contract",
        "/to-error": "quarantined tries_exhausted",  # no answer: nobody knows yet whose page it is
    }


def test_records_of_a_page_that_becomes_a_redirect_pass_to_the_page_that_yields_them(database: Database) -> None:
    """Guard: the claims that `complete` passes on; without them the old URL would own its records for ever."""
    listing = page("start", "/a", "/b")
    pages = {"/": listing, "/a": page("A", text="one"), "/b": page("B")}
    with Site(answers(pages)) as site:
        loaded = contract(site, records=[{**RECORD, "match": ["/a", "/b", "/new"], "guard": {"max_drop": 1.0}}])
        crawl(database, loaded)
        assert items(database) == {"A": "/a", "B": "/b"}
        pages |= {"/a": to("/new"), "/b": to("/elsewhere"), "/new": page("A", text="one"), "/elsewhere": page("other")}
        report = crawl(database, loaded, force=True)
        assert (report.records_gone, report.records_missing, report.records_changed) == (0, 0, 0)
        assert items(database) == {"A": "/new", "B": "/b"}  # what nobody else yields stays
        assert rows(database, "SELECT 1 FROM record_versions WHERE valid_to IS NOT NULL") == []
        pages |= {"/a": page("A", text="one"), "/new": NOT_FOUND}  # and back: the content is that of the last version
        for _ in range(2):
            report = crawl(database, loaded, force=True)
        assert items(database) == {"A": "/a", "B": "/b"}
        assert (report.records_gone, report.versions_added) == (0, 0)
    assert states(database)["/new"] == "rejected gone"
    assert broken_invariants(database) == {}


@pytest.mark.parametrize("target", ["page", "missing", "sorry"])
def test_many_urls_that_lead_to_one_target_at_once_end_and_lose_nothing(database: Database, target: str) -> None:
    """Guard: `_asked` in `Adoption`; without it two of them adopt the target, and both copies are committed."""
    old = [f"/old/{n}" for n in range(40)]
    there = {"page": page("there"), "missing": NOT_FOUND, "sorry": page("Sorry", text="This was not found, oops.")}
    pages = {"/": page("start", *old), "/new": there[target], **dict.fromkeys(old, to("/new"))}
    with Site(answers(pages)) as site:
        report = crawl(database, contract(site, politeness={"slots": 16}), within=90)
        asked = [one for one in site.asked if "no-such-page" not in one.path and one.path != "/robots.txt"]
    assert report.urls["rejected"] == (41 if target == "missing" else 40)
    assert {state for url, state in states(database).items() if url in old} == {"rejected redirected"}
    made_up = rows(database, "SELECT count(*) AS n FROM fetches WHERE url LIKE '%no-such-page%'")[0].n
    assert len(rows(database, "SELECT 1 FROM fetches")) - made_up == len(asked) == report.requests
    assert rows(database, "SELECT 1 FROM workers WHERE ended_by LIKE 'exit 1%'") == []
    assert broken_invariants(database) == {}


def test_records_pass_to_a_target_that_is_compared_with_a_made_up_page_first(database: Database) -> None:
    """Guard: `led_by`; without it the page that redirects is committed before its target claims the record."""
    pages = {"/": page("start", "/a"), "/a": page("Sorry", text="one")}
    with Site(answers(pages)) as site:
        loaded = contract(site, records=[{**RECORD, "match": ["/a", "/new"], "guard": {"max_drop": 1.0}}])
        crawl(database, loaded)
        assert items(database) == {"Sorry": "/a"}
        pages |= {"/a": to("/new"), "/new": page("Sorry", text="one")}
        rows(database, "DELETE FROM soft_404s RETURNING 1")  # it is to be asked again, now for the target
        crawl(database, loaded, force=True)
    assert items(database) == {"Sorry": "/new"}


def test_max_pages_holds_where_every_page_is_a_redirect_s_target(database: Database) -> None:
    pages = {"/": page("start", *(f"/old/{n}" for n in range(30)))}

    def answer(asked: Asked) -> Answer:
        if asked.path.startswith("/old/"):
            return to(asked.path.replace("old", "new"))
        return pages.get(asked.path) or page(asked.path)

    with Site(answer) as site:
        report = crawl(database, contract(site), max_pages=11, workers=2)
    assert (report.stop_reason, report.urls["accepted"]) == ("max_pages", 11)

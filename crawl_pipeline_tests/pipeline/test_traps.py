"""Sites that lead ever on: how far a crawl follows, and what it says of it."""

from __future__ import annotations

from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests.crawling import contract, crawl, rows, states
from crawl_pipeline_tests.site import Answer, Asked, Site, page


def endless(asked: Asked) -> Answer:
    """A relative link that nests, a calendar without end, filters that combine, a new session in each page."""
    path = asked.path.partition("?")[0]
    if path == "/":
        return page("start", "/a/b/", "/cal/2024/1", "/shop", "/s/" + "0" * 32 + "/home")
    if path.startswith("/cal/"):
        year, month = map(int, path.split("/")[2:])
        following = f"/cal/{year + month // 12}/{month % 12 + 1}"
        return page(f"Calendar {path}", following, text=f"Nothing on, {path}.")
    if path == "/shop":
        number = len(asked.path) * 10_007
        filters = (f"/shop?a={number}&b={n}&c=1&d=1&{'x' * (len(asked.path) % 7)}=1" for n in range(10))
        return page("Shop", *filters, text=f"A shop, seen as {asked.path}.")
    if path.startswith("/s/"):
        session = f"{int(path.split('/')[2], 16) + 1:032x}"
        return page("Home", f"/s/{session}/home", text=f"Welcome, you are {session}.")
    return page(f"Folder {path}", "a/b/", text=f"Files of {path}.")


def test_a_crawl_ends_in_every_trap_and_says_how_much_it_left_out(database: Database) -> None:
    """Guards: `path_trap` in `Scope.verdict`, `Variants` in `Admission._judge`, `take_traps` in the loop."""
    with Site(endless) as site:
        loaded = contract(
            site, limits={"max_depth": 15, "max_url_variants": 12}, accept={"soft_404": False}, source="endless"
        )
        report = crawl(database, loaded)
    found = states(database)
    assert report.stop_reason == "finished"
    assert set(found.values()) == {"accepted"}
    assert [path for path in found if path.startswith("/a/")] == ["/a/b/" * 1, "/a/b/a/b/", "/a/b/a/b/a/b/"]
    assert len([path for path in found if path.startswith("/cal/")]) == 15
    assert len([path for path in found if path.startswith("/shop?")]) == 12
    assert len([path for path in found if path.startswith("/s/")]) == 3
    assert report.traps > 3
    assert rows(database, "SELECT n FROM counts WHERE name = 'traps'")[0].n == report.traps

"""Pages and records that disappear, over whole crawls: only what is confirmed goes, and never much of it at once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from crawl_pipeline.pipeline.crawl import apply_removals
from crawl_pipeline.storage import quarantine, sources
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.crawling import contract, crawl, rows, start, states
from crawl_pipeline_tests.site import NOT_FOUND, Answer, Asked, Site, page
from crawl_pipeline_tests.storage.invariants import broken_invariants

LISTED = {"type": "item", "each": "li", "key": ["sku"], "fields": {"sku": {"css": "b", "required": True}}}
TITLED = {"type": "item", "match": ["/p/**"], "key": ["sku"], "fields": {"sku": {"css": "h1"}}}


@dataclass
class Listing:
    """A list of items over 25 pages of four, as a shop shows it: a new item pushes every other one place on."""

    items: list[int]
    template: str = "<li><b>{}</b></li>"

    def __call__(self, asked: Asked) -> Answer:
        number = int(asked.path.rpartition("/")[2] or 0)
        if number >= 25:
            return NOT_FOUND
        shown = "".join(self.template.format(item) for item in self.items[number * 4 : number * 4 + 4])
        return Answer(body=f"<h1>List {number}</h1><ul>{shown}</ul><a href='/list/{number + 1}'>next</a>")


def current(database: Database) -> int:
    return int(rows(database, "SELECT count(*) AS n FROM records WHERE gone_at IS NULL")[0].n)


def test_item_inserted_at_the_top_of_25_list_pages_removes_and_changes_no_record(database: Database) -> None:
    """Guard: the end of the crawl removes, not the page that stopped to yield a record."""
    listing = Listing(list(range(100)))
    with Site(listing) as site:
        loaded = contract(
            site, ["/list/0"], records=[{**LISTED, "guard": {"max_drop": 0.05}}], limits={"max_depth": 30}
        )
        assert crawl(database, loaded, workers=2).records == 100
        listing.items.insert(0, 1000)
        report = crawl(database, loaded, workers=2, force=True)
        assert report.versions_added == 25
        # the last item fell off the last page: it alone is missing
        assert (report.records_added, report.records_changed, report.records_gone) == (1, 0, 1)
        listing.items += [2000]
        del listing.items[0]
        report = crawl(database, loaded, workers=2, force=True)
    assert (report.records_added, report.records_changed, report.records_gone) == (0, 1, 1)
    ended = rows(database, "SELECT data ->> 'sku' AS sku FROM record_versions WHERE valid_to IS NOT NULL ORDER BY 1")
    assert [row.sku for row in ended] == ["1000", "99"]
    assert broken_invariants(database) == {}


def test_template_change_holds_every_record_and_a_person_s_release_applies_it(database: Database) -> None:
    """Guard: `max_drop` in `apply_removals`."""
    listing = Listing(list(range(100)))
    with Site(listing) as site:
        loaded = contract(site, ["/list/0"], records=[LISTED], limits={"max_depth": 30})
        crawl(database, loaded, workers=2)
        listing.template = "<dd><b>{}</b></dd>"
        report = crawl(database, loaded, workers=2, force=True)
        assert [(hold.record_type, hold.missing, hold.total) for hold in report.holds] == [("item", 100, 100)]
        assert (report.records, report.records_gone, current(database)) == (100, 0, 100)
        assert rows(database, "SELECT 1 FROM record_versions WHERE valid_to IS NOT NULL") == []
        source_id = rows(database, "SELECT source_id FROM sources")[0].source_id
        with database.connection() as connection:
            (hold,) = quarantine.open_holds(connection, source_id)
        assert (hold.record_type, hold.missing_count) == ("item", 100)
        listing.template = "<li><b>{}</b></li>"  # mended before anybody looked: the hold goes by itself
        report = crawl(database, loaded, workers=2, force=True)
        assert (report.holds, report.records, report.records_added, report.records_changed) == ((), 100, 0, 0)
        listing.template = "<dd><b>{}</b></dd>"
        report = crawl(database, loaded, workers=2, force=True)
        assert len(report.holds) == 1
    with database.connection() as connection:
        removal = sources.apply_removals(connection, source_id, report.crawl_id, "item", 0.5, force=True)  # type: ignore[arg-type]
    assert (removal.missing, removal.is_applied, current(database)) == (100, True, 0)
    assert apply_removals(database, source_id, report.crawl_id, loaded.contract) == ()  # type: ignore[arg-type]
    assert broken_invariants(database) == {}


def broken(asked: Asked) -> Answer:
    """What a page says instead of its content, by its number."""
    return [
        Answer(status=500),
        Answer(status=403),
        Answer(status=200, body=""),
        Answer(status=302, headers={"Location": "/"}),
        Answer(status=302, headers={"Location": "http://127.0.0.9:1/"}),
        Answer(resets=True),
        Answer(status=401),
        Answer(body=b"%PDF-1.7", kind="application/pdf"),
        Answer(status=302, headers={"Location": "/p/nowhere"}),
        NOT_FOUND,
    ][int(asked.path.rpartition("/")[2])]


def test_failed_blocked_empty_and_redirected_answers_remove_nothing(database: Database) -> None:
    """Guard: `records` of a completed page is None unless the page was read; only a confirmed 404 empties it."""
    is_broken = False
    pages = [f"/p/{n}" for n in range(10)]

    def answer(asked: Asked) -> Answer:
        if asked.path == "/p/nowhere":
            return NOT_FOUND
        if asked.path == "/":
            return page("start", *pages)
        return broken(asked) if is_broken else page(asked.path)

    with Site(answer) as site:
        loaded = contract(
            site, records=[{**TITLED, "guard": {"max_drop": 1.0}}], fetch={"tries": 1}, accept={"min_text_chars": 1}
        )
        assert crawl(database, loaded).records == 10
        is_broken = True
        report = crawl(database, loaded, force=True)
        assert (report.records, report.records_missing, report.records_gone) == (10, 0, 0)
        found = states(database)
        assert [found[path] for path in pages] == [
            "quarantined tries_exhausted",
            "rejected http_status",
            "rejected content_contract",
            "rejected redirected",
            "rejected redirect_out",
            "quarantined tries_exhausted",
            "rejected http_status",
            "rejected content_type",
            "rejected redirected",
            "rejected not_found",
        ]
        report = crawl(database, loaded, force=True)
        assert (report.records, report.records_gone) == (9, 1)  # the 404 alone, confirmed
        is_broken = False
        database_now = crawl(database, loaded, force=True)
    assert (database_now.records, database_now.records_gone) == (10, 0)  # it is back, though its content is the old one
    assert broken_invariants(database) == {}


@pytest.mark.parametrize("status", [404, 410])
def test_second_look_at_a_missing_page_is_a_later_crawl_s(database: Database, status: int) -> None:
    """Guard: the cutoff in `claim`; a window of a second makes the page due again within the crawl that missed it."""

    def answer(asked: Asked) -> Answer:
        if asked.path == "/":
            return page("start", "/missing", *(f"/p/{n}" for n in range(60)))
        return Answer(status=status) if asked.path == "/missing" else Answer(body=page("x").body, delay=0.05)

    with Site(answer) as site:
        loaded = contract(site, freshness={"window": "1s", "min": "0s"}, politeness={"slots": 1})
        crawl(database, loaded)
        assert site.paths().count("/missing") == 1
        assert states(database)["/missing"] == "rejected not_found"
        is_due = "SELECT 1 FROM urls WHERE url LIKE '%/missing' AND due_at <= clock_timestamp()"
        wait_until(lambda: rows(database, is_due) != [], within=5)
        crawl(database, loaded)
        assert site.paths().count("/missing") == 2
        assert states(database)["/missing"] == "rejected gone"
        (row,) = rows(
            database, "SELECT extract(epoch FROM due_at - last_fetched_at) AS wait FROM urls WHERE reason = 'gone'"
        )
    assert 3.5 <= row.wait <= 4.5


def test_transient_failure_between_two_404s_does_not_make_the_first_forgotten(database: Database) -> None:
    """Guard: `outcome_reason`; the reason of the queue, a timeout's, would take the place of the first 404."""
    answer = page("a")
    with Site(lambda asked: answer if asked.path == "/a" else page("start", "/a")) as site:
        loaded = contract(site, fetch={"tries": 4})
        crawl(database, loaded)
        answer = NOT_FOUND
        crawl(database, loaded, force=True)
        assert states(database)["/a"] == "rejected not_found"
        answer = Answer(status=425)
        running = start(database, loaded, force=True)
        wait_until(lambda: states(database)["/a"] == "queued transient_status", within=30)
        answer = NOT_FOUND
        running.finish()
        assert states(database)["/a"] == "rejected gone"


def test_limit_that_ends_a_retry_restores_what_the_last_answer_said(database: Database) -> None:
    """Guard: `cancel_queued` restores the outcome's reason, not the queue's."""
    answer = NOT_FOUND
    with Site(lambda asked: answer if asked.path == "/a" else page("start", "/a")) as site:
        crawl(database, contract(site))
        answer = Answer(status=425)
        running = start(database, contract(site), force=True)
        wait_until(lambda: states(database)["/a"] == "queued transient_status", within=30)
        running.stop.set()
        running.join()
        sources.cancel_queued(database, running.opened.source_id, "deadline")
    assert states(database)["/a"] == "rejected not_found"

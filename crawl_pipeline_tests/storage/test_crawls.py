"""Crawls and sources in bulk: who holds a crawl, its workers' counts, and administrative changes of 20,000 URLs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.domain.pages import CrawlId
from crawl_pipeline.storage import crawls, robots, sources
from crawl_pipeline.storage.crawls import Holder
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests.storage.invariants import broken_invariants
from crawl_pipeline_tests.storage.world import (
    FAR,
    HOLDER,
    World,
    claim,
    claimed_urls,
    finish_all,
    finished,
)

A = "http://a/"
MANY = 20_000
OTHER = Holder(run_id="run-2", machine="test", pid=2, pid_started=0.0)


def one(world: World, work: Callable[[sa.Connection], Any]) -> Any:
    with world.database.connection() as connection:
        return work(connection)


# Who holds a crawl


def test_source_has_one_open_crawl_or_re_extraction(world: World) -> None:
    source = world.source()
    crawl_id = world.crawl(source)
    second: dict[str, Any] = {
        "crawl_id": CrawlId(uuid4()),
        "source_id": source,
        "contract_version": "1",
        "max_duration": timedelta(hours=1),
        "max_pages": 1,
        "options": {},
        "holder": OTHER,
    }
    assert not one(world, lambda c: crawls.insert(c, kind="re_extraction", **second))
    assert one(world, lambda c: crawls.find_open(c, source)).crawl_id == crawl_id
    one(world, lambda c: crawls.close(c, crawl_id, "finished"))
    assert one(world, lambda c: crawls.find_open(c, source)) is None
    assert one(world, lambda c: crawls.insert(c, kind="re_extraction", **second))


def test_crawl_is_closed_once_with_its_workers_counts(world: World) -> None:
    source = world.source()
    crawl_id = world.crawl(source)
    for number in (1, 2):
        one(world, lambda c, w=f"w{number}": crawls.start_worker(c, w, crawl_id, "test", 1))  # type: ignore[misc]
        one(world, lambda c, w=f"w{number}": crawls.beat_worker(c, w, 10, 1))  # type: ignore[misc]
    one(world, lambda c: crawls.end_worker(c, "w1", "SIGKILL", 12, 0))
    assert one(world, lambda c: crawls.requests(c, crawl_id)) == (22, 2)
    one(world, lambda c: crawls.close(c, crawl_id, "finished"))
    one(world, lambda c: crawls.close(c, crawl_id, "failed"))
    row = one(world, lambda c: crawls.find(c, crawl_id))
    assert (row.state, row.stop_reason) == ("closed", "finished")
    assert one(world, lambda c: crawls.requests(c, crawl_id)) == (22, 2)
    assert world.scalar("SELECT count(*) FROM workers") == 0


def test_dead_runs_crawl_is_taken_over_once_and_its_leases_go_back_uncounted(world: World) -> None:
    source, crawl_id, frontier = world.opened()
    world.seed(source, A)
    claim(frontier)
    one(world, lambda c: crawls.set_ending(c, crawl_id, HOLDER.run_id, "failed"))
    row = one(world, lambda c: crawls.find(c, crawl_id))
    assert one(world, lambda c: crawls.take_over(c, row, OTHER))
    assert not one(world, lambda c: crawls.take_over(c, row, HOLDER))
    assert (world.url(A).state, world.url(A).expiries) == ("queued", 0)
    taken = one(world, lambda c: crawls.find(c, crawl_id))
    assert (taken.holder, taken.ending) == (OTHER, None)
    assert not one(world, lambda c: crawls.heartbeat(c, crawl_id, HOLDER.run_id))
    assert one(world, lambda c: crawls.heartbeat(c, crawl_id, OTHER.run_id))
    assert claim(frontier) == []
    assert one(world, lambda c: crawls.find_held(c, "shop", HOLDER.run_id)) is None
    assert one(world, lambda c: crawls.find_held(c, "shop", OTHER.run_id)).crawl_id == crawl_id


def test_previous_crawl_is_the_last_that_opened_before(world: World) -> None:
    source = world.source()
    ids = []
    for _ in range(3):
        ids.append(world.crawl(source))
        one(world, lambda c: crawls.close(c, ids[-1], "finished"))
    last = one(world, lambda c: crawls.find(c, ids[2]))
    assert one(world, lambda c: crawls.find_previous(c, source, last.opened_at)).crawl_id == ids[1]


def test_sources_due_are_those_with_something_to_claim_and_no_open_crawl(world: World) -> None:
    due, crawling, paused, resting, later = (world.source(f"s{n}") for n in range(5))
    for source in (due, crawling, paused, resting):
        world.seed(source, f"http://h{source}/")
    world.crawl(crawling)
    world.execute("UPDATE sources SET paused_at = now() WHERE source_id = :s", s=paused)
    world.execute("UPDATE queues SET not_before = now() + interval '1 h' WHERE source_id = :s", s=resting)
    assert crawls.sources_due(world.database) == ["s0"]
    assert one(world, lambda c: crawls.next_due(c, later)) is None
    assert one(world, lambda c: crawls.next_due(c, resting)) > world.scalar("SELECT now() + interval '59 minutes'")


def test_contract_in_force_is_replaced_and_its_versions_are_remembered(world: World) -> None:
    first = world.source(slots=1)
    assert world.source(slots=5) == first
    assert world.rows("SELECT slots FROM sources") == [(5,)]
    assert world.scalar("SELECT count(*) FROM contracts") == 1


def test_folded_counters_count_the_same(world: World) -> None:
    source, crawl_id, frontier = world.opened()
    world.seed(source, *(f"{A}{n}" for n in range(5)))
    finish_all(frontier, claim(frontier, want=2))
    before = one(world, lambda c: crawls.counts(c, source)), one(world, lambda c: crawls.counts(c, source, crawl_id))
    crawls.fold_counters(world.database)
    assert world.scalar("SELECT count(*) FROM counter_deltas") == 0
    after = one(world, lambda c: crawls.counts(c, source)), one(world, lambda c: crawls.counts(c, source, crawl_id))
    assert after == before
    assert broken_invariants(world.database) == {}


# Robots rows


def test_robots_is_fetched_by_one_worker_at_a_time_and_kept_while_fresh(world: World) -> None:
    database, origin = world.database, "http://a"
    assert robots.ask(database, origin).may_fetch
    assert not robots.ask(database, origin).may_fetch
    robots.hand_back(database, origin)
    assert robots.ask(database, origin).may_fetch
    robots.store(database, origin, state="rules", status=200, body=b"one", detail=None, fresh_for=timedelta(hours=1))
    row = robots.ask(database, origin)
    assert (row.state, row.body, row.is_fresh, row.may_fetch) == ("rules", b"one", True, False)
    robots.store(database, origin, state="unavailable", status=500, body=None, detail="x", fresh_for=timedelta(0))
    row = robots.ask(database, origin)
    assert (row.state, row.body, row.failures, row.may_fetch) == ("unavailable", b"one", 1, True)


def test_robots_history_has_a_row_per_change_and_says_until_when_it_held(world: World) -> None:
    """Guard: the comparison in `_GOES_ON`."""
    database, origin = world.database, "http://a"
    robots.ask(database, origin)

    def store(state: str, body: bytes | None, hours: int) -> bool:
        kept = {"status": 200 if body else 404, "detail": None, "fresh_for": timedelta(hours=hours)}
        return robots.store(database, origin, state=state, body=body, **kept)  # type: ignore[arg-type]

    changes = [
        store("rules", b"one", 1),
        store("rules", b"one", 2),
        store("unavailable", None, 0),
        store("rules", b"one", 3),
        store("allow_all", None, 1),
        store("allow_all", None, 4),
        store("rules", b"", 1),
        store("rules", b"one", 5),
    ]
    assert changes == [True, False, False, False, True, False, True, True]
    history = world.rows("SELECT state, body, status FROM robots_history ORDER BY fetched_at")
    assert [(row.state, row.body and bytes(row.body), row.status) for row in history] == [
        ("rules", b"one", 200),
        ("allow_all", None, 404),
        ("rules", b"", 404),
        ("rules", b"one", 200),
    ]
    held = world.rows(
        "SELECT extract(epoch FROM valid_until - now()) / 3600 AS h FROM robots_history ORDER BY fetched_at"
    )
    assert [round(row.h) for row in held] == [3, 4, 1, 5]


def test_changed_and_expired_robots_are_to_be_looked_at_where_they_denied_something(world: World) -> None:
    source, _, _ = world.opened()
    hosts = ["changed", "expired", "fresh", "allowed", "other"]
    world.seed(source, *(f"http://{host}/{n}" for host in hosts for n in range(2)), "https://changed/1")
    since = world.scalar("SELECT clock_timestamp()")
    for host in hosts:
        robots.ask(world.database, f"http://{host}")
        robots.store(
            world.database, f"http://{host}", state="rules", status=200, body=b"x", detail=None, fresh_for=timedelta(1)
        )
    world.execute("UPDATE robots_history SET fetched_at = fetched_at - interval '1 h' WHERE origin <> 'http://changed'")
    world.execute("UPDATE robots SET expires_at = 'epoch' WHERE origin IN ('http://expired', 'http://other')")
    world.execute("UPDATE urls SET state = 'cancelled', reason = 'robots', due_at = NULL WHERE url !~ 'allowed|other'")
    found = one(world, lambda c: robots.origins_to_look_at(c, source, since))
    assert sorted(found) == [("http://changed", True), ("http://expired", False)]
    assert sources.reopen_denied(world.database, "http://changed", source) == 2  # not those of https://changed
    assert sources.reopen_denied(world.database, "http://expired", source, only_one=True) == 1
    assert world.scalar("SELECT count(*) FROM urls WHERE state = 'cancelled'") == 4
    assert broken_invariants(world.database) == {}


# 20,000 URLs in bounded batches, killed midway and repeated


class Killed(Exception):
    pass


class KilledAfter:
    """The database of a process that dies after some transactions."""

    def __init__(self, database: Database, transactions: int) -> None:
        self._database = database
        self._left = transactions

    def retry(self, work: Callable[[sa.Connection], Any]) -> Any:
        if self._left == 0:
            raise Killed
        self._left -= 1
        return self._database.retry(work)


@pytest.fixture
def many(world: World) -> int:
    """A source of 20,000 queued URLs at 7 hosts, in a crawl."""
    source = world.source()
    world.crawl(source)
    assert world.seed(source, *(f"http://h{n % 7}/{n}" for n in range(MANY))) == MANY
    return source


def repeat_after_kill(world: World, work: Callable[[Any], int | None]) -> int:
    """Run it in a process that dies after two batches, see that all is well, run it again; how many it moved then."""
    with pytest.raises(Killed):
        work(KilledAfter(world.database, 2))
    assert broken_invariants(world.database) == {}
    moved = work(world.database)
    assert broken_invariants(world.database) == {}
    return moved or 0


def test_cancel_and_reopen_move_every_url_once_whatever_kills_them(world: World, many: int) -> None:
    frontier = world.frontier(many, world.scalar("SELECT crawl_id FROM crawls"))
    visited = claim(frontier, want=70, batch=10)
    due = world.scalar("SELECT now() + interval '1 h'")
    for number, lease in enumerate(visited):
        if number % 2:
            finish_all(frontier, [lease])
        else:  # visited, and to be tried again: a limit leaves it its outcome
            finish_all(frontier, [lease], due_at=world.scalar("SELECT opened_at FROM crawls"))
    again = [lease for lease in claim(frontier, want=2000, batch=10) if lease.urls[0].outcome is UrlState.ACCEPTED]
    for lease in again:
        finish_all(frontier, [lease], state=UrlState.QUEUED, reason="timeout", tries=1, due_at=due)
    frontier.release([row.lease_token for row in world.rows("SELECT lease_token FROM leases")])
    retried = len(claimed_urls(again))
    accepted = len(claimed_urls(visited)) - retried
    assert world.states(many) == {"accepted": accepted, "queued": MANY - accepted}
    held = claim(frontier, want=1)
    moved = repeat_after_kill(world, lambda database: sources.cancel_queued(database, many, "deadline"))
    fresh = MANY - accepted - retried
    assert moved == fresh + retried - 1 - 10_000
    assert world.states(many) == {"active": 1, "accepted": accepted + retried, "cancelled": fresh - 1}
    assert world.scalar("SELECT count(*) FROM urls WHERE due_at = :d", d=due) == retried
    frontier.release([lease.token for lease in held])
    assert sources.reopen_cancelled(world.database, many, ["max_pages"]) == 0
    moved = repeat_after_kill(
        world, lambda database: sources.reopen_cancelled(database, many, ["deadline", "max_pages"])
    )
    assert moved == fresh - 1 - 10_000
    assert world.states(many) == {"accepted": accepted + retried, "queued": fresh}
    assert len(claimed_urls(claim(frontier, want=100, batch=100))) == 100


def test_forced_crawl_makes_every_visited_page_due_but_those_checked_since(world: World, many: int) -> None:
    opened: datetime = world.scalar("SELECT clock_timestamp()")
    world.execute(
        "UPDATE urls SET state = 'accepted', outcome = 'accepted', due_at = :f,"
        " last_fetched_at = now() - interval '1 h'",
        f=FAR,
    )
    world.execute("UPDATE queues SET lane = 1, next_due_at = :f", f=FAR)
    world.execute("UPDATE urls SET last_fetched_at = clock_timestamp() WHERE url LIKE '%00'")
    world.execute("UPDATE urls SET state = 'quarantined', due_at = NULL WHERE url LIKE '%01'")
    crawls.fold_counters(world.database)
    repeat_after_kill(world, lambda database: sources.make_all_due(database, many, opened))
    due = dict(world.rows("SELECT right(url, 2), count(*) FROM urls WHERE due_at = :d GROUP BY 1", d=opened))
    later = dict(world.rows("SELECT right(url, 2), count(*) FROM urls WHERE due_at > :d GROUP BY 1", d=opened))
    assert set(later) == {"00"}
    assert {"00", "01"}.isdisjoint(due)
    assert sum(due.values()) + later["00"] + world.states(many)["quarantined"] == MANY


def test_release_of_quarantine_is_by_reason_and_url_and_gives_a_clean_slate(world: World, many: int) -> None:
    world.execute(
        "UPDATE urls SET state = 'quarantined', reason = 'poison', due_at = NULL, tries = 3, expiries = 5"
        " WHERE url NOT LIKE 'http://h0/%'"
    )
    world.execute("UPDATE urls SET reason = 'timeout' WHERE url LIKE 'http://h1/%'")
    world.execute("UPDATE queues SET next_due_at = 'infinity' WHERE next_due_at < 'infinity'")
    world.execute("UPDATE queues q SET next_due_at = queue_next_due(q.source_id, q.host_id, q.lane)")
    asleep = world.states(many)["quarantined"]
    assert sources.release_quarantined(world.database, many, "timeout", "http://h2/%") == 0
    by_url = sources.release_quarantined(world.database, many, "poison", "http://h2/%")
    assert by_url == world.scalar("SELECT count(*) FROM urls WHERE url LIKE 'http://h2/%'")
    moved = repeat_after_kill(world, lambda database: sources.release_quarantined(database, many, None, None))
    assert moved == asleep - by_url - 10_000
    assert world.states(many) == {"queued": MANY}
    assert world.rows("SELECT max(tries), max(expiries), count(reason) FROM urls") == [(0, 0, 0)]


def test_discovery_repeated_after_a_kill_finds_only_what_is_missing(world: World) -> None:
    source = world.source()
    urls = [f"http://h{n % 7}/{n}" for n in range(6000)]
    assert world.seed(source, *urls[:5000]) == 5000
    assert world.seed(source, *urls) == 1000
    assert world.states(source) == {"queued": 6000}
    assert broken_invariants(world.database) == {}


def test_limit_that_ended_a_crawl_leaves_leased_urls_to_their_workers(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, f"{A}1", f"{A}2")
    lease = claim(frontier, want=1)[0]
    assert sources.cancel_queued(world.database, source, "max_pages") == 1
    assert frontier.complete([finished(lease, lease.urls[0])]).lost == frozenset()
    assert world.states(source) == {"accepted": 1, "cancelled": 1}
    assert frontier.standing().status == "finished"

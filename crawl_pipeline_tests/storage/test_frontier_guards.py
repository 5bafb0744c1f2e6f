"""Each guard of the frontier's functions, removed once from a copy in the test's own database: what it guards breaks.

Every test plays one scene twice: with the guard, where all invariants hold, and without it, where one is seen broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.domain.pages import CrawlId, Lease
from crawl_pipeline.storage import crawls
from crawl_pipeline.storage.frontier import Frontier
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.storage.invariants import broken_invariants
from crawl_pipeline_tests.storage.world import (
    HOLDER,
    InThread,
    World,
    claim,
    finish_all,
    finished,
    links,
    page_url,
    version,
)

A = "http://a/"
guard = pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "removed"])

CLAIM, COMPLETE, SETTLE, LEASES = "30_claim.sql", "50_complete.sql", "10_settle.sql", "20_leases.sql"
HOST_LOCK = "SELECT * INTO h FROM hosts WHERE host_id = c.host_id FOR NO KEY UPDATE SKIP LOCKED;"
SLOW_HOST_LOCK = HOST_LOCK.replace("FOR NO KEY", "AND pg_sleep(0.4) IS NOT NULL FOR NO KEY")
QUEUE_LOCK = "AND q.lane = c.lane FOR NO KEY UPDATE SKIP LOCKED;"


@contextmanager
def held_open(world: World, statement: str) -> Iterator[list[Any]]:
    """A statement whose transaction stays open for the block, then commits; gives its rows."""
    with world.database.connection() as connection:
        yield list(connection.execute(sa.text(statement)).all())


def claim_statement(crawl_id: object, worker: str, want: int = 4, share: int = 1) -> str:
    return (
        f"SELECT * FROM claim('{crawl_id}', '{HOLDER.run_id}', '{worker}', {want}, {want}, {share}, "
        "interval '60 s', true)"
    )


def wait_for_backend(world: World, condition: str) -> None:
    """Wait until another session of this database is where the condition says."""
    query = (
        f"SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND {condition}"
    )
    wait_until(lambda: world.rows(query), within=20)


def two_sources_at_one_host(world: World) -> list[tuple[CrawlId, Frontier]]:
    """Two sources at a host of three slots, one of which is taken, so that neither claim writes to the host's row."""
    opened = []
    for name in ("one", "two"):
        source, crawl_id, frontier = world.opened(name, slots=3)
        world.seed(source, *(f"{A}{name}{n}" for n in range(20)))
        opened.append((crawl_id, frontier))
    assert len(claim(opened[0][1], want=2, share=1)) == 1
    world.wake_hosts()
    return opened


@guard
def test_host_lock_keeps_two_claims_from_taking_one_slot(world: World, is_kept: bool) -> None:
    """`FROM hosts … FOR NO KEY UPDATE SKIP LOCKED` in claim."""
    if not is_kept:
        world.patch(CLAIM, (HOST_LOCK, HOST_LOCK.replace(" FOR NO KEY UPDATE SKIP LOCKED", "")))
    (first_crawl, _), (_, second) = two_sources_at_one_host(world)
    with held_open(world, claim_statement(first_crawl, "w1")) as rows:
        assert rows
        taken = claim(second, want=4, share=1)
    assert bool(taken) is not is_kept
    assert ("slots_are_leased_once" not in broken_invariants(world.database)) is is_kept


@guard
def test_leases_are_read_in_a_new_statement_after_the_lock(world: World, is_kept: bool) -> None:
    """The second SELECT of step 2 in claim. In the locking statement the snapshot is older than the lock."""
    in_one = SLOW_HOST_LOCK.replace(
        "SELECT * INTO h FROM hosts",
        "SELECT hosts AS h, (SELECT coalesce(array_agg(s.n), '{}')"
        " FROM leases l CROSS JOIN LATERAL unnest(l.slot_nos) AS s(n) WHERE l.host_id = c.host_id) AS used"
        " INTO b FROM hosts",
    )
    world.patch(
        CLAIM,
        (HOST_LOCK, SLOW_HOST_LOCK) if is_kept else (HOST_LOCK, f"{in_one} h := b.h;"),
        ("    -- 3. the host's", "    -- 3. the host's" if is_kept else "    v_used := b.used;\n    -- 3. the host's"),
    )
    (first_crawl, _), (_, second) = two_sources_at_one_host(world)
    with held_open(world, claim_statement(first_crawl, "w1")) as rows:
        assert rows
        other = InThread(lambda: claim(second, want=4, share=1))
        wait_for_backend(world, "wait_event = 'PgSleep'")
    assert len(other.result()) == 1
    assert ("slots_are_leased_once" not in broken_invariants(world.database)) is is_kept


@guard
def test_token_fence_of_complete_keeps_a_stale_worker_from_storing_again(world: World, is_kept: bool) -> None:
    """`u.lease_token = p.tok` in steps 2 and 6 of complete, and the join with leases."""
    if not is_kept:
        world.patch(
            COMPLETE,
            (
                "AND u.url_key = p.k AND u.lease_token = p.tok\n    JOIN leases l ON l.lease_token = p.tok;",
                "AND u.url_key = p.k;",
            ),
            ("AND u.url_key = p.k AND u.lease_token = p.tok\n    RETURNING", "AND u.url_key = p.k\n    RETURNING"),
        )
    source, crawl_id, stale = world.opened()
    world.seed(source, A)
    old = claim(stale)[0]
    world.expire(old)
    quick = world.frontier(source, crawl_id, "w2")
    finish_all(quick, claim(quick), version=version("quick"))
    completion = stale.complete([finished(old, old.urls[0], version=version("stale"))])
    assert (completion.lost == {0}) is is_kept
    stored = world.rows("SELECT markdown FROM page_versions ORDER BY version_no")
    assert stored == ([("quick",)] if is_kept else [("quick",), ("stale",)])


def retried_under_another_lease(world: World) -> tuple[Lease, Lease]:
    """A lease of two URLs, of which one was completed and is now held by a younger lease of another worker."""
    source, crawl_id, frontier = world.opened(slots=2)
    world.seed(source, f"{A}1", f"{A}2")
    old = claim(frontier, want=2, share=1)[0]
    frontier.complete(
        [finished(old, old.urls[0], UrlState.QUEUED, reason="timeout", tries=1, due_at=world.scalar("SELECT now()"))]
    )
    new = claim(world.frontier(source, crawl_id, "w2"))[0]
    assert [url.key for url in new.urls] == [old.urls[0].key]
    return old, new


@guard
@pytest.mark.parametrize("way", ["release", "requeue_expired"])
def test_token_fence_of_an_ending_lease_leaves_urls_of_younger_leases_alone(
    world: World, is_kept: bool, way: str
) -> None:
    """`u.lease_token = b.lease_token` in end_leases."""
    if not is_kept:
        world.patch(LEASES, (" AND u.lease_token = b.lease_token", ""))
    old, new = retried_under_another_lease(world)
    if way == "release":
        world.rows("SELECT release(ARRAY[CAST(:t AS uuid)])", t=old.token)
    else:
        world.expire(old)
        crawls.requeue_expired(world.database)
    assert (world.scalar("SELECT lease_token FROM urls WHERE url_key = :k", k=new.urls[0].key) == new.token) is is_kept
    assert ("leases_remain_with_their_urls" not in broken_invariants(world.database)) is is_kept


@guard
def test_token_fence_of_charge_leaves_urls_of_younger_leases_alone(world: World, is_kept: bool) -> None:
    """`x.lease_token = p_token` in charge."""
    if not is_kept:
        world.patch(LEASES, (" AND x.lease_token = p_token", ""))
    old, new = retried_under_another_lease(world)
    with world.database.connection() as connection:
        state = crawls.charge(connection, old.token, new.urls[0].key, is_stalled=True)
    assert state == (None if is_kept else "quarantined")
    assert ("leases_remain_with_their_urls" not in broken_invariants(world.database)) is is_kept


@guard
def test_slot_phases_keep_the_least_delay_between_slots(world: World, is_kept: bool) -> None:
    """`h.min_delay * k` in claim: slot k's place on the host's grid."""
    if not is_kept:
        world.patch(CLAIM, ("h.grid_anchor + h.min_delay * k +", "h.grid_anchor +"), (" - h.min_delay * k)", ")"))
    source, crawl_id, _ = world.opened(slots=3, min_delay=0.1)
    world.seed(source, *(f"{A}{n}" for n in range(30)))
    leases = [lease for n in range(3) for lease in claim(world.frontier(source, crawl_id, f"w{n}"), batch=4, share=1)]
    assert len(leases) == 3
    starts = sorted(first + n * lease.period for lease in leases for first in lease.first_starts for n in range(5))
    closest = min(later - earlier for earlier, later in pairwise(starts))
    assert (closest >= timedelta(seconds=0.099)) is is_kept


@guard
def test_settle_wakes_a_queue_that_sleeps_for_good(world: World, is_kept: bool) -> None:
    """`next_due_at = least(…)` in settle."""
    if not is_kept:
        world.patch(SETTLE, ("least(q.next_due_at, excluded.next_due_at)", "q.next_due_at"))
    source, _, frontier = world.opened()
    world.seed(source, f"{A}1")
    lease = claim(frontier)[0]
    frontier.complete([finished(lease, lease.urls[0], links=links(f"{A}2"))])
    assert (frontier.standing().status != "finished") is is_kept
    assert ("due_hints_are_never_later_than_the_truth" not in broken_invariants(world.database)) is is_kept


@guard
def test_queue_lock_of_claim_keeps_a_commit_from_being_overwritten(world: World, is_kept: bool) -> None:
    """`FROM queues … FOR NO KEY UPDATE SKIP LOCKED` in claim: what it writes back must know the commit before it."""
    if not is_kept:
        world.patch(CLAIM, (QUEUE_LOCK, "AND q.lane = c.lane;"))
    source, _, frontier = world.opened(slots=4)
    world.seed(source, f"{A}1")
    statement = (
        f"SELECT discover({source}, ARRAY['{page_url(A).key}'::uuid], '{{a}}', '{{{A}}}', '{{0}}', ARRAY[NULL::uuid])"
    )
    with held_open(world, statement):
        other = InThread(lambda: claim(frontier))
        if is_kept:
            assert other.result() == []
        else:
            wait_for_backend(world, "wait_event_type = 'Lock'")
    other.result()
    assert ("due_hints_are_never_later_than_the_truth" not in broken_invariants(world.database)) is is_kept


@guard
def test_settle_waits_for_a_claim_even_where_the_hint_says_due(world: World, is_kept: bool) -> None:
    """`ON CONFLICT DO UPDATE … WHERE` in settle locks the row even where it changes nothing."""
    if not is_kept:
        world.patch(
            SETTLE,
            (
                "AS w(s, h, l, d) WHERE d IS NOT NULL\n",
                "AS w(s, h, l, d) WHERE d IS NOT NULL AND NOT EXISTS (SELECT 1 FROM queues z WHERE z.source_id = s"
                " AND z.host_id = h AND z.lane = l AND z.next_due_at <= d)\n",
            ),
        )
    source, crawl_id, _ = world.opened()
    world.seed(source, f"{A}1")
    with held_open(world, claim_statement(crawl_id, "w1")) as rows:
        assert len(rows) == 1
        other = InThread(lambda: world.seed(source, f"{A}2"))
        if is_kept:
            wait_for_backend(world, "wait_event_type = 'Lock'")
        else:
            assert other.result() == 1
    assert other.result() == 1
    assert ("due_hints_are_never_later_than_the_truth" not in broken_invariants(world.database)) is is_kept


def meet(world: World, works: Sequence[Callable[[], Any]]) -> int:
    """Run works side by side, each write of a URL slowed down so that they meet; how many deadlocks ended one."""
    world.execute("""
        CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END $$
    """)
    world.execute("CREATE TRIGGER slowly BEFORE INSERT OR UPDATE ON urls FOR EACH ROW EXECUTE FUNCTION slowly()")
    deadlocks = 0
    for thread in [InThread(work) for work in works]:
        try:
            thread.result(30)
        except (psycopg.errors.DeadlockDetected, sa.exc.OperationalError) as error:
            if "deadlock detected" not in str(error):
                raise
            deadlocks += 1
    return deadlocks


def commit_once(world: World, lease: Lease, *urls: str) -> Callable[[], Any]:
    """complete for a lease's one page with links, not tried again by `Database.retry`."""
    frontier = world.frontier(lease.source_id, world.scalar("SELECT crawl_id FROM crawls"))

    class Once:
        def retry(self, work: Callable[[sa.Connection], Any], *, stop: object = None) -> Any:
            with world.database.engine.begin() as connection:
                return work(connection)

    frontier._database = Once()  # type: ignore[assignment]  # `retry` would hide the deadlock
    return lambda: frontier.complete([finished(lease, lease.urls[0], links=links(*urls))])


@guard
def test_ordered_link_insert_keeps_commits_from_a_deadlock(world: World, is_kept: bool) -> None:
    """`ORDER BY k` of the links in step 5 of complete. Without it here: the order in which the page has them."""
    if not is_kept:
        world.patch(
            COMPLETE,
            (" ORDER BY k)", " ORDER BY array_position(l_key, k))"),
            (" ORDER BY x.k\n          ON CONFLICT", " ORDER BY x.o\n          ON CONFLICT"),
        )
    source, _, frontier = world.opened()
    world.seed(source, "http://one/", "http://two/")
    first, second = claim(frontier)
    world.seed(source, A)  # a host that is new to both would be waited for, once
    found = [f"{A}{n}" for n in range(4)]
    deadlocks = meet(world, [commit_once(world, first, *found), commit_once(world, second, *found[::-1])])
    assert (deadlocks == 0) is is_kept


@guard
def test_own_pages_are_updated_after_the_links(world: World, is_kept: bool) -> None:
    """Step 6 of complete stands after step 5: ON CONFLICT DO NOTHING waits for whoever is updating the row.

    Two commits whose pages link to each other. The anti-join hides this but for pages that are found, claimed and
    finished while a commit is between its two statements; here it is left out of both scenes.
    """
    changes = [(" AND NOT EXISTS (SELECT 1 FROM urls u WHERE u.source_id = p_source AND u.url_key = l.k)", "")]
    block = (
        None if is_kept else (r"  -- 6\. the pages themselves.*?(?=  WITH l AS \(UPDATE leases l)", "  -- 5. links:")
    )
    world.patch(COMPLETE, *changes, move=block)
    source, _, frontier = world.opened()
    world.seed(source, "http://one/", "http://two/")
    first, second = claim(frontier)
    works = [commit_once(world, first, second.urls[0].url), commit_once(world, second, first.urls[0].url)]
    assert (meet(world, works) == 0) is is_kept


@guard
def test_rest_is_looked_at_when_the_first_starts_are_laid(world: World, is_kept: bool) -> None:
    """`v_start := greatest(t, h.blocked_until)` in claim, which looks a second ahead."""
    if not is_kept:
        world.patch(CLAIM, ("v_start := greatest(t, h.blocked_until);", "v_start := t;"))
    source, _, frontier = world.opened()
    world.seed(source, A)
    until = world.scalar("SELECT clock_timestamp() + interval '900 ms'")
    world.block_host(world.scalar("SELECT host_id FROM hosts"), until, "throttled")
    starts = [start for lease in claim(frontier) for start in lease.first_starts]
    if not starts:  # a slow machine: the rest was over
        pytest.fail("claim came too late to look ahead")
    assert (min(starts) >= until) is is_kept


@guard
def test_lock_near_the_limit_keeps_two_claims_within_max_pages(world: World, is_kept: bool) -> None:
    """`pg_try_advisory_xact_lock` in claim: what another is just taking in hand is not to be seen yet."""
    if not is_kept:
        world.patch(CLAIM, ("IF NOT pg_try_advisory_xact_lock(7261002, cr.source_id) THEN RETURN; END IF;", ""))
    source = world.source()
    crawl_id = world.crawl(source, max_pages=1)
    world.seed(source, "http://one/", "http://two/")
    second = world.frontier(source, crawl_id, "w2")
    with held_open(world, claim_statement(crawl_id, "w1", want=1)) as rows:
        assert len(rows) == 1
        claim(second)
    assert (world.scalar("SELECT sum(remaining) FROM leases") == 1) is is_kept

"""What may be claimed when: due times, cutoff, limits of the crawl, suspects; and what gives a lease back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.storage import crawls
from crawl_pipeline_tests.storage.invariants import broken_invariants
from crawl_pipeline_tests.storage.world import (
    FAR,
    InThread,
    World,
    claim,
    claimed_urls,
    finish_all,
    finished,
    page_url,
    version,
)

A, B, C = "http://a/", "http://b/", "http://c/"


# Claims


def test_claim_takes_what_is_due_the_longest_due_first(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, *(f"{A}{n}" for n in range(10)))
    for n in range(10):
        world.execute(
            "UPDATE urls SET due_at = now() - make_interval(mins => :m) WHERE url = :u", m=(n * 7) % 10, u=f"{A}{n}"
        )
    taken = claimed_urls(claim(frontier, want=4))
    assert taken == [f"{A}{n}" for n in (7, 4, 1, 8)]
    assert world.states(source) == {"active": 4, "queued": 6}


def test_claim_spans_hosts_with_one_lease_each(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, *(f"{host}{n}" for host in (A, B, C) for n in range(3)))
    leases = claim(frontier)
    assert sorted(lease.authority for lease in leases) == ["a", "b", "c"]
    assert [len(lease.urls) for lease in leases] == [3, 3, 3]
    assert claim(frontier) == []
    assert broken_invariants(world.database) == {}


def test_claimed_url_brings_what_is_known_of_its_page(world: World) -> None:
    source, crawl_id, frontier = world.opened()
    world.seed(source, A)
    lease = claim(frontier)[0]
    stored = version("hello")
    frontier.complete(
        [
            finished(
                lease,
                lease.urls[0],
                version=stored,
                has_validators=True,
                etag='"1"',
                last_modified="yesterday",
                due_at=world.scalar("SELECT now() - interval '1 h'"),
            )
        ]
    )
    world.execute("UPDATE crawls SET opened_at = now() WHERE crawl_id = :c", c=crawl_id)
    claimed = claim(frontier)[0].urls[0]
    assert (claimed.etag, claimed.last_modified, claimed.outcome) == ('"1"', "yesterday", UrlState.ACCEPTED)
    assert claimed.version is not None
    assert claimed.version.content_hash == stored.content_hash
    assert claimed.version.body_hash == stored.body_hash


def test_url_that_is_not_due_is_not_claimed(world: World) -> None:
    source, crawl_id, frontier = world.opened()
    world.seed(source, A)
    lease = claim(frontier)[0]
    later = world.scalar("SELECT now() + interval '1 h'")
    frontier.complete([finished(lease, lease.urls[0], UrlState.QUEUED, reason="timeout", tries=1, due_at=later)])
    assert claim(frontier) == []
    standing = frontier.standing()
    assert (standing.status, standing.next_at) == ("waiting", later)
    world.execute("UPDATE crawls SET opened_at = now() + interval '2 h' WHERE crawl_id = :c", c=crawl_id)
    assert frontier.standing().status == "waiting"


def test_revisit_that_falls_due_after_the_cutoff_belongs_to_the_next_crawl(world: World) -> None:
    source, crawl_id, frontier = world.opened()
    world.seed(source, A, B)
    leases = claim(frontier)
    cutoff = world.scalar("SELECT opened_at FROM crawls WHERE crawl_id = :c", c=crawl_id)
    for lease in leases:
        early = lease.urls[0].url == A
        frontier.complete([finished(lease, lease.urls[0], due_at=cutoff + timedelta(microseconds=0 if early else 1))])
    assert claimed_urls(claim(frontier)) == [A]
    assert claim(frontier) == []


def test_crawl_is_finished_when_nothing_is_queued_active_or_due_by_the_cutoff(world: World) -> None:
    source, _, frontier = world.opened()
    assert frontier.standing().status == "finished"
    world.seed(source, A)
    assert frontier.standing().status == "claimable"
    lease = claim(frontier)[0]
    assert frontier.standing().status == "busy"
    frontier.complete([finished(lease, lease.urls[0], due_at=world.scalar("SELECT now() + interval '1 minute'"))])
    assert frontier.standing().status == "finished"


def test_closed_crawl_other_run_or_passed_deadline_claims_nothing(world: World) -> None:
    source, crawl_id, frontier = world.opened()
    world.seed(source, A)
    world.execute("UPDATE crawls SET run_id = 'run-2'")
    assert claim(frontier) == []
    world.execute("UPDATE crawls SET run_id = 'run-1', deadline_at = clock_timestamp()")
    assert claim(frontier) == []
    world.execute("UPDATE crawls SET deadline_at = clock_timestamp() + interval '1 h'")
    assert claimed_urls(claim(frontier)) == [A]
    frontier.release([world.scalar("SELECT lease_token FROM leases")])
    with world.database.connection() as connection:
        crawls.close(connection, crawl_id, "finished")
    assert claim(frontier) == []


def test_four_claimers_at_once_never_overshoot_max_pages(world: World) -> None:
    """Without the advisory lock near the limit, four claimers each take what is left. In hand counts as done."""
    source = world.source(slots=64)
    crawl_id = world.crawl(source, max_pages=50)
    world.seed(source, *(f"http://h{n % 10}/{n}" for n in range(400)))

    def work(number: int) -> int:
        frontier = world.frontier(source, crawl_id, f"w{number}")
        done = 0
        for _ in range(40):
            leases = claim(frontier, want=8, batch=4, share=4)
            for lease in leases:
                if len(lease.urls) > 1:  # one of them is no page after all, so that the limit moves on
                    frontier.complete([finished(lease, lease.urls[0], UrlState.REJECTED)])
                rest = lease.urls[1:] or lease.urls
                frontier.complete([finished(lease, url) for url in rest])
                done += len(rest)
        return done

    threads = [InThread(lambda number=number: work(number)) for number in range(4)]  # type: ignore[misc]
    assert sum(thread.result(60) for thread in threads) == 50
    assert claim(world.frontier(source, crawl_id, "w9")) == []
    assert world.states(source)["accepted"] == 50
    assert broken_invariants(world.database) == {}


def test_pages_in_hand_count_towards_max_pages_whatever_each_claim_wants(world: World) -> None:
    source = world.source(slots=64)
    crawl_id = world.crawl(source, max_pages=150)
    world.seed(source, *(f"http://h{n}/" for n in range(300)))
    frontier = world.frontier(source, crawl_id)
    taken = sum(len(claimed_urls(claim(frontier, want=1, is_idle=False))) for _ in range(200))
    assert taken == 150


# Suspects: URLs that two or more workers died with, nobody saw of what


def test_suspect_is_claimed_alone_and_only_by_a_worker_that_holds_nothing(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, f"{A}suspect", f"{A}1", f"{A}2", B)
    world.execute("UPDATE urls SET expiries = 2, due_at = now() - interval '1 h' WHERE url LIKE '%suspect'")
    others = claim(frontier, is_idle=False)
    assert sorted(claimed_urls(others)) == [f"{A}1", f"{A}2", B]
    assert claim(frontier, is_idle=False) == []
    finish_all(frontier, others)
    assert claimed_urls(claim(frontier, is_idle=True)) == [f"{A}suspect"]


def test_idle_worker_with_a_suspect_gets_nothing_else_until_it_is_done(world: World) -> None:
    """A crash is a worker's: with innocents in hand beside the suspect they would pay for it."""
    source, _, frontier = world.opened()
    world.seed(source, A, B, C)
    world.execute("UPDATE urls SET expiries = 3, due_at = now() - interval '1 h' WHERE url = :u", u=A)
    world.execute("UPDATE queues SET next_due_at = now() - interval '1 h' WHERE host_id = 1")
    suspect = claim(frontier, is_idle=True)
    assert len(claimed_urls(suspect)) == 1
    assert claimed_urls(suspect) == [A]
    assert claim(frontier, is_idle=False) == []
    other = world.frontier(source, world.scalar("SELECT crawl_id FROM crawls"), "w2")
    assert sorted(claimed_urls(claim(other, is_idle=True))) == [B, C]
    finish_all(frontier, suspect)
    assert world.url(A).expiries == 0


def test_suspects_do_not_keep_others_of_their_host_waiting(world: World) -> None:
    source, _, frontier = world.opened(slots=1)
    world.seed(source, *(f"{A}{n}" for n in range(6)))
    world.execute("UPDATE urls SET expiries = 4, due_at = now() - interval '1 h' WHERE url < :u", u=f"{A}3")
    leases = claim(frontier, is_idle=False)
    assert sorted(claimed_urls(leases)) == [f"{A}{n}" for n in (3, 4, 5)]


def test_batch_is_quartered_per_expiry_and_of_one_number_of_expiries(world: World) -> None:
    source, crawl_id, frontier = world.opened(slots=64)
    world.seed(source, *(f"{A}{n}" for n in range(64)))
    lease = claim(frontier)[0]
    assert len(lease.urls) == 64
    world.expire(lease)
    with world.database.connection() as connection:
        connection.exec_driver_sql("SELECT requeue_expired()")
    world.seed(source, f"{A}new")
    world.wake_hosts()
    assert [len(lease.urls) for lease in claim(frontier)] == [16]
    assert [len(lease.urls) for lease in claim(world.frontier(source, crawl_id, "w2"))] == [16]


def test_fifth_expiry_quarantines_and_a_checked_answer_forgives(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, A)
    for expiries in range(1, 5):
        world.expire(claim(frontier)[0])
        assert crawls.requeue_expired(world.database) == (1, 1, 0)
        assert (world.url(A).state, world.url(A).expiries) == ("queued", expiries)
        world.wake_hosts()
    world.expire(claim(frontier)[0])
    assert crawls.requeue_expired(world.database) == (1, 0, 1)
    row = world.url(A)
    assert (row.state, row.reason, row.due_at, row.tries) == ("quarantined", "poison", None, 0)
    assert frontier.standing().status == "finished"
    assert broken_invariants(world.database) == {}


# Tables of many hosts and both lanes


def test_revisits_and_new_urls_of_one_host_share_its_slots(world: World) -> None:
    source, crawl_id, frontier = world.opened(slots=2)
    world.seed(source, f"{A}old")
    finish_all(frontier, claim(frontier), due_at=world.scalar("SELECT now() - interval '1 h'"))
    world.execute("UPDATE crawls SET opened_at = clock_timestamp()")
    world.seed(source, f"{A}new")
    world.wake_hosts()
    leases = claim(frontier, share=1)
    assert sorted(claimed_urls(leases)) == [f"{A}new", f"{A}old"]
    assert world.scalar("SELECT count(DISTINCT slot_nos) FROM leases") == 2
    assert {row.lane for row in world.rows("SELECT lane FROM leases")} == {0, 1}
    assert claim(world.frontier(source, crawl_id, "w2")) == []
    assert broken_invariants(world.database) == {}


def test_claim_does_not_wait_for_a_host_or_queue_that_another_holds(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, A, B, C)
    hosts: dict[str, Any] = dict(world.rows("SELECT authority, host_id FROM hosts"))
    with world.database.connection() as holder:
        holder.exec_driver_sql("SELECT 1 FROM hosts WHERE host_id = %s FOR UPDATE", (hosts["a"],))
        holder.exec_driver_sql("SELECT 1 FROM queues WHERE host_id = %s FOR UPDATE", (hosts["b"],))
        assert claimed_urls(claim(frontier)) == [C]
    assert sorted(claimed_urls(claim(frontier))) == [A, B]


def test_due_in_the_far_future_is_never_claimed_but_known(world: World) -> None:
    source, _, frontier = world.opened()
    world.seed(source, A)
    finish_all(frontier, claim(frontier))
    with world.database.connection() as connection:
        assert crawls.next_due(connection, source) == FAR
    assert page_url(A).key == world.url(A).url_key

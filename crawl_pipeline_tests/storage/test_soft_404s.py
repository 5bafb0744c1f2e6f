"""Who asks an origin for a made-up page, and how long its answer is good for."""

from __future__ import annotations

from datetime import timedelta

from crawl_pipeline.storage import soft_404s
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests.storage.world import World

ORIGIN = "http://a"
LIKENESS = b"x" * 32


def store(database: Database, source: int, *, fresh_for: timedelta) -> None:
    url = f"{ORIGIN}/no-such-page"
    soft_404s.store(database, source, ORIGIN, "rules-1", url=url, status=200, likeness=LIKENESS, fresh_for=fresh_for)


def test_one_worker_asks_for_all_until_it_hands_back_or_answers(database: Database) -> None:
    """Guard: `asking_until` in `ask`."""
    source = World(database).source()

    def ask(rules: str = "rules-1") -> soft_404s.MadeUpAnswer:
        return soft_404s.ask(database, source, ORIGIN, rules)

    assert [ask().may_ask, ask().may_ask] == [True, False]
    soft_404s.hand_back(database, source, ORIGIN)
    assert [ask().may_ask, ask().may_ask] == [True, False]
    store(database, source, fresh_for=timedelta(hours=1))
    known = ask()
    assert (known.is_fresh, known.may_ask, known.likeness) == (True, False, LIKENESS)


def test_answer_that_other_rules_read_or_that_is_old_is_asked_for_again(database: Database) -> None:
    source = World(database).source()
    soft_404s.ask(database, source, ORIGIN, "rules-1")
    for fresh_for, rules in ((timedelta(hours=1), "rules-2"), (timedelta(0), "rules-1")):
        store(database, source, fresh_for=fresh_for)
        again = soft_404s.ask(database, source, ORIGIN, rules)
        assert (again.is_fresh, again.may_ask) == (False, True)

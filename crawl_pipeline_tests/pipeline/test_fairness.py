"""No host and no source holds up another: judged by the order of arrivals at the hosts, not by speed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.crawling import contract, start
from crawl_pipeline_tests.site import Answer, Asked, Site, page

QUICK = {"slots": 2, "min_delay": "200ms", "robots": "ignore"}


def test_host_with_a_thousand_pages_holds_up_no_other(database: Database) -> None:
    """Guard: a claim goes over all ready hosts (`p_batch` in claim); the big host has a start a delay, no more."""

    def answer(asked: Asked) -> Answer:
        if asked.path == "/":
            count = 1000 if asked.host == site.authorities[0] else 9
            return page("start", *(f"/page/{n}" for n in range(count)))
        return page(asked.path)

    with Site(answer, hosts=10) as site:
        big = site.authorities[0]
        running = start(database, contract(site, politeness=QUICK))
        wait_until(lambda: sum(asked.host != big for asked in site.pages_asked) == 90, within=120)
        asked = list(site.pages_asked)
        running.stop.set()
        running.join()
    small = [number for number, one in enumerate(asked) if one.host != big]
    before = sum(one.host == big for one in asked[: small[-1]])
    assert 1 <= before <= 20, Counter(one.host for one in asked)  # as many as each of the others, and some


def test_host_that_never_answers_costs_its_slots_and_not_the_worker(database: Database) -> None:
    """Guard: a lease takes of a host its slots at most, also with many pages due and room in flight."""

    def answer(asked: Asked) -> Answer:
        if asked.host == site.authorities[0]:
            return Answer(hangs=True)
        return page("start", *(f"/page/{n}" for n in range(19))) if asked.path == "/" else page(asked.path)

    with Site(answer, hosts=4) as site:
        silent = site.authorities[0]
        loaded = contract(
            site,
            [f"/{n}" for n in range(20)],
            politeness={"slots": 2, "robots": "ignore"},
            limits={"max_in_flight": 4},
            fetch={"timeout": "2m"},
        )
        seeds = (*loaded.contract.seeds, *(f"http://{host}/" for host in site.authorities[1:]))
        loaded = replace(loaded, contract=loaded.contract.model_copy(update={"seeds": seeds}))
        running = start(database, loaded)
        wait_until(lambda: sum(asked.host != silent for asked in site.pages_asked) == 60, within=120)
        running.stop.set()
        running.join()
    assert 1 <= sum(asked.host == silent for asked in site.pages_asked) <= 2


def test_two_sources_at_one_host_have_their_fair_part_of_it(database: Database) -> None:
    """Guard: `yield_until` and `host_turn`: without them whoever ended a lease claims the next."""

    def answer(asked: Asked) -> Answer:
        if asked.path in ("/one", "/two"):
            return page(asked.path, *(f"{asked.path}/{n}" for n in range(600)))
        return page(asked.path)

    with Site(answer) as site:
        running = [
            start(
                database,
                contract(
                    site,
                    [f"/{name}"],
                    source=name,
                    politeness={"slots": 1, "min_delay": "30ms", "robots": "ignore"},
                    scope={"include": [f"/{name}/**", f"/{name}"]},
                ),
            )
            for name in ("one", "two")
        ]
        wait_until(lambda: min(_shares(site)) >= 64, within=120)
        for one in running:
            one.stop.set()
        for one in running:
            one.join()
    asked = [one.path.split("/")[1] for one in site.pages_asked]
    both = Counter(asked[max(asked.index("one"), asked.index("two")) :])
    assert min(both.values()) >= 0.3 * both.total(), both


def _shares(site: Site) -> tuple[int, int]:
    paths = site.paths()
    return sum(path.startswith("/one") for path in paths), sum(path.startswith("/two") for path in paths)

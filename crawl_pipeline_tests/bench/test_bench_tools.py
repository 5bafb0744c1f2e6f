"""The benchmark's own tools: a yardstick that is wrong is worse than none."""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from decimal import Decimal

import psutil
import pytest
import yaml
from bs4 import BeautifulSoup

from crawl_pipeline.demo.shop import Shop
from crawl_pipeline.domain.contract import parse_contract
from crawl_pipeline.domain.contract_warnings import warnings
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests.bench import kills, peers, politeness
from crawl_pipeline_tests.bench.load import origin_ceiling
from crawl_pipeline_tests.bench.measure import CommandFailed, measurement, run_measured
from crawl_pipeline_tests.bench.origin import Origin, OriginStats
from crawl_pipeline_tests.bench.ours import link_site_contract
from crawl_pipeline_tests.bench.sites import LinkSite
from crawl_pipeline_tests.bench.stages import measure_stages
from crawl_pipeline_tests.bench.tables import kill_table, politeness_table, speed_table, stage_table
from crawl_pipeline_tests.site import Asked, Served

SMALL = LinkSite(pages=120)


def test_every_page_is_reached_and_has_as_many_different_links_as_it_says() -> None:
    for number in (0, 1, 7, 119):
        soup = BeautifulSoup(SMALL.html(number), "html.parser")
        hrefs = [str(a["href"]) for a in soup.find_all("a")]
        assert len(hrefs) == len(set(hrefs)) == 80
        assert set(hrefs) <= {SMALL.path(target) for target in range(120)}
        assert SMALL.path((number + 1) % 120) in hrefs


def test_pages_have_their_size_and_show_their_record() -> None:
    for number in (0, 55, 119):
        html = SMALL.html(number)
        assert 23_000 < len(html) <= 24_000
        soup = BeautifulSoup(html, "html.parser")
        shown = {name: soup.select(selector)[0].get_text() for name, selector in
                 (("sku", ".sku"), ("name", "h1"), ("price", ".price"))}  # fmt: skip
        assert shown | {"price": Decimal(shown["price"])} == SMALL.record(number)


def test_a_site_smaller_than_its_links_still_has_pages() -> None:
    assert set(LinkSite(pages=3).targets(2)) == {0, 1, 2}


@pytest.mark.parametrize("processes", [1, 2])
def test_the_origin_serves_the_site_and_counts_page_requests_only(processes: int) -> None:
    with Origin(SMALL, processes) as origin:
        assert origin.stats() == OriginStats(requests=0, first_at=0.0, last_at=0.0)
        for path, status in (("/p/7", 200), ("/robots.txt", 200), ("/p/120", 404), ("/p/8", 200)):
            connection = http.client.HTTPConnection("127.0.0.1", origin.port, timeout=10)
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
            connection.close()
            assert response.status == status
            if path == "/p/7":
                assert body == SMALL.html(7)
        seen = origin.stats()
    assert seen.requests == 2
    assert 0 < seen.first_at <= seen.last_at


def test_the_origin_answers_pipelined_heads_that_arrive_in_pieces() -> None:
    asked = b"".join(b"GET /p/%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(40))
    asked += b"GET /p/40 HTTP/1.1\r\nConnection: close\r\n\r\n"
    with Origin(SMALL) as origin:
        connection = http.client.HTTPConnection("127.0.0.1", origin.port, timeout=10)
        connection.connect()
        connection.sock.sendall(asked[:50])
        connection.sock.sendall(asked[50:])
        received = b""
        while data := connection.sock.recv(1_000_000):
            received += data
        connection.close()
    assert re.findall(rb'class="sku">(LS-\d+)', received) == [b"LS-%05d" % number for number in range(41)]


def test_the_ceiling_is_what_the_origin_itself_counted() -> None:
    ceiling = origin_ceiling(SMALL, connections=4, seconds=0.2)
    assert ceiling.requests_per_second > 0
    assert ceiling.cpu_per_request >= 0


def test_the_cost_of_a_command_covers_its_children() -> None:
    burn = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    command = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"]
    cost = run_measured(command)
    assert cost.cpu >= 0.4
    assert cost.elapsed >= 0.4
    assert cost.peak_bytes > 1_000_000
    assert 0 < cost.cpu_between(0, time.time()) <= cost.cpu + 0.05
    assert cost.cpu_between(0, 1) == 0
    assert (cost.database_cpu, cost.database_peak_bytes) == (0.0, 0)


def test_a_command_that_fails_is_no_measurement() -> None:
    with pytest.raises(CommandFailed, match="ended with exit code 3:\nno luck"):
        run_measured([sys.executable, "-c", "import sys; print('no luck', file=sys.stderr); sys.exit(3)"])


def test_a_kill_reaches_every_process_below_the_command() -> None:
    child = "import time; time.sleep(60)"
    command = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1]]); "
        "print(p.pid, flush=True); p.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", command, child], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        below = psutil.Process(int(process.stdout.readline()))
        kills.kill_tree(process.pid)
        assert process.wait() == -signal.SIGKILL
        psutil.wait_procs([below], timeout=10)
        assert not below.is_running() or below.status() == psutil.STATUS_ZOMBIE


def test_the_naive_crawler_stores_every_item_of_the_link_site_once_if_left_alone() -> None:
    with Origin(SMALL) as origin:
        run = peers.naive(origin)
    assert (run.items, run.pages, run.requests) == (120, 120, 120)
    assert "| naive " in speed_table([run])


def test_an_interpreter_without_scrapy_is_noticed() -> None:
    assert not peers.has_scrapy("/bin/false")


def test_speed_is_taken_from_the_origin_and_not_from_the_crawler() -> None:
    cost = run_measured([sys.executable, "-c", "print(1)"])
    run = measurement("liar", {}, 500, cost, OriginStats(requests=100, first_at=10.0, last_at=12.0))
    assert (run.pages, run.pages_per_second) == (100, 50.0)


def test_kills_are_spread_over_the_shop() -> None:
    points = kills.kill_points(10, seed=1)
    assert points == sorted(set(points))
    assert len(points) == 10
    assert (26, 498) <= (points[0], points[-1]) <= (498, 498)
    assert points != kills.kill_points(10, seed=2)
    assert kills.kill_points(0, seed=1) == []


@pytest.mark.slow
def test_the_naive_crawler_repeats_itself_and_stores_duplicates_when_it_is_killed() -> None:
    with Shop.start(latency=0.003) as shop, kills.naive_contestant(shop, checkpoint_every=100) as contestant:
        result = kills.killed(contestant, shop, [262])
        stored = Counter(sku for sku, _, _ in contestant.stored())
    assert (result.kills, result.pages, result.missing, result.wrong) == (1, 525, 0, 0)
    assert result.repeated > 0
    assert result.duplicates == result.rows - 500 == sum(stored.values()) - len(stored) > 0
    assert "| naive " in kill_table([(1, result)])


def test_the_contract_for_the_link_site_names_the_origin() -> None:
    text = link_site_contract("http://127.0.0.1:4711", pages=2000, slots=32)
    contract = parse_contract(yaml.safe_load(text), file="link_site.yaml")
    assert contract.seeds[0] == f"http://127.0.0.1:4711{SMALL.path(0)}"
    assert contract.politeness.slots == 32
    assert warnings(contract) == []


def test_stages_are_measured_in_the_worker_and_in_the_database() -> None:
    """Each has a cost, and the table adds them up."""
    stages = measure_stages(pages=64)
    names = {stage.name for stage in stages}
    assert {"fetch", "parse", "extract and hash", "admit links", "Markdown", "claim", "commit"} <= names
    assert {stage.where for stage in stages} == {"worker", "database"}
    assert sum(stage.microseconds for stage in stages if stage.where == "worker") > 0
    total = sum(stage.microseconds for stage in stages)
    last_row = stage_table(stages).split("\n\n")[0].strip().splitlines()[-1]
    assert last_row.replace("|", "").split() == ["all", f"{total:.0f}"]


def test_hosts_budgets_hold_while_workers_are_killed(database: Database) -> None:
    """The short version of `make bench`'s politeness. Guards: `is_late`, `starts_at` and `wait_until` of a slot, the
    slots' phases in `claim`, `throttle_host`."""
    verdicts = politeness.stress(database, seconds=10, hosts=6, kill_every=4)
    print(politeness_table(verdicts))
    assert {one.host: one.violations for one in verdicts if one.violations} == {}
    assert all(one.requests > 3 for one in verdicts)


def _asked(*times: float) -> list[Asked]:
    return [Asked(at=at, host="a", path="/", headers={}) for at in times]


@pytest.mark.parametrize(
    ("times", "lasts", "statuses", "fault"),
    [
        ([0, 1, 2, 3], 0.5, {}, None),
        ([0, 1, 1.5, 3], 0.1, {}, "gap 0.500 s"),
        ([0, 1, 2, 3], 2.5, {}, "3 open"),
        ([0, 0.7, 1.4, 2.1, 2.8, 3.5, 4.2, 4.9], 0.1, {}, "8 in 5 s"),
        ([0, 1, 6], 0.1, {1: 429}, None),
        ([0, 1, 4], 0.1, {1: 429}, "1 in a rest, the last after 2.9 s"),
    ],
)
def test_politeness_judge_sees_what_a_host_would_complain_of(
    times: list[float], lasts: float, statuses: dict[int, int], fault: str | None
) -> None:
    asked = _asked(*times)
    served = [
        Served(asked=one, status=statuses.get(n, 200), until=one.at + lasts, was_cut=False)
        for n, one in enumerate(asked)
    ]
    found = politeness.judged("a", politeness.Budget(slots=2, delay=1.0), asked, served, [])
    assert found.violations == ((fault,) if fault else ())


def test_request_of_a_killed_worker_is_open_until_its_death() -> None:
    first, second = _asked(0.0, 2.0)
    served = [
        Served(asked=first, status=200, until=3.0, was_cut=True),
        Served(asked=second, status=200, until=2.5, was_cut=False),
    ]
    for killed_at, most in (([1.0], 1), ([], 2)):
        found = politeness.judged("a", politeness.Budget(slots=1, delay=1.0), [first, second], served, killed_at)
        assert found.most_open == most

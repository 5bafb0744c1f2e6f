"""The benchmark's runner: `python -m crawl_pipeline_tests.bench [PART]`, without a word all parts.

Every figure is the median of the rounds; within a round the crawlers take turns, so that a slow minute of the
machine is everybody's. Exits 1 when a crawler could not be measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from crawl_pipeline.demo.shop import Shop
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests.bench import kills, peers, politeness
from crawl_pipeline_tests.bench.frontier import server as database_server
from crawl_pipeline_tests.bench.load import origin_ceiling
from crawl_pipeline_tests.bench.measure import CommandFailed, Measurement
from crawl_pipeline_tests.bench.origin import Origin
from crawl_pipeline_tests.bench.ours import ours
from crawl_pipeline_tests.bench.sites import LinkSite
from crawl_pipeline_tests.bench.stages import measure_stages
from crawl_pipeline_tests.bench.tables import kill_table, politeness_table, speed_table, stage_table

Crawler = Callable[[Origin], Measurement]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m crawl_pipeline_tests.bench", description="Run the benchmark.")
    parser.add_argument(
        "part", nargs="?", choices=["speed", "peers", "stages", "kills", "politeness", "all"], default="all"
    )
    parser.add_argument("--pages", type=int, default=2000, help="of the link-heavy site (default: %(default)s)")
    parser.add_argument("--slots", type=int, default=32, help="requests at once (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is shown (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=10, help="per crawler and seed (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="of the kills (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="of politeness (default: %(default)s)")
    parser.add_argument("--only", help="crawlers whose name has this in it, such as naive or scrapy")
    parser.add_argument("--scrapy-python", default=sys.executable, help="an interpreter that has Scrapy")
    options = parser.parse_args(arguments)
    failures: list[str] = []
    if options.part in ("speed", "peers", "all"):
        failures += run_speed(options, with_peers=options.part != "speed")
    if options.part in ("stages", "all"):
        print(stage_table(measure_stages()), flush=True)
    if options.part in ("kills", "all"):
        failures += run_kills(options)
    if options.part in ("politeness", "all"):
        failures += run_politeness(options)
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


def run_speed(options: argparse.Namespace, *, with_peers: bool) -> list[str]:
    """Print the speed table; returns what could not be measured."""
    site = LinkSite(pages=options.pages)
    ceiling = origin_ceiling(site)
    print(
        f"{site.pages} pages of {site.page_bytes:,} bytes, {site.links} links each; the origin alone answers "
        f"{ceiling.requests_per_second:,.0f} requests/s, {ceiling.cpu_per_request * 1e6:.0f} µs of its CPU each",
        flush=True,
    )
    crawlers, failures = _crawlers(options, with_peers)
    rounds: dict[str, list[Measurement]] = {}
    for _ in range(options.rounds):
        for name, crawler in tuple(crawlers.items()):
            try:
                with Origin(site) as origin:
                    rounds.setdefault(name, []).append(crawler(origin))
            except CommandFailed as failure:
                failures.append(f"{name}: {failure}")
                del crawlers[name]
    medians = [sorted(runs, key=lambda run: run.crawling)[(len(runs) - 1) // 2] for runs in rounds.values() if runs]
    print(speed_table(medians))
    return failures + [
        f"{run.name} stored {run.items} of {site.pages} items" for run in medians if run.items != site.pages
    ]


def _crawlers(options: argparse.Namespace, with_peers: bool) -> tuple[dict[str, Crawler], list[str]]:
    crawlers: dict[str, Crawler] = {"crawl_pipeline": lambda origin: ours(origin, options.pages, options.slots)}
    failures = []
    if with_peers:
        python, slots = options.scrapy_python, options.slots
        if peers.has_scrapy(python):
            crawlers["scrapy"] = lambda origin: peers.scrapy(origin, slots, python=python, remembers_links=False)
            crawlers["scrapy, links remembered"] = lambda origin: peers.scrapy(
                origin, slots, python=python, remembers_links=True
            )
        else:
            failures.append(f"scrapy: {python} has none; install it with: uv sync --group bench")
        crawlers["naive"] = peers.naive
    return {name: run for name, run in crawlers.items() if (options.only or "") in name}, failures


def run_kills(options: argparse.Namespace) -> list[str]:
    """Print the table of kills; returns what could not be measured."""
    results, failures = [], []
    contestants = {"crawl_pipeline": kills.our_contestant, "naive": kills.naive_contestant}
    for seed in range(1, options.seeds + 1):
        points = kills.kill_points(options.kills, seed)
        print(f"seed {seed}: killed at {', '.join(map(str, points))} of {kills.PAGES} pages", flush=True)
        for name, contestant in contestants.items():
            if (options.only or "") not in name:
                continue
            try:
                with Shop.start() as shop, contestant(shop) as crawler:
                    results.append((seed, kills.killed(crawler, shop, points)))
            except (kills.CrawlerStuck, CommandFailed) as failure:
                failures.append(f"{name}, seed {seed}: {failure}")
    print(kill_table(results))
    return failures


def run_politeness(options: argparse.Namespace) -> list[str]:
    """Print what each host saw against its budget; returns the violations."""
    with database_server() as server:
        database = Database.connect(server.url("crawl"))
        try:
            verdicts = politeness.stress(database, seconds=options.seconds)
        finally:
            database.close()
    print(politeness_table(verdicts))
    print(politeness.ABOUT)
    return [f"{one.host} was asked beyond its budget: {fault}" for one in verdicts for fault in one.violations]


if __name__ == "__main__":
    sys.exit(main())

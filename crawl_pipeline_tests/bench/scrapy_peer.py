"""A Scrapy spider over the link-heavy site, as its documentation would have it; prints its result as JSON.

Runs in a process of its own, with the Scrapy of whatever interpreter runs it (dependency group `bench`).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import scrapy  # type: ignore[import-not-found,unused-ignore]  # an optional tool
from scrapy.crawler import CrawlerProcess  # type: ignore[import-not-found,unused-ignore]  # an optional tool
from scrapy.http import Response  # type: ignore[import-not-found,unused-ignore]  # an optional tool


class LinkSiteSpider(scrapy.Spider):  # type: ignore[misc,unused-ignore]  # an optional tool
    """Follows every link of the site; yields one item a page.

    With `remembers_links` it is the spider of someone who has profiled it.
    """

    name = "link_site"

    def __init__(self, seed: str, remembers_links: bool, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.seed = seed
        self.known_links: set[str] | None = {seed} if remembers_links else None
        self.allowed_domains = [str(urlsplit(seed).hostname)]

    async def start(self) -> AsyncIterator[scrapy.Request]:
        yield scrapy.Request(self.seed)

    def parse(self, response: Response, **arguments: Any) -> Iterator[Any]:
        yield {
            "url": response.url,
            "sku": response.css(".sku::text").get(),
            "name": response.css("h1::text").get(),
            "price": response.css(".price::text").get(),
        }
        for href in response.css("a::attr(href)").getall():
            url = response.urljoin(href)
            if self.known_links is not None:
                if url in self.known_links:
                    continue
                self.known_links.add(url)
            yield scrapy.Request(url)  # the duplicates filter decides


def settings(slots: int, items: Path) -> dict[str, Any]:
    """Fast and fair: no delay, no throttling, no logs, and what we do too (robots.txt, duplicates filtered)."""
    return {
        "CONCURRENT_REQUESTS": slots,
        "CONCURRENT_REQUESTS_PER_DOMAIN": slots,
        "DOWNLOAD_DELAY": 0,
        "AUTOTHROTTLE_ENABLED": False,
        "ROBOTSTXT_OBEY": True,
        "COOKIES_ENABLED": False,
        "TELNETCONSOLE_ENABLED": False,
        "LOG_ENABLED": False,
        "FEEDS": {str(items): {"format": "jsonlines", "overwrite": True}},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Crawl the link-heavy site with Scrapy.")
    parser.add_argument("seed")
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--items", type=Path, required=True, help="JSON-lines file to write")
    parser.add_argument(
        "--remember-links",
        action="store_true",
        help="do not even ask the duplicates filter about a link seen before: most of Scrapy's time on such a site",
    )
    options = parser.parse_args(arguments)
    chosen = settings(options.slots, options.items)
    began, cpu = time.monotonic(), time.process_time()
    process = CrawlerProcess(chosen)
    crawler = process.create_crawler(LinkSiteSpider)
    process.crawl(crawler, seed=options.seed, remembers_links=options.remember_links)
    process.start()
    stats = crawler.stats.get_stats() if crawler.stats is not None else {}
    result = {
        "version": scrapy.__version__,
        "settings": {name: str(value) for name, value in chosen.items() if name != "FEEDS"},
        "items": len(options.items.read_bytes().splitlines()),
        "pages": stats.get("response_received_count", 0) - stats.get("robotstxt/response_count", 0),
        "finish_reason": stats.get("finish_reason"),
        "elapsed": time.monotonic() - began,
        "cpu": time.process_time() - cpu,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

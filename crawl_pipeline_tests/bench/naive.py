"""The crawler that one writes first: one loop, a queue in memory, a checkpoint now and then, rows appended to SQLite.

It is fair, not careless: rows are committed page by page, and the checkpoint is replaced atomically. What it lacks is
one transaction over both, and a key. Killed and started again it goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urldefrag, urljoin, urlsplit

import requests
from bs4 import BeautifulSoup

_PATHS = ("/list/", "/product/", "/p/")  # what it may fetch; the shop's robots.txt allows these


@dataclass(slots=True)
class _Progress:
    """What a checkpoint holds: what is still to be fetched, what was ever queued, and how many pages are done."""

    queue: deque[str] = field(default_factory=deque)
    seen: set[str] = field(default_factory=set)
    pages: int = 0

    def add(self, url: str) -> None:
        if url not in self.seen:
            self.seen.add(url)
            self.queue.append(url)


def crawl(seed: str, folder: Path, checkpoint_every: int) -> int:
    """Crawl from the seed, or from the checkpoint in the folder; returns the pages done over all starts."""
    checkpoint = folder / "checkpoint.json"
    progress = _load(checkpoint)
    progress.add(seed)
    rows = sqlite3.connect(folder / "rows.sqlite", isolation_level=None)
    rows.execute("CREATE TABLE IF NOT EXISTS rows (url TEXT, sku TEXT, name TEXT, price TEXT)")
    session = requests.Session()
    session.trust_env = False
    while progress.queue:
        url = progress.queue.popleft()
        soup = BeautifulSoup(session.get(url, timeout=30).text, "html.parser")
        if soup.select_one(".sku"):
            rows.execute("INSERT INTO rows VALUES (?, ?, ?, ?)", (url, *_fields(soup)))
        for link in _links(soup, url):
            progress.add(link)
        progress.pages += 1
        if progress.pages % checkpoint_every == 0:
            _save(progress, checkpoint)
    _save(progress, checkpoint)
    rows.close()
    return progress.pages


def _fields(soup: BeautifulSoup) -> tuple[str, str, str]:
    sku, name, price = (soup.select_one(selector) for selector in (".sku", "h1", ".price"))
    texts = [found.get_text(strip=True) if found else "" for found in (sku, name, price)]
    return texts[0], texts[1], texts[2].lstrip("€ ").replace(",", "")


def _links(soup: BeautifulSoup, base: str) -> Iterator[str]:
    for anchor in soup.find_all("a", href=True):
        url = urldefrag(urljoin(base, str(anchor["href"]))).url
        parts = urlsplit(url)
        if parts.netloc == urlsplit(base).netloc and parts.path.startswith(_PATHS):
            yield url


def _load(checkpoint: Path) -> _Progress:
    if not checkpoint.exists():
        return _Progress()
    saved = json.loads(checkpoint.read_text(encoding="utf-8"))
    return _Progress(queue=deque(saved["queue"]), seen=set(saved["seen"]), pages=saved["pages"])


def _save(progress: _Progress, checkpoint: Path) -> None:
    saved = {"queue": list(progress.queue), "seen": sorted(progress.seen), "pages": progress.pages}
    beside = checkpoint.with_suffix(".new")
    beside.write_text(json.dumps(saved), encoding="utf-8")
    beside.replace(checkpoint)


def stored_rows(folder: Path) -> list[tuple[str, str, str]]:
    """Every stored row's SKU, name and price, in the order in which they were appended."""
    rows = sqlite3.connect(folder / "rows.sqlite")
    try:
        return [(sku, name, price) for sku, name, price in rows.execute("SELECT sku, name, price FROM rows")]
    finally:
        rows.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Crawl a site the naive way.")
    parser.add_argument("seed")
    parser.add_argument("--folder", type=Path, required=True, help="holds the checkpoint and the rows")
    parser.add_argument("--checkpoint-every", type=int, default=100, help="pages (default: %(default)s)")
    options = parser.parse_args(arguments)
    began, cpu = time.monotonic(), time.process_time()
    pages = crawl(options.seed, options.folder, options.checkpoint_every)
    result = {
        "pages": pages,
        "items": len(stored_rows(options.folder)),
        "elapsed": time.monotonic() - began,
        "cpu": time.process_time() - cpu,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""The demo shop's contract, for whatever address the shop is served at."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

DEMO_SOURCE = "demo_shop"
_AUTHORITY = "127.0.0.1:8800"  # as written in the file


def demo_sources_folder() -> Path:
    """The folder that holds the demo's contract, as an entry for CRAWL_SOURCES."""
    return Path(str(files("crawl_pipeline.demo") / "sources"))


def demo_contract_text(base_url: str) -> str:
    """The contract as YAML with `base_url` (`http://127.0.0.1:PORT`) as its seed and host."""
    text = (demo_sources_folder() / f"{DEMO_SOURCE}.yaml").read_text(encoding="utf-8")
    return text.replace(_AUTHORITY, urlsplit(base_url).netloc)

"""Custom extractors that misbehave, for tests."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any


def title(page: Any) -> Iterator[dict[str, object]]:
    """What a good one does."""
    yield {"url": page.url, "title": page.soup.title.string}


def kills_its_process_on_poison(page: Any) -> Iterator[dict[str, object]]:
    """Dies with /poison in hand, as a crash in a C library would."""
    if page.url.endswith("/poison"):
        os.kill(os.getpid(), signal.SIGKILL)
    yield from title(page)


def interrupts_on_poison(page: Any) -> Iterator[dict[str, object]]:
    """Raises what nobody catches, with /poison in hand."""
    if page.url.endswith("/poison"):
        raise KeyboardInterrupt
    yield from title(page)


def exits_and_leaves_a_child(page: Any) -> Iterator[dict[str, object]]:
    """Ends its process as if all were well, with /poison in hand; on another page it forks a process that stays."""
    if page.url.endswith("/poison"):
        os._exit(0)
    if page.url.endswith("/page/0") and os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    yield from title(page)


def hangs(page: Any) -> Iterator[dict[str, object]]:
    """Hangs in the way that the page's path names."""
    if page.url.endswith("/loops"):
        while True:
            pass
    if page.url.endswith("/sleeps"):
        time.sleep(3600)
    if page.url.endswith("/regex"):
        re.match(r"(a+)+$", "a" * 64 + "b")
    if page.url.endswith("/swallows"):
        while True:
            try:
                time.sleep(3600)
            except BaseException:  # what a careless extractor does
                continue
    yield from title(page)

"""Crawl traps: URLs that lead ever on without leading anywhere. No I/O.

`path_trap` judges one URL by itself; `Variants` counts, within bounds, what only many URLs together give away.
Calendars and other chains of links end at `limits.max_depth`.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from typing import Protocol

from crawl_pipeline.domain.pages import PageUrl
from crawl_pipeline.domain.urls import canonical_path

_FACETS = 4  # parameters: with fewer, a query is how forums and wikis name their pages
_MOST_REMEMBERED = 200_000  # URLs, over all paths; about 20 MB
# A session in the path: ASP.NET's own spelling, or an id after a segment that says so; and something behind it.
_SESSION = re.compile(
    r"/\(S\([a-z0-9]{24}\)\)(?=/)|(?<=/)(?:s|sid|sess|session|session-?id|phpsessid)[/=][0-9a-f]{24,64}(?=/[^/])",
    re.IGNORECASE,
)


class TrapLimits(Protocol):
    """What is read of `contract.limits`."""

    @property
    def max_repeats(self) -> int: ...
    @property
    def max_path_segments(self) -> int: ...
    @property
    def max_url_variants(self) -> int: ...


def path_trap(path: str, limits: TrapLimits) -> str | None:
    """The rule by which a path is a trap by itself; None where it is none.

    Segments of digits alone may repeat as they like: dates and positional filters do (`/11/11/11`, `/list/0/0/0/0`).
    """
    slashes = path.count("/")
    if slashes <= min(limits.max_repeats, limits.max_path_segments):
        return None
    segments = path.split("/")
    if len([segment for segment in segments if segment]) > limits.max_path_segments:
        return f"limits.max_path_segments {limits.max_path_segments}"
    if len(set(segments)) + limits.max_repeats > len(segments):  # too few are equal: nearly every path ends here
        return None
    for segment, count in Counter(segments).items():
        if count > limits.max_repeats and segment and not segment.isdecimal():
            return f"limits.max_repeats {limits.max_repeats}: /{segment[:100]} stands {count} times in the path"
    return None


class Variants:
    """Counts URLs that differ only in what may vary for ever: many-parameter queries of one path (facets), and session
    ids before the same rest.

    A count is of one worker, from its start on, and bounded: the path that was not seen for longest is forgotten
    first. A URL that was let in stays in.
    """

    def __init__(self, limits: TrapLimits, *, remember: int = _MOST_REMEMBERED) -> None:
        self._limits = limits
        self._left = remember
        self._known: OrderedDict[str, set[int]] = OrderedDict()

    def trap(self, page: PageUrl) -> str | None:
        """The rule by which a URL is one variant too many; else it is counted."""
        canonical = page.canonical
        path = canonical_path(canonical)
        if canonical.count("&") >= _FACETS - 1:
            most, shape = self._limits.max_url_variants, page.authority + path
            rule = f"limits.max_url_variants {most}: so many queries of {path[:200]} were taken"
        elif (session := _SESSION.search(canonical)) is not None:
            most, shape = self._limits.max_repeats, canonical[: session.start()] + "\n" + canonical[session.end() :]
            rule = f"limits.max_repeats {most}: the same page under so many session ids was taken"
        else:
            return None
        known = self._known.get(shape)
        if known is None:
            known = self._known[shape] = set()
        else:
            self._known.move_to_end(shape)
        if page.key.int in known:
            return None
        if len(known) >= most:
            return rule
        known.add(page.key.int)
        self._left -= 1
        while self._left < 0 and len(self._known) > 1:
            self._left += len(self._known.popitem(last=False)[1])
        return None

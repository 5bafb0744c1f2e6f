"""What a page asks of its readers: `nofollow` and `noindex`, by X-Robots-Tag headers and by meta elements.

Many directives are asked of search engines only (snippets, archives, `unavailable_after`): those are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

NOFOLLOW = "nofollow"  # follow none of its links
NOINDEX = "noindex"  # do not show the page
_NAMED = re.compile(r"\s*([A-Za-z0-9_*-]+)\s*:(.*)", re.DOTALL)
_WITH_VALUE = {"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"}
_EVERYONE = {"*", "robots"}
_SPACE_OR_COMMA = re.compile(r"[\s,]+")


def directives(text: str) -> frozenset[str]:
    """Which of the two a list of directives holds, separated by commas or white space; `none` is both."""
    words = {word for word in _SPACE_OR_COMMA.split(text.lower()) if word in (NOFOLLOW, NOINDEX, "none")}
    return frozenset({NOFOLLOW, NOINDEX}) if "none" in words else frozenset(words)


def header_directives(values: Iterable[str], token: str | None) -> frozenset[str]:
    """What X-Robots-Tag headers ask of the crawler that robots.txt knows as `token`. Never raises.

    `name: …` speaks to that crawler only, to the end of the header or the next name; what is asked of everyone and what
    is asked of one add up.
    """
    asked: frozenset[str] = frozenset()
    for value in values:
        is_for_us = True
        for part in value.split(","):
            match = _NAMED.match(part)
            if match is not None:
                name = match[1].lower()
                if name in _WITH_VALUE:
                    continue
                is_for_us = name in _EVERYONE or (token is not None and name == token.lower())
                part = match[2]
            if is_for_us:
                asked |= directives(part)
    return asked

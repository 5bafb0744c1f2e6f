"""The character encoding that a Content-Type header names.

What the bytes themselves say (byte-order mark, prescan, detection) is the parser's to decide, as `document` says.
"""

from __future__ import annotations

import re
from functools import lru_cache

import turbohtml

# One parameter; a quoted value ends before the next separator, so that `charset="utf-8"x` names nothing.
_PARAMETER = re.compile(
    r"""[;,]\s*(?P<name>[^\s;,="]+)=(?:"(?P<quoted>(?:[^"\\]|\\.)*)"(?=\s*(?:[;,]|$))|(?P<bare>[^\s;,"]*)(?=\s*(?:[;,]|$)))"""
)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


def media_type(content_type: str | None) -> str:
    """The media type of a Content-Type value, in lower case and without parameters; empty when there is none."""
    return (content_type or "").partition(";")[0].partition(",")[0].strip().lower()


@lru_cache(maxsize=1024)
def header_charset(content_type: str | None) -> str | None:
    """The label of the first usable `charset` parameter; None where there is none that the Encoding Standard knows."""
    if not content_type:
        return None
    for label in _charset_labels(content_type[:1000]):
        if is_known_label(label):
            return label
    return None


def is_known_label(label: str) -> bool:
    """Whether the WHATWG Encoding Standard knows the label (it knows neither `utf-7` nor Python's codec names)."""
    try:
        turbohtml.parse(b"", encoding=label)
    except (LookupError, ValueError):
        return False
    return True


def _charset_labels(content_type: str) -> list[str]:
    labels = []
    position = 0
    while (match := _PARAMETER.search(content_type, position)) is not None:
        # A separator inside an earlier quoted string is no separator.
        inside = next(
            (q for q in _QUOTED.finditer(content_type, position) if q.start() < match.start() < q.end()), None
        )
        if inside is not None:
            position = inside.end()
            continue
        position = match.end()
        value = match["quoted"] if match["quoted"] is not None else match["bare"]
        if match["name"].lower() == "charset" and value:
            labels.append(value)
    return labels

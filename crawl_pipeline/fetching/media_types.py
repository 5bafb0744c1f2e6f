"""The media type of an answer, by the Fetch standard's rule for one or many Content-Type values."""

from __future__ import annotations

import re
from functools import lru_cache

_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_ESSENCE = re.compile(rf"[ \t\r\n]*({_TOKEN})/({_TOKEN})[ \t\r\n]*(?:;|$)")
_ELEMENT = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')


@lru_cache(maxsize=1024)
def media_type(values: tuple[str, ...]) -> str | None:
    """The last valid type/subtype among Content-Type values and their comma-separated parts, in lower case.

    None when there is none: the header is missing, or says nothing that can be used.
    """
    found = None
    for element in _ELEMENT.findall(", ".join(values)):
        match = _ESSENCE.match(element)
        if match and match[1] + match[2] != "**":
            found = f"{match[1]}/{match[2]}".lower()
    return found

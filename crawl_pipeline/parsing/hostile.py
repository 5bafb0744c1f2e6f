"""Pages made to blow the tree up: the two constructs whose cost the HTML standard lets grow with the square.

Left-open formatting elements are opened again in every following block, and every repeated `<body>` or `<html>` tag
merges its attributes into the first. Counted before the parse; taken out where their number is absurd.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter

# Below this size even the worst page costs less than 0.3 s and 300 MB.
_SMALL_PAGE = 32_768
# Tags times the deepest run of open formatting elements: about the nodes that the parser would make.
_MOST_NODES = 1_000_000
_MOST_ROOT_TAGS = 500

_FORMATTING = rb"b(?:ig)?|code|em|font|i|nobr|s(?:mall|trike|trong)?|tt|u"
_TAGS = re.compile(rb"<(/?(?:" + _FORMATTING + rb"|body|html))[\t\n\f\r />]")
_FORMATTING_TAG = re.compile(rb"<(/?)(?:" + _FORMATTING + rb")(?=[\t\n\f\r />])", re.IGNORECASE)
_ROOT_TAG = re.compile(rb"<(?=(?:body|html)[\t\n\f\r />])", re.IGNORECASE)


def tamed(body: bytes, charset: str | None) -> tuple[bytes, str | None]:
    """The bytes to parse and the encoding to parse them with: both as given, but for a page that would explode.

    There, formatting tags become `span` and the repeated root tags comments; text, links and order stay.
    """
    if len(body) < _SMALL_PAGE:
        return body, charset
    encoding = charset
    utf16 = _utf16_variant(body, charset)
    if utf16 is not None:
        body, encoding = body.decode(utf16, "replace").encode("utf-8", "replace"), "utf-8"
    deepest, root_tags = _count(body)
    if root_tags > _MOST_ROOT_TAGS:
        first = _ROOT_TAG.search(body)
        keep = first.end() if first else 0
        body = body[:keep] + _ROOT_TAG.sub(b"<!", body[keep:])
    if deepest * body.count(b"<") > _MOST_NODES:
        body = _FORMATTING_TAG.sub(rb"<\1span", body)
    return body, encoding


def _count(body: bytes) -> tuple[int, int]:
    """The most formatting elements that may be open at once, and the number of html and body start tags."""
    open_now: Counter[bytes] = Counter()
    depth = deepest = root_tags = 0
    for name in _TAGS.findall(body.lower()):
        if name in (b"body", b"html"):
            root_tags += 1
        elif name[:1] != b"/":
            open_now[name] += 1
            depth += 1
            deepest = max(deepest, depth)
        elif open_now[name[1:]]:
            open_now[name[1:]] -= 1
            depth -= 1
    return deepest, root_tags


def _utf16_variant(body: bytes, charset: str | None) -> str | None:
    if body.startswith(codecs.BOM_UTF16_LE) or body.startswith(codecs.BOM_UTF16_BE):
        return "utf-16"
    if body.startswith(codecs.BOM_UTF8) or charset is None:
        return None
    label = charset.strip().lower()
    if "utf-16" in label or "utf16" in label or label in _UTF16_LABELS:
        return "utf-16-be" if label in ("utf-16be", "unicodefffe") else "utf-16-le"
    return None


_UTF16_LABELS = frozenset({"csunicode", "iso-10646-ucs-2", "ucs-2", "unicode", "unicodefeff", "unicodefffe"})

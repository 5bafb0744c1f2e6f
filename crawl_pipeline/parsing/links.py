"""The links of a page, as its author wrote them. Resolving and admitting them is `domain.scope`'s work."""

from __future__ import annotations

import re
from collections.abc import Iterable

from crawl_pipeline.parsing.document import Document

# What the URL standard strips from both ends: C0 controls and space.
_STRIPPED = "".join(map(chr, range(0x21)))
_OTHER_SCHEME = re.compile(r"(?!https?:)[a-z][a-z0-9+.\-]*:", re.IGNORECASE)
_ANY_LINK = "a[href], area[href], link[rel~=next i][href]"


def links(document: Document, *, follow_nofollow: bool, limit: int) -> tuple[tuple[str, ...], bool]:
    """The distinct link texts of a page in document order, at most `limit`, and whether more were left out.

    From `a`, `area` and `link rel=next`; without those marked `rel=nofollow` unless they are to be followed.
    Fragments are cut off, and links to nothing else (`#top`, `mailto:`, `javascript:`) left out. Resolve them against
    `document.base_url`.
    """
    found: dict[str, None] = {}
    # An empty reference means the page itself, unless a base element points elsewhere.
    is_self = "" if document.base_url == document.url else None
    for href in _hrefs(document, follow_nofollow):
        text = href.strip(_STRIPPED)
        if "#" in text:
            text = text[: text.index("#")].rstrip(_STRIPPED)
        if text in found or text == is_self or (":" in text and _OTHER_SCHEME.match(text)):
            continue
        if len(found) == limit:
            return tuple(found), True
        found[text] = None
    return tuple(found), False


def _hrefs(document: Document, follow_nofollow: bool) -> Iterable[str]:
    tree = document.tree
    skips_some = not follow_nofollow and any("nofollow" in str(rel).lower() for rel in _strings(tree.xpath("//a/@rel")))
    if not skips_some and not document.has_uncommon_links:
        return _strings(tree.xpath("//a/@href"))
    elements = tree.select(_ANY_LINK)
    if not follow_nofollow:
        elements = [element for element in elements if "nofollow" not in (element.attr("rel") or "").lower().split()]
    return [element.attr("href") or "" for element in elements]


def _strings(result: object) -> list[str]:
    return [item for item in result if isinstance(item, str)] if isinstance(result, list) else []

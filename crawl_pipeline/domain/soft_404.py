"""Soft 404s: whether a page says what its host says of a page that does not exist. Values in, values out.

Owns the made-up URL that a host is asked for, and what makes two answers alike.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from urllib.parse import unquote

from crawl_pipeline.domain.pages import PageUrl
from crawl_pipeline.domain.scope import Scope
from crawl_pipeline.domain.urls import Canonicalizer, canonical_path, origin_of

LEAST_CHARS = 16  # of text beside the echoed path: less is no evidence of anything
SHORT_CHARS = 2_000  # an error page is short
# What apologies say, in some languages. A word here costs a host one request and no page anything.
_APOLOGIES = (
    *("not found", "not be found", "not find", "no longer", "not exist", "doesn't exist", "sorry", "oops", "error 404"),
    *("404 error", "unavailable", "nicht gefunden", "existiert nicht", "introuvable", "n'existe", "no encontrad"),
    *("no existe", "non trovat", "non esiste", "n\u00e3o encontrad", "niet gevonden", "nie znalezion"),
    *(
        "\u043d\u0435 \u043d\u0430\u0439\u0434\u0435\u043d",
        "\u898b\u3064\u304b\u308a\u307e\u305b\u3093",
        "\u627e\u4e0d\u5230",
        "\u4e0d\u5b58\u5728",
    ),
)
_ENDING = re.compile(r"\.[A-Za-z0-9]{1,5}$")


def made_up_page(like: PageUrl, canonicalizer: Canonicalizer, scope: Scope, include: Sequence[str]) -> PageUrl | None:
    """A page that no site has, in scope, on the origin of `like`: its sibling, else what an include glob takes.

    None where nothing made up is in scope. The same for every worker and crawl, so that a site's log has one of it.
    """
    origin = origin_of(like.canonical)
    name = f"no-such-page-{hashlib.sha256(origin.encode()).hexdigest()[:12]}"
    for path in _paths(canonical_path(like.canonical), name, include):
        page = canonicalizer.page_url(origin + path)
        if isinstance(page, PageUrl) and page.authority == like.authority and scope.verdict(page).allowed:
            return page
    return None


def _paths(path: str, name: str, include: Sequence[str]) -> Iterator[str]:
    folder, _, last = path.rstrip("/").rpartition("/")
    ending = _ENDING.search(last)
    slash = "/" if path.endswith("/") and last else ""
    yield f"{folder}/{name}{ending[0] if ending else ''}{slash}"
    for glob in include:
        if "*" in glob:
            yield glob.replace("**", name, 1).replace("**/", "").replace("/**", "").replace("*", name)


def sounds_missing(title: str, body: str) -> bool:
    """Whether a page is short and apologises: reason enough to ask its host for a made-up path, and no verdict."""
    if len(title) + len(body) >= SHORT_CHARS:
        return False
    said = f"{title}\n{body}".lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return any(words in said for words in _APOLOGIES)


def likeness(title: str, body: str, url: str) -> bytes | None:
    """What a page says, less its own URL wherever it is echoed: equal for two answers that say the same.

    None where too little is said for two pages to be called alike.
    """
    text = f"{title}\n{body}"
    for echo in _echoes(url):
        if echo in text:
            text = re.sub(rf"{re.escape(echo)}(?![\w/?&=-])", "", text)
    text = " ".join(text.split())
    return hashlib.sha256(text.encode("utf-8", "replace")).digest() if len(text) >= LEAST_CHARS else None


def _echoes(url: str) -> list[str]:
    """How a page may write its own URL: whole or from the host or path on, escaped or not; the longest first."""
    whole = url.partition("://")[2]
    target = url[len(origin_of(url)) :] or "/"
    path = target.partition("?")[0]
    texts = {text for each in (url, whole, target, path) for text in (each, unquote(each))}
    texts |= {text.rstrip("/") for text in texts}
    return sorted((text for text in texts if len(text) > 1), key=len, reverse=True)

"""URL identity: text to a canonical URL, its key and the host whose budget it spends.

Parsing and resolution are the WHATWG rules (ada); the source's query policy is applied on top. Pure, never raises.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from urllib.parse import unquote_plus
from uuid import UUID

import ada_url

from crawl_pipeline.domain.globs import compile_name_globs, undo_needless_escapes
from crawl_pipeline.domain.pages import PageUrl, UrlKey

LONGEST_URL = 2_048  # characters, as serialised (what sitemaps allow)
LONGEST_TEXT = 16_384  # characters of a href before it is parsed: white space and dot segments may fall away
_HREF = re.compile(r"(https?)://([^/?#]*)(/[^?#]*)(?:\?([^#]*))?(?:#.*)?", re.DOTALL)
_PATH_PARAMETER = re.compile(r";([^/;=]+)=[^/;]*")
_SURROGATE = re.compile("[\ud800-\udfff]")


class UrlFault(StrEnum):
    """Why a text is no URL that may be requested; the value is the sentence that people read."""

    INVALID = "not a URL"
    SCHEME = "not http or https"
    CREDENTIALS = "carries credentials"
    TOO_LONG = f"longer than {LONGEST_URL} characters"


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlRefusal:
    """A text that names no page. It does not keep the text, which may hold credentials."""

    fault: UrlFault


class UrlPolicy(Protocol):
    """The contract's section `urls`."""

    @property
    def drop_query(self) -> Sequence[str]: ...
    @property
    def keep_query(self) -> Sequence[str] | None: ...
    @property
    def sort_query(self) -> bool: ...
    @property
    def trailing_slash(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainPolicy:
    """The identity of the parser alone: nothing dropped, nothing sorted."""

    drop_query: tuple[str, ...] = ()
    keep_query: tuple[str, ...] | None = None
    sort_query: bool = False
    trailing_slash: str = "keep"


def parse_href(text: str, base: str | None = None) -> str | None:
    """`text` parsed by the WHATWG URL rules, against `base` if given, and serialised; None where they fail.

    Lone surrogates become U+FFFD first, as in every API of the web platform.
    """
    if not text.isascii():
        text = _SURROGATE.sub("\ufffd", text)
    try:
        return ada_url.normalize_url(text) if base is None else ada_url.join_url(base, text)
    except ValueError:
        return None


def url_key(canonical: str) -> UrlKey:
    """The key of a canonical URL: the first 16 bytes of its SHA-256."""
    return UrlKey(UUID(bytes=hashlib.sha256(canonical.encode("ascii", "backslashreplace")).digest()[:16]))


def canonical_path(url: str) -> str:
    """The path of a serialised http(s) URL, `/` at least."""
    start = url.find("/", 8)
    if start < 0:
        return "/"
    end = url.find("?", start)
    return url[start:] if end < 0 else url[start:end]


class Canonicalizer:
    """Canonicalises URLs under one source's policy. Immutable, safe to share between threads."""

    __slots__ = ("_drop", "_keep", "_sort", "_strip")

    def __init__(self, policy: UrlPolicy) -> None:
        self._drop = compile_name_globs(policy.drop_query)
        self._keep = None if policy.keep_query is None else compile_name_globs(policy.keep_query) or re.compile(r"(?!)")
        self._sort = policy.sort_query
        self._strip = policy.trailing_slash == "strip"

    def page_url(self, text: str, base: str | None = None) -> PageUrl | UrlRefusal:
        """Identify what `text` names, resolved against `base`. Never raises, whatever the text.

        `url` keeps the author's spelling and query order without the fragment and the parameters that the policy
        drops; `canonical` also undoes needless escapes, sorts and strips as the policy says, and is idempotent.
        """
        return self._identify(text, base, keep_all=False)

    def redirect_url(self, text: str, base: str) -> PageUrl | UrlRefusal:
        """As `page_url`, but `url` keeps every parameter: the next hop is what the server named, or it may loop."""
        return self._identify(text, base, keep_all=True)

    def _identify(self, text: str, base: str | None, *, keep_all: bool) -> PageUrl | UrlRefusal:
        if len(text) > LONGEST_TEXT or (base is not None and len(base) > LONGEST_TEXT):
            return UrlRefusal(fault=UrlFault.TOO_LONG)
        href = parse_href(text, base)
        if href is None:
            return UrlRefusal(fault=UrlFault.INVALID)
        match = _HREF.fullmatch(href)
        if match is None:
            return UrlRefusal(fault=UrlFault.SCHEME)
        scheme, authority, path, query = match.groups()
        if "@" in authority:
            return UrlRefusal(fault=UrlFault.CREDENTIALS)
        origin = f"{scheme}://{authority}"
        kept = self._kept(query) if query else None
        kept_path = self._kept_path(path) if ";" in path else path
        requested, path = (query, path) if keep_all else (kept, kept_path)
        url = f"{origin}{path}?{requested}" if requested else origin + path
        if len(url) > LONGEST_URL:
            return UrlRefusal(fault=UrlFault.TOO_LONG)
        canonical = origin + self._canonical_path(kept_path) + self._canonical_query(kept)
        if canonical == url:
            url = canonical  # one string in memory, not two
        return PageUrl(key=url_key(canonical), url=url, canonical=canonical, authority=authority)

    def _kept_path(self, path: str) -> str:
        """The path without the parameters (`;jsessionid=…`) that the policy drops by name."""
        drop = self._drop
        if drop is None:
            return path
        return _PATH_PARAMETER.sub(lambda match: "" if drop.fullmatch(unquote_plus(match[1])) else match[0], path)

    def _kept(self, query: str) -> str | None:
        """The query without the parameters that the policy drops, None when none is left."""
        if self._drop is not None or self._keep is not None:
            query = "&".join(part for part in query.split("&") if self._is_kept(part))
        return query if query.strip("&") else None

    def _is_kept(self, part: str) -> bool:
        if not part:
            return True
        name = unquote_plus(part.partition("=")[0], errors="surrogateescape")
        if self._drop is not None and self._drop.fullmatch(name):
            return False
        return self._keep is None or self._keep.fullmatch(name) is not None

    def _canonical_path(self, path: str) -> str:
        path = undo_needless_escapes(path)
        return (path.rstrip("/") or "/") if self._strip else path

    def _canonical_query(self, query: str | None) -> str:
        if not query:
            return ""
        query = undo_needless_escapes(query)
        if self._sort and "&" in query:
            query = "&".join(sorted(query.split("&"), key=_name))
        return "?" + query


def _name(part: str) -> str:
    return part.partition("=")[0]


def origin_of(url: str) -> str:
    """Scheme and authority of a serialised http(s) URL (RFC 6454)."""
    end = url.find("/", 8)
    return url if end < 0 else url[:end]

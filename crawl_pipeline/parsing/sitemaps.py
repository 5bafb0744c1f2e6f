"""Sitemaps, sitemap indexes and feeds to URLs.

A tolerant scanner rather than an XML parser: it resolves no entity but XML's five and numeric ones, fetches and
includes nothing, takes documents cut off anywhere, and costs time in proportion to their length. It walks through the
bytes and decodes what it takes only: of 50 MB no second copy is made.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from crawl_pipeline.parsing.dates import parse_instant
from crawl_pipeline.parsing.text import plain

MOST_BYTES = 50 * 1024 * 1024  # after decompression, as the sitemap protocol says
MOST_URLS = 50_000
_LONGEST_URL = 4_096
_LONGEST_TEXT = 10_000
_MOST_MEMBERS = 10_000  # of a gzip stream: 50 MB in blocks of 64 kB are 800

# A tag that says something, or the start of what is to be skipped. All other tags are passed over without a stop.
_TOKEN = re.compile(
    rb"<(?:(/?)(?:([\w.\x80-\xff-]{1,50}):)?(url|sitemap|item|entry|loc|link|guid|lastmod|pubdate|updated|published|date)"
    rb"((?:[\s/][^<>]*)?)>|!--|!\[CDATA\[|\?|!)",
    re.IGNORECASE,
)
_CLOSINGS = {b"<!--": b"-->", b"<![cdata[": b"]]>", b"<?": b"?>", b"<!": b">"}
_LINE = re.compile(rb"[^\r\n]+")
_TOKENS_PER_URL = 50
_ENTITY = re.compile(r"&(?:(amp|lt|gt|quot|apos)|#(\d{1,7})|#[xX]([0-9A-Fa-f]{1,6}));")
_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_ATTRIBUTE = re.compile(r"""([\w:.-]{1,100})\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_DECLARED = re.compile(rb"""\A\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")
_ASCII = bytes(range(9, 127))
_RECORDS = frozenset({"url", "sitemap", "item", "entry"})
_TIMES = frozenset({"lastmod", "pubdate", "updated", "published", "date"})


class SitemapUrl(NamedTuple):
    """One URL as written, and when it last changed, in UTC, if the document says so."""

    loc: str
    lastmod: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SitemapContents:
    """What one document lists, in its order and each URL once. `truncated`: a limit left something out."""

    urls: tuple[SitemapUrl, ...] = ()
    sitemaps: tuple[str, ...] = ()
    truncated: bool = False


def parse_sitemap(body: bytes, *, limit: int = MOST_URLS) -> SitemapContents:
    """Read a sitemap, sitemap index, RSS, Atom or plain-text list, gzipped or not; never raises.

    At most `limit` URLs and `limit` sitemaps, and at most `MOST_BYTES` after decompression. Anything else than an
    absolute http(s) URL is left out.
    """
    body, is_cut = _inflated(body)
    body, encoding = _scannable(body)
    if not body[:1_000].lstrip(codecs.BOM_UTF8 + b" \t\r\n").startswith(b"<"):
        lines = (match[0][: 4 * _LONGEST_URL].decode(encoding, "replace") for match in _LINE.finditer(body))
        return _collected(((False, line.strip("\ufeff \t"), None) for line in lines), limit, is_cut)
    scanner = _Scanner(body, encoding, most_tokens=_TOKENS_PER_URL * (limit + 20))
    contents = _collected(scanner.records(), limit, is_cut)
    return replace(contents, truncated=contents.truncated or scanner.gave_up)


def _inflated(body: bytes) -> tuple[bytes, bool]:
    """The bytes without their gzip layer, and whether the limit cut them. A damaged stream gives what it can."""
    if body[:2] != b"\x1f\x8b":
        return body[:MOST_BYTES], len(body) > MOST_BYTES
    parts: list[bytes] = []
    left, at = MOST_BYTES, 0
    for _ in range(_MOST_MEMBERS):
        if body[at : at + 2] != b"\x1f\x8b" or left <= 0:
            return b"".join(parts), left <= 0
        found, end = _member(body, at, left)
        parts += found
        left -= sum(map(len, found))
        if end is None:
            return b"".join(parts), left <= 0
        at = end
    return b"".join(parts), True


def _member(body: bytes, at: int, left: int) -> tuple[list[bytes], int | None]:
    """What the gzip member at a place gives, at most `left` bytes, and where it ends; None: it has no end.

    Fed piece by piece: what is fed beyond a member's end is copied, which for many small members would add up.
    """
    stream, start, size = zlib.decompressobj(wbits=31), at, 1_024
    parts: list[bytes] = []
    while at < len(body) and left > 0:
        piece = body[at : at + size]
        try:
            part = stream.decompress(piece, left)
        except zlib.error:
            return [_salvaged(body[start:], left + sum(map(len, parts)))], None
        parts.append(part)
        left -= len(part)
        at += len(piece)
        if stream.eof:
            return parts, at - len(stream.unused_data)
        size = min(2 * size, 65_536)
    return parts, None


def _salvaged(body: bytes, left: int) -> bytes:
    """What a damaged gzip stream gives before the damage."""
    stream = zlib.decompressobj(wbits=31)
    parts: list[bytes] = []
    for start in range(0, len(body), 4_096):
        try:
            part = stream.decompress(body[start : start + 4_096], left)
        except zlib.error:
            break
        parts.append(part)
        left -= len(part)
        if left <= 0:
            break
    return b"".join(parts)


def _scannable(body: bytes) -> tuple[bytes, str]:
    """The document in an encoding in which ASCII bytes are ASCII characters, and that encoding."""
    for mark, name in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace").encode("utf-8", "replace"), "utf-8"
    declared = None if body.startswith(codecs.BOM_UTF8) else _DECLARED.match(body)
    if declared is None:
        return body, "utf-8"
    encoding = declared[1].decode("ascii").lower()
    try:
        if _ASCII.decode(encoding) == _ASCII.decode("ascii") and not encoding.startswith(
            ("iso-2022", "iso2022", "hz", "utf-7")
        ):
            return body, encoding
        return body.decode(encoding, "replace").encode("utf-8", "replace"), "utf-8"
    except (LookupError, ValueError):
        return body, "utf-8"


def _collected(found: Iterator[tuple[bool, str, str | None]], limit: int, is_cut: bool) -> SitemapContents:
    urls: dict[str, datetime | None] = {}
    sitemaps: dict[str, None] = {}
    for is_sitemap, loc, changed in found:
        if len(loc) > _LONGEST_URL or not loc[:8].lower().startswith(("http://", "https://")):
            continue
        known: dict[str, None] | dict[str, datetime | None] = sitemaps if is_sitemap else urls
        if loc in known:
            continue
        if len(known) >= limit:
            is_cut = True
            break
        if is_sitemap:
            sitemaps[loc] = None
        else:
            urls[loc] = None if changed is None else parse_instant(changed)
    return SitemapContents(
        urls=tuple(SitemapUrl(loc, lastmod) for loc, lastmod in urls.items()),
        sitemaps=tuple(sitemaps),
        truncated=is_cut,
    )


class _Open:
    """The record being read: a url, sitemap, item or entry, and the prefix that its own children share."""

    __slots__ = ("bare", "changed", "guid", "loc", "name", "prefix")

    def __init__(self, name: str, prefix: str, bare: str) -> None:
        self.name = name
        self.prefix = prefix
        self.bare = bare  # an index with URLs outside `loc` is not one by the book, but found
        self.loc: str | None = None
        self.guid: str | None = None
        self.changed: str | None = None

    @property
    def result(self) -> tuple[bool, str, str | None]:
        return self.name == "sitemap", self.loc or self.guid or self.bare, self.changed


class _Scanner:
    """Walks a document once. `gave_up`: it had more tags than any honest list of so many URLs."""

    def __init__(self, text: bytes, encoding: str, *, most_tokens: int) -> None:
        self._text = text
        self._encoding = encoding
        self._tokens_left = most_tokens
        self.gave_up = False

    def records(self) -> Iterator[tuple[bool, str, str | None]]:
        """(is a sitemap, URL, last change) of each record, the last one too where the document breaks off within it."""
        record: _Open | None = None
        for closes, prefix, name, attributes, start in self._tags():
            if name in _RECORDS:
                if record is not None and (not closes or name == record.name):
                    yield record.result
                    record = None
                if not closes and not attributes.endswith("/"):
                    record = _Open(name, prefix, self._content(start))
            elif record is not None and not closes:
                self._note(record, prefix, name, attributes, start)
        if record is not None:
            yield record.result

    def _tags(self) -> Iterator[tuple[bool, str, str, str, int]]:
        """(closes, prefix, local name, attributes, where it ends) of every telling tag outside comments and CDATA."""
        position = 0
        while (match := _TOKEN.search(self._text, position)) is not None:
            if self._tokens_left == 0:
                self.gave_up = True
                return
            self._tokens_left -= 1
            closes, prefix, name, attributes = match.groups()
            position = match.end()
            if name is not None:
                yield (
                    closes == b"/",
                    "" if prefix is None else self._text_of(prefix),
                    name.decode("ascii").lower(),
                    self._text_of(attributes[:_LONGEST_TEXT]) if attributes else "",
                    position,
                )
                continue
            closing = _CLOSINGS[match[0].lower()]
            end = self._text.find(closing, position)
            if end < 0:
                return
            position = end + len(closing)

    def _note(self, record: _Open, prefix: str, name: str, attributes: str, start: int) -> None:
        """Take what a child element says of its record. `image:loc` and the like are not the record's own."""
        if name in _TIMES:
            if record.changed is None or name == "updated":
                record.changed = self._content(start) or record.changed
        elif prefix != record.prefix:
            return
        elif record.loc is None and name == "loc":
            record.loc = self._content(start)
        elif record.loc is None and name == "link":
            href, relation = _link(attributes)
            if href is None:
                record.loc = self._content(start)
            elif relation in ("", "alternate"):
                record.loc = href
        elif name == "guid" and 'ispermalink="false"' not in attributes.lower():
            record.guid = self._content(start)

    def _text_of(self, part: bytes) -> str:
        return part.decode(self._encoding, "replace")

    def _content(self, start: int) -> str:
        """The character data from `start` to the next tag, CDATA sections as they are and entities resolved."""
        text = self._text
        parts: list[str] = []
        stop = min(len(text), start + _LONGEST_TEXT)
        while start < stop:
            end = text.find(b"<", start, stop)
            if end < 0:
                end = stop
            parts.append(_unescaped(self._text_of(text[start:end])))
            if not text.startswith(b"<![CDATA[", end):
                break
            close = text.find(b"]]>", end, stop)
            parts.append(self._text_of(text[end + 9 : close if close >= 0 else stop]))
            start = close + 3 if close >= 0 else stop
        return plain("".join(parts)).strip()


def _link(attributes: str) -> tuple[str | None, str]:
    found = {name.lower(): one or other for name, one, other in _ATTRIBUTE.findall(attributes)}
    href = found.get("href")
    return (None if href is None else _unescaped(href).strip()), found.get("rel", "").lower()


def _unescaped(text: str) -> str:
    return _ENTITY.sub(_character, text) if "&" in text else text


def _character(match: re.Match[str]) -> str:
    if match[1]:
        return _NAMED[match[1]]
    code = int(match[2]) if match[2] else int(match[3], 16)
    return chr(code) if 0 < code < 0x110000 else match[0]

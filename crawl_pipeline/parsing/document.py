"""One page parsed once: its tree, and the few facts about it that everybody asks for.

Owns how bytes become a tree (encoding, XHTML, hostile nesting); reading the tree is the other modules' work.
"""

from __future__ import annotations

import codecs
import re
from functools import cached_property

import turbohtml
import turbohtml.detect  # registers the `whatwg-*` codecs, the parser's own decoders
from turbohtml import Element, Namespace

from crawl_pipeline.domain.directives import directives
from crawl_pipeline.parsing.charset import header_charset, media_type
from crawl_pipeline.parsing.hostile import tamed
from crawl_pipeline.parsing.text import collapse, plain

_TELLING = ("title", "base", "meta", "link", "area", "noscript", "template", "script")
_LONGEST_TITLE = 1000
# As XML these elements may close themselves; as HTML they would swallow the rest of the page.
_SELF_CLOSED = re.compile(
    rb"<(script|title|style|iframe|textarea|noscript|noembed|noframes|xmp)((?:\s[^<>]*)?)/>", re.IGNORECASE
)


class Document:
    """A parsed page. The tree is shared: whoever changes it for a moment puts it back as it was.

    The tree has no templates: their content is no part of a page (`source` still has it).
    `base_url` is what relative links resolve against: the first `<base href>`, itself resolved, else the page's URL.
    `encoding` is the WHATWG name, in lower case, of what the bytes were decoded with.
    """

    def __init__(self, body: bytes, tree: turbohtml.Document, url: str, encoding: str) -> None:
        self.body = body
        self.tree = tree
        self.url = url
        self.encoding = encoding
        self.base_url = url
        self.title: str | None = None
        self._directives: dict[str, frozenset[str]] = {}  # by the name that its meta element speaks to
        self.noscripts: list[Element] = []
        self.json_ld: list[Element] = []  # the script elements that hold it
        self.has_uncommon_links = False  # area[href], or link[rel=next]
        self._has_base = False
        self._content_language: str | None = None
        elements = list(tree.iter_elements(_TELLING))
        if any(element.tag == "template" for element in elements):
            _remove_templates(tree)
            elements = list(tree.iter_elements(_TELLING))
        for element in elements:
            self._note(element)
        if self._has_base:
            self.base_url = _base_url(tree, url)

    def _note(self, element: Element) -> None:
        match element.tag:
            case "title":
                self._note_title(element)
            case "base":
                self._has_base |= element.attr("href") is not None
            case "meta":
                self._note_meta(element)
            case "link":
                self.has_uncommon_links |= "next" in (element.attr("rel") or "").lower()
            case "area":
                self.has_uncommon_links = True
            case "script" if "ld+json" in (element.attr("type") or "").lower():
                self.json_ld.append(element)
            case "noscript":
                self.noscripts.append(element)

    def _note_title(self, element: Element) -> None:
        if self.title is None and element.namespace is Namespace.HTML:
            self.title = plain(collapse(element.text))[:_LONGEST_TITLE] or None

    def _note_meta(self, element: Element) -> None:
        name = (element.attr("name") or "").strip().lower()
        if name:
            asked = directives(element.attr("content") or "")
            if asked:
                self._directives[name] = self._directives.get(name, frozenset()) | asked
        elif (element.attr("http-equiv") or "").strip().lower() == "content-language":
            self._content_language = self._content_language or element.attr("content")

    def directives(self, token: str | None) -> frozenset[str]:
        """What the page's meta elements ask of every crawler, and of the one that robots.txt knows as `token`."""
        of_one = self._directives.get(token.lower(), frozenset()) if token else frozenset()
        return self._directives.get("robots", frozenset()) | of_one

    @cached_property
    def language(self) -> str | None:
        """The language tag that the page declares (`<html lang>`, else its content-language), as written."""
        root = self.tree.root
        declared = (root.attr("lang") or root.attr("xml:lang")) if root is not None else None
        return plain(collapse(declared or self._content_language or ""))[:100] or None

    @cached_property
    def source(self) -> str:
        """The page's source text, decoded as the parser decoded it; made on first use. Never raises."""
        body = self.body
        for mark in (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            body = body.removeprefix(mark)
        return body.decode(f"whatwg-{self.encoding}", "replace")

    @property
    def markup(self) -> str:
        """The tree as HTML again: the page as rules see it, with every implied tag."""
        return self.tree.html


def parse(body: bytes, *, content_type: str | None, url: str) -> Document:
    """Parse a page once. Never raises on any bytes, and takes time and memory in proportion to their number.

    The encoding is, in this order: a byte-order mark, the header's charset, the page's own declaration (WHATWG
    prescan), UTF-8 where the bytes are valid UTF-8, else what detection finds. Labels that the Encoding Standard
    does not know are ignored. XHTML is parsed as HTML too, with its self-closed raw-text elements closed first.
    """
    charset = header_charset(content_type)
    bounded, encoding = tamed(body, charset)
    if media_type(content_type) == "application/xhtml+xml":
        bounded = _SELF_CLOSED.sub(rb"<\1\2></\1>", bounded)
    tree = turbohtml.parse(
        bounded, encoding=encoding, detect_encoding=True, positions=False, allow_declarative_shadow_roots=False
    )
    name = tree.encoding if encoding == charset else charset_of_mark(body, charset)
    return Document(body, tree, url, (name or "utf-8").lower())


def charset_of_mark(body: bytes, charset: str | None) -> str | None:
    """The UTF-16 variant that a byte-order mark, else the header names."""
    if body.startswith(codecs.BOM_UTF16_LE):
        return "utf-16le"
    if body.startswith(codecs.BOM_UTF16_BE):
        return "utf-16be"
    return turbohtml.parse(b"", encoding=charset).encoding if charset else None


def _remove_templates(tree: turbohtml.Document) -> None:
    """Take templates out, and put what a shadow root's template holds in its place: that is what readers see."""
    for template in tree.select("template[shadowrootmode]"):
        for content in list(template.children):
            template.insert_before(*list(content.children))
    tree.remove("template")


def _base_url(tree: turbohtml.Document, url: str) -> str:
    try:
        base = tree.base_url(url)
    except ValueError:
        return url
    return base if base.startswith(("http://", "https://")) else url

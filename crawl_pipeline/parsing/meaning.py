"""What a page says: its visible text, and the hash that tells whether that changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from turbohtml import Document as Tree
from turbohtml import Element, PlainText, Text

from crawl_pipeline.domain.records import Record
from crawl_pipeline.parsing.document import Document
from crawl_pipeline.parsing.text import collapse, plain

# Part of every extractor version: a change here makes old hashes incomparable.
HASH_VERSION = 1

_LAYOUT = PlainText(layout="strict", bullet="")


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleText:
    """A page's title and the text of its body, each one line."""

    title: str
    body: str


def visible_text(document: Document, ignored: str | None = None) -> VisibleText:
    """What a reader sees: no scripts, styles, templates, noscript, and nothing that the selector `ignored` takes.

    Blocks, cells and line breaks separate words as white space does, so markup alone changes nothing. The tree is
    as before when this returns or raises.
    """
    title = document.title or ""
    if ignored is None:
        regions = document.noscripts
    else:
        regions = document.tree.select(f"noscript, {ignored}")
        if any(region.tag == "title" for region in regions):
            title = ""
    with _taken_out(regions):
        body = document.tree.to_text(_LAYOUT)
    return VisibleText(title=title, body=plain(_one_line(body)))


def text_of(element: Element) -> str:
    """An element's text as one line, its blocks and line breaks separated."""
    if len(element) <= 1:
        only = element[0] if len(element) else None
        if only is None or isinstance(only, Text):
            return collapse(element.text)
    return collapse(element.to_text(_LAYOUT) or element.text)


def content_hash(text: VisibleText, records: Sequence[Record]) -> bytes:
    """SHA-256 of a page's visible text, its title included, and of its records' data, whatever their order."""
    digest = hashlib.sha256(f"{HASH_VERSION}\n{text.title}\n{text.body}".encode())
    for line in sorted(f"\n{record.record_type}\x00{record.key}\x00{record.data}" for record in records):
        digest.update(line.encode())
    return digest.digest()


@contextmanager
def _taken_out(regions: Sequence[Element]) -> Iterator[None]:
    """Take regions out of the tree for a moment. An empty text keeps each one's place, within another region too."""
    places: list[tuple[Text, Element]] = []
    try:
        for region in regions:
            if isinstance(region.parent, (Tree, type(None))):
                continue  # the root: `ignore: ["html"]` cannot take out everything
            place = Text("")
            places.append((place, region))
            region.replace_with(place)
        yield
    finally:
        for place, region in places:
            if place.parent is not None:
                place.replace_with(region)


def _one_line(text: str) -> str:
    """As `collapse`, at a fifth of its cost: the layout has already collapsed what lies within a line."""
    line = " ".join(filter(None, text.replace("\N{NO-BREAK SPACE}", " ").split("\n")))
    for space in ("\t", "\r", "\f", "\v"):
        if space in line:
            line = line.replace(space, " ")
    while "  " in line:
        line = line.replace("  ", " ")
    return line.strip()

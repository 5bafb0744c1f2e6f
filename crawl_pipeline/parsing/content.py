"""A page's main content as Markdown. Made only when a page version is stored."""

from __future__ import annotations

import re

from turbohtml import Document as Tree
from turbohtml import Element, Markdown

from crawl_pipeline.parsing.document import Document
from crawl_pipeline.parsing.text import plain

LONGEST_MARKDOWN = 1_000_000
# On a page of links alone the densest text may be its footer: shorter than this, it must be a fair part of the page.
_SHORT = 300
_FAIR_PART = 0.25
_SETTINGS = Markdown()
# An inlined image is noise of up to megabytes.
_DATA_URL = re.compile(r"(?<=\()<?data:[^)\s>]{64,}>?")


def markdown(document: Document) -> str:
    """The main content as GitHub-flavoured Markdown: what reads as an article, else `<main>`, else the whole body.

    At most `LONGEST_MARKDOWN` characters, cut at a line's end. Links stay as written.
    """
    main = _main(document.tree)
    if main is None:  # a frameset
        return ""
    text = plain(main.to_markdown(_SETTINGS))
    if "data:" in text:  # looking for it is far cheaper than the pattern is
        text = _DATA_URL.sub("data:,", text)
    if len(text) <= LONGEST_MARKDOWN:
        return text
    cut = text.rfind("\n", 0, LONGEST_MARKDOWN)
    return text[: cut if cut > LONGEST_MARKDOWN // 2 else LONGEST_MARKDOWN].rstrip()


def _main(tree: Tree) -> Element | None:
    body = tree.find("body")
    main = tree.main_content()
    if main is not None and body is not None:
        length = len(main.text)
        if length < _SHORT and length < _FAIR_PART * len(body.text):
            main = None
    if main is None:
        main = tree.select_one("main, [role=main i]")
    return body if main is None else main

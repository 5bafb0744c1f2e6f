"""A page's main content as Markdown. Made only when a page version is stored."""

from __future__ import annotations

import re

from turbohtml import Markdown

from crawl_pipeline.parsing.document import Document
from crawl_pipeline.parsing.text import plain

LONGEST_MARKDOWN = 1_000_000
_SETTINGS = Markdown()
# An inlined image is noise of up to megabytes.
_DATA_URL = re.compile(r"(?<=\()<?data:[^)\s>]{64,}>?")


def markdown(document: Document) -> str:
    """The main content as GitHub-flavoured Markdown, or the whole body where nothing reads as content.

    At most `LONGEST_MARKDOWN` characters, cut at a line's end. Links stay as written.
    """
    main = document.tree.main_content()
    if main is None:
        main = document.tree.find("body")
    if main is None:  # a frameset
        return ""
    text = plain(_DATA_URL.sub("data:,", main.to_markdown(_SETTINGS)))
    if len(text) <= LONGEST_MARKDOWN:
        return text
    cut = text.rfind("\n", 0, LONGEST_MARKDOWN)
    return text[: cut if cut > LONGEST_MARKDOWN // 2 else LONGEST_MARKDOWN].rstrip()

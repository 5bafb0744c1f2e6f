"""Text as it is stored and compared: white space collapsed, and only characters that a database takes."""

from __future__ import annotations

import re

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def collapse(text: str) -> str:
    """Every run of white space (no-break spaces too) as one space, none at the ends."""
    return " ".join(text.split())


def plain(text: str) -> str:
    """`text` without NULs and lone surrogates (each becomes U+FFFD): what UTF-8 and PostgreSQL can hold."""
    if "\x00" not in text:
        try:
            text.encode()
        except UnicodeEncodeError:
            pass
        else:
            return text
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)

"""Whether a CSS selector is one, in a sentence for the author of a contract."""

from __future__ import annotations

import re

import turbohtml

_UNREADABLE = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff]")
_PREFIX = re.compile(r'invalid CSS selector ".*": ', re.DOTALL)
_EXTENSION = re.compile(r"::(text|attr\(\s*(.*?)\s*\))\s*\Z")
_NEVER_MATCHES = re.compile(
    r":(?:hover|focus-within|focus-visible|focus|active|visited|target|playing|paused)(?![\w-])", re.IGNORECASE
)


def check_selector(css: str) -> str | None:
    """What is wrong with a selector, and where; None if nothing is. Never raises."""
    if _UNREADABLE.search(css):
        return "has a control character or a lone surrogate: a selector is ordinary text"
    if (extension := _EXTENSION.search(css)) is not None:
        attribute = extension[2]
        instead = f"write attr: {attribute} beside it" if attribute else "the text is what a selector gives"
        return f"ends in {extension[0].strip()}, which is not CSS: leave it out, {instead}"
    try:
        turbohtml.parse(b"<p>").select(css)
    except ValueError as error:
        reason = _PREFIX.sub("", str(error), count=1)
        return f"is not a CSS selector: {reason}" + (f" of {css!r}" if len(css) <= 200 else "")
    if (match := _NEVER_MATCHES.search(css)) is not None:
        return f"has {match[0]}, which nothing matches in a page that nobody looks at: leave it out"
    return None

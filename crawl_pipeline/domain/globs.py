"""Path globs over whole segments, globs of query names, and host patterns, compiled to regular expressions.

`/news` takes `/news` and `/news/`, never `/newsletter`; `*` stays within a segment, `**` is any number of segments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from urllib.parse import quote

# What the WHATWG parser leaves alone in a path, so that a glob meets canonical paths in their own spelling.
_PATH_SAFE = "!$%&'()*+,-./:;=@[]_|~"
_ESCAPE = re.compile(r"(?<!%)(?<!%[0-9A-Fa-f])%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_LONGEST_GLOB = 500


def _plain_escape(match: re.Match[str]) -> str:
    char = chr(int(match[1], 16))
    return char if char in _UNRESERVED else "%" + match[1].upper()


def undo_needless_escapes(text: str) -> str:
    """`text` with escapes of unreserved characters undone and the others in upper case; idempotent.

    An escape right after a stray `%` stays as it is: undoing it could make a new escape (`%%36%31` is not `%61`).
    """
    return _ESCAPE.sub(_plain_escape, text) if "%" in text else text


def glob_fault(pattern: str) -> str | None:
    """What is wrong with a path glob, as a sentence for its author; None if nothing is."""
    if not pattern.startswith("/"):
        return "a path glob starts with /, such as /product/**"
    if "?" in pattern or "#" in pattern:
        return "a path glob sees only the path: leave out the query and the fragment"
    if any("**" in segment and segment != "**" for segment in pattern.split("/")):
        return "** stands for whole segments: write it between slashes, such as /a/**"
    if any(0xD800 <= ord(char) < 0xE000 for char in pattern):
        return "a path glob cannot hold a lone surrogate"
    if len(pattern) > _LONGEST_GLOB:
        return f"a path glob has at most {_LONGEST_GLOB} characters"
    return None


def _segment(pattern: str) -> str:
    """A regular expression for one segment; atomic groups take the earliest match of each part, which is enough."""
    if pattern == "*":
        return "[^/]+"
    first, *rest = [re.escape(part) for part in pattern.split("*")]
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>[^/]*?{part})" for part in middle) + "[^/]*" + last


def _run(segments: Sequence[str]) -> str:
    """Consecutive segments without `**`; each ends where its segment ends."""
    return "".join(f"/{_segment(segment)}(?=/|\\Z)" for segment in segments)


@lru_cache(maxsize=4096)
def compile_glob(pattern: str) -> re.Pattern[str]:
    """Compile a path glob: `fullmatch` it against a canonical path. Case-sensitive; never backtracks exponentially.

    Raises ValueError with the sentence of `glob_fault`.
    """
    fault = glob_fault(pattern)
    if fault is not None:
        raise ValueError(fault)
    canonical = undo_needless_escapes(quote(pattern, safe=_PATH_SAFE))
    runs: list[list[str]] = [[]]
    for segment in canonical[1:].split("/"):
        if segment == "**":
            runs.append([])
        else:
            runs[-1].append(segment)
    first, *others = runs
    text = _run(first)
    if others:
        *middle, last = others
        text += "".join(f"(?>(?:/[^/]*)*?{_run(run)})" for run in middle if run) + "(?:/[^/]*)*" + _run(last)
    return re.compile(text + ("" if canonical.endswith("/") else "/?"))


def compile_name_globs(patterns: Iterable[str]) -> re.Pattern[str] | None:
    """Compile globs of query-parameter names (`utm_*`) into one matcher for `fullmatch`; None when there are none."""
    texts = [".*".join(re.escape(part) for part in re.sub(r"\*+", "*", pattern).split("*")) for pattern in patterns]
    return re.compile("|".join(texts), re.DOTALL) if texts else None


def host_matches(pattern: str, authority: str) -> bool:
    """Whether a canonical host pattern takes an authority: the same one, or below `*.example.com` on the same port."""
    if pattern.startswith("*."):
        return authority.endswith(pattern[1:]) and len(authority) > len(pattern) - 1
    return authority == pattern

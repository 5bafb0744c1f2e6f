"""Path globs, query-name globs and host patterns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawl_pipeline.domain.globs import compile_glob, compile_name_globs, glob_fault, host_matches

TAKES = [
    ("/news", ["/news", "/news/"], ["/newsletter", "/news/1", "/News", "/a/news", "/", "/news//"]),
    ("/news/", ["/news/"], ["/news", "/news/1"]),
    ("/news/*", ["/news/1", "/news/1/", "/news/a.b"], ["/news", "/news/", "/news/1/2", "/newsletter/1"]),
    ("/news/**", ["/news", "/news/", "/news/1", "/news/1/2", "/news//"], ["/newsletter", "/new", "/a/news/1"]),
    ("/**", ["/", "/a", "/a/b/", "//"], []),
    ("/", ["/"], ["/a", "//"]),
    ("/**/print", ["/print", "/a/print", "/a/b/print", "/print/print", "/print/"], ["/printer", "/a/print/b"]),
    ("/**/a/**/b", ["/a/b", "/x/a/y/z/b", "/a/a/b/b"], ["/b/a", "/a/bb", "/aa/b"]),
    ("/a/**/b/*.html", ["/a/b/x.html", "/a/y/z/b/.html"], ["/a/b/x.htm", "/a/b/x/y.html"]),
    ("/p-*", ["/p-", "/p-1", "/p-1/"], ["/p", "/p-1/2", "/xp-1"]),
    ("/*a*b*", ["/ab", "/xaxbx", "/aab"], ["/ba", "/a/b"]),
    ("/*ab", ["/ab", "/abab", "/aab"], ["/aba", "/ab/x"]),
    ("/a*a", ["/aa", "/aba"], ["/a"]),
    ("/café/**", ["/caf%C3%A9/1"], ["/cafe/1"]),
    ("/caf%c3%a9", ["/caf%C3%A9"], []),
    ("/a b", ["/a%20b"], ["/a", "/a+b"]),
    ("/%41", ["/A"], ["/a"]),
    ("/a.c", ["/a.c"], ["/abc"]),
    ("/(a|b)+[c]", ["/(a|b)+[c]"], ["/a", "/aac"]),
]


@pytest.mark.parametrize(("glob", "taken", "left"), TAKES)
def test_glob_takes_whole_segments(glob: str, taken: list[str], left: list[str]) -> None:
    pattern = compile_glob(glob)
    assert [path for path in taken if not pattern.fullmatch(path)] == []
    assert [path for path in left if pattern.fullmatch(path)] == []


@pytest.mark.parametrize("glob", ["", "news", "*", "**", "/a?b", "/a#b", "/a**", "/**a/b", "/\ud800", "/" + "a" * 500])
def test_bad_glob_is_refused_with_a_sentence(glob: str) -> None:
    assert glob_fault(glob)
    with pytest.raises(ValueError, match=r"path glob|\*\*"):
        compile_glob(glob)


def _takes(glob: list[str], path: list[str]) -> bool:
    """The meaning of a glob, spelt out without any regard to cost."""
    if not glob:
        return path in ([], [""])
    if glob[0] == "**":
        return any(_takes(glob[1:], path[skipped:]) for skipped in range(len(path) + 1))
    return bool(path) and _segment(glob[0], path[0]) and (_takes(glob[1:], path[1:]))


def _segment(glob: str, text: str) -> bool:
    if glob == "*":
        return text != ""
    if not glob:
        return not text
    if glob[0] == "*":
        return any(_segment(glob[1:] or "", text[skipped:]) if glob[1:] else True for skipped in range(len(text) + 1))
    return text[:1] == glob[0] and _segment_rest(glob[1:], text[1:])


def _segment_rest(glob: str, text: str) -> bool:
    return True if glob == "*" else _segment(glob, text)


SEGMENT = st.one_of(st.just("**"), st.text(alphabet="ab*", max_size=4).filter(lambda text: "**" not in text))


@given(glob=st.lists(SEGMENT, min_size=1, max_size=5), path=st.lists(st.text(alphabet="ab", max_size=3), min_size=1))
def test_compiled_glob_means_what_the_slow_definition_says(glob: list[str], path: list[str]) -> None:
    if glob[-1] == "":
        return  # a glob that ends with a slash wants one: the table has it
    text = "/" + "/".join(path)
    assert bool(compile_glob("/" + "/".join(glob)).fullmatch(text)) == _takes(glob, path)


def test_no_glob_backtracks_exponentially() -> None:
    """Without the atomic groups of `compile_glob` and `_segment` this does not end within the test's time limit."""
    deep = "/" + "/".join(["a" * 30] * 60)
    assert not compile_glob("/" + "/".join(["**", "a*a*a*a*a*b"] * 12) + "/c").fullmatch(deep)
    assert not compile_glob("/" + "/".join(["**", "*a"] * 20) + "/c").fullmatch(deep)
    assert not compile_glob("/**/" + "*a" * 40 + "*b").fullmatch("/" + "a" * 2_000)


def test_name_globs_take_whole_names() -> None:
    names = compile_name_globs(["utm_*", "gclid", "a.c"])
    assert names is not None
    assert [name for name in ("utm_", "utm_source", "gclid", "a.c") if not names.fullmatch(name)] == []
    assert [name for name in ("utm", "xutm_", "gclid2", "abc", "") if names.fullmatch(name)] == []
    assert compile_name_globs([]) is None


@pytest.mark.parametrize(
    ("pattern", "authority", "is_match"),
    [
        ("example.com", "example.com", True),
        ("example.com", "www.example.com", False),
        ("example.com", "example.com:8080", False),
        ("example.com:8080", "example.com:8080", True),
        ("*.example.com", "www.example.com", True),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "badexample.com", False),
        ("*.example.com", "www.example.com:8080", False),
        ("*.example.com:8080", "www.example.com:8080", True),
        ("*.example.com", ".example.com", False),
    ],
)
def test_host_pattern(pattern: str, authority: str, is_match: bool) -> None:
    assert host_matches(pattern, authority) is is_match

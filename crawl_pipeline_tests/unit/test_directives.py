"""X-Robots-Tag: names, lists, several headers, and what is asked of search engines only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawl_pipeline.domain.directives import directives, header_directives

NONE, INDEX, FOLLOW, BOTH = set[str](), {"noindex"}, {"nofollow"}, {"noindex", "nofollow"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], NONE),
        (["noindex"], INDEX),
        ([" NoIndex , NOFOLLOW "], BOTH),
        (["none"], BOTH),
        (["all, index, follow, noarchive, nosnippet, noimageindex"], NONE),
        (["noindex", "nofollow"], BOTH),
        (["shop-bot: noindex"], INDEX),
        (["Shop-Bot : noindex, nofollow"], BOTH),
        (["other-bot: none"], NONE),
        (["other-bot: noindex, nofollow"], NONE),
        (["noindex, other-bot: nofollow"], INDEX),
        (["other-bot: noindex, shop-bot: nofollow"], FOLLOW),
        (["other-bot: none", "nofollow"], FOLLOW),
        (["*: noindex"], INDEX),
        (["unavailable_after: 25 Jun 2010 15:00:00 PST"], NONE),
        (["unavailable_after: Friday, 25-Jun-10 15:00:00 UTC, noindex"], INDEX),
        (["max-snippet: 20, max-image-preview:none, nofollow"], FOLLOW),
        (["shop-bot: max-snippet:0, noindex"], INDEX),
        (["noindexing, xnofollow, :, ::, ,"], NONE),
    ],
)
def test_header_asks_what_its_words_say_of_the_crawler_it_names(values: list[str], expected: set[str]) -> None:
    assert header_directives(values, "shop-bot") == expected


def test_crawler_without_a_name_is_spoken_to_with_everyone() -> None:
    assert header_directives(["noindex, shop-bot: nofollow"], None) == INDEX


@given(st.lists(st.text()), st.none() | st.text())
def test_no_header_makes_it_raise(values: list[str], token: str | None) -> None:
    assert header_directives(values, token) <= BOTH
    assert directives(" ".join(values)) <= BOTH

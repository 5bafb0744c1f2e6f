"""Links as their author wrote them."""

from __future__ import annotations

import pytest

from crawl_pipeline.parsing.links import links
from crawl_pipeline_tests.unit.parsing_support import document


def found(html: str, *, follow_nofollow: bool = False, limit: int = 100) -> tuple[str, ...]:
    return links(document(html), follow_nofollow=follow_nofollow, limit=limit)[0]


def test_links_come_once_each_in_document_order() -> None:
    assert found("<a href=/b>1</a><a href=/a>2</a><a href=/b>3</a><a name=x>4</a>") == ("/b", "/a")


def test_areas_and_next_pages_count_where_they_stand() -> None:
    html = (
        "<link rel='prev NEXT' href=/2><link rel=stylesheet href=/s><a href=/a></a><map><area href=/m></map><a href=/z>"
    )
    assert found(html) == ("/2", "/a", "/m", "/z")


@pytest.mark.parametrize(
    ("href", "expected"),
    [
        ("  /a \n", ("/a",)),
        ("&#10;/a", ("/a",)),
        ("\x01/a", ("/a",)),
        ("/a#part", ("/a",)),
        ("/a?b#c#d", ("/a?b",)),
        ("#top", ()),
        ("", ()),
        (" ", ()),
        ("javascript:void(0)", ()),
        ("JavaScript:void(0)", ()),
        ("mailto:a@b.example", ()),
        ("tel:+1", ()),
        ("data:text/html,x", ()),
        ("ftp://a.example/", ()),
        ("HTTPS://a.example/", ("HTTPS://a.example/",)),
        ("http:relative", ("http:relative",)),
        ("/wiki/Talk:Page", ("/wiki/Talk:Page",)),
        ("?q=a:b", ("?q=a:b",)),
        ("a b", ("a b",)),
        ("&amp;x", ("&x",)),
        ("\xa0/a", ("\xa0/a",)),
    ],
)
def test_only_what_may_name_a_page_is_a_link(href: str, expected: tuple[str, ...]) -> None:
    assert found(f'<a href="{href}">x</a>') == expected


def test_the_same_page_is_a_link_where_a_base_element_points_elsewhere() -> None:
    assert found("<base href=/elsewhere/><a href=#x>x</a>") == ("",)


@pytest.mark.parametrize("rel", ["nofollow", "noopener NoFollow", "external\nnofollow"])
def test_links_marked_nofollow_are_left_out_unless_they_are_to_be_followed(rel: str) -> None:
    html = f"<a href=/a>1</a><a rel='{rel}' href=/b>2</a>"
    assert found(html) == ("/a",)
    assert found(html, follow_nofollow=True) == ("/a", "/b")


def test_a_relation_that_only_looks_like_nofollow_is_followed() -> None:
    assert found("<a rel=nofollowing href=/a>1</a><a rel=nofollow href=/b>2</a>") == ("/a",)


def test_an_area_marked_nofollow_is_left_out() -> None:
    assert found("<area rel=nofollow href=/a><area href=/b>") == ("/b",)


def test_the_limit_counts_distinct_links_and_says_that_it_cut() -> None:
    html = "".join(f"<a href=/{n}>x</a><a href=/{n}#y>x</a>" for n in range(5))
    assert links(document(html), follow_nofollow=False, limit=5) == (("/0", "/1", "/2", "/3", "/4"), False)
    assert links(document(html), follow_nofollow=False, limit=4) == (("/0", "/1", "/2", "/3"), True)


def test_links_within_noscript_are_seen() -> None:
    assert found("<noscript><a href=/a>x</a></noscript>") == ("/a",)


def test_links_within_a_template_are_not() -> None:
    assert found("<template><a href=/a>x</a></template><a href=/b>y</a>") == ("/b",)

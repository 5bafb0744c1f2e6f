"""What a page says, and the hash that tells whether that changed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.parsing.content import markdown
from crawl_pipeline.parsing.links import links
from crawl_pipeline.parsing.meaning import visible_text
from crawl_pipeline_tests.unit.parsing_support import contract, document, extract, product

RULES = contract([product(price={"css": ".price", "attr": "content"})], ignore=[".ad", "time.now"])
PAGE = """<!DOCTYPE html><html><head><title>Shop</title><meta name=csrf content=1><script nonce=a>x()</script>
<style>p{}</style></head><body class=c1><h1>Widget</h1><p class=sku>W-1</p><p class=price content=5>cheap</p>
<p>Some <b>bold</b> text.</p><ul><li>one</li><li>two</li></ul><table><tr><td>a</td><td>b</td></tr></table>
<div class=ad>Buy!</div><time class=now>10:00</time><noscript>Turn it on</noscript></body></html>"""


def hashed(html: str, rules: Contract = RULES) -> bytes:
    return extract(html, rules).content_hash


NOISE = [
    ("a token", "content=1", "content=2"),
    ("a nonce", "nonce=a", "nonce=b"),
    ("a class", "class=c1", "class=c2"),
    ("a script", "x()", "y()"),
    ("a style", "p{}", "p{color:red}"),
    ("a comment", "<h1>", "<!-- built at 10:00 --><h1>"),
    ("noscript", "Turn it on", "Switch it on"),
    ("an ignored region", "Buy!", "Buy now!"),
    ("an ignored region gone", "<div class=ad>Buy!</div>", ""),
    ("an ignored time", "10:00", "11:00"),
    ("indentation", "<p>Some", "\n\n    <p>\n  Some"),
    ("a no-break space", "Some <b>", "Some&nbsp;<b>"),
    ("an entity", "text.", "te&#120;t."),
    ("inline markup", "<b>bold</b>", "<em><span>bold</span></em>"),
    ("block markup", "<p>Some <b>bold</b> text.</p>", "<section><div>Some <b>bold</b> text.</div></section>"),
    ("a cell's width", "<td>a</td>", "<td width=50%>a</td>"),
    ("a list's tag", "<ul><li>one</li><li>two</li></ul>", "<div>one</div><div>two</div>"),
    ("a template", "<h1>", "<template><p>{{x}}</p></template><h1>"),
    ("an image", "<h1>", "<img src=x alt=y><h1>"),
    ("a link's target", "<h1>Widget</h1>", "<h1><a href=/x>Widget</a></h1>"),
]
CHANGES = [
    ("a word", "bold", "bald"),
    ("a letter", "Widget", "widget"),
    ("a space within a word", "Widget", "Wid get"),
    ("two words run together", "Some <b>bold", "Some<b>bold"),
    ("the title", "Shop", "Shop (1)"),
    ("an item more", "<li>two</li>", "<li>two</li><li>three</li>"),
    ("the order", "<li>one</li><li>two</li>", "<li>two</li><li>one</li>"),
    ("a cell", "<td>b</td>", "<td>c</td>"),
    ("a record's field that nobody sees", "content=5", "content=6"),
    ("a character beyond ASCII", "text.", "text…"),
]


@pytest.mark.parametrize(("old", "new"), [case[1:] for case in NOISE], ids=[case[0] for case in NOISE])
def test_noise_does_not_move_the_hash(old: str, new: str) -> None:
    assert old in PAGE
    assert hashed(PAGE.replace(old, new, 1)) == hashed(PAGE)


@pytest.mark.parametrize(("old", "new"), [case[1:] for case in CHANGES], ids=[case[0] for case in CHANGES])
def test_a_change_of_what_the_page_says_moves_the_hash(old: str, new: str) -> None:
    assert old in PAGE
    assert hashed(PAGE.replace(old, new, 1)) != hashed(PAGE)


def test_an_ignored_title_does_not_count() -> None:
    rules = contract(ignore=["title"])
    assert hashed("<title>a</title>x", rules) == hashed("<title>b</title>x", rules)


def test_the_order_of_records_does_not_count_where_the_text_is_the_same() -> None:
    rules = contract([{**product(), "each": "[data-n]", "fields": {"sku": {"css": ":scope", "attr": "data-n"}}}])
    assert hashed("<p data-n=1></p><p data-n=2></p>", rules) == hashed("<p data-n=2></p><p data-n=1></p>", rules)


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>a</p><p>b</p>", "a b"),
        ("a<br>b", "a b"),
        ("a<b>b</b>c", "abc"),
        ("<table><tr><td>a<td>bb<tr><td>ccc</table>", "a bb ccc"),
        ("<pre>a\n\t b\x0c\r\nc</pre>", "a b c"),
        ("<ul><li>a<li>b</ul>", "a b"),
        ("<body><script>s</script><style>t</style><noscript>n</noscript><template>p</template>x", "x"),
        ("<head><title>t</title></head>x", "x"),
        ("  \n ", ""),
        ("a&nbsp;&nbsp; b", "a b"),
        ("<blockquote><p>q</p></blockquote>z", "q z"),
        ("\x00a&#0;", "a\ufffd"),
    ],
)
def test_visible_text_is_one_line_with_blocks_kept_apart(html: str, text: str) -> None:
    assert visible_text(document(html)).body == text


def test_text_is_counted_without_title_and_ignored_regions() -> None:
    assert extract("<title>12345</title>abc<p class=ad>12345</p><script>12345</script>", RULES).text.body == "abc"


@pytest.mark.parametrize("selector", ["html", "body", "head", "*", "noscript", "p, p *", ":root > body"])
def test_any_region_may_be_ignored_and_all_are_put_back(selector: str) -> None:
    page = document("<p>a<noscript>b<p>c</p></noscript></p><noscript>d</noscript><p>e<b>f</b></p>")
    before = page.markup
    visible_text(page, selector)
    assert page.markup == before


FRAGMENTS = st.sampled_from(
    ["<p class=ad>", "</p>", "<noscript>", "</noscript>", "<div>", "</div>", "a", "<a href=/x>", "</a>",
     "<table>", "<tr>", "<td class=ad>", "</table>", "<template>", "</template>", "<svg>", "</svg>", "<title>",
     "</title>", "<time class=now>"]
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(FRAGMENTS, max_size=30).map("".join))
def test_hashing_leaves_every_tree_links_and_markdown_as_they_were(html: str) -> None:
    """Fails where `_taken_out` does not put regions back."""
    page = document(html)
    before = page.markup, markdown(page), links(page, follow_nofollow=True, limit=100)
    once = visible_text(page, ".ad, time.now")
    assert visible_text(page, ".ad, time.now") == once
    assert (page.markup, markdown(page), links(page, follow_nofollow=True, limit=100)) == before

"""A page's main content as Markdown."""

from __future__ import annotations

from crawl_pipeline.parsing.content import LONGEST_MARKDOWN, markdown
from crawl_pipeline_tests.unit.parsing_support import document

ARTICLE = "<p>A long enough paragraph, with commas, that reads as what the page is really about. </p>" * 8


def test_the_main_content_is_taken_without_what_surrounds_it() -> None:
    article = f"<article><h1>Title</h1>{ARTICLE}<ul><li>one<li>two</ul></article>"
    html = f"<nav><a href=/a>Home</a></nav>{article}<footer>Imprint</footer>"
    text = markdown(document(html))
    assert text.startswith("# Title\n\nA long enough paragraph")
    assert "- one\n- two" in text
    assert "Home" not in text
    assert "Imprint" not in text


def test_a_page_without_main_content_gives_its_whole_body() -> None:
    assert markdown(document("<title>T</title><h1>Short</h1><a href=/x>more</a>")) == "# Short\n\n[more](/x)"


def test_an_empty_page_and_a_frameset_give_nothing() -> None:
    assert markdown(document("")) == ""
    assert markdown(document("<frameset><frame src=x></frameset>")) == ""


def test_scripts_and_inlined_images_are_left_out() -> None:
    html = f"<article>{ARTICLE}<script>alert(1)</script><img alt=i src='data:image/png;base64,{'A' * 5000}'></article>"
    text = markdown(document(html))
    assert "alert" not in text
    assert "![i](data:,)" in text
    assert "AAAA" not in text


def test_markdown_is_cut_at_a_lines_end() -> None:
    text = markdown(document("".join(f"<p>{n:06d}</p>" for n in range(200_000))))
    assert LONGEST_MARKDOWN // 2 < len(text) <= LONGEST_MARKDOWN
    assert len(text.rsplit("\n", 1)[1]) == 6
    assert len(markdown(document("<p>" + "x" * (LONGEST_MARKDOWN + 1)))) == LONGEST_MARKDOWN


def test_markdown_holds_only_what_a_database_takes() -> None:
    assert "\x00" not in markdown(document("<p title='\x00'>a\x00b&#0;</p>"))


LIST = "<ul>" + "".join(f"<li><a href=/{n}>Product number {n}</a></li>" for n in range(50)) + "</ul>"
FOOTER = "<footer><p>A shop that sells nothing, at fair prices, which include the tax, and more.</p></footer>"


def test_the_footer_of_a_page_of_links_is_not_its_content() -> None:
    text = markdown(document(f"<nav>Home</nav><main><h1>All</h1>{LIST}</main>{FOOTER}"))
    assert text.startswith("# All\n\n- [Product number 0](/0)")
    assert "sells nothing" not in text
    assert "Product number 49" in markdown(document(f"<h1>All</h1>{LIST}{FOOTER}"))

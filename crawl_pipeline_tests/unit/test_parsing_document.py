"""Bytes to documents: encodings in their order, XHTML, and the facts about a page."""

from __future__ import annotations

import base64
import json

import pytest

from crawl_pipeline.parsing.charset import header_charset
from crawl_pipeline.parsing.document import parse
from crawl_pipeline_tests.conftest import Score
from crawl_pipeline_tests.unit.parsing_support import CORPORA, NO_CORPORA, document

CYRILLIC = "Съешь же ещё этих мягких французских булок, да выпей чаю. Широкая электрификация южных губерний."

ENCODINGS = [
    ("byte-order mark over header", b"\xef\xbb\xbf<p>\xc3\xa9", "text/html; charset=koi8-r", "utf-8", "é"),
    (
        "header over the page's own",
        b'<meta charset="utf-8"><p>\xe9',
        "text/html; charset=iso-8859-1",
        "windows-1252",
        "é",
    ),
    ("unknown header label ignored", b'<meta charset="koi8-r"><p>\xc1', "text/html; charset=bogus", "koi8-r", "\u0430"),
    ("Python's own labels ignored", b"<p>\xc3\xa9", "text/html; charset=utf_8_sig", "utf-8", "é"),
    ("utf-7 is no encoding", b"<p>+AOk-", "text/html; charset=utf-7", "windows-1252", "+AOk-"),
    ("the page's own", b'<meta charset="windows-1251"><p>\xe0', "text/html", "windows-1251", "\u0430"),
    ("UTF-8 where it is valid", b"<p>\xc3\xa9", "text/html", "utf-8", "é"),
    ("detection where it is not", f"<p>{CYRILLIC}".encode("windows-1251"), None, "windows-1251", CYRILLIC),
    ("UTF-16 by its mark", "\ufeff<p>é".encode("utf-16-le"), "text/html; charset=utf-8", "utf-16le", "é"),
    ("UTF-16 by the header", "<p>é".encode("utf-16-le"), "text/html; charset=utf-16", "utf-16le", "é"),
    ("plain ASCII", b"<p>x", None, "windows-1252", "x"),
]


@pytest.mark.parametrize(
    ("body", "content_type", "encoding", "text"), [case[1:] for case in ENCODINGS], ids=[case[0] for case in ENCODINGS]
)
def test_the_encoding_is_chosen_in_the_standards_order(
    body: bytes, content_type: str | None, encoding: str, text: str
) -> None:
    page = parse(body, content_type=content_type, url="http://a.example/")
    assert page.encoding == encoding
    assert page.tree.text == text
    assert page.source.endswith(text)


@pytest.mark.conformance
@pytest.mark.skipif(not CORPORA.is_dir(), reason=NO_CORPORA)
def test_every_published_prescan_case_gives_its_encoding(score: Score) -> None:
    cases = [json.loads(line) for line in (CORPORA / "encoding" / "html5lib_prescan.jsonl").read_text().splitlines()]
    wrong = [
        (case["expected"], found)
        for case in cases
        if (found := document(base64.b64decode(case["data_b64"])).encoding) != case["expected"].lower()
    ]
    assert wrong == []
    assert len(cases) == 82
    score("encoding: prescan", len(cases) - len(wrong), 82)


@pytest.mark.conformance
@pytest.mark.skipif(not CORPORA.is_dir(), reason=NO_CORPORA)
def test_published_header_and_decoding_facts_hold(score: Score) -> None:
    """Those of headers, labels and decoding. Labels that only Python knows (`gb18030_2000`) do not apply."""
    names = {"iso8859-4": "iso-8859-4", "cp1252": "windows-1252", "gb18030": "gbk"}
    checked = 0
    for line in (CORPORA / "encoding" / "w3lib_encoding_facts.jsonl").read_text().splitlines():
        about, arguments, expected = json.loads(line)
        if about == "http_content_type_encoding":
            found = header_charset(arguments[0])
            assert (found and names.get(found.lower(), found.lower())) == (expected and names.get(expected, expected))
        elif about == "resolve_encoding":
            content_type = f'text/html; charset="{arguments[0]}"'
            if header_charset(content_type) is None:
                assert arguments[0] in ("unknown encoding", " Latin-1")  # the second is Python's spelling
                continue
            assert document(b"x", content_type=content_type).encoding == names.get(expected, expected)
        elif about == "to_unicode" and header_charset(f"text/html; charset={arguments[1]}") is not None:
            body = b"<p>" + base64.b64decode(arguments[0]["b64"])
            assert document(body, content_type=f"text/html; charset={arguments[1]}").tree.text == expected
        else:
            continue
        checked += 1
    assert checked == 44
    score("encoding: headers and labels", checked, 44)


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (None, None),
        ("", None),
        ("text/html", None),
        ("text/html; charset=UTF-8", "UTF-8"),
        ("text/html; charset=bogus; charset=koi8-r", "koi8-r"),
        ("text/html; charset=\ud800", None),
        ("text/html; charset=utf-8\x00", None),
        ('text/html; charset="utf\\-8"', None),
        ("text/html;" + "charset=;" * 100_000, None),
    ],
)
def test_a_header_names_a_charset_only_where_the_standard_knows_it(content_type: str, expected: str | None) -> None:
    assert header_charset(content_type) == expected


def test_xhtml_is_parsed_as_html_and_its_closed_scripts_swallow_nothing() -> None:
    xhtml = b"""<?xml version="1.0" encoding="utf-8"?>
        <html xmlns="http://www.w3.org/1999/xhtml" xml:lang="de"><head><script src="a.js"/><title>T</title></head>
        <body><p>seen</p><script async="" src="b.js" /><p class="after">too</p></body></html>"""
    page = document(xhtml, content_type="application/xhtml+xml; charset=utf-8")
    assert page.title == "T"
    assert page.language == "de"
    assert page.tree.select_one("p.after") is not None


def test_html_with_a_closed_script_stays_as_browsers_read_it() -> None:
    assert document(b"<script/><p>inside the script</p>").tree.select_one("p") is None


@pytest.mark.parametrize(
    ("head", "base"),
    [
        ("", "http://a.example/b/c"),
        ("<base href=/x/>", "http://a.example/x/"),
        ("<base href=/x/><base href=/y/>", "http://a.example/x/"),
        ("<base target=_top><base href=/y/>", "http://a.example/y/"),
        ("<base href='https://b.example/d'>", "https://b.example/d"),
        ("<base href='//b.example/'>", "http://b.example/"),
        ("<base href='javascript:alert(1)'>", "http://a.example/b/c"),
        ("<base href='data:text/html,x'>", "http://a.example/b/c"),
        ("<base href='mailto:x@a.example'>", "http://a.example/b/c"),
        ("<base href='http://[bad'>", "http://a.example/b/c"),
        ("<base href=''>", "http://a.example/b/c"),
    ],
)
def test_links_resolve_against_the_first_base_that_is_a_web_address(head: str, base: str) -> None:
    assert document(f"<head>{head}</head>", url="http://a.example/b/c").base_url == base


@pytest.mark.parametrize(
    ("content", "is_noindex", "is_nofollow"),
    [
        ("noindex, nofollow", True, True),
        ("NoFollow", False, True),
        ("none", True, True),
        ("index,follow", False, False),
        ("max-snippet:-1 noindex", True, False),
        ("", False, False),
    ],
)
def test_the_robots_meta_is_read_in_any_spelling(content: str, is_noindex: bool, is_nofollow: bool) -> None:
    page = document(f'<meta NAME=" Robots " content="{content}">')
    asked = page.directives(None)
    assert ("noindex" in asked, "nofollow" in asked) == (is_noindex, is_nofollow)


def test_several_robots_metas_add_up() -> None:
    page = document("<meta name=robots content=noindex><meta name=robots content=nofollow><meta name=other content=x>")
    assert page.directives(None) == {"noindex", "nofollow"}


def test_a_meta_that_names_a_crawler_speaks_to_that_one_too() -> None:
    page = document("<meta name=robots content=noindex><meta name=Shop-Bot content=nofollow><meta name=b content=none>")
    assert page.directives("shop-bot") == {"noindex", "nofollow"}
    assert page.directives("other-bot") == {"noindex"}
    assert page.directives(None) == {"noindex"}


@pytest.mark.parametrize(
    ("html", "title"),
    [
        ("<title> A \n title\xa0here </title>", "A title here"),
        ("<title>first</title><title>second</title>", "first"),
        ("<body><svg><title>drawing</title></svg>", None),
        ("<svg><title>drawing</title></svg><title>page</title>", "page"),
        ("<title></title>", None),
        ("<p>none", None),
    ],
)
def test_the_title_is_the_first_of_the_page_itself(html: str, title: str | None) -> None:
    assert document(html).title == title


@pytest.mark.parametrize(
    ("html", "language"),
    [
        ('<html lang="de-CH">', "de-CH"),
        ('<html lang=""><meta http-equiv=Content-Language content="fr">', "fr"),
        ('<html lang="en"><meta http-equiv=content-language content="fr">', "en"),
        ("<p>", None),
    ],
)
def test_the_language_is_what_the_page_declares(html: str, language: str | None) -> None:
    assert document(html).language == language


def test_templates_are_no_part_of_the_page() -> None:
    page = document(
        "<template><p class=price>{{price}}</p><template><a href=x></a></template></template><p class=price>5</p>"
    )
    assert [element.text for element in page.tree.select(".price")] == ["5"]
    assert "{{price}}" in page.source


def test_the_content_of_a_shadow_root_is() -> None:
    page = document(
        "<x-card><template shadowrootmode=open><p class=price>5</p><template>no</template></template></x-card>"
    )
    assert [element.text for element in page.tree.select("x-card > .price")] == ["5"]
    assert page.tree.text == "5"

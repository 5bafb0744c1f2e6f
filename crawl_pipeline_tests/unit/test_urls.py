"""URL identity: what is one page and what is not, for any text at all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawl_pipeline.domain.pages import PageUrl
from crawl_pipeline.domain.urls import (
    LONGEST_URL,
    Canonicalizer,
    PlainPolicy,
    UrlFault,
    UrlRefusal,
    canonical_path,
    parse_href,
)
from crawl_pipeline_tests.conftest import Score

CORPUS = Path(__file__).parents[3] / "shared" / "corpora" / "url" / "urltestdata.json"
SOURCE_DEFAULT = PlainPolicy(drop_query=("utm_*", "gclid", "fbclid"), sort_query=True)
PLAIN = Canonicalizer(PlainPolicy())
DEFAULT = Canonicalizer(SOURCE_DEFAULT)
STRIP = Canonicalizer(PlainPolicy(trailing_slash="strip"))
BASE = "https://shop.example/a/b?q=1"


def page(text: str, canonicalizer: Canonicalizer = DEFAULT, base: str | None = None) -> PageUrl:
    found = canonicalizer.page_url(text, base)
    assert isinstance(found, PageUrl), found
    return found


SAME = [
    ("http://h/a#x", "http://h/a"),
    ("http://h/a#", "http://h/a"),
    ("http://h/a#!/b", "http://h/a"),
    ("http://h", "http://h/"),
    ("http://h?a", "http://h/?a"),
    ("HTTP://H/a", "http://h/a"),
    ("http://EXAMPLE.com/A", "http://example.com/A"),
    ("http://h:80/a", "http://h/a"),
    ("https://h:443/a", "https://h/a"),
    ("http://h:0080/a", "http://h/a"),
    ("http://h:/a", "http://h/a"),
    ("http://@h/a", "http://h/a"),
    ("http:\\\\h\\a", "http://h/a"),
    ("http:///h/a", "http://h/a"),
    ("  http://h/a\n", "http://h/a"),
    ("ht\ttp://h/\na", "http://h/a"),
    ("http://h/a/./b", "http://h/a/b"),
    ("http://h/a/../b", "http://h/b"),
    ("http://h/../../b", "http://h/b"),
    ("http://h/a/%2e%2E/b", "http://h/b"),
    ("http://h/a/%2e/b", "http://h/a/b"),
    ("http://h/%41%7e", "http://h/A~"),
    ("http://h/a%2Db%5f%2E", "http://h/a-b_."),
    ("http://h/%c3%a9", "http://h/é"),
    ("http://h/%C3%A9", "http://h/é"),
    ("http://h/a b", "http://h/a%20b"),
    ("http://h/?q=%41", "http://h/?q=A"),
    ("http://h/?q=%3d", "http://h/?q=%3D"),
    ("http://h/?", "http://h/"),
    ("http://h/?&", "http://h/"),
    ("http://h/?#x", "http://h/"),
    ("http://h/?b=2&a=1", "http://h/?a=1&b=2"),
    ("http://h/?b&a", "http://h/?a&b"),
    ("http://h/?a=1&b=2&a=3", "http://h/?a=1&a=3&b=2"),
    ("http://h/?utm_source=x", "http://h/"),
    ("http://h/?utm_source=x&a=1", "http://h/?a=1"),
    ("http://h/?a=1&gclid", "http://h/?a=1"),
    ("http://h/?a=1&utm%5Fmedium=m", "http://h/?a=1"),
    ("http://h/?%75tm_x=1", "http://h/"),
    ("http://BÜCHER.example/", "http://xn--bcher-kva.example/"),
    ("http://\uff45xample.com/", "http://example.com/"),
    ("http://0x7f.1/", "http://127.0.0.1/"),
    ("http://2130706433/", "http://127.0.0.1/"),
    ("http://[0:0:0:0:0:0:0:1]/", "http://[::1]/"),
    ("http://[::FFFF:1.2.3.4]/", "http://[::ffff:102:304]/"),
]
DIFFERENT = [
    ("http://h/a", "https://h/a"),
    ("http://h/a", "http://www.h/a"),
    ("http://h/a", "http://h/A"),
    ("http://h/a", "http://h/a/"),
    ("http://h/a", "http://h//a"),
    ("http://h/a/b", "http://h/a//b"),
    ("http://h/a", "http://h:8080/a"),
    ("http://h:443/a", "http://h/a"),
    ("http://h/a%2Fb", "http://h/a/b"),
    ("http://h/a%3Fb", "http://h/a?b"),
    ("http://h/a%23b", "http://h/a"),
    ("http://h/a%25", "http://h/a%2525"),
    ("http://h/%%36%31", "http://h/%61"),
    ("http://h/%%36%31", "http://h/a"),
    ("http://h/a;b", "http://h/a"),
    ("http://h/a;jsessionid=1", "http://h/a"),
    ("http://h/index.html", "http://h/"),
    ("http://h/?a=1&a=2", "http://h/?a=2&a=1"),
    ("http://h/?a=1", "http://h/?a=1&a=1"),
    ("http://h/?a=1", "http://h/?A=1"),
    ("http://h/?a=", "http://h/?a"),
    ("http://h/?a", "http://h/"),
    ("http://h/?a=b+c", "http://h/?a=b%20c"),
    ("http://h/?a=b%26c", "http://h/?a=b&c"),
    ("http://h/?a=1;b=2", "http://h/?a=1&b=2"),
    ("http://h/?UTM_SOURCE=x", "http://h/"),
    ("http://h/?xutm_source=x", "http://h/"),
    ("http://h/?gclid2=x", "http://h/"),
    ("http://h/?u=http://x/", "http://h/?u=http://y/"),
    ("http://h/?a=/../b", "http://h/?a=/b"),
    ("http://h./a", "http://h/a"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_two_spellings_are_one_page(one: str, other: str) -> None:
    assert page(one).canonical == page(other).canonical
    assert page(one).key == page(other).key


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_two_texts_are_two_pages(one: str, other: str) -> None:
    assert page(one).canonical != page(other).canonical
    assert page(one).key != page(other).key


@pytest.mark.parametrize(
    ("href", "url"),
    [
        ("", "https://shop.example/a/b?q=1"),
        ("?x=2", "https://shop.example/a/b?x=2"),
        ("#top", "https://shop.example/a/b?q=1"),
        ("c", "https://shop.example/a/c"),
        ("./c/", "https://shop.example/a/c/"),
        ("../c", "https://shop.example/c"),
        ("../../../c", "https://shop.example/c"),
        ("/c", "https://shop.example/c"),
        ("//other.example/c", "https://other.example/c"),
        ("https:c", "https://shop.example/a/c"),
        ("http:c", "http://c/"),
        ("c:d", None),
        ("javascript:alert(1)", None),
    ],
)
def test_href_is_resolved_against_its_page(href: str, url: str | None) -> None:
    found = DEFAULT.page_url(href, BASE)
    assert (found.url if isinstance(found, PageUrl) else None) == url


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", UrlFault.INVALID),
        ("/a", UrlFault.INVALID),
        ("http://", UrlFault.INVALID),
        ("http://a b/", UrlFault.INVALID),
        ("http://h:99999/", UrlFault.INVALID),
        ("http://1.2.3.4.5/", UrlFault.INVALID),
        ("http://[::1/", UrlFault.INVALID),
        ("http://h\0/", UrlFault.INVALID),
        ("http://\udc80/", UrlFault.INVALID),
        ("mailto:a@b.example", UrlFault.SCHEME),
        ("ftp://h/", UrlFault.SCHEME),
        ("file:///etc/passwd", UrlFault.SCHEME),
        ("data:text/html,x", UrlFault.SCHEME),
        ("ws://h/", UrlFault.SCHEME),
        ("about:blank", UrlFault.SCHEME),
        ("http://user@h/", UrlFault.CREDENTIALS),
        ("http://user:secret@h/", UrlFault.CREDENTIALS),
        ("http://:secret@h/", UrlFault.CREDENTIALS),
        ("http://a@b@h/", UrlFault.CREDENTIALS),
        ("http://h/" + "a" * LONGEST_URL, UrlFault.TOO_LONG),
        ("http://h/" + "a" * 1_000_000, UrlFault.TOO_LONG),
    ],
)
def test_text_that_names_no_page_is_refused(text: str, fault: UrlFault) -> None:
    found = DEFAULT.page_url(text)
    assert found == UrlRefusal(fault=fault)
    assert "secret" not in repr(found)


def test_at_signs_beyond_the_authority_are_no_credentials() -> None:
    assert page("http://h/@user?mail=a@b").canonical == "http://h/@user?mail=a@b"


def test_longest_url_is_taken() -> None:
    text = "http://h/" + "a" * (LONGEST_URL - 9)
    assert page(text).url == text


def test_a_lone_surrogate_in_a_path_is_the_replacement_character() -> None:
    assert page("http://h/\ud800").canonical == "http://h/%EF%BF%BD"


def test_requested_url_keeps_the_authors_order_and_spelling_but_not_the_dropped_parameters() -> None:
    found = page("http://h/%41/?b=2&utm_source=x&a=%31#top")
    assert found.url == "http://h/%41/?b=2&a=%31"
    assert found.canonical == "http://h/A/?a=1&b=2"


def test_requested_url_does_not_depend_on_which_spelling_was_dropped() -> None:
    assert page("http://h/?a=1&utm_source=x").url == page("http://h/?utm_source=y&a=1").url == "http://h/?a=1"


def test_redirect_keeps_every_parameter_of_the_request() -> None:
    found = DEFAULT.redirect_url("/b?utm_source=x&a=1", "http://h/a")
    assert isinstance(found, PageUrl)
    assert (found.url, found.canonical) == ("http://h/b?utm_source=x&a=1", "http://h/b?a=1")


def test_keep_query_drops_all_others() -> None:
    keep = Canonicalizer(PlainPolicy(keep_query=("id", "p*"), drop_query=("px",), sort_query=True))
    assert page("http://h/?x=1&page=2&id=3&px=4&ID=5", keep).canonical == "http://h/?id=3&page=2"
    assert page("http://h/?x=1", Canonicalizer(PlainPolicy(keep_query=()))).canonical == "http://h/"


def test_nothing_is_dropped_or_sorted_that_the_policy_does_not_name() -> None:
    text = "http://h/?z=1&utm_source=x&&a=1&"
    assert page(text, PLAIN).canonical == text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("http://h/a/", "http://h/a"),
        ("http://h/a//", "http://h/a"),
        ("http://h/", "http://h/"),
        ("http://h//", "http://h/"),
        ("http://h/a/?b=/", "http://h/a?b=/"),
    ],
)
def test_stripping_slashes_changes_the_identity_only(text: str, canonical: str) -> None:
    assert page(text, STRIP).canonical == canonical
    assert page(text, STRIP).url == text


@pytest.mark.parametrize(
    ("text", "authority"),
    [
        ("http://h/", "h"),
        ("https://h/", "h"),
        ("http://h:8080/", "h:8080"),
        ("https://h:8080/", "h:8080"),
        ("http://h:443/", "h:443"),
        ("http://[::1]/", "[::1]"),
        ("http://[::1]:8080/", "[::1]:8080"),
    ],
)
def test_authority_names_the_port_where_it_is_not_the_default(text: str, authority: str) -> None:
    assert page(text).authority == authority


def test_key_is_the_first_half_of_the_sha256_of_the_canonical_url() -> None:
    found = page("HTTP://h:80/%41?b=1&a=2#x")
    assert found.key.bytes == hashlib.sha256(b"http://h/A?a=2&b=1").digest()[:16]


@pytest.mark.parametrize(
    ("url", "path"),
    [("http://h/", "/"), ("http://h/a/b?c=/d", "/a/b"), ("https://h:1/a?", "/a"), ("http://h", "/")],
)
def test_canonical_path_is_what_lies_between_authority_and_query(url: str, path: str) -> None:
    assert canonical_path(url) == path


@pytest.mark.parametrize("path", ["%%36%31", "%6%31", "%%%36%31", "%%33%36%31", "%2%35", "%%zz%41", "%", "%4", "%41%"])
def test_undoing_an_escape_never_makes_another_one(path: str) -> None:
    for text in (f"http://h/{path}", f"http://h/?{path}"):
        once = page(text).canonical
        assert page(once).canonical == once
        assert unquote_to_bytes(once) == unquote_to_bytes(text)


URLISH = st.text(alphabet="htps:/\\?#[]@!$&'()*+,;=%.~-_ \t\n\0aAzZ03456fFéß\uff21\u3002\ud800\U0001f600", max_size=60)
POLICIES = st.builds(
    PlainPolicy,
    drop_query=st.sampled_from([(), ("utm_*",), ("a", "*z")]),
    keep_query=st.sampled_from([None, (), ("a*", "%*")]),
    sort_query=st.booleans(),
    trailing_slash=st.sampled_from(["keep", "strip"]),
)


@given(text=st.one_of(URLISH, st.text()), base=st.one_of(st.none(), URLISH, st.just(BASE)), policy=POLICIES)
def test_no_text_makes_it_raise(text: str, base: str | None, policy: PlainPolicy) -> None:
    found = Canonicalizer(policy).page_url(text, base)
    assert isinstance(found, PageUrl | UrlRefusal)


@given(tail=URLISH, policy=POLICIES)
def test_canonical_urls_are_their_own_canonical_urls(tail: str, policy: PlainPolicy) -> None:
    canonicalizer = Canonicalizer(policy)
    for prefix in ("http://h/", "https://h:8/?", "http://h"):
        once = canonicalizer.page_url(prefix + tail)
        if isinstance(once, PageUrl):
            again = canonicalizer.page_url(once.canonical)
            assert isinstance(again, PageUrl)
            assert again.canonical == once.canonical
            assert again.key == once.key
            assert once.canonical.isascii()


@given(tail=URLISH, policy=POLICIES)
def test_what_is_requested_is_the_page_that_it_was_taken_for(tail: str, policy: PlainPolicy) -> None:
    canonicalizer = Canonicalizer(policy)
    once = canonicalizer.page_url("http://h/" + tail)
    if isinstance(once, PageUrl):
        again = canonicalizer.page_url(once.url)
        assert again == once


def _cases() -> list[dict[str, str | None]]:
    if not CORPUS.exists():
        pytest.skip("the conformance data is not there: ../shared/corpora")
    return [case for case in json.loads(CORPUS.read_text(encoding="utf-8")) if isinstance(case, dict)]


@pytest.mark.conformance
def test_every_case_of_the_web_platform_tests_is_parsed_as_expected(score: Score) -> None:
    cases = _cases()
    wrong = [
        case
        for case in cases
        if parse_href(case["input"] or "", case["base"]) != (None if case.get("failure") else case["href"])
    ]
    assert wrong == []
    assert len(cases) == 891
    score("url: web platform tests", len(cases), 891)


@pytest.mark.conformance
def test_canonicalisation_is_idempotent_on_the_web_platform_tests() -> None:
    pages = 0
    for case in _cases():
        found = DEFAULT.page_url(case["input"] or "", case["base"])
        if isinstance(found, PageUrl):
            pages += 1
            again = DEFAULT.page_url(found.canonical)
            assert isinstance(again, PageUrl)
            assert again.canonical == found.canonical
    assert pages > 200

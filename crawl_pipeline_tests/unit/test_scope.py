"""Scope verdicts and the admission of links."""

from __future__ import annotations

from typing import Any

import pytest

from crawl_pipeline.domain import scope as scope_module
from crawl_pipeline.domain.contract import Contract, parse_contract
from crawl_pipeline.domain.outcomes import Reason
from crawl_pipeline.domain.pages import PageUrl
from crawl_pipeline.domain.scope import DEFAULT_SKIP_TYPES, Admission, Refusal, Scope
from crawl_pipeline.domain.urls import Canonicalizer

BASE = "https://shop.example/list/0"


def contract(**scope: Any) -> Contract:
    scope = {
        "hosts": ["shop.example", "*.cdn.example", "127.0.0.1:8800"],
        "exclude": ["/cart/**", "/list/old"],
        **scope,
    }
    data = {"source": "s", "seeds": [BASE], "scope": scope, "limits": {"max_depth": 3}}
    return parse_contract(data, file="test")


def verdict(url: str, depth: int = 0, **scope: Any) -> tuple[Reason | None, str]:
    rules = contract(**scope)
    page = Canonicalizer(rules.urls).page_url(url)
    assert isinstance(page, PageUrl)
    found = Scope(rules.scope, rules.limits).verdict(page, depth)
    assert found.allowed == (found.reason is None)
    return found.reason, found.rule


@pytest.mark.parametrize(
    "url",
    [
        "https://shop.example/",
        "http://shop.example/list/1",
        "https://a.cdn.example/x",
        "http://127.0.0.1:8800/x",
        "https://127.0.0.1:8800/x",
        "https://shop.example/cartoon",
        "https://shop.example/a.html",
        "https://shop.example/a.php?file=x.pdf",
        "https://shop.example/a.jpg/b",
        "https://shop.example/version-1.2",
        "https://shop.example/.",
    ],
)
def test_page_within_scope_is_allowed(url: str) -> None:
    assert verdict(url)[0] is None


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("https://other.example/", "scope.hosts: none is other.example"),
        ("https://www.shop.example/", "scope.hosts: none is www.shop.example"),
        ("https://shop.example:8443/", "scope.hosts: none is shop.example:8443"),
        ("https://shop.example./", "scope.hosts: none is shop.example."),
        ("https://cdn.example/", "scope.hosts: none is cdn.example"),
        ("http://127.0.0.1/", "scope.hosts: none is 127.0.0.1"),
        ("https://shop.example/cart", "scope.exclude /cart/**"),
        ("https://shop.example/cart/1", "scope.exclude /cart/**"),
        ("https://shop.example/%63art/1", "scope.exclude /cart/**"),
        ("https://shop.example/x/../cart/1", "scope.exclude /cart/**"),
        ("https://shop.example/photo.jpg", "scope.skip_types jpg"),
        ("https://shop.example/PHOTO.JPG?x", "scope.skip_types jpg"),
        ("https://shop.example/app.min.js", "scope.skip_types js"),
        ("https://shop.example/a/b.tar.gz", "scope.skip_types gz"),
    ],
)
def test_page_out_of_scope_is_refused_by_the_rule_that_decided(url: str, rule: str) -> None:
    assert verdict(url) == (Reason.SCOPE, rule)


def test_include_admits_nothing_else_and_exclude_wins() -> None:
    include = ["/list/**", "/product/*"]
    assert verdict("https://shop.example/list/1", include=include) == (None, "scope.include /list/**")
    assert verdict("https://shop.example/product/1", include=include)[0] is None
    assert verdict("https://shop.example/list/old", include=include) == (Reason.SCOPE, "scope.exclude /list/old")
    assert verdict("https://shop.example/listing", include=include)[0] is Reason.SCOPE
    assert verdict("https://shop.example/product/1/2", include=include)[0] is Reason.SCOPE


def test_skip_types_may_be_a_list_of_ones_own() -> None:
    assert verdict("https://shop.example/a.pdf", skip_types=[".PDF"]) == (Reason.SCOPE, "scope.skip_types pdf")
    assert verdict("https://shop.example/a.jpg", skip_types=["pdf"])[0] is None
    assert verdict("https://shop.example/a.jpg", skip_types=[])[0] is None


def test_pages_and_their_data_are_never_skipped_by_default() -> None:
    assert not DEFAULT_SKIP_TYPES & {"html", "htm", "php", "asp", "aspx", "jsp", "xhtml", "xml", "json", "txt", "com"}


def test_depth_beyond_the_limit_is_its_own_reason() -> None:
    assert verdict("https://shop.example/", depth=3)[0] is None
    assert verdict("https://shop.example/", depth=4) == (Reason.MAX_DEPTH, "limits.max_depth 3")


def test_link_is_admitted_as_the_page_it_names() -> None:
    found = Admission(contract()).admit("../product/1?utm_source=x#reviews", BASE, 1)
    assert isinstance(found, PageUrl)
    assert found.url == "https://shop.example/product/1"


@pytest.mark.parametrize(
    ("href", "refusal"),
    [
        ("mailto:a@b.example", Refusal(reason=None, rule="not http or https")),
        ("http://u:p@shop.example/", Refusal(reason=None, rule="carries credentials")),
        ("http://[", Refusal(reason=None, rule="not a URL")),
        ("/cart/1", Refusal(reason=Reason.SCOPE, rule="scope.exclude /cart/**")),
        ("//other.example/", Refusal(reason=Reason.SCOPE, rule="scope.hosts: none is other.example")),
    ],
)
def test_link_that_is_no_page_of_the_source_is_refused(href: str, refusal: Refusal) -> None:
    admission = Admission(contract())
    assert admission.admit(href, BASE, 1) == refusal
    assert admission.admit(href, BASE, 9) == refusal


def test_broken_base_spoils_no_absolute_link() -> None:
    assert isinstance(Admission(contract()).admit("https://shop.example/a", "http://[", 1), PageUrl)
    assert Admission(contract()).admit("a", "http://[", 1) == Refusal(reason=None, rule="not a URL")


def test_depth_is_judged_anew_for_a_link_that_is_known() -> None:
    admission = Admission(contract())
    assert isinstance(admission.admit("/a", BASE, 3), PageUrl)
    assert admission.admit("/a", BASE, 4) == Refusal(reason=Reason.MAX_DEPTH, rule="limits.max_depth 3")
    assert isinstance(admission.admit("/a", BASE, 3), PageUrl)


HREFS = ["/a", "a", "./a", "?a", "//b.cdn.example/x", "http://shop.example/a", "", "#x", "http:a", "\\a", " /a", "/\\x"]
BASES = [BASE, "https://shop.example/other/1", "http://shop.example/list/0", "http://127.0.0.1:8800/a/b", None, "junk"]


def test_what_is_remembered_never_answers_for_another_origin_or_page() -> None:
    """The key of the cache must hold all that the answer depends on: compare with one that remembers nothing."""
    shared = Admission(contract())
    for _ in range(2):
        for base in BASES:
            for href in HREFS:
                assert shared.admit(href, base, 1) == Admission(contract()).admit(href, base, 1), (href, base)


def test_each_distinct_href_of_an_origin_is_canonicalised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []

    class Counting(Canonicalizer):
        def page_url(self, text: str, base: str | None = None) -> Any:
            judged.append(text)
            return super().page_url(text, base)

    monkeypatch.setattr(scope_module, "Canonicalizer", Counting)
    admission = Admission(contract())
    for number in range(50):
        base = f"https://shop.example/list/{number}"
        for href in ("/product/1", "https://shop.example/product/2", "//a.cdn.example/x", "/cart/1"):
            admission.admit(href, base, 1)
    assert len(judged) == 4


def test_memory_is_bounded_and_keeps_what_is_used() -> None:
    admission = Admission(contract(), remember=10)
    first = admission.admit("/first", BASE, 1)
    for number in range(100):
        admission.admit(f"/{number}", BASE, 1)
        assert admission.admit("/first", BASE, 1) is first
    admission.admit("/" + "a" * 5_000, BASE, 1)
    assert len(admission._known) == 10
    assert max(len(str(key)) for key in admission._known) < 5_000


def test_links_of_a_page_are_admitted_once_each_in_order() -> None:
    hrefs = ["/b", "/a", "/b#x", "https://shop.example/a", "mailto:x@y.example", "/cart/1", "/c?utm_source=z"]
    pages, refused = Admission(contract()).admit_all(hrefs, BASE, 1)
    assert [page.canonical for page in pages] == [f"https://shop.example/{name}" for name in "bac"]
    assert refused == 2

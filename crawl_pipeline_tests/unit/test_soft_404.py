"""Which answers say the same, and what a host is asked for that it cannot have."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from crawl_pipeline.domain.contract import parse_contract
from crawl_pipeline.domain.pages import PageUrl
from crawl_pipeline.domain.scope import Scope
from crawl_pipeline.domain.soft_404 import likeness, made_up_page, sounds_missing
from crawl_pipeline.domain.urls import Canonicalizer

ORIGIN = "https://site.example:8443"
NAME = "no-such-page-" + sha256(ORIGIN.encode()).hexdigest()[:12]


def made_up(path: str, **scope: Any) -> str | None:
    contract = parse_contract({"source": "site", "seeds": [ORIGIN + path], "scope": scope}, file="test.yaml")
    canonicalizer = Canonicalizer(contract.urls)
    page = canonicalizer.page_url(ORIGIN + path)
    assert isinstance(page, PageUrl)
    found = made_up_page(page, canonicalizer, Scope(contract.scope, contract.limits), contract.scope.include)
    return found.url.removeprefix(ORIGIN) if found else None


@pytest.mark.parametrize(
    ("path", "scope", "expected"),
    [
        ("/item/7", {}, f"/item/{NAME}"),
        ("/item/7/", {}, f"/item/{NAME}/"),
        ("/item/7.html?a=b", {}, f"/item/{NAME}.html"),
        ("/start", {"include": ["/start", "/item/**"]}, f"/item/{NAME}"),
        ("/start", {"include": ["/start", "/p-*.html"]}, f"/p-{NAME}.html"),
        ("/start", {"include": ["/start", "/**/print"]}, f"/{NAME}/print"),
        ("/start", {"include": ["/start", "/item/*/view"]}, f"/item/{NAME}/view"),
        ("/start", {"include": ["/start"]}, None),
        ("/item/7", {"exclude": ["/item/no-*"]}, None),
        ("/item/7", {"include": ["/item/*", "/list/*"], "exclude": ["/item/no-*"]}, f"/list/{NAME}"),
    ],
)
def test_made_up_page_stays_in_scope(path: str, scope: dict[str, Any], expected: str | None) -> None:
    assert made_up(path, **scope) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Sorry, there is no {} here.",
        'We looked for "{}" and found nothing',
        "Not found: {}. Go home, or try again later.",
    ],
)
def test_answers_that_differ_in_their_own_url_alone_are_alike(text: str) -> None:
    first, second = "/a b/x.html?q=1", "/no-such-page"
    for before in ("", ORIGIN, "site.example:8443"):
        one = likeness("Oh", text.format(before + first), ORIGIN + "/a%20b/x.html?q=1")
        assert one == likeness("Oh", text.format(before + second), ORIGIN + second)
        assert one == likeness("Oh", text.format(before + "/a%20b/x.html?q=1"), ORIGIN + "/a%20b/x.html?q=1")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("Item 7", "A page about the seventh item"), ("Item 8", "A page about the seventh item")),
        (("Item", "A page about the seventh item"), ("Item", "A page about the eighth item")),
        (("", "All of /a1/b and more text of it"), ("", "All of /a2/b and more text of it")),
    ],
)
def test_pages_that_say_something_else_are_not_alike(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert likeness(*one, ORIGIN + "/a") != likeness(*other, ORIGIN + "/b")


@pytest.mark.parametrize(
    ("title", "body", "expected"),
    [
        ("Oh no", "Sorry, we could not find that.", True),
        ("Shop", "The page doesn\u2019t exist.", True),
        ("Seite nicht gefunden", "", True),
        (
            "\u0421\u0442\u0440\u0430\u043d\u0438\u0446\u0430 \u043d\u0435 \u043d\u0430\u0439\u0434\u0435\u043d\u0430",
            "",
            True,
        ),
        ("SKU-404", "A very fine thing, 404 in stock.", False),
        ("Essay", "Sorry, this is long. " * 100, False),
    ],
)
def test_short_apologies_are_reason_to_ask(title: str, body: str, expected: bool) -> None:
    assert sounds_missing(title, body) is expected


def test_too_little_text_is_no_evidence() -> None:
    assert likeness("/page/7", "/page/7 Some words.", ORIGIN + "/page/7") is None

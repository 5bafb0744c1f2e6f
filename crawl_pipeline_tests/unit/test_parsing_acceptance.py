"""Whether a page meets its contract, and what is said when it does not."""

from __future__ import annotations

import pytest

from crawl_pipeline.domain.outcomes import Reason
from crawl_pipeline.parsing.selectors import check_selector
from crawl_pipeline_tests.unit.parsing_support import contract, custom, product, verdict


def refusal(html: str, **accept: object) -> tuple[Reason, str] | None:
    found = verdict(html, contract((), **accept))
    return None if found is None else (found.reason, found.detail)


def test_a_page_that_meets_its_contract_is_accepted() -> None:
    html = "<html lang=en-GB><h1>x</h1><p class=sku>1</p>"
    assert verdict(html, contract([product()], require=["h1"], language="en", min_text_chars=3)) is None


def test_too_little_text_is_told_with_both_numbers() -> None:
    assert refusal("<p>one two", min_text_chars=8) == (
        Reason.CONTENT_CONTRACT,
        "accept.min_text_chars: 7 characters of visible text, at least 8 are asked for",
    )
    assert refusal("<p>one two", min_text_chars=7) is None
    assert refusal("", min_text_chars=0) is None


def test_a_required_selector_that_matches_nothing_is_named() -> None:
    assert refusal("<p>x", require=["p", "h1.title"]) == (
        Reason.CONTENT_CONTRACT,
        "accept.require[1]: nothing matches h1.title",
    )


@pytest.mark.parametrize(
    ("declared", "wanted", "said"),
    [
        ("en", "en", None),
        ("en-GB", "en", None),
        ("EN_us", "en", None),
        ("eng", "en", "the page says eng"),
        ("en", "en-GB", "the page says en"),
        ("de", "en", "the page says de"),
        ("", "en", "the page names no language"),
    ],
)
def test_the_language_is_held_against_what_the_page_declares(declared: str, wanted: str, said: str | None) -> None:
    found = refusal(f'<html lang="{declared}"><p>x', language=wanted)
    detail = f"accept.language: {said}, {wanted} is asked for"
    assert found == (None if said is None else (Reason.CONTENT_CONTRACT, detail))


def test_a_missing_field_is_told_by_its_rule_with_the_number_of_other_faults() -> None:
    rules = contract([product(a={"css": ".a", "required": True}, b={"css": ".b", "required": True})])
    found = verdict("<p class=sku>1", rules)
    assert found is not None
    assert found.reason is Reason.CONTENT_CONTRACT
    assert found.detail == "records[0]: a (css .a) is missing (and 1 more fault)"


def test_two_records_with_one_key_are_a_conflict() -> None:
    rules = contract([{**product(n={"css": "b"}), "each": "li"}])
    found = verdict("<li><i class=sku>1</i><b>x</b><li><i class=sku>1</i><b>y</b>", rules)
    assert found is not None
    assert found.reason is Reason.KEY_CONFLICT
    assert found.detail == 'two different records of type product have the key ["1"]'


def test_an_error_page_is_told_as_one_and_not_as_the_exception_that_an_extractor_met() -> None:
    rules = contract([custom("operator:truth"), {**product(), "type": "other"}], require=["h1"])
    found = verdict("<p>404", rules)
    assert found is not None
    assert (found.reason, found.detail) == (Reason.CONTENT_CONTRACT, "accept.require[0]: nothing matches h1")
    found = verdict("<h1>x", rules)
    assert found is not None
    assert found.reason is Reason.EXTRACTION_ERROR
    assert found.detail.startswith("records[0]: operator:truth returned a bool")


@pytest.mark.parametrize(
    ("css", "sentence"),
    [
        ("", "is not a CSS selector: expected a selector at position 0 of ''"),
        ("p[", "is not a CSS selector: expected an identifier at position 2 of 'p['"),
        ("p >", "is not a CSS selector: expected a selector at position 3 of 'p >'"),
        ("p:first", "is not a CSS selector: unknown pseudo-class at position 7 of 'p:first'"),
        ("p::text", "ends in ::text, which is not CSS: leave it out, the text is what a selector gives"),
        ("a::attr(href)", "ends in ::attr(href), which is not CSS: leave it out, write attr: href beside it"),
        ("a:hover", "has :hover, which nothing matches in a page that nobody looks at: leave it out"),
        ("p\x00", "has a control character or a lone surrogate: a selector is ordinary text"),
        ("\ud800", "has a control character or a lone surrogate: a selector is ordinary text"),
    ],
)
def test_a_bad_selector_is_told_in_a_sentence_with_its_place(css: str, sentence: str) -> None:
    assert check_selector(css) == sentence


@pytest.mark.parametrize(
    "css",
    [
        "p",
        "a,\n b",
        "a:not(.b) > c ~ d + e",
        "[data-x='y' i]",
        "li:nth-child(2n+1 of .a)",
        ":scope",
        "p:has(a)",
        "a:target-x, p",
    ],
)
def test_a_selector_that_is_one_has_nothing_wrong(css: str) -> None:
    found = check_selector(css)
    assert found is None or "target-x" in css


def test_an_endless_selector_is_refused_and_ends_no_process() -> None:
    found = check_selector(":not(" * 100_000)
    assert found is not None
    assert len(found) < 200

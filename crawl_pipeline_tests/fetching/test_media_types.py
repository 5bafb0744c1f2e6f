"""One media type out of whatever Content-Type headers there are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawl_pipeline.fetching.media_types import media_type
from crawl_pipeline_tests.conftest import Score

CORPUS = Path(__file__).parents[2].parent / "shared" / "corpora" / "http" / "wpt_content-types.json"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (("text/html",), "text/html"),
        (("TEXT/Html; charset=UTF-8",), "text/html"),
        (("text/html", "image/png"), "image/png"),
        (("text/html, image/png",), "image/png"),
        (('text/html; a="x, image/png"',), "text/html"),
        (("text/html", "*/*"), "text/html"),
        (("text/html", ""), "text/html"),
        (("text", "text/", "/html", "text/html/x"), None),
        ((), None),
    ],
)
def test_the_last_valid_one_counts(values: tuple[str, ...], expected: str | None) -> None:
    assert media_type(values) == expected


@given(st.lists(st.text(alphabet='a/,;" \\*', max_size=40), max_size=3))
def test_no_text_makes_it_raise_or_hang(values: list[str]) -> None:
    found = media_type(tuple(values))
    assert found is None or found.count("/") == 1


@pytest.mark.conformance
def test_it_agrees_with_the_fetch_standards_cases(score: Score) -> None:
    if not CORPUS.exists():
        pytest.skip("../shared/corpora/http is absent: the published Content-Type cases were not run")
    cases = json.loads(CORPUS.read_text())
    for case in cases:
        values = case["input"] if isinstance(case["input"], list) else [case["input"]]
        expected = (case["mimeType"] or "").partition(";")[0] or None
        assert media_type(tuple(values)) == expected, case
    assert len(cases) == 16
    score("http: Content-Type (Fetch)", 16, 16)

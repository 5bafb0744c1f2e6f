"""The picture of a crawl is small, well-formed and safe, whatever the crawl was."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from crawl_pipeline.defs.pictures import HEIGHT, WIDTH, as_markdown, as_svg
from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.storage.crawl_history import SPANS, CrawlHistory, HostTimes

NOW = datetime(2026, 1, 1, tzinfo=UTC)
hosts = st.builds(
    HostTimes,
    authority=st.text(max_size=200),
    exchanges=st.integers(1),
    mean=st.floats(0, 1e6),
    longest=st.floats(0, 1e6),
)
counts = st.lists(st.integers(0, 10**7), min_size=SPANS, max_size=SPANS).map(lambda n: [*n[:-1], n[-1] + 1])
histories = st.builds(
    CrawlHistory,
    began_at=st.just(NOW),
    span=st.floats(1 / SPANS, 1e6),
    outcomes=st.dictionaries(
        st.sampled_from([s.value for s in UrlState if s is not UrlState.ACTIVE]), counts, min_size=1
    ),
    statuses=st.dictionaries(st.one_of(st.just("none"), st.integers(100, 999).map(str)), st.integers(1), max_size=9),
    hosts=st.lists(hosts, max_size=5),
    host_count=st.integers(5),
)


@settings(max_examples=60)
@given(histories)
def test_picture_is_well_formed_within_its_frame_and_small(history: CrawlHistory) -> None:
    text = "".join(c for c in as_svg(history) if ord(c) >= 32)  # hosts' names have no control characters
    root = ET.fromstring(text)
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, width, height = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + width <= WIDTH
        assert 0 <= y <= y + height <= HEIGHT
    assert len(as_markdown(history)) < 16_000


def test_a_hosts_name_cannot_leave_its_text() -> None:
    evil = HostTimes(authority='</text><script>"&', exchanges=1, mean=0.1, longest=0.2)
    history = CrawlHistory(
        began_at=NOW, span=1.0, outcomes={"accepted": [1] * SPANS}, statuses={"200": SPANS}, hosts=[evil], host_count=1
    )
    svg = as_svg(history)
    assert "<script" not in svg
    markdown = as_markdown(history)
    assert base64.b64decode(markdown.split("base64,")[1].removesuffix(")")).decode() == svg

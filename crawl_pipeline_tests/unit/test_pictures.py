"""The picture of a crawl is shown without a click, well-formed and within its frame, whatever the crawl was."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from crawl_pipeline.defs.pictures import HEIGHT, SHOWN_AT_ONCE, WIDTH, answer_times, picture, statuses
from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.storage.crawl_history import SPANS, CrawlHistory, HostTimes

hosts = st.builds(
    HostTimes,
    authority=st.from_regex(r"[a-z0-9.-]{1,200}(:[0-9]{1,5})?", fullmatch=True),
    exchanges=st.integers(1, 10**9),
    mean=st.floats(0, 1e6),
    longest=st.floats(0, 1e6),
)
counts = st.lists(st.integers(0, 10**7), min_size=SPANS, max_size=SPANS).map(lambda n: [*n[:-1], n[-1] + 1])
histories = st.builds(
    CrawlHistory,
    began_at=st.just(datetime(2026, 1, 1, tzinfo=UTC)),
    span=st.floats(1 / SPANS, 1e6),
    outcomes=st.dictionaries(
        st.sampled_from([s.value for s in UrlState if s is not UrlState.ACTIVE]), counts, min_size=1
    ),
    statuses=st.dictionaries(st.one_of(st.just("none"), st.integers(100, 999).map(str)), st.integers(1, 10**9)),
    hosts=st.lists(hosts, max_size=5),
    host_count=st.integers(5, 10**6),
)


def svg_of(history: CrawlHistory) -> ET.Element:
    encoded = picture(history).split("base64,")[1].split(")")[0]
    return ET.fromstring(base64.b64decode(encoded))


@settings(max_examples=60)
@given(histories)
def test_everything_is_shown_without_a_click(history: CrawlHistory) -> None:
    for text in (picture(history), statuses(history), answer_times(history)):
        assert len(text.encode("utf-16-le")) < 2 * SHOWN_AT_ONCE
    for path in svg_of(history).iter("{http://www.w3.org/2000/svg}path"):
        assert {int(x) <= WIDTH for x in re.findall(r"H(\d+)", path.attrib["d"])} == {True}
        assert {int(y) <= HEIGHT for y in re.findall(r"V(\d+)", path.attrib["d"])} == {True}


def test_layers_lie_on_top_of_one_another() -> None:
    history = CrawlHistory(
        began_at=datetime(2026, 1, 1, tzinfo=UTC),
        span=1.0,
        outcomes={"rejected": [1] * SPANS, "accepted": [3] * SPANS},
        statuses={"200": 3 * SPANS, "404": SPANS},
        hosts=[],
        host_count=0,
    )
    rejected, accepted = (path.attrib["d"] for path in svg_of(history).iter("{http://www.w3.org/2000/svg}path"))
    assert rejected == f"M0 {HEIGHT}V0H{WIDTH}V{HEIGHT}z"
    assert accepted == f"M0 {HEIGHT}V{HEIGHT // 4}H{WIDTH}V{HEIGHT}z"
    assert "at most 4 a second, over 0:48: green accepted 144, orange rejected 48" in picture(history)

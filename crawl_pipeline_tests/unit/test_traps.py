"""Crawl traps: what leads ever on is cut, and what honest sites do is not."""

from __future__ import annotations

import timeit

import pytest

from crawl_pipeline.domain.contract import Contract, parse_contract
from crawl_pipeline.domain.outcomes import Reason
from crawl_pipeline.domain.pages import PageUrl
from crawl_pipeline.domain.scope import Admission, Refusal
from crawl_pipeline.domain.traps import Variants

BASE = "https://site.example/"


def contract(**limits: int) -> Contract:
    return parse_contract({"source": "site", "seeds": [BASE], "limits": limits}, file="test.yaml")


def admit(href: str, admission: Admission | None = None) -> PageUrl | Refusal:
    return (admission or Admission(contract())).admit(href, BASE, 1)


TRAPS = [
    ("/a/b/a/b/a/b/a/b", "limits.max_repeats 3: /a stands 4 times in the path"),
    ("/en/x/en/y/en/z/en/w", "limits.max_repeats 3: /en stands 4 times in the path"),
    ("/index.php/index.php/index.php/index.php", "limits.max_repeats 3: /index.php stands 4 times in the path"),
    ("/" + "/".join(f"d{n}" for n in range(21)), "limits.max_path_segments 20"),
]
HONEST = [
    "/forum/viewtopic.php?f=2&t=31337&start=20",
    "/forum/threads/a-long-title.12345/page-7#post-9",
    "/w/index.php?title=Main_Page&oldid=1234&diff=5678",
    "/wiki/Talk:A/Archive/Archive/1",
    "/a/a/",
    "/shop/shoes/women/shoes/red-shoes/",
    "/docs/3.12/library/library.html",
    "/en/latest/api/en/latest/",
    "/2024/01/15/a-post/",
    "/archive/11/11/11/11",
    "/list/0/0/0/0/0/1/0",
    "/org/apache/foo/foo/foo/Foo.html",
    "/repo/blob/0123456789abcdef0123456789abcdef01234567/src/main.py",
    "/item/0123456789abcdef0123456789abcdef/details",
    "/" + "/".join(f"d{n}" for n in range(20)) + "/",
    "/a/////b",
]


@pytest.mark.parametrize(("href", "rule"), TRAPS)
def test_a_path_that_leads_ever_on_is_a_trap(href: str, rule: str) -> None:
    assert admit(href) == Refusal(reason=Reason.TRAP, rule=rule)


@pytest.mark.parametrize("href", HONEST)
def test_shapes_of_honest_sites_are_pages(href: str) -> None:
    assert isinstance(admit(href), PageUrl)


def test_one_limit_that_is_raised_does_not_switch_the_other_off() -> None:
    admission = Admission(contract(max_repeats=100, max_path_segments=3))
    assert admit("/a/b/c/d", admission) == Refusal(reason=Reason.TRAP, rule="limits.max_path_segments 3")
    assert isinstance(admit("/a/a/a", admission), PageUrl)


def test_facets_of_one_path_are_cut_and_what_was_taken_stays() -> None:
    admission = Admission(contract(max_url_variants=50), remember=1)  # no cache: every link is judged again
    hrefs = [f"/shop?brand={n}&color=1&size=2&sort=3" for n in range(60)]
    assert [isinstance(admit(href, admission), PageUrl) for href in hrefs] == [True] * 50 + [False] * 10
    assert isinstance(admit(hrefs[0], admission), PageUrl)
    assert isinstance(admit("/other?brand=1&color=1&size=2&sort=3", admission), PageUrl)
    refused = admit(hrefs[-1], admission)
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.TRAP
    assert refused.rule == "limits.max_url_variants 50: so many queries of /shop were taken"


def test_queries_of_few_parameters_are_how_forums_name_their_pages() -> None:
    admission = Admission(contract(max_url_variants=5))
    assert all(isinstance(admit(f"/viewtopic.php?f=1&t={n}&start=0", admission), PageUrl) for n in range(500))


@pytest.mark.parametrize("shape", ["/s/{}/shop/item-1", "/sid={}/a", "/session/{}/a/b", "/app/(S({}))/default.aspx"])
def test_one_page_under_ever_new_session_ids_is_cut(shape: str) -> None:
    admission = Admission(contract())
    found = [isinstance(admit(shape.format(f"{n:024x}"), admission), PageUrl) for n in range(6)]
    assert found == [True] * 3 + [False] * 3
    assert (admission.take_traps(), admission.take_traps()) == (3, 0)


def test_a_session_id_as_a_path_parameter_is_no_part_of_a_page() -> None:
    page = admit("/shop;jsessionid=1A2B3C/item;v=2?x=1")
    assert isinstance(page, PageUrl)
    assert (page.url, page.canonical) == (BASE + "shop/item;v=2?x=1",) * 2
    assert admit("/shop;jsessionid=FFFF.node1/item;v=2?x=1") == page


def test_counts_are_bounded_and_forget_the_path_not_seen_for_longest() -> None:
    variants = Variants(contract(max_url_variants=2).limits, remember=10)

    def take(path: str, n: int) -> str | None:
        page = admit(f"{path}?a={n}&b=1&c=1&d=1")
        assert isinstance(page, PageUrl)
        return variants.trap(page)

    for n in range(100):
        assert take(f"/{n}", 1) is take(f"/{n}", 2) is None
    assert sum(len(known) for known in variants._known.values()) <= 10
    assert take("/99", 3) is not None
    assert take("/0", 3) is None


def test_a_known_link_costs_less_than_a_microsecond_more_than_before() -> None:
    admission = Admission(contract())
    hrefs = [f"{BASE}shop/item-{n}" for n in range(1_000)]
    admission.admit_all(hrefs, BASE, 1)
    seconds = min(timeit.repeat(lambda: admission.admit_all(hrefs, BASE, 1), number=5, repeat=5)) / 5 / 1_000
    assert seconds < 5e-6  # the whole of it; the machine may be busy

"""robots.txt: groups, rules, delays, hostile bytes."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawl_pipeline.domain.robots import (
    FRESH_FOR,
    FRESH_FOR_AT_LEAST,
    LONGEST_CRAWL_DELAY,
    LONGEST_ROBOTS,
    RobotsRules,
    RobotsVerdict,
    fresh_for,
    product_token,
    robots_verdict_for_status,
)
from crawl_pipeline_tests.conftest import Score

CORPUS = Path(__file__).parents[3] / "shared" / "corpora" / "robots" / "robots_core.jsonl"
KNOWN_GAPS = {
    211: "/robots.txt itself may always be asked for",
    217: "/robots.txt itself may always be asked for",
    221: "/robots.txt itself may always be asked for",
    362: "/robots.txt itself may always be asked for",
    1393: "%3A and : are one character to Protego, in rules and in URLs",
}
AGENT = "shop-bot/1.0 (+https://shop-bot.example)"


def rules(text: str | bytes) -> RobotsRules:
    return RobotsRules.from_bytes(text if isinstance(text, bytes) else text.encode())


def allows(text: str | bytes, path: str = "/a", agent: str = AGENT) -> bool:
    return rules(text).allows(agent, "https://h" + path)


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ("", True),
        ("User-agent: *\nDisallow: /", False),
        ("User-agent: *\nDisallow:", True),
        ("user-agent:*\ndisallow:/a", False),
        ("User-agent: shop-bot\nDisallow: /", False),
        ("User-agent: SHOP-BOT\nDisallow: /", False),
        ("User-agent: shop-bot/2.0\nDisallow: /", False),
        ("User-agent: shop-bot and friends\nDisallow: /", False),
        ("User-agent: shop\nDisallow: /", True),
        ("User-agent: shop-bots\nDisallow: /", True),
        ("User-agent: *\nDisallow: /\n\nUser-agent: shop-bot\nDisallow: /b", True),
        ("User-agent: *\nDisallow: /\n\nUser-agent: shop-bot\nCrawl-delay: 1", True),
        ("User-agent: shop-bot\nDisallow: /b\n\nUser-agent: shop-bot\nDisallow: /a", False),
        ("User-agent: x\n\nUser-agent: shop-bot\nDisallow: /", False),
        ("User-agent: x\nUnknown: y\nUser-agent: shop-bot\nDisallow: /", False),
        ("User-agent: shop-bot\n<br />\nDisallow: /\n<br />", False),
        ("User-agent: shop-bot\nSitemap: http://h/s\nDisallow: /", False),
        ("\ufeffUser-agent: *\nDisallow: /", False),
        (b"\xef\xbbUser-agent: *\nDisallow: /", False),
        ("User-agent: *\rDisallow: /\r", False),
        ("User-agent: * # all\nDisallow: / # nothing", False),
        ("User-agent *\nDisallow /a", False),
        ("User-agent\t*\nDisallow\t/a", False),
        ("User agent: *\nDissallow: /a", False),
        ("Disallow: /\nUser-agent: *", True),
        ("User-agent: *\nDisallow: /\nAllow: /a", True),
        ("User-agent: *\nDisallow: /*b\nAllow: /", True),
        ("User-agent: *\x0bDisallow: /", True),
        ("<html><body>Not found</body></html>", True),
        ("\x00\x01\x02" * 100, True),
    ],
)
def test_rule_holds_for_the_crawler_it_names(text: str | bytes, is_allowed: bool) -> None:
    assert allows(text) is is_allowed


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        (b"/caf\xe9", "/caf%E9"),
        ("/café".encode(), "/caf%C3%A9"),
        (b"/%7Euser", "/~user"),
        (b"/a%2fb", "/a%2Fb"),
        (b"/x?y=1", "/x?y=1&z"),
        (b"/*.gif$", "/b/c.gif"),
        (b"\xc2\x85/a", "/%C2%85/a"),
    ],
)
def test_rule_takes_the_url_in_every_encoding(rule: bytes, path: str) -> None:
    text = b"User-agent: *\nDisallow: /" + rule.lstrip(b"/")
    assert not allows(text, path)
    assert allows(text, "/other")


def test_robots_txt_itself_is_always_allowed() -> None:
    assert allows("User-agent: *\nDisallow: /", "/robots.txt")
    assert not allows("User-agent: *\nDisallow: /", "/robots.txt.html")


def test_explanation_names_the_line_that_decides() -> None:
    robots = rules("User-agent: *\nDisallow: /shop\nAllow: /shop/open/\nDisallow: /shop/open/secret")
    assert robots.rule(AGENT, "https://h/shop/1") == "Disallow: /shop"
    assert robots.rule(AGENT, "https://h/shop/open/1") == "Allow: /shop/open/"
    assert robots.rule(AGENT, "https://h/shop/open/secret/1") == "Disallow: /shop/open/secret"
    assert robots.rule(AGENT, "https://h/") is None
    assert robots.rule(AGENT, "https://h/robots.txt") is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("5", 5),
        ("0", 0),
        ("0.5", 0.5),
        (".25", 0.25),
        ("1.", 1),
        ("999999999", 86_400),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("1e9", None),
        ("ten", None),
        ("1 second", None),
        ("\u0663", None),
        ("", None),
    ],
)
def test_crawl_delay_is_kept_where_it_can_be_obeyed(value: str, seconds: float | None) -> None:
    delay = rules(f"User-agent: *\nCrawl-delay: {value}\n").crawl_delay(AGENT)
    assert delay == (None if seconds is None else timedelta(seconds=seconds))
    assert delay is None or delay <= LONGEST_CRAWL_DELAY


def test_crawl_delay_is_that_of_the_crawlers_own_group() -> None:
    text = "User-agent: *\nCrawl-delay: 9\n\nUser-agent: shop-bot\nCrawl-delay: 2\n\nUser-agent: x\nCrawl-delay: 30\n"
    assert rules(text).crawl_delay(AGENT) == timedelta(seconds=2)
    assert rules(text).crawl_delay("other/1") == timedelta(seconds=9)
    assert rules("User-agent: *\nCrawl-delay: 9\nUser-agent: shop-bot\nDisallow: /b").crawl_delay(AGENT) is None


def test_of_two_delays_the_longer_one_holds() -> None:
    assert rules("User-agent: *\nCrawl-delay: 3\nCrawl-delay: 1").crawl_delay(AGENT) == timedelta(seconds=3)


def test_crawl_delay_after_rules_belongs_to_the_same_group() -> None:
    assert rules("User-agent: *\nDisallow: /b\nCrawl-delay: 3").crawl_delay(AGENT) == timedelta(seconds=3)


def test_sitemaps_are_listed_once_each_wherever_they_stand() -> None:
    text = "Sitemap: http://h/1\nUser-agent: x\nsitemap:http://h/2\nDisallow: /\nSitemap: http://h/1\nSitemap:\n"
    assert rules(text).sitemaps == ("http://h/1", "http://h/2")


@pytest.mark.parametrize(
    ("user_agent", "token"),
    [
        ("shop-bot/1.0 (+https://h)", "shop-bot"),
        ("crawl_pipeline/0.1", "crawl_pipeline"),
        ("Bot", "Bot"),
        ("Bot (contact: a@b.example)", "Bot"),
        ("Mozilla/5.0 (compatible; ShopBot/1.0; +https://h)", "ShopBot"),
        ("Mozilla/5.0 (X11; Linux)", "Mozilla"),
        ("bot42/1.0", None),
        ("My Bot/1.0", None),
        ("", None),
        ("/1.0", None),
    ],
)
def test_product_token_is_the_name_that_robots_txt_uses(user_agent: str, token: str | None) -> None:
    assert product_token(user_agent) == token


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, RobotsVerdict.PARSE),
        (204, RobotsVerdict.PARSE),
        (304, RobotsVerdict.UNAVAILABLE),
        (301, RobotsVerdict.ALLOW_ALL),
        (400, RobotsVerdict.ALLOW_ALL),
        (401, RobotsVerdict.ALLOW_ALL),
        (403, RobotsVerdict.ALLOW_ALL),
        (404, RobotsVerdict.ALLOW_ALL),
        (410, RobotsVerdict.ALLOW_ALL),
        (451, RobotsVerdict.ALLOW_ALL),
        (429, RobotsVerdict.UNAVAILABLE),
        (500, RobotsVerdict.UNAVAILABLE),
        (503, RobotsVerdict.UNAVAILABLE),
        (599, RobotsVerdict.UNAVAILABLE),
        (None, RobotsVerdict.UNAVAILABLE),
    ],
)
def test_status_of_robots_txt_is_judged_by_rfc_9309(status: int | None, verdict: RobotsVerdict) -> None:
    assert robots_verdict_for_status(status) is verdict


def test_only_the_first_500_kib_are_read_and_no_half_line() -> None:
    head = b"User-agent: *\nDisallow: /b\n"
    filler = b"#" * (LONGEST_ROBOTS - len(head) - len(b"\nDisallow: /")) + b"\n"
    assert allows(head + filler + b"Disallow: /a\n")
    assert not allows(head + filler + b"Disallow: /a\n", "/b")
    assert not allows(head + b"Disallow: /a\n" + filler * 3)


def test_file_of_names_and_rules_only_costs_no_square() -> None:
    """Blocks are shared between names: copied, these 36,000 lines would make 300 million rules."""
    names = "".join(f"User-agent: n{'a' * (n % 7)}\n" for n in range(18_000))
    text = names + "User-agent: *\n" * 9_000 + "Disallow: /a\n" * 9_000 + "Sitemap: x\n" * 100
    robots = rules(text)
    assert not robots.allows(AGENT, "https://h/a")
    assert robots.allows(AGENT, "https://h/b")


@pytest.mark.parametrize(
    ("cache_control", "expected"),
    [
        (None, FRESH_FOR),
        ("", FRESH_FOR),
        ("public", FRESH_FOR),
        ("max-age=3600", timedelta(hours=1)),
        ('public, Max-Age="3600"', timedelta(hours=1)),
        ("max-age=7200, max-age=3600", timedelta(hours=1)),
        ("max-age=86401", FRESH_FOR),
        ("max-age=" + "9" * 5000, FRESH_FOR),
        ("max-age=0", FRESH_FOR_AT_LEAST),
        ("max-age=-1", FRESH_FOR_AT_LEAST),
        ("max-age=soon", FRESH_FOR_AT_LEAST),
        ("max-age=", FRESH_FOR_AT_LEAST),
        ("max-age=\u0665", FRESH_FOR_AT_LEAST),
        ("no-store", FRESH_FOR_AT_LEAST),
        ("private, no-cache, max-age=3600", FRESH_FOR_AT_LEAST),
        ("s-maxage=60", FRESH_FOR),
        ("s-maxage=junk, x-max-age=5", FRESH_FOR),
        ("max-age=3600, s-maxage=1", timedelta(hours=1)),
    ],
)
def test_copy_is_fresh_for_what_cache_control_says_within_bounds(
    cache_control: str | None, expected: timedelta
) -> None:
    assert fresh_for(cache_control) == expected


@given(st.text(alphabet='max-age=sno-tore,;" \t0123456789\u0665\xff'))
def test_no_cache_control_makes_it_raise(cache_control: str) -> None:
    assert FRESH_FOR_AT_LEAST <= fresh_for(cache_control) <= FRESH_FOR
    assert FRESH_FOR_AT_LEAST <= fresh_for("max-age=" + cache_control) <= FRESH_FOR


ROBOTS = st.lists(
    st.sampled_from(
        (
            *(b"User-agent: ", b"Disallow: ", b"Allow: /", b"Crawl-delay: ", b"Sitemap: ", b"*", b"/", b"$", b"%zz"),
            *(b"%", b"\n", b"\r", b"#", b":", b" ", b"shop-bot", b"\xff", b"\x00", b"\xc3\xa9", b"1e5", b"http://["),
        )
    )
).map(b"".join)


@given(body=st.one_of(ROBOTS, st.binary()), agent=st.text(), path=st.text())
def test_no_bytes_make_it_raise(body: bytes, agent: str, path: str) -> None:
    robots = RobotsRules.from_bytes(body)
    robots.allows(agent, "https://h/" + path)
    robots.rule(agent, "https://h/" + path)
    robots.crawl_delay(agent)
    assert all(robots.sitemaps)


@pytest.mark.conformance
def test_published_cases_are_decided_as_their_authors_say(score: Score) -> None:
    if not CORPUS.exists():
        pytest.skip("the conformance data is not there: ../shared/corpora")
    cases = [json.loads(line) for line in CORPUS.read_bytes().splitlines()]
    wrong = set()
    for case in cases:
        body = case["robots"].encode() if "robots" in case else base64.b64decode(case["robots_b64"])
        if RobotsRules.from_bytes(body).allows(case["user_agent"], case["url"]) != case["allowed"]:
            wrong.add(case["id"])
    assert wrong == set(KNOWN_GAPS)
    assert len(cases) == 1_214
    score("robots: core", len(cases) - len(wrong), 1_214)

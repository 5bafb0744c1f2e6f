"""robots.txt: what a site asks of a crawler, by RFC 9309, with the spelling mistakes that Google's parser forgives.

Groups are found here; whether a rule takes a URL is Protego's word. Fetching and expiry are `pipeline.robots_gate`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from typing import TypeVar

from protego import Protego

from crawl_pipeline.domain.urls import canonical_path

LONGEST_ROBOTS = 500 * 1024  # bytes that are read (RFC 9309, section 2.5)
LONGEST_CRAWL_DELAY = timedelta(days=1)  # what a site may ask at all; the contract's cap is far below
_BOM = b"\xef\xbb\xbf"
_TOKEN = re.compile(r"[A-Za-z_-]+")
_PRODUCT = re.compile(r"([A-Za-z_-]+)\s*(?:/.*|\(.*)?", re.DOTALL)
_COMPATIBLE = re.compile(r"Mozilla/[^(]*\(compatible;\s*([A-Za-z_-]+)\s*[/;)]")
_FIELDS = {
    "user-agent": "agent", "useragent": "agent", "user agent": "agent",
    "allow": "allow",
    "disallow": "disallow", "dissallow": "disallow", "dissalow": "disallow", "disalow": "disallow",
    "diasllow": "disallow", "disallaw": "disallow",
    "crawl-delay": "delay", "crawldelay": "delay", "crawl delay": "delay",
    "sitemap": "sitemap", "site-map": "sitemap",
}  # fmt: skip
# Each costs every URL a scan. Who writes more means to hold crawlers up: then all is disallowed.
MOST_WILDCARDS = 2_000
FRESH_FOR = timedelta(hours=24)  # RFC 9309, section 2.4: a copy is used for no longer
FRESH_FOR_AT_LEAST = timedelta(minutes=5)  # also where the site forbids caching: one fetch serves many pages
_MAX_AGE = re.compile(r"""(?:^|[,;\s])max-age\s*=\s*"?([^",;\s]*)""", re.IGNORECASE)
_NOT_STORED = re.compile(r"(?:^|[,;\s])no-(?:store|cache)\b", re.IGNORECASE)
_DELAY = re.compile(r"[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}", re.ASCII)


class RobotsVerdict(StrEnum):
    """What the status of a robots.txt answer means (RFC 9309, section 2.3.1)."""

    PARSE = "parse"  # the body holds the rules, if it has any
    ALLOW_ALL = "allow_all"  # there is no robots.txt
    UNAVAILABLE = "unavailable"  # nobody knows: the host waits


def robots_verdict_for_status(status: int | None) -> RobotsVerdict:
    """Judge the final answer for robots.txt; None: no answer at all.

    4xx but 429 allows everything, and so does a redirect that leads nowhere; 429, 5xx and silence allow nothing yet,
    nor does a 304, since nobody asked whether it changed.
    """
    if status is None or status in (304, 429) or status >= 500 or status < 200:
        return RobotsVerdict.UNAVAILABLE
    if status < 300:
        return RobotsVerdict.PARSE
    return RobotsVerdict.ALLOW_ALL


def fresh_for(cache_control: str | None) -> timedelta:
    """How long a copy of robots.txt may be used: what Cache-Control says, within five minutes and a day. Never raises.

    A max-age that is no number counts as zero (RFC 9111, section 4.2.1); s-maxage is for shared caches.
    """
    text = cache_control or ""
    if _NOT_STORED.search(text):
        return FRESH_FOR_AT_LEAST
    ages = _MAX_AGE.findall(text)
    if not ages:
        return FRESH_FOR
    seconds = min(int(age[:9]) if re.fullmatch("[0-9]+", age) else 0 for age in ages)
    return min(max(timedelta(seconds=seconds), FRESH_FOR_AT_LEAST), FRESH_FOR)


def product_token(user_agent: str) -> str | None:
    """The name that robots.txt calls a crawler by: `shop-bot` of `shop-bot/1.0 (+https://…)`, or the name after
    `Mozilla/5.0 (compatible;`. None where the text has no such name: then only the rules for `*` speak to it.
    """
    match = _COMPATIBLE.match(user_agent) or _PRODUCT.fullmatch(user_agent.strip())
    return match[1] if match else None


_Rule = tuple[str, str]  # ("allow" or "disallow", value)
_Item = TypeVar("_Item")


class RobotsRules:
    """The rules of one robots.txt. Cost and memory are linear in its bytes; never raises, whatever they are."""

    def __init__(self) -> None:
        # Several names may share one block of rules, and one name may have several: blocks are shared, never copied.
        self._rules: dict[str, list[list[_Rule]]] = {}
        self._delays: dict[str, list[list[timedelta]]] = {}
        self._matchers: dict[str, Protego] = {}
        self.sitemaps: tuple[str, ...] = ()

    @classmethod
    def from_bytes(cls, body: bytes) -> RobotsRules:
        """Read the first 500 KiB; a line cut there is not read. Bytes beyond ASCII stand for their escapes."""
        robots = cls()
        sitemaps: dict[str, None] = {}
        rules: list[_Rule] = []
        delays: list[timedelta] = []
        is_naming = is_naming_for_delays = False  # whether the last line that counts was a User-agent
        for kind, value in _lines(body):
            if kind == "sitemap":
                if value:
                    sitemaps.setdefault(value)
                continue
            if kind == "agent":
                rules = rules if is_naming else []
                delays = delays if is_naming_for_delays else []
                name = _agent_name(value)
                if name is not None:
                    _add(robots._rules.setdefault(name, []), rules)
                    _add(robots._delays.setdefault(name, []), delays)
            elif kind == "delay":
                delays.extend(_delay(value))
            elif value:
                rules.append((kind, value))
            # Crawl-delay ends a list of names for delays only: to RFC 9309 it is no rule, so it ends none.
            is_naming = kind == "agent" or (kind == "delay" and is_naming)
            is_naming_for_delays = kind == "agent"
        robots.sitemaps = tuple(sitemaps)
        return robots

    def allows(self, user_agent: str, url: str) -> bool:
        """Whether the crawler may request `url`, a serialised URL. `/robots.txt` itself always may (Protego's rule)."""
        return self._matcher(user_agent).can_fetch(url, "*")

    def rule(self, user_agent: str, url: str) -> str | None:
        """The line that decides about `url`, for people; None when no rule takes it. Slow: for explanations."""
        if canonical_path(url) == "/robots.txt":
            return None
        rules = sorted(self._rules_for(user_agent), key=lambda rule: (len(rule[1]), rule[0] == "allow"), reverse=True)
        for kind, value in rules:
            if not _matcher([("disallow", value)]).can_fetch(url, "*"):
                return f"{kind.capitalize()}: {value}"
        return None

    def crawl_delay(self, user_agent: str) -> timedelta | None:
        """The least time between requests that the site asks for, at most a day; None if it asks for none."""
        blocks = self._delays.get(self._name_of(user_agent), [])
        return max((delay for block in blocks for delay in block), default=None)

    def _name_of(self, user_agent: str) -> str:
        token = product_token(user_agent)
        return token.lower() if token and token.lower() in self._rules else "*"

    def _rules_for(self, user_agent: str) -> list[_Rule]:
        return [rule for block in self._rules.get(self._name_of(user_agent), []) for rule in block]

    def _matcher(self, user_agent: str) -> Protego:
        matcher = self._matchers.get(user_agent)
        if matcher is None:
            rules = self._rules_for(user_agent)
            if sum("*" in value for _, value in rules) > MOST_WILDCARDS:
                rules = [("disallow", "/")]
            matcher = self._matchers[user_agent] = _matcher(rules)
        return matcher


def _matcher(rules: list[tuple[str, str]]) -> Protego:
    return Protego.parse("User-agent: *\n" + "".join(f"{kind}: {value}\n" for kind, value in rules))


def _add(blocks: list[list[_Item]], block: list[_Item]) -> None:
    if not blocks or blocks[-1] is not block:
        blocks.append(block)


def _agent_name(value: str) -> str | None:
    """The name before anything that a product token cannot hold (`foo bar` and `foo/1.2` both name foo)."""
    if value[:1] == "*" and not value[1:2].strip():
        return "*"
    match = _TOKEN.match(value)
    return match[0].lower() if match else None


def _delay(value: str) -> tuple[timedelta, ...]:
    """The delay, or nothing for what could not be obeyed: negative, infinite, words."""
    return (min(timedelta(seconds=float(value)), LONGEST_CRAWL_DELAY),) if _DELAY.fullmatch(value) else ()


def _lines(body: bytes) -> Iterator[tuple[str, str]]:
    """The lines that say something, as (kind, value)."""
    for skipped in range(3, 0, -1):  # a whole byte order mark, or what editors have left of one
        body = body.removeprefix(_BOM[:skipped])
    if len(body) > LONGEST_ROBOTS:
        body = body[:LONGEST_ROBOTS]
        body = body[: max(body.rfind(b"\n"), body.rfind(b"\r")) + 1]
    text = re.sub(rb"[\x80-\xff]", lambda match: b"%%%02X" % match[0][0], body).decode("ascii")
    for raw in re.split("[\r\n]+", text):
        line = raw.partition("#")[0].strip()
        name, _, value = line.partition(":")
        kind = _FIELDS.get(name.strip().lower())
        if kind is None:
            name, _, value = line.partition(" ") if "\t" not in line else line.replace("\t", " ").partition(" ")
            kind = _FIELDS.get(name.lower())
        if kind is not None:
            yield kind, value.strip()

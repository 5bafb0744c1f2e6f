"""The contract: what it takes, what it refuses and in which words, and its hashes."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from crawl_pipeline.domain.contract import Contract, parse_contract
from crawl_pipeline.domain.contract_schema import keys_table, schema_text
from crawl_pipeline.domain.contract_warnings import is_local, warnings
from crawl_pipeline.errors import ContractError

PROJECT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {"source": "shop", "seeds": ["https://shop.example/list/0"]}
FIELDS = {"sku": {"css": ".sku", "required": True}, "price": {"css": ".p", "type": "decimal"}, "title": {"css": "h1"}}
PRODUCT: dict[str, Any] = {"type": "product", "key": ["sku"], "fields": FIELDS}


def contract(**keys: Any) -> Contract:
    return parse_contract({**SMALL, **keys}, file="shop.yaml")


def faults(data: Any, check_selector: Any = None) -> dict[str, str]:
    with pytest.raises(ContractError) as caught:
        parse_contract(data, file="shop.yaml", check_selector=check_selector)
    assert caught.value.exit_code == 2
    return {fault.path: fault.message for fault in caught.value.faults}


def record(**keys: Any) -> dict[str, Any]:
    return {"records": [{**PRODUCT, **keys}]}


def field(**keys: Any) -> dict[str, Any]:
    return record(fields={**FIELDS, "title": keys})


def test_small_contract_has_a_finite_default_for_every_limit() -> None:
    found = contract()
    assert found.limits.model_dump(mode="json") == {
        "max_depth": 20,
        "max_pages": 10_000,
        "max_urls": 100_000,
        "max_duration": "6h",
        "max_idle": "5m",
        "max_repeats": 3,
        "max_path_segments": 20,
        "max_url_variants": 1_000,
        "max_links_per_page": 2_000,
        "max_in_flight": 64,
    }
    assert found.urls.drop_query == ("utm_*", "gclid", "fbclid", "jsessionid")
    assert (found.urls.keep_query, found.urls.sort_query, found.urls.trailing_slash) == (None, True, "keep")
    assert (found.politeness.slots, found.politeness.min_delay) == (2, timedelta(seconds=1))
    assert (found.politeness.robots, found.politeness.max_crawl_delay) == ("obey", timedelta(seconds=60))
    assert found.politeness.max_retry_after == timedelta(hours=1)
    assert (found.fetch.client, found.fetch.renderer, found.fetch.tries) == ("libcurl", "none", 4)
    assert (found.fetch.timeout, found.fetch.page_timeout) == (timedelta(seconds=30), timedelta(minutes=2))
    assert found.fetch.max_bytes == 10_000_000
    assert found.fetch.types == ("text/html", "application/xhtml+xml")
    assert found.fetch.allow_networks == ()
    assert (found.freshness.window, found.freshness.interval) == (timedelta(hours=24), None)
    assert found.freshness.min == timedelta(hours=1)
    assert (found.accept.min_text_chars, found.accept.language) == (1, None)
    assert (found.retention.versions, found.retention.age) == (20, timedelta(days=365))
    assert (found.sitemaps, found.scope.skip_types, found.scope.follow_nofollow) == ("auto", "default", False)


def test_hosts_left_out_are_those_of_the_seeds() -> None:
    found = contract(seeds=["http://127.0.0.1:8800/a", "https://B.example/", "https://b.example/c"])
    assert found.scope.hosts == ("127.0.0.1:8800", "b.example")


def test_hosts_are_kept_in_canonical_form() -> None:
    hosts = ["SHOP.example", "BÜCHER.example", "*.Shop.example:8080", "[0:0::1]:81"]
    found = contract(scope={"hosts": hosts})
    assert found.scope.hosts == ("shop.example", "xn--bcher-kva.example", "*.shop.example:8080", "[::1]:81")


def test_one_text_may_stand_for_a_list_of_path_globs() -> None:
    found = contract(scope={"include": "/list/**"}, freshness={"rules": [{"match": "/list/**", "window": "2h"}]})
    assert found.scope.include == ("/list/**",)
    assert found.freshness.rules[0].match == ("/list/**",)


def test_least_interval_left_out_is_never_longer_than_a_window() -> None:
    assert contract(freshness={"window": "30m"}).freshness.min == timedelta(minutes=30)
    rules = [{"match": "/a", "window": "10m"}]
    assert contract(freshness={"rules": rules}).freshness.min == timedelta(minutes=10)


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("unknown key", {"polite": {}}, "polite", 'is no key of a contract here; did you mean "politeness"?'),
    ("unknown key within", {"limits": {"max_page": 1}}, "limits.max_page", 'did you mean "max_pages"?'),
    ("unknown key of a field", field(csss=".x"), "records[0].fields.title.csss", 'did you mean "css"?'),
    ("unknown key, nothing near", {"zzz": 1}, "zzz", "keys are source, description, owner, scope"),
    ("source", {"source": "My Shop"}, "source", '"My Shop": use lower-case letters, digits and _'),
    ("number as a source", {"source": 1}, "source", "1: use text; quote it"),
    ("owner", {"owner": "bob"}, "owner", "use team:NAME or an email address"),
    ("no seeds", {"seeds": []}, "seeds", "name at least one"),
    ("one seed as text", {"seeds": "https://h/"}, "seeds", "use a list, such as [a, b]"),
    ("seed of another scheme", {"seeds": ["ftp://h/"]}, "seeds[0]", "not http or https: use an http or https URL"),
    ("seed outside", {"scope": {"hosts": ["x.example"]}}, "seeds[0]", "is out of scope (scope.hosts: none is shop."),
    ("seed excluded", {"scope": {"exclude": ["/list/**"]}}, "seeds[0]", "is out of scope (scope.exclude /list/**)"),
    ("seed not included", {"scope": {"include": ["/x"]}}, "seeds[0]", "is out of scope (scope.include: no glob"),
    ("sitemaps", {"sitemaps": "aut"}, "sitemaps", '"aut": use auto or none or a list'),
    ("sitemap", {"sitemaps": ["/sitemap.xml"]}, "sitemaps[0]", "not a URL: use an http or https URL"),
    (
        "sitemap elsewhere",
        {"scope": {"hosts": ["shop.example"]}, "sitemaps": ["https://x.example/s.xml"]},
        "sitemaps[0]",
        "is out of scope (scope.hosts: none is x.example)",
    ),
    ("host with scheme", {"scope": {"hosts": ["http://h"]}}, "scope.hosts[0]", "no scheme, no path"),
    ("host with default port", {"scope": {"hosts": ["h:443"]}}, "scope.hosts[0]", "leave out the default port: h"),
    ("host wildcard", {"scope": {"hosts": ["*"]}}, "scope.hosts[0]", "use a host name"),
    ("host that is none", {"scope": {"hosts": ["a..%"]}}, "scope.hosts[0]", "is no host name"),
    ("relative glob", {"scope": {"include": ["news"]}}, "scope.include[0]", '"news": a path glob starts with /'),
    ("glob with query", {"scope": {"exclude": ["/a?b"]}}, "scope.exclude[0]", "leave out the query"),
    ("half a **", {"scope": {"exclude": ["/a**"]}}, "scope.exclude[0]", "** stands for whole segments"),
    ("skip_types", {"scope": {"skip_types": "none"}}, "scope.skip_types", "use default or a list"),
    ("file ending", {"scope": {"skip_types": ["*.jpg"]}}, "scope.skip_types[0]", "use a file ending"),
    ("quoted bool", {"scope": {"follow_nofollow": "yes"}}, "scope.follow_nofollow", '"yes": use true or false'),
    ("quoted number", {"limits": {"max_pages": "10"}}, "limits.max_pages", '"10": use a whole number'),
    ("fraction", {"limits": {"max_pages": 1.5}}, "limits.max_pages", "1.5: use a whole number"),
    ("bool as number", {"limits": {"max_pages": True}}, "limits.max_pages", "use a whole number"),
    ("zero", {"limits": {"max_pages": 0}}, "limits.max_pages", "0: use 1 or more"),
    ("negative", {"limits": {"max_depth": -1}}, "limits.max_depth", "-1: use 0 or more"),
    ("empty section", {"limits": None}, "limits", "has no value: give it keys and values, or leave it out"),
    ("section as text", {"limits": "none"}, "limits", "give it keys and values, or leave it out"),
    ("no unit", {"limits": {"max_idle": 30}}, "limits.max_idle", "30: use a duration such as 1s, 500ms or 2m"),
    ("odd unit", {"politeness": {"min_delay": "1 sec"}}, "politeness.min_delay", '"1 sec": use a duration'),
    ("negative delay", {"politeness": {"min_delay": "-1s"}}, "politeness.min_delay", "use a duration"),
    ("endless", {"limits": {"max_duration": "99999d"}}, "limits.max_duration", "use at most 3650d"),
    ("zero timeout", {"fetch": {"timeout": "0s"}}, "fetch.timeout", "use a duration above zero"),
    ("query glob", {"urls": {"drop_query": ["a=b"]}}, "urls.drop_query[0]", "use a parameter's name"),
    ("slash", {"urls": {"trailing_slash": "remove"}}, "urls.trailing_slash", '"remove": use keep or strip'),
    ("robots", {"politeness": {"robots": "no"}}, "politeness.robots", '"no": use obey or ignore'),
    ("agent", {"politeness": {"user_agent": "a\nb"}}, "politeness.user_agent", "use one line"),
    ("nameless agent", {"politeness": {"user_agent": "My Bot/1"}}, "politeness.user_agent", "start with a name"),
    ("client", {"fetch": {"client": "httpx"}}, "fetch.client", '"httpx": use libcurl or requests'),
    ("renderer", {"fetch": {"renderer": "chromium"}}, "fetch.renderer", "pages are not rendered: use none"),
    ("NUL", {"description": "a\0b"}, "description", "holds a NUL or half a character"),
    ("surrogate", {"fetch": {"headers": {"A": "\ud800"}}}, "fetch.headers.A", "holds a NUL or half a character"),
    ("proxy", {"fetch": {"proxy": "http://p"}}, "fetch.proxy", "no contract names a proxy"),
    ("size", {"fetch": {"max_bytes": "10 meg"}}, "fetch.max_bytes", "use a size such as 500KB, 10MB or 1GiB"),
    ("media type", {"fetch": {"types": ["html"]}}, "fetch.types[0]", "use a media type such as text/html"),
    ("no types", {"fetch": {"types": []}}, "fetch.types", "name at least one"),
    ("network", {"fetch": {"allow_networks": ["10.0.0.1/8"]}}, "fetch.allow_networks[0]", "use a network such as"),
    ("own header", {"fetch": {"headers": {"Host": "A"}}}, "fetch.headers.Host", "the crawler sets by itself"),
    ("header name", {"fetch": {"headers": {"a b": "A"}}}, "fetch.headers.a b", "use the name of a header"),
    ("interval", {"freshness": {"window": "1h", "interval": "2h"}}, "freshness.interval", "is longer than the window"),
    ("min", {"freshness": {"window": "1h", "min": "2h"}}, "freshness.min", "is longer than freshness.window"),
    (
        "min of a rule",
        {"freshness": {"min": "2h", "rules": [{"match": "/a", "window": "1h"}]}},
        "freshness.min",
        "is longer than freshness.rules[0].window",
    ),
    ("rule without window", {"freshness": {"rules": [{"match": "/a"}]}}, "freshness.rules[0].window", "is missing"),
    ("language", {"accept": {"language": "english please"}}, "accept.language", "use a language tag such as en"),
    ("empty selector", {"accept": {"require": [" "]}}, "accept.require[0]", "use a CSS selector"),
    ("record type", record(type="Product"), "records[0].type", "use lower-case letters"),
    ("no key", record(key=[]), "records[0].key", "name at least one"),
    ("key of no field", record(key=["skuu"]), "records[0].key", '"skuu" names no field; fields are sku, price, title'),
    ("key twice", record(key=["sku", "sku"]), "records[0].key", "names a field twice"),
    ("nothing to yield", record(fields={}), "records[0]", "yields nothing: give it fields, or python"),
    ("both", record(python="a.b:c"), "records[0].python", "goes instead of fields: keep one of them"),
    ("python", record(python="a.b.c", fields={}), "records[0].python", "use module:function"),
    ("python with each", record(python="a:b", fields={}, each=".x"), "records[0].each", "goes with fields only"),
    ("two of a type", {"records": [PRODUCT, PRODUCT]}, "records[1].type", "is the type of records[0] already"),
    ("max_drop", record(guard={"max_drop": 1.5}), "records[0].guard.max_drop", "1.5: use 1 or less"),
    ("field name", record(fields={**FIELDS, "a b": {"css": "x"}}), "records[0].fields.a b", "a letter first"),
    ("no origin", field(type="int"), "records[0].fields.title", "say where the field comes from"),
    ("two origins", field(css="h1", json_ld="A.b"), "records[0].fields.title", "has css and json_ld: keep one"),
    ("attr", field(json_ld="A.b", attr="x"), "records[0].fields.title.attr", "goes with css only"),
    ("path", field(json_ld="name"), "records[0].fields.title.json_ld", "such as Product.name"),
    ("field type", field(css="h1", type="money"), "records[0].fields.title.type", "use str, int, float, decimal, bool"),
    ("useless default", field(css="a", required=True, default="x"), "records[0].fields.title.default", "never used"),
    ("default", field(css="a", type="int", default="x"), "records[0].fields.title.default", "is not of type int"),
    ("decimal", field(css="a", type="decimal", default=1.5), "records[0].fields.title.default", "decimal; quote it"),
    ("list", field(css="a", default=[1]), "records[0].fields.title.default", "use a single value"),
    ("versions", {"retention": {"versions": 0}}, "retention.versions", "0: use 1 or more"),
    ("kept versions", {"retention": {"versions": 5}}, "retention.versions", "old page versions are not deleted yet"),
    ("kept age", {"retention": {"age": "30d"}}, "retention.age", "old page versions are not deleted yet"),
]


@pytest.mark.parametrize(("keys", "path", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_fault_is_told_with_its_place_and_what_to_write(keys: dict[str, Any], path: str, message: str) -> None:
    found = faults({**SMALL, **keys})
    assert list(found) == [path]
    assert message in found[path]


@pytest.mark.parametrize("data", [None, [], "x", 1, {1: 2}])
def test_what_is_no_contract_at_all_is_refused(data: Any) -> None:
    assert faults(data)


def test_missing_keys_are_named() -> None:
    assert faults({}) == {"source": "is missing", "seeds": "is missing"}


def test_all_faults_of_all_sections_are_reported_together() -> None:
    keys = {
        "polite": 1,
        "seeds": ["ftp://x/", "https://shop.example/", "https://other.example/"],
        "scope": {"hosts": ["shop.example"]},
        "politeness": {"min_delay": "1 sec", "slots": 0},
        "freshness": {"window": "1h", "interval": "2h"},
        "records": [{**PRODUCT, "key": ["x"]}, {**PRODUCT, "fields": {"sku": {}}}],
    }
    assert set(faults({**SMALL, **keys})) == {
        "polite",
        "seeds[0]",
        "seeds[2]",
        "politeness.min_delay",
        "politeness.slots",
        "freshness.interval",
        "records[0].key",
        "records[1].fields.sku",
    }


def test_every_selector_is_judged_by_who_can_read_css() -> None:
    rule = {**PRODUCT, "each": "bad2", "fields": {"sku": {"css": "bad3", "required": True}}}
    keys = {"accept": {"require": ["h1", "bad0"], "ignore": ["bad1"]}, "records": [rule]}
    found = faults({**SMALL, **keys}, lambda css: f"no CSS: {css}" if css.startswith("bad") else None)
    assert found == {
        "accept.require[1]": '"bad0": no CSS: bad0',
        "accept.ignore[0]": '"bad1": no CSS: bad1',
        "records[0].each": '"bad2": no CSS: bad2',
        "records[0].fields.sku.css": '"bad3": no CSS: bad3',
    }


@pytest.mark.parametrize(
    "keys",
    [
        {"fetch": {"headers": {"Authorization": "Bearer hunter2"}}},
        {"fetch": {"headers": "Authorization: hunter2"}},
        {"fetch": {"proxy": "http://u:hunter2@p/"}},
        {"seeds": ["https://u:hunter2@shop.example/"]},
        {"seeds": "https://u:hunter2@shop.example/"},
        {"sitemaps": ["https://u:hunter2@shop.example/"]},
        {"scope": {"hosts": ["https://u:hunter2@shop.example/"]}},
    ],
)
def test_secret_written_by_mistake_is_never_repeated(keys: dict[str, Any]) -> None:
    with pytest.raises(ContractError) as caught:
        contract(**keys)
    assert "hunter2" not in str(caught.value)


def test_key_fields_of_an_own_extractor_need_no_declaration() -> None:
    assert contract(**record(python="my_team.extractors:products", fields={})).records[0].key == ("sku",)


def test_defaults_are_values_of_their_type() -> None:
    fields = {
        "a": {"css": "a", "type": "decimal", "default": "1.50"},
        "b": {"css": "a", "type": "bool", "default": False},
        "c": {"css": "a", "type": "date", "default": yaml.safe_load("2026-03-01")},
        "d": {"css": "a", "type": "float", "default": 1},
        "e": {"css": "a", "default": ""},
    }
    rule = contract(**record(fields={**FIELDS, **fields})).records[0]
    assert [rule.fields[name].default for name in "abcde"] == ["1.50", False, "2026-03-01", 1, ""]


@pytest.mark.parametrize(
    ("keys", "size"), [("10MB", 10_000_000), ("512KiB", 524_288), ("1.5kB", 1_500), (1_000, 1_000), ("2000", 2_000)]
)
def test_size_is_exact(keys: Any, size: int) -> None:
    assert contract(fetch={"max_bytes": keys}).fetch.max_bytes == size


FULL = {
    "politeness": {"min_delay": "250ms", "user_agent": "shop-bot/1.0 (+https://h)"},
    "fetch": {"max_bytes": "1MiB", "headers": {"Authorization": "SHOP_TOKEN"}},
    "freshness": {"window": "90m", "interval": "1h", "rules": [{"match": "/a", "window": "1.5d"}]},
    "urls": {"keep_query": ["id"], "drop_query": []},
    "sitemaps": ["https://shop.example/s.xml"],
    "scope": {"skip_types": ["pdf"]},
    **record(each=".item", guard={"max_drop": 1}),
}


@pytest.mark.parametrize("keys", [{}, FULL, record(python="a.b:c", fields={})])
def test_stored_contract_is_the_contract(keys: dict[str, Any]) -> None:
    found = contract(**keys)
    again = Contract.from_json(found.to_json())
    assert again == found
    assert again.to_json() == found.to_json()
    assert (again.version, again.extractor_fingerprint) == (found.version, found.extractor_fingerprint)


def test_stored_contract_with_a_key_of_a_newer_version_is_refused_in_words() -> None:
    text = contract().to_json().replace('"source"', '"sauce":1,"source"')
    with pytest.raises(ContractError, match=r"stored contract: 1 problem\n  sauce"):
        Contract.from_json(text)


def test_contract_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        contract().limits.max_pages = 5


def test_version_covers_every_key_and_no_spelling() -> None:
    assert contract().version == contract(limits={"max_pages": 10_000, "max_duration": "360m"}).version
    assert contract().version != contract(limits={"max_pages": 10_001}).version
    assert contract().version != contract(description="x").version
    assert len(contract().version) == 16


def test_fingerprint_of_extraction_covers_rules_and_acceptance_only() -> None:
    first = contract(**record()).extractor_fingerprint
    same = [
        contract(**record(guard={"max_drop": 0.1})),
        contract(**record(), limits={"max_pages": 5}),
        contract(**record(), politeness={"slots": 9}),
        contract(**record(), scope={"exclude": ["/x"]}),
    ]
    other = [
        contract(**record(), accept={"ignore": [".x"]}),
        contract(**record(), accept={"min_text_chars": 5}),
        contract(**record(each=".x")),
        contract(**record(match=["/x"])),
        contract(**record(key=["title"])),
        contract(**field(css="h2")),
        contract(),
    ]
    assert {found.extractor_fingerprint for found in same} == {first}
    assert first not in {found.extractor_fingerprint for found in other}
    assert len({found.extractor_fingerprint for found in other}) == len(other)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"limits": {"max_duration": "1h"}}, "at most 3600 pages fit"),
        ({"limits": {"max_urls": 5}}, "limits.max_urls 5 is below limits.max_pages 10000"),
        ({"limits": {"max_idle": "7h"}}, "limits.max_idle is not below limits.max_duration"),
        ({"politeness": {"slots": 100}}, "limits.max_in_flight is below politeness.slots"),
        ({"freshness": {"window": "4h"}}, "more than half of what politeness.min_delay 1s allows"),
        ({"freshness": {"interval": "10m"}, "limits": {"max_pages": 10}}, "freshness.interval is below freshness.min"),
        ({"politeness": {"user_agent": "bot/1"}}, 'politeness.user_agent "bot/1" names no contact'),
        ({"politeness": {"robots": "ignore"}}, "ignore is for a site of your own"),
        (record(key=["title"]), "records[0].fields.title is in the key but not required"),
    ],
)
def test_limits_that_contradict_each_other_are_warned_of(keys: dict[str, Any], words: str) -> None:
    agent = {"user_agent": "shop-bot/1.0 (+https://h)"}
    assert warnings(contract(politeness=agent)) == []
    found = warnings(contract(**{**keys, "politeness": {**agent, **keys.get("politeness", {})}}))
    assert [text for text in found if words in text], found


def test_own_site_needs_no_contact_and_may_have_no_delay() -> None:
    found = contract(seeds=["http://127.0.0.1:8800/"], politeness={"min_delay": "0s", "robots": "ignore"})
    assert warnings(found) == []
    assert len(warnings(contract())) == 1


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("127.0.0.1:8800", True),
        ("10.1.2.3", True),
        ("[::1]:8800", True),
        ("[fd00::1]", True),
        ("localhost:3000", True),
        ("shop.localhost", True),
        ("wiki.internal:8080", True),
        ("8.8.8.8", False),
        ("[2606:4700::1111]", False),
        ("shop.example.com", False),
        ("*.example.com:8080", False),
        ("notlocalhost", False),
    ],
)
def test_host_of_ones_own_is_known_by_its_name(host: str, is_own: bool) -> None:
    assert is_local(host) is is_own


def test_committed_schema_is_that_of_the_models() -> None:
    assert (PROJECT / "docs" / "contract.schema.json").read_text(encoding="utf-8") == schema_text()


def test_reference_has_every_key_with_its_default_and_meaning() -> None:
    text = (PROJECT / "docs" / "contracts.md").read_text(encoding="utf-8")
    assert keys_table() in text
    assert all(not row.rstrip(" |\n").endswith("|") for row in keys_table().splitlines() if row.startswith("| `"))


def test_example_of_the_reference_is_a_valid_contract() -> None:
    text = (PROJECT / "docs" / "contracts.md").read_text(encoding="utf-8")
    example = text.split("```yaml\n")[1].split("```")[0]
    found = parse_contract(yaml.safe_load(example), file="docs/contracts.md")
    assert found.source == "books"
    assert found.scope.hosts == ("books.example",)


def test_schema_and_table_are_printed_by_the_module() -> None:
    command = [sys.executable, "-m", "crawl_pipeline.domain.contract_schema"]
    for arguments, expected in (([], schema_text()), (["keys"], keys_table())):
        run = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True, cwd=PROJECT)
        assert run.stdout == expected

"""Records by rules: where fields are found, what is required, keys and versions."""

from __future__ import annotations

import json

import pytest

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.outcomes import Reason
from crawl_pipeline.errors import UsageError
from crawl_pipeline.parsing.extraction import Extraction, Extractor
from crawl_pipeline_tests.unit.parsing_support import contract, document, extract, page_url, product

SKU = "<p class=sku>W-1</p>"


def data(extraction: Extraction) -> list[dict[str, object]]:
    return [json.loads(record.data) for record in extraction.records]


def field(html: str, **rule: object) -> object:
    """The value of one field `x` of the page's only record."""
    extraction = extract(SKU + html, contract([product(x=rule)]))
    assert extraction.faults == ()
    (record,) = data(extraction)
    return record["x"]


def test_a_record_holds_every_declared_field_and_has_its_key() -> None:
    rules = contract([product(price={"css": ".price", "type": "decimal"}, color={"css": ".color"})])
    extraction = extract(SKU + "<p class=price>€ 1.234,50</p>", rules)
    (record,) = extraction.records
    assert record.record_type == "product"
    assert record.key == '["W-1"]'
    assert record.data == '{"color":null,"price":"1234.50","sku":"W-1"}'
    assert extraction.faults == ()
    assert extraction.conflict is None


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<p class=x> a\n\t b&nbsp;c </p>", "a b c"),
        ("<div class=x><p>one</p><p>two</p></div>", "one two"),
        ("<p class=x>one<br>two</p>", "one two"),
        ("<p class=x>o<b>n</b>e</p>", "one"),
        ("<p class=x>a<script>b</script><style>c</style></p>", "a"),
        ("<p class=x><!-- a -->b</p>", "b"),
        ("<p class=x>1</p><p class=x>2</p>", "1"),
        ("<ul class=x><li>a<li>b</ul>", "a b"),
        ("<textarea class=x> a </textarea>", "a"),
        ("<p class=x></p>", None),
        ("", None),
    ],
)
def test_a_css_field_is_the_visible_text_of_the_first_match(html: str, expected: str | None) -> None:
    assert field(html, css=".x") == expected


@pytest.mark.parametrize(
    ("html", "rule", "expected"),
    [
        ("<a class=x href='/p?q'>t</a>", {"attr": "href"}, "/p?q"),
        ("<a class=x href='/p?q'>t</a>", {"attr": "href", "type": "url"}, "http://shop.example/p?q"),
        (
            "<base href='http://b.example/'><a class=x href='p'>t</a>",
            {"attr": "href", "type": "url"},
            "http://b.example/p",
        ),
        ("<a class=x>t</a>", {"attr": "href"}, None),
        ("<button class=x disabled>", {"attr": "disabled", "type": "bool"}, True),
        ("<button class=x>", {"attr": "disabled", "type": "bool", "default": False}, False),
        ("<p class='a x b'>", {"attr": "class"}, "a x b"),
        ("<p class=x data-n='1.234'>", {"attr": "data-n", "type": "float"}, 1.234),
    ],
)
def test_an_attribute_field_is_the_attributes_value(html: str, rule: dict[str, object], expected: object) -> None:
    assert field(html, css=".x", **rule) == expected


JSON_LD = """<script type="application/ld+json">{"@context": "https://schema.org", "@graph": [
  {"@type": "WebPage", "name": "page", "mainEntity": {"@type": ["Thing", "https://schema.org/Product"],
    "name": "Widget", "offers": [{"@type": "Offer", "price": 12.50, "seller": {"@id": "#s"}}, {"price": 99}], "n": null,
    "rated": {"@value": 4}}},
  {"@type": "schema:Organization", "@id": "#s", "name": "Seller"}]}</script>"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("Product.name", "Widget"),
        ("Product.offers.price", "12.50"),
        ("Product.offers.seller.name", "Seller"),
        ("Product.rated", "4"),
        ("WebPage.name", "page"),
        ("Organization.name", "Seller"),
        ("Product.n", None),
        ("Product.name.first", None),
        ("Product.missing.price", None),
        ("Recipe.name", None),
    ],
)
def test_json_ld_is_asked_by_type_and_path(path: str, expected: str | None) -> None:
    assert field(JSON_LD, json_ld=path) == expected


NODE = '{"@type":"T","n":"v"}'
LD = '<script type="application/ld+json">'


@pytest.mark.parametrize(
    "script",
    [
        f"{LD}{NODE}</script>",
        f'<script type=" Application/LD+JSON; charset=utf-8">{NODE}</script>',
        f"{LD}[[{NODE}]]</script>",
        f"{LD}<!-- {NODE} --></script>",
        f"{LD}//<![CDATA[\n{NODE}\n//]]></script>",
        f"{LD}/*<![CDATA[*/{NODE}/*]]>*/</script>",
        f'{LD}{{"@type":"T","n":"v","d":"line\nbreak"}};</script>',
        f"{LD}{{broken</script>{LD}{NODE}</script>",
        f'{LD}{{"@type":"T","n":NaN}}</script>{LD}{NODE}</script>',
        f"{LD}{'[' * 5000}</script>{LD}{NODE}</script>",
    ],
)
def test_json_ld_is_read_in_every_wrapping_and_past_broken_blocks(script: str) -> None:
    assert field(script, json_ld="T.n") == "v"


MICRODATA = """<div itemscope itemtype="https://schema.org/WebPage"><div itemprop=mainEntity itemscope
  itemtype="https://schema.org/Thing https://schema.org/Product"><h1 itemprop="name title">Widget</h1>
  <div itemprop=brand itemscope itemtype=https://schema.org/Brand><span itemprop=name>Acme</span></div>
  <div itemprop=offers itemscope itemtype=https://schema.org/Offer><span itemprop=price content="1.234">1.234 €</span>
  <link itemprop=availability href=https://schema.org/InStock></div>
  <time itemprop=releaseDate datetime=2024-03-05>March</time><a itemprop=url href=/p>here</a>
  <img itemprop=image src=i.png>
  <data itemprop=sku value=7>seven</data></div></div>"""


@pytest.mark.parametrize(
    ("path", "rule", "expected"),
    [
        ("Product.name", {}, "Widget"),
        ("Product.title", {}, "Widget"),
        ("Product.brand.name", {}, "Acme"),
        ("Brand.name", {}, "Acme"),
        ("Product.offers.price", {"type": "float"}, 1.234),
        ("Product.offers.availability", {"type": "bool"}, True),
        ("Product.releaseDate", {"type": "date"}, "2024-03-05"),
        ("Product.url", {"type": "url"}, "http://shop.example/p"),
        ("Product.image", {}, "i.png"),
        ("Product.sku", {"type": "int"}, 7),
        ("WebPage.mainEntity.name", {}, "Widget"),
        ("WebPage.name", {}, None),
        ("Product.name.x", {}, None),
        ('Product.na"me', {}, None),
        ("Recipe.name", {}, None),
    ],
)
def test_microdata_is_asked_by_type_and_path(path: str, rule: dict[str, object], expected: object) -> None:
    assert field(MICRODATA, microdata=path, **rule) == expected


def test_each_gives_one_record_per_match_with_fields_looked_up_within_it() -> None:
    rule = product(
        price={"css": ".price", "type": "int"},
        id={"css": ":scope", "attr": "id"},
        name={"microdata": "Product.name"},
        page={"json_ld": "WebPage.name"},
    )
    html = JSON_LD + "".join(
        f"<li id=i{n} itemscope itemtype=http://schema.org/Product><p class=sku>{n}</p><p class=price>{n}0</p>"
        f"<b itemprop=name>N{n}</b>"
        for n in (1, 2)
    )
    found = data(extract(f"<ul>{html}</ul>", contract([{**rule, "each": "li"}])))
    assert found == [
        {"sku": "1", "price": 10, "id": "i1", "name": "N1", "page": "page"},
        {"sku": "2", "price": 20, "id": "i2", "name": "N2", "page": "page"},
    ]


def test_a_rule_speaks_only_of_the_pages_that_it_matches() -> None:
    rules = contract([{**product(), "match": ["/product/**", "/item/*"]}])
    for url, count in [
        ("/product/1", 1),
        ("/product/1/x?y=/", 1),
        ("/item/1", 1),
        ("/item/1/x", 0),
        ("/list/product/1", 0),
    ]:
        assert len(extract(SKU, rules, url=f"http://shop.example{url}").records) == count, url
    assert extract("", rules, url="http://shop.example/list/1").faults == ()


def test_a_missing_required_field_is_a_fault_that_names_field_and_selector() -> None:
    rules = contract([product(price={"css": ".price", "attr": "content", "type": "decimal", "required": True})])
    extraction = extract(SKU + "<p class=price>", rules)
    assert extraction.records == ()
    (fault,) = extraction.faults
    assert fault.rule == "records[0]"
    assert fault.reason is Reason.CONTENT_CONTRACT
    assert fault.detail == "price (css .price, attribute content) is missing"


def test_a_key_field_is_required_without_saying_so() -> None:
    (fault,) = extract("<p class=sku> </p>", contract([product()])).faults
    assert fault.detail == "sku (css .sku) is empty"


def test_a_required_field_that_does_not_convert_is_a_fault_and_an_optional_one_a_note() -> None:
    rules = contract([product(price={"css": ".price", "type": "int", "required": True})])
    assert [f.detail for f in extract(SKU + "<p class=price>free", rules).faults] == [
        "price (css .price) 'free' is not a number"
    ]
    rules = contract([product(price={"css": ".price", "type": "int", "default": 3})])
    extraction = extract(SKU + "<p class=price>free", rules)
    assert extraction.faults == ()
    assert extraction.notes == ("price (css .price) 'free' is not a number",)
    assert data(extraction) == [{"sku": "W-1", "price": 3}]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"type": "decimal", "default": "1.50"}, "1.50"),
        ({"type": "decimal", "default": 2}, "2"),
        ({"type": "date", "default": "2024-03-05"}, "2024-03-05"),
        ({"type": "float", "default": 2}, 2.0),
        ({"default": "none"}, "none"),
    ],
)
def test_a_default_has_its_fields_type(rule: dict[str, object], expected: object) -> None:
    found = field("", css=".x", **rule)
    assert found == expected
    assert type(found) is type(expected)


def test_two_equal_records_collapse_and_two_different_ones_conflict() -> None:
    rules = contract([{**product(n={"css": ".n"}), "each": "li"}])
    same = "<li><p class=sku>1</p><p class=n>a</p></li>"
    extraction = extract(f"<ul>{same}{same}</ul>", rules)
    assert len(extraction.records) == 1
    assert extraction.conflict is None
    extraction = extract(f"<ul>{same}{same.replace('>a<', '>b<')}</ul>", rules)
    assert extraction.conflict == 'two different records of type product have the key ["1"]'


def test_records_of_two_types_may_share_a_key() -> None:
    rules = contract([product(), {**product(x={"css": "p"}), "type": "offer"}])
    extraction = extract(SKU, rules)
    assert [record.record_type for record in extraction.records] == ["product", "offer"]
    assert extraction.conflict is None


def test_many_faults_are_told_by_the_first_twenty() -> None:
    rules = contract([{**product(), "each": "li"}])
    extraction = extract("<ul>" + "<li>x" * 1000, rules)
    assert len(extraction.faults) == 20


def test_more_records_than_a_page_may_have_are_a_fault() -> None:
    rules = contract([{**product(), "each": "li"}])
    html = "".join(f"<li><p class=sku>{n}</p></li>" for n in range(10_001))
    extraction = extract(html, rules)
    assert len(extraction.records) == 10_000
    assert [fault.detail[:26] for fault in extraction.faults] == ["more than 10,000 records o"]


def test_nuls_and_lone_surrogates_never_reach_a_record() -> None:
    html = SKU + r'<script type="application/ld+json">{"@type":"T","n":"a\u0000b\ud800c"}</script>'
    assert field(html, json_ld="T.n") == "a\ufffdb\ufffdc"


def test_equal_pages_give_equal_extractions() -> None:
    rules = contract([product(price={"css": ".price"})])
    assert extract(SKU, rules) == extract(SKU, rules)


BASIC = contract([product(price={"css": ".price"})], ignore=[".ad"])


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (contract([product(price={"css": ".price"})], ignore=[".ad"]), False),
        (BASIC.model_copy(update={"description": "other", "seeds": ("http://shop.example/",)}), False),
        (contract([product(price={"css": ".prize"})], ignore=[".ad"]), True),
        (contract([product(price={"css": ".price", "type": "int"})], ignore=[".ad"]), True),
        (contract([product(price={"css": ".price"})], ignore=[".add"]), True),
    ],
    ids=["the same", "another description", "another selector", "another type", "another region ignored"],
)
def test_the_version_moves_with_what_decides_extraction_and_with_nothing_else(other: Contract, differs: bool) -> None:
    version = Extractor(BASIC).version
    assert len(version) == 16
    assert int(version, 16) >= 0
    assert (Extractor(other).version != version) is differs


@pytest.mark.parametrize("constant", ["EXTRACTION_VERSION", "HASH_VERSION"])
def test_the_version_moves_with_this_code(constant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Extractor(BASIC).version
    monkeypatch.setattr(f"crawl_pipeline.parsing.extraction.{constant}", 999)
    assert Extractor(BASIC).version != before


def test_a_selector_that_is_none_is_told_when_the_rules_are_compiled() -> None:
    rules = contract([product(price={"css": "p["})])
    with pytest.raises(
        UsageError, match=r"the contract of shop: records\[0\]\.fields\.price\.css is not a CSS selector"
    ):
        Extractor(rules)


def test_extraction_leaves_the_document_as_it_was() -> None:
    html = (
        "<h1>x</h1><noscript><p class=ad>n</p></noscript><div class=ad>a<noscript>m</noscript></div><p class=sku>1</p>"
    )
    page = document(html)
    before = page.markup
    extractor = Extractor(contract([product()], ignore=[".ad", "title", "h1"]))
    first = extractor.extract(page, page_url())
    assert page.markup == before
    assert extractor.extract(page, page_url()) == first

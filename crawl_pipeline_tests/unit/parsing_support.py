"""Documents, page URLs and contracts for the tests of `crawl_pipeline.parsing`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from crawl_pipeline.domain.contract import Contract, parse_contract
from crawl_pipeline.domain.pages import PageUrl
from crawl_pipeline.domain.urls import Canonicalizer, PlainPolicy
from crawl_pipeline.parsing.acceptance import Shortfall, judge
from crawl_pipeline.parsing.document import Document, parse
from crawl_pipeline.parsing.extraction import Extraction, Extractor

CORPORA = Path(__file__).resolve().parents[2] / ".." / "shared" / "corpora"
NO_CORPORA = "the conformance data is not here: put it into ../shared/corpora beside the project"

PAGE = "http://shop.example/product/1"


def document(html: str | bytes, *, content_type: str | None = "text/html", url: str = PAGE) -> Document:
    body = html.encode("utf-8", "surrogatepass") if isinstance(html, str) else html
    return parse(body, content_type=content_type, url=url)


def page_url(url: str = PAGE) -> PageUrl:
    page = Canonicalizer(PlainPolicy()).page_url(url)
    assert isinstance(page, PageUrl)
    return page


def contract(records: Sequence[Mapping[str, object]] = (), **accept: object) -> Contract:
    data = {"source": "shop", "seeds": [PAGE], "accept": accept, "records": list(records)}
    return parse_contract(data, file="test contract")


def product(**fields: Mapping[str, object]) -> dict[str, object]:
    """A record rule of type product for every page, keyed by `sku`, which is `.sku` where `fields` has none."""
    return {"type": "product", "key": ["sku"], "fields": {"sku": {"css": ".sku"}, **fields}}


def custom(reference: str, **rule: object) -> dict[str, object]:
    return {"type": "product", "key": ["sku"], "python": reference, **rule}


def extract(html: str | bytes, rules: Contract, *, url: str = PAGE) -> Extraction:
    return Extractor(rules).extract(document(html, url=url), page_url(url))


def verdict(html: str | bytes, rules: Contract, *, url: str = PAGE) -> Shortfall | None:
    page = document(html, url=url)
    return judge(Extractor(rules).extract(page, page_url(url)), page, rules)

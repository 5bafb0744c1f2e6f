"""The source contract: everything that one source asks for, validated whole.

Reading files is `pipeline.contract_files`'s; the sections live in `contract_sections` and `contract_records`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, StrictStr, ValidationError, ValidationInfo, field_validator, model_validator

from crawl_pipeline.domain import contract_types as kinds
from crawl_pipeline.domain.contract_faults import UNSTORABLE, faults_of, unstorable_texts
from crawl_pipeline.domain.contract_records import RecordRule
from crawl_pipeline.domain.contract_sections import (
    AcceptSection,
    FetchSection,
    FreshnessSection,
    LimitsSection,
    PolitenessSection,
    RetentionSection,
    ScopeSection,
    Sitemaps,
    UrlsSection,
)
from crawl_pipeline.domain.records import canonical_json
from crawl_pipeline.domain.scope import Scope
from crawl_pipeline.domain.urls import Canonicalizer, UrlRefusal
from crawl_pipeline.errors import ContractError, ContractFault

CheckSelector = Callable[[str], str | None]  # the sentence of what is wrong with a CSS selector, or None


class Contract(kinds.Section):
    """One source's contract. Immutable; equal contracts have equal `version`s."""

    source: kinds.Name
    """The source's name, and its partition in Dagster: lower-case letters, digits and `_`."""
    description: StrictStr = ""
    """A line for people."""
    owner: kinds.Owner | None = None
    """`team:NAME` or an email address."""
    scope: ScopeSection = ScopeSection()
    """Which URLs may be requested at all."""
    urls: UrlsSection = UrlsSection()
    """Which URLs are the same page."""
    seeds: Annotated[tuple[StrictStr, ...], Field(min_length=1, max_length=100_000)]
    """The URLs that a crawl starts from, within the scope."""
    sitemaps: Sitemaps = "auto"
    """`auto` (those that robots.txt names, else /sitemap.xml), `none`, or a list of URLs on the scope's hosts."""
    limits: LimitsSection = LimitsSection()
    """Where a crawl stops."""
    politeness: PolitenessSection = PolitenessSection()
    """What the source asks of its hosts."""
    fetch: FetchSection = FetchSection()
    """How pages are requested."""
    freshness: FreshnessSection = FreshnessSection()
    """How fresh pages are kept."""
    accept: AcceptSection = AcceptSection()
    """What a page must have."""
    records: tuple[RecordRule, ...] = ()
    """Which records pages yield."""
    retention: RetentionSection = RetentionSection()
    """How long old page versions are to be kept; nothing is deleted yet."""

    @field_validator("seeds")
    @classmethod
    def _seeds_are_in_scope(cls, seeds: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        found = _outside(seeds, info.data)
        if found:
            raise kinds.faults(found)
        return seeds

    @field_validator("sitemaps")
    @classmethod
    def _sitemaps_are_on_hosts(cls, sitemaps: str | tuple[str, ...], info: ValidationInfo) -> str | tuple[str, ...]:
        scope = info.data.get("scope")
        if isinstance(sitemaps, str) or scope is None or not scope.hosts:
            return sitemaps
        anywhere = scope.model_copy(update={"include": (), "exclude": (), "skip_types": ()})
        found = _outside(sitemaps, {**info.data, "scope": anywhere})
        if found:
            raise kinds.faults(found)
        return sitemaps

    @field_validator("records")
    @classmethod
    def _record_types_differ(cls, records: tuple[RecordRule, ...]) -> tuple[RecordRule, ...]:
        seen: dict[str, int] = {}
        found = []
        for index, rule in enumerate(records):
            first = seen.setdefault(rule.type, index)
            if first != index:
                found.append((f"[{index}].type", f'"{rule.type}" is the type of records[{first}] already'))
        if found:
            raise kinds.faults(found)
        return records

    @model_validator(mode="after")
    def _hosts_default_to_the_seeds(self) -> Contract:
        if not self.scope.hosts:
            pages = (Canonicalizer(self.urls).page_url(seed) for seed in self.seeds)
            hosts = dict.fromkeys(page.authority for page in pages if not isinstance(page, UrlRefusal))
            self.__dict__["scope"] = self.scope.model_copy(update={"hosts": tuple(hosts)})
        return self

    @cached_property
    def version(self) -> str:
        """16 hex digits over every key, defaults included: what a crawl was told."""
        return _digest(self.to_json())

    @cached_property
    def extractor_fingerprint(self) -> str:
        """16 hex digits over what decides extraction, acceptance and the content hash; scope and politeness do not."""
        records = [rule.model_dump(mode="json", exclude={"guard"}) for rule in self.records]
        return _digest(
            canonical_json({"accept": self.accept.model_dump(mode="json", exclude={"soft_404"}), "records": records})
        )

    def to_json(self) -> str:
        """Canonical JSON of every key, defaults included; `from_json` gives an equal contract back."""
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def from_json(cls, text: str) -> Contract:
        """A stored contract. Raises ContractError where it is none that this version of the software knows."""
        return parse_contract(json.loads(text), file="stored contract")


def parse_contract(data: object, *, file: str, check_selector: CheckSelector | None = None) -> Contract:
    """Validate a contract made of plain values. Raises ContractError with every fault found; `file` names it there."""
    if unstorable := [ContractFault(path=path, message=UNSTORABLE) for path in unstorable_texts(data)]:
        raise ContractError(file, unstorable)
    try:
        return Contract.model_validate(data, context={"check_selector": check_selector})
    except ValidationError as error:
        raise ContractError(file, faults_of(error, Contract)) from error


def _outside(urls: Sequence[str], data: dict[str, Any]) -> list[tuple[str, str]]:
    """The faults of URLs that must lie within the scope, as far as the scope itself is without fault."""
    if "scope" not in data or "urls" not in data:
        return []
    canonicalizer = Canonicalizer(data["urls"])
    pages = [canonicalizer.page_url(url) for url in urls]
    rules = data["scope"]
    if not rules.hosts:
        hosts = tuple(page.authority for page in pages if not isinstance(page, UrlRefusal))
        rules = rules.model_copy(update={"hosts": hosts})
    scope = Scope(rules)
    found = []
    for index, page in enumerate(pages):
        if isinstance(page, UrlRefusal):
            found.append((f"[{index}]", f"{page.fault.value}: use an http or https URL without a name and password"))
        elif not (verdict := scope.verdict(page)).allowed:
            found.append((f"[{index}]", f"{page.canonical} is out of scope ({verdict.rule})"))
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

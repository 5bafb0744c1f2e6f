"""Record rules compiled once: where each field is looked for, and what becomes of what is found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Protocol

from turbohtml import Document as Tree
from turbohtml import Element

from crawl_pipeline.parsing.document import Document
from crawl_pipeline.parsing.meaning import text_of
from crawl_pipeline.parsing.structured import JsonLd, find_microdata
from crawl_pipeline.parsing.values import CannotConvert, Found, Value, convert

Scope = Tree | Element


class FieldSpec(Protocol):
    """What is read of `contract.records[i].fields[name]`."""

    @property
    def css(self) -> str | None: ...
    @property
    def attr(self) -> str | None: ...
    @property
    def json_ld(self) -> str | None: ...
    @property
    def microdata(self) -> str | None: ...
    @property
    def type(self) -> str: ...
    @property
    def required(self) -> bool: ...
    @property
    def default(self) -> str | int | float | bool | None: ...


class PageData:
    """A document and what is derived of it at most once, on first use."""

    def __init__(self, document: Document) -> None:
        self.document = document

    @cached_property
    def json_ld(self) -> JsonLd:
        return JsonLd(self.document.json_ld)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldResult:
    """A field's value; `fault` says why a required one is missing, `note` why an optional one was passed over."""

    value: Value | None
    fault: str | None = None
    note: str | None = None


class Field:
    """One field rule. JSON-LD is the page's; CSS and microdata are looked up within the record's element."""

    def __init__(self, name: str, spec: FieldSpec, *, is_key: bool) -> None:
        self.name = name
        self._css = spec.css
        self._attr = spec.attr
        self._json_ld = spec.json_ld.split(".") if spec.json_ld else None
        self._microdata = spec.microdata.split(".") if spec.microdata else None
        self._kind = spec.type
        self._is_required = spec.required or is_key
        self._default = _default(spec)

    @property
    def origin(self) -> str:
        """Where the field is looked for, as the contract's author wrote it."""
        if self._css is not None:
            return f"css {self._css}" + (f", attribute {self._attr}" if self._attr else "")
        return f"json_ld {'.'.join(self._json_ld)}" if self._json_ld else f"microdata {'.'.join(self._microdata or ())}"

    def read(self, scope: Scope, page: PageData) -> FieldResult:
        """The field's value within a record's element, or in the whole page."""
        try:
            found = self._find(scope, page)
            value = None if found is None else convert(found, self._kind, page.document.base_url)
        except CannotConvert as error:
            said = f"{self.name} ({self.origin}) {error}"
            if self._is_required:
                return FieldResult(value=None, fault=said)
            return FieldResult(value=self._default, note=said)
        if value is not None:
            return FieldResult(value=value)
        if self._is_required and self._default is None:
            what = "is empty" if found is not None else "is missing"
            return FieldResult(value=None, fault=f"{self.name} ({self.origin}) {what}")
        return FieldResult(value=self._default)

    def _find(self, scope: Scope, page: PageData) -> Found | None:
        if self._css is not None:
            element = _first(scope, self._css)
            if element is None:
                return None
            if self._attr is None:
                return Found(value=text_of(element), is_machine=False)
            value = element.attr(self._attr)
            if value == "" and self._kind == "bool":  # HTML's way to say true: <button disabled>
                return Found(value=True, is_machine=True)
            return None if value is None else Found(value=value, is_machine=True)
        if self._json_ld is not None:
            return page.json_ld.find(self._json_ld)
        return find_microdata(scope, self._microdata or (), text_of)


def _first(scope: Scope, css: str) -> Element | None:
    """The first match within the scope; `:scope` alone is the record's element itself."""
    if css == ":scope" and isinstance(scope, Element):
        return scope
    return scope.select_one(css)


def _default(spec: FieldSpec) -> Value | None:
    """The default as a value of the field's type; the contract has checked that it is one."""
    default = spec.default
    if default is None:
        return None
    match spec.type:
        case "decimal":
            return Decimal(str(default))
        case "float":
            return float(default)
        case "date":
            return datetime.fromisoformat(str(default)).date()
        case _:
            return default


def compiled_fields(fields: Mapping[str, FieldSpec], key: Sequence[str]) -> tuple[Field, ...]:
    """The fields of one record rule; those of the key are required, whatever the contract says of them."""
    return tuple(Field(name, spec, is_key=name in key) for name, spec in fields.items())

"""The section `records` of a contract: which records pages yield, and from what."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PlainValidator,
    StrictBool,
    StrictStr,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from crawl_pipeline.domain import contract_types as kinds
from crawl_pipeline.domain.contract_types import Section

FieldType = Literal["str", "int", "float", "decimal", "bool", "date", "url"]


def _scalar(value: Any) -> str | int | float | bool | None:
    if isinstance(value, date | datetime):  # YAML reads an unquoted 2024-05-31 as a date
        return value.isoformat()
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise ValueError("use a single value")


Scalar = Annotated[
    str | int | float | bool | None,
    PlainValidator(_scalar),
    WithJsonSchema({"type": ["string", "number", "boolean", "null"]}),
]


class FieldRule(Section):
    """Where one field of a record comes from."""

    css: kinds.Selector | None = None
    """A CSS selector: the text of its first match, white space collapsed."""
    attr: Annotated[StrictStr, Field(min_length=1)] | None = None
    """With `css`: the value of this attribute instead of the text."""
    json_ld: kinds.StructuredPath | None = None
    """A type and the way to a property in the page's JSON-LD: `Product.offers.price`."""
    microdata: kinds.StructuredPath | None = None
    """The same in the page's microdata."""
    type: FieldType = "str"
    """`str`, `int`, `float`, `decimal`, `bool`, `date` or `url`."""
    required: StrictBool = False
    """Whether a page without the field is rejected."""
    default: Scalar = None
    """The value where the page has none."""

    @model_validator(mode="after")
    def _one_origin(self) -> FieldRule:
        found = list(self._contradictions())
        if found:
            raise kinds.faults(found)
        return self

    def _contradictions(self) -> Iterator[tuple[str, str]]:
        origins = [name for name in ("css", "json_ld", "microdata") if getattr(self, name) is not None]
        if not origins:
            yield "", "say where the field comes from: css, json_ld or microdata"
        elif len(origins) > 1:
            yield "", f"has {' and '.join(origins)}: keep one of them"
        if self.attr is not None and self.css is None:
            yield "attr", "goes with css only"
        if self.default is not None and self.required:
            yield "default", "is never used: the field is required"
        elif self.default is not None and not _has_type(self.default, self.type):
            yield "default", f"is not of type {self.type}" + ("; quote it" if self.type in ("str", "decimal") else "")


def _has_type(value: str | int | float | bool, kind: str) -> bool:
    """Whether a default is a value of a field type as it stands."""
    match kind:
        case "bool":
            return isinstance(value, bool)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "decimal":
            return isinstance(value, int | str) and not isinstance(value, bool) and _is_decimal(str(value))
        case "date":
            return isinstance(value, str) and _is_date(value)
        case _:
            return isinstance(value, str)


def _is_decimal(text: str) -> bool:
    try:
        return Decimal(text).is_finite()
    except InvalidOperation:
        return False


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


class Guard(Section):
    """How much a source may lose at once before removals wait for a person."""

    max_drop: Annotated[float, Field(ge=0, le=1, strict=True)] = 0.5
    """The share of the last good count that may go in one crawl; beyond it, removals are held."""


class RecordRule(Section):
    """One record type, and how pages yield its records."""

    type: kinds.Name
    """The name of the record type."""
    match: Annotated[kinds.PathGlobs, Field(min_length=1)] = ("/**",)
    """Path globs of the pages that yield such records."""
    each: kinds.Selector | None = None
    """A CSS selector: one record per match, fields looked up within it; null: one per page."""
    fields: dict[kinds.FieldName, FieldRule] = Field(default_factory=dict)
    """The fields by name."""
    python: kinds.PythonFunction | None = None
    """Instead of `fields`: a function `module:function` that takes the page and yields dicts."""
    key: Annotated[tuple[kinds.FieldName, ...], Field(min_length=1)]
    """The fields that identify a record within the source and its type, in this order."""
    guard: Guard = Guard()
    """When removals are held."""

    @field_validator("python")
    @classmethod
    def _fields_or_python(cls, python: str | None, info: ValidationInfo) -> str | None:
        if "fields" not in info.data:
            return python
        if python is not None and info.data["fields"]:
            raise ValueError("goes instead of fields: keep one of them")
        return python

    @field_validator("key")
    @classmethod
    def _key_is_of_fields(cls, key: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if len(set(key)) < len(key):
            raise ValueError("names a field twice")
        fields = info.data.get("fields")
        if info.data.get("python", "") is not None or not fields:
            return key
        unknown = [name for name in key if name not in fields]
        if unknown:
            raise kinds.faults([("", f'"{name}" names no field; fields are {", ".join(fields)}') for name in unknown])
        return key

    @model_validator(mode="after")
    def _yields_something(self) -> RecordRule:
        if not self.fields and self.python is None:
            raise kinds.fault("yields nothing: give it fields, or python: module:function")
        if self.python is not None and self.each is not None:
            raise kinds.fault("goes with fields only: the function decides what it yields", "each")
        return self

"""The contract's JSON Schema and its reference table, both made from the models.

`python -m crawl_pipeline.domain.contract_schema` prints the schema, with `keys` the table of `docs/contracts.md`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from crawl_pipeline.domain.contract import Contract
from crawl_pipeline.domain.durations import format_duration


def schema_text() -> str:
    """`docs/contract.schema.json`, to the byte."""
    schema = Contract.model_json_schema(mode="validation")
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Source contract"}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def keys_table() -> str:
    """Every key of a contract with default and meaning, as the Markdown tables of `docs/contracts.md`."""
    return "".join(_tables("", Contract))


def _tables(prefix: str, model: type[BaseModel]) -> Iterator[str]:
    sections: list[tuple[str, type[BaseModel]]] = []
    rows = []
    for name, info in model.model_fields.items():
        path = f"{prefix}{name}"
        section, suffix = _section(info.annotation)
        if section is not None:
            sections.append((f"{path}{suffix}", section))
        rows.append(f"| `{path}` | {_default(info)} | {' '.join((info.description or '').split())} |\n")
    title = f"### `{prefix.rstrip('.')}`\n\n{model.__doc__}\n\n" if prefix else "### Top level\n\n"
    yield f"{title}| key | default | meaning |\n|---|---|---|\n{''.join(rows)}\n"
    for path, section in sections:
        yield from _tables(f"{path}.", section)


def _section(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The section that an annotation holds, and how its keys are reached: `[]` in a list, `.NAME` by name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    container = getattr(annotation, "__origin__", None)
    for part in get_args(annotation):
        section, suffix = _section(part)
        if section is not None:
            return section, {tuple: "[]", dict: ".NAME"}.get(container, "") + suffix  # type: ignore[arg-type]
    return None, ""


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True, validated_data={})
    match value:
        case BaseModel():
            return "see below"
        case timedelta():
            return f"`{format_duration(value)}`"
        case None:
            return "null"
        case bool():
            return f"`{str(value).lower()}`"
        case tuple():
            return f"`[{', '.join(map(str, value))}]`"
        case dict():
            return "`{}`"
        case "":
            return '`""`'
        case _:
            return f"`{value}`"


if __name__ == "__main__":
    sys.stdout.write(keys_table() if sys.argv[1:] == ["keys"] else schema_text())

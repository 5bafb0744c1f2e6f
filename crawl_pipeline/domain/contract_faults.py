"""What pydantic finds wrong, as sentences for the person who wrote the contract: where, what, and what to write."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from crawl_pipeline.errors import ContractFault

_PSEUDO = re.compile(r"<\w+>|\[key\]")  # parts of a location that name a branch of a type, no key
_SECRETS = ("fetch.headers", "fetch.proxy")  # what stands there by mistake may be a secret: it is never repeated
_CREDENTIALS = re.compile(r"//[^/\s]*@")
_UNBUILT = {
    "fetch.proxy": "no contract names a proxy: the operator does, in CRAWL_PROXY",
    "fetch.headers_from_env": "write fetch.headers: {Name: ENVIRONMENT_VARIABLE}",
}
_KINDS = {
    "string_type": "use text; quote it if it looks like a number, a date or yes/no",
    "int_type": "use a whole number",
    "int_from_float": "use a whole number",
    "float_type": "use a number",
    "finite_number": "use a finite number",
    "bool_type": "use true or false",
    "tuple_type": "use a list, such as [a, b]",
    "dict_type": "use keys and values",
    "model_type": "give it keys and values, or leave it out",
    "model_attributes_type": "use keys and values",
    "too_short": "name at least one",
    "string_too_short": "is empty",
}


def faults_of(error: ValidationError, model: type[BaseModel]) -> list[ContractFault]:
    """Every fault of a failed validation, in the order of the contract's keys."""
    found = (fault for details in error.errors() if not _is_echo(details) for fault in _faults(details, model))
    return [ContractFault(path=path, message=message) for path, message in found]


UNSTORABLE = "holds a NUL or half a character, which no database can keep: remove it"


def unstorable_texts(data: object, *location: str | int) -> Iterator[str]:
    """Where plain values hold text, as key or value, that Postgres cannot store."""
    if isinstance(data, str) and ("\0" in data or data != data.encode("utf-8", "replace").decode()):
        yield dotted(location).replace("\0", "\ufffd") or "(file)"
    elif isinstance(data, Mapping):
        for key, value in data.items():
            yield from unstorable_texts(str(key), *location, str(key))
            yield from unstorable_texts(value, *location, str(key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from unstorable_texts(value, *location, index)


def dotted(location: Sequence[str | int]) -> str:
    """`("records", 0, "key")` as people write it: `records[0].key`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """The end of a sentence about an unknown word: the nearest known one, or all of them."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f'did you mean "{near[0]}"?' if near else f"keys are {', '.join(known)}"


def _is_echo(details: ErrorDetails) -> bool:
    """Whether it says "too short" of a list that is so only because its items have faults, which are told."""
    return details["type"] == "too_short" and bool(details["input"])


def _faults(details: ErrorDetails, model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    location = tuple(part for part in details["loc"] if isinstance(part, int) or not _PSEUDO.fullmatch(part))
    path = dotted(location)
    if details["type"] == "contract_faults":
        for below, message in details["ctx"]["faults"]:
            joint = "" if not below or below.startswith("[") or not path else "."
            yield f"{path}{joint}{below}", message
    else:
        yield path or "(top)", _message(details, path, location, model)


def _message(details: ErrorDetails, path: str, location: tuple[str | int, ...], model: type[BaseModel]) -> str:
    kind = details["type"]
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        known = _keys(model, location[:-1])
        return _UNBUILT.get(path) or f"is no key of a contract here; {did_you_mean(str(location[-1]), known)}"
    if details["loc"][-1:] == ("[key]",):
        return str(details["ctx"]["error"]) if "ctx" in details else "use text as a key"
    return f"{_shown(details['input'], path)}{_advice(details)}"


def _advice(details: ErrorDetails) -> str:
    context: Mapping[str, Any] = details.get("ctx", {})
    match details["type"]:
        case "value_error":
            return str(context["error"])
        case "literal_error":
            words = str(context["expected"]).replace("'", "")
            return f"use {words} or a list" if "<word>" in details["loc"] else f"use {words}"
        case "greater_than_equal":
            return f"use {context['ge']:g} or more"
        case "less_than_equal":
            return f"use {context['le']:g} or less"
        case "too_long":
            return f"name at most {context['max_length']}"
        case kind:
            return _KINDS.get(kind) or details["msg"]


def _shown(value: object, path: str) -> str:
    """The value as written, short, before the advice; nothing for what is no single value or may be a secret."""
    if value is None:
        return "has no value: "
    if not isinstance(value, str | int | float) or path.startswith(_SECRETS) or _CREDENTIALS.search(str(value)):
        return ""
    text = json.dumps(value, ensure_ascii=False)
    return f"{text if len(text) <= 60 else text[:57] + '…' + text[-1]}: "


def _keys(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """The keys of the section at `location`, found by following the model's annotations."""
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            model = _section(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _section(annotation: Any) -> type[BaseModel] | None:
    """The section that an annotation holds: itself, or the one within `tuple[...]`, `dict[...]` and unions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section, get_args(annotation))), None)

"""The kinds of value that a contract holds: durations, sizes, names, globs, hosts. Each refuses in a sentence.

A validator raises ValueError with what to write; `contract_faults` adds where.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    StrictStr,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from crawl_pipeline.domain import durations
from crawl_pipeline.domain.globs import glob_fault
from crawl_pipeline.domain.robots import product_token
from crawl_pipeline.domain.urls import Canonicalizer, PlainPolicy, UrlRefusal

_HOST_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/?#\[\]@]+)(?::(?P<port>[0-9]{1,5}))?")
_PLAIN_URLS = Canonicalizer(PlainPolicy())


class Section(BaseModel):
    """Base of every part of a contract: frozen, unknown keys refused, descriptions taken from the docstrings."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


def fault(message: str, path: str = "") -> PydanticCustomError:
    """A fault found by a rule over several keys; `path` is relative to the section that the rule belongs to."""
    return faults([(path, message)])


def faults(found: list[tuple[str, str]]) -> PydanticCustomError:
    """Several such faults at once, as (path, message)."""
    return PydanticCustomError("contract_faults", "several keys contradict each other", {"faults": found})


def _text(check: Callable[[str], str | None]) -> AfterValidator:
    """A validator of text from a function that gives the sentence of a fault, or None."""

    def validate(value: str) -> str:
        message = check(value)
        if message is not None:
            raise ValueError(message)
        return value

    return AfterValidator(validate)


def _pattern(expression: str, message: str) -> AfterValidator:
    pattern = re.compile(expression)
    return _text(lambda value: None if pattern.fullmatch(value) else message)


def _duration(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str):
        raise ValueError(durations.DURATION_HINT)
    return durations.parse_duration(value)


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("use a duration above zero")
    return value


def _size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(durations.SIZE_HINT)
    size = durations.parse_size(str(value))
    if size <= 0:
        raise ValueError("use a size above zero")
    return size


def _wrapped(value: object) -> object:
    """A single text where a list of texts is wanted stands for a list of one."""
    return [value] if isinstance(value, str) else value


_DURATION_SCHEMA: dict[str, Any] = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?(ms|s|m|h|d)$"}
Duration = Annotated[
    timedelta,
    BeforeValidator(_duration),
    PlainSerializer(durations.format_duration, return_type=str),
    WithJsonSchema(_DURATION_SCHEMA),
]
PositiveDuration = Annotated[Duration, AfterValidator(_positive)]
ByteSize = Annotated[
    int,
    BeforeValidator(_size),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?(B|[kKMG]B|[KMG]iB)?$"},
            ]
        }
    ),
]
Name = Annotated[StrictStr, _pattern(r"[a-z0-9_]{1,60}", "use lower-case letters, digits and _ (at most 60)")]
FieldName = Annotated[
    StrictStr, _pattern(r"[A-Za-z_][A-Za-z0-9_]{0,59}", "use letters, digits and _, a letter first (at most 60)")
]
PathGlob = Annotated[StrictStr, _text(glob_fault)]
PathGlobs = Annotated[
    tuple[PathGlob, ...],
    BeforeValidator(_wrapped),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


def _host(value: str) -> str:
    """A host pattern in canonical form: lower case, IDNA, the port only where it is not the default of a scheme."""
    prefix = "*." if value.startswith("*.") else ""
    match = _HOST_PORT.fullmatch(value[len(prefix) :])
    if match is None or "*" in match["host"] or (prefix and match["host"].startswith("[")):
        raise ValueError(
            "use a host name with its port where it is not 80 or 443, or *.example.com; no scheme, no path"
        )
    if match["port"] in ("80", "443"):
        raise ValueError(f"leave out the default port: {prefix}{match['host']}")
    page = _PLAIN_URLS.page_url(f"http://{match[0]}/")
    if isinstance(page, UrlRefusal):
        raise ValueError("is no host name")
    return prefix + page.authority


HostPattern = Annotated[StrictStr, AfterValidator(_host)]


def _http_url(value: str) -> str | None:
    page = _PLAIN_URLS.page_url(value)
    return f"{page.fault.value}: use an http or https URL" if isinstance(page, UrlRefusal) else None


HttpUrl = Annotated[StrictStr, _text(_http_url)]


def _network(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value))
    except ValueError:
        raise ValueError("use a network such as 127.0.0.0/8 or fd00::/8") from None


Network = Annotated[StrictStr, AfterValidator(_network)]


def _user_agent(value: str) -> str | None:
    if not value.isascii() or not value.isprintable() or value != value.strip() or not 0 < len(value) <= 256:
        return "use one line of at most 256 ASCII characters"
    if product_token(value) is None:
        return "start with a name of letters, - and _, such as shop-bot/1.0 (+https://…): robots.txt calls you by it"
    return None


UserAgent = Annotated[StrictStr, _text(_user_agent)]
MediaType = Annotated[
    StrictStr,
    AfterValidator(str.lower),
    _pattern(r"[a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+", "use a media type such as text/html"),
]


def _selector(value: str, info: ValidationInfo) -> str:
    """Only `parsing` can read CSS: who loads contracts passes its judge in as the context `check_selector`."""
    check = (info.context or {}).get("check_selector")
    message = "use a CSS selector" if not value.strip() else check(value) if check else None
    if message is not None:
        raise ValueError(message)
    return value


Selector = Annotated[StrictStr, AfterValidator(_selector)]
StructuredPath = Annotated[
    StrictStr, _pattern(r"[^\s.]+(\.[^\s.]+)+", "use the type and the way to the property, such as Product.name")
]
PythonFunction = Annotated[
    StrictStr,
    _pattern(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", "use module:function, such as my_team.extractors:products"),
]
QueryGlob = Annotated[StrictStr, _pattern(r"[^\s&=#]{1,100}", "use a parameter's name, such as gclid or utm_*")]
FileEnding = Annotated[
    StrictStr,
    AfterValidator(lambda value: value.removeprefix(".").lower()),
    _pattern(r"[a-z0-9]{1,10}", "use a file ending, such as pdf"),
]
EnvironmentName = Annotated[
    StrictStr, _pattern(r"[A-Z_][A-Z0-9_]{0,99}", "name an environment variable (A-Z, 0-9, _); the secret stays there")
]
HeaderName = Annotated[StrictStr, _pattern(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", "use the name of a header")]
LanguageTag = Annotated[
    StrictStr, _pattern(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{1,8})*", "use a language tag such as en or de-AT")
]
Owner = Annotated[StrictStr, _pattern(r"team:[^\s]+|[^@\s]+@[^@\s]+\.[^@\s]+", "use team:NAME or an email address")]

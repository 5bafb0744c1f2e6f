"""A page's JSON-LD and microdata, asked for by type and path: `Product.offers.price`.

The first node of the type counts, in document order and the nearest to the top level first; it may stand in an
`@graph`, in an array or inside another node.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import NoReturn

from turbohtml import Document as Tree
from turbohtml import Element

from crawl_pipeline.parsing.values import Found

TextOf = Callable[[Element], str]
# Comment and CDATA wrappers that templates put around JSON, and a stray semicolon behind it.
_OPENING = re.compile(r"<!--|(?://|/\*)?\s*<!\[CDATA\[\s*(?:\*/)?")
_CLOSING = re.compile(r"(?:(?://|/\*)?\s*\]\]>\s*(?:\*/)?|-->|;)\s*\Z")
_LONGEST_WRAPPER = 100  # looked for no further in: white space without end must not be searched again and again


class JsonLd:
    """The JSON-LD of one page, indexed by type on first use. Blocks that are no JSON are passed over."""

    def __init__(self, blocks: Sequence[Element]) -> None:
        self._by_type: dict[str, dict[str, object]] = {}
        self._by_id: dict[str, dict[str, object]] = {}
        for node in _nodes([_decode(block.text) for block in blocks]):
            for name in _types(node):
                self._by_type.setdefault(name, node)
            identity = node.get("@id")
            if isinstance(identity, str) and len(node) > 1:
                self._by_id.setdefault(identity, node)

    def find(self, path: Sequence[str]) -> Found | None:
        """The value at a path: a type, then property names; of a list the first element counts, `@id`s are followed."""
        value: object = self._by_type.get(path[0])
        for name in path[1:]:
            value = self._resolved(value)
            if not isinstance(value, dict):
                return None
            value = value.get(name)
        return None if value is None else Found(value=value, is_machine=True)

    def _resolved(self, value: object) -> object:
        for _ in range(10):
            if isinstance(value, list):
                value = value[0] if value else None
            elif isinstance(value, dict) and len(value) == 1 and isinstance(identity := value.get("@id"), str):
                value = self._by_id.get(identity)
            else:
                break
        return value


def _decode(text: str) -> object:
    for candidate in (text, _unwrapped(text)):
        try:
            return json.loads(candidate, strict=False, parse_float=Decimal, parse_constant=_no_constant)
        except (ValueError, ArithmeticError, RecursionError):  # Decimal cannot hold every exponent
            continue
    return None


def _unwrapped(text: str) -> str:
    text = text.strip()
    opening = _OPENING.match(text[:_LONGEST_WRAPPER])
    closing = _CLOSING.search(text[-_LONGEST_WRAPPER:])
    return text[opening.end() if opening else 0 : len(text) - len(closing[0]) if closing else None]


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _nodes(blocks: list[object]) -> Iterator[dict[str, object]]:
    """Every object, the nearest to the top level first."""
    waiting = deque(blocks)
    while waiting:
        value = waiting.popleft()
        if isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            yield value
            waiting.extend(member for member in value.values() if isinstance(member, (dict, list)))


def _types(node: dict[str, object]) -> Iterator[str]:
    declared = node.get("@type")
    for name in declared if isinstance(declared, list) else [declared]:
        if isinstance(name, str):
            yield _term(name)


def _term(name: str) -> str:
    """The last segment of a type's name: `https://schema.org/Product` and `schema:Product` are `Product`."""
    return re.split(r"[/#:]", name.rstrip("/"))[-1]


# Which attribute is an element's value, where the standard says that it is not the text.
_VALUE_ATTRIBUTES = {
    **dict.fromkeys(("a", "area", "link"), "href"),
    **dict.fromkeys(("audio", "embed", "iframe", "img", "source", "track", "video"), "src"),
    **dict.fromkeys(("data", "meter"), "value"),
    "object": "data",
    "time": "datetime",
}


def find_microdata(scope: Tree | Element, path: Sequence[str], text_of: TextOf) -> Found | None:
    """The value at a path of the first item of the type within `scope` (or `scope` itself); `itemref` is not followed.

    A `content` attribute is the value on any element, as search engines read it.
    """
    item = _first_item(scope, path[0])
    for position, name in enumerate(path[1:], start=2):
        found = None if item is None else _property(item, name)
        if found is None:
            return None
        if position == len(path):
            return _value(found, text_of)
        item = found if found.attr("itemscope") is not None else None
    return None


def _first_item(scope: Tree | Element, name: str) -> Element | None:
    candidates = scope.select("[itemscope][itemtype]")
    if isinstance(scope, Element):
        candidates.insert(0, scope)
    for item in candidates:
        if any(_term(declared) == name for declared in (item.attr("itemtype") or "").split()):
            return item
    return None


def _property(item: Element, name: str) -> Element | None:
    """The first element that is the item's own property: no other item stands between them."""
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    for element in item.select(f'[itemprop~="{quoted}"]'):
        owner = element.parent
        while isinstance(owner, Element) and owner != item and owner.attr("itemscope") is None:
            owner = owner.parent
        if owner == item:
            return element
    return None


def _value(element: Element, text_of: TextOf) -> Found:
    content = element.attr("content")
    if content is None and (name := _VALUE_ATTRIBUTES.get(element.tag)) is not None:
        content = element.attr(name)
    if content is not None:
        return Found(value=content, is_machine=True)
    return Found(value=text_of(element), is_machine=False)

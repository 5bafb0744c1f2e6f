"""YAML as contracts use it: one document of plain keys and values, no aliases, each value with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from crawl_pipeline.errors import ContractFault

DEEPEST_NESTING = 30
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one is ten times as fast, and optional
_TEXT_TAG = "tag:yaml.org,2002:str"
_INDEX = re.compile(r"\[([0-9]+)\]\.?")


class YamlText:
    """The text of one contract, read. `is_readable` tells whether `data` stands for the text; never raises.

    Keys are always text (`on`, `no` and `1` stay what they look like). Faults are what the text itself has wrong.
    """

    def __init__(self, text: str) -> None:
        self.data: object = None
        self.faults: tuple[ContractFault, ...] = ()
        self.is_readable = False
        self._top: yaml.Node | None = None
        try:
            fault = _forbidden(text)
            if fault is None:
                fault = self._read(text)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            fault = _fault(f"is no YAML: {error.problem or error.context}", None if mark is None else mark.line)
        except yaml.YAMLError as error:
            fault = _fault(f"is no YAML: {' '.join(str(error).split())}", None)
        except (ValueError, TypeError, OverflowError) as error:  # !!int abc, a date in the 13th month
            fault = _fault(f"has a value that YAML cannot read: {error}; quote it", None)
        if fault is not None:
            self.faults = (fault,)

    def _read(self, text: str) -> ContractFault | None:
        loader = _Loader(text)
        try:
            self._top = loader.get_single_node()
            if self._top is None:
                return _fault("is empty: a contract starts with source: NAME", 0)
            self.faults = tuple(_mend_keys(self._top, ""))
            self.data = loader.construct_document(self._top)
        finally:
            loader.dispose()
        if not isinstance(self.data, dict):
            return _fault("is no contract: use keys and values, such as source: NAME", self._top.start_mark.line)
        self.is_readable = True
        return None

    def line(self, path: str) -> int | None:
        """The 1-based line of what a dotted path names, or of the nearest thing around it that is there."""
        node, line = self._top, 0
        while path and node is not None:
            found = _step(node, path)
            if found is None:
                break
            node, line, path = found
        return None if self._top is None else line + 1


def _step(node: yaml.Node, path: str) -> tuple[yaml.Node, int, str] | None:
    """One step along a path: the next node, its line and the rest of the path."""
    if isinstance(node, yaml.SequenceNode):
        match = _INDEX.match(path)
        if match is None or int(match[1]) >= len(node.value):
            return None
        item = node.value[int(match[1])]
        return item, item.start_mark.line, path[match.end() :]
    if not isinstance(node, yaml.MappingNode):
        return None
    # A key may hold dots itself: the longest one that the path begins with is meant.
    fitting = [
        (key, value)
        for key, value in node.value
        if path.startswith(str(key.value)) and path[len(str(key.value)) :][:1] in ("", ".", "[")
    ]
    if not fitting:
        return None
    key, value = max(fitting, key=lambda pair: len(pair[0].value))
    return value, key.start_mark.line, path[len(key.value) :].removeprefix(".")


def _line(event: yaml.Event) -> int:
    """The 0-based line of an event."""
    return event.start_mark.line if event.start_mark is not None else 0


def _forbidden(text: str) -> ContractFault | None:
    """Aliases and deep nesting, found in the stream of events: a small file cannot grow into a large one."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            return _fault("uses an alias (*name): write the value out", _line(event))
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST_NESTING:
                return _fault(f"is nested deeper than {DEEPEST_NESTING} levels", _line(event))
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return None


def _mend_keys(node: yaml.Node, path: str) -> Iterator[ContractFault]:
    """Makes every key text, and yields a fault for each that is there twice or is no text at all."""
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _mend_keys(item, f"{path}[{index}]")
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                yield ContractFault(path=path or "(top)", message="a key must be text", line=key.start_mark.line + 1)
                continue
            key.tag = _TEXT_TAG
            below = f"{path}.{key.value}" if path else key.value
            line = key.start_mark.line + 1
            if key.value in lines:
                message = f"stands here twice, first in line {lines[key.value]}: keep one of them"
                yield ContractFault(path=below, message=message, line=line)
            lines.setdefault(key.value, line)
            yield from _mend_keys(value, below)


def _fault(message: str, line: int | None) -> ContractFault:
    return ContractFault(path="(file)", message=message, line=None if line is None else line + 1)

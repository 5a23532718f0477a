"""YAML text as a tree that knows where each key and value begins and ends, aliases and styles included.

Apart from `lightkit.config.yaml_reader`, whose trees hold what a text means: here it is how it is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Union

import yaml

from lightkit.config.yaml_reader import YamlLoader, read_scalar

__all__ = [
    "LINE_BREAK",
    "Alias",
    "Entry",
    "Mapping",
    "Scalar",
    "Sequence",
    "Syntax",
    "has_aliases",
    "is_json",
    "long_keys",
    "parse",
    "walk_entries",
    "walk_syntax",
]

LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""YAML's line breaks, which are not those of `str.splitlines`."""


_LONG_KEY = re.compile(r"(?:^[ -]*|[{,]\s*)\?\s+\Z", re.MULTILINE)


@dataclass(eq=False)
class Scalar:
    """A scalar: its offsets in the text, and its value as read."""

    start: int
    end: int
    value: Any
    anchor: str | None = None


@dataclass(eq=False)
class Alias:
    """A ``*name`` that stands for a value elsewhere."""

    start: int
    end: int
    name: str


@dataclass(eq=False)
class Sequence:
    """A list; ``flow`` where it is written in brackets."""

    start: int
    end: int
    flow: bool
    items: list[Syntax] = field(default_factory=list)
    anchor: str | None = None


@dataclass(eq=False)
class Mapping:
    """A mapping; ``flow`` where it is written in braces."""

    start: int
    end: int
    flow: bool
    entries: list[Entry] = field(default_factory=list)
    anchor: str | None = None

    def get(self, key: str) -> Entry | None:
        """Give the entry of a key, if there is one."""
        return next((entry for entry in self.entries if entry.key == key), None)


Syntax = Union[Scalar, Alias, Sequence, Mapping]  # noqa: UP007 - evaluated at import, before the names are bound


@dataclass(eq=False)
class Entry:
    """A key with its value."""

    key: Any
    name: Scalar
    value: Syntax

    @property
    def start(self) -> int:
        """Offset of the key."""
        return self.name.start

    @property
    def end(self) -> int:
        """Offset after the value."""
        return max(self.name.end, self.value.end)


def parse(text: str) -> Syntax | None:
    """Give the tree of the first document; None where the text holds nothing. The text is one that `read_file` took."""
    return _Parser(text).tree()


def walk_syntax(node: Syntax) -> Iterator[Syntax]:
    """List a tree's nodes, parents first."""
    yield node
    if isinstance(node, Mapping):
        for entry in node.entries:
            yield from walk_syntax(entry.value)
    elif isinstance(node, Sequence):
        for item in node.items:
            yield from walk_syntax(item)


def walk_entries(root: Syntax | None) -> Iterator[Entry]:
    """List the entries of all mappings."""
    for node in () if root is None else walk_syntax(root):
        if isinstance(node, Mapping):
            yield from node.entries


def has_aliases(root: Syntax | None) -> bool:
    """Tell whether a value stands for another, as ``*name`` does."""
    return root is not None and any(isinstance(node, Alias) for node in walk_syntax(root))


def long_keys(text: str, root: Syntax | None) -> list[Entry]:
    """List the entries whose key is written in YAML's long form, ``? key``."""
    return [entry for entry in walk_entries(root) if _LONG_KEY.search(text, max(0, entry.start - 200), entry.start)]


def is_json(text: str) -> bool:
    """Tell whether a text is a mapping of JSON, which YAML can read too."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        ends = [match.end() for match in LINE_BREAK.finditer(text)]
        self._line_starts = list(accumulate([0, *(end - start for start, end in zip([0, *ends], ends, strict=False))]))
        self._events = iter(yaml.parse(text, Loader=YamlLoader))

    def tree(self) -> Syntax | None:
        for event in self._events:
            if isinstance(event, yaml.NodeEvent):
                return self._node(event)
        return None

    def _at(self, mark: Any) -> int:
        if mark.line >= len(self._line_starts):  # libyaml ends a last line that has no end
            return len(self._text)
        return min(int(self._line_starts[mark.line]) + int(mark.column), len(self._text))

    def _node(self, event: Any) -> Syntax:
        start, end = self._at(event.start_mark), self._at(event.end_mark)
        if isinstance(event, yaml.AliasEvent):
            return Alias(start, end, str(event.anchor))
        if isinstance(event, yaml.ScalarEvent):
            is_block = event.style in ("|", ">")  # ends where the next token begins
            end = start + len(self._text[start:end].rstrip()) if is_block else end
            return Scalar(start, end, self._value(event), event.anchor)
        if isinstance(event, yaml.SequenceStartEvent):
            items = list(self._children(yaml.SequenceEndEvent))
            end = self._last_end if event.flow_style else max(item.end for item in items)
            return Sequence(start, end, bool(event.flow_style), items, event.anchor)
        nodes = list(self._children(yaml.MappingEndEvent))
        flow_end = self._last_end
        entries = [_entry(name, value) for name, value in zip(nodes[::2], nodes[1::2], strict=True)]
        end = flow_end if event.flow_style else max(entry.end for entry in entries)
        return Mapping(start, end, bool(event.flow_style), entries, event.anchor)

    def _children(self, closing: type) -> Iterator[Syntax]:
        for event in self._events:
            if isinstance(event, closing):
                self._last_end = self._at(event.end_mark)
                return
            yield self._node(event)

    def _value(self, event: Any) -> Any:
        if not event.implicit[0]:
            return event.value
        return None if event.value == "" else read_scalar(event.value)


def _entry(name: Syntax, value: Syntax) -> Entry:
    assert isinstance(name, Scalar)  # `read_file` takes no other keys
    return Entry(name.value, name, value)

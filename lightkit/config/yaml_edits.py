"""Edit YAML text by the positions of PyYAML's nodes, so that every byte stays that nobody asked to change.

A round trip through ruamel.yaml keeps comments too, but joins wrapped lists, evens out spaces, and moves the comments
of keys that are removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from lightkit.config.origins import Origin
from lightkit.config.yaml_reader import YamlLoader, dump_yaml, read_scalar


class Source(str):
    """YAML text that is written as it stands."""

    __slots__ = ()


KEEP = Source("")
"""The old value, as it is written."""


class _Composer(yaml.SafeLoader):
    """Composes nodes with the positions of their text, where aliases are nodes of their own."""

    yaml_implicit_resolvers = YamlLoader.yaml_implicit_resolvers

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node:
        if self.check_event(yaml.AliasEvent):
            event: Any = self.get_event()  # type: ignore[no-untyped-call]
            return yaml.ScalarNode("alias", event.anchor, event.start_mark, event.end_mark)
        node = super().compose_node(parent, index)
        assert node is not None
        return node


class Entry(NamedTuple):
    """A key of a mapping with its value, as nodes of the text."""

    mapping: yaml.MappingNode
    key: str
    name: yaml.Node
    value: yaml.Node

    @property
    def start(self) -> int:
        """Offset of the key."""
        return int(self.name.start_mark.index)


def entries_of(node: yaml.Node | None) -> dict[str, Entry]:
    """List the entries of a mapping by their keys; none where it is no mapping."""
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(name.value): Entry(node, str(name.value), name, value) for name, value in node.value}


def is_flow(node: yaml.Node) -> bool:
    """Tell whether a collection is written in braces or brackets."""
    return isinstance(node, yaml.CollectionNode) and bool(node.flow_style)


def scalar_value(node: yaml.Node) -> Any:
    """Read a scalar; other values are not looked at."""
    if not isinstance(node, yaml.ScalarNode) or node.tag == "alias":
        return ...
    return node.value if node.style else None if node.value == "" else read_scalar(node.value)


class YamlText:
    """YAML text, the positions of its nodes, and the changes to make."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        self.root = yaml.compose(text, Loader=_Composer)
        found = re.search("\r\n|[\n\r]", text)
        self.newline = found[0] if found else "\n"
        self.is_json = _is_json(text)
        self.edits: list[tuple[int, int, str]] = []
        self.removed: list[Entry] = []
        self.added: list[yaml.Node] = []
        steps = [
            self.column(inner) - self.column(entry)
            for entry in self.walk()
            for inner in list(entries_of(entry.value).values())[:1]
            if not is_flow(entry.value)
        ]
        self.step = max(set(steps), key=lambda step: (steps.count(step), step == 2), default=2)

    def walk(self, node: yaml.Node | None = None) -> Iterator[Entry]:
        """List the entries of all mappings."""
        node = node or self.root
        for entry in entries_of(node).values():
            yield entry
            yield from self.walk(entry.value)
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                yield from self.walk(item)

    def end(self, node: yaml.Node | Entry) -> int:
        """Give the offset after a node; PyYAML's own mark of a block is where the next token begins."""
        if isinstance(node, Entry):
            return max(node.name.end_mark.index, self.end(node.value))
        if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
            start = node.start_mark.index
            return int(start + len(self.text[start : node.end_mark.index].rstrip()))
        if isinstance(node, yaml.ScalarNode) or is_flow(node):
            return int(node.end_mark.index)
        children = node.value if isinstance(node, yaml.SequenceNode) else [each for pair in node.value for each in pair]
        return max(map(self.end, children))

    def source(self, node: yaml.Node) -> str:
        """Give a node as it is written."""
        return self.text[node.start_mark.index : self.end(node)]

    def column(self, entry: Entry) -> int:
        """Give the column of an entry's key, from 0."""
        return int(entry.name.start_mark.column)

    def line_start(self, offset: int) -> int:
        """Give the offset at which a line begins."""
        return max(self.text.rfind(letter, 0, offset) for letter in "\r\n") + 1

    def next_line(self, offset: int) -> int:
        """Give the offset after the end of a line."""
        found = re.compile("\r\n|[\n\r]").search(self.text, offset)
        return found.end() if found else len(self.text)

    def after(self, offset: int, indent: int) -> int:
        """Give the start of the line after a block, whose last comments are as far in as its keys."""
        at = self.next_line(offset)
        while comment := re.compile(rf" {{{max(indent, 1)},}}#.*(\r\n|[\r\n]|\Z)").match(self.text, at):
            at = comment.end()
        return at

    def origin(self, node: yaml.Node) -> Origin:
        """Give the place of a node for an error."""
        mark, first = node.start_mark, self.line_start(node.start_mark.index)
        source = self.text[first : self.next_line(mark.index)].rstrip("\r\n")
        end = min(self.end(node) - first, len(source)) + 1
        return Origin("file", self.name, None, mark.line + 1, mark.column + 1, end, source)

    def comments(self, entry: Entry) -> list[str]:
        """Give the comments behind an entry and within it, each as a line of its own."""
        start = self.line_start(entry.start)
        text = self.text[start : self.next_line(self.end(entry))]
        nodes = [entry.name, entry.value]
        for node in nodes:
            if isinstance(node, yaml.ScalarNode):
                low, high = node.start_mark.index - start, self.end(node) - start
                text = text[:low] + re.sub(r"[^\r\n]", " ", text[low:high]) + text[high:]
            else:
                nodes += [each for child in node.value for each in (child if isinstance(child, tuple) else [child])]
        found = [re.search(r"(?:^|\s)(#.*)$", line.rstrip()) for line in text.splitlines()]
        return [" " * self.column(entry) + match[1] for match in found if match]

    def write(self, value: Any) -> str:
        """Write a value on one line."""
        if isinstance(value, Source):
            return str(value)
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{self.write(key)}: {self.write(child)}" for key, child in value.items()) + "}"
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(map(self.write, value)) + "]"
        text = json.dumps(value, ensure_ascii=False)
        if not self.is_json:
            plain_text = dump_yaml({"key": value}).removeprefix("key:").strip()
            is_plain = "\n" not in plain_text and not (isinstance(value, str) and re.search(r"[,\[\]{}]", value))
            text = plain_text if is_plain else text
        return text

    def lines(self, key: str, value: Any, indent: int) -> list[str]:
        """Write an entry as lines, mappings in block style."""
        if not (isinstance(value, Mapping) and value):
            return [f"{' ' * indent}{self.write(key)}: {self.write(value)}"]
        inner = [line for each, child in value.items() for line in self.lines(each, child, indent + self.step)]
        return [f"{' ' * indent}{self.write(key)}:", *inner]

    # -- changes -----------------------------------------------------------------------------------------------------

    def insert(self, offset: int, lines: list[str]) -> None:
        """Insert lines where a line begins, or after the last one."""
        text = self.newline.join(lines)
        at_end = offset == len(self.text) and not self.text.endswith(("\n", "\r"))
        self.edits.append((offset, offset, self.newline + text if at_end else text + self.newline))

    def set_value(self, entry: Entry, text: str) -> None:
        """Give an entry another value, on one line."""
        start, end = entry.value.start_mark.index, self.end(entry.value)
        is_block = not isinstance(entry.value, yaml.ScalarNode) and not is_flow(entry.value)
        if is_block:  # the comment behind its last line stays there
            behind = self.text[end : self.next_line(end)].strip()
            if lost := [comment for comment in self.comments(entry) if comment.strip() != behind]:
                self.insert(self.line_start(entry.start), lost)
        if is_block or start == end:  # several lines, or nothing
            start = self.text.index(":", entry.name.end_mark.index) + 1
            text, end = f" {text}", max(start, end if is_block else start)
        self.edits.append((start, end, text))

    def rename(self, entry: Entry, key: str) -> None:
        """Give an entry another key."""
        self.edits.append((entry.start, entry.name.end_mark.index, self.write(key)))

    def replace(self, entry: Entry, keys: Mapping[str, Any]) -> None:
        """Put other keys in the place of an entry; the first takes its line with the comment on it."""
        if not keys:
            self.removed.append(entry)
            return
        (key, value), *more = keys.items()
        if key != entry.key:
            self.rename(entry, key)
        if value is not KEEP:
            self.set_value(entry, self.write(value))
        if more and entry.mapping.flow_style:
            text = "".join(f", {self.write(k)}: {self.write(v)}" for k, v in more)
            self.edits.append((self.end(entry), self.end(entry), text))
        elif more:
            lines = [line for k, v in more for line in self.lines(k, v, self.column(entry))]
            self.insert(self.next_line(self.end(entry)), lines)

    def append(self, mapping: yaml.MappingNode, key: str, value: Any, *, after: Entry | None = None) -> None:
        """Add an entry to a mapping: after its last entry, or in block style after another one."""
        self.added.append(mapping)
        kept = [entry for entry in entries_of(mapping).values() if entry not in self.removed]
        if mapping.flow_style:
            at = self.end(kept[-1]) if kept else self.text.index("{", mapping.start_mark.index) + 1
            text = f"{', ' if kept else ''}{self.write(key)}: {self.write(value)}"
            self.edits.append((at, at, text))
            return
        indent = int(mapping.value[0][0].start_mark.column)
        at = self.after(self.end(mapping), indent) if after is None else self.after(self.end(after), indent + 1)
        self.insert(at, self.lines(key, value, indent))

    def result(self) -> str:
        """Give the text with all changes."""
        self.removeentries_of()
        return self.apply(0, len(self.text))

    def apply(self, start: int, end: int) -> str:
        """Give a part of the text with the changes in it, which are made then."""
        inside = [edit for edit in self.edits if start <= edit[0] <= edit[1] <= end]
        self.edits = [edit for edit in self.edits if edit not in inside]
        parts, at = [], start
        for low, high, text in sorted(inside, key=lambda edit: edit[:2]):
            if low >= at or high > at:  # not within what has been removed
                parts += [self.text[at:low], text]
                at = max(at, high)
        return "".join([*parts, self.text[at:end]])

    def removeentries_of(self) -> None:
        """Turn removed entries into edits; their comments stay, and a mapping that loses all is ``{}``."""
        for entry in self.removed:
            siblings = list(entries_of(entry.mapping).values())
            later = siblings[siblings.index(entry) + 1 :]
            kept = [each for each in siblings[: siblings.index(entry)] if each not in self.removed]
            start, end = self.line_start(entry.start), self.end(entry)
            is_empty = all(each in self.removed for each in siblings) and entry.mapping not in self.added
            if entry.mapping.flow_style:
                low = entry.start if later or not kept else self.end(kept[-1])
                self.edits.append((low, later[0].start if later else end, ""))
            elif self.text[start : entry.start].strip():  # behind the dash of a list's item
                self.edits.append((entry.start, later[0].start if later else end, "{}" if is_empty else ""))
            else:
                lines = "".join(comment + self.newline for comment in self.comments(entry))
                self.edits.append((start, self.next_line(end), lines))
                holders = [each for each in self.walk() if each.value is entry.mapping]
                if is_empty and entry == siblings[0] and holders:
                    colon = self.text.index(":", holders[0].name.end_mark.index) + 1
                    self.edits.append((colon, colon, " {}"))
        self.removed = []


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False

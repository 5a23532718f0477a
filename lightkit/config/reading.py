"""YAML text as a tree with the place of every value."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from lightkit.config.origins import Origin, mistake, near_files, shortened, shown_path
from lightkit.config.scalars import SCALAR_TAGS, YamlLoader
from lightkit.config.tree import Items, Leaf, Node, Table
from lightkit.errors import ConfigError

__all__ = ["MAX_DEPTH", "MAX_NODES", "YamlSyntaxError", "read_file", "read_text"]

MAX_DEPTH = 100
"""Levels of nesting that a config may have; Python's recursion ends soon after 1000, and no real one has 20."""
MAX_NODES = 100_000
"""Values that a config may have once its aliases are expanded: a few aliases of aliases can stand for billions."""

_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # YAML's, which are not those of str.splitlines
_CONTROL_CHARACTER = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_MERGE = "tag:yaml.org,2002:merge"
_COLLECTIONS = {"tag:yaml.org,2002:map": yaml.MappingNode, "tag:yaml.org,2002:seq": yaml.SequenceNode}


class YamlSyntaxError(ConfigError):
    """Text is not YAML."""


def read_file(file: Path) -> Table:
    """Read a file whose top level is a mapping; an empty file is an empty mapping.

    Raises:
        ConfigError: If it cannot be read, is not UTF-8 or not YAML, repeats a key, or holds something else.
    """
    text = _text_of(file)
    tree = read_text(text, name=shown_path(file), file=file)
    if isinstance(tree, Table):
        return tree
    if isinstance(tree, Leaf) and tree.value is None:
        return Table({}, tree.origin)
    kind = "a list" if isinstance(tree, Items) else f"the single value {tree.value!r}"
    raise mistake(f"{shown_path(file)}: expected a mapping of keys to values, got {kind}", tree.origin)


def read_text(text: str, *, name: str, file: Path | None = None) -> Node:
    """Read YAML text; ``name`` is what errors and origins call it.

    Raises:
        YamlSyntaxError: If it is not YAML.
        ConfigError: If it repeats a key, nests too deeply, or grows too large by its aliases.
    """
    return _Builder(text, name, file).tree()


def _text_of(file: Path) -> str:
    name = shown_path(file)
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{name}: no such file{near_files(file)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{name}: expected a YAML file, got a folder") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig", errors="replace")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        wrong = content[error.start]
        raise ConfigError(
            f"{name}: expected UTF-8 text, got the byte 0x{wrong:02x} at line {line}, column {column}; "
            f"save the file as UTF-8"
        ) from None


class _Builder:
    """Turns one text's YAML nodes into a tree."""

    def __init__(self, text: str, name: str, file: Path | None) -> None:
        self._text, self._name, self._file = text, name, file
        self._lines = _LINE_BREAK.split(text)
        self._num_nodes = 0
        self._open: set[int] = set()  # nodes being built, to see an alias inside its own anchor

    def tree(self) -> Node:
        try:
            self._check_nesting()
            root = yaml.compose(self._text, Loader=YamlLoader)
        except yaml.YAMLError as error:
            raise self._syntax_error(error) from None
        if root is None:
            return Leaf(None, self._place(0, 0))
        self._constructor = YamlLoader("")
        return self._build(root, depth=0, key=None)

    def _check_nesting(self) -> None:
        """Stop before PyYAML recurses: its events come one by one, however deep they nest."""
        depth = 0
        for event in yaml.parse(self._text, Loader=YamlLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH and event.start_mark is not None:
                    raise self._too_deep(self._place(event.start_mark.line, event.start_mark.column))
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1

    def _too_deep(self, place: Origin) -> ConfigError:
        return mistake(f"{self._name}: nested more than {MAX_DEPTH} levels deep", place)

    def _syntax_error(self, error: yaml.YAMLError) -> YamlSyntaxError:
        mark = getattr(error, "problem_mark", None)
        if mark is None:  # a character that YAML forbids anywhere; PyYAML gives no line for it
            found = _CONTROL_CHARACTER.search(self._text)
            start = found.start() if found else 0
            before = _LINE_BREAK.split(self._text[:start])
            says = f"the character {self._text[start : start + 1]!r} is not allowed in YAML"
            place = self._place(len(before) - 1, len(before[-1]))
            return YamlSyntaxError(f"{self._name}: {says}\n{place.render()}")
        if mark.line >= len(self._lines) - 1 and not self._lines[-1].strip():  # what is open at the end opened above
            mark = getattr(error, "context_mark", None) or mark
        problem = ", ".join(part for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part)
        line = self._lines[mark.line] if mark.line < len(self._lines) else ""
        tabbed = "\t" in line[: len(line) - len(line.lstrip())]
        hint = "; indent with spaces, YAML allows no tabs" if tabbed else ""
        place = self._place(mark.line, mark.column)
        return YamlSyntaxError(f"{self._name}: not valid YAML: {problem}{hint}\n{place.render()}")

    def _place(self, line: int, column: int, end_column: int | None = None, key: Origin | None = None) -> Origin:
        source = self._lines[line] if line < len(self._lines) else ""
        end = None if end_column is None else end_column + 1
        return Origin("file", self._name, self._file, line + 1, column + 1, end, source, key)

    def _origin(self, node: yaml.Node, key: Origin | None = None) -> Origin:
        start, end = node.start_mark, node.end_mark
        if end.line == start.line:
            return self._place(start.line, start.column, end.column, key)
        to_line_end = len(self._lines[start.line]) if isinstance(node, yaml.ScalarNode) else None
        return self._place(start.line, start.column, to_line_end, key)

    def _build(self, node: yaml.Node, *, depth: int, key: Origin | None) -> Node:
        origin = self._origin(node, key)
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES:
            raise mistake(f"{self._name}: it holds more than {MAX_NODES} values once its aliases are expanded", origin)
        if depth > MAX_DEPTH:
            raise self._too_deep(origin)
        if isinstance(node, yaml.ScalarNode):
            return Leaf(self._scalar(node, origin), origin)
        if _COLLECTIONS.get(node.tag) is not type(node):
            raise self._bad_tag(node.tag, origin)
        if id(node) in self._open:
            raise mistake(f"{self._name}: an alias stands inside its own anchor", origin)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return Table(self._entries(node, depth), origin)
            return Items(tuple(self._build(item, depth=depth + 1, key=None) for item in node.value), origin)
        finally:
            self._open.discard(id(node))

    def _bad_tag(self, tag: str, origin: Origin) -> ConfigError:
        shown = tag.replace("tag:yaml.org,2002:", "!!")
        says = f"{self._name}: the tag {shown} is not allowed here; configs hold plain YAML values"
        return mistake(f"{says}, and classes are named by class_path", origin)

    def _scalar(self, node: yaml.ScalarNode, origin: Origin) -> Any:
        if node.tag not in SCALAR_TAGS:
            raise self._bad_tag(node.tag, origin)
        try:
            return self._constructor.construct_object(node)
        except (ValueError, KeyError, yaml.YAMLError):
            kind = node.tag.rpartition(":")[2]
            says = f"{self._name}: cannot read {shortened(node.value)} as {kind}; put quotes around it if it is text"
            raise mistake(says, origin) from None

    def _entries(self, node: yaml.MappingNode, depth: int) -> dict[Any, Node]:
        own: dict[Any, Node] = {}
        merged: dict[Any, Node] = {}
        keys: dict[Hashable, Origin] = {}
        for key_node, value_node in node.value:
            place = self._origin(key_node)
            is_merge = key_node.tag == _MERGE
            key = "<<" if is_merge else self._key(key_node, place)
            if (type(key), key) in keys:
                raise mistake(f"{self._name}: the key {key!r} stands twice in one mapping", keys[type(key), key], place)
            keys[type(key), key] = place
            if is_merge:
                merged = self._merged(value_node, depth)
            else:
                own[key] = self._build(value_node, depth=depth + 1, key=place)
        return {**merged, **own}

    def _key(self, node: yaml.Node, place: Origin) -> Hashable:
        if not isinstance(node, yaml.ScalarNode):
            raise mistake(f"{self._name}: a key must be a plain value, not a mapping or a list", place)
        key = self._scalar(node, place)
        if key is None:
            raise mistake(f"{self._name}: a key is null; put quotes around it if it is text", place)
        hashable: Hashable = key
        return hashable

    def _merged(self, node: yaml.Node, depth: int) -> dict[Any, Node]:
        """Read what ``<<`` names: one mapping, or several of which the earlier win."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        entries: dict[Any, Node] = {}
        for source in reversed(sources):
            table = self._build(source, depth=depth + 1, key=None)
            if not isinstance(table, Table):
                raise mistake(f"{self._name}: << takes mappings to merge, such as *anchor", table.origin)
            entries = {**entries, **table.entries}
        return entries

"""Merge one layer of a config over another."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from lightkit.config.origins import NESTED_FILES, KeyPath, Origin, Problems, dotted, error_at
from lightkit.config.sections import CLASS_SECTIONS, NAMED_CLASSES
from lightkit.config.tree import (
    Items,
    Leaf,
    MappingNode,
    Node,
    entries_of,
    supersede,
    text_of,
    to_plain,
)
from lightkit.config.yaml_reader import read_scalar
from lightkit.lightning_namespace import real_name

SPEC_KEYS = ("class_path", "init_args", "dict_kwargs")
STEPPING_KEYS = ("interval", "frequency")
"""Keys that stand next to the ``class_path`` of ``lr_scheduler``: when the schedule is stepped."""


@dataclass(frozen=True)
class MergeRules:
    """The merge of layers, and which places in them name classes.

    A mapping with ``class_path`` is a class wherever it stands. At the places given here, and in
    named entries, it is one also where it comes as a string, or with arguments next to
    ``class_path``.

    Args:
        class_sections: Top-level keys that hold one class each, such as ``model``.
        problems: Takes values that cannot be merged; the lower value stays.
    """

    class_sections: Collection[str] = CLASS_SECTIONS
    problems: Problems = field(default_factory=Problems)

    def merge(self, lower: Node | None, upper: Node, path: KeyPath = ()) -> Node:
        """Lay ``upper`` over ``lower``; neither is changed."""
        if isinstance(lower, Items) and isinstance(upper, MappingNode) and upper.partial:
            return self._into_list(lower, upper, path)
        if self._key_of_word(path) or _may_be_class(lower, upper):
            lower, upper = self._write_in_full(lower, upper, path)
        if not isinstance(upper, MappingNode):
            return supersede(lower, upper)

        # Arguments of one class are merged; another class replaces the class with its arguments.
        if not isinstance(lower, MappingNode) or _is_other_class(lower, upper):
            alone = self._merged(MappingNode({}, upper.origin, upper.replaced), upper, path)
            return supersede(lower, alone)
        if class_of(upper) is not None and {*upper.entries} <= {*_spec_keys(path)}:
            upper = _with_longer_name(lower, upper)
            lower = self._folded(lower, path)
        return self._merged(lower, upper, path)

    def _key_of_word(self, path: KeyPath) -> str:
        """Return the key that a single word at a path stands for.

        Empty where a word is a value like others.
        """
        if path == ("accelerator",):  # `accelerator: cpu` is `accelerator: {kind: cpu}`
            return "kind"
        return "class_path" if self.is_class_place(path) else ""

    def _write_in_full(
        self, lower: Node | None, upper: Node, path: KeyPath
    ) -> tuple[Node | None, Node]:
        """Write in full what a single word stands for.

        Also write the arguments of a class inside its ``init_args``.
        """
        key = self._key_of_word(path)
        if key:
            lower = _in_full(lower, key)
            upper = _in_full(upper, key)
        elif class_of(lower) is not None and _looks_like_class(upper):
            upper = _in_full(upper)
        if not isinstance(upper, MappingNode):
            return lower, upper

        # a part of a value that may be a word: `--trainer.logger=CSVLogger --trainer.logger.name=x`
        if upper.partial:
            lower = _in_full(lower)
        if upper.partial and isinstance(lower, Leaf) and str(lower.value).startswith("${"):
            text = (
                f"{dotted((*path, *upper.entries))} reaches into {dotted(path)}, which is"
                f" {lower.value!r}"
            )
            raise error_at(f"{text}; set {dotted(path)} itself", upper.origin, lower.origin)
        return lower, self._with_arguments_inside(lower, upper, path)

    def _is_entry(self, path: KeyPath) -> bool:
        return len(path) == 2 and path[0] in NAMED_CLASSES

    def expand(self, tree: MappingNode, paths: Iterable[KeyPath]) -> MappingNode:
        """Write classes in full where interpolations have given them.

        The rest of a merged tree has them so.

        Args:
            tree: All layers, merged and interpolated.
            paths: Places of the interpolations.
        """
        entries = dict(tree.entries)
        for key in dict.fromkeys(path[0] for path in paths):
            with self.problems.noted():
                entries[key] = self.merge(None, entries[key], (key,))
        return replace(tree, entries=entries)

    def is_class_place(self, path: KeyPath) -> bool:
        """Return whether a path is that of a section or a named entry that holds one class."""
        return self._is_entry(path) or (len(path) == 1 and path[0] in self.class_sections)

    def _with_arguments_inside(
        self, lower: Node | None, upper: MappingNode, path: KeyPath
    ) -> MappingNode:
        """Move arguments in short form, beside ``class_path`` or without it, into ``init_args``."""
        lower_keys = {*entries_of(lower)}
        if self._is_entry(path):
            by_name = NAMED_CLASSES[path[0]].get(path[1])
            if by_name and "class_path" not in lower_keys and "class_path" not in upper.entries:
                named = Leaf(by_name, Origin("default", f"the name {dotted(path)}"))
                upper = replace(upper, entries={"class_path": named, **upper.entries})
            return self._folded(upper, path)
        if self.is_class_place(path):
            is_class = "class_path" in upper.entries or bool(
                lower_keys & {"class_path", "init_args"}
            )
        else:
            is_class = "class_path" in lower_keys and lower_keys <= set(SPEC_KEYS)
        return self._folded(upper, path) if is_class else upper

    def _folded(self, table: MappingNode, path: KeyPath) -> MappingNode:
        loose = {key: node for key, node in table.entries.items() if key not in _spec_keys(path)}
        if not loose:
            return table
        entries = {key: node for key, node in table.entries.items() if key in _spec_keys(path)}
        arguments = MappingNode(loose, table.origin, partial=table.partial)
        given = entries.get("init_args")
        if isinstance(given, MappingNode):
            arguments = replace(
                self._merged(given, arguments, (*path, "init_args")), partial=table.partial
            )
        return replace(table, entries={**entries, "init_args": arguments})

    def _merged(self, lower: MappingNode, upper: MappingNode, path: KeyPath) -> MappingNode:
        """Merge key by key; what is appended comes after what is set."""
        entries = dict(lower.entries)
        for key in sorted(upper.entries, key=is_append):
            with self.problems.noted():
                self._merge_key(entries, key, upper.entries[key], path)
        return replace(lower, entries={key: entries[key] for key in sorted(entries, key=is_append)})

    def _merge_key(self, entries: dict[Any, Node], key: Any, node: Node, path: KeyPath) -> None:
        if is_append(key):
            self._append(entries, key, node, path)
            return
        pending = f"{key}+"
        if pending in entries and isinstance(node, MappingNode) and node.partial:
            entries[pending] = self.merge(entries[pending], node, (*path, key))
            return
        below = entries.pop(pending, None) if pending in entries else entries.get(key)
        entries[key] = self.merge(below, node, (*path, key))

    def _append(self, entries: dict[Any, Node], key: str, node: Node, path: KeyPath) -> None:
        """Append to the set list, or keep the ``key+`` for the layer that it is merged over."""
        target = key[:-1] if key[:-1] in entries else key
        added = _as_items(node)
        below = entries.get(target)
        if below is None:
            entries[target] = added
        elif isinstance(below, Leaf) and below.value is None:
            entries[target] = supersede(below, added)
        elif isinstance(below, (Items, MappingNode)) or (
            isinstance(below, Leaf) and _is_class_name(below.value)
        ):
            given = _as_items(below)
            items = (*given.items, *added.items)
            entries[target] = Items(
                items, added.origin, (*given.replaced, replace(below, replaced=()))
            )
        else:
            where = dotted((*path, target))
            text = f"{dotted((*path, key))} appends to a list, but {where} is {below.value!r}"
            raise error_at(f"{text}; set {where} to a list first", node.origin, below.origin)

    def _into_list(self, lower: Items, upper: MappingNode, path: KeyPath) -> Items:
        """Reach into a list by a dotted key.

        The element of that index, else the last one, as jsonargparse does.
        """
        index = len(lower.items) - 1
        inner = upper
        keys = list(upper.entries)
        if len(keys) == 1 and str(keys[0]).isdigit():
            index = int(keys[0])
            node = upper.entries[keys[0]]
            if not isinstance(node, MappingNode) and index < len(lower.items):
                return _with_item(lower, index, supersede(lower.items[index], node))
            inner = node if isinstance(node, MappingNode) else upper
        if not 0 <= index < len(lower.items):
            text = f"{dotted((*path, *keys))} reaches into a list of {len(lower.items)} elements"
            raise error_at(
                f"{text}; append one first, with {dotted(path)}+=", upper.origin, lower.origin
            )
        element = _in_full(lower.items[index])
        if not isinstance(element, MappingNode):
            text = (
                f"{dotted((*path, *keys))} reaches into a list whose element {index} is"
                f" {to_plain(element)!r}"
            )
            raise error_at(f"{text}, not a mapping", upper.origin, element.origin)
        return _with_item(lower, index, self.merge(element, inner, (*path, index)))


def _spec_keys(path: KeyPath) -> Collection[str]:
    """Return the keys next to the ``class_path`` at a place that are no arguments of the class."""
    return (*SPEC_KEYS, *STEPPING_KEYS) if path == ("lr_scheduler",) else SPEC_KEYS


def is_append(key: Any) -> bool:
    """Return whether a key is of the form ``key+``, which appends to a list."""
    return isinstance(key, str) and len(key) > 1 and key.endswith("+")


def appends_to_signature(path: KeyPath) -> bool:
    """Return whether a path in a merged config appends to a list that no layer sets, of a class."""
    return path[-2:-1] == ("init_args",) and is_append(path[-1])


def class_of(node: Node | None) -> str | None:
    """Return the ``class_path`` of a mapping that has one as text."""
    return text_of(entries_of(node).get("class_path"))


def _with_item(items: Items, index: int, item: Node) -> Items:
    return replace(items, items=(*items.items[:index], item, *items.items[index + 1 :]))


def _as_items(node: Node) -> Items:
    if isinstance(node, Items):
        return node
    if isinstance(node, Leaf) and node.value is None:
        return Items((), node.origin)
    return Items((replace(node, replaced=()),), node.origin, node.replaced)


def _is_class_name(value: Any) -> bool:
    """Return whether a string can name a class.

    ``${key}`` may stand for a mapping, and a path names a file.
    """
    if (
        not isinstance(value, str)
        or not value.strip()
        or value.endswith(NESTED_FILES)
        or "/" in value
    ):
        return False
    if not isinstance(read_scalar(value), str):  # `true` from a flag, where it is text still
        return False
    return not value.startswith("${") or value.startswith("${oc.env:")


def _looks_like_class(node: Node) -> bool:
    """Distinguish a class's name from a word such as ``ddp``, a class at some places."""
    module, _, name = (text_of(node) or "").rpartition(".")
    return module != "" or name[:1].isupper()


def _in_full(node: Any, key: str = "class_path") -> Any:
    """Write what is given by a single word as a mapping that holds it under a key."""
    if isinstance(node, Leaf) and _is_class_name(node.value):
        return MappingNode({key: node}, node.origin, node.replaced)
    return node


def _may_be_class(lower: Node | None, upper: Node) -> bool:
    """Return whether a value is a class by what it holds.

    A word that may name one and gets arguments counts, too.
    """
    if isinstance(lower, MappingNode):
        return "class_path" in lower.entries
    return isinstance(lower, Leaf) and isinstance(upper, MappingNode)


def _is_other_class(lower: MappingNode, upper: MappingNode) -> bool:
    """Return whether ``upper`` names another class than ``lower``.

    ``Adam`` and ``torch.optim.Adam`` are one.
    """
    new = class_of(upper)
    old = class_of(lower)
    if new is None or old is None or real_name(new) == real_name(old):
        return False
    same_name = new.rpartition(".")[2] == old.rpartition(".")[2]
    return not (same_name and ("." not in new or "." not in old))


def _with_longer_name(lower: MappingNode, upper: MappingNode) -> MappingNode:
    """Leave out ``Adam`` where it is merged over ``torch.optim.Adam``, which is more exact."""
    if "." in (class_of(upper) or "") or "." not in (class_of(lower) or ""):
        return upper
    return replace(
        upper, entries={key: node for key, node in upper.entries.items() if key != "class_path"}
    )

"""Named entries, and the lists of callbacks and loggers that LightningCLI takes in their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightkit.config.merge import MergeRules
from lightkit.config.origins import KeyPath, Origin, Problems, dotted, error_at, near, shortened
from lightkit.config.tree import Items, Leaf, MappingNode, Node, find, to_plain, walk
from lightkit.config.yaml_reader import read_scalar
from lightkit.errors import ConfigError

_LONGEST_CLASS_NAME = 500
_MOST_PACKAGES = 50
_GROUPS = ("trainer", "run", "launch", "watchdog", "gate", "accelerator")


@dataclass(frozen=True)
class LightningConfig:
    """A config as LightningCLI takes it.

    Args:
        values: Plain dicts, lists and scalars.
        paths: For each value that stands elsewhere in the lightkit config, its path there:
            ``("trainer", "callbacks", 0)`` is ``("callbacks", "early_stopping")``. What lies below moves along.
    """

    values: dict[str, Any]
    paths: dict[KeyPath, KeyPath] = field(default_factory=dict)

    def lightkit_path(self, path: KeyPath) -> KeyPath:
        """Give the path that the user knows for a path of LightningCLI's."""
        for length in range(len(path), 0, -1):
            moved = self.paths.get(path[:length])
            if moved is not None:
                return (*moved, *path[length:])
        return path


def check_entries(tree: MappingNode, layering: MergeRules, problems: Problems) -> set[KeyPath]:
    """Check that every named entry can name its class, and give the places of those that cannot.

    An entry that is neither mapping, class name nor null, or whose name is unknown and that has no class, is a problem.
    """
    wrong: set[KeyPath] = set()
    for section, known in layering.default_classes.items():
        for word in (section, f"{section}+"):
            node = tree.entries.get(word)
            if node is None or (isinstance(node, Leaf) and node.value is None):
                continue
            if word != section or not isinstance(node, MappingNode):
                text = f"{word}: expected a mapping from names to entries, got {to_plain(node)!r}"
                problems.add(error_at(f"{text}; Lightning's own value goes under trainer.{word}", node.origin))
                wrong.add((word,))
                continue
            for name, entry in node.entries.items():
                error = _check_entry((section, name), entry, known)
                if error is None:
                    continue
                wrong.add((section, name))
                if not problems.is_incomplete or str(name) in known:  # else a layer that cannot be read may name it
                    problems.add(error)
    return wrong


def check_class_names(tree: MappingNode, problems: Problems) -> set[KeyPath]:
    """Give the places of class names that are too long to be any; to import one of a thousand parts takes minutes."""
    wrong: set[KeyPath] = set()
    for path, node in walk(tree):
        if not isinstance(node, Leaf) or not isinstance(node.value, str) or len(node.value) <= _LONGEST_CLASS_NAME:
            continue
        is_deep = node.value.count(".") > _MOST_PACKAGES and node.value.replace(".", "").isidentifier()
        if path[-1:] == ("class_path",) or is_deep:
            text = f"{dotted(path)}: expected the name of a class, got {shortened(node.value)}"
            problems.add(error_at(text, node.origin))
            wrong.add(path)
    return wrong


def _check_entry(path: KeyPath, entry: Node, known: Mapping[str, str]) -> ConfigError | None:
    if isinstance(entry, Leaf) and entry.value is None:
        return None
    if not isinstance(entry, MappingNode):
        text = f"{dotted(path)}: expected a class name, a mapping or null, got {to_plain(entry)!r}"
        return error_at(f"{text}; {{}} takes the entry as it is", entry.origin)
    class_path = entry.entries.get("class_path")
    if class_path is None:
        names = f"\nnames: {', '.join(sorted(known))}; any other needs a class_path"
        text = f"{dotted(path)}: there is no class of that name{near(str(path[1]), known)}"
        return error_at(text + (names if known else "; give it a class_path"), entry.origin.at_key())
    return None  # the schema checks its class


def lightning_config(tree: MappingNode, layering: MergeRules, ranks: Mapping[Origin, int]) -> LightningConfig:
    """Turn named entries into the lists under ``trainer``: the entries in their order, then the user's own list.

    ``trainer.logger: false`` leaves only the entries of higher layers.

    Args:
        tree: The config.
        layering: The rules that it was merged by.
        ranks: Number of the layer of each origin; a higher layer has a higher number.

    Raises:
        ConfigError: If there are named entries, and ``trainer`` is no mapping to take them.
    """
    # An empty section sets nothing; jsonargparse would take its null for the section.
    values = {key: value for key, value in to_plain(tree).items() if value is not None or key not in _GROUPS}
    paths: dict[KeyPath, KeyPath] = {}
    given = tree.entries.get("trainer")
    for section in layering.default_classes:
        entries, names = values.pop(section, None) or {}, _list_names(tree, section, ranks)
        if not names:
            continue
        if given is not None and not isinstance(given, MappingNode) and to_plain(given) is not None:
            raise error_at(
                f"trainer: expected a mapping of the trainer's arguments, got {to_plain(given)!r}", given.origin
            )
        trainer = values["trainer"] = values.get("trainer") or {}
        source = section if section in trainer else f"{section}+"
        own = trainer.pop(source, None)
        if not own or isinstance(_read_switch(own), bool):  # the named ones replace Lightning's default logger
            own = []
        own = own if isinstance(own, list) else [own]
        is_list = isinstance(find(given, (source,)), Items)
        paths |= {("trainer", section, index): (section, name) for index, name in enumerate(names)}
        for index in range(len(own)):
            place = ("trainer", source, index) if is_list else ("trainer", source)
            paths["trainer", section, len(names) + index] = place
        trainer[section] = [*(entries[name] for name in names), *own]
    return LightningConfig(values, paths)


def _list_names(tree: MappingNode, section: str, ranks: Mapping[Origin, int]) -> list[str]:
    """List the entries that count: those that are not null, and above a ``false`` under ``trainer``."""

    def rank_of(node: Node) -> int:
        return max(ranks.get(inner.origin, 0) for _, inner in walk(node))

    entries, own = tree.entries.get(section), find(tree, ("trainer", section))
    given = entries.entries if isinstance(entries, MappingNode) else {}
    names = [name for name, entry in given.items() if to_plain(entry) is not None]
    if own is None or _read_switch(to_plain(own)) is not False:
        return names
    return [name for name in names if rank_of(given[name]) > rank_of(own)]


def _read_switch(value: Any) -> Any:
    """Read a value that may come from a flag, where `false` is text."""
    return read_scalar(value) if isinstance(value, str) else value


def named_config(
    config: Mapping[str, Any], tree: MappingNode, layering: MergeRules, ranks: Mapping[Origin, int]
) -> dict[str, Any]:
    """Put the named entries of a config that LightningCLI dumped back under their names.

    Entries that a layer removed stay ``null``, as `callbacks: {checkpoint: null}`, which a replay keeps.
    """
    result = dict(config)
    for section in layering.default_classes:
        entries = to_plain(tree.entries[section]) if section in tree.entries else None
        if not isinstance(entries, dict):
            continue
        trainer = result["trainer"] = dict(result.get("trainer") or {})
        dumped, names = trainer.get(section), _list_names(tree, section, ranks)
        items = list(dumped) if isinstance(dumped, list) else [dumped] if isinstance(dumped, Mapping) else []
        named = items[: len(names)]  # they come first, which the last parts of their class names confirm
        if [_class_name(entries[name]) for name in names] != [_class_name(item) for item in named]:
            continue
        found = dict(zip(names, named, strict=True))
        result[section] = {name: found.get(name) for name in entries}
        if names:
            trainer[section] = items[len(names) :] or None
    return result


def _class_name(entry: Any) -> str:
    class_path = entry.get("class_path") if isinstance(entry, Mapping) else entry
    return str(class_path).rpartition(".")[2]

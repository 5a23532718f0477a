"""List the keys of a Lightning 1.x config in today's words, by the tables of `upgrade_rules`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightkit.config.accelerator.setting import Setting
from lightkit.config.accelerator.translation import translate
from lightkit.config.accelerator.vocabulary import (
    GONE_STRATEGIES,
    HOROVOD,
    STRATEGIES_AS_ACCELERATORS,
)
from lightkit.config.accelerator.words import list_wishes
from lightkit.config.loader import layers_of
from lightkit.config.merge import MergeRules, class_of
from lightkit.config.origins import KeyPath, Origin, Problems, dotted
from lightkit.config.schema import load_schema
from lightkit.config.sections import NAMED_CLASSES
from lightkit.config.tree import Items, Leaf, MappingNode, Node, entries_of, text_of, to_plain, walk
from lightkit.config.upgrade_rules import (
    ARGUMENTS,
    CLASS_ARGUMENTS,
    CLASS_MODULES,
    HARDWARE_DEFAULTS,
    HARDWARE_REASONS,
    KEEP,
    LIGHTNING_CLASS,
    OLD_ARGUMENTS,
    OLD_HARDWARE_KEYS,
    Keys,
    Result,
    Rule,
    find_class,
)
from lightkit.config.yaml_reader import read_file
from lightkit.errors import ConfigError

_PLACES = {"distributed_backend": ("accelerator", "strategy"), "plugins": ("strategy",)}
"""Old keys that later versions of 1.x had elsewhere, each with these places."""
STAGES = ("fit", "validate", "test", "predict")
_LONGEST_VALUE = 110
_OUTSIDE = "arguments of the trainer stand under trainer"
_UNKNOWN_VALUE = "what it is today depends on its value; write that out"
_DEFAULT = Origin("default")

Conversions = dict[str, tuple[str, Result]]
"""Results by argument, each with the reason for it."""


@dataclass(frozen=True)
class Change:
    """An old key with its spelling of today.

    Args:
        origin: Place of the key.
        was: The key with its value.
        today: Keys with their values that replace it; none where it is to be removed.
        reason: The change in Lightning.
    """

    origin: Origin
    was: str
    today: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Upgrade:
    """The changes that bring a config to today's Lightning.

    Args:
        changes: Changes in the order of their places.
        problems: Errors about keys without an equivalent.
        extended: Files that it extends, also through others.
    """

    changes: tuple[Change, ...]
    problems: Problems
    extended: tuple[Path, ...] = ()

    @property
    def is_needed(self) -> bool:
        """Return whether the file holds a key of Lightning 1.x."""
        return bool(self.changes or self.problems)


def list_changes(file: Path) -> Upgrade:
    """List the keys of a config that Lightning 2 spells otherwise.

    Raises:
        ConfigError: If the file cannot be read as a config.
    """
    tree = read_file(file)
    if not tree.entries:
        return Upgrade((), Problems())
    # errors are reported when the config is used
    below = layers_of(file, seen=set(), problems=Problems())[:-1]
    trainers = [entries_of(layer.entries.get("trainer")) for layer in below]
    upgrade = _Upgrade()
    upgrade.read(tree, trainers)
    extended = tuple(layer.origin.file for layer in below if layer.origin.file is not None)
    changes = dict.fromkeys(upgrade.changes)  # an alias has the place of its anchor
    return Upgrade(tuple(sorted(changes, key=_place_of)), upgrade.problems, extended)


def describe_today(key: str, arguments: Mapping[str, Node]) -> str:
    """Return today's spelling of an old argument of the trainer, or the advice in its place.

    Args:
        key: The argument.
        arguments: It, and those beside it.
    """
    results = _Upgrade().convert_trainer(arguments, [{}])
    if key not in results:  # a contradiction, which is reported by itself
        return ""
    _, result = results[key]
    if isinstance(result, str):
        return f"; {result}"
    value = to_plain(arguments[key])
    others = {name: node for name, node in arguments.items() if name not in results}
    problem = _find_problem(("trainer",), value, result or {}, others)
    if problem:
        return f"; {problem}"
    today = _format_keys(("trainer",), (), value, result or {})
    return f"; write {', '.join(today)}" if today else "; leave it out"


def _place_of(change: Change) -> tuple[int, int]:
    return change.origin.line or 0, change.origin.column or 0


class _Upgrade:
    """The changes and errors of one config, as its sections are read."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.problems = Problems()

    def read(self, tree: MappingNode, below: Sequence[Mapping[str, Node]]) -> None:
        """Read all sections of a config.

        Args:
            tree: The config.
            below: Trainers of the files that it extends, lowest first.
        """
        tune = tree.entries.get("tune")
        if tune is not None and to_plain(tune) is not None:
            text = (
                "tune: Lightning 2.0 dropped the command; say what it searched as callbacks of fit"
            )
            self.problems.report(f"{text}, such as lr_finder: {{}}", tune.origin.at_key())

        # arguments of the trainer that stand outside of it count as its arguments
        top = self._move_arguments((), tree)
        stages = {
            stage: self._move_arguments((stage,), block)
            for stage, block in tree.entries.items()
            if stage in STAGES and isinstance(block, MappingNode)
        }
        moved = replace(tree, entries={**top.entries, **stages})

        self._read_classes(moved)
        own = self._read_trainer((), top, [*below, {}])
        for stage, block in stages.items():
            self._read_trainer((stage,), block, [*below, own])

    def _add(self, origin: Origin, was: str, today: Sequence[str], reason: str) -> None:
        self.changes.append(Change(origin, was, tuple(today), reason))

    # -- arguments outside of the trainer ----------------------------------------------------------

    def _move_arguments(self, path: KeyPath, table: MappingNode) -> MappingNode:
        """Copy a table with arguments of the trainer that stand beside it under ``trainer``."""
        own = table.entries.get("trainer")
        nodes = dict(entries_of(own))
        for key, node in table.entries.items():
            if _is_trainer_argument(key, node) and self._check_moved(path, key, node, own):
                nodes.setdefault(key, node)
        if not nodes:
            return table
        return replace(
            table, entries={**table.entries, "trainer": MappingNode(nodes, table.origin)}
        )

    def _check_moved(self, path: KeyPath, key: str, node: Node, trainer: Node | None) -> bool:
        """Check whether an argument may stand under ``trainer``; report the change or the error."""
        beside = entries_of(trainer).get(key, node)
        was = format_key((*path, key), to_plain(node))
        today = format_key((*path, "trainer", key), to_plain(beside))
        problem = ""
        if not isinstance(trainer, MappingNode) and to_plain(trainer) is not None:
            problem = f"{_OUTSIDE}; put it there"
        elif to_plain(beside) != to_plain(node):
            problem = f"contradicts {today}; say one"
        if problem:
            self.problems.report(f"{was}: {problem}", node.origin.at_key())
        elif key not in ARGUMENTS and key not in HARDWARE_REASONS:  # else its rule reports it
            self._add(node.origin.at_key(), was, [today], _OUTSIDE)
        return not problem

    # -- arguments of the trainer and of classes
    # -----------------------------------------------------------------------

    def _apply(
        self,
        path: KeyPath,
        nodes: Mapping[str, Node],
        results: Mapping[str, tuple[str, Result]],
        scope: KeyPath = (),
    ) -> None:
        """Report the results of the rules for the arguments of a trainer or a class.

        Args:
            path: Place of the arguments.
            nodes: All arguments.
            results: Results of some, each with the reason. A place with a dot is one in a section.
            scope: Place of the sections: the top, or the block of a command.
        """
        for key, (reason, result) in results.items():
            node = nodes[key]
            was = format_key((*path, key), to_plain(node))
            if isinstance(result, str):
                self.problems.report(f"{was}: {reason}; {result}", node.origin)
            elif result is not None:
                others = {name: other for name, other in nodes.items() if name not in results}
                problem = _find_problem(path, to_plain(node), result, others)
                if problem:
                    self.problems.report(f"{was}: {reason}; {problem}", node.origin)
                else:
                    today = _format_keys(path, scope, to_plain(node), result)
                    self._add(node.origin.at_key(), was, today, reason)

    def _read_trainer(
        self, scope: KeyPath, table: MappingNode, below: Sequence[Mapping[str, Node]]
    ) -> Mapping[str, Node]:
        """Apply the rules to one trainer, and return its arguments.

        Args:
            scope: Place of the sections: the top, or the block of a command.
            table: The config, or the block.
            below: Arguments of the trainers below, lowest file first; the last ones are those of
                the same file.
        """
        nodes = dict(entries_of(table.entries.get("trainer")))
        plugins = nodes.get("plugins")
        if (
            isinstance(plugins, Items)
            and len(plugins.items) == 1
            and _is_strategy_plugin(plugins.items[0])
        ):
            nodes["plugins"] = plugins.items[0]
        self._apply((*scope, "trainer"), nodes, self.convert_trainer(nodes, below), scope)
        return nodes

    def convert_trainer(
        self, nodes: Mapping[str, Node], below: Sequence[Mapping[str, Node]]
    ) -> Conversions:
        """Convert the arguments of a trainer that have a rule.

        Args:
            nodes: Arguments of the trainer.
            below: Arguments of the trainers below, as above.
        """
        return {**_convert(nodes, ARGUMENTS), **self._convert_hardware(nodes, below)}

    def _convert_hardware(
        self, nodes: Mapping[str, Node], below: Sequence[Mapping[str, Node]]
    ) -> Conversions:
        """Convert the hardware keys of a trainer as they are translated when a config is loaded.

        Args:
            nodes: Arguments of the trainer.
            below: Arguments of the trainers below, as above.
        """
        given = _select_hardware(nodes)
        results: Conversions = {
            key: (HARDWARE_REASONS[key], _UNKNOWN_VALUE)
            for key in OLD_HARDWARE_KEYS
            if key in nodes and key not in given
        }
        if "plugins" in given and not _is_strategy_plugin(given["plugins"]):
            del given["plugins"]
        asked = _rename_old_keys(given, results)
        wrong = self._check_each(asked)

        # the same as when the config is loaded
        tree = MappingNode({}, _DEFAULT)
        for lower in below:
            tree = _add_layer(tree, _select_hardware(lower), Problems())
        contradictions = Problems()
        tree = _add_layer(tree, asked, contradictions)
        if contradictions:
            for problem in contradictions:
                self.problems.add(problem)
            return results
        for key, node in given.items():
            if key not in results and node.origin not in wrong:
                results[key] = HARDWARE_REASONS[key], _find_keys(key, node, tree)
        return results

    def _check_each(self, asked: Mapping[str, Node]) -> set[Origin]:
        """Report each hardware key with a wrong value, and return the places of those."""
        wrong = set[Origin]()
        for key, node in asked.items():
            try:
                list_wishes(Setting(("trainer", key), node))
            except ConfigError as error:
                self.problems.add(error)
                wrong.add(node.origin)
        return wrong

    # -- classes -----------------------------------------------------------------------------------

    def _read_classes(self, tree: MappingNode) -> None:
        """Report the classes of Lightning that have another path or other arguments today."""
        for path, node in walk(tree):
            spec = node if isinstance(node, MappingNode) else None
            named = node if spec is None else spec.entries.get("class_path")
            word = text_of(named)
            if named is not None and word is not None and path[-1:] != ("class_path",):
                self._read_class(path, word, named.origin, spec)

    def _read_class(
        self, path: KeyPath, word: str, origin: Origin, spec: MappingNode | None
    ) -> None:
        """Report the changes of one class.

        Args:
            path: Place of the class.
            word: Its path, or a word that may be its name.
            origin: Place of that word.
            spec: The mapping with that ``class_path``; None for a class without arguments.
        """
        module = _module_of(path)
        place = path if spec is None else (*path, "class_path")
        today, reason = find_class(word, module) or (word, "")
        if today is None:
            self.problems.report(f"{format_key(place, word)}: {reason}", origin)
            return
        if today != word:
            self._add(origin, format_key(place, word), [format_key(place, today)], reason)
        arguments = None if spec is None else spec.entries.get("init_args")
        is_lightnings = LIGHTNING_CLASS.fullmatch(word) is not None or (
            module is not None and "." not in word
        )
        if is_lightnings and isinstance(arguments, MappingNode):
            rules = CLASS_ARGUMENTS.get(word.rpartition(".")[2], {})
            self._apply((*path, "init_args"), arguments.entries, _convert(arguments.entries, rules))


def format_key(path: KeyPath, value: Any) -> str:
    """Write a key with its value, which is cut where it is long."""
    text = (
        value
        if isinstance(value, str) and value
        else json.dumps(value, ensure_ascii=False, default=str)
    )
    shown = text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
    return f"{dotted(path)}: {shown}"


def _format_keys(path: KeyPath, scope: KeyPath, value: Any, keys: Keys) -> list[str]:
    """Write the keys that replace an argument.

    Args:
        path: Place of the arguments.
        scope: Place of the sections, which a key with a dot begins with.
        value: The old value.
        keys: Today's keys.
    """
    written = []
    for place, new in keys.items():
        *sections, name = place.split(".")
        if sections[:1] == [*scope]:
            sections = sections[1:]
        home = (*scope, *sections, name) if "." in place else (*path, name)
        written.append(format_key(home, value if new is KEEP else new))
    return written


def _find_problem(path: KeyPath, value: Any, keys: Keys, others: Mapping[str, Node]) -> str:
    """Return the reason for which an argument cannot be replaced by today's keys.

    Empty where there is none.
    """
    if _is_interpolated(value) and (not keys or any(new is not KEEP for new in keys.values())):
        return _UNKNOWN_VALUE
    for name, new in keys.items():
        said = value if new is KEEP else new
        if name in others and to_plain(others[name]) != said:
            return (
                f"contradicts {format_key((*path, name), to_plain(others[name]))}; say one of them"
            )
    return ""


def _convert(nodes: Mapping[str, Node], rules: Mapping[str, Rule]) -> Conversions:
    """Apply the rules to those arguments that have one."""
    values = {key: to_plain(node) for key, node in nodes.items()}
    return {
        key: (rule.reason, rule.convert(values[key], values))
        for key, rule in rules.items()
        if key in values
    }


def _rename_old_keys(given: Mapping[str, Node], results: Conversions) -> dict[str, Node]:
    """Put ``distributed_backend`` and a strategy into the plugins, as later 1.x had them.

    Args:
        given: Hardware keys of the trainer.
        results: Takes those for which there is no place.
    """
    asked = {key: node for key, node in given.items() if key not in _PLACES}
    for key, places in _PLACES.items():
        if to_plain(given.get(key)) is None:
            continue
        free = [place for place in places if to_plain(asked.get(place)) is None]
        if free:
            asked[free[0]] = given[key]
        else:
            results[key] = HARDWARE_REASONS[key], "contradicts strategy; say one of them"
    return asked


def _select_hardware(trainer: Mapping[str, Node]) -> dict[str, Node]:
    """Return the hardware keys of a trainer whose values are written out."""
    return {
        key: node
        for key, node in trainer.items()
        if key in HARDWARE_REASONS and not _is_interpolated(to_plain(node))
    }


def _add_layer(tree: MappingNode, trainer: Mapping[str, Node], problems: Problems) -> MappingNode:
    """Merge the hardware keys of one layer over those below, with today's keys for them."""
    layer = MappingNode({"trainer": MappingNode(trainer, _DEFAULT)}, _DEFAULT)
    merged: Node = tree
    for part in translate([layer], tree, environ={}, problems=problems):
        merged = MergeRules().merge(merged, part)
    assert isinstance(merged, MappingNode)
    return merged


def _find_keys(key: str, node: Node, tree: MappingNode) -> Keys | None:
    """List today's keys that a hardware key became; None where it stays."""
    trainer = entries_of(tree.entries["trainer"])
    keys: Keys = {
        name: _shorten_value(node, trainer[name], default=default)
        for name, default in HARDWARE_DEFAULTS.items()
        if name in trainer and trainer[name].origin == node.origin
    }
    if key in HARDWARE_DEFAULTS and keys in ({}, {key: KEEP}):
        return None  # today's word for it
    if key == "gpus" and keys == {"accelerator": "cpu"}:
        keys["devices"] = "auto"  # else the number of a layer below would count processes
    if key == "num_processes" and "devices" in keys and "strategy" not in trainer:
        is_one = Setting(("trainer", key), node).value == 1
        keys |= {} if is_one else {"strategy": "ddp"}
    return {name: keys[name] for name in sorted(keys, key=lambda name: name != key)}


def _shorten_value(old: Node, new: Node, *, default: Any) -> Any:
    """Return a new value, by its name where it is a class without arguments.

    `KEEP` where it is the old one; the default where it is null.
    """
    value = to_plain(new)
    if value is None:
        return default
    named = class_of(new)
    renamed = None if named is None else find_class(named, "plugins")
    if named == HOROVOD and len(value) == 1:
        value = "horovod"
    elif renamed is not None and renamed[0] is not None:
        value = {**value, "class_path": renamed[0]}
    return KEEP if type(value) is type(to_plain(old)) and value == to_plain(old) else value


def _is_interpolated(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _module_of(path: KeyPath) -> str | None:
    """Return the module of Lightning's in which a class's name alone is looked up.

    By the trainer's key above it.
    """
    keys = [key for key in path if isinstance(key, str)]
    if not keys:
        return None
    is_in_trainer = keys[-2:-1] == ["trainer"]
    return CLASS_MODULES.get(keys[-1].removesuffix("+")) if is_in_trainer else None


def _is_trainer_argument(key: str, node: Node) -> bool:
    """Return whether a key next to ``trainer`` is an argument of the trainer.

    It is nothing else that lightkit knows then.
    """
    if key == "accelerator":
        return str(to_plain(node)).lower() in (*STRATEGIES_AS_ACCELERATORS, *GONE_STRATEGIES)
    if key in NAMED_CLASSES:
        return (
            isinstance(node, Items)
            or isinstance(to_plain(node), bool)
            or class_of(node) is not None
        )
    return key in OLD_ARGUMENTS or key in load_schema().sections["trainer"].arguments


def _is_strategy_plugin(item: Node) -> bool:
    """Return whether an element of ``plugins`` is a strategy: by its class, or by its name."""
    named = class_of(item) or to_plain(item)
    if not isinstance(named, str):
        return False
    if isinstance(item, Leaf) and named[:1].islower() and "." not in named:
        return True
    today, _ = find_class(named, "plugins") or (named, "")
    return today is not None and (".strategies." in today or today == HOROVOD)

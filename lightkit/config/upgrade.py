"""Rewrite a config of Lightning 1.x by the tables of `upgrade_rules`, as a round trip through ruamel.yaml.

Two trees of the file are used: lightkit's own, which holds values and their places, and ruamel's, which is changed and
written. The latter reads every scalar as the text that it is, so that numbers, booleans and nulls stay as written.
"""

from __future__ import annotations

import copy
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.scalarstring import ScalarString
from ruamel.yaml.util import load_yaml_guess_indent

from lightkit.config.accelerator import resolve_hardware
from lightkit.config.accelerator.vocabulary import (
    COMPUTING_KEYS,
    GONE_STRATEGIES,
    HOROVOD,
    OLD_STRATEGIES,
    OLD_TRAINER_KEYS,
    STRATEGIES_AS_ACCELERATORS,
)
from lightkit.config.loader import CLASS_SECTIONS, WORDS, Resolved, layers_of
from lightkit.config.merge import MergeRules, class_of
from lightkit.config.origins import KeyPath, Origin, dotted, error_at, shown_path
from lightkit.config.schema import load_schema
from lightkit.config.tree import Items, Leaf, MappingNode, Node, plain, walk
from lightkit.config.upgrade_rules import (
    ADDED_ARGUMENTS,
    CHANGED_ARGUMENTS,
    CLASS_ARGUMENTS,
    CLASS_MODULES,
    DEFAULTS,
    HARDWARE_DEFAULTS,
    HARDWARE_REASONS,
    KEEP,
    LIGHTNING_CLASS,
    OLD_ARGUMENTS,
    OLD_HARDWARE_KEYS,
    REMOVED_ARGUMENTS,
    Keys,
    Result,
    Rule,
    find_class,
)
from lightkit.config.yaml_reader import dump_yaml, read_file, read_text
from lightkit.errors import ConfigError, ConfigErrors

STAGES = ("fit", "validate", "test", "predict")
_REMOVED = "lightkit-removed"
"""Key that holds the comments of a removed one until the text is written."""


@dataclass(frozen=True)
class Upgraded:
    """An upgraded config.

    Args:
        text: Its text.
        changes: What was changed: the line of the old file, and what became of what, with the reason; in their order.
        extended: Files that it extends, of those that are there; they are not rewritten.
    """

    text: str
    changes: tuple[tuple[int, str], ...]
    extended: tuple[Path, ...] = ()


def upgrade_file(file: Path) -> Upgraded:
    """Rewrite a config of Lightning 1.x in today's words.

    Raises:
        ConfigError: If the file cannot be read as a config, or holds what has no equivalent; all of it at once.
    """
    if file.exists() and not (file.is_file() or file.is_dir()):  # it is read more than once
        raise ConfigError(
            f"{shown_path(file)}: expected a file, got a pipe or a device; save the config as a file first"
        )
    tree, content = read_file(file), file.read_bytes().decode("utf-8")
    if not tree.entries:
        return Upgraded(content, ())
    try:
        below = [layer.entries.get("trainer") for layer in layers_of(file, seen=set())[:-1]]
    except ConfigError:  # reported when the config is used
        below = []
    lower = {key: node for table in below if isinstance(table, MappingNode) for key, node in table.entries.items()}
    upgrade = _Upgrade(content, tree, shown_path(file))
    upgrade.run(lower)
    if upgrade.errors:
        raise ConfigErrors(sorted(upgrade.errors, key=_line_of))
    text = upgrade.write() if upgrade.changes else content
    extends = tree.entries.get("extends", Items((), tree.origin))
    names = [
        item.value for item in (extends.items if isinstance(extends, Items) else [extends]) if isinstance(item, Leaf)
    ]
    files = [[file.parent / str(name), file.parent / f"{name}.yaml"] for name in names]
    extended = tuple(next(path for path in paths if path.is_file()) for paths in files if any(map(Path.is_file, paths)))
    return Upgraded(text, tuple(sorted(set(upgrade.changes), key=lambda change: change[0])), extended)


def _line_of(error: ConfigError) -> int:
    place = error.places[0]
    return (place.line or 0) if isinstance(place, Origin) else 0


class _TextResolver(VersionedResolver):
    """Resolves every scalar to text."""

    @property
    def versioned_resolver(self) -> dict[str, Any]:
        return {}


def _make_yaml() -> YAML:
    yaml = YAML()
    yaml.Resolver, yaml.preserve_quotes, yaml.width = _TextResolver, True, 1_000_000
    return yaml


class _Document:
    """The text of a file as ruamel's tree.

    Args:
        content: Text of the file.
        tree: The same as lightkit reads it.
        name: What errors call the file.

    Raises:
        ConfigError: If ruamel.yaml reads it as something else.
    """

    def __init__(self, content: str, tree: MappingNode, name: str) -> None:
        self.content, self.name = content, name
        head = re.match(r"\ufeff?(?:(?:[%#].*|[ \t]*)(?:\r\n|[\r\n]))*---[ \t]*(?:\r\n|[\r\n])|\ufeff?", content)
        assert head is not None
        self._head, text = head[0], re.sub("\r\n|\r", "\n", content[head.end() :])
        self._line_end = next(iter(re.findall("\r\n|[\r\n]", content)), "\n")
        self._yaml = _make_yaml()
        try:
            self.root, indent, offset = load_yaml_guess_indent(text, yaml=self._yaml)
            nested = re.search(r"^[\w'\"]+:[ \t]*(?:#.*)?\n(?:[ \t]*(?:#.*)?\n)*( +)[^\s#-]", text, re.MULTILINE)
            self._step = len(nested[1]) if nested else (indent or 2) - (offset or 0)
            self._yaml.indent(mapping=self._step, sequence=indent or self._step, offset=offset or 0)
            is_same = plain(read_text(self.write(), name=name)) == plain(tree)
        except (YAMLError, ConfigError):
            is_same = False
        if not is_same:
            says = "cannot be rewritten as it is; write empty values within braces as null, and keys on one line"
            raise ConfigError(f"{name}: {says}")

    def write(self) -> str:
        """Write the tree, with the line ends of the old file; JSON stays JSON."""
        stream = io.StringIO()
        self._yaml.dump(self.root, stream)
        emptied = re.compile(rf"^( *\S[^\n#]*:)((?: *#.*)?\n(?: *#.*\n|\n)*)(?= *{_REMOVED}-all-0:)", re.MULTILINE)
        removed = re.compile(rf"^( *){_REMOVED}\S* null *(#.*)?\n", re.MULTILINE)
        text = emptied.sub(r"\1 {}\2", stream.getvalue())
        text = removed.sub(lambda found: f"{found[1]}{found[2]}\n" if found[2] else "", text)
        if _is_json(self.content):
            indent = 2 if "\n" in self.content.strip() else None
            text = json.dumps(plain(read_text(text, name=self.name)), indent=indent, ensure_ascii=False) + "\n"
        text = text if self.content.endswith(("\n", "\r")) else text.rstrip("\n")
        return self._head + text.replace("\n", self._line_end)

    def move(self, home: CommentedMap, keys: list[str]) -> None:
        """Move entries with their comments under ``trainer``, which is made in the place of the first."""
        if not isinstance(home.get("trainer"), CommentedMap):
            at = list(home).index("trainer" if "trainer" in home else keys[0])
            home.pop("trainer", None)
            home.insert(at, "trainer", CommentedMap())
        trainer, siblings = home["trainer"], list(home)
        for key in keys:
            above = home.ca.items.get(key)
            token = above[2] if above else None
            trainer.setdefault(key, home[key])
            if token is None:
                continue
            head, _, tail = token.value.partition("\n")
            next_key = next(iter(siblings[siblings.index(key) + 1 :]), None)
            home.ca.items.pop(key)
            if next_key in keys or next_key is None:
                head = "\n".join([head, re.sub(r"(?m)^(?= *#)", " " * self._step, tail)])
            elif tail:
                home.ca.items[key] = [None, None, _copy_comment(token, f"\n{tail}"), None]
            if head and key not in trainer.ca.items:
                trainer.ca.items[key] = [None, None, _copy_comment(token, f"{head.rstrip()}\n"), None]
        _replace(home, {key: {} for key in keys})

    def find(self, path: KeyPath) -> Any:
        """Return what stands at a path; None where it comes from an anchor that is merged there."""
        node = self.root
        for key in path:
            if not ((isinstance(node, CommentedMap) and key in node) or isinstance(node, CommentedSeq)):
                return None
            node = node[key]
        return node


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _make(value: Any) -> Any:
    """Make ruamel's form of a value."""
    if isinstance(value, Mapping):
        return CommentedMap({_make(key): _make(child) for key, child in value.items()})
    if isinstance(value, (list, tuple)):
        items = CommentedSeq(map(_make, value))
        items.fa.set_flow_style()
        return items
    return _make_yaml().load(dump_yaml({"key": value}))["key"]


def _is_shared(value: Any) -> bool:
    """Return whether a value has an anchor."""
    return getattr(getattr(value, "anchor", None), "value", None) is not None


def _replace(table: CommentedMap, replacements: Mapping[str, Mapping[str, Any]]) -> None:
    """Put other entries in the place of some: the first has the comment of that line, the last those below it."""
    entries, comments = list(table.items()), dict(table.ca.items)
    is_emptied = not any(replacements.get(key, True) for key in table)
    for key, _ in entries:
        del table[key]
    table.ca.items.clear()
    for key, value in entries:
        above = comments.get(key)
        new = dict(replacements.get(key, {key: value}))
        if not new and table.fa.flow_style():
            continue
        new = new or {f"{_REMOVED}{'-all' if is_emptied else ''}-{len(table)}": "null"}
        table.update(new)
        first, *_, last = [*new, *new]
        if above is None:
            continue
        token = above[2]
        if first != last and token is not None:
            head, _, tail = token.value.partition("\n")
            above[2] = _copy_comment(token, f"{head}\n") if head else None
            table.ca.items[last] = [None, None, _copy_comment(token, f"\n{tail}") if tail else None, None]
            for child in new.values():
                if isinstance(child, (CommentedMap, CommentedSeq)) and child.ca.comment:
                    child.ca.comment[0] = None
        table.ca.items[first] = above


def _copy_comment(token: Any, text: str) -> Any:
    copied = copy.copy(token)
    copied.value = text
    return copied


class _Upgrade:
    """Applies the rules to one config, and collects changes and errors."""

    def __init__(self, content: str, tree: MappingNode, name: str) -> None:
        self.document, self.tree = _Document(content, tree, name), tree
        self.changes: list[tuple[int, str]] = []
        self.errors: list[ConfigError] = []

    def run(self, below: Mapping[str, Node]) -> None:
        """Change the document.

        Args:
            below: The trainer of the files that this one extends.
        """
        if plain(self.tree.entries.get("tune", Leaf(None, Origin("default")))) is not None:
            says = "tune: Lightning 2.0 dropped the command; say what it searched as callbacks of fit"
            self.refuse(self.tree.entries["tune"].origin.at_key(), f"{says}, such as lr_finder: {{}}")
        self.tree = self._move_arguments((), self.tree)
        blocks = {stage: self.tree.entries.get(stage) for stage in STAGES}
        tables = {
            stage: self._move_arguments((stage,), block)
            for stage, block in blocks.items()
            if isinstance(block, MappingNode)
        }
        self.tree = replace(self.tree, entries={**self.tree.entries, **tables})
        for path, node in walk(self.tree):
            named = node.entries.get("class_path") if isinstance(node, MappingNode) else node
            if isinstance(named, Leaf) and isinstance(named.value, str) and path[-1:] != ("class_path",):
                self._upgrade_class(path, named, node if isinstance(node, MappingNode) else None)
        below = {**below, **self._upgrade_trainer((), self.tree, below)}
        for stage, table in tables.items():
            self._upgrade_trainer((stage,), table, below)

    def write(self) -> str:
        """Write the upgraded file, and note which comments it has not."""
        text = self.document.write()
        read_text(text, name=self.document.name)
        comments = re.compile(r"(?:^|\s)(#[^#\n]*?)\s*$", re.MULTILINE)  # or the last part of one
        kept = comments.findall(text)
        for number, line in enumerate(self.document.content.splitlines(), start=1):
            for comment in comments.findall(line):
                if comment in kept:
                    kept.remove(comment)
                else:
                    self.changes.append((number, f"{comment} -> nothing (the comment has lost its place)"))
        return text

    def note(self, origin: Origin, was: str, today: list[str], reason: str) -> None:
        """Record a change."""
        self.changes.append((origin.line or 0, f"{was} -> {', '.join(today) or 'nothing'} ({reason})"))

    def refuse(self, origin: Origin, says: str) -> None:
        """Record something that cannot be upgraded."""
        self.errors.append(error_at(says, origin))

    def _is_referred_to(self, path: KeyPath) -> bool:
        """Return whether an interpolation refers to a key or to what is below it."""
        return re.search(r"\$\{\s*" + re.escape(dotted(path)) + r"\s*[}.\[]", self.document.content) is not None

    # -- the trainer -------------------------------------------------------------------------------------------------

    def _move_arguments(self, path: KeyPath, table: MappingNode) -> MappingNode:
        """Move arguments of the trainer that stand outside of it under ``trainer``."""
        home, own = self.document.find(path), table.entries.get("trainer", MappingNode({}, table.origin))
        flat = [key for key, node in table.entries.items() if _is_trainer_argument(key, node)]
        is_mapping = isinstance(own, MappingNode) or plain(own) is None
        nodes, moved = dict(own.entries) if isinstance(own, MappingNode) else {}, []
        for key in flat:
            node, reason = table.entries[key], "arguments of the trainer stand under trainer"
            was = _format((*path, key), plain(node))
            today = _format((*path, "trainer", key), plain(nodes.get(key, node)))
            if not is_mapping or key not in home or _is_shared(home):
                self.refuse(node.origin, f"{was}: {reason}; put it there, and upgrade again")
            elif self._is_referred_to((*path, key)):
                self.refuse(
                    node.origin, f"{was}: {reason}, but ${{{key}}} refers to it here; write its value out there"
                )
            elif plain(nodes.get(key, node)) != plain(node):
                self.refuse(node.origin.at_key(), f"{was}: contradicts {today}; say one")
            else:
                moved.append(key)
                nodes[key] = nodes.get(key, node)
                if key not in {**REMOVED_ARGUMENTS, **CHANGED_ARGUMENTS, **HARDWARE_REASONS}:
                    self.note(node.origin.at_key(), was, [today], reason)
        if not moved:
            return table
        self.document.move(home, moved)
        return replace(table, entries={**table.entries, "trainer": MappingNode(nodes, own.origin)})

    def _upgrade_trainer(self, scope: KeyPath, table: MappingNode, below: Mapping[str, Node]) -> Mapping[str, Node]:
        """Apply the rules to one trainer, and return its arguments as they were."""
        own, path = table.entries.get("trainer"), (*scope, "trainer")
        if not isinstance(own, MappingNode):
            return {}
        nodes, trainer = dict(own.entries), self.document.find(path)
        if "plugins" in nodes:
            nodes["plugins"] = self._take_strategy_plugin(path, nodes["plugins"])
        values = {key: plain(node) for key, node in nodes.items()}
        results = self._convert_hardware(path, nodes, table.entries.get("accelerator"), below)
        for key, rule in {**REMOVED_ARGUMENTS, **CHANGED_ARGUMENTS}.items():
            if key in values:
                results[key] = rule.reason, rule.convert(values[key], values)
        replacements: dict[str, Keys] = {}
        for key, node in nodes.items():
            reason, result = results.get(key, ("", None))
            if result is None:
                continue
            was, problem = _format((*path, key), values[key]), ""
            if _is_interpolated(values[key]) and not _keeps(result):
                problem = f"{reason}; what it is today depends on its value, write that out"
            elif isinstance(result, str):
                problem = f"{reason}; {result}"
            elif trainer is None or key not in trainer or _is_shared(trainer) or _is_shared(trainer[key]):
                problem = "it comes from an anchor, which may serve others too; write it out here, and upgrade again"
            elif f"trainer.{key}" not in result and self._is_referred_to((*path, key)):
                problem = f"{reason}, but ${{{dotted((*path, key))}}} refers to it; write its value out there"
            if problem or isinstance(result, str):
                self.refuse(node.origin, f"{was}: {problem}")
                continue
            today, replacements[key] = [], {}
            for place, new in _drop_doubles(result, scope, table, values).items():
                value, written = (values[key], trainer[key]) if new is KEEP else (new, _make(new))
                section, _, name = place.partition(".")
                home = (*scope, place) if section != "fit" or not scope else (*scope, name)
                today.append(_format(home, value))
                if section != "trainer":
                    if not self._put(self.document.find(scope), dotted(home[len(scope) :]), written):
                        says = f"{dotted(home)}: it stands here already, and {was} says something of it too"
                        self.refuse(node.origin, f"{says}; say it there, and take it out here")
                        break
                elif name not in values or name in results:
                    replacements[key][name] = written
                elif values[name] == DEFAULTS.get(name, ...):
                    replacements[name] = {name: written}
                elif values[name] != value:
                    self.refuse(
                        node.origin.at_key(), f"{was}: contradicts {_format((*path, name), values[name])}; say one"
                    )
            self.note(node.origin.at_key(), was, today, reason)
        if replacements:
            _replace(trainer, replacements)
        return nodes

    def _put(self, table: CommentedMap, place: str, value: Any) -> bool:
        """Write a value into a section, which is made after the trainer; return whether its place was free."""
        home = table
        *sections, last = place.split(".")
        for section in sections:
            if not isinstance(table, CommentedMap) or _is_shared(table):
                return False
            if table.get(section) in ("", "null", "~"):
                table[section] = CommentedMap()
            elif section not in table:
                table.insert(list(table).index("trainer") + 1 if table is home else len(table), section, CommentedMap())
            table = table[section]
        is_free = isinstance(table, CommentedMap) and not _is_shared(table) and table.get(last, value) == value
        if is_free:
            table[last] = value
        return is_free

    # -- hardware ----------------------------------------------------------------------------------------------------

    def _convert_hardware(
        self, path: KeyPath, nodes: Mapping[str, Node], block: Node | None, below: Mapping[str, Node]
    ) -> dict[str, tuple[str, Result]]:
        """Convert the hardware keys of a trainer as `resolve_hardware` understands them.

        Args:
            path: Path of the trainer.
            nodes: Its arguments.
            block: The block ``accelerator`` next to it.
            below: Arguments of the trainers below: ``num_processes: 1``, the default of 1.x, asks for a CPU only where
                nothing names another device.
        """
        given = {key: node for key, node in nodes.items() if key in (*OLD_HARDWARE_KEYS, *HARDWARE_DEFAULTS)}
        results: dict[str, tuple[str, Result]] = {}
        for key in [key for key, node in given.items() if _is_interpolated(plain(node))]:
            node = given.pop(key)
            own = (
                f", or keep it in lightkit's own block, as accelerator: {{{key}: ...}}"
                if key in OLD_TRAINER_KEYS
                else ""
            )
            if key in OLD_HARDWARE_KEYS:
                says = "what it is today depends on its value; write the value out"
                self.refuse(node.origin, f"{_format((*path, key), plain(node))}: {says}{own}")
        asked = {key: node for key, node in given.items() if key != "distributed_backend"}
        words = {key: given[key] for key in ("distributed_backend",) if key in given and plain(given[key]) is not None}
        if "plugins" in nodes and _is_strategy_plugin(nodes["plugins"]):
            words["plugins"] = given["plugins"] = nodes["plugins"]
        for key, node in words.items():
            places = ("accelerator", "strategy") if key == "distributed_backend" else ("strategy",)
            free = [place for place in places if plain(asked.get(place, Leaf(None, node.origin))) is None]
            if not free:
                says = f"contradicts {dotted((*path, 'strategy'))}; say one of them"
                self.refuse(node.origin, f"{_format((*path, key), plain(node))}: {says}")
            asked[free[0] if free else "strategy"] = node
        errors = {str(error): error for key, node in asked.items() if (error := _find_error({key: node})) is not None}
        lower = {
            key: node
            for key, node in below.items()
            if key in (*OLD_TRAINER_KEYS, *HARDWARE_DEFAULTS) and not _is_interpolated(plain(node))
        }
        if _find_error({**lower, **asked}, block) is None:
            asked = {**lower, **asked}
        elif not errors and (error := _find_error(asked, block)) is not None:
            errors[str(error)] = error
        self.errors += errors.values()
        if errors or not asked:
            return results
        found, strategy = _resolve(asked, block)
        if strategy == "horovod" and "strategy" in found:  # its devices would be written as processes of the launch
            by = found["strategy"].origin
            named = [node for node in asked.values() if node.origin == by and isinstance(node, MappingNode)]
            rest, _ = _resolve({key: node for key, node in asked.items() if node.origin != by}, None)
            found = {
                **{key: rest[key] for key in rest if key != "strategy"},
                "strategy": next(iter(named), Leaf("horovod", by)),
            }
        converted = {key: _find_keys(key, node, found) for key, node in given.items()}
        return {key: (HARDWARE_REASONS[key], keys) for key, keys in converted.items() if keys is not None}

    def _take_strategy_plugin(self, path: KeyPath, node: Node) -> Node:
        """Take a strategy out of the list ``plugins``."""
        items = node.items if isinstance(node, Items) else ()
        strategies = [item for item in items if _is_strategy_plugin(item)]
        if strategies and len(items) > 1:
            says = f"{HARDWARE_REASONS['plugins']}; say it under {dotted((*path, 'strategy'))}"
            self.refuse(strategies[0].origin, f"{dotted((*path, 'plugins'))}: {says}")
        trainer = self.document.find(path)
        if len(items) != 1 or not strategies or not isinstance(trainer.get("plugins"), CommentedSeq):
            return node
        trainer["plugins"] = trainer["plugins"][0]
        return items[0]

    # -- classes -----------------------------------------------------------------------------------------------------

    def _upgrade_class(self, path: KeyPath, named: Leaf, spec: MappingNode | None) -> None:
        """Rewrite the path and the arguments of a class of Lightning's.

        Args:
            path: Where it stands.
            named: Its path.
            spec: The mapping with that ``class_path``; None for a class without arguments.
        """
        keys = [key for key in path if isinstance(key, str)]
        module = CLASS_MODULES.get(keys[-1].removesuffix("+")) if keys[-2:-1] == ["trainer"] else None
        word, place = named.value, path if spec is None else (*path, "class_path")
        holder, short = self.document.find(place[:-1]), word.rpartition(".")[2]
        if holder is None or self.document.find(place) != word:  # it comes from an anchor, which is rewritten itself
            return
        today, reason = find_class(word, module) or (word, "")
        added = ADDED_ARGUMENTS.get(short, {}) if reason else {}
        if today is None:
            self.refuse(named.origin, f"{_format(place, word)}: {reason}")
            return
        if spec is None and added:
            says = f"write it as class_path: {today}, with init_args {added}"
            self.refuse(named.origin, f"{_format(place, word)}: {says}")
            return
        arguments = None if spec is None else holder.get("init_args")
        is_lightning = LIGHTNING_CLASS.fullmatch(word) or (module and "." not in word)
        if spec is not None and is_lightning and isinstance(arguments, CommentedMap):
            self._upgrade_arguments((*path, "init_args"), spec, arguments, CLASS_ARGUMENTS.get(short, {}))
        if today == word:
            return
        old = holder[place[-1]]
        holder[place[-1]] = type(old)(today) if isinstance(old, ScalarString) else today
        self.note(named.origin, _format(place, word), [today], reason)
        for key, value in added.items():
            if arguments is None:
                arguments = holder["init_args"] = CommentedMap()
            if isinstance(arguments, CommentedMap) and key not in arguments:
                arguments[key] = _make(value)
                now = _format((*path, "init_args", key), value)
                self.note(named.origin, dotted(path), [now], "what it was by itself")

    def _upgrade_arguments(
        self, path: KeyPath, spec: MappingNode, arguments: CommentedMap, rules: Mapping[str, Rule]
    ) -> None:
        own = spec.entries["init_args"]
        nodes = (
            {key: node for key, node in own.entries.items() if key in arguments} if isinstance(own, MappingNode) else {}
        )
        values = {key: plain(node) for key, node in nodes.items()}
        replacements: dict[str, Keys] = {}
        for key in [key for key in values if key in rules]:
            value, result = values[key], rules[key].convert(values[key], values)
            if isinstance(result, dict):
                today = {new: value if wanted is KEEP else wanted for new, wanted in result.items()}
                clash = [new for new in today if new != key and new in values and values[new] != today[new]]
                if clash:
                    result = f"contradicts {clash[0]}; say one of them"
                elif _is_interpolated(value) and not _keeps(result):
                    result = "what it is today depends on its value"
            if isinstance(result, str):
                self.refuse(nodes[key].origin, f"{_format((*path, key), value)}: {rules[key].reason}; {result}")
            elif result is not None:
                replacements[key] = {
                    new: arguments[key] if wanted is KEEP else _make(wanted)
                    for new, wanted in result.items()
                    if new == key or new not in values
                }
                shown = [_format((*path, new), wanted) for new, wanted in today.items()]
                self.note(nodes[key].origin.at_key(), _format((*path, key), value), shown, rules[key].reason)
        if replacements:
            _replace(arguments, replacements)


def _format(path: KeyPath, value: Any) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)
    return f"{dotted(path)}: {text if len(text) <= 110 else text[:110] + '...'}"


def _is_interpolated(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _keeps(result: Result) -> bool:
    """Return whether any value stays as it is written."""
    return isinstance(result, dict) and bool(result) and all(value is KEEP for value in result.values())


def _is_trainer_argument(key: str, node: Node) -> bool:
    """Return whether a key next to ``trainer`` is an argument of the trainer, and nothing else that lightkit knows."""
    if key == "accelerator":
        words = (*STRATEGIES_AS_ACCELERATORS, *GONE_STRATEGIES, *OLD_STRATEGIES)
        return str(plain(node)).lower() in words
    if key in ("callbacks", "logger"):
        return isinstance(node, Items) or isinstance(plain(node), bool) or class_of(node) is not None
    return key in OLD_ARGUMENTS or key in load_schema().data["sections"]["trainer"]["arguments"]


def _drop_doubles(result: Keys, scope: KeyPath, table: MappingNode, trainer: Mapping[str, Any]) -> Keys:
    """Leave out a bar or summary where there is one, or none is wanted, and a logger where loggers are named."""
    listed = trainer.get("callbacks")
    callbacks = [
        str(each.get("class_path") if isinstance(each, dict) else each)
        for each in (listed if isinstance(listed, list) else [listed])
    ]
    has_bar = trainer.get("enable_progress_bar") is False or any(name.endswith("ProgressBar") for name in callbacks)
    loggers = plain(table.entries.get("logger", Leaf(None, table.origin)))
    dropped = {
        "callbacks.progress_bar.": has_bar,
        "callbacks.model_summary.": any(name.endswith("ModelSummary") for name in callbacks),
        "logger.": isinstance(loggers, dict) and any(entry is not None for entry in loggers.values()),
        "fit.": bool(scope) and scope != ("fit",),  # 1.x used it when it fitted
    }
    starts = tuple(start for start, is_dropped in dropped.items() if is_dropped)
    return {place: new for place, new in result.items() if not place.startswith(starts)}


def _is_strategy_plugin(item: Node) -> bool:
    """Return whether an element of ``plugins`` is a strategy: by its class, or by its name."""
    named = class_of(item) if isinstance(item, MappingNode) else plain(item)
    if not isinstance(named, str):
        return False
    today, _ = find_class(named, "plugins") or (named, "")
    is_name = isinstance(item, Leaf) and named[:1].islower() and "." not in named
    return is_name or (today is not None and (".strategies." in today or today == HOROVOD))


def _find_error(trainer: Mapping[str, Node], block: Node | None = None) -> ConfigError | None:
    try:
        _resolve(trainer, block)
    except ConfigError as error:
        return error
    return None


def _resolve(trainer: Mapping[str, Node], block: Node | None) -> tuple[dict[str, Node], str | None]:
    """Resolve hardware keys to today's keys of the trainer and the strategy's name."""
    top: dict[str, Node] = {"trainer": MappingNode(dict(trainer), Origin("default"))}
    if isinstance(block, MappingNode):  # what goes to other sections is left out
        kept = {key: node for key, node in block.entries.items() if key not in COMPUTING_KEYS or key == "precision"}
        top["accelerator"] = replace(block, entries=kept)
    elif block is not None:
        top["accelerator"] = block
    rules = MergeRules(CLASS_SECTIONS, {"callbacks": {}, "logger": {}}, WORDS)
    tree = rules.merge(MappingNode({}, Origin("default")), MappingNode(top, Origin("default")))
    assert isinstance(tree, MappingNode)
    hardware = resolve_hardware(Resolved(tree, rules), None, environ={})
    found = hardware.resolved.tree.entries["trainer"]
    entries = found.entries if isinstance(found, MappingNode) else {}
    return {key: entries[key] for key in HARDWARE_DEFAULTS if key in entries}, hardware.strategy


def _find_keys(key: str, node: Node, found: Mapping[str, Node]) -> Keys | None:
    """List today's keys that a value became; None where it stays."""
    old = plain(node)
    own = {name: plain(new) for name, new in found.items() if new.origin == node.origin}
    same = [name for name, new in own.items() if (type(new) is type(old) and new == old) or new == {"class_path": old}]
    changed = {name: new for name, new in own.items() if new != HARDWARE_DEFAULTS[name]}
    kept = changed or {name: new for name, new in own.items() if name == key}
    if list(own) == [key] == same:
        return None
    keys = {name: KEEP if name in same else new for name, new in kept.items()}
    if key == "gpus" and keys == {"accelerator": "cpu"} and "devices" not in found:
        keys["devices"] = "auto"  # else the number of a layer below would count processes
    return {f"trainer.{name}": keys[name] for name in sorted(keys, key=lambda name: name != key)}

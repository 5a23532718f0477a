"""Rewrite a config of Lightning 1.x by the tables of `upgrade_rules`, as a round trip through ruamel.yaml.

Two trees of the file are used: lightkit's own, which holds values and their places, and ruamel's, which is changed and
written. The latter reads every scalar as the text that it is, so that numbers, booleans and nulls stay as written.
"""

from __future__ import annotations

import copy
import io
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.scalarstring import ScalarString
from ruamel.yaml.util import load_yaml_guess_indent

from lightkit.config.accelerator import Hardware, resolve_hardware
from lightkit.config.accelerator.vocabulary import GONE_STRATEGIES, HOROVOD, STRATEGIES_AS_ACCELERATORS
from lightkit.config.loader import layers_of
from lightkit.config.merge import class_of
from lightkit.config.origins import KeyPath, Origin, Problems, dotted, error_at, shown_path
from lightkit.config.resolved import Resolved, collect_errors
from lightkit.config.schema import load_schema
from lightkit.config.tree import Items, Leaf, MappingNode, Node, find, to_plain, walk
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
from lightkit.config.yaml_reader import dump_yaml, read_file, read_text
from lightkit.errors import ConfigError

STAGES = ("fit", "validate", "test", "predict")
_REMOVED = "lightkit-removed"
"""Key that holds the comments of a removed one until the text is written."""
_DEFAULT = Origin("default")


@dataclass(frozen=True)
class Upgraded:
    """An upgraded config.

    Args:
        text: Its text.
        changes: What was changed: the line of the old file, and what became of what, with the reason; in their order.
        extended: Files that it extends, also through others; they are not rewritten.
    """

    text: str
    changes: tuple[tuple[int, str], ...]
    extended: tuple[Path, ...] = ()


def upgrade_file(file: Path) -> Upgraded:
    """Rewrite a config of Lightning 1.x in today's words.

    Raises:
        ConfigError: If the file cannot be read as a config, or holds what has no equivalent; all of it at once.
    """
    tree, content = read_file(file), file.read_bytes().decode("utf-8")
    if not tree.entries:
        return Upgraded(content, ())
    below = layers_of(file, seen=set(), problems=Problems())[:-1]  # errors are reported when the config is used
    upgrade = _Upgrade(content, tree, shown_path(file))
    upgrade.run([table.entries for layer in below if isinstance(table := layer.entries.get("trainer"), MappingNode)])
    upgrade.problems.raise_any()
    text = upgrade.write() if upgrade.changes else content
    extended = tuple(layer.origin.file for layer in below if layer.origin.file is not None)
    return Upgraded(text, tuple(sorted(set(upgrade.changes), key=lambda change: change[0])), extended)


class _TextResolver(VersionedResolver):
    """Resolves every scalar to text."""

    @property
    def versioned_resolver(self) -> dict[str, Any]:
        return {}


def _make_yaml() -> YAML:
    yaml = YAML()
    yaml.Resolver, yaml.preserve_quotes, yaml.width = _TextResolver, True, 1_000_000
    return yaml


def _make(value: Any) -> Any:
    """Make ruamel's form of a value."""
    if isinstance(value, Mapping):
        return CommentedMap({_make(key): _make(child) for key, child in value.items()})
    if isinstance(value, (list, tuple)):
        items = CommentedSeq(map(_make, value))
        items.fa.set_flow_style()
        return items
    return _make_yaml().load(dump_yaml({"key": value}))["key"]


def _replace(table: CommentedMap, replacements: Mapping[str, Mapping[str, Any]]) -> None:
    """Put other entries in the place of some: the first has the comment of that line, the last those below it."""
    entries, comments = list(table.items()), dict(table.ca.items)
    is_emptied = not any(replacements.get(key, True) for key in table)
    for key, _ in entries:
        del table[key]
    table.ca.items.clear()
    for key, value in entries:
        new = dict(replacements.get(key, {key: value}))
        if not new and not table.fa.flow_style():
            new = {f"{_REMOVED}{'-all' if is_emptied else ''}-{len(table)}": "null"}
        table.update(new)
        if not new or (above := comments.get(key)) is None:
            continue
        first, *_, last = [*new, *new]
        if first != last and (token := above[2]) is not None:
            head, _, tail = token.value.partition("\n")
            above[2] = _copy_comment(token, f"{head}\n") if head else None
            table.ca.items[last] = [None, None, _copy_comment(token, f"\n{tail}") if tail else None, None]
        table.ca.items[first] = above


def _copy_comment(token: Any, text: str) -> Any:
    copied = copy.copy(token)
    copied.value = text
    return copied


class _Upgrade:
    """Applies the rules to one config, and collects changes and errors.

    Args:
        content: Text of the file.
        tree: The same as lightkit reads it.
        name: What errors call the file.

    Raises:
        ConfigError: If ruamel.yaml reads it as something else.
    """

    def __init__(self, content: str, tree: MappingNode, name: str) -> None:
        self.changes: list[tuple[int, str]] = []
        self.problems = Problems()
        self._content, self._tree, self._name = content, tree, name
        # An alias has the place of its anchor.
        self._places = Counter(node.origin for _, node in walk(tree) if node.origin.line is not None)
        head = re.match(r"\ufeff?(?:(?:[%#].*|[ \t]*)(?:\r\n|[\r\n]))*---[ \t]*(?:\r\n|[\r\n])|\ufeff?", content)
        assert head is not None
        self._head, text = head[0], re.sub("\r\n|\r", "\n", content[head.end() :])
        self._line_end = next(iter(re.findall("\r\n|[\r\n]", content)), "\n")
        self._yaml = _make_yaml()
        try:
            self._root, indent, offset = load_yaml_guess_indent(text, yaml=self._yaml)
            nested = re.search(r"^[\w'\"]+:[ \t]*(?:#.*)?\n(?:[ \t]*(?:#.*)?\n)*( +)[^\s#-]", text, re.MULTILINE)
            self._step = len(nested[1]) if nested else (indent or 2) - (offset or 0)
            self._yaml.indent(mapping=self._step, sequence=indent or self._step, offset=offset or 0)
            is_same = to_plain(read_text(self._dump(), name=name)) == to_plain(tree)
        except (YAMLError, ConfigError):
            is_same = False
        if not is_same:
            message = "cannot be rewritten as it is; write empty values within braces as null, and keys on one line"
            raise ConfigError(f"{name}: {message}")

    def _dump(self) -> str:
        stream = io.StringIO()
        self._yaml.dump(self._root, stream)
        removed = re.compile(rf"^( *){_REMOVED}\S* null *(#.*)?\n", re.MULTILINE)
        emptied = re.compile(rf"^( *\S[^\n#]*:)((?: *#.*)?\n(?: *#.*\n|\n)*)(?= *{_REMOVED}-all-0:)", re.MULTILINE)
        text = emptied.sub(r"\1 {}\2", stream.getvalue())
        text = removed.sub(lambda found: f"{found[1]}{found[2]}\n" if found[2] else "", text)
        text = text if self._content.endswith(("\n", "\r")) else text.rstrip("\n")
        return self._head + text.replace("\n", self._line_end)

    def write(self) -> str:
        """Write the upgraded file, with the line ends of the old one, and note which comments it has not."""
        text = self._dump()
        read_text(text, name=self._name)
        comments = re.compile(r"(?:^|\s)(#[^#\n]*?)\s*$", re.MULTILINE)  # or the last part of one
        for comment in Counter(comments.findall(self._content)) - Counter(comments.findall(text)):
            line = self._content[: self._content.index(comment)].count("\n") + 1
            self.changes.append((line, f"{comment} -> nothing (the comment has lost its place)"))
        return text

    def run(self, below: Sequence[Mapping[str, Node]]) -> None:
        """Change the document.

        Args:
            below: The trainers of the files that this one extends, lowest first.
        """
        if to_plain(self._tree.entries.get("tune", Leaf(None, _DEFAULT))) is not None:
            text = "tune: Lightning 2.0 dropped the command; say what it searched as callbacks of fit"
            self._refuse(self._tree.entries["tune"].origin.at_key(), f"{text}, such as lr_finder: {{}}")
        self._tree = self._move_arguments((), self._tree)
        tables = {
            stage: self._move_arguments((stage,), block)
            for stage in STAGES
            if isinstance(block := self._tree.entries.get(stage), MappingNode)
        }
        self._tree = replace(self._tree, entries={**self._tree.entries, **tables})
        for path, node in walk(self._tree):
            named = node.entries.get("class_path") if isinstance(node, MappingNode) else node
            if isinstance(named, Leaf) and isinstance(named.value, str) and path[-1:] != ("class_path",):
                self._upgrade_class(path, named, node if isinstance(node, MappingNode) else None)
        top = self._upgrade_trainer((), self._tree, [*below, {}])
        for stage, table in tables.items():
            self._upgrade_trainer((stage,), table, [*below, top])

    def _find(self, path: KeyPath) -> Any:
        """Return what stands at a path; None where it comes from an anchor that is merged there."""
        node = self._root
        for key in path:
            if not ((isinstance(node, CommentedMap) and key in node) or isinstance(node, CommentedSeq)):
                return None
            node = node[key]
        return node

    def _is_shared(self, path: KeyPath) -> bool:
        """Return whether the value at a path stands elsewhere too, by an alias."""
        node = find(self._tree, path)
        return node is not None and self._places[node.origin] > 1

    def _refuse(self, origin: Origin, text: str) -> None:
        self.problems.add(error_at(text, origin))

    def _note(self, origin: Origin, was: str, today: list[str], reason: str) -> None:
        self.changes.append((origin.line or 0, f"{was} -> {', '.join(today) or 'nothing'} ({reason})"))

    def _find_obstacle(self, path: KeyPath, *, stays: bool = False) -> str:
        """Say why a key cannot be changed, or, unless it stays, taken away: others use it."""
        table, key = self._find(path[:-1]), path[-1]
        if table is None or key not in table or self._is_shared(path[:-1]) or self._is_shared(path):
            return "it comes from an anchor, which may serve others too; write it out here, and upgrade again"
        if not stays and re.search(r"\$\{\s*" + re.escape(dotted(path)) + r"\s*[}.\[]", self._content):
            return f"${{{dotted(path)}}} refers to it; write its value out there"
        return ""

    def _apply(
        self, path: KeyPath, nodes: Mapping[str, Node], results: Mapping[str, tuple[str, Result]], scope: KeyPath = ()
    ) -> None:
        """Replace arguments of a trainer or a class.

        Args:
            path: Place of the arguments.
            nodes: All of them.
            results: What becomes of some, each with the reason. A place with a dot is one in a section.
            scope: Place of the sections: the top, or the block of a command.
        """
        table, replacements = self._find(path), dict[str, Keys]()
        for key, node in nodes.items():
            reason, result = results.get(key, ("", None))
            if result is None:
                continue
            value, replacements[key] = to_plain(node), {}
            was, today = _format((*path, key), value), list[str]()
            if isinstance(result, str):
                problem = result
            elif _is_interpolated(value) and (not result or any(new is not KEEP for new in result.values())):
                problem = "what it is today depends on its value; write that out"
            else:
                problem = self._find_obstacle((*path, key), stays=key in result)
            for place, new in result.items() if isinstance(result, dict) and not problem else ():
                now, written = (value, table[key]) if new is KEEP else (new, _make(new))
                *sections, name = place.split(".")
                home = (*(path if not sections else scope), *sections[sections[:1] == [*scope] :], name)
                today.append(_format(home, now))
                if sections:
                    if not self._put(home, len(scope), written):
                        problem = f"{dotted(home)} stands here already; say it there, and take this out"
                elif name not in nodes or name in results:
                    replacements[key][name] = written
                elif to_plain(nodes[name]) != now:
                    problem = f"contradicts {_format((*path, name), to_plain(nodes[name]))}; say one of them"
            if problem:
                self._refuse(node.origin, f"{was}: {reason}; {problem}")
            else:
                self._note(node.origin.at_key(), was, today, reason)
        if replacements and not self.problems:
            _replace(table, replacements)

    def _put(self, place: KeyPath, depth: int, value: Any) -> bool:
        """Write a value into a section, which is made after the trainer; return whether its place was free."""
        table = self._find(place[:depth])
        for number, section in enumerate(place[depth:-1]):
            if not isinstance(table, CommentedMap) or self._is_shared(place[: depth + number]):
                return False
            if section not in table:
                at = len(table) if number else list(table).index("trainer") + 1
                table.insert(at, section, CommentedMap())
            table = table[section]
        is_free = isinstance(table, CommentedMap) and not self._is_shared(place[:-1])
        is_free = is_free and table.get(place[-1], value) == value
        if is_free:
            if isinstance(value, CommentedMap):
                value.ca.comment = None  # it stays behind the old key, whose table has it too
            table[place[-1]] = value
        return is_free

    # -- the trainer -------------------------------------------------------------------------------------------------

    def _move_arguments(self, path: KeyPath, table: MappingNode) -> MappingNode:
        """Move arguments of the trainer that stand outside of it under ``trainer``."""
        own, moved = table.entries.get("trainer"), list[str]()
        nodes = dict(own.entries) if isinstance(own, MappingNode) else {}
        for key, node in table.entries.items():
            if not _is_trainer_argument(key, node):
                continue
            was = _format((*path, key), to_plain(node))
            today = _format((*path, "trainer", key), to_plain(nodes.get(key, node)))
            problem = self._find_obstacle((*path, key))
            if not isinstance(own, MappingNode) and own is not None and to_plain(own) is not None:
                problem = "arguments of the trainer stand under trainer; put it there"
            elif to_plain(nodes.get(key, node)) != to_plain(node):
                problem = f"contradicts {today}; say one"
            if problem:
                self._refuse(node.origin.at_key(), f"{was}: {problem}")
                continue
            moved.append(key)
            nodes[key] = nodes.get(key, node)
            if key not in ARGUMENTS and key not in HARDWARE_REASONS:
                self._note(node.origin.at_key(), was, [today], "arguments of the trainer stand under trainer")
        if not moved:
            return table
        self._move(self._find(path), moved)
        return replace(table, entries={**table.entries, "trainer": MappingNode(nodes, table.origin)})

    def _move(self, home: CommentedMap, keys: list[str]) -> None:
        """Move entries with their comments under ``trainer``, which is made in the place of the first."""
        if not isinstance(home.get("trainer"), CommentedMap):
            at = list(home).index("trainer" if "trainer" in home else keys[0])
            home.pop("trainer", None)
            home.insert(at, "trainer", CommentedMap())
        trainer, siblings = home["trainer"], [*home, None]
        for key in keys:
            above = home.ca.items.pop(key, None)
            token = above[2] if above else None
            trainer.setdefault(key, home[key])
            if token is None:
                continue
            head, _, tail = token.value.partition("\n")
            if siblings[siblings.index(key) + 1] in (*keys, None):
                head = "\n".join([head, re.sub(r"(?m)^(?= *#)", " " * self._step, tail)])
            elif tail:
                home.ca.items[key] = [None, None, _copy_comment(token, f"\n{tail}"), None]
            if head and key not in trainer.ca.items:
                trainer.ca.items[key] = [None, None, _copy_comment(token, f"{head.rstrip()}\n"), None]
        _replace(home, {key: {} for key in keys})

    def _upgrade_trainer(
        self, scope: KeyPath, table: MappingNode, below: Sequence[Mapping[str, Node]]
    ) -> Mapping[str, Node]:
        """Apply the rules to one trainer, and return its arguments as they were.

        Args:
            scope: Place of the sections: the top, or the block of a command.
            table: What stands there.
            below: Arguments of the trainers below, lowest file first; the last ones are those of the same file.
        """
        own, path = table.entries.get("trainer"), (*scope, "trainer")
        if not isinstance(own, MappingNode):
            return {}
        nodes, plugins = dict(own.entries), own.entries.get("plugins")
        if isinstance(plugins, Items) and len(plugins.items) == 1 and _is_strategy_plugin(plugins.items[0]):
            nodes["plugins"] = plugins.items[0]
            if isinstance(written := self._find((*path, "plugins")), CommentedSeq):
                self._find(path)["plugins"] = written[0]
        self._apply(path, nodes, {**_convert(nodes, ARGUMENTS), **self._convert_hardware(nodes, below)}, scope)
        return nodes

    def _convert_hardware(
        self, nodes: Mapping[str, Node], below: Sequence[Mapping[str, Node]]
    ) -> dict[str, tuple[str, Result]]:
        """Convert the hardware keys of a trainer as `resolve_hardware` understands them.

        Args:
            nodes: Arguments of the trainer.
            below: Arguments of the trainers below, as above. They count: ``num_processes: 1``, the default of 1.x,
                asks for a CPU only where nothing names another device.
        """
        results: dict[str, tuple[str, Result]] = {}
        given = {key: node for key, node in nodes.items() if key in HARDWARE_REASONS}
        if "plugins" in given and not _is_strategy_plugin(given["plugins"]):
            del given["plugins"]
        for key in [key for key, node in given.items() if _is_interpolated(to_plain(node))]:
            del given[key]
            if key in OLD_HARDWARE_KEYS:
                text = "what it is today depends on its value; write the value out"
                results[key] = HARDWARE_REASONS[key], text
        asked = {key: node for key, node in given.items() if key not in ("distributed_backend", "plugins")}
        for key, places in (("distributed_backend", ("accelerator", "strategy")), ("plugins", ("strategy",))):
            if key not in given or to_plain(given[key]) is None:
                continue
            place = next((each for each in places if each not in asked or to_plain(asked[each]) is None), None)
            if place is None:
                results[key] = HARDWARE_REASONS[key], "contradicts strategy; say one of them"
            else:
                asked[place] = given[key]
        *lower, beside = map(_without_interpolations, below)
        trainers, found = [*lower, {**beside, **asked}], Problems()
        hardware, _ = collect_errors(_make_config(trainers), _resolve, found)
        own = {node.origin for node in asked.values()}
        errors = [error for error in found if own & {*error.places}]  # others are those of lower files
        for error in errors:
            self.problems.add(error)
        if hardware is None or errors:
            return results
        entries = _list_keys(hardware)
        if hardware.strategy == "horovod" and "strategy" in entries:  # its devices would be processes of the launch
            by = entries["strategy"].origin
            named = next((node for node in asked.values() if node.origin == by and isinstance(node, MappingNode)), None)
            trainers = [{key: node for key, node in each.items() if node.origin != by} for each in trainers]
            entries = {**_list_keys(_resolve(_make_config(trainers))), "strategy": named or Leaf("horovod", by)}
        for key, node in given.items():
            results.setdefault(key, (HARDWARE_REASONS[key], _find_keys(key, node, entries)))
        return results

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
        if self._find(place) != word:  # it comes from an anchor, which is rewritten itself
            return
        today, reason = find_class(word, module) or (word, "")
        if today is None:
            self._refuse(named.origin, f"{_format(place, word)}: {reason}")
            return
        arguments = None if spec is None else spec.entries.get("init_args")
        if (LIGHTNING_CLASS.fullmatch(word) or (module and "." not in word)) and isinstance(arguments, MappingNode):
            rules = CLASS_ARGUMENTS.get(word.rpartition(".")[2], {})
            self._apply((*path, "init_args"), arguments.entries, _convert(arguments.entries, rules))
        if today != word:
            holder = self._find(place[:-1])
            old = holder[place[-1]]
            holder[place[-1]] = type(old)(today) if isinstance(old, ScalarString) else today
            self._note(named.origin, _format(place, word), [today], reason)


def _format(path: KeyPath, value: Any) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)
    return f"{dotted(path)}: {text if len(text) <= 110 else text[:110] + '...'}"


def _convert(nodes: Mapping[str, Node], rules: Mapping[str, Rule]) -> dict[str, tuple[str, Result]]:
    """Convert those arguments for which there is a rule, each with what Lightning changed."""
    values = {key: to_plain(node) for key, node in nodes.items()}
    return {key: (rule.reason, rule.convert(values[key], values)) for key, rule in rules.items() if key in values}


def _is_interpolated(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _without_interpolations(nodes: Mapping[str, Node]) -> dict[str, Node]:
    return {key: node for key, node in nodes.items() if not _is_interpolated(to_plain(node))}


def _is_trainer_argument(key: str, node: Node) -> bool:
    """Return whether a key next to ``trainer`` is an argument of the trainer, and nothing else that lightkit knows."""
    if key == "accelerator":
        return str(to_plain(node)).lower() in (*STRATEGIES_AS_ACCELERATORS, *GONE_STRATEGIES)
    if key in ("callbacks", "logger"):
        return isinstance(node, Items) or isinstance(to_plain(node), bool) or class_of(node) is not None
    return key in OLD_ARGUMENTS or key in load_schema().data["sections"]["trainer"]["arguments"]


def _is_strategy_plugin(item: Node) -> bool:
    """Return whether an element of ``plugins`` is a strategy: by its class, or by its name."""
    named = class_of(item) if isinstance(item, MappingNode) else to_plain(item)
    if not isinstance(named, str):
        return False
    today, _ = find_class(named, "plugins") or (named, "")
    is_name = isinstance(item, Leaf) and named[:1].islower() and "." not in named
    return is_name or (today is not None and (".strategies." in today or today == HOROVOD))


def _make_config(trainers: Sequence[Mapping[str, Node]]) -> Resolved:
    """Make a config of the trainers of several layers, lowest first."""
    nodes = {key: node for trainer in trainers for key, node in trainer.items() if key in HARDWARE_REASONS}
    tree = MappingNode({"trainer": MappingNode(nodes, _DEFAULT)}, _DEFAULT)
    ranks = {node.origin: rank for rank, trainer in enumerate(trainers) for node in trainer.values()}
    return Resolved(tree, ranks=ranks)


def _resolve(resolved: Resolved) -> Hardware:
    return resolve_hardware(resolved, None, environ={})


def _list_keys(hardware: Hardware) -> dict[str, Node]:
    trainer = hardware.resolved.tree.entries["trainer"]
    assert isinstance(trainer, MappingNode)
    return {key: trainer.entries[key] for key in HARDWARE_DEFAULTS if key in trainer.entries}


def _find_keys(key: str, node: Node, found: Mapping[str, Node]) -> Keys | None:
    """List today's keys that a value became; None where it stays."""
    old = to_plain(node)
    own = {name: to_plain(new) for name, new in found.items() if new.origin == node.origin}
    same = [name for name, new in own.items() if (type(new) is type(old) and new == old) or new == {"class_path": old}]
    changed = {name: new for name, new in own.items() if new != HARDWARE_DEFAULTS[name]}
    kept = changed or {name: new for name, new in own.items() if name == key}
    if list(own) == [key] == same:
        return None
    keys = {name: KEEP if name in same else new for name, new in kept.items()}
    if key == "gpus" and keys == {"accelerator": "cpu"} and "devices" not in found:
        keys["devices"] = "auto"  # else the number of a layer below would count processes
    return {name: keys[name] for name in sorted(keys, key=lambda name: name != key)}

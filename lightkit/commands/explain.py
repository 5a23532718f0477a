"""`lightkit explain`: the value of a key, what set it, and what that replaced."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from lightkit.cli.argument_lookup import Argument, find_argument, list_keys
from lightkit.cli.config_loader import STAGES, LoadedConfig, limit_to_this_machine, load_config
from lightkit.config import (
    KeyPath,
    Origin,
    Problems,
    Resolved,
    dotted,
    near,
    resolve_hardware,
    split_arguments,
)
from lightkit.config.accelerator.vocabulary import BLOCK_KEYS, OLD_TRAINER_KEYS
from lightkit.config.display import RedactedConfig, format_annotated, format_inline, format_origin, origin_fields
from lightkit.config.loader import collect_errors, drop_paths
from lightkit.config.origins import NESTED_FILES
from lightkit.config.tree import Items, Leaf, MappingNode, Node, plain, put, supersede, walk
from lightkit.errors import ConfigError, ConfigErrors, LightkitError
from lightkit.hardware import this_machine

__all__ = ["explain"]

_HELP = """\
usage: lightkit explain [STAGE] -c FILE... [--key=value]... [KEY]... [--json]

Say where a value comes from: what set it, and what that replaced, lowest layer first. Without KEY, print the whole
config as YAML with the place of each value beside it.

  KEY         a dotted key: trainer.max_epochs, callbacks.early_stopping.patience, callbacks, model
  STAGE       the stage whose block in a file counts: fit (the default), validate, test, predict
  --run RUN   the config of a run, with the other layers over it
  --json      one JSON object

Exit code 0: explained; 2: there is no such key, or the config cannot be read.

lightkit explain -c configs/flowers.yaml trainer.max_epochs
"""
_OPTIONS: dict[str, Literal["value", "switch", "optional"]] = {"run": "value", "json": "switch", "quiet": "switch"}
_SWITCHES = [name for name, takes in _OPTIONS.items() if takes == "switch"]


def explain(words: list[str]) -> int:
    """Explain the keys that the words name, or the whole config, and return the exit code.

    Args:
        words: The command line after the command.

    Raises:
        ConfigError: If there is no such key, or the config cannot be read.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP, end="")
        return 0
    stage, keys, rest = _split_keys(words)
    split_arguments(rest, options=_OPTIONS)
    problems = Problems()
    loaded = load_config(stage, rest, problems, options=_OPTIONS)
    if problems.is_incomplete:
        problems.raise_any()
    config = _resolve_for_explanation(loaded, problems)
    explanations: list[KeyExplanation] = []
    errors: list[ConfigError] = []
    for key in keys:
        try:
            explanations.append(_explain_key(config, key))
        except ConfigError as error:  # noqa: PERF203 (every key is explained)
            errors.append(error.reworded(config.resolved.masked))
    if explanations or not errors:
        if "--json" in rest:
            tree = config.resolved.tree
            whole = {} if explanations else {"config": config.redact().value(tree, ())}
            fields = [each.fields() for each in explanations or _explain_leaves(config, (), tree)]
            print(json.dumps({"schema": 1, **whole, "keys": fields}, indent=2))
        elif explanations:
            print("\n".join(each.text() for each in explanations), end="")
        else:
            print(format_annotated(config.resolved.tree, (), config.redact(), replaced=config.list_replaced), end="")
        sys.stdout.flush()
    if num_mistakes := len(list(problems)):
        count = "is a mistake" if num_mistakes == 1 else f"are {num_mistakes} mistakes"
        print(f"note: there {count} in this config; `lightkit check` lists them", file=sys.stderr)
    if errors:
        raise ConfigErrors(errors)
    return 0


def _split_keys(words: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """Split the command line into the stage, the keys, and the words that name layers."""
    rest = list(words)
    has_run = any(word.partition("=")[0] == "--run" for word in rest)
    keys: list[str] = []
    stages: list[str] = []
    layers: list[str] = []
    while rest:
        word = rest.pop(0)
        takes_word = word in ("-c", "--config") or (word[:2] == "--" and "=" not in word and word[2:] not in _SWITCHES)
        if word[:1] == "-":
            layers += [word, *rest[:takes_word]]
            rest = rest[takes_word:]
        elif "=" in word or word.endswith(NESTED_FILES):  # a file without -c is an error of `split_arguments`
            layers.append(word)
        else:
            (stages if word in STAGES else keys).append(word)
    if len({*stages}) > 1:
        raise ConfigError(f"explain: expected one stage, got {' and '.join(stages)}")
    return (stages or ["validate" if has_run else "fit"])[0], keys, layers


# -- the config before and after its hardware keys are resolved --------------------------------------------------------

_SYNONYMS: dict[KeyPath, tuple[str, ...]] = {
    ("trainer", "devices"): ("gpus", "tpu_cores", "num_processes"),
    ("trainer", "strategy"): ("strategy",),
    ("trainer", "precision"): ("precision",),
    ("trainer", "num_nodes"): ("num_nodes",),
    ("launch", "threads"): ("threads",),
    ("data", "init_args", "num_workers"): ("num_workers",),
    ("data", "init_args", "batch_size"): ("batch_size",),
    ("optimizer", "init_args", "lr"): ("learning_rate",),
    ("model", "init_args", "learning_rate"): ("learning_rate",),
    ("model", "init_args", "lr"): ("learning_rate",),
}
"""Hardware keys that set the same value as another key."""
_HARDWARE_KEYS: list[KeyPath] = [("accelerator", key) for key in BLOCK_KEYS]
_HARDWARE_KEYS += [("trainer", key) for key in (*OLD_TRAINER_KEYS, "accelerator", "strategy")]
_HARDWARE_TARGETS = ("trainer", "launch", "callbacks", "data", "optimizer", "model")


@dataclass(frozen=True)
class _ExplainedConfig:
    """A config as its layers write it, and with its hardware keys resolved to the trainer's."""

    written: Resolved
    resolved: Resolved
    chosen_by: str = ""
    """Hardware that decides what ``auto`` becomes."""

    def redact(self, path: KeyPath = ()) -> RedactedConfig:
        """Give the printable values of the config that has the key: the resolved one where it can."""
        is_resolved = path[:1] != ("accelerator",) and _node_at(self.resolved.tree, path) is not None
        return RedactedConfig(self.resolved if is_resolved else self.written)

    def find(self, path: KeyPath) -> tuple[KeyPath, Node, KeyPath]:
        """Find the value at a path in which ``init_args`` may be left out.

        Returns:
            Its whole path; the value; and the rest of the path that leads nowhere, if any.
        """
        found = _descend((self.written if path[:1] == ("accelerator",) else self.resolved).tree, path)
        return found if not found[2] else min(found, _descend(self.written.tree, path), key=lambda each: len(each[2]))

    def list_replaced(self, path: KeyPath, node: Node) -> Sequence[Node]:
        """List the values that a value replaced, lowest layer first, under any of its keys."""
        own, sources = _node_at(self.written.tree, path), self.list_sources(path, node)
        overruled = [replace(lower, replaced=()) for _, lower in self.list_overruled(path, node)]
        if own is None and not sources:
            return [*node.replaced, *overruled]
        of_sources = [before for _, source in sources for before in source.replaced]
        if own is None or own.origin == node.origin:
            return [*(own.replaced if own is not None else ()), *of_sources, *overruled]
        return [*own.replaced, replace(own, replaced=()), *of_sources]

    def list_overruled(self, path: KeyPath, node: Node) -> list[tuple[KeyPath, Node]]:
        """List the hardware keys of lower layers that set the same value."""
        ranks, names = self.written.ranks, _SYNONYMS.get(path, ())
        same = [(key, lower) for key, lower in self._hardware_keys() if key[-1] in names and key != path]
        return [(key, lower) for key, lower in same if ranks.get(lower.origin, 0) < ranks.get(node.origin, 0)]

    def list_sources(self, path: KeyPath, node: Node) -> list[tuple[KeyPath, Node]]:
        """List the hardware keys that a value was derived from."""
        if not path or path[0] not in _HARDWARE_TARGETS:
            return []
        return [(key, source) for key, source in self._hardware_keys() if source.origin == node.origin and key != path]

    def _hardware_keys(self) -> Iterator[tuple[KeyPath, Node]]:
        for path in _HARDWARE_KEYS:
            if (node := _node_at(self.written.tree, path)) is not None:
                yield path, node


def _resolve_for_explanation(loaded: LoadedConfig, problems: Problems) -> _ExplainedConfig:
    """Resolve the hardware keys of a config that may have mistakes, whether or not this machine has the hardware."""
    run = loaded.resolved.tree.entries.get("run", MappingNode({}, Origin("default")))
    if isinstance(run, MappingNode) and ("name" not in run.entries or plain(run.entries["name"]) is None):
        rule = "the base run's name" if loaded.base is not None else "the first -c file's name"
        name = supersede(run.entries.get("name"), Leaf(loaded.default_name, Origin("default", rule)))
        loaded = replace(
            loaded, resolved=replace(loaded.resolved, tree=put(loaded.resolved.tree, ("run", "name"), name))
        )
    resolved = drop_paths(loaded.resolved, _list_unusable(loaded.resolved))
    if loaded.base is not None:
        alone, resolved = collect_errors(
            resolved, partial(limit_to_this_machine, saved=loaded.base.config_path), problems
        )
        resolved = alone or resolved
    try:
        hardware = resolve_hardware(resolved, this_machine(), environ=os.environ)
        return _ExplainedConfig(loaded.resolved, hardware.resolved, hardware.chosen_by)
    except LightkitError as error:
        problems.add(error)
        known, resolved = collect_errors(resolved, partial(resolve_hardware, environ={}), problems)
        return _ExplainedConfig(loaded.resolved, resolved if known is None else known.resolved)


def _list_unusable(resolved: Resolved) -> set[KeyPath]:
    """List unresolved values that hardware keys or class names depend on; the rest is printed as it is written.

    Of a list, all goes or nothing, since other elements would move up.
    """
    found = set()
    hardware = {*_SYNONYMS, *_HARDWARE_KEYS}
    for path in resolved.unresolved:
        at = next((index for index, key in enumerate(path) if isinstance(key, int)), None)
        is_text = path in resolved.texts
        is_class = path[-1] == "class_path" and (at is None or not is_text)
        is_setting = at is not None or (is_text and (len(path) > 2 or path[0] in ("trainer", "run")))
        is_hardware = path[0] in ("accelerator", "launch") or path == ("trainer",)
        is_hardware = is_hardware or (path[0] == "trainer" and path[:2] in hardware)
        if is_class or not is_setting or is_hardware:
            found.add(path[:at])
    return found


def _node_at(tree: Node, path: KeyPath) -> Node | None:
    node: Node | None = tree
    for key in path:
        if isinstance(node, MappingNode):
            node = node.entries.get(key)
        elif isinstance(node, Items) and isinstance(key, int):
            node = node.items[key] if key < len(node.items) else None
        else:
            return None
    return node


def _descend(tree: Node, path: KeyPath) -> tuple[KeyPath, Node, KeyPath]:
    node, taken = tree, ()
    for at, key in enumerate(path):
        steps: list[KeyPath] = [(int(key),)] if str(key).isdigit() else []
        if not isinstance(node, Items):
            names = (key, str(key), f"{key}+", str(key).removesuffix("+"), int(key) if str(key).isdigit() else key)
            steps = [(name,) for name in names] + [("init_args", name) for name in names]
        found = ((step, child) for step in steps if (child := _node_at(node, step)) is not None)
        step, node_below = next(found, (None, None))
        if step is None or node_below is None:
            return taken, node, path[at:]
        node, taken = node_below, (*taken, *step)
    return taken, node, ()


# -- one key -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeyExplanation:
    """The value of a key, what set it, and what that replaced; all texts are without secrets.

    Args:
        path: Path of the key.
        value: Its value; where nothing sets it, the default of its class, if there is one.
        set_by: Place that set it, for programs.
        place: The same for people; empty where nothing sets it.
        yaml: A mapping or list as YAML with the place of each value; empty for a scalar.
        written: Interpolation that gave the value.
        replaced: Each replaced value, printed on one line, with its place for people.
        fields_replaced: The same for programs.
        notes: Other facts, each with its label.
        help: First sentence of the argument's documentation.
        within: Values inside a mapping or list.
    """

    path: KeyPath
    value: Any
    set_by: dict[str, Any]
    place: str
    yaml: str = ""
    written: str | None = None
    replaced: Sequence[tuple[str, str]] = ()
    fields_replaced: Sequence[dict[str, Any]] = ()
    notes: Sequence[tuple[str, str]] = ()
    help: str = ""
    within: Sequence[KeyExplanation] = ()

    def fields(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {
            "key": dotted(self.path),
            "value": self.value,
            "set_by": self.set_by,
            **({} if self.written is None else {"written": self.written}),
            "replaced": list(self.fields_replaced),
            **{"said_as" if label == "from" else label: text for label, text in self.notes},
            **({"help": self.help} if self.help else {}),
            **({"within": [each.fields() for each in self.within]} if self.within else {}),
        }

    def text(self) -> str:
        """Write the explanation for people."""
        value = "not set" if self.set_by["kind"] == "unset" else format_inline(self.value)
        rows = [("set by", self.place)] if self.place and not self.yaml else []
        rows += [] if self.written is None else [("written", self.written)]
        rows += self.notes
        width = max((len(before) for before, _ in self.replaced), default=0)
        for number, (before, place) in enumerate(self.replaced):
            rows.append(("" if number else "replaced", f"{before:<{width}}  {place}"))
        rows += [("help", self.help)] if self.help else []
        head = self.yaml or f"{_short_key(self.path)}: {value}\n"
        return head + "".join(f"  {label:9}{text}\n" for label, text in rows)


def _explain_key(config: _ExplainedConfig, key: str) -> KeyExplanation:
    """Explain one key, in lightkit's or in LightningCLI's notation.

    Raises:
        ConfigError: If there is no such key.
    """
    tree = config.resolved.tree
    wanted = config.resolved.lightkit_path(key)
    parts: list[Any] = [int(part) if part.isdigit() else part for part in re.split(r"[.\[\]]+", key) if part]
    own = tuple(parts[1:] if parts[:1] == [config.resolved.subcommand] else parts)
    if own != wanted and any(isinstance(part, int) for part in config.find(own)[0]):
        wanted = own  # an index counts the user's own list where it has that element, else all callbacks
    if not wanted:
        raise ConfigError(f"{key!r}: expected a dotted key, such as trainer.max_epochs")
    path, node, rest = config.find(wanted)
    if not rest:
        try:
            argument = find_argument(tree, path)
        except ConfigError:  # its class cannot be imported; what is set is known all the same
            argument = None
        return _explain_node(config, path, node, argument)
    argument = find_argument(tree, wanted)
    if argument is None:
        raise _unknown_key(key, config, path, rest)
    is_entry = len(rest) > 1 and rest[0] != "init_args" and len(wanted) > 2
    notes = [("note", f"{_short_key(wanted[:-1])} is not in this config")] if is_entry else []
    if "default" in argument.description:
        set_by, place = {"kind": "signature", "name": argument.owner}, f"default of {argument.owner}"
    else:
        set_by = {"kind": "unset", "name": ""}
        place = f"nothing, though {argument.owner} needs it" if argument.is_required else ""
    return KeyExplanation(wanted, argument.default, set_by, place, notes=notes, help=argument.says)


def _explain_leaves(config: _ExplainedConfig, path: KeyPath, tree: Node) -> list[KeyExplanation]:
    leaves = [(below, node) for below, node in walk(tree, path) if below and not _has_children(node)]
    return [_explain_node(config, below, node) for below, node in leaves]


def _explain_node(
    config: _ExplainedConfig, path: KeyPath, node: Node, argument: Argument | None = None
) -> KeyExplanation:
    redacted = config.redact(path)
    is_whole = _has_children(node)
    replaced = config.list_replaced(path, node)
    return KeyExplanation(
        path,
        redacted.value(node, path),
        _redact_place(node.origin, redacted),
        redacted.masked(format_origin(node.origin)),
        yaml=format_annotated(node, path, redacted, replaced=config.list_replaced) if is_whole else "",
        written=redacted.text(path),
        replaced=[
            (format_inline(redacted.replaced(old), longest=100), redacted.masked(format_origin(old.origin)))
            for old in replaced
        ],
        fields_replaced=[
            {"value": redacted.replaced(old), "set_by": _redact_place(old.origin, redacted)} for old in replaced
        ],
        notes=list(_note_hardware(config, path, node)),
        help=argument.says if argument is not None else "",
        within=_explain_leaves(config, path, node) if is_whole else (),
    )


def _note_hardware(config: _ExplainedConfig, path: KeyPath, node: Node) -> Iterator[tuple[str, str]]:
    """Say which hardware key gave a value, what a hardware key became, and which key overrules it."""

    def print_value(key: KeyPath, value: Node) -> str:
        return f"{dotted(key)}: {format_inline(config.redact(key).value(value, key))}"

    for key, source in config.list_sources(path, node):
        yield "from", print_value(key, source)
    if path[0] != "accelerator" and path in config.resolved.origins:
        return
    became = [
        print_value(key, value)
        for key, value in walk(config.resolved.tree)
        if key not in ((), path) and not isinstance(value, MappingNode) and value.origin == node.origin
        and _node_at(config.written.tree, key) is not value
    ]  # fmt: skip
    if became:
        yield "became", ", ".join(became)
    if path[0] == "accelerator" and plain(node) == "auto" and config.chosen_by:
        if (chosen := _node_at(config.resolved.tree, path)) is not None:
            yield "became", f"{dotted(path)}: {format_inline(plain(chosen))}"
        yield "auto", f"the rule for {config.chosen_by}"
        if path[-1] == "memory_format":
            yield "note", "decided when the model is built: only weights of convolutions have a memory format"
    for other in _SYNONYMS:
        value = _node_at(config.resolved.tree, other)
        if value is not None and any(key == path for key, _ in config.list_overruled(other, value)):
            place = config.redact(path).masked(format_origin(value.origin))
            yield "note", f"{print_value(other, value)} counts in its place ({place})"
            return


def _unknown_key(key: str, config: _ExplainedConfig, path: KeyPath, rest: KeyPath) -> ConfigError:
    tree, node = config.resolved.tree, config.find(path)[1]
    if isinstance(node, Items) and str(rest[0]).isdigit():
        count = f"{len(node.items)} element{'' if len(node.items) == 1 else 's'}"
        return ConfigError(f"{key}: there is no element {rest[0]} in {_short_key(path)}, which has {count}, from 0 on")
    beside = list_keys(tree, path) or ([str(name) for name in node.entries] if isinstance(node, MappingNode) else [])
    while len(rest) > 1 and str(rest[0]) in beside:  # a known key that is not in this config
        path, rest = (*path, rest[0]), rest[1:]
        beside = list_keys(tree, path)
    above = _short_key(path)
    if above and not beside and path not in config.resolved.origins:
        return ConfigError(f"{key}: {above} is not in this config, and nothing says which keys it would have")
    word = str(rest[1] if rest[0] == "init_args" and len(rest) > 1 else rest[0])
    known = {_short_key(each) for each in (*config.resolved.origins, *config.written.origins)}
    hint = near(word, beside) if beside else near(_short_key((*path, *rest)), known)
    where = f"in {above}" if above else "at the top"
    choices = f"\nKeys {where}: {', '.join(beside)}." if beside and not hint and len(beside) < 25 else ""
    return ConfigError(f"{key}: there is no {word!r} {where}{hint}{choices}")


def _has_children(node: Node) -> bool:
    return bool(node.entries if isinstance(node, MappingNode) else isinstance(node, Items) and node.items)


def _redact_place(origin: Origin, redacted: RedactedConfig) -> dict[str, Any]:
    return {
        key: redacted.masked(value) if isinstance(value, str) else value for key, value in origin_fields(origin).items()
    }


def _short_key(path: KeyPath) -> str:
    return dotted(key for key in path if key != "init_args")

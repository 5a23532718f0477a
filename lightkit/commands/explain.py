"""`lightkit explain`: the value of a key, what set it, and what that replaced."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lightkit.cli.argument_lookup import find_default, list_arguments
from lightkit.cli.config_loader import STAGES, LoadedConfig, Takes, load_config
from lightkit.config import (
    Arguments,
    KeyPath,
    Origin,
    Problems,
    Resolved,
    dotted,
    near,
    resolve_hardware,
    split_arguments,
)
from lightkit.config.accelerator.vocabulary import BLOCK_KEYS, OLD_TRAINER_KEYS, TRAINER_DEFAULTS
from lightkit.config.display import (
    RedactedConfig,
    format_annotated,
    format_column,
    format_inline,
    format_place,
)
from lightkit.config.loader import collect_errors, drop_paths
from lightkit.config.origins import NESTED_FILES
from lightkit.config.tree import Items, Leaf, MappingNode, Node, descend, find, put, supersede, to_plain, walk
from lightkit.errors import ConfigError, ConfigErrors, LightkitError
from lightkit.hardware import this_machine

HELP = """\
usage: lightkit explain [STAGE] -c FILE... [--key=value]... [KEY]... [--json]

Say where a value comes from: what set it, and what that replaced, lowest layer first. Without KEY, print the whole
config as YAML with the place of each value in a comment.

  KEY         a dotted key: trainer.max_epochs, callbacks.early_stopping.patience, callbacks, model
  STAGE       the stage whose block in a file counts: fit (the default), validate, test, predict
  --run RUN   the config of a run, with the other layers over it
  --json      one JSON object

Exit code 0: explained; 2: there is no such key, or the config cannot be read.

lightkit explain -c configs/flowers.yaml trainer.max_epochs
"""
_OPTIONS: Mapping[str, Takes] = {"run": "value", "json": "switch", "quiet": "switch"}
_HARDWARE_KEYS: list[KeyPath] = [("accelerator", key) for key in BLOCK_KEYS]
_HARDWARE_KEYS += [("trainer", key) for key in (*OLD_TRAINER_KEYS, *TRAINER_DEFAULTS)]


def explain(args: list[str]) -> int:
    """Explain the keys that the arguments name, or the whole config, and return the exit code.

    Args:
        args: The command line after the command.

    Raises:
        ConfigError: If there is no such key, or the config cannot be read.
    """
    arguments = split_arguments(args, options=_OPTIONS, takes_inputs=True)
    stage, keys = _split_keys(arguments)
    problems = Problems()
    loaded = load_config(stage, args, problems, options=_OPTIONS, takes_inputs=True)
    if problems.is_incomplete:
        problems.raise_any()
    config = _resolve(loaded, problems)
    tree, is_json, found = config.resolved.tree, "json" in arguments.options, list[tuple[dict[str, Any], str]]()
    errors: list[ConfigError] = []
    for key in keys:
        try:
            found.append(_explain_key(config, key))
        except ConfigError as error:  # noqa: PERF203 (every key is explained)
            errors.append(error.reworded(config.resolved.masked))
    if is_json and (found or not keys):
        whole = {} if keys else {"config": config.redact().value(tree, ())}
        fields = [each for each, _ in found] if keys else _explain_leaves(config, (), tree)
        print(json.dumps({"schema": 1, **whole, "keys": fields}, indent=2))
    elif keys:
        print("\n".join(_format(fields, yaml) for fields, yaml in found), end="")
    else:
        print(format_annotated(tree, (), config.redact(), replaced=config.list_replaced), end="")
    sys.stdout.flush()
    if num_mistakes := len(list(problems)):
        count = "is a mistake" if num_mistakes == 1 else f"are {num_mistakes} mistakes"
        print(f"note: there {count} in this config; `lightkit check` lists them", file=sys.stderr)
    if errors:
        raise ConfigErrors(errors)
    return 0


def _split_keys(arguments: Arguments) -> tuple[str, list[str]]:
    """Split the words that stand alone into the stage and the keys."""
    if file := next((word for word in arguments.inputs if word.endswith(NESTED_FILES)), None):
        raise ConfigError(f"explain: a config file comes after -c: -c {file}")
    stages = list(dict.fromkeys(word for word in arguments.inputs if word in STAGES))
    if len(stages) > 1:
        raise ConfigError(f"explain: expected one stage, got {' and '.join(stages)}")
    default = "validate" if "run" in arguments.options else "fit"
    return (stages or [default])[0], [word for word in arguments.inputs if word not in STAGES]


# -- the config before and after its hardware keys are resolved --------------------------------------------------------


@dataclass(frozen=True)
class _Config:
    """A config as its layers write it, and with its hardware keys resolved to the trainer's.

    Args:
        written: As the layers write it.
        resolved: With the trainer's keys.
    """

    written: Resolved
    resolved: Resolved

    def redact(self, path: KeyPath = ()) -> RedactedConfig:
        """Return the printable values of the config that has the key: the resolved one where it can."""
        is_resolved = path[:1] != ("accelerator",) and find(self.resolved.tree, path) is not None
        return RedactedConfig(self.resolved if is_resolved else self.written)

    def find(self, path: KeyPath) -> tuple[KeyPath, Node, KeyPath]:
        """Find the value at a path in which ``init_args`` may be left out.

        Returns:
            Its whole path; the value; and the rest of the path that leads nowhere, if any.
        """
        configs = (self.written,) if path[:1] == ("accelerator",) else (self.resolved, self.written)
        return min((descend(config.tree, path) for config in configs), key=lambda found: len(found[2]))

    def list_sources(self, path: KeyPath, node: Node) -> list[tuple[KeyPath, Node]]:
        """List the hardware keys that a value was derived from."""
        keys = [key for key in _HARDWARE_KEYS if key != path and path[0] != "accelerator"]
        found = [(key, source) for key in keys if (source := find(self.written.tree, key)) is not None]
        return [(key, source) for key, source in found if source.origin == node.origin]

    def list_replaced(self, path: KeyPath, node: Node) -> Sequence[Node]:
        """List the values that a value replaced, lowest layer first, under any of its keys."""
        own, sources = find(self.written.tree, path), self.list_sources(path, node)
        before = [*(own.replaced if own is not None else () if sources else node.replaced)]
        before += [own] if own is not None and own.origin != node.origin else []
        before += [old for _, source in sources for old in source.replaced]
        return [replace(old, replaced=()) for old in before]


def _resolve(loaded: LoadedConfig, problems: Problems) -> _Config:
    """Resolve the hardware keys of a config that may have errors, whether or not this machine has the hardware."""
    run = loaded.resolved.tree.entries.get("run", MappingNode({}, Origin("default")))
    if isinstance(run, MappingNode) and ("name" not in run.entries or to_plain(run.entries["name"]) is None):
        rule = "the base run's name" if loaded.base is not None else "the first -c file's name"
        name = supersede(run.entries.get("name"), Leaf(loaded.default_name, Origin("default", rule)))
        tree = put(loaded.resolved.tree, ("run", "name"), name)
        loaded = replace(loaded, resolved=replace(loaded.resolved, tree=tree))
    unusable = {path[:2] for path in loaded.resolved.unresolved if path[:2] in _HARDWARE_KEYS or path[0] == "launch"}
    resolved = drop_paths(loaded.resolved, unusable)
    try:
        hardware = resolve_hardware(resolved, this_machine(), environ=os.environ)
        return _Config(loaded.resolved, hardware.resolved)
    except LightkitError as error:
        problems.add(error)
        known, resolved = collect_errors(resolved, partial(resolve_hardware, environ={}), problems)
        return _Config(loaded.resolved, resolved if known is None else known.resolved)


# -- one key -----------------------------------------------------------------------------------------------------------


def _explain_key(config: _Config, key: str) -> tuple[dict[str, Any], str]:
    """Explain one key, in lightkit's or in LightningCLI's notation.

    Returns:
        Its fields, and a mapping or list as YAML with the place of each value in it.

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
    default = None
    with suppress(ConfigError) if not rest else nullcontext():  # its class cannot be imported; what is set is known
        default = find_default(tree, wanted if rest else path)
    if rest and default is None:
        raise _unknown_key(key, config, path, rest)
    if rest:
        return {"key": dotted(wanted), "replaced": [], **(default or {})}, ""
    fields = _explain_node(config, path, node) | {"help": (default or {"help": ""})["help"]}
    is_whole = _has_children(node)
    yaml = format_annotated(node, path, config.redact(path), replaced=config.list_replaced) if is_whole else ""
    return fields | ({"within": _explain_leaves(config, path, node)} if is_whole else {}), yaml


def _explain_leaves(config: _Config, path: KeyPath, tree: Node) -> list[dict[str, Any]]:
    leaves = [(below, node) for below, node in walk(tree, path) if below and not _has_children(node)]
    return [_explain_node(config, below, node) for below, node in leaves]


def _explain_node(config: _Config, path: KeyPath, node: Node) -> dict[str, Any]:
    """Return what is known of a value, without secrets: the fields of `--json`, of which the text is made."""
    redacted = config.redact(path)
    written = redacted.text(path)
    replaced = [redacted.placed(old) for old in config.list_replaced(path, node)]
    fields = {"key": dotted(path), **redacted.placed(node, path), "replaced": replaced}
    hardware = _list_hardware(config, path, node)
    return fields | ({} if written is None else {"written": written}) | ({"hardware": hardware} if hardware else {})


def _format(fields: Mapping[str, Any], yaml: str) -> str:
    """Write what is known of a key for people; a mapping or list as YAML, with the place of each value in a comment."""
    key, set_by = ".".join(part for part in fields["key"].split(".") if part != "init_args"), fields["set_by"]
    rows = [("set by", place)] if (place := format_place(set_by)) and not yaml else []
    rows += [("written", fields["written"])] if "written" in fields else []
    for number, each in enumerate(fields.get("hardware", ())):
        text = f"{each['key']}: {format_inline(each['value'])}  {format_place(each['set_by'])}"
        rows.append(("" if number else "hardware", text))
    before = format_column(fields["replaced"], longest=100)
    rows += [("" if number else "replaced", text) for number, text in enumerate(before)]
    rows += [("help", fields["help"])] if fields.get("help") else []
    head = yaml or f"{key}: {'not set' if set_by['kind'] == 'unset' else format_inline(fields['value'])}\n"
    return head + "".join(f"  {label:9}{text}\n" for label, text in rows)


def _list_hardware(config: _Config, path: KeyPath, node: Node) -> list[dict[str, Any]]:
    """List the other hardware keys, as they count here, for a key that is one, or was set by one, with their places."""
    same = [key for key, value in walk(config.resolved.tree) if key and value.origin == node.origin]
    if path not in _HARDWARE_KEYS and not config.list_sources(path, node):
        return []
    found = []
    for key in dict.fromkeys([*same, *_HARDWARE_KEYS]):
        counts, written = find(config.resolved.tree, key), find(config.written.tree, key)
        value = written if counts is None else counts
        if value is None or isinstance(value, MappingNode) or value.origin.kind == "default":
            continue
        if key == path and to_plain(value) == to_plain(node):
            continue
        redacted = RedactedConfig(config.written if counts is None else config.resolved)
        found.append({"key": dotted(key), **redacted.placed(value, key)})
    return found


def _unknown_key(key: str, config: _Config, path: KeyPath, rest: KeyPath) -> ConfigError:
    tree, node = config.resolved.tree, config.find(path)[1]
    if isinstance(node, Items) and str(rest[0]).isdigit():
        count = f"{len(node.items)} element{'' if len(node.items) == 1 else 's'}"
        return ConfigError(f"{key}: there is no element {rest[0]} in {_short_key(path)}, which has {count}, from 0 on")
    in_config = node.entries if isinstance(node, MappingNode) else ()
    siblings = [str(name) for name in list_arguments(tree, path)[1] or in_config]
    above = _short_key(path)
    word = str(rest[1] if rest[0] == "init_args" and len(rest) > 1 else rest[0])
    known = {_short_key(each) for each in (*config.resolved.origins, *config.written.origins)}
    hint = near(word, siblings) if siblings else near(_short_key((*path, *rest)), known)
    where = f"in {above}" if above else "at the top"
    choices = f"\nKeys {where}: {', '.join(siblings)}." if siblings and not hint and len(siblings) < 25 else ""
    return ConfigError(f"{key}: there is no {word!r} {where}{hint}{choices}")


def _has_children(node: Node) -> bool:
    return bool(node.entries if isinstance(node, MappingNode) else isinstance(node, Items) and node.items)


def _short_key(path: KeyPath) -> str:
    return dotted(key for key in path if key != "init_args")

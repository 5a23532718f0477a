"""`lightkit explain`: the value of a key, what set it, and what that replaced."""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from lightkit.cli.argument_lookup import describe_owner, find_default
from lightkit.cli.command_line import Invocation
from lightkit.cli.command_table import STAGES
from lightkit.cli.config_loader import LoadedConfig, load_config
from lightkit.config import (
    NAMED_CLASSES,
    KeyPath,
    Origin,
    Problems,
    Resolved,
    dotted,
    near,
    resolve_hardware,
)
from lightkit.config.accelerator.block import BLOCK_KEYS
from lightkit.config.accelerator.vocabulary import TRAINER_KEYS
from lightkit.config.display import (
    describe_node,
    find_written,
    format_annotated,
    format_column,
    format_inline,
    format_place,
    redact_node,
)
from lightkit.config.origins import NESTED_FILES
from lightkit.config.resolved import collect_errors, drop_paths
from lightkit.config.schema import Argument, load_schema
from lightkit.config.sources import describe_interpolation, format_source
from lightkit.config.tree import (
    Items,
    Leaf,
    MappingNode,
    Node,
    descend,
    find,
    put,
    supersede,
    to_plain,
    walk,
)
from lightkit.errors import (
    ConfigError,
    ConfigErrors,
    LightkitError,
    find_near,
    format_count,
    suggest,
)
from lightkit.hardware import this_machine

_MOST_CHOICES = 25
"""More keys are not listed in an error."""
_MOST_HINTS = 3
"""Longer keys that an error suggests."""
_HARDWARE_KEYS: list[KeyPath] = [("accelerator", key) for key in BLOCK_KEYS]
_HARDWARE_KEYS += [("trainer", key) for key in TRAINER_KEYS]


def explain(invocation: Invocation) -> int:
    """Explain the keys that the arguments name, or the whole config, and return the exit code.

    Args:
        invocation: The command line.

    Raises:
        ConfigError: If there is no such key, or the config cannot be read.
    """
    invocation.raise_errors()
    stage = _choose_stage(invocation)
    problems = Problems()
    loaded = load_config(invocation.for_stage(stage, keep=("run",)), problems)
    if problems.is_incomplete:
        problems.raise_any()
    resolved, complete = _resolve(loaded, problems)
    keys = [word for word in invocation.inputs if word not in STAGES]
    found, errors = _explain_keys(resolved, complete, keys)
    if found or not keys:
        is_json = invocation.has("json")
        print(_format_all(resolved, complete, found, is_json=is_json), end="", flush=True)
    _print_note(problems)
    if errors:
        raise ConfigErrors(errors)
    return 0


def _choose_stage(invocation: Invocation) -> str:
    """Return the stage that the words name; by default that of a run's evaluation, or `fit`.

    Raises:
        ConfigError: If they name several, or a config file stands without ``-c``.
    """
    for word in invocation.inputs:
        if word.endswith(NESTED_FILES):
            raise ConfigError(f"explain: a config file comes after -c: -c {word}")
    stages = list(dict.fromkeys(word for word in invocation.inputs if word in STAGES))
    if len(stages) > 1:
        raise ConfigError(f"explain: expected one stage, got {' and '.join(stages)}")
    if stages:
        return stages[0]
    return "validate" if invocation.has("run") else "fit"


def _explain_keys(
    resolved: Resolved, complete: Resolved, keys: Sequence[str]
) -> tuple[list[tuple[dict[str, Any], str]], list[ConfigError]]:
    """Explain each key; return what was found, and the errors of keys that there are not."""
    found: list[tuple[dict[str, Any], str]] = []
    errors: list[ConfigError] = []
    for key in keys:
        try:
            found.append(_explain_key(resolved, complete, key))
        except ConfigError as error:
            errors.append(error.reworded(resolved.masked))
    return found, errors


def _format_all(
    resolved: Resolved,
    complete: Resolved,
    found: list[tuple[dict[str, Any], str]],
    *,
    is_json: bool,
) -> str:
    """Write what was found of the keys; without any the whole config."""
    if is_json:
        fields = _describe_json(resolved, complete, [fields for fields, _ in found])
        return json.dumps(fields, indent=2) + "\n"
    if found:
        return "\n".join(_format(fields, yaml) for fields, yaml in found)
    return format_annotated(resolved, resolved.tree, ())


def _describe_json(
    resolved: Resolved, complete: Resolved, found: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the fields of the keys, or else the whole config with those of all its values."""
    if found:
        return {"schema": 1, "keys": found}
    config = redact_node(resolved, resolved.tree, ())
    return {
        "schema": 1,
        "config": config,
        "keys": _explain_leaves(resolved, complete, (), resolved.tree),
    }


def _print_note(problems: Problems) -> None:
    """Print how many mistakes the config has, if it has any."""
    num_mistakes = len(list(problems))
    if num_mistakes:
        count = "is a mistake" if num_mistakes == 1 else f"are {num_mistakes} mistakes"
        print(f"note: there {count} in this config; `lightkit check` lists them", file=sys.stderr)


def _resolve(loaded: LoadedConfig, problems: Problems) -> tuple[Resolved, Resolved]:
    """Resolve the hardware keys of a config that may have errors.

    Whether or not this machine has the hardware.

    Returns:
        The config with the trainer's keys; and the same with the hardware keys as the layers write
        them, in addition.
    """
    written = _name_run(loaded)
    unusable = {
        path[:2] for path in written.unresolved if path[:2] in _HARDWARE_KEYS or path[0] == "launch"
    }
    usable = drop_paths(written, unusable)
    try:
        resolved = resolve_hardware(usable, this_machine(), environ=os.environ).resolved
    except LightkitError as error:
        problems.add(error)
        hardware, resolved = collect_errors(usable, partial(resolve_hardware, environ={}), problems)
        resolved = resolved if hardware is None else hardware.resolved
    tree = resolved.tree
    for path in _HARDWARE_KEYS:
        node = find(written.tree, path)
        if node is not None and (path[0] == "accelerator" or find(tree, path) is None):
            tree = put(tree, path, node)
    return resolved, replace(
        resolved, tree=tree, references={**resolved.references, **written.references}
    )


def _name_run(loaded: LoadedConfig) -> Resolved:
    """Return a config with the name that the run gets where the config has none."""
    written = loaded.resolved
    run = written.tree.entries.get("run", MappingNode({}, Origin("default")))
    if not isinstance(run, MappingNode):
        return written
    given = run.entries.get("name")
    if given is not None and to_plain(given) is not None:
        return written
    rule = "the base run's name" if loaded.base is not None else "the first -c file's name"
    name = supersede(given, Leaf(loaded.default_name, Origin("default", rule)))
    return replace(written, tree=put(written.tree, ("run", "name"), name))


# -- one key ---------------------------------------------------------------------------------------


def _explain_key(resolved: Resolved, complete: Resolved, key: str) -> tuple[dict[str, Any], str]:
    """Explain one key, in lightkit's or in LightningCLI's notation.

    Args:
        resolved: The config with the trainer's keys.
        complete: The same with the hardware keys as they are written.
        key: The key, or the end of one key alone, as ``max_epochs`` is of ``trainer.max_epochs``.

    Returns:
        Its fields, and a mapping or list as YAML with the place of each value in it.

    Raises:
        ConfigError: If there is no such key.
    """
    wanted = _parse_key(resolved, complete, key)
    path, node, rest = _look_up(resolved, complete, wanted)
    if rest:
        default = find_default(resolved.tree, wanted)
        if default is not None:
            return {"key": dotted(wanted), "replaced": [], **default}, ""
        full_keys = [] if path else _find_full_keys(_shorten_key(wanted), complete)
        if not full_keys:
            raise _unknown_key(key, complete, path, rest)
        if len(full_keys) > 1:
            raise ConfigError(
                f"{key}: {len(full_keys)} keys end in this name: {', '.join(full_keys)}. Name one"
                " of them."
            )
        return _explain_key(resolved, complete, full_keys[0])

    fields = _explain_node(resolved, complete, path, node, imports=True)
    default = None
    with suppress(ConfigError):  # its class cannot be imported; what is set is known
        default = find_default(resolved.tree, path)
    fields["help"] = "" if default is None else default["help"]
    if not _has_children(node):
        return fields, ""
    fields["within"] = _explain_leaves(resolved, complete, path, node)
    return fields, format_annotated(complete, node, path)


def _parse_key(resolved: Resolved, complete: Resolved, key: str) -> KeyPath:
    """Return the path that a key names.

    Raises:
        ConfigError: If it names none.
    """
    path = resolved.lightkit_path(key)
    own = resolved.split_key(key)
    if own != path and any(isinstance(part, int) for part in _look_up(resolved, complete, own)[0]):
        # an index counts the user's own list where it has that element, else all callbacks
        path = own
    if not path:
        raise ConfigError(f"{key!r}: expected a dotted key, such as trainer.max_epochs")
    return path


def _look_up(
    resolved: Resolved, complete: Resolved, path: KeyPath
) -> tuple[KeyPath, Node, KeyPath]:
    """Return the part of a path that is there, its value, and the part that is not."""
    found = descend(complete.tree, path)
    if path[:1] == ("accelerator",):
        return found
    return min(descend(resolved.tree, path), found, key=lambda each: len(each[2]))


def _explain_leaves(
    resolved: Resolved, complete: Resolved, path: KeyPath, tree: Node
) -> list[dict[str, Any]]:
    leaves = [
        (below, node) for below, node in walk(tree, path) if below and not _has_children(node)
    ]
    return [_explain_node(resolved, complete, below, node) for below, node in leaves]


def _explain_node(
    resolved: Resolved, complete: Resolved, path: KeyPath, node: Node, *, imports: bool = False
) -> dict[str, Any]:
    """Return what is known of a value, without secrets.

    The fields of `--json`, of which the text is made.

    Args:
        resolved: The config with the trainer's keys.
        complete: The same with the hardware keys as they are written.
        path: Path of the value.
        node: The value.
        imports: Whether its class is imported for the type of an interpolated value.
    """
    written = find_written(complete, path)
    hardware = _list_hardware(resolved, complete, path, node)
    replaced = [describe_node(complete, replace(old, replaced=())) for old in node.replaced]
    fields = {"key": dotted(path), **describe_node(complete, node, path), "replaced": replaced}
    fields |= {} if written is None else {"written": written}
    if path in complete.texts:
        schema = _find_schema(complete, path, imports=imports)
        fields |= describe_interpolation(complete, path, node, schema=schema, environ=os.environ)
    return fields | ({"hardware": hardware} if hardware else {})


def _find_schema(complete: Resolved, path: KeyPath, *, imports: bool) -> Mapping[str, Any]:
    """Return the JSON Schema of an argument; empty where it is unknown."""
    with suppress(ConfigError):  # its class cannot be imported
        owner = describe_owner(complete.tree, path[:-1], imports=imports)
        return owner.arguments.get(str(path[-1]), Argument()).schema
    return {}


def _format(fields: Mapping[str, Any], yaml: str) -> str:
    """Write what is known of a key for people.

    A mapping or list as YAML, with the place of each value in a comment.
    """
    set_by = fields["set_by"]
    place = "" if yaml else format_place(set_by)
    written = fields.get("written", fields["value"])
    columns: dict[str, Iterable[str]] = {
        "set by": [place],
        "written": [written if written != fields["value"] else ""],
        "type": [fields.get("type", "")],
        "from": map(_format_source, fields.get("sources", ())),
        "hardware": map(_format_hardware, fields.get("hardware", ())),
        "replaced": format_column(fields["replaced"], longest=100),
        "help": [fields.get("help", "")],
    }
    text = yaml
    if not text:
        key = _shorten_key(fields["key"].split("."))
        value = "not set" if set_by["kind"] == "unset" else format_inline(fields["value"])
        text = f"{key}: {value}\n"
    for label, rows in columns.items():
        for number, row in enumerate(filter(None, rows)):
            text += f"  {'' if number else label:9}{row}\n"
    return text


def _format_source(source: Mapping[str, Any]) -> str:
    """Write one key or variable that an interpolation uses, and where the key was set."""
    place = format_place(source["set_by"]) if "set_by" in source else ""
    value = format_inline(source.get("value"), longest=100)
    return format_source(source, value=value, place=place)


def _format_hardware(setting: Mapping[str, Any]) -> str:
    value = format_inline(setting["value"])
    return f"{setting['key']}: {value}  {format_place(setting['set_by'])}"


def _list_hardware(
    resolved: Resolved, complete: Resolved, path: KeyPath, node: Node
) -> list[dict[str, Any]]:
    """List the other hardware keys, as they count here, with their places.

    There are none for a key that is no hardware key, and was set by none.
    """
    same = [key for key, value in walk(complete.tree) if key and value.origin == node.origin]
    if not {path, *same} & {*_HARDWARE_KEYS}:
        return []
    found = []
    for key in dict.fromkeys([*same, *_HARDWARE_KEYS]):
        config = complete if find(resolved.tree, key) is None else resolved
        value = _find_set(config, key)
        if value is not None and (key != path or to_plain(value) != to_plain(node)):
            found.append({"key": dotted(key), **describe_node(config, value, key)})
    return found


def _find_set(config: Resolved, key: KeyPath) -> Node | None:
    """Return the value of a key; None for a section or a default."""
    value = find(config.tree, key)
    if value is None or isinstance(value, MappingNode) or value.origin.kind == "default":
        return None
    return value


def _unknown_key(key: str, complete: Resolved, path: KeyPath, rest: KeyPath) -> ConfigError:
    """Return the error that a config has no such key.

    Args:
        key: The key as it was asked for.
        complete: The config.
        path: The part of its path that is there.
        rest: The part that is not.
    """
    node = find(complete.tree, path)
    above = _shorten_key(path)
    if isinstance(node, Items) and str(rest[0]).isdigit():
        count = format_count(len(node.items), "element")
        return ConfigError(
            f"{key}: there is no element {rest[0]} in {above}, which has {count}, from 0 on"
        )
    siblings = _list_siblings(complete, path, node)
    if len(rest) > 1 and rest[0] in siblings:  # a section or argument that is not set
        return _unknown_key(key, complete, (*path, rest[0]), rest[1:])
    word = str(rest[1] if rest[0] == "init_args" and len(rest) > 1 else rest[0])
    where = f"in {above}" if above else "at the top"
    if siblings:
        hint = _suggest_keys(word, siblings, complete, where=where)
    else:
        everywhere = {_shorten_key(each) for each in complete.origins}
        hint = near(_shorten_key((*path, *rest)), everywhere)
    return ConfigError(f"{key}: there is no {word!r} {where}{hint}")


def _suggest_keys(word: str, siblings: Sequence[str], complete: Resolved, *, where: str) -> str:
    """Return the hint at near keys, or else at the keys that may stand there."""
    hint = near(word, siblings) or _suggest_full_keys(word, complete)
    if hint or len(siblings) >= _MOST_CHOICES:
        return hint
    return f"\nKeys {where}: {', '.join(siblings)}."


def _list_siblings(complete: Resolved, path: KeyPath, node: Node | None) -> list[str]:
    """List the keys that may stand below a path, or those that do where nothing describes them."""
    in_config = node.entries if isinstance(node, MappingNode) else ()
    return [str(name) for name in describe_owner(complete.tree, path).arguments or in_config]


def _suggest_full_keys(word: str, complete: Resolved) -> str:
    """Return the hint at keys that end in a word or a near one: ``trainer.max_epochs``."""
    found = _find_full_keys(word, complete)
    if not found:
        by_end = defaultdict[str, list[str]](list)
        for key in _list_full_keys(complete):
            by_end[key.rpartition(".")[2]].append(key)
        found = [key for end in find_near(word, by_end) for key in by_end[end]]
    return suggest(found[:_MOST_HINTS])


def _find_full_keys(end: str, complete: Resolved) -> list[str]:
    """List the keys that end in some parts, such as ``early_stopping.patience``."""
    return [key for key in _list_full_keys(complete) if key.endswith(f".{end}")]


def _list_full_keys(complete: Resolved) -> list[str]:
    """List the keys, set or not, of sections and of the config's classes."""
    schema = load_schema()
    owners: list[KeyPath] = [(section,) for section in schema.section_names]
    for section in NAMED_CLASSES:
        entries = find(complete.tree, (section,))
        if isinstance(entries, MappingNode):
            owners += [(section, name) for name in entries.entries]
    known = {_shorten_key(path) for path in complete.origins if path}
    for owner in owners:
        with suppress(ConfigError):  # its class cannot be imported; what is set is known
            arguments = describe_owner(complete.tree, owner).arguments
            known |= {_shorten_key((*owner, name)) for name in arguments}
    return sorted(known)


def _has_children(node: Node) -> bool:
    return bool(
        node.entries if isinstance(node, MappingNode) else isinstance(node, Items) and node.items
    )


def _shorten_key(path: Iterable[Any]) -> str:
    return dotted(key for key in path if key != "init_args")

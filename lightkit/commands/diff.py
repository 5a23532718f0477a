"""`lightkit diff`: what differs between two runs, or two configs.

No torch for classes that the schema describes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.cli.argument_lookup import describe_owner, find_default
from lightkit.cli.command_line import Invocation
from lightkit.cli.config_loader import load_config
from lightkit.config import (
    KeyPath,
    Problems,
    Resolved,
    dotted,
    is_layer,
    packaged,
    resolve_hardware,
)
from lightkit.config.bounds import is_any_number
from lightkit.config.display import describe_node, format_column
from lightkit.config.origins import NESTED_FILES, shown_path
from lightkit.config.resolved import collect_errors
from lightkit.config.run_root import find_run_root
from lightkit.config.schema import Argument, list_branches
from lightkit.config.tree import MappingNode, is_setting, walk
from lightkit.errors import ConfigError
from lightkit.runs.index import flatten
from lightkit.runs.scores import keep_own_stages

_MAX_LINE = 160
_RECORDED = {
    "manifest": ("lightkit", "python", "packages", "git", "data", "seed", "hardware"),
    "summary": ("status", "epochs", "steps", "metrics", "stages"),
}
_SPEED = "samples_per_s"  # it always differs, and is no result

_Value = Mapping[str, Any]
"""A value as `value`, and the place that set it as `set_by`, which what a run has recorded
lacks."""
_Values = dict[KeyPath, _Value]


def diff(invocation: Invocation) -> int:
    """Print what differs, and return the exit code.

    Args:
        invocation: The command line.

    Raises:
        ConfigError: If the arguments are wrong, or an input is missing or cannot be read.
    """
    if len(invocation.inputs) != 2:
        raise invocation.error(
            f"expected two configs or runs, got {len(invocation.inputs) or 'none'}"
        )
    root = find_run_root(invocation.options.get("root"))
    names, trees, values, are_runs = zip(
        *(_read_input(name, root) for name in invocation.inputs), strict=True
    )
    changes = _list_changes(trees, values, are_runs)
    old, new = names
    if invocation.has("json"):
        print(json.dumps({"schema": 1, "a": old, "b": new, "changes": changes}, indent=2))
    elif changes:
        print(_format_changes(old, new, changes), end="")
    else:
        print(f"no difference between {old} and {new}")
    return 1 if changes and invocation.has("exit-code") else 0


def _read_input(name: str, root: Path) -> tuple[str, MappingNode, _Values, bool]:
    """Read the config file or the run that a word names.

    Returns:
        Its name; the config; each value of the config, and of a run's manifest and summary; and
        whether it is a run.

    Raises:
        ConfigError: If it is missing, or cannot be read.
    """
    is_file = name.endswith(NESTED_FILES) or Path(name).is_file()
    is_run = not (is_file or name.startswith(packaged.PREFIX))
    invocation = Invocation("fit", files=(name,))
    recorded = dict[KeyPath, Any]()
    if is_run:
        run = runs.find(name, root)
        name = shown_path(run.folder)
        invocation = Invocation("validate", options={"run": str(run.folder)})
        if not run.config_path.is_file():
            raise ConfigError(f"{name} has no {run.config_path.name}; it is not a run of lightkit")
        recorded = _read_records(run)
    resolved = _load_layers(invocation)
    values: _Values = {
        path: describe_node(resolved, node, path)
        for path, node in walk(resolved.tree, ends=is_setting)
        if path and is_setting(node)
    }
    values |= {
        path: {"value": value} for path, value in recorded.items() if value not in (None, {})
    }
    return name, resolved.tree, values, is_run


def _read_records(run: runs.Run) -> dict[KeyPath, Any]:
    """Read what is compared of a run's manifest and summary."""
    manifest = runs.read_json(run.manifest_path) or {}
    summary = keep_own_stages(run, runs.read_json(run.summary_path) or {}, manifest)
    recorded: dict[KeyPath, Any] = {}
    for subject, records in (("manifest", manifest), ("summary", summary)):
        recorded |= flatten({key: records.get(key) for key in _RECORDED[subject]}, (subject,))
    return recorded


def _load_layers(invocation: Invocation) -> Resolved:
    """Load a config without this process's variables as layers; resolve its hardware keys.

    Raises:
        ConfigError: If a layer cannot be read.
    """
    problems = Problems()
    environ = {name: value for name, value in os.environ.items() if not is_layer(name)}
    loaded = load_config(invocation, problems, environ=environ)
    if problems.is_incomplete:  # other errors are no reason not to compare it
        problems.raise_any()
    hardware, resolved = collect_errors(
        loaded.resolved, partial(resolve_hardware, environ={}), problems
    )
    return resolved if hardware is None else hardware.resolved


def _list_changes(
    trees: Sequence[MappingNode], inputs: Sequence[_Values], are_runs: Sequence[bool]
) -> list[dict[str, Any]]:
    """List what differs, as for `--json`: in the configs, and between two runs in their records.

    The elements of a list of mappings are compared one by one; other lists are one value.
    """
    paths = list(dict.fromkeys(path for values in inputs for path in values))
    sections = list(dict.fromkeys(path[0] for path in paths))
    paths.sort(key=lambda path: sections.index(path[0]))
    sides = dict(zip(("old", "new"), inputs, strict=True))
    if are_runs[0] != are_runs[1]:
        run, file = ("old", "new") if are_runs[0] else ("new", "old")
        tree = trees[are_runs.index(True)]
        sides[run], sides[file] = _align(sides[run], sides[file], tree, paths)
    changes: list[dict[str, Any]] = []
    for path in paths:
        there = {side: values[path] for side, values in sides.items() if path in values}
        kind = _name_change(there)
        if kind is not None and path[-1] != _SPEED:
            subject = path[0] if path[0] in _RECORDED else "config"
            changes.append({"key": dotted(path), "in": subject, "change": kind, **there})
    return changes


def _align(
    run: _Values, file: _Values, tree: MappingNode, paths: Sequence[KeyPath]
) -> tuple[_Values, _Values]:
    """Return the configs of a run and of a file without differences of spelling.

    Args:
        run: Values of the run, with its records.
        file: Values of the file.
        tree: The run's config.
        paths: Paths of all values.
    """
    aligned: tuple[_Values, _Values] = ({}, {})
    for path in paths:
        if path[0] in _RECORDED:
            continue
        found = _complete_file(path, run.get(path), file.get(path), tree)
        for values, value in zip(aligned, found, strict=True):
            if value is not None:
                values[path] = value
    return aligned


def _name_change(there: Mapping[str, _Value]) -> str | None:
    """Return what has become of a value, which stands on one side or both.

    None where it is the same.
    """
    if len(there) == 1:
        return "added" if "new" in there else "removed"
    texts = {repr(value["value"]) for value in there.values()}  # 1, 1.0 and true differ
    return "changed" if len(texts) == 2 else None


def _complete_file(
    path: KeyPath, in_run: _Value | None, in_file: _Value | None, tree: MappingNode
) -> tuple[_Value | None, _Value | None]:
    """Add to a file's config what a run writes out and the file does not.

    A default, or the full name of a class.

    Args:
        path: Path of the value.
        in_run: The run's value.
        in_file: The file's value.
        tree: The run's config.
    """
    if in_file is None:
        if path == ("run", "name"):  # a run has one where the file leaves it out
            return None, None
        in_file = _find_default_value(tree, path)
    if in_run is not None and in_file is not None:
        is_same = _means_the_same(path, in_file["value"], in_run["value"], tree)
        return in_run, in_run if is_same else in_file
    if in_run is not None:
        return (None if in_run["value"] in (None, {}) else in_run), None
    return None, (None if in_file is None or in_file["value"] is None else in_file)


def _find_default_value(tree: MappingNode, path: KeyPath) -> _Value | None:
    """Return the default at a path.

    None where there is none, or its class cannot be imported here.
    """
    with suppress(ConfigError):
        found = find_default(tree, path)
        if found is not None and found["set_by"]["kind"] != "unset":
            return {"value": found["value"], "set_by": found["set_by"]}
    return None


def _means_the_same(path: KeyPath, in_file: Any, in_run: Any, tree: MappingNode) -> bool:
    """Return whether a run has written a file's value out.

    The full name of a class, or 1.0 for the 1 of an argument that takes no integer.
    """
    if (
        path[-1] == "class_path"
        and "." not in str(in_file)
        and str(in_run).rpartition(".")[2] == in_file
    ):
        return True
    is_equal = is_any_number(in_file) and is_any_number(in_run) and in_file == in_run
    return is_equal and not _takes_integers(tree, path)


def _takes_integers(tree: MappingNode, path: KeyPath) -> bool:
    """Return whether 1 and 1.0 are two values of an argument, as of `trainer.limit_val_batches`."""
    with suppress(ConfigError):  # its class cannot be imported here
        argument = describe_owner(tree, path[:-1]).arguments.get(str(path[-1]), Argument())
        return any(branch.get("type") == "integer" for branch in list_branches(argument.schema))
    return False


def _format_changes(old: str, new: str, changes: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"- {old}", f"+ {new}"]
    for change in changes:
        signs = {
            sign: change[side] for sign, side in (("-", "old"), ("+", "new")) if side in change
        }
        texts = format_column(list(signs.values()), longest=_MAX_LINE)
        lines += [
            "",
            change["key"],
            *(f"  {sign} {text}" for sign, text in zip(signs, texts, strict=True)),
        ]
    return "\n".join(lines) + "\n"

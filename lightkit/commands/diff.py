"""`lightkit diff`: what differs between two runs, or two configs. No torch for classes that the schema describes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.cli.argument_lookup import PlacedValue, find_argument
from lightkit.cli.command_line import parse_options
from lightkit.cli.config_loader import load_config
from lightkit.config import PREFIX, RESERVED_VARIABLES, KeyPath, Problems, Resolved, dotted, resolve_hardware
from lightkit.config.display import RedactedConfig, iterate_leaves
from lightkit.config.loader import collect_errors
from lightkit.config.origins import NESTED_FILES, shown_path
from lightkit.config.tree import Node
from lightkit.errors import ConfigError
from lightkit.runs.index import flatten, list_differences

__all__ = ["diff"]

HELP = """\
usage: lightkit diff A B [--root DIR] [--json] [--exit-code]

Print what differs between two configs: the keys that were changed, taken out (-) or added (+), each value with its
place. Of two runs also what differs in versions, commit, data, seed and hardware, and in the last metrics.

  A, B          a config file, with what it extends; or a run: its folder, its id, NAME, NAME/ID, latest
  --root DIR    folder of the runs; default: runs
  --json        one JSON object
  --exit-code   exit with 1 if anything differs

A run has all values, a file some: compared with a run, a file has the defaults of its classes, your own too, for the
others. LIGHTKIT_ variables do not count.
Exit code 0: compared; 1: something differs, with --exit-code; 2: wrong arguments, or a config that cannot be read.

lightkit diff runs/flowers/latest configs/flowers.yaml
"""
_MAX_LINE = 160
_RED, _GREEN, _BOLD, _PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[1m", "\x1b[0m"
_RECORDED = {
    "manifest": ("lightkit", "python", "packages", "git", "data", "seed", "hardware"),
    "summary": ("status", "epochs", "steps", "metrics", "stages"),
}
_SPEED = "samples_per_s"  # it always differs, and is no result


@dataclass(frozen=True)
class DiffInput:
    """A config file, or a run with its records.

    Args:
        title: Name that is printed.
        resolved: The config.
        is_run: Whether it is a run, whose config holds the defaults too.
        recorded: Values of a run's manifest and summary, by dotted key.
    """

    title: str
    resolved: Resolved
    is_run: bool = False
    recorded: Mapping[str, Any] = field(default_factory=dict)


_Change = tuple[str, list["PlacedValue | None"]]
"""A key, and its value in each input; None where one lacks it."""


def diff(words: list[str]) -> int:
    """Print what differs, and return the exit code.

    Args:
        words: The command line after the command.

    Raises:
        ConfigError: If the arguments are wrong, or an input is missing or cannot be read.
    """
    line = parse_options(HELP, words, most=len(words))
    if len(line.positionals) != 2:
        raise line.error(f"expected two configs or runs, got {len(line.positionals) or 'none'}")
    old, new = inputs = [_read_input(name, line.options.get("--root", "runs")) for name in line.positionals]
    changes = _list_changes(inputs)
    if "--json" in line.options:
        fields = [_get_fields(*change) for change in changes]
        print(json.dumps({"schema": 1, "a": old.title, "b": new.title, "changes": fields}, indent=2))
    elif changes:
        print(_format_changes(old.title, new.title, changes, coloured=sys.stdout.isatty()), end="")
    else:
        print(f"no difference between {old.title} and {new.title}")
    return 1 if changes and "--exit-code" in line.options else 0


def _read_input(name: str, root: str) -> DiffInput:
    """Read the config file or the run that a word names.

    Raises:
        ConfigError: If it is missing, or cannot be read.
    """
    if name.endswith(NESTED_FILES) or Path(name).is_file():
        return DiffInput(name, _load_alone("fit", ["-c", name]))
    run = runs.find(name, root)
    folder = shown_path(run.folder)
    if not run.config_path.is_file():
        raise ConfigError(f"{name}: {folder} has no {run.config_path.name}; it is not a run of lightkit")
    recorded: dict[str, Any] = {}
    for subject, path in (("manifest", run.manifest_path), ("summary", run.summary_path)):
        values = runs.read_json(path) or {}
        found = flatten({key: values.get(key) for key in _RECORDED[subject]}, (subject,))
        recorded |= {dotted(path): value for path, value in found if value not in (None, {})}
    return DiffInput(folder, _load_alone("validate", ["--run", str(run.folder)]), is_run=True, recorded=recorded)


def _load_alone(stage: str, words: Sequence[str]) -> Resolved:
    """Load a config without variables; it is compared in spite of its errors, unless it cannot be read."""
    problems = Problems()
    environ = {key: value for key, value in os.environ.items() if key[: len(PREFIX)] != PREFIX}
    environ |= {key: os.environ[key] for key in RESERVED_VARIABLES if key in os.environ}
    loaded = load_config(stage, words, problems, options={"run": "value"}, environ=environ)
    if problems.is_incomplete:
        problems.raise_any()
    hardware, resolved = collect_errors(loaded.resolved, partial(resolve_hardware, environ={}), problems)
    return resolved if hardware is None else hardware.resolved


def _list_changes(inputs: Sequence[DiffInput]) -> list[_Change]:
    """List what differs: in the configs, and between two runs in their records.

    The elements of a list of mappings are compared one by one; other lists are one value.
    """
    nodes: list[dict[KeyPath, Node]] = [dict(iterate_leaves(each.resolved.tree, ())) for each in inputs]
    mappings = [{path[:depth] for path in each for depth in range(len(path))} for each in nodes]
    sections = list(dict.fromkeys(path[0] for each in nodes for path in each if path))
    is_mixed = inputs[0].is_run != inputs[1].is_run
    changes: list[_Change] = []
    for path in sorted(dict.fromkeys([*nodes[0], *nodes[1]]), key=lambda path: sections.index(path[0])):
        pair = [each.get(path) for each in nodes]
        if any(node is None and path in above for node, above in zip(pair, mappings, strict=True)):
            continue  # an empty mapping whose other side has keys, each of which is listed
        values = [
            None if node is None else PlacedValue.of_node(RedactedConfig(each.resolved), node, path)
            for each, node in zip(inputs, pair, strict=True)
        ]
        if is_mixed:
            values = _complete_file(path, values, inputs)
        before, after = values
        is_same = before is not None and after is not None and repr(before.value) == repr(after.value)
        if values != [None, None] and not is_same:  # `repr`, for 1, 1.0 and true are not the same
            changes.append((dotted(path), values))
    if all(each.is_run for each in inputs):
        for key in list_differences([each.recorded for each in inputs]):
            if not key.endswith(_SPEED):
                values = [PlacedValue(each.recorded[key]) if key in each.recorded else None for each in inputs]
                changes.append((key, values))
    return changes


def _complete_file(
    path: KeyPath, values: list[PlacedValue | None], inputs: Sequence[DiffInput]
) -> list[PlacedValue | None]:
    """Give a file what a run writes out and it leaves out or abbreviates: a default, or the full name of a class."""
    at = 0 if inputs[0].is_run else 1
    in_run, in_file = values[at], values[1 - at]
    if in_run is not None and in_file is None:
        try:
            argument = find_argument(inputs[at].resolved.tree, path)
        except ConfigError:  # its class cannot be imported here
            argument = None
        in_file = None if argument is None else PlacedValue.of_default(argument)
        is_dropped = path == ("run", "name") or (in_file is None and in_run.value in (None, {}))
        in_run = None if is_dropped else in_run
    if in_run is None:
        return [None, None] if in_file is None or in_file.value is None else values
    if in_file is not None:
        pair = in_file.value, in_run.value
        is_class = path[-1] == "class_path" and "." not in str(pair[0]) and str(pair[1]).rpartition(".")[2] == pair[0]
        are_numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in pair)
        in_file = in_run if is_class or (are_numbers and pair[0] == pair[1]) else in_file
    return [in_run, in_file] if at == 0 else [in_file, in_run]


def _get_fields(key: str, values: Sequence[PlacedValue | None]) -> dict[str, Any]:
    before, after = values
    subject = key.partition(".")[0] if key.startswith(("manifest.", "summary.")) else "config"
    kind = "added" if before is None else "removed" if after is None else "changed"
    sides = {name: side.fields() for name, side in (("old", before), ("new", after)) if side is not None}
    return {"key": key, "in": subject, "change": kind, **sides}


def _format_changes(old: str, new: str, changes: Sequence[_Change], *, coloured: bool) -> str:
    red, green, bold, end = (_RED, _GREEN, _BOLD, _PLAIN) if coloured else ("", "", "", "")
    lines = [f"{red}- {old}{end}", f"{green}+ {new}{end}"]
    for key, values in changes:
        lines += ["", f"{bold}{key}{end}"]
        signs = [sign for sign, value in zip((f"{red}-", f"{green}+"), values, strict=True) if value is not None]
        texts = PlacedValue.format_column([value for value in values if value is not None], longest=_MAX_LINE)
        lines += [f"  {sign} {text}{end}" for sign, text in zip(signs, texts, strict=True)]
    return "\n".join(lines) + "\n"

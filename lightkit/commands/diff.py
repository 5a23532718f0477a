"""`lightkit diff`: what differs between two runs, or two configs. No torch for classes that the schema describes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.cli.argument_lookup import PlacedValue, find_argument
from lightkit.cli.command_line import parse_options
from lightkit.cli.config_loader import load_config
from lightkit.config import PREFIX, RESERVED_VARIABLES, KeyPath, Problems, dotted, resolve_hardware
from lightkit.config.display import RedactedConfig, iterate_leaves
from lightkit.config.loader import collect_errors
from lightkit.config.origins import NESTED_FILES, shown_path
from lightkit.config.tree import MappingNode
from lightkit.errors import ConfigError
from lightkit.runs.index import flatten

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
        tree: The config.
        values: Each value of the config, and of a run's manifest and summary, by its path.
        is_run: Whether it is a run, whose config holds the defaults too.
    """

    title: str
    tree: MappingNode
    values: Mapping[KeyPath, PlacedValue]
    is_run: bool = False


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
    is_run = not (name.endswith(NESTED_FILES) or Path(name).is_file())
    args, recorded = ["-c", name], dict[KeyPath, Any]()
    if is_run:
        run = runs.find(name, root)
        name, args = shown_path(run.folder), ["--run", str(run.folder)]
        if not run.config_path.is_file():
            raise ConfigError(f"{name} has no {run.config_path.name}; it is not a run of lightkit")
        for subject, path in (("manifest", run.manifest_path), ("summary", run.summary_path)):
            records = runs.read_json(path) or {}
            recorded |= flatten({key: records.get(key) for key in _RECORDED[subject]}, (subject,))
    problems = Problems()
    environ = {key: value for key, value in os.environ.items() if key[: len(PREFIX)] != PREFIX}
    environ |= {key: os.environ[key] for key in RESERVED_VARIABLES if key in os.environ}
    stage = "validate" if is_run else "fit"
    loaded = load_config(stage, args, problems, options={"run": "value"}, environ=environ)
    if problems.is_incomplete:  # other errors are no reason not to compare it
        problems.raise_any()
    hardware, resolved = collect_errors(loaded.resolved, partial(resolve_hardware, environ={}), problems)
    resolved = resolved if hardware is None else hardware.resolved
    redacted = RedactedConfig(resolved)
    values = {path: PlacedValue.of_node(redacted, node, path) for path, node in iterate_leaves(resolved.tree, ())}
    values |= {path: PlacedValue(value) for path, value in recorded.items() if value not in (None, {})}
    return DiffInput(name, resolved.tree, values, is_run)


def _list_changes(inputs: Sequence[DiffInput]) -> list[_Change]:
    """List what differs: in the configs, and between two runs in their records.

    The elements of a list of mappings are compared one by one; other lists are one value.
    """
    old, new = (each.values for each in inputs)
    sections = list(dict.fromkeys(path[0] for path in (*old, *new)))
    is_mixed = inputs[0].is_run != inputs[1].is_run
    changes: list[_Change] = []
    for path in sorted(dict.fromkeys([*old, *new]), key=lambda path: sections.index(path[0])):
        values = [old.get(path), new.get(path)]
        if path[-1] == _SPEED or (is_mixed and path[0] in _RECORDED):
            continue
        before, after = values = _complete_file(path, values, inputs) if is_mixed else values
        is_same = before is not None and after is not None and repr(before.value) == repr(after.value)
        if values != [None, None] and not is_same:  # `repr`, for 1, 1.0 and true are not the same
            changes.append((dotted(path), values))
    return changes


def _complete_file(
    path: KeyPath, values: list[PlacedValue | None], inputs: Sequence[DiffInput]
) -> list[PlacedValue | None]:
    """Give a file what a run writes out and it leaves out or abbreviates: a default, or the full name of a class."""
    at = 0 if inputs[0].is_run else 1
    in_run, in_file = values[at], values[1 - at]
    if in_run is not None and in_file is None:
        try:
            argument = find_argument(inputs[at].tree, path)
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

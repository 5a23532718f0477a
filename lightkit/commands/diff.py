"""`lightkit diff`: what differs between two runs, or two configs. No torch."""

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
from lightkit.cli.argument_lookup import find_argument
from lightkit.cli.command_line import Takes, parse_command_line
from lightkit.cli.config_loader import load_config
from lightkit.config import PREFIX, RESERVED_VARIABLES, KeyPath, Problems, Resolved, dotted, resolve_hardware
from lightkit.config.display import RedactedConfig, format_inline, format_origin, iterate_leaves, origin_fields
from lightkit.config.loader import collect_errors
from lightkit.config.origins import NESTED_FILES, shown_path
from lightkit.config.tree import Node, plain
from lightkit.errors import ConfigError

__all__ = ["diff"]

_USAGE = "usage: lightkit diff A B [--root DIR] [--json] [--exit-code]"
_HELP = f"""\
{_USAGE}

Print what differs between two configs: the keys that were changed, taken out (-) or added (+), each value with its
place. Of two runs also what differs in versions, commit, data, seed and hardware, and in the last metrics.

  A, B          a config file, with what it extends; or a run: its folder, its id, NAME, NAME/ID, latest
  --root DIR    folder of the runs; default: runs
  --json        one JSON object
  --exit-code   exit with 1 if anything differs

Beside a file, a run shows no value that is the default of its class. LIGHTKIT_ variables do not count.
Exit code 0: compared; 1: something differs, with --exit-code; 2: wrong arguments, or a config that cannot be read.

lightkit diff runs/flowers/latest configs/flowers.yaml
"""
_OPTIONS: dict[str, Takes] = {"--root": "value", "--json": "switch", "--exit-code": "switch"}
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


@dataclass(frozen=True)
class _Value:
    """A printable value; its place for people, empty for a run's records; and its place for programs."""

    value: Any
    place: str = ""
    set_by: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class _Change:
    """A key of `config`, `manifest` or `summary` whose values differ; None where one input lacks it."""

    key: str
    old: _Value | None
    new: _Value | None
    subject: str = "config"

    def fields(self) -> dict[str, Any]:
        kind = "added" if self.old is None else "removed" if self.new is None else "changed"
        sides = {
            name: {"value": side.value, **({"set_by": side.set_by} if side.set_by else {})}
            for name, side in (("old", self.old), ("new", self.new))
            if side is not None
        }
        return {"key": self.key, "in": self.subject, "change": kind, **sides}


def diff(words: list[str]) -> int:
    """Print what differs, and return the exit code.

    Args:
        words: The command line after the command.

    Raises:
        ConfigError: If the arguments are wrong, or an input is missing or cannot be read.
    """
    if {"-h", "--help"} & {*words}:
        print(_HELP, end="")
        return 0
    line = parse_command_line("diff", words, usage=_USAGE, own=_OPTIONS)
    if len(line.positionals) != 2:
        raise ConfigError(f"diff: expected two configs or runs, got {len(line.positionals) or 'none'}\n{_USAGE}")
    old, new = (_read_input(name, line.options.get("--root", "runs")) for name in line.positionals)
    changes = _list_changes(old, new)
    if "--json" in line.options:
        titles = {"schema": 1, "a": old.title, "b": new.title}
        print(json.dumps({**titles, "changes": [change.fields() for change in changes]}, indent=2))
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
        recorded |= _flatten(subject, {key: values.get(key) for key in _RECORDED[subject]})
    return DiffInput(folder, _load_alone("validate", ["--run", str(run.folder)]), is_run=True, recorded=recorded)


def _load_alone(stage: str, words: Sequence[str]) -> Resolved:
    """Load a config without variables; it is compared in spite of its mistakes, unless it cannot be read."""
    problems = Problems()
    environ = {key: value for key, value in os.environ.items() if key[: len(PREFIX)] != PREFIX}
    environ |= {key: os.environ[key] for key in RESERVED_VARIABLES if key in os.environ}
    loaded = load_config(stage, words, problems, options={"run": "value"}, environ=environ)
    if problems.is_incomplete:
        problems.raise_any()
    hardware, resolved = collect_errors(loaded.resolved, partial(resolve_hardware, environ={}), problems)
    return resolved if hardware is None else hardware.resolved


def _flatten(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {name: leaf for part, child in value.items() for name, leaf in _flatten(f"{key}.{part}", child).items()}
    return {} if value is None else {key: value}


def _list_changes(old: DiffInput, new: DiffInput) -> list[_Change]:
    """List what differs: in the configs, and between two runs in their records.

    The elements of a list of mappings are compared one by one; other lists are one value.
    """
    inputs = old, new
    nodes: list[dict[KeyPath, Node]] = [dict(iterate_leaves(each.resolved.tree, ())) for each in inputs]
    mappings = [{path[:depth] for path in each for depth in range(len(path))} for each in nodes]
    sections = list(dict.fromkeys(path[0] for each in nodes for path in each if path))
    changes = []
    for path in sorted(dict.fromkeys([*nodes[0], *nodes[1]]), key=lambda path: sections.index(path[0])):
        pair = [each.get(path) for each in nodes]
        if any(node is None and path in above for node, above in zip(pair, mappings, strict=True)):
            continue  # an empty mapping whose other side has keys, each of which is listed
        before, after = (_redact(each.resolved, node, path) for each, node in zip(inputs, pair, strict=True))
        if before is not None and after is not None and repr(before.value) == repr(after.value):
            continue  # `repr`, for 1, 1.0 and true are not the same
        if old.is_run == new.is_run or not _is_default(path, pair, inputs):
            changes.append(_Change(dotted(path), before, after))
    if old.is_run and new.is_run:
        for key in dict.fromkeys([*old.recorded, *new.recorded]):
            if old.recorded.get(key) != new.recorded.get(key) and not key.endswith(_SPEED):
                before, after = (_Value(each.recorded[key]) if key in each.recorded else None for each in inputs)
                changes.append(_Change(key, before, after, key.partition(".")[0]))
    return changes


def _redact(resolved: Resolved, node: Node | None, path: KeyPath) -> _Value | None:
    if node is None:
        return None
    redacted = RedactedConfig(resolved)
    return _Value(redacted.value(node, path), redacted.masked(format_origin(node.origin)), origin_fields(node.origin))


def _is_default(path: KeyPath, pair: Sequence[Node | None], inputs: Sequence[DiffInput]) -> bool:
    """Tell whether a run only writes out a default, or the full name, of what a file leaves out or abbreviates."""
    at = 0 if inputs[0].is_run else 1
    in_run, in_file = pair[at], pair[1 - at]
    if in_run is None:
        return in_file is not None and plain(in_file) is None
    value = plain(in_run)
    if in_file is None:
        if value is None or value == {} or path == ("run", "name"):
            return True
        argument = find_argument(inputs[at].resolved.tree, path, imports=False)
        return argument is not None and argument.default == value
    said = plain(in_file)
    if path[-1] == "class_path" and isinstance(value, str) and isinstance(said, str):
        return "." not in said and value.rpartition(".")[2] == said
    are_numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in (value, said))
    return are_numbers and bool(value == said)


def _format_changes(old: str, new: str, changes: Sequence[_Change], *, coloured: bool) -> str:
    red, green, bold, end = (_RED, _GREEN, _BOLD, _PLAIN) if coloured else ("", "", "", "")
    lines = [f"{red}- {old}{end}", f"{green}+ {new}{end}"]
    for change in changes:
        lines += ["", f"{bold}{change.key}{end}"]
        sides = [(f"{red}-", change.old), (f"{green}+", change.new)]
        values = [format_inline(side.value, longest=_MAX_LINE) if side is not None else "" for _, side in sides]
        width = max(map(len, values)) if max(map(len, values)) <= _MAX_LINE // 2 else 0
        for (sign, side), value in zip(sides, values, strict=True):
            if side is not None:
                lines.append(f"  {sign} {value:<{width}}{end}  {side.place}".rstrip())
    return "\n".join(lines) + "\n"

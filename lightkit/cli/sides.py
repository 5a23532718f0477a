"""The two sides of a comparison: runs or config files, with what is recorded of a run beside its config. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.cli.argument_lookup import find_argument
from lightkit.cli.config_loader import load_config
from lightkit.config import PREFIX, RESERVED_VARIABLES, KeyPath, Problems, Resolved, dotted, resolve_hardware
from lightkit.config.display import Difference, RedactedConfig, compare_configs, format_origin, origin_fields
from lightkit.config.loader import collect_errors
from lightkit.config.origins import NESTED_FILES, shown_path
from lightkit.config.tree import Leaf, Node, Table
from lightkit.errors import ConfigError

__all__ = ["Change", "Shown", "Side", "changes_between", "read_side"]

_RECORDED = ("lightkit", "python", "packages", "git", "data", "seed", "hardware")
_SPEED = "samples_per_s"  # it differs always, and is no result
_MEASURED = ("status", "epochs", "steps", "metrics", "stages")


@dataclass(frozen=True)
class Side:
    """One of two that are compared.

    Args:
        title: What it is called.
        resolved: Its config.
        is_run: Whether it is a run, whose config holds the defaults too.
        recorded: What a run's manifest and summary hold, by dotted key.
    """

    title: str
    resolved: Resolved
    is_run: bool
    recorded: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Shown:
    """A value with its place.

    Args:
        value: Plain value, without secrets.
        place: Where it was set; empty for what a run has recorded.
        described: The place for programs.
    """

    value: Any
    place: str = ""
    described: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Change:
    """A value that the two do not share.

    Args:
        key: Dotted key.
        old: What the first has; None where it has nothing.
        new: What the second has, likewise.
        subject: `config`, `manifest` or `summary`.
    """

    key: str
    old: Shown | None
    new: Shown | None
    subject: str = "config"

    def described(self) -> dict[str, Any]:
        """Give it for programs."""
        kind = "added" if self.old is None else "removed" if self.new is None else "changed"
        sides = {"old": self.old, "new": self.new}
        told = {
            name: {"value": side.value, **({"set_by": side.described} if side.described else {})}
            for name, side in sides.items()
            if side is not None
        }
        return {"key": self.key, "in": self.subject, "change": kind, **told}


def read_side(name: str, root: str) -> Side:
    """Read the config file or the run that a word names.

    Args:
        name: A file, or a run as `--run` takes it.
        root: Folder of the runs.

    Raises:
        ConfigError: If it is not there, or cannot be read.
    """
    if name.endswith(NESTED_FILES) or Path(name).is_file():
        return Side(name, _config_of(["-c", name]), is_run=False)
    run = runs.find(name, root)
    if not run.config_path.is_file():
        raise ConfigError(
            f"{name}: {shown_path(run.folder)} has no {run.config_path.name}; it is not a run of lightkit"
        )
    manifest, summary = runs.read_json(run.manifest_path) or {}, runs.read_json(run.summary_path) or {}
    recorded = _flat("manifest", {key: manifest.get(key) for key in _RECORDED})
    recorded |= _flat("summary", {key: summary.get(key) for key in _MEASURED})
    return Side(shown_path(run.folder), _config_of(["--run", str(run.folder)]), is_run=True, recorded=recorded)


def changes_between(old: Side, new: Side) -> list[Change]:
    """List what differs: in the config, and between two runs in what they have recorded."""
    found = compare_configs(old.resolved, new.resolved)
    if old.is_run != new.is_run:
        found = [difference for difference in found if not _is_only_written_out(difference, old, new)]
    presented = RedactedConfig(old.resolved), RedactedConfig(new.resolved)
    changes = [
        Change(dotted(each.path), _shown(each.path, each.old, presented[0]), _shown(each.path, each.new, presented[1]))
        for each in found
    ]
    return changes + (_recorded_changes(old.recorded, new.recorded) if old.is_run and new.is_run else [])


def _config_of(words: Sequence[str]) -> Resolved:
    """Lay a file alone: what is wrong with it does not keep it from being compared, unless it cannot be read."""
    problems = Problems()
    environ = {key: value for key, value in os.environ.items() if _counts(key)}
    stage = "validate" if words[0] == "--run" else "fit"
    options: Any = {"run": "value"}
    laid = load_config(stage, words, problems, options=options, environ=environ)
    if problems.is_incomplete:
        problems.raise_any()
    hardware, resolved = collect_errors(laid.resolved, partial(resolve_hardware, environ={}), problems)
    return resolved if hardware is None else hardware.resolved


def _counts(variable: str) -> bool:
    return not variable.startswith(PREFIX) or variable in RESERVED_VARIABLES


def _is_only_written_out(difference: Difference, old: Side, new: Side) -> bool:
    """Tell whether a run only says in full what a file leaves to defaults."""
    run, written, said = (old, difference.old, difference.new) if old.is_run else (new, difference.new, difference.old)
    if written is None:
        return said is not None and _plain(said) is None
    value = _plain(written)
    if said is not None:
        return _is_one(value, _plain(said), is_class=difference.path[-1] == "class_path")
    if value is None or value == {} or difference.path == ("run", "name"):
        return True
    argument = find_argument(run.resolved.tree, difference.path, imports=False)
    return argument is not None and argument.default == value


def _is_one(written: Any, said: Any, *, is_class: bool) -> bool:
    if is_class and isinstance(written, str) and isinstance(said, str):
        return "." not in said and written.rpartition(".")[2] == said
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (written, said))
    return numbers and bool(written == said)


def _plain(node: Node) -> Any:
    return node.value if isinstance(node, Leaf) else {} if isinstance(node, Table) else [_plain(i) for i in node.items]


def _shown(path: KeyPath, node: Node | None, presented: RedactedConfig) -> Shown | None:
    if node is None:
        return None
    place = presented.masked(format_origin(node.origin))
    return Shown(presented.value(node, path), place, origin_fields(node.origin))


def _recorded_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    return [
        Change(
            key,
            Shown(old[key]) if key in old else None,
            Shown(new[key]) if key in new else None,
            subject=key.partition(".")[0],
        )
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key) and not key.endswith(_SPEED)
    ]


def _flat(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {name: found for part, child in value.items() for name, found in _flat(f"{key}.{part}", child).items()}
    return {} if value is None else {key: value}

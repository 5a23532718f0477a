"""A config with the way of each value: which layers set it, and which hardware key became which of the trainer's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lightkit import config
from lightkit.cli.config_loader import LoadedConfig, load_config
from lightkit.cli.resume import limit_to_this_machine
from lightkit.config import KeyPath, Problems, Resolved, dotted
from lightkit.config.accelerator.said import BLOCK_KEYS, OLD_TRAINER_KEYS
from lightkit.config.display import RedactedConfig
from lightkit.config.loader import collect_errors, drop_paths
from lightkit.config.tree import Items, Node, Table, walk
from lightkit.errors import LightkitError
from lightkit.hardware import this_machine

__all__ = ["Traced", "trace", "traced"]

_SAYING: dict[KeyPath, tuple[str, ...]] = {
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
"""Keys of hardware that say the same in other words."""
_BLOCK = ("accelerator",)
_HOMES = ("trainer", "launch", "callbacks", "data", "optimizer", "model")
"""Sections that hardware keys go to."""
_TRAINER_KEYS = {
    *(path for path in _SAYING if path[0] == "trainer"),
    *(("trainer", key) for key in (*OLD_TRAINER_KEYS, "accelerator")),
}
"""Keys of the trainer that are read to settle the hardware."""


@dataclass(frozen=True)
class Traced:
    """A config before and after its hardware keys were turned into the trainer's.

    Args:
        before: As the layers say it.
        after: As a run has it.
        problems: What is wrong with it.
        chosen_by: The hardware that has decided what ``auto`` comes to, in words.
    """

    before: Resolved
    after: Resolved
    problems: Problems
    chosen_by: str = ""

    def presented(self, path: KeyPath = ()) -> RedactedConfig:
        """Give what shows the value at a path: that of the run, or of the layers where the run has another key."""
        is_of_run = path[:1] != _BLOCK and node_at(self.after.tree, path) is not None
        return RedactedConfig(self.after if is_of_run else self.before)

    def find(self, path: KeyPath) -> tuple[KeyPath, Node, KeyPath]:
        """Find the value at a path in which ``init_args`` may be left out.

        Returns:
            Its whole path; the value; and what of the path leads nowhere, whose value is that of what is before it.
        """
        found = _descend((self.before if path[:1] == _BLOCK else self.after).tree, path)
        return found if not found[2] else min(found, _descend(self.before.tree, path), key=lambda each: len(each[2]))

    def replaced(self, path: KeyPath, node: Node) -> Sequence[Node]:
        """List what stood in the place of a value before, lowest layer first, whichever key said it."""
        own = node_at(self.before.tree, path)
        overruled = [_alone(lower) for _, lower in self.overruled(path, node)]
        if own is None and not self.sources(path, node):
            return [*node.replaced, *overruled]
        of_source = [was for _, source in self.sources(path, node) for was in source.replaced]
        if own is None or own.origin == node.origin:
            return [*(own.replaced if own is not None else ()), *of_source, *overruled]
        return [*own.replaced, _alone(own), *of_source]

    def overruled(self, path: KeyPath, node: Node) -> list[tuple[KeyPath, Node]]:
        """List the hardware keys of lower layers that would have given a value in other words."""
        ranks, keys = self.before.ranks, _SAYING.get(path, ())
        said = [(key, below) for key, below in self._hardware() if key[-1] in keys and key != path]
        return [(key, below) for key, below in said if ranks.get(below.origin, 0) < ranks.get(node.origin, 0)]

    def overruling(self, path: KeyPath, node: Node) -> tuple[KeyPath, Node] | None:
        """Give what counts in place of a hardware key."""
        for other in _SAYING:
            now = node_at(self.after.tree, other)
            if now is not None and any(key == path for key, _ in self.overruled(other, now)):
                return other, now
        return None

    def sources(self, path: KeyPath, node: Node) -> list[tuple[KeyPath, Node]]:
        """List the hardware keys that gave a value."""
        if not path or path[0] not in _HOMES:
            return []
        return [(old, source) for old, source in self._hardware() if source.origin == node.origin and old != path]

    def became(self, node: Node) -> list[tuple[KeyPath, Node]]:
        """List the keys of the run that a hardware key gave."""
        found = [
            (path, now)
            for path, now in walk(self.after.tree)
            if path and not isinstance(now, Table) and now.origin == node.origin
        ]
        return [(path, now) for path, now in found if node_at(self.before.tree, path) is not now]

    def _hardware(self) -> Iterator[tuple[KeyPath, Node]]:
        keys = [("accelerator", key) for key in BLOCK_KEYS]
        keys += [("trainer", key) for key in (*OLD_TRAINER_KEYS, "accelerator", "strategy")]
        for path in keys:
            node = node_at(self.before.tree, path)
            if node is not None:
                yield path, node


def trace(words: Sequence[str], *, stage: str, options: Any) -> Traced:
    """Lay the layers that words name, and settle what can be settled although something may be wrong.

    Args:
        words: Words of a command line.
        stage: Stage whose block in a file counts.
        options: The command's own options.

    Raises:
        ConfigError: If a word is wrong, or a part of the config cannot be read.
    """
    config.split_arguments(words, options=options)
    problems = Problems()
    laid = load_config(stage, words, problems, options=options)
    if problems.is_incomplete:
        problems.raise_any()
    return traced(laid, problems)


def traced(laid: LoadedConfig, problems: Problems) -> Traced:
    """Turn the hardware keys of a config into the trainer's, whether or not this machine has what they ask for."""
    resolved = drop_paths(laid.resolved, _left_out(laid.resolved))
    if laid.base is not None:
        alone, resolved = collect_errors(
            resolved, partial(limit_to_this_machine, saved=laid.base.config_path), problems
        )
        resolved = alone or resolved
    try:
        found = config.resolve_hardware(resolved, this_machine(), environ=os.environ)
        return Traced(laid.resolved, found.resolved, problems, found.chosen_by)
    except LightkitError as error:
        problems.add(error)
        hardware, resolved = collect_errors(resolved, partial(config.resolve_hardware, environ={}), problems)
        after = resolved if hardware is None else hardware.resolved
    return Traced(laid.resolved, after, problems)


def _left_out(resolved: Resolved) -> set[KeyPath]:
    """Say what is left out before hardware keys are read: what they or the names of classes depend on.

    The rest stays as it is written; and of a list, all goes or nothing, since other elements would move up.
    """
    found = set()
    for path in resolved.unresolved:
        at = next((index for index, key in enumerate(path) if isinstance(key, int)), None)
        is_text = path in resolved.texts
        is_class = path[-1] == "class_path" and (at is None or not is_text)
        is_setting = at is not None or (is_text and (len(path) > 2 or path[0] in ("trainer", "run")))
        if is_class or not is_setting or _is_hardware(path):
            found.add(path[:at])
    return found


def _is_hardware(path: KeyPath) -> bool:
    return path[0] in ("accelerator", "launch") or path == ("trainer",) or path[:2] in _TRAINER_KEYS


def node_at(tree: Node, path: KeyPath) -> Node | None:
    """Give the value at a path, None where there is none."""
    node: Node | None = tree
    for key in path:
        if isinstance(node, Table):
            node = node.entries.get(key)
        elif isinstance(node, Items) and isinstance(key, int):
            node = node.items[key] if key < len(node.items) else None
        else:
            return None
    return node


def _descend(tree: Node, path: KeyPath) -> tuple[KeyPath, Node, KeyPath]:
    node, taken = tree, ()
    for at, key in enumerate(path):
        step = next((step for step in _steps(node, key) if node_at(node, step) is not None), None)
        child = None if step is None else node_at(node, step)
        if step is None or child is None:
            return taken, node, path[at:]
        node, taken = child, (*taken, *step)
    return taken, node, ()


def _steps(node: Node, key: Any) -> list[KeyPath]:
    """List the ways in which a key can be meant."""
    if isinstance(node, Items):
        return [(int(key),)] if str(key).isdigit() else []
    spelled = (key, str(key), f"{key}+", str(key).removesuffix("+"), int(key) if str(key).isdigit() else key)
    return [(each,) for each in spelled] + [("init_args", each) for each in spelled]


def _alone(node: Node) -> Node:
    return replace(node, replaced=())


def shown_key(path: KeyPath) -> str:
    """Write a path as people do, without ``init_args``."""
    return dotted(key for key in path if key != "init_args")

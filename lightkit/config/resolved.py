"""From files, variables and flags to one config that knows where each value came from."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lightkit.config.entries import LightningConfig, check_class_names, check_entries, lightning_config, named_config
from lightkit.config.interpolation import Interpolated, escaped, interpolate
from lightkit.config.layers import Flag, flag_layers, layers_of, opened, variable_layers
from lightkit.config.masking import Mask
from lightkit.config.merging import Layering
from lightkit.config.origins import KeyPath, Origin, mistake
from lightkit.config.problems import Problems, Unreadable
from lightkit.config.secrets import ToldSecrets, public_text, secrets_of_variables
from lightkit.config.tree import Items, Leaf, Node, Table, graft, plain, walk

__all__ = ["CLASS_SECTIONS", "SECTIONS", "Resolved", "resolve"]

CLASS_SECTIONS = ("model", "data", "optimizer", "lr_scheduler")
"""Top-level keys that hold one class each, unless the command line fixes the class in Python."""
SECTIONS = ("trainer", "model", "data", "optimizer", "lr_scheduler", "callbacks", "logger", "run", "watchdog", "gate")
"""Top-level keys whose value may be the name of a file that holds the section."""
WORDS = {"accelerator": "kind"}
"""Top-level keys whose mapping may be a single word, each with the key that the word stands for."""
_RANKED = ("accelerator", "trainer", "launch", "data", "optimizer", "model")
"""Sections that can say the same thing in different words, so that the order of layers decides between them."""


@dataclass(frozen=True)
class Resolved:
    """A config after all layers and interpolations.

    Args:
        tree: The values with their origins.
        layering: The rules that it was merged by.
        references: What stands in saved configs for a value that came from the environment, also through other keys,
            or whose key or form says that it is secret, by its path.
        secrets: What the environment gave and what is secret, each with what stands for it, longest first.
        subcommand: Subcommand that it is for.
        unresolved: Paths of the values that have been told as mistakes: interpolations, text that cannot be read,
            and entries that name no class.
        is_incomplete: Whether a layer could not be read, so that what seems missing may stand there.
        removed: Paths of what has been left out because it was wrong.
        texts: Text of every interpolation, by its path.
        ranks: Number of the layer from which the values of the sections for hardware come, by their places; a higher
            layer has a higher number.
    """

    tree: Table
    layering: Layering
    references: dict[KeyPath, str] = field(default_factory=dict)
    secrets: tuple[tuple[str, str], ...] = ()
    subcommand: str | None = None
    unresolved: frozenset[KeyPath] = frozenset()
    is_incomplete: bool = False
    removed: frozenset[KeyPath] = frozenset()
    texts: Mapping[KeyPath, str] = field(default_factory=dict, repr=False, compare=False)
    ranks: Mapping[Origin, int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def values(self) -> dict[str, Any]:
        """The config as plain dicts, lists and scalars, a fresh copy."""
        values: dict[str, Any] = plain(self.tree)
        return values

    @property
    def origins(self) -> dict[KeyPath, Origin]:
        """The place that set each value; for a mapping, the lowest that did."""
        return {path: node.origin for path, node in walk(self.tree) if path}

    @property
    def replaced(self) -> dict[KeyPath, tuple[Node, ...]]:
        """What stood in the place of a value before, lowest layer first, of those values that replaced any."""
        return {path: node.replaced for path, node in walk(self.tree) if path and node.replaced}

    def origin_of(self, key: str | KeyPath) -> Origin | None:
        """Give the place that set a value, or the nearest above it that is known.

        Args:
            key: Path, or dotted key as LightningCLI's errors write it (``trainer.callbacks.0.init_args.patience``).
                In a dotted key, an index into ``trainer.callbacks`` counts the named entries too.
        """
        path = self.lightkit_path(key) if isinstance(key, str) else key
        node: Node = self.tree
        origin = None
        for part in path:
            child = _child(node, part)
            if child is None:
                break
            node, origin = child, child.origin
        return origin

    def lightkit_path(self, key: str) -> KeyPath:
        """Give the path that the user knows for a dotted key of LightningCLI's."""
        parts: list[Any] = [int(part) if part.isdigit() else part for part in re.split(r"[.\[\]]+", key) if part]
        if parts and parts[0] == self.subcommand and self.subcommand not in self.tree.entries:
            parts = parts[1:]
        return self.lightning().lightkit_path(tuple(parts))

    def lightning(self) -> LightningConfig:
        """Give the config as LightningCLI takes it: named entries become lists under ``trainer``."""
        return lightning_config(self.tree, self.layering)

    def named(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Put the named entries of a config that LightningCLI dumped back under their names."""
        return named_config(config, self.tree, self.layering)

    def with_references(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Make a config fit to be saved, printed or logged: what came from the environment is a reference again.

        A secret that was said by a flag or in a file is ``***``.

        Args:
            config: Values in lightkit's form, such as `values` or what `named` gives. Text that only looks like an
                interpolation is escaped, so that reading the saved config gives it back.
        """
        # What `key+` appended stands elsewhere in what LightningCLI dumps; it is known by its value then.
        everywhere = dict(self.secrets) if any(not _holds(config, path) for path in self.references) else {}

        def visit(value: Any, path: KeyPath) -> Any:
            if path in self.references:
                return self.references[path]
            if isinstance(value, Mapping):
                return {key: visit(child, (*path, key)) for key, child in value.items()}
            if isinstance(value, (list, tuple)):
                return [visit(child, (*path, index)) for index, child in enumerate(value)]
            return everywhere.get(value) or escaped(value) if isinstance(value, str) else value

        return {key: visit(child, (key,)) for key, child in config.items()}

    def masked(self, text: str) -> str:
        """Write a text for logs: what the environment gave, and what is secret, is replaced by what stands for it."""
        return self._mask(text)

    @cached_property
    def _mask(self) -> Mask:
        return Mask(self.secrets)


def resolve(
    files: Iterable[str | Path] = (),
    *,
    flags: Sequence[Flag] = (),
    environ: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    subcommand: str | None = None,
    subcommands: Collection[str] = (),
    class_sections: Collection[str] = CLASS_SECTIONS,
    default_classes: Mapping[str, Mapping[str, str]] | None = None,
    sections: Collection[str] = SECTIONS,
    problems: Problems | None = None,
) -> Resolved:
    """Lay defaults, files, variables and flags over one another, then resolve interpolations.

    Args:
        files: Config files in order, each after what it extends.
        flags: Keys that the command line sets, in order.
        environ: Environment variables; those of this process where not given.
        defaults: Lowest layer.
        subcommand: Subcommand that runs; a top-level block of its name is laid over the rest of its file.
        subcommands: All subcommands; the blocks of others are dropped.
        class_sections: Top-level keys that hold one class each. A section whose class is fixed in Python, as in
            ``LightningCLI(Net)``, holds its arguments directly and must not be among them.
        default_classes: Tables from an entry's name to its class, by the top-level key that holds named entries.
        sections: Top-level keys whose value may be the name of a file that holds the section.
        problems: Takes all mistakes, after which the config is what is left; they are raised where it is None.

    Raises:
        ConfigError: If anything in them is wrong; it shows the places.
    """
    found = Problems() if problems is None else problems
    environ = os.environ if environ is None else environ
    named = {"callbacks": {}, "logger": {}} if default_classes is None else default_classes
    layering = Layering(class_sections, named, WORDS, found)
    tree = Table({}, Origin("default"))
    ranks: dict[Origin, int] = {}

    def lay(layers: Iterable[Table], *, together: bool = False) -> None:
        nonlocal tree
        lowest = max(ranks.values(), default=0) + 1
        for number, layer in enumerate(layers):
            rank = lowest if together else lowest + number
            parts = opened(layer, sections=sections, subcommand=subcommand, subcommands=subcommands, problems=found)
            for part in parts:
                laid = layering.lay(tree, part)
                assert isinstance(laid, Table)
                tree = laid
                ranks.update((node.origin, rank) for key in _RANKED for node in _below(part, key))

    lowest = graft(defaults or {}, Origin("default"))
    assert isinstance(lowest, Table)
    lay([lowest])
    seen: set[Path] = set()
    said_files = [Path(file) for file in files]
    for file in said_files:
        lay(layers_of(file, seen=seen, problems=found))
    lay(variable_layers(environ, tree, found), together=True)
    lay(flag_layers(flags, found), together=True)

    if "extends" in tree.entries:
        found.add(mistake("extends: stands at the top of a config file only", tree.entries["extends"].origin))
        tree = replace(tree, entries={key: node for key, node in tree.entries.items() if key != "extends"})
    result = _with_classes(interpolate(tree, environ, found), layering)
    wrong = check_entries(result.tree, layering, found) | check_class_names(result.tree, found)
    if problems is None:
        found.raise_any()
    told = ToldSecrets(result.tree, result.references, result.texts)
    secrets = {
        **secrets_of_variables(environ, public_text(result.tree, said_files)),
        **told.secrets,
        **dict(result.secrets),
    }
    unreadable = {
        path for path, node in walk(result.tree) if isinstance(node, Leaf) and isinstance(node.value, Unreadable)
    }
    return Resolved(
        result.tree,
        layering,
        {**result.references, **told.references},
        tuple(sorted(secrets.items(), key=lambda pair: (-len(pair[0]), pair))),
        subcommand,
        unresolved=result.unresolved | unreadable | wrong,
        is_incomplete=found.is_incomplete,
        texts=result.texts,
        ranks=ranks,
    )


def _below(layer: Table, section: str) -> Iterator[Node]:
    node = layer.entries.get(section)
    return iter(()) if node is None else (child for _, child in walk(node))


def _with_classes(found: Interpolated, layering: Layering) -> Interpolated:
    """Write class names in full where an interpolation gave them: ``model: ${oc.env:NET}``."""
    tree, references = found.tree, dict(found.references)
    paths = [(section,) for section in layering.class_sections]
    for section in layering.default_classes:
        named = tree.entries.get(section)
        paths += [(section, name) for name in named.entries] if isinstance(named, Table) else []  # type: ignore[misc]
    for path in paths:
        node = _at(tree, path)
        if path in references and isinstance(node, Leaf) and isinstance(node.value, str):
            references[(*path, "class_path")] = references.pop(path)
    laid = layering.lay(Table({}, tree.origin), tree)
    assert isinstance(laid, Table)
    return replace(found, tree=laid, references=references)


def _at(tree: Node, path: KeyPath) -> Node | None:
    node: Node | None = tree
    for part in path:
        node = None if node is None else _child(node, part)
    return node


def _holds(config: Any, path: KeyPath) -> bool:
    for key in path:
        at_index = isinstance(config, (list, tuple)) and isinstance(key, int) and key < len(config)
        if not at_index and not (isinstance(config, Mapping) and key in config):
            return False
        config = config[key]
    return True


def _child(node: Node, key: Any) -> Node | None:
    """Find a value by its key as errors spell it: an index may be text, and ``init_args`` or ``+`` may be left out."""
    if isinstance(node, Items):
        index = int(key) if str(key).isdigit() else len(node.items)
        return node.items[index] if index < len(node.items) else None
    if not isinstance(node, Table):
        return None
    for spelled in (key, str(key), f"{key}+"):
        if spelled in node.entries:
            return node.entries[spelled]
    inner = node.entries.get("init_args")
    return _child(inner, key) if isinstance(inner, Table) and key != "init_args" else None

"""A config after all layers.

Its values with their places, what LightningCLI takes, and what may be saved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from lightkit.config.interpolation import escape
from lightkit.config.origins import KeyPath, Origin, Problems
from lightkit.config.schema import accepts_null, load_schema, read_value
from lightkit.config.secrets import Mask, mask
from lightkit.config.sections import CLASS_SECTIONS, NAMED_CLASSES
from lightkit.config.tree import (
    MappingNode,
    Node,
    descend,
    entries_of,
    find,
    rebuild,
    to_plain,
    walk,
)
from lightkit.config.yaml_reader import read_scalar
from lightkit.errors import ConfigError, LightkitError

DEFAULT_ROOT = "runs"
"""Folder of all runs where `run.root` is not set."""
_MAX_ERRORS = 20  # a round of jsonargparse may take half a second
_Result = TypeVar("_Result")
_Settings = TypeVar("_Settings")


@dataclass(frozen=True)
class Resolved:
    """A config after all layers and interpolations.

    Args:
        tree: The values with their origins.
        class_sections: Top-level keys that hold one class each.
        references: What stands in saved configs for a value that came from the environment, also
            through other keys, or whose key or form says that it is secret, by its path.
        secrets: What the environment gave and what is secret, each with what stands for it, longest
            first.
        subcommand: Subcommand that it is for.
        unresolved: Paths of the values that have been reported already: interpolations, text that
            cannot be read, and entries that name no class.
        is_incomplete: Whether a layer could not be read, so that what seems missing may be there.
        removed: Paths of what has been left out because it was wrong.
        texts: Text of every interpolation, by its path.
        layers: The layers as they were read, lowest first, each in its parts.
    """

    tree: MappingNode
    class_sections: Collection[str] = CLASS_SECTIONS
    references: dict[KeyPath, str] = field(default_factory=dict)
    secrets: tuple[tuple[str, str], ...] = ()
    subcommand: str | None = None
    unresolved: frozenset[KeyPath] = frozenset()
    is_incomplete: bool = False
    removed: frozenset[KeyPath] = frozenset()
    texts: Mapping[KeyPath, str] = field(default_factory=dict, repr=False, compare=False)
    layers: Sequence[Sequence[MappingNode]] = field(default=(), repr=False, compare=False)

    @property
    def values(self) -> dict[str, Any]:
        """The config as plain dicts, lists and scalars, a fresh copy."""
        values: dict[str, Any] = to_plain(self.tree)
        return values

    def value_of(self, key: str) -> Any:
        """Return the plain value of a top-level key; None where it is missing."""
        return to_plain(self.tree.entries.get(key))

    def class_named(self, section: str) -> str | None:
        """Return the class that a section names, as the config has it; None where it names none."""
        return find_named_class(self.value_of(section))

    def section(self, name: str) -> dict[str, Any]:
        """Return a section as plain values.

        An empty one where it is missing, or an error is in its place.
        """
        value = self.value_of(name)
        return value if isinstance(value, dict) else {}

    def read_section(self, name: str, settings: type[_Settings]) -> _Settings:
        """Build the settings of a section whose keys and values have been checked.

        The text of a flag becomes a value of the key's type. A null where the type has none leaves
        the default.

        Args:
            name: Name of the section.
            settings: Class of the settings, from whose signature the schema has the section.
        """
        values: dict[str, Any] = {}
        given = self.section(name)
        for key, argument in load_schema().sections[name].arguments.items():
            if key in given and (given[key] is not None or accepts_null(argument.schema)):
                values[key] = read_value(argument.schema, given[key])
        return settings(**values)

    @property
    def run_root(self) -> Path:
        """Folder of all runs."""
        return Path(root_in(self.section("run")))

    @property
    def origins(self) -> dict[KeyPath, Origin]:
        """The place that set each value; for a mapping, the lowest that did."""
        return {path: node.origin for path, node in walk(self.tree) if path}

    def origin_of(self, key: str | KeyPath) -> Origin | None:
        """Return the place that set a value, or the nearest above it that is known.

        Args:
            key: Path, or dotted key as LightningCLI's errors write it
                (``trainer.callbacks.0.init_args.patience``). In a dotted key, an index into
                ``trainer.callbacks`` counts the named entries too.
        """
        taken, node, _ = descend(
            self.tree, self.lightkit_path(key) if isinstance(key, str) else key
        )
        return node.origin if taken else None

    def rank_of(self, origin: Origin) -> int:
        """Return the number of the layer from which a value comes.

        A higher layer has a higher number, from 1 on.
        """
        return self._ranks.get(origin, 0)

    @cached_property
    def _ranks(self) -> dict[Origin, int]:
        numbered = enumerate(self.layers, 1)
        return {
            node.origin: rank
            for rank, parts in numbered
            for part in parts
            for _, node in walk(part)
        }

    # -- named entries, and the lists under ``trainer`` that LightningCLI takes in their place
    # -------------------------

    @property
    def lightning_values(self) -> dict[str, Any]:
        """The config as LightningCLI takes it.

        Named entries are lists under ``trainer``, before the user's own.
        """
        values = self._list_entries()[0]
        values.pop("sweep", None)  # of a search, whose trials it describes
        return values

    def entries_of(self, section: str) -> dict[KeyPath, Any]:
        """Return the callbacks or loggers that count, the user's own last, by their paths here."""
        entries = self.section(section)
        named = {(section, name): entries[name] for name in self._list_names(section)}
        return named | _take_own(self.section("trainer"), section)

    def split_key(self, key: str) -> KeyPath:
        """Split a dotted key, and leave out the subcommand before it."""
        parts: list[Any] = [
            int(part) if part.isdigit() else part for part in re.split(r"[.\[\]]+", key) if part
        ]
        if parts and parts[0] == self.subcommand and self.subcommand not in self.tree.entries:
            parts = parts[1:]
        return tuple(parts)

    def lightkit_path(self, key: str) -> KeyPath:
        """Return the path that the user knows for a dotted key of LightningCLI's."""
        path = self.split_key(key)
        moved = self._list_entries()[1]
        for length in range(len(path), 0, -1):
            if path[:length] in moved:
                return (*moved[path[:length]], *path[length:])
        return path

    def name_entries(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Put the named entries of a config that LightningCLI dumped back under their names.

        Entries that a layer removed stay ``null``, as `callbacks: {checkpoint: null}`, which a
        replay keeps.
        """
        result = dict(config)
        for section in NAMED_CLASSES:
            entries = self.value_of(section)
            if not isinstance(entries, dict):
                continue
            trainer = result["trainer"] = dict(result.get("trainer") or {})
            names = self._list_names(section)
            dumped = trainer.get(section)
            items = dumped if isinstance(dumped, list) else [dumped]

            # They come first, which the last parts of their class names confirm.
            named = items[: len(names)]
            if [*map(_class_name, map(entries.get, names))] != [*map(_class_name, named)]:
                continue
            found = dict(zip(names, named, strict=True))
            result[section] = {name: found.get(name) for name in entries}
            if names:
                trainer[section] = items[len(names) :] or None
        return result

    def _list_entries(self) -> tuple[dict[str, Any], dict[KeyPath, KeyPath]]:
        """Turn named entries into the lists under ``trainer``.

        The entries in their order, then the user's own list.

        ``trainer.logger: false`` leaves only the entries of higher layers.

        Returns:
            The values; and for each that stands elsewhere in this config, its path here:
            ``("trainer", "callbacks", 0)`` is ``("callbacks", "early_stopping")``. What lies below
            moves along.
        """
        # An empty section sets nothing; jsonargparse would take its null for the section.
        sections = load_schema().sections
        values = {
            key: value
            for key, value in self.values.items()
            if value is not None or key not in sections
        }
        paths: dict[KeyPath, KeyPath] = {}
        for section in NAMED_CLASSES:
            entries = values.pop(section, None) or {}
            names = self._list_names(section)
            if not names:
                continue
            trainer = values.get("trainer")
            trainer = values["trainer"] = trainer if isinstance(trainer, dict) else {}
            listed: dict[KeyPath, Any] = {(section, name): entries[name] for name in names}
            listed |= _take_own(trainer, section)
            trainer[section] = [*listed.values()]
            paths |= {("trainer", section, index): place for index, place in enumerate(listed)}
        return values, paths

    def _list_names(self, section: str) -> list[str]:
        """List the entries that count: those not null, and above a ``false`` under ``trainer``."""

        def rank_of(node: Node) -> int:
            return max(self.rank_of(inner.origin) for _, inner in walk(node))

        given = entries_of(self.tree.entries.get(section))
        own = find(self.tree, ("trainer", section))
        names = [name for name, entry in given.items() if to_plain(entry) is not None]
        if own is None or read_scalar(to_plain(own)) is not False:
            return names
        return [name for name in names if rank_of(given[name]) > rank_of(own)]

    # -- what may be saved, printed and logged -----------------------------------------------------

    def with_references(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Make a config fit to be saved, printed or logged.

        What came from the environment is a reference again.

        A secret that a flag or a file gave is ``***``.

        Args:
            config: Values in lightkit's form, such as `values` or what `name_entries` gives. Text
                that only looks like an interpolation is escaped, so that reading the saved config
                gives it back.
        """
        # What `key+` appended stands elsewhere in what LightningCLI dumps; it is known by its value
        # then.
        is_moved = not all(_holds(config, path) for path in self.references)
        everywhere = dict(self.secrets) if is_moved else {}

        def visit(value: Any, path: KeyPath) -> Any:
            if path in self.references:
                return self.references[path]
            if isinstance(value, Mapping):
                return {key: visit(child, (*path, key)) for key, child in value.items()}
            if isinstance(value, (list, tuple)):
                return [visit(child, (*path, index)) for index, child in enumerate(value)]
            return everywhere.get(value) or escape(value) if isinstance(value, str) else value

        return {key: visit(child, (key,)) for key, child in config.items()}

    @cached_property
    def masked(self) -> Callable[[_Result], _Result]:
        """The function that puts references in the place of secrets.

        It takes a text, or plain containers of texts, for logs.
        """
        return partial(mask, known=Mask(self.secrets) if self.secrets else None)


def root_in(section: Mapping[str, Any]) -> str:
    """Return the folder of all runs that a `run` section names, or the default."""
    return str(section.get("root") or DEFAULT_ROOT)


def _holds(config: Any, path: KeyPath) -> bool:
    """Return whether plain values have one at a path."""
    value = config
    for part in path:
        if isinstance(value, (list, tuple)):
            value = dict(enumerate(value))
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True


def _take_own(trainer: dict[str, Any], section: str) -> dict[KeyPath, Any]:
    """Take the user's own callbacks or loggers out of the trainer's section, by their paths."""
    source = section if section in trainer else f"{section}+"
    own = trainer.pop(source, None)
    if not own or isinstance(read_scalar(own), bool):
        return {}  # the named ones replace Lightning's default logger
    if not isinstance(own, list):
        return {("trainer", source): own}
    return {("trainer", source, index): value for index, value in enumerate(own)}


def find_named_class(value: Any) -> str | None:
    """Return the class that a plain value names, by a word or its ``class_path``.

    None where it names none.
    """
    named = value.get("class_path") if isinstance(value, Mapping) else value
    return named if isinstance(named, str) else None


def _class_name(entry: Any) -> str:
    return str(find_named_class(entry)).rpartition(".")[2]


# -- a config without its errors, so that a check which stops at the first one finds the next
# ----------------------


class FollowUpError(ConfigError):
    """An error only because something that was wrong has been left out; it is not reported."""


def collect_errors(
    resolved: Resolved, check: Callable[[Resolved], _Result], problems: Problems
) -> tuple[_Result | None, Resolved]:
    """Run a check until it finds nothing more, each time without the places of the last error.

    Args:
        resolved: The config.
        check: Raises at the first error, with its places.
        problems: Collects the errors.

    Returns:
        What the check gives for the config without its errors, None where it cannot go on; and that
        config.
    """
    for _ in range(_MAX_ERRORS):
        try:
            return check(resolved), resolved
        except LightkitError as error:
            if not isinstance(error, FollowUpError):
                problems.add(error)
            smaller = drop_origins(
                resolved, [place for place in error.places if isinstance(place, Origin)]
            )
            if smaller is resolved:
                break
            resolved = smaller
    else:
        problems.add(ConfigError("there may be more mistakes, which show once these are corrected"))
    return None, resolved


def drop_origins(resolved: Resolved, places: Collection[Origin]) -> Resolved:
    """Leave out the values that were set at ``places``, or whose keys stand there; defaults stay.

    Returns:
        ``resolved`` itself where nothing of it is from there.
    """
    meant = {place for place in places if place.kind != "default"}
    there = {
        path
        for path, node in walk(resolved.tree)
        if path and ({node.origin, node.origin.key} & meant)
    }
    # The innermost: a flag also opens all mappings on its way.
    above = {path[:length] for path in there for length in range(len(path))}
    return drop_paths(resolved, there - above)


def drop_paths(resolved: Resolved, paths: Iterable[KeyPath]) -> Resolved:
    """Leave out the values at ``paths``; with the name of a class its arguments go too."""
    dropped = {path[:-1] if path[-1:] == ("class_path",) else path for path in paths} - {()}
    if not dropped:
        return resolved
    tree = rebuild(resolved.tree, lambda path, node: None if path in dropped else node)
    assert isinstance(tree, MappingNode)
    written = {original_path(path, resolved.removed) for path in dropped}
    return replace(resolved, tree=tree, removed=resolved.removed | written)


def original_path(path: KeyPath, removed: Collection[KeyPath]) -> KeyPath:
    """Return the path that a value had before others were left out of the lists around it.

    Args:
        path: Its path now.
        removed: What has been left out, by its original paths.
    """
    result: KeyPath = ()
    for part in path:
        index = part
        if isinstance(part, int):
            before = [
                other[-1]
                for other in removed
                if other[:-1] == result and isinstance(other[-1], int)
            ]
            for position in sorted(before):
                index += position <= index
        result = (*result, index)
    return result

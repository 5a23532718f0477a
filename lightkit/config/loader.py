"""Load a config from its layers: files with what they extend, environment variables and flags."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from lightkit.config.interpolation import Interpolated, escaped, interpolate
from lightkit.config.merge import MergeRules
from lightkit.config.named_entries import (
    LightningConfig,
    check_class_names,
    check_entries,
    lightning_config,
    named_config,
)
from lightkit.config.origins import NESTED_FILES, KeyPath, Origin, mistake, near, near_files, shown_path
from lightkit.config.overrides import Flag, flag_layers, nest, variable_layers
from lightkit.config.problems import Problems, Unreadable
from lightkit.config.secrets import KeyedSecrets, Mask, environment_secrets, public_text
from lightkit.config.tree import Items, Leaf, Node, Table, graft, plain, walk
from lightkit.config.yaml_reader import MAX_DEPTH, read_file
from lightkit.errors import ConfigError, LightkitError


def layers_of(
    file: Path, *, seen: set[Path], chain: Sequence[Path] = (), problems: Problems | None = None
) -> list[Table]:
    """Read ``file`` and all that it extends, lowest layer first, without their ``extends`` keys.

    Args:
        file: File to read.
        seen: Resolved paths that are layers already; one that two files extend is laid once, at its lowest place.
            The files read are added.
        chain: Files that led here by extending one another.
        problems: Takes the mistakes after which other layers can still be read; they are raised where it is None.

    Raises:
        ConfigError: If a file is missing or wrong, or extends itself through others.
    """
    found = Problems() if problems is None else problems
    layers = _layers_of(file, seen, chain, found)
    if problems is None:
        found.raise_any()
    return layers


def _layers_of(file: Path, seen: set[Path], chain: Sequence[Path], problems: Problems) -> list[Table]:
    if len(chain) > MAX_DEPTH:
        raise ConfigError(f"{shown_path(file)}: more than {MAX_DEPTH} files extend one another")
    seen.add(file.resolve())
    try:
        tree = read_file(file, problems)
    except ConfigError as error:
        problems.add(error)
        problems.is_incomplete = True
        problems.read(file)
        return []
    layers: list[Table] = []
    names: list[tuple[str, Origin]] = []
    with problems.noted(leaves_gap=True):
        names = _extended_names(tree, file)
    for name, origin in names:
        with problems.noted(leaves_gap=True):
            base = _extended_file(name, origin, (*chain, file))
            if base.resolve() not in seen:
                layers += _layers_of(base, seen, (*chain, file), problems)
    problems.read(file)
    return [*layers, replace(tree, entries={key: node for key, node in tree.entries.items() if key != "extends"})]


def _extended_names(tree: Table, file: Path) -> list[tuple[str, Origin]]:
    node = tree.entries.get("extends")
    if node is None or (isinstance(node, Leaf) and node.value is None):
        return []
    names: list[tuple[str, Origin]] = []
    for item in node.items if isinstance(node, Items) else (node,):
        if not isinstance(item, Leaf) or not isinstance(item.value, str):
            raise mistake(f"{shown_path(file)}: extends takes file names, such as [base, logger/mlflow]", item.origin)
        names.append((item.value, item.origin))
    return names


def _extended_file(name: str, origin: Origin, chain: Sequence[Path]) -> Path:
    folder = chain[-1].parent
    said = " extends ".join(shown_path(link) for link in chain)
    for file in (folder / name, folder / f"{name}.yaml"):
        if file.is_file():
            if file.resolve() in {link.resolve() for link in chain}:
                raise mistake(f"{said} extends {shown_path(file)}: a file cannot extend itself", origin)
            return file
    wanted = folder / (name if name.endswith(NESTED_FILES) else f"{name}.yaml")
    says = f"{said} extends {name!r}, but {shown_path(wanted)} does not exist"
    found = [*folder.glob("*.yaml"), *folder.glob("*/*.yaml")]  # not all below: it may hold data and environments
    layers = sorted(file.relative_to(folder).with_suffix("").as_posix() for file in found)
    listed = f"; files beside it: {', '.join(layers[:10])}" if layers else ""
    raise mistake(f"{says}{near(name.removesuffix('.yaml'), layers) or listed}", origin)


def opened(
    layer: Table,
    *,
    sections: Collection[str],
    subcommand: str | None,
    subcommands: Collection[str],
    problems: Problems,
) -> list[Table]:
    """Give the layers that a layer stands for: sections that name files are read, and the subcommand's block lifted.

    ``fit: {trainer: ...}`` is laid over the rest when ``fit`` runs; the blocks of other subcommands are dropped. A
    section that names a file which is missing or wrong, and a block that is no mapping, are told as problems.
    """
    block = _section_layers(layer.entries[subcommand], problems) if subcommand in layer.entries else []
    below: list[Table] = []
    entries: dict[Any, Node] = {}
    for key, node in layer.entries.items():
        if key == subcommand or key in subcommands:
            continue
        parts = _section_layers(node, problems) if key in sections else [node]
        below += [Table({key: part}, part.origin) for part in parts[:-1]]
        if parts:
            entries[key] = parts[-1]
    layers = [*below, *_with_dotted_keys(replace(layer, entries=entries), problems)]
    for part in block:
        if isinstance(part, Table):
            layers += opened(part, sections=sections, subcommand=None, subcommands=(), problems=problems)
        elif plain(part) is not None:
            problems.add(mistake(f"{subcommand}: expected a mapping of what {subcommand} sets", part.origin))
    return layers


def _with_dotted_keys(layer: Table, problems: Problems) -> list[Table]:
    """Lay ``trainer.max_epochs: 3``, a key that reaches into a section as LightningCLI allows, over the rest."""
    dotted = {key: key.split(".") for key in layer.entries if isinstance(key, str) and all(key.split("."))}
    dotted = {key: parts for key, parts in dotted.items() if len(parts) > 1}
    layers = [replace(layer, entries={key: node for key, node in layer.entries.items() if key not in dotted})]
    for key, parts in dotted.items():
        with problems.noted():
            layers.append(nest(parts, layer.entries[key], layer.entries[key].origin))
    return layers


def _section_layers(node: Node, problems: Problems) -> Sequence[Node]:
    """Read the file that a section names, beside the file that says it, else in the working directory."""
    if not isinstance(node, Leaf) or not isinstance(node.value, str) or not node.value.endswith(NESTED_FILES):
        return [node]
    folders = [Path()] if node.origin.file is None else [node.origin.file.parent, Path()]
    for folder in folders:
        if (folder / node.value).is_file():
            return layers_of(folder / node.value, seen=set(), problems=problems)
    wanted = folders[0] / node.value
    problems.add(mistake(f"{shown_path(wanted)}: no such file{near_files(wanted)}", node.origin))
    problems.is_incomplete = True
    return []


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
    layering: MergeRules
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
    layering = MergeRules(class_sections, named, WORDS, found)
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
    told = KeyedSecrets(result.tree, result.references, result.texts)
    secrets = {
        **environment_secrets(environ, public_text(result.tree, said_files)),
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


def _with_classes(found: Interpolated, layering: MergeRules) -> Interpolated:
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


_Result = TypeVar("_Result")
_MOST_MISTAKES = 100  # a config that has more is not the one that was meant
_NUM_SURE = 20  # rounds that are taken however long they last; one of jsonargparse's may take half a second
_LONGEST_S = 5.0


class Consequence(ConfigError):
    """A mistake only because something that was wrong has been left out; it is not told."""


def collect_errors(
    resolved: Resolved, check: Callable[[Resolved], _Result], problems: Problems
) -> tuple[_Result | None, Resolved]:
    """Run a check until it finds nothing more, each time without the places of the mistake that it found.

    Args:
        resolved: The config.
        check: Raises at the first mistake, with its places.
        problems: Takes the mistakes.

    Returns:
        What the check gives for the config without its mistakes, None where it cannot go on; and that config.
    """
    begin = monotonic()
    for number in range(_MOST_MISTAKES):
        if number >= _NUM_SURE and monotonic() - begin > _LONGEST_S:
            problems.add(ConfigError("there may be more mistakes, which show once these are corrected"))
            break
        try:
            return check(resolved), resolved
        except LightkitError as error:
            if not isinstance(error, Consequence):
                problems.add(error)
            smaller = drop_origins(resolved, [place for place in error.places if isinstance(place, Origin)])
            if smaller is resolved:
                break
            resolved = smaller
    return None, resolved


def drop_origins(resolved: Resolved, places: Collection[Origin]) -> Resolved:
    """Leave out the values that were set at ``places``, or whose keys stand there; defaults stay.

    Returns:
        ``resolved`` itself where nothing of it is from there.
    """
    meant = {place for place in places if place.kind != "default"}
    return drop_paths(resolved, set(_set_at(resolved.tree, meant, ()))) if meant else resolved


def drop_paths(resolved: Resolved, paths: Collection[KeyPath]) -> Resolved:
    """Leave out the values at ``paths``; with the name of a class all that is said of it goes."""
    if not paths:
        return resolved
    paths = {path[:-1] if path[-1] == "class_path" else path for path in paths}
    tree = _pruned(resolved.tree, paths, ())
    assert isinstance(tree, Table)
    written = {original_path(path, resolved.removed) for path in paths}
    return replace(resolved, tree=tree, removed=resolved.removed | written)


def original_path(path: KeyPath, removed: Collection[KeyPath]) -> KeyPath:
    """Give the path that a value had before others were left out of the lists around it.

    Args:
        path: Its path now.
        removed: What has been left out, as it was written.
    """
    result: KeyPath = ()
    for part in path:
        index = part
        if isinstance(part, int):
            before = [other[-1] for other in removed if other[:-1] == result and isinstance(other[-1], int)]
            for position in sorted(before):
                index += position <= index
        result = (*result, index)
    return result


def _set_at(node: Node, places: Collection[Origin], path: KeyPath) -> list[KeyPath]:
    """List the values from these places: the innermost, because a flag also opens all mappings on its way."""
    children: list[KeyPath] = []
    if isinstance(node, Table):
        children = [found for key, child in node.entries.items() for found in _set_at(child, places, (*path, key))]
    elif isinstance(node, Items):
        children = [found for i, child in enumerate(node.items) for found in _set_at(child, places, (*path, i))]
    is_here = bool(path) and (node.origin in places or node.origin.key in places)
    return children or ([path] if is_here else [])


def _pruned(node: Node, paths: Collection[KeyPath], path: KeyPath) -> Node:
    if isinstance(node, Table):
        kept = {key: child for key, child in node.entries.items() if (*path, key) not in paths}
        return replace(node, entries={key: _pruned(child, paths, (*path, key)) for key, child in kept.items()})
    if isinstance(node, Items):
        kept_items = [(i, child) for i, child in enumerate(node.items) if (*path, i) not in paths]
        return replace(node, items=tuple(_pruned(child, paths, (*path, i)) for i, child in kept_items))
    return node

"""The layers of a config: files with what they extend, variables, and flags, each as a tree."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightkit.config.origins import NESTED_FILES, Origin, mistake, near, near_files, shown_path
from lightkit.config.reading import MAX_DEPTH, read_file
from lightkit.config.tree import Items, Leaf, Node, Table, plain
from lightkit.config.values import read_value
from lightkit.errors import ConfigError

__all__ = ["PREFIX", "RESERVED_VARIABLES", "Flag", "flag_layer", "layers_of", "opened", "variable_layers"]

PREFIX = "LIGHTKIT_"
RESERVED_VARIABLES = ("LIGHTKIT_DATA",)
"""Variables that are no layer, although their names would do. ``LIGHTKIT_DATA`` is the folder of `Flowers`' photos."""


@dataclass(frozen=True)
class Flag:
    """A key that the command line sets.

    Args:
        key: Dotted key.
        value: Its value as typed.
        text: The flag as typed, for its origin.
        append: Whether it was ``key+=value``.
    """

    key: str
    value: str
    text: str
    append: bool = False


def layers_of(file: Path, *, seen: set[Path], chain: Sequence[Path] = ()) -> list[Table]:
    """Read ``file`` and all that it extends, lowest layer first, without their ``extends`` keys.

    Args:
        file: File to read.
        seen: Resolved paths that are layers already; one that two files extend is laid once, at its lowest place.
            The files read are added.
        chain: Files that led here by extending one another.

    Raises:
        ConfigError: If a file is missing or wrong, or extends itself through others.
    """
    tree = read_file(file)
    seen.add(file.resolve())
    layers: list[Table] = []
    for name, origin in _extended_names(tree, file):
        base = _extended_file(name, origin, (*chain, file))
        if base.resolve() not in seen:
            layers += layers_of(base, seen=seen, chain=(*chain, file))
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
    layer: Table, *, sections: Collection[str], subcommand: str | None, subcommands: Collection[str]
) -> list[Table]:
    """Give the layers that a layer stands for: sections that name files are read, and the subcommand's block lifted.

    ``fit: {trainer: ...}`` is laid over the rest when ``fit`` runs; the blocks of other subcommands are dropped.

    Raises:
        ConfigError: If a section names a file that is missing or wrong, or the block is no mapping.
    """
    block = _section_layers(layer.entries[subcommand]) if subcommand in layer.entries else []
    below: list[Table] = []
    entries: dict[Any, Node] = {}
    for key, node in layer.entries.items():
        if key == subcommand or key in subcommands:
            continue
        parts = _section_layers(node) if key in sections else [node]
        below += [Table({key: part}, part.origin) for part in parts[:-1]]
        entries[key] = parts[-1]
    layers = [*below, replace(layer, entries=entries)]
    for part in block:
        if isinstance(part, Table):
            layers += opened(part, sections=sections, subcommand=None, subcommands=())
        elif plain(part) is not None:
            raise mistake(f"{subcommand}: expected a mapping of what {subcommand} sets", part.origin)
    return layers


def _section_layers(node: Node) -> Sequence[Node]:
    """Read the file that a section names, beside the file that says it, else in the working directory."""
    if not isinstance(node, Leaf) or not isinstance(node.value, str) or not node.value.endswith(NESTED_FILES):
        return [node]
    folders = [Path()] if node.origin.file is None else [node.origin.file.parent, Path()]
    for folder in folders:
        if (folder / node.value).is_file():
            return layers_of(folder / node.value, seen=set())
    wanted = folders[0] / node.value
    raise mistake(f"{shown_path(wanted)}: no such file{near_files(wanted)}", node.origin)


def variable_layers(environ: Mapping[str, str], lower: Table) -> list[Table]:
    """Read the variables ``LIGHTKIT_TRAINER__MAX_EPOCHS=3`` as layers, those of sections before those inside them.

    Args:
        environ: Variables by name. `RESERVED_VARIABLES` are passed over.
        lower: What the layers below set: a key there that differs in case only, such as ``T_max``, is the one meant.

    Raises:
        ConfigError: If a name has an empty part.
    """
    layers = []
    names = [name for name in environ if name.startswith(PREFIX) and name not in RESERVED_VARIABLES]
    for name in sorted(names, key=lambda name: (name.count("__"), name)):
        parts = name[len(PREFIX) :].lower().split("__")
        if not all(parts):
            raise ConfigError(f"{name}: expected keys joined by two underscores, such as {PREFIX}TRAINER__MAX_EPOCHS")
        origin = Origin("variable", name)
        layers.append(_nested(_spelled_as_in(lower, parts), read_value(environ[name], origin), origin))
    return layers


def _spelled_as_in(lower: Node, parts: list[str]) -> list[str]:
    keys: list[str] = []
    node: Node | None = lower
    for part in parts:
        entries = node.entries if isinstance(node, Table) else {}
        key = next((key for key in entries if isinstance(key, str) and key.lower() == part), part)
        node = entries.get(key)
        keys.append(key)
    return keys


def flag_layer(flag: Flag) -> Table:
    """Give the layer of one flag.

    Raises:
        ConfigError: If the key has an empty part.
    """
    origin = Origin("flag", flag.text)
    keys = flag.key.split(".")
    if not all(keys):
        raise ConfigError(f"{flag.text}: expected keys joined by single dots, such as trainer.max_epochs")
    keys[-1] += "+" if flag.append else ""
    return _nested(keys, read_value(flag.value, origin), origin)


def _nested(keys: Iterable[str], value: Node, origin: Origin) -> Table:
    keys = list(keys)
    if len(keys) > MAX_DEPTH:
        raise ConfigError(f"{str(origin)[:80]}...: nested more than {MAX_DEPTH} levels deep")
    node = value
    for key in reversed(keys):
        node = Table({key: node}, origin, partial=True)
    assert isinstance(node, Table)
    return node

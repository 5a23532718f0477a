"""The layers of a config: files with what they extend, variables, and flags, each as a tree."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightkit.config.credentials import shown_line
from lightkit.config.origins import NESTED_FILES, Origin, cut, mistake, near, near_files, shown_path
from lightkit.config.problems import Problems
from lightkit.config.reading import MAX_DEPTH, TOO_LARGE, read_file
from lightkit.config.tree import Items, Leaf, Node, Table, plain
from lightkit.config.values import read_value
from lightkit.errors import ConfigError

__all__ = ["PREFIX", "RESERVED_VARIABLES", "Flag", "flag_layers", "layers_of", "opened", "variable_layers"]

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
            layers.append(_nested(parts, layer.entries[key], layer.entries[key].origin))
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


def variable_layers(environ: Mapping[str, str], lower: Table, problems: Problems) -> list[Table]:
    """Read the variables ``LIGHTKIT_TRAINER__MAX_EPOCHS=3`` as layers, those of sections before those inside them.

    Args:
        environ: Variables by name. `RESERVED_VARIABLES` are passed over.
        lower: What the layers below set: a key there that differs in case only, such as ``T_max``, is the one meant.
        problems: Takes the mistakes: a name with an empty part, a value that cannot be read.
    """
    layers = []
    names = [name for name in environ if name.startswith(PREFIX) and name not in RESERVED_VARIABLES]
    for name in sorted(names, key=lambda name: (name.count("__"), name)):
        parts = name[len(PREFIX) :].lower().split("__")
        origin = Origin("variable", name)
        with problems.noted():
            if not all(parts):
                says = f"{cut(name)}: expected keys joined by two underscores, such as {PREFIX}TRAINER__MAX_EPOCHS"
                raise ConfigError(says)
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


def flag_layers(flags: Iterable[Flag], problems: Problems) -> list[Table]:
    """Give the layer of each flag; a key with an empty part and a value that cannot be read are problems."""
    layers = []
    for flag in flags:
        with problems.noted():
            layers.append(_flag_layer(flag))
    return layers


def _flag_layer(flag: Flag) -> Table:
    origin = Origin("flag", shown_line(flag.text))
    keys = flag.key.split(".")
    if not all(keys):
        raise ConfigError(f"{cut(flag.text)}: expected keys joined by single dots, such as trainer.max_epochs")
    keys[-1] += "+" if flag.append else ""
    return _nested(keys, read_value(flag.value, origin), origin)


def _nested(keys: Iterable[str], value: Node, origin: Origin) -> Table:
    keys = list(keys)
    if len(keys) > MAX_DEPTH:
        raise ConfigError(f"{str(origin)[:80]}...: {TOO_LARGE}")
    node = value
    for key in reversed(keys):
        node = Table({key: node}, origin, partial=True)
    assert isinstance(node, Table)
    return node

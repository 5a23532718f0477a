"""Load a config from its layers: files with what they extend, environment variables and flags."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lightkit.config.accelerator.translation import translate
from lightkit.config.bounds import is_int
from lightkit.config.interpolation import has_interpolation, interpolate
from lightkit.config.merge import MergeRules
from lightkit.config.origins import (
    NESTED_FILES,
    KeyPath,
    Origin,
    Problems,
    UnreadableText,
    dotted,
    error_at,
    near_files,
    shortened,
    shown_path,
)
from lightkit.config.overrides import Flag, flag_layers, match_case, nest, variable_layers
from lightkit.config.packaged import PREFIX, find_config, suggest_packaged
from lightkit.config.resolved import Resolved
from lightkit.config.secret_values import find_secrets
from lightkit.config.sections import CLASS_SECTIONS, FILE_SECTIONS, NAMED_CLASSES
from lightkit.config.tree import (
    Items,
    Leaf,
    MappingNode,
    Node,
    find,
    rebuild,
    text_of,
    to_plain,
    walk,
)
from lightkit.config.yaml_reader import MAX_DEPTH, read_file
from lightkit.errors import ConfigError, near

_AS_WRITTEN = tuple(("launch", key) for key in ("nodes", "hosts", "rendezvous", "slurm"))
"""Keys whose values are text for other programs."""
_LONGEST_CLASS_NAME = 500
_MOST_PACKAGES = 50


# -- layers ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layers:
    """The layers of a config as they were read, lowest first, each in its parts.

    The parts of a file, lowest first: files that its sections name, itself, its dotted keys, and
    the block of the subcommand.

    Args:
        files: Those of files, each with the file.
        variables: Those of environment variables.
        flags: Those of the command line.
    """

    files: tuple[tuple[Path, tuple[MappingNode, ...]], ...] = ()
    variables: tuple[MappingNode, ...] = ()
    flags: tuple[MappingNode, ...] = ()

    def put_over(self, lower: Layers) -> Layers:
        """Return the layers with the files of others below them."""
        return replace(self, files=(*lower.files, *self.files))

    def take_section(self, name: str) -> Layers:
        """Return the layers with one section alone."""

        def take(parts: Iterable[MappingNode]) -> tuple[MappingNode, ...]:
            return tuple(
                replace(part, entries={name: part.entries[name]})
                for part in parts
                if name in part.entries
            )

        files = tuple((file, take(parts)) for file, parts in self.files)
        return Layers(files, take(self.variables), take(self.flags))


def resolve(
    files: Iterable[str | Path] = (),
    *,
    flags: Sequence[Flag] = (),
    environ: Mapping[str, str],
    subcommand: str | None = None,
    subcommands: Collection[str] = (),
    class_sections: Collection[str] = CLASS_SECTIONS,
    problems: Problems | None = None,
) -> Resolved:
    """Read files, merge them with variables and flags, then resolve interpolations.

    Args:
        files: Config files in order, each after what it extends.
        flags: Keys that the command line sets, in order.
        environ: Environment variables.
        subcommand: Subcommand that runs; a top-level block of its name is merged over the rest of
            its file.
        subcommands: All subcommands; the blocks of others are dropped.
        class_sections: Top-level keys that hold one class each. A section whose class is fixed in
            Python, as in ``LightningCLI(Net)``, holds its arguments directly and must not be among
            them.
        problems: Collects all errors, after which the config is what is left; they are raised where
            it is None.

    Raises:
        ConfigError: If anything in them is wrong; it shows the places.
    """
    found = Problems() if problems is None else problems
    paths = [Path(file) for file in files]
    layers = read_layers(
        paths,
        flags=flags,
        environ=environ,
        subcommand=subcommand,
        subcommands=subcommands,
        problems=found,
    )
    resolved = resolve_layers(
        layers,
        environ=environ,
        files=paths,
        subcommand=subcommand,
        class_sections=class_sections,
        problems=found,
    )
    if problems is None:
        found.raise_any()
    return resolved


def read_layers(
    files: Iterable[Path],
    *,
    flags: Sequence[Flag] = (),
    environ: Mapping[str, str] = MappingProxyType({}),
    subcommand: str | None = None,
    subcommands: Collection[str] = (),
    problems: Problems,
) -> Layers:
    """Read the layers of files, variables and flags, each file once.

    Args:
        files: Config files in order, each after what it extends.
        flags: Keys that the command line sets, in order.
        environ: Environment variables.
        subcommand: Subcommand that runs.
        subcommands: All subcommands.
        problems: Collects the errors after which other layers can still be read.

    Raises:
        ConfigError: If too many files extend one another.
    """
    expand = partial(_expand, subcommand=subcommand, subcommands=subcommands, problems=problems)
    seen: set[Path] = set()
    trees = [tree for file in files for tree in layers_of(file, seen=seen, problems=problems)]
    of_files = []
    for tree in trees:
        assert tree.origin.file is not None
        of_files.append((tree.origin.file, tuple(expand(tree))))
    return Layers(
        tuple(of_files),
        tuple(part for layer in variable_layers(environ, problems) for part in expand(layer)),
        tuple(part for layer in flag_layers(flags, problems) for part in expand(layer)),
    )


def resolve_layers(
    layers: Layers,
    *,
    environ: Mapping[str, str],
    files: Iterable[Path],
    subcommand: str | None,
    class_sections: Collection[str],
    problems: Problems,
) -> Resolved:
    """Merge layers, then resolve interpolations.

    Args:
        layers: The layers.
        environ: Environment variables.
        files: The files that are named, of which one may name the job.
        subcommand: Subcommand that runs.
        class_sections: Top-level keys that hold one class each.
        problems: Collects the errors.
    """
    rules = MergeRules(class_sections, problems)
    tree, merged_layers = _merge(layers, rules, environ)
    extends = tree.entries.get("extends")
    if extends is not None:
        problems.report("extends: stands at the top of a config file only", extends.origin)
        tree = _without_extends(tree)
    result = interpolate(tree, environ, problems)
    tree = rules.expand(result.tree, result.texts) if result.texts else result.tree
    unresolved = result.unresolved | _check_entries(tree, problems) | _check_texts(tree, problems)
    references = {
        _place_of_text(path, result.tree, rules): text for path, text in result.references.items()
    }
    expanded = replace(result, tree=tree, references=references)
    secrets = find_secrets(expanded, environ=environ, files=files)
    return Resolved(
        tree,
        class_sections,
        secrets.references,
        secrets.forms,
        subcommand,
        unresolved=unresolved,
        is_incomplete=problems.is_incomplete,
        texts=result.texts,
        layers=merged_layers,
    )


def resolve_section(
    layers: Layers,
    name: str,
    *,
    environ: Mapping[str, str],
    class_sections: Collection[str],
    problems: Problems,
) -> MappingNode:
    """Merge one section of layers, and resolve its interpolations.

    The other sections are merged where it may refer to them.

    Args:
        layers: The layers.
        name: Name of the section.
        environ: Environment variables.
        class_sections: Top-level keys that hold one class each.
        problems: Collects the errors.

    Returns:
        A tree with the section, if any layer sets it.
    """
    rules = MergeRules(class_sections, problems)
    tree, _ = _merge(layers.take_section(name), rules, environ)
    if has_interpolation(tree):
        tree, _ = _merge(layers, rules, environ)
    return interpolate(tree, environ, problems).tree


def _merge(
    layers: Layers, rules: MergeRules, environ: Mapping[str, str]
) -> tuple[MappingNode, list[Sequence[MappingNode]]]:
    """Merge layers, the hardware keys of each translated.

    Returns:
        The merged tree; and the parts of each layer.
    """
    tree = MappingNode({}, Origin("default"))
    merged_layers: list[Sequence[MappingNode]] = []

    def merge(parts: Sequence[MappingNode]) -> None:
        nonlocal tree
        merged_layers.append(parts)
        for part in translate(parts, tree, environ=environ, problems=rules.problems):
            merged = rules.merge(tree, part)
            assert isinstance(merged, MappingNode)
            tree = merged

    for _, parts in layers.files:
        merge(parts)
    merge([match_case(part, tree) for part in layers.variables])
    merge(layers.flags)
    return tree, merged_layers


def _place_of_text(path: KeyPath, tree: MappingNode, rules: MergeRules) -> KeyPath:
    """Return the place of a text that an interpolation has given.

    A class that is named so, as in ``model: ${oc.env:NET}``, is written in full.
    """
    is_class = rules.is_class_place(path) and text_of(find(tree, path)) is not None
    return (*path, "class_path") if is_class else path


def layers_of(
    file: Path, *, seen: set[Path], problems: Problems, chain: Sequence[Path] = ()
) -> list[MappingNode]:
    """Read ``file`` and all that it extends, lowest layer first, without their ``extends`` keys.

    Args:
        file: File to read.
        seen: Resolved paths that are layers already; one that two files extend counts once, at its
            lowest place. The files read are added.
        chain: Files that led here by extending one another.
        problems: Collects the errors after which other layers can still be read.

    Raises:
        ConfigError: If too many files extend one another.
    """
    if len(chain) > MAX_DEPTH:
        raise ConfigError(f"{shown_path(file)}: more than {MAX_DEPTH} files extend one another")
    seen.add(file.resolve())
    layers = []
    with problems.noted(leaves_gap=True):
        tree = read_file(file, problems)
        layers.append(_without_extends(tree))
        below: list[MappingNode] = []
        for name, origin in _list_extended(tree, file):
            with problems.noted(leaves_gap=True):
                base = _find_extended(name, origin, (*chain, file))
                if base.resolve() not in seen:
                    below += layers_of(base, seen=seen, chain=(*chain, file), problems=problems)
        layers = [*below, *layers]
    problems.read(file)
    return layers


def _without_extends(tree: MappingNode) -> MappingNode:
    return replace(
        tree, entries={key: node for key, node in tree.entries.items() if key != "extends"}
    )


def _list_extended(tree: MappingNode, file: Path) -> list[tuple[str, Origin]]:
    node = tree.entries.get("extends")
    if node is None or to_plain(node) is None:
        return []
    names: list[tuple[str, Origin]] = []
    for item in node.items if isinstance(node, Items) else (node,):
        name = text_of(item)
        if name is None:
            raise error_at(
                f"{shown_path(file)}: extends takes file names, such as [base, logger/mlflow]",
                item.origin,
            )
        names.append((name, item.origin))
    return names


def _find_extended(name: str, origin: Origin, chain: Sequence[Path]) -> Path:
    folder = chain[-1].parent
    extending = " extends ".join(shown_path(link) for link in chain)
    files = [folder / name, folder / f"{name}.yaml"]
    if name.startswith(PREFIX):
        try:
            files = [find_config(name)]
        except ConfigError as error:
            raise error_at(f"{extending} extends {error}", origin) from None
    for file in files:
        if file.is_file():
            if file.resolve() in {link.resolve() for link in chain}:
                raise error_at(
                    f"{extending} extends {shown_path(file)}: a file cannot extend itself", origin
                )
            return file
    wanted = folder / (name if name.endswith(NESTED_FILES) else f"{name}.yaml")
    text = f"{extending} extends {name!r}, but {shown_path(wanted)} does not exist"
    raise error_at(f"{text}{_hint_at_layer(name.removesuffix('.yaml'), folder)}", origin)


def _hint_at_layer(stem: str, folder: Path) -> str:
    """Return the layers that a missing one may mean, or those next to it."""
    # not all below: it may hold data and environments
    found = [*folder.glob("*.yaml"), *folder.glob("*/*.yaml")]
    layers = sorted(file.relative_to(folder).with_suffix("").as_posix() for file in found)
    beside = f"; files next to it: {', '.join(layers[:10])}" if layers else ""
    return suggest_packaged(Path(f"{stem}.yaml")) or near(stem, layers) or beside


def _expand(
    layer: MappingNode, subcommand: str | None, subcommands: Collection[str], problems: Problems
) -> list[MappingNode]:
    """List the layers that a layer stands for.

    Files that its sections name, itself, dotted keys, and the block.

    ``fit: {trainer: ...}`` is merged over the rest when ``fit`` runs; the blocks of other
    subcommands are dropped. ``trainer.max_epochs: 3``, a key that reaches into a section as
    LightningCLI allows, comes after the section. Text under ``launch`` stays as it is written.
    """
    below: list[MappingNode] = []
    own: dict[Any, Node] = {}
    nested: list[MappingNode] = []
    blocks = {subcommand, *subcommands}
    for key, node in layer.entries.items():
        if key in blocks:
            continue
        parts = key.split(".") if isinstance(key, str) else [key]
        if len(parts) > 1 and all(parts):
            with problems.noted():
                nested.append(nest(parts, node, node.origin))
            continue
        is_file = key in FILE_SECTIONS and _names_file(node)
        layers = _read_section(node, problems) if is_file else [node]
        below += [MappingNode({key: part}, part.origin) for part in layers[:-1]]
        if layers:
            own[key] = layers[-1]
    block = layer.entries.get(subcommand)
    of_block = [] if block is None else _expand_block(str(subcommand), block, problems)
    expanded = [*below, replace(layer, entries=own), *nested, *of_block]
    return [_keep_written(part) if "launch" in part.entries else part for part in expanded]


def _keep_written(layer: MappingNode) -> MappingNode:
    """Return a layer with the text of values under ``launch`` that YAML 1.1 takes for a number.

    The nodes 1:4, the host 10:4 and the time 2:00:00 are numbers to the base of 60, the account
    0123 to that of 8.
    """

    def change(path: KeyPath, node: Node) -> Node:
        is_meant = path[:2] in _AS_WRITTEN and isinstance(node, Leaf)
        if not is_meant or not is_int(to_plain(node)) or node.origin.kind != "file":
            return node
        written = node.origin.text
        return node if written == str(to_plain(node)) else Leaf(written, node.origin)

    changed = rebuild(layer, change)
    assert isinstance(changed, MappingNode)
    return changed


def _expand_block(subcommand: str, block: Node, problems: Problems) -> list[MappingNode]:
    """List the layers that the block of a subcommand stands for."""
    layers: list[MappingNode] = []
    for part in _read_section(block, problems) if _names_file(block) else [block]:
        if isinstance(part, MappingNode):
            layers += _expand(part, None, (), problems)
        elif to_plain(part) is not None:
            problems.report(
                f"{subcommand}: expected a mapping of what {subcommand} sets", part.origin
            )
    return layers


def _names_file(section: Node) -> bool:
    """Return whether a section is the name of the file that holds it."""
    return (text_of(section) or "").endswith(NESTED_FILES)


def _read_section(node: Node, problems: Problems) -> list[MappingNode]:
    """Read the layers of the file that a section names.

    It is looked for next to the file that names it, then in the working directory.
    """
    name = text_of(node) or ""
    folders = [Path()] if node.origin.file is None else [node.origin.file.parent, Path()]
    for folder in folders:
        if (folder / name).is_file():
            return layers_of(folder / name, seen=set(), problems=problems)
    wanted = folders[0] / name
    problems.report(f"{shown_path(wanted)}: no such file{near_files(wanted)}", node.origin)
    problems.is_incomplete = True
    return []


def _check_entries(tree: MappingNode, problems: Problems) -> set[KeyPath]:
    """Check that every named entry can name its class, and give the places of those that cannot.

    An entry that is neither mapping, class name nor null, or whose name is unknown and that has no
    class, is a problem.
    """
    wrong: set[KeyPath] = set()
    for section in NAMED_CLASSES:
        for word in (section, f"{section}+"):
            node = tree.entries.get(word)
            if node is None or to_plain(node) is None:
                continue
            if word == section and isinstance(node, MappingNode):
                wrong |= _check_names(section, node, problems)
                continue
            text = f"{word}: expected a mapping from names to entries, got {to_plain(node)!r}"
            text += f"; Lightning's own value goes under trainer.{word}"
            problems.report(text, node.origin)
            wrong.add((word,))
    return wrong


def _check_names(section: str, node: MappingNode, problems: Problems) -> set[KeyPath]:
    """Check the entries of a section, and give the places of those that are wrong."""
    wrong: set[KeyPath] = set()
    known = NAMED_CLASSES[section]
    for name, entry in node.entries.items():
        error = _check_entry((section, name), entry, known)
        if error is None:
            continue
        wrong.add((section, name))
        # else a layer that cannot be read may name it
        if not problems.is_incomplete or str(name) in known:
            problems.add(error)
    return wrong


def _check_texts(tree: MappingNode, problems: Problems) -> set[KeyPath]:
    """Return the places of reported texts, and of class names that are too long to be any.

    An import of a name with a thousand parts takes minutes.
    """
    wrong: set[KeyPath] = set()
    for path, node in walk(tree):
        text = node.value if isinstance(node, Leaf) else None
        if isinstance(text, UnreadableText):
            wrong.add(path)
        if not isinstance(text, str) or len(text) <= _LONGEST_CLASS_NAME:
            continue
        is_deep = text.count(".") > _MOST_PACKAGES and text.replace(".", "").isidentifier()
        if path[-1:] == ("class_path",) or is_deep:
            problems.report(
                f"{dotted(path)}: expected the name of a class, got {shortened(text)}", node.origin
            )
            wrong.add(path)
    return wrong


def _check_entry(path: KeyPath, entry: Node, known: Mapping[str, str]) -> ConfigError | None:
    if isinstance(entry, Leaf) and entry.value is None:
        return None
    if not isinstance(entry, MappingNode):
        text = f"{dotted(path)}: expected a class name, a mapping or null, got {to_plain(entry)!r}"
        return error_at(f"{text}; {{}} takes the entry as it is", entry.origin)
    class_path = entry.entries.get("class_path")
    if class_path is None:
        names = f"\nnames: {', '.join(sorted(known))}; any other needs a class_path"
        text = f"{dotted(path)}: there is no class of that name{near(str(path[1]), known)}"
        return error_at(
            text + (names if known else "; give it a class_path"), entry.origin.at_key()
        )
    return None  # the schema checks its class

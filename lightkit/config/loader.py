"""Load a config from its layers: files with what they extend, environment variables and flags."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from lightkit.config.accelerator.translation import translate
from lightkit.config.bounds import is_any_number, is_int
from lightkit.config.interpolation import escape, interpolate
from lightkit.config.merge import CLASS_SECTIONS, NAMED_CLASSES, MergeRules
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
from lightkit.config.overrides import Flag, flag_layers, nest, variable_layers
from lightkit.config.packaged import PREFIX, find_config, suggest_packaged
from lightkit.config.resolved import Resolved, root_in
from lightkit.config.secrets import HIDDEN, choose_reference, is_secret, list_forms, read_default
from lightkit.config.tree import Items, Leaf, MappingNode, Node, find, rebuild, to_plain, walk
from lightkit.config.yaml_reader import MAX_DEPTH, read_file
from lightkit.errors import ConfigError, near

SECTIONS = (
    *("trainer", "model", "data", "optimizer", "lr_scheduler", "callbacks", "logger", "run"),
    *("watchdog", "gate", "sweep"),
)
"""Top-level keys whose value may be the name of a file that holds the section."""
_AS_WRITTEN = tuple(("launch", key) for key in ("nodes", "hosts", "rendezvous", "slurm"))
"""Keys whose values are text for other programs."""
_LONGEST_CLASS_NAME = 500
_MOST_PACKAGES = 50


# -- layers ----------------------------------------------------------------------------------------


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
    """Merge files, variables and flags, then resolve interpolations.

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
    rules = MergeRules(class_sections, found)
    tree = MappingNode({}, Origin("default"))
    merged_layers: list[Sequence[MappingNode]] = []

    def merge(layers: Iterable[MappingNode]) -> None:
        """Merge layers of one rank over those before."""
        nonlocal tree
        parts = [
            _keep_written(part)
            for layer in layers
            for part in _expand(layer, subcommand, subcommands, found)
        ]
        merged_layers.append(parts)
        for part in translate(parts, tree, environ=environ, problems=found):
            merged = rules.merge(tree, part)
            assert isinstance(merged, MappingNode)
            tree = merged

    seen: set[Path] = set()
    for layer in [layer for file in paths for layer in layers_of(file, seen=seen, problems=found)]:
        merge([layer])
    merge(variable_layers(environ, tree, found))
    merge(flag_layers(flags, found))
    if "extends" in tree.entries:
        found.add(
            error_at(
                "extends: stands at the top of a config file only", tree.entries["extends"].origin
            )
        )
        tree = _without_extends(tree)
    result = interpolate(tree, environ, found)
    references = dict(result.references)
    # a class that is named by an interpolation: model: ${oc.env:NET}
    for path in result.references:
        node = find(result.tree, path)
        if rules.is_class_place(path) and isinstance(node, Leaf) and isinstance(node.value, str):
            references[(*path, "class_path")] = references.pop(path)
    tree = rules.expand(result.tree, result.texts) if result.texts else result.tree
    unresolved = result.unresolved | _check_entries(tree, found) | _check_texts(tree, found)
    if problems is None:
        found.raise_any()
    own_references, own_secrets = _find_secrets(tree, references, result.texts)
    secrets = {
        **_environment_secrets(environ, _public_text(tree, paths)),
        **own_secrets,
        **result.secrets,
    }
    return Resolved(
        tree,
        class_sections,
        {**references, **own_references},
        tuple(sorted(secrets.items(), key=lambda pair: (-len(pair[0]), pair))),
        subcommand,
        unresolved=unresolved,
        is_incomplete=found.is_incomplete,
        texts=result.texts,
        layers=tuple(merged_layers),
    )


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
    if node is None or (isinstance(node, Leaf) and node.value is None):
        return []
    names: list[tuple[str, Origin]] = []
    for item in node.items if isinstance(node, Items) else (node,):
        if not isinstance(item, Leaf) or not isinstance(item.value, str):
            raise error_at(
                f"{shown_path(file)}: extends takes file names, such as [base, logger/mlflow]",
                item.origin,
            )
        names.append((item.value, item.origin))
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
    LightningCLI allows, comes after the section.
    """
    below: list[MappingNode] = []
    own: dict[Any, Node] = {}
    nested: list[MappingNode] = []
    blocks = {subcommand, *subcommands}
    for key, node in layer.entries.items():
        if key in blocks:
            continue
        parts = key.split(".") if isinstance(key, str) else []
        if len(parts) > 1 and all(parts):
            with problems.noted():
                nested.append(nest(parts, node, node.origin))
            continue
        *lower, top = (
            _read_section(node, problems) if key in SECTIONS and _names_file(node) else [node]
        )
        below += [MappingNode({key: part}, part.origin) for part in lower if part is not None]
        if top is not None:
            own[key] = top
    block = layer.entries.get(subcommand) if subcommand is not None else None
    of_block = [] if block is None else _expand_block(str(subcommand), block, problems)
    return [*below, replace(layer, entries=own), *nested, *of_block]


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

    if "launch" not in layer.entries:
        return layer
    changed = rebuild(layer, change)
    assert isinstance(changed, MappingNode)
    return changed


def _expand_block(subcommand: str, block: Node, problems: Problems) -> list[MappingNode]:
    """List the layers that the block of a subcommand stands for."""
    layers: list[MappingNode] = []
    for part in _read_section(block, problems) if _names_file(block) else [block]:
        if isinstance(part, MappingNode):
            layers += _expand(part, None, (), problems)
        elif part is not None and to_plain(part) is not None:
            problems.add(
                error_at(f"{subcommand}: expected a mapping of what {subcommand} sets", part.origin)
            )
    return layers


def _names_file(section: Node) -> TypeGuard[Leaf]:
    """Return whether a section is the name of the file that holds it."""
    return (
        isinstance(section, Leaf)
        and isinstance(section.value, str)
        and section.value.endswith(NESTED_FILES)
    )


def _read_section(node: Leaf, problems: Problems) -> Sequence[Node | None]:
    """Read the file that a section names.

    It is looked for next to the file that names it, then in the working directory.
    """
    folders = [Path()] if node.origin.file is None else [node.origin.file.parent, Path()]
    for folder in folders:
        if (folder / node.value).is_file():
            return layers_of(folder / node.value, seen=set(), problems=problems) or [None]
    wanted = folders[0] / node.value
    problems.add(error_at(f"{shown_path(wanted)}: no such file{near_files(wanted)}", node.origin))
    problems.is_incomplete = True
    return [None]


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
            problems.add(error_at(text, node.origin))
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
            problems.add(
                error_at(
                    f"{dotted(path)}: expected the name of a class, got {shortened(text)}",
                    node.origin,
                )
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


# -- secrets of a config ---------------------------------------------------------------------------

_SHORTEST_OF_VARIABLE = 8  # characters; it may have nothing to do with lightkit
_PLAIN_WORD = re.compile(r"[a-z]+")
_READ_BY_OTHERS = (
    *("AWS_", "AZURE_", "CLEARML_", "COMET_", "GOOGLE_", "HF_", "LIGHTKIT_", "MLFLOW_", "NEPTUNE_"),
    *("PG", "SLACK_", "WANDB_"),
)
_IN_ADDRESS = re.compile(r"://(?:[^\s/@]*:)?\*\*\*@|[?&;][\w.-]+=\*\*\*")


def _environment_secrets(environ: Mapping[str, str], public: str) -> dict[str, str]:
    """Return the secrets that the environment holds, each with what stands for it.

    A config need not use them.

    Args:
        environ: Environment variables.
        public: Text that everybody sees, such as the path of the runs: what is in it hides nothing,
            and a variable that has nothing to do with the training must not make it unreadable.
    """
    found: dict[str, str] = {}
    for name, value in environ.items():
        found |= list_forms(value, is_secret=False)
        if is_secret(name) and len(value) >= _SHORTEST_OF_VARIABLE and not _is_word(name, value):
            found |= list_forms(value, f"${{oc.env:{name}}}")
    return {form: reference for form, reference in found.items() if form not in public}


def _public_text(tree: MappingNode, files: Iterable[Path]) -> str:
    """Write what names a run's folder: the root, and the job's name.

    Records and messages show it.
    """
    run = to_plain(tree.entries["run"]) if "run" in tree.entries else {}
    said = run if isinstance(run, dict) else {}
    root = Path(root_in(said)).expanduser().absolute()
    return "\n".join([str(root), str(said.get("name") or ""), *(file.stem for file in files)])


def _is_word(name: str, value: str) -> bool:
    """Return whether a variable that no tracker or store reads holds a plain word.

    Other texts may well hold that word.
    """
    return _PLAIN_WORD.fullmatch(value) is not None and not name.startswith(_READ_BY_OTHERS)


def _find_secrets(
    tree: MappingNode, known: Mapping[KeyPath, str], texts: Mapping[KeyPath, str]
) -> tuple[dict[KeyPath, str], dict[str, str]]:
    """Find the secrets of a config that its keys and the forms of its values give away.

    Args:
        tree: Its values.
        known: Text of each interpolation that used the environment, by its path.
        texts: Text of every interpolation, by its path.

    Returns:
        What stands for each value that must not be saved, by its path; and the secrets, each with
        what stands for it.
    """
    references: dict[KeyPath, str] = {}
    secrets: dict[str, str] = {}
    leaves = list(_leaves(tree, (), is_hidden=False))
    for path, leaf, is_hidden in leaves:
        # what a higher layer has replaced is shown by `explain`
        for was in leaf.replaced:
            for _, lower, is_lower_hidden in _leaves(was, (), is_hidden=is_hidden):
                secrets |= list_forms(lower.value, is_secret=is_lower_hidden)

        reference, forms = _refer(leaf.value, is_hidden=is_hidden, text=known.get(path))
        secrets |= forms
        if reference is not None:
            references[path] = reference

    # an interpolation that gave a secret is kept: ${data.init_args.token}
    for path, leaf, _ in leaves:
        text = texts.get(path, "")
        if (
            text
            and path not in known
            and isinstance(leaf.value, str)
            and _gives_secret(leaf.value, text, secrets)
        ):
            references[path] = text
    return references, secrets


def _refer(value: Any, *, is_hidden: bool, text: str | None) -> tuple[str | None, dict[str, str]]:
    """Return what stands for a value where that is not known yet, and the texts that give it away.

    Args:
        value: The value.
        is_hidden: Whether a key says that it is secret.
        text: The interpolation that used the environment for it, if one did.
    """
    reference = choose_reference(value, is_secret=is_hidden, text=text)
    if text is None:
        if reference is not None and reference != HIDDEN:  # an address without its password
            reference = escape(reference)
        return reference, list_forms(value, is_secret=is_hidden)
    if not is_hidden:
        return None, {}
    forms = list_forms(value, text) if isinstance(value, str) else {}
    return reference if reference != text else None, {**forms, **list_forms(read_default(text))}


def _gives_secret(value: str, text: str, secrets: Collection[str]) -> bool:
    """Return whether the value of an interpolation holds a secret that its text does not."""
    return any(secret in value and secret not in text for secret in secrets)


def find_masked_values(tree: MappingNode) -> Iterator[ConfigError]:
    """List what is wrong with a config in which ``***`` stands for a value.

    The config of a run has it in the place of a secret.
    """
    for path, leaf, is_hidden in _leaves(tree, (), is_hidden=False):
        value = leaf.value
        if isinstance(value, str) and (
            (is_hidden and value == HIDDEN) or _IN_ADDRESS.search(value)
        ):
            text = (
                f"{dotted(path)}: {HIDDEN} stands for a secret, of which a run keeps nothing; set"
                " its value again"
            )
            hint = (
                "as a flag, and write ${oc.env:NAME} for the next"
                " training, which a run keeps as it is"
            )
            yield error_at(f"{text} {hint}", leaf.origin)


def refuse_plain_secrets(tree: MappingNode, references: Mapping[KeyPath, str]) -> None:
    """Refuse a value that a run does not keep, and that its later stages would lack.

    Raises:
        ConfigError: At its place.
    """
    for path, reference in references.items():
        # stages do without these
        if HIDDEN in reference and not {"webhook_url", "urls", "heartbeat_url"} & {*path}:
            text = (
                f"{dotted(path)}: {HIDDEN} is all that a run keeps of a secret, and its later"
                " stages need the value"
            )
            node = find(tree, path)
            origin = None if node is None else node.origin
            raise error_at(f"{text}; write ${{oc.env:NAME}}, and set the variable", origin)


def _leaves(node: Node, path: KeyPath, *, is_hidden: bool) -> Iterator[tuple[KeyPath, Leaf, bool]]:
    """List the scalars, each with whether a key says that it is secret.

    Below such a key all are but classes.
    """
    if isinstance(node, Leaf):
        yield path, node, is_hidden
    elif isinstance(node, Items):
        for index, item in enumerate(node.items):
            yield from _leaves(item, (*path, index), is_hidden=is_hidden)
    else:
        is_hidden = is_hidden and "class_path" not in node.entries
        for key, child in node.entries.items():
            yield from _leaves(child, (*path, key), is_hidden=is_hidden or _hides(key, child, path))


def _hides(key: Any, child: Node, above: KeyPath) -> bool:
    """Return whether a key says that what stands there, or below, is secret."""
    if not isinstance(key, str):
        return False
    if key in ("urls", "urls+") and above[:1] == ("callbacks",):  # of apprise
        return True
    name = key.removesuffix("+")
    value = child.value if isinstance(child, Leaf) else None
    return is_secret(name, value) or (not is_any_number(value) and is_secret(name))

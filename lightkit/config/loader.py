"""Load a config from its layers: files with what they extend, environment variables and flags."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from lightkit.config.interpolation import Interpolated, escape, interpolate
from lightkit.config.merge import MergeRules
from lightkit.config.named_entries import (
    LightningConfig,
    check_class_names,
    check_entries,
    lightning_config,
    named_config,
)
from lightkit.config.origins import (
    NESTED_FILES,
    KeyPath,
    Origin,
    Problems,
    UnreadableText,
    dotted,
    error_at,
    near,
    near_files,
    shown_path,
)
from lightkit.config.overrides import Flag, flag_layers, nest, variable_layers
from lightkit.config.packaged import PREFIX, find_config
from lightkit.config.secrets import (
    HIDDEN,
    Mask,
    find_credentials,
    is_secret_key,
    is_value,
    mask_credentials,
    secret_forms,
)
from lightkit.config.tree import Items, Leaf, MappingNode, Node, descend, find, graft, plain, rebuild, walk
from lightkit.config.yaml_reader import MAX_DEPTH, read_file
from lightkit.errors import ConfigError, LightkitError

CLASS_SECTIONS = ("model", "data", "optimizer", "lr_scheduler")
"""Top-level keys that hold one class each, unless the command line fixes the class in Python."""
SECTIONS = ("trainer", "model", "data", "optimizer", "lr_scheduler", "callbacks", "logger", "run", "watchdog", "gate")
"""Top-level keys whose value may be the name of a file that holds the section."""
_RANKED = ("accelerator", "trainer", "launch", "data", "optimizer", "model", "callbacks", "logger")
"""Sections that can say the same thing in different words, so that the order of layers decides between them."""
_MAX_ERRORS = 20  # a round of jsonargparse may take half a second
_Result = TypeVar("_Result")


class Consequence(ConfigError):
    """An error only because something that was wrong has been left out; it is not reported."""


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
        unresolved: Paths of the values that have been reported already: interpolations, text that cannot be read,
            and entries that name no class.
        is_incomplete: Whether a layer could not be read, so that what seems missing may be there.
        removed: Paths of what has been left out because it was wrong.
        texts: Text of every interpolation, by its path.
        ranks: Number of the layer from which the values of sections that can say the same come, by their origins; a
            higher layer has a higher number.
    """

    tree: MappingNode
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

    def section(self, name: str) -> dict[str, Any]:
        """Return a section as plain values; an empty one where it is missing, or an error is in its place."""
        node = self.tree.entries.get(name)
        return plain(node) if isinstance(node, MappingNode) else {}

    @property
    def origins(self) -> dict[KeyPath, Origin]:
        """The place that set each value; for a mapping, the lowest that did."""
        return {path: node.origin for path, node in walk(self.tree) if path}

    def origin_of(self, key: str | KeyPath) -> Origin | None:
        """Return the place that set a value, or the nearest above it that is known.

        Args:
            key: Path, or dotted key as LightningCLI's errors write it (``trainer.callbacks.0.init_args.patience``).
                In a dotted key, an index into ``trainer.callbacks`` counts the named entries too.
        """
        taken, node, _ = descend(self.tree, self.lightkit_path(key) if isinstance(key, str) else key)
        return node.origin if taken else None

    def lightkit_path(self, key: str) -> KeyPath:
        """Return the path that the user knows for a dotted key of LightningCLI's."""
        parts: list[Any] = [int(part) if part.isdigit() else part for part in re.split(r"[.\[\]]+", key) if part]
        if parts and parts[0] == self.subcommand and self.subcommand not in self.tree.entries:
            parts = parts[1:]
        return self.lightning().lightkit_path(tuple(parts))

    def lightning(self) -> LightningConfig:
        """Return the config as LightningCLI takes it: named entries become lists under ``trainer``."""
        return lightning_config(self.tree, self.layering, self.ranks)

    def named(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Put the named entries of a config that LightningCLI dumped back under their names."""
        return named_config(config, self.tree, self.layering, self.ranks)

    def with_references(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Make a config fit to be saved, printed or logged: what came from the environment is a reference again.

        A secret that a flag or a file gave is ``***``.

        Args:
            config: Values in lightkit's form, such as `values` or what `named` gives. Text that only looks like an
                interpolation is escaped, so that reading the saved config gives it back.
        """
        held = {path for path, _ in walk(graft(config, Origin("default")))}
        # What `key+` appended stands elsewhere in what LightningCLI dumps; it is known by its value then.
        everywhere = dict(self.secrets) if self.references.keys() - held else {}

        def visit(value: Any, path: KeyPath) -> Any:
            if path in self.references:
                return self.references[path]
            if isinstance(value, Mapping):
                return {key: visit(child, (*path, key)) for key, child in value.items()}
            if isinstance(value, (list, tuple)):
                return [visit(child, (*path, index)) for index, child in enumerate(value)]
            return everywhere.get(value) or escape(value) if isinstance(value, str) else value

        return {key: visit(child, (key,)) for key, child in config.items()}

    def masked(self, text: str) -> str:
        """Write a text for logs: what the environment gave, and what is secret, is replaced by what stands for it."""
        return self._mask(text)

    @cached_property
    def _mask(self) -> Mask:
        return Mask(self.secrets)


# -- layers ------------------------------------------------------------------------------------------------------------


def resolve(
    files: Iterable[str | Path] = (),
    *,
    flags: Sequence[Flag] = (),
    environ: Mapping[str, str] | None = None,
    subcommand: str | None = None,
    subcommands: Collection[str] = (),
    class_sections: Collection[str] = CLASS_SECTIONS,
    default_classes: Mapping[str, Mapping[str, str]] | None = None,
    problems: Problems | None = None,
) -> Resolved:
    """Merge files, variables and flags, then resolve interpolations.

    Args:
        files: Config files in order, each after what it extends.
        flags: Keys that the command line sets, in order.
        environ: Environment variables; those of this process where not given.
        subcommand: Subcommand that runs; a top-level block of its name is merged over the rest of its file.
        subcommands: All subcommands; the blocks of others are dropped.
        class_sections: Top-level keys that hold one class each. A section whose class is fixed in Python, as in
            ``LightningCLI(Net)``, holds its arguments directly and must not be among them.
        default_classes: Tables from an entry's name to its class, by the top-level key that holds named entries.
        problems: Collects all errors, after which the config is what is left; they are raised where it is None.

    Raises:
        ConfigError: If anything in them is wrong; it shows the places.
    """
    found = Problems() if problems is None else problems
    environ = os.environ if environ is None else environ
    paths = [Path(file) for file in files]
    named = {"callbacks": {}, "logger": {}} if default_classes is None else default_classes
    rules = MergeRules(class_sections, named, found)
    tree = MappingNode({}, Origin("default"))
    ranks: dict[Origin, int] = {}

    def merge(layers: Iterable[MappingNode], *, as_one: bool = False) -> None:
        nonlocal tree
        lowest = max(ranks.values(), default=0) + 1
        for number, layer in enumerate(layers):
            for part in _expand(layer, subcommand, subcommands, found):
                merged = rules.merge(tree, part)
                assert isinstance(merged, MappingNode)
                tree = merged
                ranked = (part.entries[section] for section in _RANKED if section in part.entries)
                rank = lowest if as_one else lowest + number
                ranks.update((node.origin, rank) for section in ranked for _, node in walk(section))

    seen: set[Path] = set()
    for file in paths:
        merge(layers_of(file, seen=seen, problems=found))
    merge(variable_layers(environ, tree, found), as_one=True)
    merge(flag_layers(flags, found), as_one=True)
    if "extends" in tree.entries:
        found.add(error_at("extends: stands at the top of a config file only", tree.entries["extends"].origin))
        tree = _without_extends(tree)
    result = _expand_classes(interpolate(tree, environ, found), rules)
    wrong = check_entries(result.tree, rules, found) | check_class_names(result.tree, found)
    if problems is None:
        found.raise_any()
    references, secrets = find_secrets(result.tree, result.references, result.texts)
    public = public_text(result.tree, paths)
    secrets = {**environment_secrets(environ, public), **secrets, **result.secrets}
    unreadable = {path for path, node in walk(result.tree) if isinstance(getattr(node, "value", None), UnreadableText)}
    return Resolved(
        result.tree,
        rules,
        {**result.references, **references},
        tuple(sorted(secrets.items(), key=lambda pair: (-len(pair[0]), pair))),
        subcommand,
        unresolved=result.unresolved | unreadable | wrong,
        is_incomplete=found.is_incomplete,
        texts=result.texts,
        ranks=ranks,
    )


def layers_of(file: Path, *, seen: set[Path], problems: Problems, chain: Sequence[Path] = ()) -> list[MappingNode]:
    """Read ``file`` and all that it extends, lowest layer first, without their ``extends`` keys.

    Args:
        file: File to read.
        seen: Resolved paths that are layers already; one that two files extend counts once, at its lowest place.
            The files read are added.
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
    return replace(tree, entries={key: node for key, node in tree.entries.items() if key != "extends"})


def _list_extended(tree: MappingNode, file: Path) -> list[tuple[str, Origin]]:
    node = tree.entries.get("extends")
    if node is None or (isinstance(node, Leaf) and node.value is None):
        return []
    names: list[tuple[str, Origin]] = []
    for item in node.items if isinstance(node, Items) else (node,):
        if not isinstance(item, Leaf) or not isinstance(item.value, str):
            raise error_at(f"{shown_path(file)}: extends takes file names, such as [base, logger/mlflow]", item.origin)
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
                raise error_at(f"{extending} extends {shown_path(file)}: a file cannot extend itself", origin)
            return file
    wanted = folder / (name if name.endswith(NESTED_FILES) else f"{name}.yaml")
    text = f"{extending} extends {name!r}, but {shown_path(wanted)} does not exist"
    found = [*folder.glob("*.yaml"), *folder.glob("*/*.yaml")]  # not all below: it may hold data and environments
    layers = sorted(file.relative_to(folder).with_suffix("").as_posix() for file in found)
    beside = f"; files beside it: {', '.join(layers[:10])}" if layers else ""
    raise error_at(f"{text}{near(name.removesuffix('.yaml'), layers) or beside}", origin)


def _expand(
    layer: MappingNode, subcommand: str | None, subcommands: Collection[str], problems: Problems
) -> list[MappingNode]:
    """List the layers that a layer stands for: files that its sections name, itself, dotted keys, and the block.

    ``fit: {trainer: ...}`` is merged over the rest when ``fit`` runs; the blocks of other subcommands are dropped.
    ``trainer.max_epochs: 3``, a key that reaches into a section as LightningCLI allows, comes after the section.
    """
    below: list[MappingNode] = []
    own: dict[Any, Node] = {}
    nested: list[MappingNode] = []
    for key, node in layer.entries.items():
        if key == subcommand or key in subcommands:
            continue
        parts = key.split(".") if isinstance(key, str) else []
        if len(parts) > 1 and all(parts):
            with problems.noted():
                nested.append(nest(parts, node, node.origin))
            continue
        *lower, top = _read_section(node, problems) if key in SECTIONS else [node]
        below += [MappingNode({key: part}, part.origin) for part in lower if part is not None]
        own |= {} if top is None else {key: top}
    layers = [*below, replace(layer, entries=own), *nested]
    block = layer.entries.get(subcommand) if subcommand is not None else None
    for part in [] if block is None else _read_section(block, problems):
        if isinstance(part, MappingNode):
            layers += _expand(part, None, (), problems)
        elif part is not None and plain(part) is not None:
            problems.add(error_at(f"{subcommand}: expected a mapping of what {subcommand} sets", part.origin))
    return layers


def _read_section(node: Node, problems: Problems) -> Sequence[Node | None]:
    """Read the file that a section names, beside the file that names it, else in the working directory."""
    if not isinstance(node, Leaf) or not isinstance(node.value, str) or not node.value.endswith(NESTED_FILES):
        return [node]
    folders = [Path()] if node.origin.file is None else [node.origin.file.parent, Path()]
    for folder in folders:
        if (folder / node.value).is_file():
            return layers_of(folder / node.value, seen=set(), problems=problems) or [None]
    wanted = folders[0] / node.value
    problems.add(error_at(f"{shown_path(wanted)}: no such file{near_files(wanted)}", node.origin))
    problems.is_incomplete = True
    return [None]


def _expand_classes(found: Interpolated, rules: MergeRules) -> Interpolated:
    """Write class names in full where an interpolation gave them: ``model: ${oc.env:NET}``."""
    references = dict(found.references)
    for path in found.references:
        node = find(found.tree, path)
        if rules.is_class_place(path) and isinstance(node, Leaf) and isinstance(node.value, str):
            references[(*path, "class_path")] = references.pop(path)
    tree = rules.merge(MappingNode({}, found.tree.origin), found.tree)
    assert isinstance(tree, MappingNode)
    return replace(found, tree=tree, references=references)


# -- secrets of a config ---------------------------------------------------------------------------------------------

_SHORTEST_OF_VARIABLE = 8  # characters; it may have nothing to do with lightkit
_PLAIN_WORD = re.compile(r"[a-z]+")
_READ_BY_OTHERS = (
    *("AWS_", "AZURE_", "CLEARML_", "COMET_", "GOOGLE_", "HF_", "LIGHTKIT_", "MLFLOW_", "NEPTUNE_", "PG", "SLACK_"),
    "WANDB_",
)
_DEFAULT = re.compile(r"(?P<head>\$\{\s*oc\.env:[^,${}]+,)(?P<value>[^${}]*)\}")
_NO_DEFAULT = ("", "null")
_IN_ADDRESS = re.compile(r"://(?:[^\s/@]*:)?\*\*\*@|[?&;][\w.-]+=\*\*\*")


def environment_secrets(environ: Mapping[str, str], public: str = "") -> dict[str, str]:
    """Give the secrets that the environment holds, each with what stands for it, whether a config uses them or not.

    Args:
        environ: Environment variables.
        public: Text that everybody sees, such as the path of the runs: what is in it hides nothing, and a variable
            that has nothing to do with the training must not make it unreadable.
    """
    found: dict[str, str] = {}
    for name, value in environ.items():
        if "://" in value:
            found |= find_credentials(value)
        if is_secret_key(name) and len(value) >= _SHORTEST_OF_VARIABLE and not _is_word(name, value):
            found |= secret_forms(value, f"${{oc.env:{name}}}")
    return {form: reference for form, reference in found.items() if form not in public}


def public_text(tree: MappingNode, files: Iterable[Path]) -> str:
    """Write what names a run's folder, which records and messages show: the root, and the job's name."""
    run = plain(tree.entries["run"]) if "run" in tree.entries else {}
    said = run if isinstance(run, dict) else {}
    root = Path(str(said.get("root") or "runs")).expanduser().absolute()
    return "\n".join([str(root), str(said.get("name") or ""), *(file.stem for file in files)])


def _is_word(name: str, value: str) -> bool:
    """Tell whether a variable that no tracker or store reads holds a plain word, which other texts may well hold."""
    return _PLAIN_WORD.fullmatch(value) is not None and not name.startswith(_READ_BY_OTHERS)


def find_secrets(
    tree: MappingNode, known: Mapping[KeyPath, str], texts: Mapping[KeyPath, str]
) -> tuple[dict[KeyPath, str], dict[str, str]]:
    """Find the secrets of a config that its keys and the forms of its values give away.

    Args:
        tree: Its values.
        known: Text of each interpolation that used the environment, by its path.
        texts: Text of every interpolation, by its path.

    Returns:
        What stands for each value that must not be saved, by its path; and the secrets, each with what stands for it.
    """
    references: dict[KeyPath, str] = {}
    secrets: dict[str, str] = {}
    leaves = list(_leaves(tree, (), is_secret=False))
    for path, leaf, is_secret in leaves:
        value = leaf.value
        for was in leaf.replaced:
            for _, lower, is_lower_secret in _leaves(was, (), is_secret=is_secret):
                secrets |= _secrets_in(lower.value, is_secret=is_lower_secret)
        if path not in known:
            secrets |= _secrets_in(value, is_secret=is_secret)
            if is_secret and is_value(value):
                references[path] = HIDDEN
            elif isinstance(value, str) and (shown := mask_credentials(value)) != value:
                references[path] = escape(shown)
        elif is_secret:
            text = known[path]
            secrets |= secret_forms(value, text) if isinstance(value, str) else {}
            match = _DEFAULT.search(text)  # of `${oc.env:NAME,x}`, which is hidden
            if match is not None and (default := match["value"].strip().strip("'\"")) not in _NO_DEFAULT:
                references[path] = _DEFAULT.sub(rf"\g<head>'{HIDDEN}'}}", text)
                secrets |= secret_forms(default, HIDDEN)
    for path, leaf, _ in leaves:  # an interpolation that gave a secret is kept: ${data.init_args.token}
        value, text = leaf.value, texts.get(path, "")
        is_kept = text and path not in known and isinstance(value, str)
        if is_kept and any(secret in value and secret not in text for secret in secrets):
            references[path] = text
    return references, secrets


def find_masked_values(tree: MappingNode) -> Iterator[ConfigError]:
    """List what is wrong with a config in which ``***`` stands for a value, as it does in that of a run."""
    for path, leaf, is_secret in _leaves(tree, (), is_secret=False):
        value = leaf.value
        if isinstance(value, str) and ((is_secret and value == HIDDEN) or _IN_ADDRESS.search(value)):
            text = f"{dotted(path)}: {HIDDEN} stands for a secret, of which a run keeps nothing; say its value again"
            hint = "as a flag, and write ${oc.env:NAME} for the next training, which a run keeps as it is"
            yield error_at(f"{text} {hint}", leaf.origin)


def find_plain_secrets(tree: MappingNode, references: Mapping[KeyPath, str]) -> Iterator[ConfigError]:
    """List the values that a run does not keep, and that its later stages would lack, each as an error at its place."""
    for path, reference in references.items():
        if HIDDEN in reference and not {"webhook_url", "urls", "heartbeat_url"} & {*path}:  # stages do without these
            text = f"{dotted(path)}: {HIDDEN} is all that a run keeps of a secret, and its later stages need the value"
            yield error_at(
                f"{text}; write ${{oc.env:NAME}}, and set the variable", getattr(find(tree, path), "origin", None)
            )


def _leaves(node: Node, path: KeyPath, *, is_secret: bool) -> Iterator[tuple[KeyPath, Leaf, bool]]:
    """List the scalars, each with whether a key says that it is secret; below such a key all are but classes."""
    if isinstance(node, Leaf):
        yield path, node, is_secret
    elif isinstance(node, Items):
        for index, item in enumerate(node.items):
            yield from _leaves(item, (*path, index), is_secret=is_secret)
    else:
        is_secret = is_secret and "class_path" not in node.entries
        for key, child in node.entries.items():
            value = child.value if isinstance(child, Leaf) else None
            is_key = is_secret_key(key.removesuffix("+"), value) if isinstance(key, str) else False
            is_key = is_key or (key in ("urls", "urls+") and path[:1] == ("callbacks",))  # of apprise
            yield from _leaves(child, (*path, key), is_secret=is_secret or is_key)


def _secrets_in(value: Any, *, is_secret: bool) -> dict[str, str]:
    if is_secret and is_value(value) and value != HIDDEN:
        return secret_forms(str(value), HIDDEN)
    return find_credentials(value) if isinstance(value, str) and "://" in value else {}


# -- a config without its errors, so that a check which stops at the first one finds the next ----------------------


def collect_errors(
    resolved: Resolved, check: Callable[[Resolved], _Result], problems: Problems
) -> tuple[_Result | None, Resolved]:
    """Run a check until it finds nothing more, each time without the places of the error that it found.

    Args:
        resolved: The config.
        check: Raises at the first error, with its places.
        problems: Collects the errors.

    Returns:
        What the check gives for the config without its errors, None where it cannot go on; and that config.
    """
    for _ in range(_MAX_ERRORS):
        try:
            return check(resolved), resolved
        except LightkitError as error:  # noqa: PERF203 - each round is a check of its own
            if not isinstance(error, Consequence):
                problems.add(error)
            smaller = drop_origins(resolved, [place for place in error.places if isinstance(place, Origin)])
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
    there = {path for path, node in walk(resolved.tree) if path and ({node.origin, node.origin.key} & meant)}
    # The innermost: a flag also opens all mappings on its way.
    above = {path[:length] for path in there for length in range(len(path))}
    return drop_paths(resolved, there - above)


def drop_paths(resolved: Resolved, paths: Collection[KeyPath]) -> Resolved:
    """Leave out the values at ``paths``; with the name of a class its arguments go too."""
    if not paths:
        return resolved
    paths = {path[:-1] if path[-1] == "class_path" else path for path in paths}
    tree = rebuild(resolved.tree, lambda path, node: None if path in paths else node)
    assert isinstance(tree, MappingNode)
    written = {original_path(path, resolved.removed) for path in paths}
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
            before = [other[-1] for other in removed if other[:-1] == result and isinstance(other[-1], int)]
            for position in sorted(before):
                index += position <= index
        result = (*result, index)
    return result

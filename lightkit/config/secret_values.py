"""The secrets of a config: which of its values they are, and what stands for each.

`lightkit.config.secrets` judges a single key, value or text; this module judges a whole tree.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lightkit.config.bounds import is_any_number
from lightkit.config.interpolation import Interpolated, escape
from lightkit.config.origins import KeyPath, dotted, error_at
from lightkit.config.resolved import root_in
from lightkit.config.secrets import HIDDEN, choose_reference, is_secret, list_forms, read_default
from lightkit.config.tree import (
    Leaf,
    MappingNode,
    Node,
    entries_of,
    find,
    list_children,
    rebuild,
    to_plain,
)
from lightkit.errors import ConfigError

NOTIFIER_ADDRESSES = ("webhook_url", "urls")
"""Arguments of notifiers that hold an address, which is secret."""
_ADDRESS_PATHS = [("init_args", name) for name in NOTIFIER_ADDRESSES]
_NEEDED_BY_NO_STAGE = {*NOTIFIER_ADDRESSES, "heartbeat_url"}
_SHORTEST_OF_VARIABLE = 8  # characters; it may have nothing to do with lightkit
_PLAIN_WORD = re.compile(r"[a-z]+")
_READ_BY_OTHERS = (
    *("AWS_", "AZURE_", "CLEARML_", "COMET_", "GOOGLE_", "HF_", "LIGHTKIT_", "MLFLOW_", "NEPTUNE_"),
    *("PG", "SLACK_", "WANDB_"),
)
_IN_ADDRESS = re.compile(r"://(?:[^\s/@]*:)?\*\*\*@|[?&;][\w.-]+=\*\*\*")


class Secrets(NamedTuple):
    """The secrets that a config uses, or that its environment holds.

    Args:
        references: What stands for each value that must not be saved, by its path.
        forms: Texts that give a secret away, each with what stands for it, longest first.
    """

    references: dict[KeyPath, str]
    forms: tuple[tuple[str, str], ...]


def find_secrets(
    config: Interpolated, *, environ: Mapping[str, str], files: Iterable[Path]
) -> Secrets:
    """Find the secrets of a config.

    Those that its keys and the forms of its values give away, those that an interpolation took from
    the environment, and those of the environment that it does not use.

    Args:
        config: All layers, merged and interpolated.
        environ: Environment variables.
        files: Files of the config, whose names everybody sees.
    """
    references, own = _find_own_secrets(config)
    public = _list_public_text(config.tree, files)
    forms = {**_find_environment_secrets(environ, public), **own, **config.secrets}
    return Secrets(
        {**config.references, **references},
        tuple(sorted(forms.items(), key=lambda pair: (-len(pair[0]), pair))),
    )


def find_masked_values(tree: MappingNode) -> Iterator[ConfigError]:
    """List what is wrong with a config in which ``***`` stands for a value.

    The config of a run has it in the place of a secret.
    """
    for path, leaf, is_hidden in _list_leaves(tree, (), is_hidden=False):
        value = leaf.value if isinstance(leaf.value, str) else ""
        if (is_hidden and value == HIDDEN) or _IN_ADDRESS.search(value):
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
        if HIDDEN not in reference or _NEEDED_BY_NO_STAGE & {*path}:
            continue
        text = (
            f"{dotted(path)}: {HIDDEN} is all that a run keeps of a secret, and its later stages"
            " need the value"
        )
        node = find(tree, path)
        origin = None if node is None else node.origin
        raise error_at(f"{text}; write ${{oc.env:NAME}}, and set the variable", origin)


def drop_masked_addresses(tree: MappingNode) -> MappingNode:
    """Put null in the place of each address for messages that is ``***``.

    A run has kept nothing of it, and its later stages do without.
    """

    def change(path: KeyPath, node: Node) -> Node:
        if not _is_message_address(path):
            return node
        value = to_plain(node)
        is_masked = HIDDEN in (value if isinstance(value, list) else [value])
        return Leaf(None, node.origin) if is_masked else node

    changed = rebuild(tree, change)
    assert isinstance(changed, MappingNode)
    return changed


def _is_message_address(path: KeyPath) -> bool:
    """Return whether a path is that of an address to which a run sends messages."""
    if path == ("run", "heartbeat_url"):
        return True
    # below the callback's name, or its place in the trainer's list
    return _is_in_callbacks(path) and (path[2:] in _ADDRESS_PATHS or path[3:] in _ADDRESS_PATHS)


def _is_in_callbacks(path: KeyPath) -> bool:
    """Return whether a path is below the callbacks: the named ones, or the trainer's own."""
    is_own = path[:1] == ("trainer",) and path[1:2] in (("callbacks",), ("callbacks+",))
    return is_own or path[:1] == ("callbacks",)


# -- of the environment ----------------------------------------------------------------------------


def _find_environment_secrets(environ: Mapping[str, str], public: str) -> dict[str, str]:
    """Return the secrets that the environment holds, each with what stands for it.

    A config need not use them.

    Args:
        environ: Environment variables.
        public: Text that everybody sees: what is in it hides nothing, and a variable that has
            nothing to do with the training must not make it unreadable.
    """
    found: dict[str, str] = {}
    for name, value in environ.items():
        found |= list_forms(value, is_secret=False)
        if is_secret(name) and len(value) >= _SHORTEST_OF_VARIABLE and not _is_word(name, value):
            found |= list_forms(value, f"${{oc.env:{name}}}")
    return {form: reference for form, reference in found.items() if form not in public}


def _list_public_text(tree: MappingNode, files: Iterable[Path]) -> str:
    """Return what names a run's folder: the root, and the job's name.

    Records and messages show it.
    """
    said = {key: to_plain(node) for key, node in entries_of(tree.entries.get("run")).items()}
    root = Path(root_in(said)).expanduser().absolute()
    return "\n".join([str(root), str(said.get("name") or ""), *(file.stem for file in files)])


def _is_word(name: str, value: str) -> bool:
    """Return whether a variable that no tracker or store reads holds a plain word.

    Other texts may well hold that word.
    """
    return _PLAIN_WORD.fullmatch(value) is not None and not name.startswith(_READ_BY_OTHERS)


# -- of the config itself --------------------------------------------------------------------------


def _find_own_secrets(config: Interpolated) -> tuple[dict[KeyPath, str], dict[str, str]]:
    """Find the secrets of a config that its keys and the forms of its values give away.

    Returns:
        What stands for each value that must not be saved, by its path; and the secrets, each with
        what stands for it.
    """
    references: dict[KeyPath, str] = {}
    secrets: dict[str, str] = {}
    leaves = list(_list_leaves(config.tree, (), is_hidden=False))
    for path, leaf, is_hidden in leaves:
        # what a higher layer has replaced is shown by `explain`
        for was in leaf.replaced:
            for _, lower, is_lower_hidden in _list_leaves(was, (), is_hidden=is_hidden):
                secrets |= list_forms(lower.value, is_secret=is_lower_hidden)

        text = config.references.get(path)
        reference, forms = _refer(leaf.value, is_hidden=is_hidden, text=text)
        secrets |= forms
        if reference is not None:
            references[path] = reference

    # an interpolation that gave a secret is kept: ${data.init_args.token}
    for path, leaf, _ in leaves:
        text = config.texts.get(path)
        is_known = path in config.references
        if text and not is_known and _gives_secret(leaf.value, text, secrets):
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


def _gives_secret(value: Any, text: str, secrets: Collection[str]) -> bool:
    """Return whether the value of an interpolation holds a secret that its text does not."""
    if not isinstance(value, str):
        return False
    return any(secret in value and secret not in text for secret in secrets)


def _list_leaves(
    node: Node, path: KeyPath, *, is_hidden: bool
) -> Iterator[tuple[KeyPath, Leaf, bool]]:
    """List the scalars, each with whether a key says that it is secret.

    Below such a key all are but classes.
    """
    if isinstance(node, Leaf):
        yield path, node, is_hidden
    is_hidden = is_hidden and "class_path" not in entries_of(node)
    for key, child in list_children(node):
        is_child_hidden = is_hidden or _hides(key, child, path)
        yield from _list_leaves(child, (*path, key), is_hidden=is_child_hidden)


def _hides(key: Any, child: Node, above: KeyPath) -> bool:
    """Return whether a key says that what stands there, or below, is secret."""
    if not isinstance(key, str):
        return False
    if key in ("urls", "urls+") and _is_in_callbacks(above):  # of apprise
        return True
    name = key.removesuffix("+")
    value = child.value if isinstance(child, Leaf) else None
    return is_secret(name, value) or (not is_any_number(value) and is_secret(name))

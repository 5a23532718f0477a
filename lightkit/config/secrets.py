"""The secrets of a config that are known by what they are called, beside those that the environment gave.

A run keeps ``***`` in their place, or the reference that gave them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lightkit.config.credentials import HIDDEN, credentials_in, forms_of, is_value, tells_secret, without_credentials
from lightkit.config.interpolation import escaped
from lightkit.config.origins import KeyPath, dotted, mistake
from lightkit.config.tree import Items, Leaf, Node, Table, plain
from lightkit.errors import ConfigError

__all__ = ["ToldSecrets", "public_text", "secrets_of_variables", "unsaved"]

_SHORTEST_OF_VARIABLE = 8  # characters; it may have nothing to do with lightkit
_PLAIN_WORD = re.compile(r"[a-z]+")
_READ_BY_OTHERS = (
    *("AWS_", "AZURE_", "CLEARML_", "COMET_", "GOOGLE_", "HF_", "LIGHTKIT_", "MLFLOW_", "NEPTUNE_", "PG", "SLACK_"),
    "WANDB_",
)
_DEFAULT = re.compile(r"(?P<head>\$\{\s*oc\.env:[^,${}]+,)(?P<value>[^${}]*)\}")
_NO_DEFAULT = ("", "null")
_IN_ADDRESS = re.compile(r"://(?:[^\s/@]*:)?\*\*\*@|[?&;][\w.-]+=\*\*\*")


def secrets_of_variables(environ: Mapping[str, str], public: str = "") -> dict[str, str]:
    """Give the secrets that the environment holds, each with what stands for it, whether a config uses them or not.

    Args:
        environ: Environment variables.
        public: Text that everybody sees, such as the path of the runs: what is in it hides nothing, and a variable
            that has nothing to do with the training must not make it unreadable.
    """
    found: dict[str, str] = {}
    for name, value in environ.items():
        if "://" in value:
            found |= credentials_in(value)
        if tells_secret(name) and len(value) >= _SHORTEST_OF_VARIABLE and not _is_word(name, value):
            found |= forms_of(value, f"${{oc.env:{name}}}")
    return {form: reference for form, reference in found.items() if form not in public}


def public_text(tree: Table, files: Iterable[Path]) -> str:
    """Write what names a run's folder, which records and messages show: the root, and the job's name."""
    run = plain(tree.entries["run"]) if "run" in tree.entries else {}
    said = run if isinstance(run, dict) else {}
    root = Path(str(said.get("root") or "runs")).expanduser().absolute()
    return "\n".join([str(root), str(said.get("name") or ""), *(file.stem for file in files)])


def _is_word(name: str, value: str) -> bool:
    """Tell whether a variable that no tracker or store reads holds a plain word, which other texts may well hold."""
    return _PLAIN_WORD.fullmatch(value) is not None and not name.startswith(_READ_BY_OTHERS)


class ToldSecrets:
    """The secrets of a config whose key or form tells.

    Args:
        tree: Its values.
        known: Text of each interpolation that used the environment, by its path.
        texts: Text of every interpolation, by its path.
    """

    def __init__(self, tree: Table, known: Mapping[KeyPath, str], texts: Mapping[KeyPath, str]) -> None:
        self.references: dict[KeyPath, str] = {}
        self.secrets: dict[str, str] = {}
        self._known = known
        for path, leaf, is_told in _leaves(tree, (), is_told=False):
            self._note(path, leaf, is_told=is_told)
        self._keep_texts(tree, texts)

    def _note(self, path: KeyPath, leaf: Leaf, *, is_told: bool) -> None:
        for was in leaf.replaced:
            for _, lower, is_lower_told in _leaves(was, (), is_told=is_told):
                self.secrets |= _secrets_of(lower.value, is_told=is_lower_told)
        if path in self._known:
            self._note_known(path, leaf.value, is_told=is_told)
            return
        self.secrets |= _secrets_of(leaf.value, is_told=is_told)
        if is_told and is_value(leaf.value):
            self.references[path] = HIDDEN
        elif isinstance(leaf.value, str) and (shown := without_credentials(leaf.value)) != leaf.value:
            self.references[path] = escaped(shown)

    def _note_known(self, path: KeyPath, value: Any, *, is_told: bool) -> None:
        """Note what else gives away a secret of the environment's, and hide the default of ``${oc.env:NAME,x}``."""
        text = self._known[path]
        if is_told and isinstance(value, str):
            self.secrets |= forms_of(value, text)
        match = _DEFAULT.search(text) if is_told else None
        if match is not None and (default := match["value"].strip().strip("'\"")) not in _NO_DEFAULT:
            self.references[path] = _DEFAULT.sub(rf"\g<head>'{HIDDEN}'}}", text)
            self.secrets |= forms_of(default, HIDDEN)

    def _keep_texts(self, tree: Table, texts: Mapping[KeyPath, str]) -> None:
        """Keep the interpolation where one gave a secret: ``${data.init_args.token}`` reads back as what it gives."""
        for path, leaf, _ in _leaves(tree, (), is_told=False):
            text = texts.get(path)
            if text is None or path in self._known or not isinstance(leaf.value, str):
                continue
            if any(secret in leaf.value and secret not in text for secret in self.secrets):
                self.references[path] = text


def unsaved(tree: Table) -> Iterator[ConfigError]:
    """List what is wrong with a config in which ``***`` stands for a value, as it does in that of a run."""
    for path, leaf, is_told in _leaves(tree, (), is_told=False):
        value = leaf.value
        if isinstance(value, str) and ((is_told and value == HIDDEN) or _IN_ADDRESS.search(value)):
            says = f"{dotted(path)}: {HIDDEN} stands for a secret, of which a run keeps nothing; say its value again"
            hint = "as a flag, and write ${oc.env:NAME} for the next training, which a run keeps as it is"
            yield mistake(f"{says} {hint}", leaf.origin)


def _leaves(node: Node, path: KeyPath, *, is_told: bool) -> Iterator[tuple[KeyPath, Leaf, bool]]:
    """List the scalars, each with whether a key says that it is secret; below such a key all are but classes."""
    if isinstance(node, Leaf):
        yield path, node, is_told
    elif isinstance(node, Items):
        for index, item in enumerate(node.items):
            yield from _leaves(item, (*path, index), is_told=is_told)
    else:
        is_told = is_told and "class_path" not in node.entries
        for key, child in node.entries.items():
            value = child.value if isinstance(child, Leaf) else None
            is_key = tells_secret(key.removesuffix("+"), value) if isinstance(key, str) else False
            yield from _leaves(child, (*path, key), is_told=is_told or is_key)


def _secrets_of(value: Any, *, is_told: bool) -> dict[str, str]:
    if is_told and is_value(value) and value != HIDDEN:
        return forms_of(str(value), HIDDEN)
    return credentials_in(value) if isinstance(value, str) and "://" in value else {}

"""Find the secrets of a config by their keys and forms, and mask them in text that others have written."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from lightkit.config.credentials import (
    HIDDEN,
    find_credentials,
    is_secret_key,
    is_value,
    mask_credentials,
    secret_forms,
)
from lightkit.config.interpolation import escape
from lightkit.config.origins import KeyPath, dotted, mistake
from lightkit.config.tree import Items, Leaf, MappingNode, Node, find, plain
from lightkit.errors import ConfigError, LightkitError

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
            says = f"{dotted(path)}: {HIDDEN} stands for a secret, of which a run keeps nothing; say its value again"
            hint = "as a flag, and write ${oc.env:NAME} for the next training, which a run keeps as it is"
            yield mistake(f"{says} {hint}", leaf.origin)


def find_plain_secrets(tree: MappingNode, references: Mapping[KeyPath, str]) -> Iterator[ConfigError]:
    """List the values that a run does not keep, and that its later stages would lack, each as an error at its place."""
    for path, reference in references.items():
        if HIDDEN in reference and path[-1] not in ("webhook_url", "heartbeat_url"):  # stages do without these
            says = f"{dotted(path)}: {HIDDEN} is all that a run keeps of a secret, and its later stages need the value"
            yield mistake(
                f"{says}; write ${{oc.env:NAME}}, and set the variable", getattr(find(tree, path), "origin", None)
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


_SHORTEST_PIECE = 4  # characters of a secret beside the dots of a cut; fewer give nothing away
_LONGEST_PIECE = 1000  # what messages are cut to
_SHORTEST_LINE = 8  # of a secret of many lines; messages may hold a single one
_SHORTEST_ANYWHERE = 8  # letters and digits; a shorter secret may be a part of other words
_CUT = re.compile(r"""(?P<before>['"]?\s*)(?:\.\.\.|…)(?P<after>\s*['"]?)""")


class Mask:
    """Puts references in the place of secrets.

    Args:
        secrets: Each with the reference that stands for it, longest first.
    """

    def __init__(self, secrets: Iterable[tuple[str, str]]) -> None:
        self._references: dict[str, str] = {}
        for secret, reference in secrets:
            for form in _forms(secret):
                self._references.setdefault(form, reference)
        self._forms = sorted(self._references, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(_pattern, self._forms)))

    def __call__(self, text: str) -> str:
        """Write a text without secrets."""
        if not self._references:
            return text
        text = self._pattern.sub(lambda match: self._references[match[0]], text)
        for mark in reversed(list(_CUT.finditer(text))):
            text = self._without_pieces(text, mark)
        return text

    def _without_pieces(self, text: str, mark: re.Match[str]) -> str:
        """Mask the beginning of a secret before a cut, and the end of one after it."""
        for shown in (mark.end("after"), mark.start("after")):
            after = text[shown : shown + _LONGEST_PIECE][::-1]
            length, form = max((_overlap(form[::-1], after), form) for form in self._forms)
            if length:
                text = text[:shown] + self._references[form] + text[shown + length :]
                break
        for shown in (mark.start("before"), mark.end("before")):
            before = text[max(0, shown - _LONGEST_PIECE) : shown]
            length, form = max((_overlap(form, before), form) for form in self._forms)
            if length:
                return text[: shown - length] + self._references[form] + text[shown:]
        return text


def _overlap(form: str, text: str) -> int:
    """Count the characters with which ``form`` begins and ``text`` ends; 0 where they are few."""
    most = min(len(form), len(text))
    return next((num for num in range(most, _SHORTEST_PIECE - 1, -1) if text.endswith(form[:num])), 0)


def _pattern(form: str) -> str:
    is_word = len(form) < _SHORTEST_ANYWHERE and form.isalnum()
    return rf"(?<![^\W_]){form}(?![^\W_])" if is_word else re.escape(form)


def _forms(secret: str) -> Iterator[str]:
    """List the ways in which a secret is written."""
    for text in (secret, *(line for line in secret.splitlines() if len(line) >= _SHORTEST_LINE)):
        in_quotes = repr("'\"" + text)[4:-1]  # with each ' escaped, as in a text that holds both kinds of quotes
        yield text
        yield str(LightkitError(text))  # as errors write what a terminal would obey
        yield repr(text)[1:-1]
        yield in_quotes
        yield in_quotes.replace("\\'", "'")
        yield json.dumps(text)[1:-1]
        yield json.dumps(text, ensure_ascii=False)[1:-1]
        yield text.replace("'", "''")  # YAML's single quotes
        yield html.escape(text)
        yield from (quote(text, safe=""), quote(text), quote_plus(text))

"""Values and places as people are shown them: what the environment gave is a reference, and a default says so."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from lightkit.config.credentials import HIDDEN
from lightkit.config.interpolation import escaped
from lightkit.config.origins import KeyPath, Origin
from lightkit.config.resolved import Resolved
from lightkit.config.scalars import dump_yaml, read_scalar
from lightkit.config.tree import Items, Leaf, Node, Table

__all__ = ["Presented", "described_place", "on_one_line", "place_of"]

_PLAIN_WORD = re.compile(r"[\w./][\w./+-]*")
_INTERPOLATION = re.compile(r"(?<!\\)(\\\\)*\$\{")  # not escaped
_REFERENCE = re.compile(r"\s*\$\{\s*(?P<up>\.*)(?P<key>[^\s.${}:,][^\s${}:,]*)\s*\}\s*")
_OUTSIDE = ("flag", "variable")
_BROKEN = re.compile("[\x85\u2028\u2029]")


class Presented:
    """The values of a config, fit to be shown.

    Args:
        resolved: The config.
    """

    def __init__(self, resolved: Resolved) -> None:
        self._resolved = resolved

    def value(self, node: Node, path: KeyPath) -> Any:
        """Give the value that stands at a path; a reference where it came from the environment."""
        if path in self._resolved.references:
            return self._resolved.references[path]
        if isinstance(node, Table):
            return {key: self.value(child, (*path, key)) for key, child in node.entries.items()}
        if isinstance(node, Items):
            return [self.value(child, (*path, index)) for index, child in enumerate(node.items)]
        if isinstance(node.value, str) and self._is_from_outside(path):
            node = replace(node, value=read_scalar(node.value))
        is_written = path in self._resolved.unresolved
        return self._scalar(node, as_written=is_written)

    def _is_from_outside(self, path: KeyPath) -> bool:
        """Tell whether a value is that of a flag or variable, through interpolations that are nothing else."""
        seen: set[KeyPath] = set()
        while path not in seen and (match := _REFERENCE.fullmatch(str(self._resolved.texts.get(path, "")))):
            seen.add(path)
            names = [name for name in re.split(r"[.\[\]]+", match["key"]) if name]
            above = path[: max(0, len(path) - len(match["up"]))] if match["up"] else ()
            path = (*above, *(int(name) if name.isdigit() else name for name in names))
        origin = self._resolved.origin_of(path) if seen else None
        return origin is not None and origin.kind in _OUTSIDE

    def replaced(self, node: Node) -> Any:
        """Give a value that was replaced, as it was written."""
        if isinstance(node, Table):
            return {key: self.replaced(child) for key, child in node.entries.items()}
        if isinstance(node, Items):
            return [self.replaced(child) for child in node.items]
        return self._scalar(node, as_written=True)

    def text(self, path: KeyPath) -> str | None:
        """Give the interpolation that gave a value without the environment's help."""
        text = None if path in self._resolved.references else self._resolved.texts.get(path)
        return text if text is not None and _INTERPOLATION.search(text) else None

    def masked(self, text: str) -> str:
        """Put references in the place of what the environment gave."""
        return self._resolved.masked(text)

    def _scalar(self, leaf: Leaf, *, as_written: bool) -> Any:
        value = leaf.value
        if isinstance(value, str) and leaf.origin.kind in _OUTSIDE:
            value = read_scalar(str(value))  # text as yet; only its argument's type decides, and people mean a number
        if not isinstance(value, str):
            return HIDDEN if dict(self._resolved.secrets).get(str(value)) == HIDDEN else value
        return self._resolved.masked(str(value) if as_written else escaped(value))


def described_place(origin: Origin) -> str:
    """Say on one line where a value was set."""
    if origin.kind == "default":
        return origin.name or "default of lightkit"
    return _printable(str(origin))


def place_of(origin: Origin) -> dict[str, Any]:
    """Give a place for programs."""
    place: dict[str, Any] = {"kind": origin.kind, "name": origin.name}
    if origin.kind == "file":
        place |= {"line": origin.line, "column": origin.column}
    return place


def on_one_line(value: Any, *, in_list: bool = False, longest: int | None = None) -> str:
    """Write a value as YAML on one line.

    Args:
        value: Plain value.
        in_list: Whether it stands in brackets or braces.
        longest: Characters after which it is cut, for people's eyes only.
    """
    if isinstance(value, dict):
        text = ", ".join(f"{on_one_line(k, in_list=True)}: {on_one_line(v, in_list=True)}" for k, v in value.items())
        text = f"{{{text}}}"
    elif isinstance(value, (list, tuple)):
        text = f"[{', '.join(on_one_line(item, in_list=True) for item in value)}]"
    else:
        text = _scalar_line(value, in_list=in_list)
    return text if longest is None or len(text) <= longest else f"{text[:longest]}..."


def _scalar_line(value: Any, *, in_list: bool) -> str:
    text = dump_yaml({"k": value})[3:].strip("\n")
    quoted = isinstance(value, str) and (in_list and not _PLAIN_WORD.fullmatch(text))
    if "\n" not in text and not quoted:
        return text
    if not isinstance(value, str):
        return text.replace("\n", " ")
    return _BROKEN.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)

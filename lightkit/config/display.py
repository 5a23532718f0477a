"""Show a resolved config: redacted values, and YAML annotated with origins."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightkit.config.credentials import HIDDEN
from lightkit.config.interpolation import escape
from lightkit.config.loader import Resolved
from lightkit.config.origins import KeyPath, Origin, dotted
from lightkit.config.tree import Items, Leaf, Node, Table
from lightkit.config.yaml_reader import dump_yaml, read_scalar

_PLAIN_WORD = re.compile(r"[\w./][\w./+-]*")
_INTERPOLATION = re.compile(r"(?<!\\)(\\\\)*\$\{")  # not escape
_REFERENCE = re.compile(r"\s*\$\{\s*(?P<up>\.*)(?P<key>[^\s.${}:,][^\s${}:,]*)\s*\}\s*")
_OUTSIDE = ("flag", "variable")
_BROKEN = re.compile("[\x85\u2028\u2029]")


class RedactedConfig:
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
        return self._resolved.masked(str(value) if as_written else escape(value))


def format_origin(origin: Origin) -> str:
    """Say on one line where a value was set."""
    if origin.kind == "default":
        return origin.name or "default of lightkit"
    return _printable(str(origin))


def origin_fields(origin: Origin) -> dict[str, Any]:
    """Give a place for programs."""
    place: dict[str, Any] = {"kind": origin.kind, "name": origin.name}
    if origin.kind == "file":
        place |= {"line": origin.line, "column": origin.column}
    return place


def format_inline(value: Any, *, in_list: bool = False, longest: int | None = None) -> str:
    """Write a value as YAML on one line.

    Args:
        value: Plain value.
        in_list: Whether it stands in brackets or braces.
        longest: Characters after which it is cut, for people's eyes only.
    """
    if isinstance(value, dict):
        entries = (f"{format_inline(k, in_list=True)}: {format_inline(v, in_list=True)}" for k, v in value.items())
        text = ", ".join(entries)
        text = f"{{{text}}}"
    elif isinstance(value, (list, tuple)):
        text = f"[{', '.join(format_inline(item, in_list=True) for item in value)}]"
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


_WIDEST = 60  # characters of a line for which the others' comments move to the right
_LONGEST_LIST = 60
_LONGEST_REPLACED = 40


@dataclass
class _Line:
    text: str
    comment: str = ""


def format_annotated(
    node: Node, path: KeyPath, presented: RedactedConfig, *, replaced: Callable[[KeyPath, Node], Sequence[Node]]
) -> str:
    """Write a value and all below it, with the place of each beside it.

    Args:
        node: The value.
        path: Its path, which stands as one dotted key before it; nothing stands there for the whole config.
        presented: What to show.
        replaced: Gives what stood in the place of a value before, lowest layer first.
    """
    writer = _Writer(presented, replaced)
    if path:
        writer.entry(f"{dotted(key for key in path if key != 'init_args')}:", node, path, depth=0)
    elif isinstance(node, Table):
        for key, child in node.entries.items():
            writer.entry(f"{_key(key)}:", child, (key,), depth=0)
    lines = writer.lines or [_Line("{}")]
    widths = [len(line.text) for line in lines if line.comment]
    width = max([width for width in widths if width <= _WIDEST], default=0)
    return "".join(f"{line.text:<{width}}  # {line.comment}\n" if line.comment else f"{line.text}\n" for line in lines)


class _Writer:
    """Collects lines, parents first."""

    def __init__(self, presented: RedactedConfig, replaced: Callable[[KeyPath, Node], Sequence[Node]]) -> None:
        self._presented = presented
        self._replaced = replaced
        self.lines: list[_Line] = []

    def entry(self, head: str, node: Node, path: KeyPath, *, depth: int) -> None:
        """Write a value after its key, or after the dash of a list's element."""
        inner = "  " * (depth + 1)
        if self._fits_on_a_line(node, path):
            value = format_inline(self._presented.value(node, path))
            self.lines.append(_Line(f"{head} {value}", self._comment(node, path)))
            return
        first = len(self.lines)
        before = [was for was in self._replaced(path, node) if not isinstance(was, type(node))]
        self.lines.append(_Line(head, self._note(before)))
        if isinstance(node, Table):
            for key, child in node.entries.items():
                self.entry(f"{inner}{_key(key)}:", child, (*path, key), depth=depth + 1)
        elif isinstance(node, Items):
            for index, item in enumerate(node.items):
                self.entry(f"{inner}-", item, (*path, index), depth=depth + 1)
        if isinstance(node, Table) and head.endswith("-") and not self.lines[first].comment:
            self.lines[first] = _Line(f"{head} {self.lines[first + 1].text.lstrip()}", self.lines[first + 1].comment)
            del self.lines[first + 1]

    def _fits_on_a_line(self, node: Node, path: KeyPath) -> bool:
        if isinstance(node, Table):
            return not node.entries
        if isinstance(node, Leaf):
            return True
        own = {item.origin.file for item in node.items} <= {node.origin.file}
        own = own and {item.origin.line for item in node.items} <= {node.origin.line}
        short = all(isinstance(item, Leaf) and not item.replaced for item in node.items)
        return own and short and len(format_inline(self._presented.value(node, path))) <= _LONGEST_LIST

    def _comment(self, node: Node, path: KeyPath) -> str:
        written = self._presented.text(path)
        interpolation = f", {format_inline(written)}" if written is not None else ""
        note = self._note(self._replaced(path, node))
        said = f"{format_origin(node.origin)}{interpolation}{f'  {note}' if note else ''}"
        return self._presented.masked(said)

    def _note(self, before: Sequence[Node]) -> str:
        shown = [
            f"{format_inline(self._presented.replaced(was), longest=_LONGEST_REPLACED)} of {format_origin(was.origin)}"
            for was in before
        ]
        return f"(replaced {', '.join(shown)})" if shown else ""


def _key(key: Any) -> str:
    return dump_yaml({key: None}).removesuffix(": null\n")


def iterate_leaves(node: Node, path: KeyPath) -> Iterator[tuple[KeyPath, Node]]:
    """List the values below a node with their paths: scalars, lists of scalars, and what is empty."""
    if isinstance(node, Table) and node.entries:
        for key, child in node.entries.items():
            yield from iterate_leaves(child, (*path, key))
    elif isinstance(node, Items) and any(isinstance(item, Table) for item in node.items):
        for index, item in enumerate(node.items):
            yield from iterate_leaves(item, (*path, index))
    elif isinstance(node, (Leaf, Items, Table)):
        yield path, node

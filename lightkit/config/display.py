"""Show a resolved config: redacted values, and YAML annotated with origins."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lightkit.config.interpolation import escape
from lightkit.config.loader import Resolved
from lightkit.config.origins import KeyPath, Origin, dotted
from lightkit.config.secrets import HIDDEN
from lightkit.config.tree import Items, Leaf, MappingNode, Node
from lightkit.config.yaml_reader import dump_yaml, read_scalar

_PLAIN_WORD = re.compile(r"[\w./][\w./+-]*")
_INTERPOLATION = re.compile(r"(?<!\\)(\\\\)*\$\{")  # not escaped
_OUTSIDE = ("flag", "variable")
_LINE_BREAK = re.compile("[\x85\u2028\u2029]")
_WIDEST = 60  # characters of a line for which the others' comments move to the right
_LONGEST_LIST = 60
_LONGEST_REPLACED = 40


class RedactedConfig:
    """The values of a config, fit to be shown.

    Args:
        resolved: The config.
    """

    def __init__(self, resolved: Resolved) -> None:
        self._resolved = resolved

    def value(self, node: Node, path: KeyPath | None = None) -> Any:
        """Return the value at a path; a reference where it came from the environment.

        Without a path it is one that was replaced, as it was written.
        """
        if path is not None and path in self._resolved.references:
            return self._resolved.references[path]

        def below(key: Any) -> KeyPath | None:
            return None if path is None else (*path, key)

        if isinstance(node, MappingNode):
            return {key: self.value(child, below(key)) for key, child in node.entries.items()}
        if isinstance(node, Items):
            return [self.value(child, below(index)) for index, child in enumerate(node.items)]
        return self._scalar(node, as_written=path is None or path in self._resolved.unresolved)

    def placed(self, node: Node, path: KeyPath | None = None) -> dict[str, Any]:
        """Return the value as `value`, and the place that set it as `set_by`, both fit for JSON."""
        fields = origin_fields(node.origin).items()
        set_by = {name: self.masked(field) if isinstance(field, str) else field for name, field in fields}
        return {"value": self.value(node, path), "set_by": set_by}

    def text(self, path: KeyPath) -> str | None:
        """Return the interpolation that gave a value without the environment's help."""
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
    """Write on one line where a value was set."""
    return "".join(letter if letter.isprintable() else " " for letter in str(origin))


def format_place(place: Mapping[str, Any]) -> str:
    """Write on one line what `origin_fields` returns."""
    return format_origin(Origin(**place))


def origin_fields(origin: Origin) -> dict[str, Any]:
    """Return a place as fields of JSON."""
    place: dict[str, Any] = {"kind": origin.kind, "name": origin.name}
    return place | ({"line": origin.line, "column": origin.column} if origin.kind == "file" else {})


def format_column(values: Sequence[Mapping[str, Any]], *, longest: int) -> list[str]:
    """Write what `RedactedConfig.placed` returns on a line each, with the places in a column."""
    texts = [format_inline(each["value"], longest=longest) for each in values]
    width = max((len(text) for text in texts if len(text) <= longest // 2), default=0)
    places = [format_place(each["set_by"]) if "set_by" in each else "" for each in values]
    return [f"{text:<{width}}  {place}".rstrip() for text, place in zip(texts, places, strict=True)]


def format_inline(value: Any, *, in_list: bool = False, longest: int | None = None) -> str:
    """Write a value as YAML on one line.

    Args:
        value: Plain value.
        in_list: Whether it stands in brackets or braces.
        longest: Characters after which it is cut.
    """
    if isinstance(value, dict):
        entries = (f"{format_inline(k, in_list=True)}: {format_inline(v, in_list=True)}" for k, v in value.items())
        text = f"{{{', '.join(entries)}}}"
    elif isinstance(value, (list, tuple)):
        text = f"[{', '.join(format_inline(item, in_list=True) for item in value)}]"
    else:
        text = dump_yaml({"k": value})[3:].strip("\n")
        needs_quotes = "\n" in text or (in_list and not _PLAIN_WORD.fullmatch(text))
        if isinstance(value, str) and needs_quotes:
            quoted = json.dumps(value, ensure_ascii=False)
            text = _LINE_BREAK.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)
        text = text.replace("\n", " ")
    return text if longest is None or len(text) <= longest else f"{text[:longest]}..."


def format_annotated(
    node: Node, path: KeyPath, redacted: RedactedConfig, *, replaced: Callable[[KeyPath, Node], Sequence[Node]]
) -> str:
    """Write a value and all below it as YAML, with the place of each in a comment.

    Args:
        node: The value.
        path: Its path, written as one dotted key before it; empty for the whole config.
        redacted: The config that holds it.
        replaced: Returns the values that a value replaced, lowest layer first.
    """
    lines: list[tuple[str, str]] = []

    def comment(values: Sequence[Node]) -> str:
        texts = [
            f"{format_inline(redacted.value(was), longest=_LONGEST_REPLACED)} of {format_origin(was.origin)}"
            for was in values
        ]
        return f"(replaced {', '.join(texts)})" if texts else ""

    def fits_on_a_line(node: Node, path: KeyPath) -> bool:
        if not isinstance(node, Items):
            return isinstance(node, Leaf) or not node.entries
        place = (node.origin.file, node.origin.line)
        is_plain = all(
            isinstance(item, Leaf) and not item.replaced and (item.origin.file, item.origin.line) == place
            for item in node.items
        )
        return is_plain and len(format_inline(redacted.value(node, path))) <= _LONGEST_LIST

    def write(head: str, node: Node, path: KeyPath, indent: str) -> None:
        before = replaced(path, node)
        if fits_on_a_line(node, path):
            text = redacted.text(path)
            place = format_origin(node.origin) + (f", {format_inline(text)}" if text is not None else "")
            place += f"  {comment(before)}" if before else ""
            lines.append((f"{head} {format_inline(redacted.value(node, path))}", redacted.masked(place)))
            return
        lines.append((head, comment([was for was in before if not isinstance(was, type(node))])))
        if isinstance(node, Items):
            for index, item in enumerate(node.items):
                write(f"{indent}-", item, (*path, index), indent + "  ")
        elif isinstance(node, MappingNode):
            for key, child in node.entries.items():
                write(f"{indent}{_format_key(key)}:", child, (*path, key), indent + "  ")

    if path:
        write(f"{dotted(key for key in path if key != 'init_args')}:", node, path, "  ")
    elif isinstance(node, MappingNode):
        for key, child in node.entries.items():
            write(f"{_format_key(key)}:", child, (key,), "  ")
    lengths = (len(text) for text, place in lines if place)
    width = max((length for length in lengths if length <= _WIDEST), default=0)
    return "".join(f"{text:<{width}}  # {place}\n" if place else f"{text}\n" for text, place in lines or [("{}", "")])


def _format_key(key: Any) -> str:
    return dump_yaml({key: None}).removesuffix(": null\n")


def iterate_leaves(node: Node, path: KeyPath) -> Iterator[tuple[KeyPath, Node]]:
    """List the values below a node with their paths: scalars, lists of scalars, and what is empty."""
    if isinstance(node, MappingNode) and node.entries:
        for key, child in node.entries.items():
            yield from iterate_leaves(child, (*path, key))
    elif isinstance(node, Items) and any(isinstance(item, MappingNode) for item in node.items):
        for index, item in enumerate(node.items):
            yield from iterate_leaves(item, (*path, index))
    elif isinstance(node, (Leaf, Items, MappingNode)):
        yield path, node

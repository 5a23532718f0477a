"""Show a resolved config: redacted values, and YAML annotated with origins."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from lightkit.config.interpolation import escape
from lightkit.config.origins import KeyPath, Origin, dotted, setting_key
from lightkit.config.packaged import PREFIX, packaged_configs
from lightkit.config.resolved import Resolved
from lightkit.config.secrets import HIDDEN
from lightkit.config.tree import (
    Items,
    Leaf,
    MappingNode,
    Node,
    is_setting,
    list_children,
    to_plain,
    walk,
)
from lightkit.config.yaml_reader import dump_yaml, read_scalar

_PLAIN_WORD = re.compile(r"[\w./][\w./+-]*")
_INTERPOLATION = re.compile(r"(?<!\\)(\\\\)*\$\{")  # not escaped
_LINE_BREAK = re.compile("[\x85\u2028\u2029]")
_WIDEST = 60  # characters of a line for which the others' comments move to the right
_LONGEST_LIST = 60
_LONGEST_REPLACED = 40


def redact_node(resolved: Resolved, node: Node, path: KeyPath | None = None) -> Any:
    """Return the value at a path, fit to be shown: a reference where it came from the environment.

    Without a path it is one that was replaced, as it was written.
    """
    if path in resolved.references:
        return resolved.references[path]
    if not isinstance(node, Leaf):
        shown = {
            key: redact_node(resolved, child, None if path is None else (*path, key))
            for key, child in list_children(node)
        }
        return shown if isinstance(node, MappingNode) else [*shown.values()]
    value = node.value
    if isinstance(value, str) and node.origin.kind in ("flag", "variable"):
        value = read_scalar(value)  # people mean a number; only its argument's type decides
    if not isinstance(value, str):
        return HIDDEN if (str(value), HIDDEN) in resolved.secrets else value
    is_as_written = path is None or path in resolved.unresolved
    return resolved.masked(str(value) if is_as_written else escape(value))


def describe_node(resolved: Resolved, node: Node, path: KeyPath | None = None) -> dict[str, Any]:
    """Return the value as `redact_node`, and the place that set it as `set_by`, for JSON."""
    origin = node.origin
    set_by: dict[str, Any] = {"kind": origin.kind, "name": resolved.masked(origin.name)}
    set_by |= {"line": origin.line, "column": origin.column} if origin.kind == "file" else {}
    return {"value": redact_node(resolved, node, path), "set_by": set_by}


def find_written(resolved: Resolved, path: KeyPath) -> str | None:
    """Return the interpolation that gave a value without the environment's help."""
    text = None if path in resolved.references else resolved.texts.get(path)
    return text if text is not None and _INTERPOLATION.search(text) else None


def format_place(place: Mapping[str, Any]) -> str:
    """Write on one line the fields of JSON that say where a value was set."""
    return str(Origin(**place))


def format_column(values: Sequence[Mapping[str, Any]], *, longest: int) -> list[str]:
    """Write what `describe_node` returns on a line each, with the places in a column."""
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
        entries = (
            f"{format_inline(k, in_list=True)}: {format_inline(v, in_list=True)}"
            for k, v in value.items()
        )
        text = f"{{{', '.join(entries)}}}"
    elif isinstance(value, (list, tuple)):
        text = f"[{', '.join(format_inline(item, in_list=True) for item in value)}]"
    else:
        text = _format_scalar(value, in_list=in_list)
    return text if longest is None or len(text) <= longest else f"{text[:longest]}..."


def _format_scalar(value: Any, *, in_list: bool) -> str:
    """Write a single value as YAML on one line, in quotes where it needs them."""
    text = dump_yaml({"k": value})[3:].strip("\n")
    needs_quotes = "\n" in text or (in_list and not _PLAIN_WORD.fullmatch(text))
    if isinstance(value, str) and needs_quotes:
        quoted = json.dumps(value, ensure_ascii=False)
        text = _LINE_BREAK.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)
    return text.replace("\n", " ")


def format_annotated(resolved: Resolved, node: Node, path: KeyPath) -> str:
    """Write a value as YAML, with the place of each, and what it replaced, as comments.

    Args:
        resolved: The config that holds it.
        node: The value.
        path: Its path, written as one dotted key before it; empty for the whole config.
    """
    writer = _Annotator(resolved)
    if path:
        writer.write(f"{dotted(key for key in path if key != 'init_args')}:", node, path, "  ")
    else:
        writer.write_below(node, path, "")
    return writer.format()


class _Annotator:
    """Writes values as YAML, each line with its place."""

    def __init__(self, resolved: Resolved) -> None:
        self._resolved = resolved
        self._lines: list[tuple[str, str]] = []

    def format(self) -> str:
        """Write the lines, with their places in a column."""
        lines = self._lines or [("{}", "")]
        lengths = [len(text) for text, place in lines if place]
        width = max((length for length in lengths if length <= _WIDEST), default=0)
        return "".join(
            f"{text:<{width}}  # {place}\n" if place else f"{text}\n" for text, place in lines
        )

    def write(self, head: str, node: Node, path: KeyPath, indent: str) -> None:
        """Write a key or a dash with its value, in one line where that fits."""
        if not self._fits_on_a_line(node, path):
            others = [was for was in node.replaced if not isinstance(was, type(node))]
            self._lines.append((head, self._format_replaced(others)))
            self.write_below(node, path, indent)
            return
        place = str(node.origin)
        text = find_written(self._resolved, path)
        if text is not None:
            place += f", {format_inline(text)}"
        before = self._format_replaced(node.replaced)
        if before:
            place += f"  {before}"
        value = format_inline(redact_node(self._resolved, node, path))
        self._lines.append((f"{head} {value}", self._resolved.masked(place)))

    def write_below(self, node: Node, path: KeyPath, indent: str) -> None:
        """Write the entries of a mapping or a list."""
        if isinstance(node, Items):
            for index, item in enumerate(node.items):
                self.write(f"{indent}-", item, (*path, index), indent + "  ")
        elif isinstance(node, MappingNode):
            for key, child in node.entries.items():
                name = dump_yaml({key: None}).removesuffix(": null\n")
                self.write(f"{indent}{name}:", child, (*path, key), indent + "  ")

    def _format_replaced(self, values: Sequence[Node]) -> str:
        texts = [
            f"{format_inline(redact_node(self._resolved, was), longest=_LONGEST_REPLACED)} of"
            f" {was.origin}"
            for was in values
        ]
        return f"(replaced {', '.join(texts)})" if texts else ""

    def _fits_on_a_line(self, node: Node, path: KeyPath) -> bool:
        if not isinstance(node, Items):
            return isinstance(node, Leaf) or not node.entries
        place = (node.origin.file, node.origin.line)
        is_plain = all(
            isinstance(item, Leaf)
            and not item.replaced
            and (item.origin.file, item.origin.line) == place
            for item in node.items
        )
        value = redact_node(self._resolved, node, path)
        return is_plain and len(format_inline(value)) <= _LONGEST_LIST


def _holds_reference(path: KeyPath, resolved: Resolved) -> bool:
    """Return whether a value came from the environment, or has or is a part that did."""
    return any(path[: len(other)] == other[: len(path)] for other in resolved.references)


class Written(NamedTuple):
    """The values of a config as they are written.

    Args:
        values: Values without secrets, as JSON has them, by dotted key.
        secrets: Values that are secret or came from the environment, as JSON, by dotted key.
        origins: The place that set each value, by its `setting_key`; of a packaged config by its
            short name.
        ckpt_path: Checkpoint that the user names, as it is shown.
    """

    values: dict[str, Any]
    secrets: dict[str, str]
    origins: dict[str, str]
    ckpt_path: str | None = None


def list_written(
    resolved: Resolved, *, by_rule: Collection[str], ckpt_path: str | None = None
) -> Written:
    """List the values of a config as they are written.

    Args:
        resolved: The config.
        by_rule: Keys whose values the hardware has decided, where ``auto`` is written.
        ckpt_path: Checkpoint that the user names, in the config or by an option.
    """
    names = {file: f"{PREFIX}{name}" for name, file in packaged_configs().items()}
    values: dict[str, Any] = {}
    secrets: dict[str, str] = {}
    origins: dict[str, str] = {}
    for path, node in walk(resolved.tree, ends=is_setting):
        if not is_setting(node):
            continue
        key = dotted(path)
        values[key] = "auto" if key in by_rule else redact_node(resolved, node, path)
        text = json.dumps(to_plain(node), default=str, ensure_ascii=False)
        if _holds_reference(path, resolved) or resolved.masked(text) != text:
            secrets[key] = text

        name = names.get(node.origin.file or Path(), node.origin.name)
        if node.origin.kind != "default" and name:
            origins[setting_key(path)] = resolved.masked(str(replace(node.origin, name=name)))
    return Written(
        json.loads(json.dumps(values, default=str), parse_constant=lambda _: None),
        secrets,
        origins,
        resolved.masked(ckpt_path),
    )

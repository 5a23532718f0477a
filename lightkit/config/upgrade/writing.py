"""Values as YAML text, for the lines that an upgrade adds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from lightkit.config.yaml_reader import dump_yaml, read_scalar

__all__ = ["Raw", "block_lines", "flow_text", "reindented"]


class Raw(str):
    """YAML text that stands as it was written: a scalar or a flow collection on one line."""

    __slots__ = ()


def flow_text(value: Any, *, as_json: bool = False) -> str:
    """Write a value on one line: ``[0, 3]``, ``{max_depth: -1}``; with ``as_json``, so that it is JSON too."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, Mapping):
        pairs = [
            f"{flow_text(key, as_json=as_json)}: {flow_text(child, as_json=as_json)}" for key, child in value.items()
        ]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(flow_text(child, as_json=as_json) for child in value) + "]"
    return json.dumps(value, ensure_ascii=False) if as_json else _scalar(value)


def block_lines(key: Any, value: Any, indent: int, *, step: int = 2) -> list[str]:
    """Write a key and its value as lines, mappings in block style, each ``step`` columns further in."""
    margin = " " * indent
    if isinstance(value, Mapping) and value:
        lines = [f"{margin}{flow_text(key)}:"]
        for inner, child in value.items():
            lines += block_lines(inner, child, indent + step, step=step)
        return lines
    return [f"{margin}{flow_text(key)}: {flow_text(value)}"]


def reindented(lines: list[str], by: int) -> list[str]:
    """Move lines to the right, or to the left as far as they have spaces."""
    if by >= 0:
        return [" " * by + line if line.strip() else line for line in lines]
    return [line[min(-by, len(line) - len(line.lstrip(" "))) :] for line in lines]


def _scalar(value: Any) -> str:
    text = dump_yaml({"key": value}).removeprefix("key:").strip()
    in_flow = isinstance(value, str) and any(letter in value for letter in ",[]{}")
    if "\n" in text or (in_flow and text[:1] not in "'\""):
        text = yaml.safe_dump(value, default_style='"', width=2**20).strip()
    assert not isinstance(value, str) or read_scalar(text) == value
    return text

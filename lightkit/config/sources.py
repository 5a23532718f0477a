"""Sources of an interpolated value.

The keys and environment variables that its text uses, as `explain` shows them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightkit.config.display import describe_node
from lightkit.config.interpolation import list_references
from lightkit.config.origins import KeyPath, dotted
from lightkit.config.resolved import Resolved
from lightkit.config.schema import list_branches
from lightkit.config.secrets import is_secret
from lightkit.config.tree import Leaf, Node, find
from lightkit.config.yaml_reader import read_scalar

_VARIABLE = re.compile(r"\$\{\s*oc\.env:\s*([^,${}\s]+)")
_TEXTS = ("string", "class", "callable")
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "text", type(None): "null"}


def describe_interpolation(
    resolved: Resolved,
    path: KeyPath,
    node: Node,
    *,
    schema: Mapping[str, Any],
    environ: Mapping[str, str],
) -> dict[str, Any]:
    """Describe a value that an interpolation gave.

    The value itself, its text, its type and what it is made of.

    A number or a switch is shown also where an environment variable gave it, unless a key or the
    variable says that it is secret; of text from the environment the interpolation stands for it,
    as in saved configs.

    Args:
        resolved: The config.
        path: Path of the value.
        node: The value.
        schema: JSON Schema of the argument; empty where it is unknown.
        environ: Environment variables.

    Returns:
        ``value``, ``written``, ``type`` and ``sources``; empty for a value that was written as it
        is, and for a mapping or a list. Without ``value`` and ``type`` where the value is not
        shown, or cannot be resolved.
    """
    text = resolved.texts.get(path)
    if text is None or not isinstance(node, Leaf) or path in resolved.unresolved:
        return {}
    sources = list(_list_sources(resolved, path, text, environ, seen={path}))
    found: dict[str, Any] = {
        "written": resolved.masked(text) if path not in resolved.references else None
    }
    found["sources"] = sources
    value = read_typed(node.value, schema)
    if path in resolved.references:
        found["written"] = resolved.references[path]
        if not _may_be_shown(value, path, sources):
            return found
    elif isinstance(value, str):
        value = resolved.masked(value)
    return {**found, "value": value, "type": _NAMES.get(type(value), type(value).__name__)}


def read_typed(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return text as a number, a switch or null where its argument takes no text.

    As jsonargparse converts it.
    """
    takes_text = not schema or any(
        not branch or branch.get("type") in _TEXTS or "enum" in branch or "class" in branch
        for branch in list_branches(dict(schema))
    )
    return value if takes_text else read_scalar(value)


def _may_be_shown(value: Any, path: KeyPath, sources: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a value from the environment, or of a variable's default, is no secret."""
    names = list(path)
    for each in sources:
        names += re.split(r"[.\[\]]", each["key"]) if "key" in each else [each["variable"]]
    if any(is_secret(name) for name in names):
        return False
    if isinstance(value, str):
        return not any(each.get("is_set") for each in sources)
    return not isinstance(value, float) or math.isfinite(value)


def _list_sources(
    resolved: Resolved, path: KeyPath, text: str, environ: Mapping[str, str], *, seen: set[KeyPath]
) -> Iterator[dict[str, Any]]:
    """List the variables and the keys that a text uses, those of a key after the key."""
    for name in dict.fromkeys(_VARIABLE.findall(text)):
        yield {"variable": name, "is_set": name in environ}
    for there in list_references(text, path):
        node = find(resolved.tree, there)
        if node is None or there in seen:
            continue
        seen.add(there)
        yield {"key": dotted(there), **describe_node(resolved, node, there)}
        further = resolved.texts.get(there)
        if further is not None:
            yield from _list_sources(resolved, there, further, environ, seen=seen)


def format_source(source: Mapping[str, Any], *, value: str, place: str) -> str:
    """Write a source of an interpolation on one line.

    Args:
        source: As `describe_interpolation` lists it.
        value: The value of a key as YAML.
        place: Where that was set.
    """
    if "variable" in source:
        is_set = "" if source["is_set"] else ", which is not set: the default in the text counts"
        return f"environment variable {source['variable']}{is_set}"
    return f"{source['key']}: {value}  {place}".rstrip()

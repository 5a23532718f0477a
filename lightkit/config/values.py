"""The values of flags and variables: text, of which only mappings, lists and null are read here."""

from __future__ import annotations

from typing import Any

from lightkit.config.origins import Origin, mistake
from lightkit.config.reading import YamlSyntaxError, read_text
from lightkit.config.tree import Leaf, Node, graft, plain
from lightkit.errors import ConfigError

__all__ = ["read_value"]

_NULLS = ("~", "null", "Null", "NULL")


def read_value(text: str, origin: Origin) -> Node:
    """Read the value of a flag or variable.

    Mappings, lists and null are read as YAML. Other scalars stay text, because only the type of the argument they
    go to can tell whether ``123`` is a number or a name. So does ``title: subtitle``, which YAML takes for a mapping.

    Raises:
        ConfigError: If a mapping repeats a key, or the value nests too deeply or grows too large by its aliases.
    """
    stripped = text.strip()
    if stripped in _NULLS:
        return Leaf(None, origin)
    if not (stripped.startswith(("{", "[", "class_path:")) or "\n" in stripped):
        return Leaf(text, origin)
    value = _collection(text, origin)
    return Leaf(text, origin) if value is None else graft(value, origin)


def _collection(text: str, origin: Origin) -> dict[Any, Any] | list[Any] | None:
    try:
        value = plain(read_text(text, name=str(origin)))
    except YamlSyntaxError:
        return None
    except ConfigError as error:
        raise mistake(str(error).splitlines()[0], origin) from None
    if isinstance(value, dict) and value and all(child is None for child in value.values()):
        return None  # `{epoch}` is text for a file name, not a mapping
    return value if isinstance(value, (dict, list)) else None

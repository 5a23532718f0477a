"""Read a section of plain keys into the object of its settings."""

from __future__ import annotations

from typing import Any, TypeVar

from lightkit.config.resolved import Resolved
from lightkit.config.schema import accepts_null, load_schema, read_value

_Settings = TypeVar("_Settings")


def read_section(resolved: Resolved, name: str, settings: type[_Settings]) -> _Settings:
    """Build the settings of a section whose keys and values have been checked.

    The text of a flag becomes a value of the key's type. A null where the type has none leaves the
    default.

    Args:
        resolved: The config.
        name: Name of the section.
        settings: Class of the settings, from whose signature the schema has the section.
    """
    values: dict[str, Any] = {}
    given = resolved.section(name)
    for key, argument in load_schema().sections[name].arguments.items():
        if key in given and (given[key] is not None or accepts_null(argument.schema)):
            values[key] = read_value(argument.schema, given[key])
    return settings(**values)

"""YAML scalars as jsonargparse reads them, so that ``1e-3`` is a number here too, and YAML text that reads back equal.

Copied from `jsonargparse._loaders_dumpers.get_yaml_default_loader` (4.53), which is private; a test compares the two.
"""

from __future__ import annotations

import re
from enum import Enum
from pathlib import PurePath
from typing import Any

import yaml

__all__ = ["SCALAR_TAGS", "YamlLoader", "dump_yaml", "read_scalar"]

_FLOAT_TAG = "tag:yaml.org,2002:float"
_FLOAT = re.compile(
    r"""^(?:
     [-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
    |\.[0-9_]+(?:[eE][-+][0-9]+)?
    |[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
SCALAR_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "value"))


def _resolvers(inherited: dict[str, list[tuple[str, Any]]]) -> dict[str, list[tuple[str, Any]]]:
    dropped = ("tag:yaml.org,2002:timestamp", _FLOAT_TAG)
    kept = {first: [pair for pair in pairs if pair[0] not in dropped] for first, pairs in inherited.items()}
    for first in "-+0123456789.":
        kept.setdefault(first, []).append((_FLOAT_TAG, _FLOAT))
    return kept


class YamlLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """PyYAML's safe loader with jsonargparse's idea of a number."""

    yaml_implicit_resolvers = _resolvers(yaml.SafeLoader.yaml_implicit_resolvers)


YamlLoader.add_constructor("tag:yaml.org,2002:value", yaml.constructor.SafeConstructor.construct_yaml_str)


class _Dumper(yaml.SafeDumper):
    """The counterpart of `YamlLoader`: puts quotes around what that would take for a number."""

    yaml_implicit_resolvers = _resolvers(yaml.SafeDumper.yaml_implicit_resolvers)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML 6.0.3 writes these line breaks into single quotes, where they read back as spaces.
    style = '"' if any(rare in text for rare in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_multi_representer(Enum, lambda dumper, word: dumper.represent_data(word.value))
_Dumper.add_representer(tuple, _Dumper.represent_list)
_Dumper.add_multi_representer(PurePath, lambda dumper, path: dumper.represent_str(str(path)))


def dump_yaml(config: dict[str, Any]) -> str:
    """Write a config as YAML in its own order; `resolve` reads it back equal."""
    text: str = yaml.dump(config, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


def read_scalar(text: str) -> Any:
    """Read one scalar; text that is none is itself."""
    try:
        value = yaml.load(text, Loader=YamlLoader)  # noqa: S506 - a subclass of the safe loader
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    return text if isinstance(value, (dict, list)) or text == "" else value

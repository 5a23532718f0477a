"""The layers above the files: environment variables and the flags of the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightkit.config.origins import Origin, Problems, error_at
from lightkit.config.secrets import mask_line
from lightkit.config.tree import Leaf, MappingNode, Node, entries_of, graft, to_plain
from lightkit.config.yaml_reader import MAX_DEPTH, TOO_LARGE, YamlSyntaxError, read_text
from lightkit.errors import ConfigError, cut

PREFIX = "LIGHTKIT_"
_RESERVED = ("LIGHTKIT_DATA",)
"""Variables with the prefix that are no layer. ``LIGHTKIT_DATA`` is the folder of `Flowers`'
photos."""

_NULLS = ("~", "null", "Null", "NULL")


@dataclass(frozen=True)
class Flag:
    """A key that the command line sets.

    Args:
        key: Dotted key.
        value: Its value as typed.
        text: The flag as typed, for its origin; it may be another flag that stands for this one.
        append: Whether it was ``key+=value``.
    """

    key: str
    value: str
    text: str
    append: bool = False


def flag_layers(flags: Iterable[Flag], problems: Problems) -> list[MappingNode]:
    """Make a layer of each flag.

    ``problems`` collects keys with an empty part and values that cannot be read.
    """
    layers = []
    for flag in flags:
        with problems.noted():
            text = mask_line(flag.text)
            if flag.text.endswith(flag.value):  # unless it stands for several keys, as `--space`
                setting = mask_line(f"{flag.key}={flag.value}")
                text = flag.text.removesuffix(flag.value) + setting.removeprefix(f"{flag.key}=")
            origin = Origin("flag", text)
            keys = flag.key.split(".")
            if not all(keys):
                raise ConfigError(
                    f"{cut(flag.text)}: expected keys joined by single dots, such as"
                    " trainer.max_epochs"
                )
            keys[-1] += "+" if flag.append else ""
            layers.append(nest(keys, _read_value(flag.value, origin), origin))
    return layers


def is_layer(variable: str) -> bool:
    """Return whether an environment variable of this name sets a key of the config."""
    return variable.startswith(PREFIX) and variable not in _RESERVED


def variable_layers(environ: Mapping[str, str], problems: Problems) -> list[MappingNode]:
    """Read the variables ``LIGHTKIT_TRAINER__MAX_EPOCHS=3`` as layers, with keys in lower case.

    Those of sections before those inside them.

    Args:
        environ: Variables by name.
        problems: Collects the errors: a name with an empty part, a value that cannot be read.
    """
    layers = []
    for name in sorted(filter(is_layer, environ), key=lambda name: (name.count("__"), name)):
        parts = name[len(PREFIX) :].lower().split("__")
        origin = Origin("variable", name)
        with problems.noted():
            if not all(parts):
                text = (
                    f"{cut(name)}: expected keys joined by two underscores, such as"
                    f" {PREFIX}TRAINER__MAX_EPOCHS"
                )
                raise ConfigError(text)
            layers.append(nest(parts, _read_value(environ[name], origin), origin))
    return layers


def match_case(layer: MappingNode, lower: Node | None) -> MappingNode:
    """Return the layer of a variable with its keys in the case of the layers below.

    Args:
        layer: The layer.
        lower: Merged layers below: a key there that differs in case only, such as ``T_max``, is the
            one meant.
    """
    if not layer.partial:  # the value, or a file that it names
        return layer
    known = entries_of(lower)
    in_case = {key.lower(): key for key in reversed(known) if isinstance(key, str)}
    entries: dict[Any, Node] = {}
    for key, node in layer.entries.items():
        name = in_case.get(key, key)
        below = known.get(name)
        entries[name] = match_case(node, below) if isinstance(node, MappingNode) else node
    return replace(layer, entries=entries)


def nest(keys: Sequence[str], value: Node, origin: Origin) -> MappingNode:
    """Put a value below the keys of a dotted key.

    Raises:
        ConfigError: If it nests too deeply.
    """
    if len(keys) > MAX_DEPTH:
        raise ConfigError(f"{str(origin)[:80]}...: {TOO_LARGE}")
    node = value
    for key in reversed(keys):
        node = MappingNode({key: node}, origin, partial=True)
    assert isinstance(node, MappingNode)
    return node


def _read_value(text: str, origin: Origin) -> Node:
    """Read the value of a flag or variable: mappings, lists and null as YAML, other scalars text.

    Only the type of the argument can tell whether ``123`` is a number or a name.
    ``title: subtitle``, which YAML takes for a mapping, and ``{epoch}``, a part of file names, stay
    text too.

    Raises:
        ConfigError: If a mapping repeats a key, or the value nests too deeply or grows too large by
            its aliases.
    """
    stripped = text.strip()
    if stripped in _NULLS:
        return Leaf(None, origin)
    if not (stripped.startswith(("{", "[", "class_path:")) or "\n" in stripped):
        return Leaf(text, origin)
    try:
        value = to_plain(read_text(text, name=str(origin)))
    except YamlSyntaxError:
        return Leaf(text, origin)
    except ConfigError as error:
        raise error_at(str(error).splitlines()[0], origin) from None
    is_list = isinstance(value, list)
    is_mapping = isinstance(value, dict) and not _is_word_in_braces(value)
    return graft(value, origin) if is_list or is_mapping else Leaf(text, origin)


def _is_word_in_braces(value: Mapping[str, Any]) -> bool:
    """Return whether YAML reads a mapping with nulls where ``{epoch}`` is a part of a name."""
    return bool(value) and all(child is None for child in value.values())

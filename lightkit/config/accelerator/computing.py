"""What the block says of computing: values that belong to keys of their own, and those that stay in the section."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lightkit.config.accelerator.homes import home_of, takes_auto
from lightkit.config.accelerator.said import Said, contradiction
from lightkit.config.accelerator.writing import valued
from lightkit.config.loader import Consequence, Resolved
from lightkit.config.origins import KeyPath, dotted, mistake, near
from lightkit.config.tree import Node, Table, plain
from lightkit.config.yaml_reader import read_scalar

__all__ = ["AUTO", "COMPUTING_KEYS", "Settings", "choose_automatic", "computing_settings", "unheeded"]

Settings = dict[KeyPath, tuple[Node, Said]]

AUTO = "auto"
_FORMATS = (AUTO, "contiguous", "channels_last")
_SWITCHES = ("compile", "tf32", "fused")
_NUMBERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "threads": (lambda value: _is_int(value) and value >= 1, "auto, or a number of threads from 1"),
    "num_workers": (lambda value: _is_int(value) and value >= 0, "auto, or a number of processes from 0"),
    "batch_size": (lambda value: _is_int(value) and value >= 1, "a number of samples from 1"),
    "learning_rate": (lambda value: _is_number(value) and 0 < value < math.inf, "a number above 0"),
}
_MEASURED = ("batch_size", "learning_rate")
"""Keys for which no rule is any good: `lightkit tune` measures them."""
COMPUTING_KEYS = ("precision", "memory_format", *_SWITCHES, *_NUMBERS)
"""Keys of the block that say how to compute, not on what."""
_UNHEEDED = {
    "tpu": ("precision", "memory_format", "compile", "tf32", "fused"),
    "cpu": ("tf32",),
    "mps": ("tf32",),
}
"""By kind of device: keys that change nothing there."""
_WITHOUT = {"memory_format": "contiguous", "compile": False}
"""Values that ask for nothing."""


def computing_settings(
    said: Mapping[str, Sequence[Said]], resolved: Resolved
) -> tuple[Settings, dict[str, list[Said]]]:
    """Give what the block's keys for computing become, and what is said of devices and of a fixed precision.

    A number goes to the key that it is for. ``auto`` stays, for `choose_automatic`; where a higher layer sets the key
    that it is for, this counts, and nothing is chosen.

    Raises:
        ConfigError: If a value is wrong, two of one layer contradict each other, or nothing takes the value.
    """
    settings: Settings = {}
    for key in COMPUTING_KEYS:
        for one in said.get(key, ()):
            if one.path[0] == "accelerator" and one.value is not None:
                settings.update(_settings(_checked(one, key), key, said, resolved))
    rest = {subject: list(places) for subject, places in said.items() if subject not in COMPUTING_KEYS}
    if precisions := [one for one in said.get("precision", ()) if not _is_auto(one)]:
        rest["precision"] = precisions
    return settings, rest


def unheeded(settings: Settings, kind: str | None) -> tuple[Settings, tuple[str, ...]]:
    """Leave out the autos that choose nothing on a kind of device, and on a TPU all that changes nothing there.

    Returns:
        The settings; and a sentence for each value that was set although it has no effect.
    """
    keys = _UNHEEDED.get(str(kind), ())
    kept: Settings = {}
    notices = []
    for path, (node, said) in settings.items():
        key = path[-1]
        is_here = path[0] == "accelerator" and key in keys
        if is_here and said.value not in (AUTO, _WITHOUT.get(key)):
            device = "a TPU" if kind == "tpu" else str(kind)
            notices.append(f"{said} has no effect on {device} ({said.origin})")
        if not is_here or (said.value != AUTO and kind != "tpu"):
            kept[path] = node, said
    return kept, tuple(notices)


def choose_automatic(
    settings: Settings, resolved: Resolved, values: Mapping[str, Any]
) -> tuple[Settings, dict[str, Any]]:
    """Put values in the place of each ``auto``, at the key that it is for.

    Args:
        settings: What `computing_settings` gave.
        resolved: The config.
        values: By key of the section, as `choose_settings` gives them; None, or none at all, leaves what is said
            elsewhere.

    Returns:
        The settings; and what was chosen, by the dotted key that takes it.
    """
    kept: Settings = {}
    chosen: dict[str, Any] = {}
    for path, (node, said) in settings.items():
        if path[0] != "accelerator" or said.value != AUTO:
            kept[path] = node, said
            continue
        home, value = home_of(path[-1], said, resolved), values.get(path[-1])
        if path[-1] == "num_workers" and takes_auto(resolved):  # the data knows more, such as what it has cached
            value = AUTO
        if home is not None and value is not None:
            kept[home] = valued(value, said), said
            chosen[dotted(home)] = value
    return kept, chosen


def _settings(one: Said, key: str, said: Mapping[str, Sequence[Said]], resolved: Resolved) -> Iterator[Any]:
    if key in ("memory_format", *_SWITCHES):
        yield ("accelerator", key), (valued(one.value, one), one)
        return
    if key == "precision":
        own = next((other for other in said[key] if other.path[0] == "trainer"), None)
        if _is_auto(one) and not (own is not None and _is_below(one, own.node, resolved)):
            yield ("accelerator", key), (one.node, one)
        return
    home = home_of(key, one, resolved)
    there = None if home is None else _at(resolved.tree, home)
    if there is not None and _is_below(one, there, resolved):
        return
    if _is_auto(one):
        yield ("accelerator", key), (one.node, one)
    elif home is None:
        raise Consequence(f"{one}: what takes it was wrong", places=[one.origin])
    else:
        _check_agreement(one, home, there, resolved)
        yield home, (valued(one.value, one), one)


def _checked(one: Said, key: str) -> Said:
    value = one.value
    if key == "memory_format" and value not in _FORMATS:
        raise one.wrong("auto, contiguous or channels_last", near(str(value).lower(), _FORMATS))
    if key in _SWITCHES and not isinstance(value, bool) and value != AUTO:
        raise one.wrong("auto, true or false", near(str(value).lower(), (AUTO, "true", "false")))
    if key in _MEASURED and value == AUTO:
        option = key.replace("_", "-")
        raise mistake(
            f"accelerator.{key}: auto: no training measures; `lightkit tune --{option}` finds a number, and writes it "
            "into a layer",
            one.origin,
        )
    if key in _NUMBERS and value != AUTO:
        holds, expects = _NUMBERS[key]
        if not holds(value):
            raise one.wrong(expects, near(str(value).lower(), (AUTO,)) if key not in _MEASURED else "")
    return one


def _check_agreement(one: Said, home: KeyPath, there: Node | None, resolved: Resolved) -> None:
    """Refuse a number of the same layer as another one for the same."""
    if there is None or plain(there) is None or resolved.ranks.get(one.origin) != resolved.ranks.get(there.origin):
        return
    value = plain(there)
    other = Said(home, there, read_scalar(value.strip()) if isinstance(value, str) else value)
    if other.value not in (one.value, AUTO):  # a data module may have an auto of its own
        raise contradiction(one, other, "say one of them")


def _is_auto(one: Said) -> bool:
    return bool(one.path[0] == "accelerator" and one.value == AUTO)


def _is_below(one: Said, there: Node, resolved: Resolved) -> bool:
    return resolved.ranks.get(one.origin, 0) < resolved.ranks.get(there.origin, 0)


def _at(tree: Table, path: KeyPath) -> Node | None:
    node: Node | None = tree
    for key in path:
        node = node.entries.get(key) if isinstance(node, Table) else None
    return node


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_int(value) or isinstance(value, float)

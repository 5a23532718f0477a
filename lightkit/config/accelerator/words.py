"""The table from hardware keys, today's and those of Lightning 1.x, to keys of the trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lightkit.config.accelerator.block import KINDS
from lightkit.config.accelerator.setting import AUTO, Setting, make_node
from lightkit.config.accelerator.vocabulary import (
    ACCELERATOR_CLASSES,
    ALL,
    GONE_DEVICES,
    GONE_STRATEGIES,
    HOROVOD,
    OLD_STRATEGIES,
    PRECISIONS,
    STRATEGY_CLASSES,
    TRAINER_DEFAULTS,
)
from lightkit.config.bounds import is_int
from lightkit.config.merge import class_of
from lightkit.config.origins import dotted, error_at
from lightkit.config.tree import Leaf, MappingNode, Node, put, to_plain
from lightkit.config.yaml_reader import read_scalar
from lightkit.errors import ConfigError, near

ORDER = ("accelerator", "gpus", "tpu_cores", "strategy", "num_processes", "devices")
"""Keys in the order in which they decide where they say the same, and stand in messages."""
_NOTHING: tuple[Any, ...] = (None, 0, [], "")
_STRATEGY_BELOW = "; a strategy stands below it, as in accelerator: {strategy: ddp}"
_GPUS = (
    "a number of GPUs, their numbers such as [0, 3] or '0,3', or -1 or all for every visible one"
)
_EVERY = {"gpus": ALL, "tpu_cores": AUTO}
"""Numbers that stand for every device, by the key that says ``all`` or ``auto``."""
TPU_CORES = 8
"""Cores of a TPU v2 or v3; the machine's own number counts where it is known."""


@dataclass(frozen=True)
class Wish:
    """A key of the trainer with the value that one setting asks for.

    Args:
        setting: The setting.
        key: Key of the trainer.
        value: Its meaning, in which equal wishes are equal: kind of device, number of devices or a
            tuple with their numbers, name of the strategy or of the precision.
        node: The value for the trainer.
        is_weak: Whether another wish of the same layer decides, where there is one.
    """

    setting: Setting
    key: str
    value: Any
    node: Node
    is_weak: bool = False


def list_wishes(setting: Setting, *, has_devices: bool = False) -> list[Wish]:
    """Translate one setting to keys of the trainer.

    Args:
        setting: The setting.
        has_devices: Whether GPUs or TPU cores stand beside it, whose processes ``num_processes``
            counts then.

    Raises:
        ConfigError: If the value is none of the forms, or of a device or strategy that Lightning
            dropped.
    """
    subject = setting.subject
    if subject == "num_processes":
        return _read_num_processes(setting, has_devices=has_devices)
    return _WORDS[subject](setting) if subject in _WORDS else []


def _wish(setting: Setting, key: str, value: Any, *, is_weak: bool = False) -> Wish:
    return Wish(setting, key, value, make_node(value, setting), is_weak)


def _default(setting: Setting, key: str, value: Any) -> Wish:
    """Build the weak wish of a setting that says nothing."""
    return Wish(setting, key, value, make_node(TRAINER_DEFAULTS[key], setting), is_weak=True)


def _read_kind(setting: Setting) -> list[Wish]:
    value = setting.value
    if value in (None, AUTO):
        return [_default(setting, "accelerator", AUTO)]
    if setting.path[0] == "accelerator" and str(value) not in KINDS:
        raise expect_kind(setting.node, near(str(value), KINDS) or _STRATEGY_BELOW)
    if str(value) in GONE_DEVICES:
        raise setting.refuse(GONE_DEVICES[str(value)])
    return [Wish(setting, "accelerator", find_kind(setting), setting.node)]


def expect_kind(node: Node, hint: str = "") -> ConfigError:
    """Build the error about an ``accelerator`` that is neither a kind of device nor a mapping."""
    expected = f"one of {', '.join(KINDS)}, or a mapping such as {{gpus: 2}}"
    return error_at(f"accelerator: expected {expected}, got {to_plain(node)!r}{hint}", node.origin)


def find_kind(setting: Setting) -> str | None:
    """Return the kind of device that a value of ``trainer.accelerator`` means.

    None where Lightning decides. A class of the user's by its path.
    """
    named = class_of(setting.node)
    if named is not None:
        return ACCELERATOR_CLASSES.get(named.rpartition(".")[2], named)
    word = AUTO if setting.value is None else str(setting.value)
    return KINDS.get(word, word)


def _read_gpus(setting: Setting) -> list[Wish]:
    count = read_count(setting)
    if count is None or (is_int(count) and count == 0):
        return [
            Wish(setting, "accelerator", "cpu", make_node("cpu", setting), is_weak=count is None)
        ]
    if not isinstance(count, tuple) and not is_int(count, ALL):
        raise setting.expect(_GPUS)
    return [_wish(setting, "accelerator", "gpu"), _wish(setting, "devices", count)]


def _read_tpu_cores(setting: Setting) -> list[Wish]:
    count = read_count(setting)
    if count is None or (is_int(count) and count == 0):
        return []
    if not isinstance(count, tuple) and count != AUTO and not is_int(count):
        raise expect_tpu_cores(setting, TPU_CORES)
    return [_wish(setting, "accelerator", "tpu"), _wish(setting, "devices", count)]


def expect_tpu_cores(setting: Setting, most: int) -> ConfigError:
    """Build the error about a number of cores: neither one, nor all, nor the number of one."""
    numbers = "1" if most == 1 else f"1, {most}"
    forms = f"{numbers}, auto, or the number of one core such as [{most - 1}]"
    return setting.expect(
        f"{forms}; Lightning takes one core or all of a TPU's, and counts them from 0"
    )


def _read_num_processes(setting: Setting, *, has_devices: bool) -> list[Wish]:
    count = setting.value
    if count is None:
        return []
    if not is_int(count, 1):
        raise setting.expect("a number from 1")
    is_weak = count == 1  # the default of Lightning 1.x
    if has_devices:
        return [] if is_weak else [_wish(setting, "devices", count)]
    on_cpu = _wish(setting, "accelerator", "cpu", is_weak=is_weak)
    return [on_cpu, _wish(setting, "devices", count, is_weak=is_weak)]


def _read_devices(setting: Setting) -> list[Wish]:
    if setting.value in (None, AUTO):
        return [_default(setting, "devices", AUTO)]
    return [Wish(setting, "devices", read_count(setting), setting.node)]


def read_count(setting: Setting) -> Any:
    """Parse the number of devices: `ALL`, a tuple with their numbers, ``auto``.

    Any other value as it is.

    Raises:
        ConfigError: If a device stands twice in a list.
    """
    value = _split_list(setting.value)
    if value in ("all", AUTO):
        return _EVERY.get(setting.subject, value)
    if value == [] and setting.subject == "gpus":
        return 0
    if not isinstance(value, list) or not value:
        return value
    numbers = [*map(read_scalar, value)]
    if not all(is_int(number, 0) for number in numbers):
        return value
    if len(set(numbers)) < len(numbers):
        raise error_at(f"{dotted(setting.path)}: {numbers} names a device twice", setting.origin)
    return tuple(numbers)


def _split_list(value: Any) -> Any:
    """Split ``0,3``; return any other value as it is."""
    if not isinstance(value, str) or "," not in value:
        return value
    return [word.strip() for word in value.split(",") if word.strip()]


def _read_gone(setting: Setting) -> list[Wish]:
    if setting.value not in _NOTHING:
        raise setting.refuse(GONE_DEVICES[setting.subject.removesuffix("s")])
    return []


def _read_strategy(setting: Setting) -> list[Wish]:
    if setting.value in (None, AUTO):
        return [_default(setting, "strategy", AUTO)]
    name = find_strategy(setting)
    if name == "horovod":
        return [Wish(setting, "strategy", name, make_horovod(setting))]
    is_word = isinstance(setting.value, str) and "${" not in setting.value
    if not is_word:  # Lightning refuses a value that is neither a class nor a word
        return [Wish(setting, "strategy", name, setting.node)]
    word = setting.value.lower()
    if word in GONE_STRATEGIES:
        raise error_at(
            f"{setting} is not a strategy any more: {GONE_STRATEGIES[word]}", setting.origin
        )
    # it may name the class of a lower layer
    if setting.path[0] == "trainer" and word not in OLD_STRATEGIES:
        return [Wish(setting, "strategy", word, setting.node)]
    today, kind = OLD_STRATEGIES.get(word, (word, None))
    on_kind = [] if kind is None else [_wish(setting, "accelerator", kind)]
    return [_wish(setting, "strategy", today), *on_kind]


def find_strategy(setting: Setting) -> str:
    """Return the name of a strategy; a class of the user's own by its path."""
    named = class_of(setting.node)
    word = str(named or setting.value).rpartition(".")[2]
    is_own = named is not None and "." in named and not named.startswith("lightkit.")
    if word.lower() in ("horovod", "horovodstrategy") and not is_own:
        return "horovod"
    if named is not None:
        return STRATEGY_CLASSES.get(word, named)
    return setting.value.lower() if isinstance(setting.value, str) else str(setting.value)


def make_horovod(setting: Setting) -> Node:
    """Build the class of Horovod's strategy, with the arguments that a setting has for it."""
    node = (
        setting.node if isinstance(setting.node, MappingNode) else MappingNode({}, setting.origin)
    )
    return (
        node
        if class_of(node) == HOROVOD
        else put(node, ("class_path",), Leaf(HOROVOD, node.origin))
    )


def _read_precision(setting: Setting) -> list[Wish]:
    value = setting.value
    is_own = setting.path[0] == "trainer"
    if value is None:
        node = setting.node if is_own else make_node(TRAINER_DEFAULTS["precision"], setting)
        return [Wish(setting, "precision", None, node, is_weak=True)]
    word = None if isinstance(value, bool) else PRECISIONS.get(str(value))
    if is_own and not setting.is_old_precision:  # Lightning refuses a wrong one
        return [Wish(setting, "precision", word or value, setting.node)]
    if word is None and value != AUTO:
        words = (AUTO, *PRECISIONS)
        raise setting.expect(f"one of {', '.join(words)}", near(str(value).lower(), words))
    return [_wish(setting, "precision", word or value)]


def _read_num_nodes(setting: Setting) -> list[Wish]:
    if setting.value is None:
        return [_default(setting, "num_nodes", 1)]
    if not is_int(setting.value, 1):
        raise setting.expect("a number from 1")
    node = setting.node if setting.path[0] == "trainer" else make_node(setting.value, setting)
    return [Wish(setting, "num_nodes", setting.value, node)]


_WORDS: Mapping[str, Callable[[Setting], list[Wish]]] = {
    "accelerator": _read_kind,
    "gpus": _read_gpus,
    "tpu_cores": _read_tpu_cores,
    "ipus": _read_gone,
    "hpus": _read_gone,
    "devices": _read_devices,
    "strategy": _read_strategy,
    "precision": _read_precision,
    "num_nodes": _read_num_nodes,
}

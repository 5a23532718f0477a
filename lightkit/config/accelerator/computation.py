"""Send the block's keys for computing to where they belong, and choose values for ``auto``."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lightkit.config.accelerator.setting import AUTO, Setting, contradiction, make_node
from lightkit.config.accelerator.vocabulary import TRAINER_KEYS
from lightkit.config.merge import class_of
from lightkit.config.origins import KeyPath, dotted, error_at
from lightkit.config.resolved import Resolved
from lightkit.config.schema import Argument, accepts, describe_refused, load_schema
from lightkit.config.tree import Node, find
from lightkit.errors import format_count
from lightkit.hardware import Machine
from lightkit.hardware.cores import find_user_threads, workers_by_rule
from lightkit.hardware.processor import is_bf16_fast

Targets = dict[KeyPath, tuple[Node, Setting]]
"""Values by the key that takes them, each with the setting that asks for it."""

_MEASURED = ("batch_size", "learning_rate")
"""Keys for which no rule is any good: `lightkit tune` measures them."""
_HOMES: dict[str, KeyPath] = {
    "precision": ("trainer", "precision"),
    "threads": ("launch", "threads"),
}
"""Keys that others than the block take, whatever the classes are."""
_OTHER_DEVICES = {"mps": "Apple's GPU", "tpu": "XLA"}
"""In words, devices for which no value is chosen by hardware."""
_WITHOUT_EFFECT = {
    "tpu": ("precision", "memory_format", "compile", "tf32", "fused"),
    "cpu": ("tf32",),
    "mps": ("tf32",),
}
"""By kind of device: keys that change nothing there."""


@dataclass
class Computation:
    """The block's keys for computing, at the keys that take them.

    Args:
        targets: Values by the key that takes them, each with the setting that asks for it.
        chosen: Values that the hardware has decided for ``auto``, by the dotted key that takes
            them.
        notices: A sentence for each setting without effect on this kind of device.
    """

    targets: Targets = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


def resolve_computing(
    settings: Sequence[Setting], resolved: Resolved, kind: str | None, values: Mapping[str, Any]
) -> Computation:
    """Send the block's keys for computing to the keys that take them.

    A higher layer that sets those counts.

    Args:
        settings: All settings of the block.
        resolved: The config.
        kind: Kind of device.
        values: Values for `auto`, by key, as `choose_settings` returns them; None leaves a key as
            it is.

    Raises:
        ConfigError: If a value is wrong, two of one layer contradict each other, or nothing takes
            the value.
    """
    found = Computation()
    for setting in filter(_is_for_computing, settings):
        _check_value(setting)
        target = target_key(str(setting.path[-1]), setting, resolved)
        if target is None or not _counts(setting, target, resolved):
            continue
        if not _is_without_effect(setting, kind, found.notices):
            _send(setting, target, resolved, values, found)
    return found


def _is_for_computing(setting: Setting) -> bool:
    """Return whether a setting is one for computing.

    A fixed precision is translated with the trainer's keys.
    """
    if setting.subject in TRAINER_KEYS:
        return setting.subject == "precision" and setting.value == AUTO
    return setting.value is not None


def _check_value(setting: Setting) -> None:
    """Check a value by the type of its key in `AcceleratorBlock`."""
    key = str(setting.path[-1])
    if key in _MEASURED and setting.value == AUTO:
        option = key.replace("_", "-")
        raise setting.refuse(
            f"no training measures; `lightkit tune --{option}` finds a number, and writes it into"
            " a layer"
        )
    schema = load_schema().sections["accelerator"].arguments[key].schema
    if not accepts(schema, setting.value):
        text = f"{dotted(setting.path)}: {describe_refused(schema, setting.value)}"
        raise error_at(text, setting.origin)


def _counts(setting: Setting, target: KeyPath, resolved: Resolved) -> bool:
    """Return whether a setting decides the key that takes it, which a layer may set itself.

    Raises:
        ConfigError: If one layer sets both, to different values.
    """
    node = find(resolved.tree, target)
    if node is None or target == setting.path or node.origin.word == setting:
        return True
    other = Setting(target, node)
    rank = resolved.rank_of(setting.origin)
    rank_of_other = resolved.rank_of(other.origin)
    if rank != rank_of_other:
        return rank > rank_of_other
    if AUTO not in (setting.value, other.value) and other.value not in (None, setting.value):
        raise contradiction(setting, other)
    return True


def _is_without_effect(setting: Setting, kind: str | None, notices: list[str]) -> bool:
    """Return whether a setting is left out on this kind of device.

    Note a fixed value that changes nothing.
    """
    if str(setting.path[-1]) not in _WITHOUT_EFFECT.get(str(kind), ()):
        return False
    if setting.value not in (AUTO, "contiguous", False):
        name = "a TPU" if kind == "tpu" else kind
        notices.append(f"{setting} has no effect on {name} ({setting.origin})")
    return kind == "tpu" or setting.value == AUTO


def _send(
    setting: Setting,
    target: KeyPath,
    resolved: Resolved,
    values: Mapping[str, Any],
    found: Computation,
) -> None:
    """Put the value of a setting, or the one for ``auto``, to the key that takes it."""
    value = setting.value
    if value == AUTO:
        is_left_to_data = setting.path[-1] == "num_workers" and _takes_auto(resolved)
        value = AUTO if is_left_to_data else values.get(str(setting.path[-1]))
        found.chosen[dotted(target)] = value
    if value is not None:
        found.targets[target] = make_node(value, setting), setting


def choose_settings(
    kind: str | None, machine: Machine, *, processes: int, environ: Mapping[str, str] = os.environ
) -> tuple[str, dict[str, Any]]:
    """Choose what `auto` stands for on this hardware. Nothing is measured.

    Whether the model has convolutions decides when it is built: channels_last lays out weights of
    convolutions only. `torch.compile` costs tens of seconds before the first step, and TF32 and
    fused optimizers round differently: `lightkit tune` measures whether these pay, and no rule
    takes them.

    Sources:
        Precision: Lightning, "N-Bit Precision": bf16-mixed from Ampere (compute capability 8.0) on,
            16-mixed before; XLA multiplies float32 in bfloat16 on TPUs by itself. CPUs: measured,
            in docs/hardware.md.
        Memory format: PyTorch's tutorial "Channels Last Memory Format" (tensor cores). CPUs:
            measured, in docs/hardware.md.
        Threads, processes: PyTorch's "Performance Tuning Guide", and `lightkit.hardware.cores`.

    Args:
        kind: Kind of device: `cpu`, `gpu`, `mps`, `tpu`; None where it cannot be known before torch
            is loaded.
        machine: The machine that trains.
        processes: Processes that train on it.
        environ: Environment variables: a user's `OMP_NUM_THREADS` is kept, and `ONEDNN_MAX_CPU_ISA`
            may hide bf16.

    Returns:
        The hardware in words, and the values by key; None, or no value, leaves a key to torch or
        Lightning.
    """
    share = max(1, (machine.cores or 1) // processes)
    values: dict[str, Any] = {
        "precision": "32-true",
        "memory_format": "contiguous",
        "compile": False,
        "threads": None,
        "num_workers": workers_by_rule(share, device=str(kind), is_cached=False),
    }
    if kind == "cpu":
        is_fast = is_bf16_fast(machine.instruction_sets, machine.cpu_vendor, environ)
        words = f"CPU {_with(is_fast)} fast bf16 instructions, {format_count(share, 'core')}"
        values["precision"] = "bf16-mixed" if is_fast else "32-true"
        values["memory_format"] = "channels_last"
        values["threads"] = None if find_user_threads(environ) else share
    elif kind == "gpu":
        capabilities = [gpu.capability for gpu in machine.gpus or ()]
        has_bf16 = bool(capabilities) and min(capabilities) >= (8, 0)
        words = f"CUDA {_with(has_bf16)} bf16"
        values["precision"] = "bf16-mixed" if has_bf16 else "16-mixed"
        values["memory_format"] = "channels_last"
    else:
        words = _OTHER_DEVICES.get(str(kind), "a device that only torch can name")
    return words, values


def _with(has_it: bool) -> str:
    return "with" if has_it else "without"


def target_key(key: str, setting: Setting, resolved: Resolved) -> KeyPath | None:
    """Find the key that takes a value of the block.

    Its own, or one of the trainer, the launcher, the data, the model.

    Args:
        key: Of the block. Which one takes ``num_workers``, ``batch_size`` and ``learning_rate``
            depends on the classes.
        setting: The value.
        resolved: The config.

    Returns:
        None where ``auto`` stands in a layer alone, or the section was wrong and has been left out.

    Raises:
        ConfigError: If nothing takes it.
    """
    if key not in ("num_workers", *_MEASURED):
        return _HOMES.get(key, ("accelerator", key))
    section, names = _find_section(key, resolved)
    # its class is fixed in Python, and it holds the arguments directly
    if section not in resolved.class_sections:
        return section, _find_given(resolved, (section,), names) or names[0]
    if resolved.value_of(section) is not None:
        given = _find_given(resolved, (section, "init_args"), names)
        return section, "init_args", given or _find_argument(setting, resolved, section, names)
    is_left_out = resolved.is_incomplete or any(path[0] == section for path in resolved.removed)
    if setting.value == AUTO or is_left_out:
        return None
    raise setting.refuse(f"nothing takes it, because {section} is not set; name its class")


def _find_section(key: str, resolved: Resolved) -> tuple[str, list[str]]:
    """Return the section that takes a key of the block, and the names that it may have there."""
    if key != "learning_rate":
        return "data", [key]
    has_optimizer = resolved.value_of("optimizer") is not None
    return ("optimizer", ["lr"]) if has_optimizer else ("model", ["learning_rate", "lr"])


def _find_given(resolved: Resolved, above: KeyPath, names: Sequence[str]) -> str | None:
    for name in names:
        if find(resolved.tree, (*above, name)) is not None:
            return name
    return None


def _find_argument(setting: Setting, resolved: Resolved, section: str, names: Sequence[str]) -> str:
    """Return the argument of a section's class that takes a setting.

    Raises:
        ConfigError: If it has none.
    """
    named = str(class_of(find(resolved.tree, (section,))))
    arguments = _list_arguments(named, section)
    known = [name for name in names if name in arguments]
    if not known and "**" not in arguments:
        raise setting.refuse(
            f"{named.rpartition('.')[2]} has no argument {' or '.join(names)}, so that nothing"
            f" takes it\narguments of {named}: {', '.join(arguments) or 'none'}"
        )
    return (known or names)[0]


def _takes_auto(resolved: Resolved) -> bool:
    """Return whether the config's data chooses its number of loading processes itself.

    It knows what is cached.
    """
    node = find(resolved.tree, ("data",))
    arguments = {} if node is None else _list_arguments(str(class_of(node)), "data")
    return AUTO in str(arguments.get("num_workers", Argument()).schema)


def _list_arguments(named: str, section: str) -> Mapping[str, Argument]:
    """List a class's arguments, with ``**`` where it takes any, or nothing is known of it."""
    schema = load_schema()
    described = schema.find_valid(named, schema.bases[section])
    if described is not None:
        return {**described.arguments, **({"**": Argument()} if described.open else {})}
    module, _, name = named.rpartition(".")
    with suppress(Exception, SystemExit):  # building the class reports whatever its module raises
        parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
        is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        return dict.fromkeys((*parameters, *(["**"] if is_open else [])), Argument())
    return {"**": Argument()}

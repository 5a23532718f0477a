"""Keys of the block that say how to compute: parse them, find the key that takes each, and choose values for `auto`."""

from __future__ import annotations

import importlib
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lightkit.config.accelerator.keys import RawSetting, RawSettings, contradiction, is_int, parse_value
from lightkit.config.accelerator.vocabulary import COMPUTING_KEYS
from lightkit.config.loader import Consequence, Resolved
from lightkit.config.merge import class_of
from lightkit.config.origins import KeyPath, dotted, mistake, near
from lightkit.config.schema import load_schema
from lightkit.config.tree import MappingNode, Node, graft, plain
from lightkit.hardware import Machine
from lightkit.hardware.cores import find_user_threads, workers_by_rule

Targets = dict[KeyPath, tuple[Node, RawSetting]]
"""Values by the key that takes them, each with the setting that asks for it."""

AUTO = "auto"
_FORMATS = (AUTO, "contiguous", "channels_last")
_SWITCHES = ("compile", "tf32", "fused")
_NUMBERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "threads": (lambda value: is_int(value) and value >= 1, "auto, or a number of threads from 1"),
    "num_workers": (lambda value: is_int(value) and value >= 0, "auto, or a number of processes from 0"),
    "batch_size": (lambda value: is_int(value) and value >= 1, "a number of samples from 1"),
    "learning_rate": (
        lambda value: (is_int(value) or isinstance(value, float)) and 0 < value < math.inf,
        "a number above 0",
    ),
}
_MEASURED = ("batch_size", "learning_rate")
"""Keys for which no rule is any good: `lightkit tune` measures them."""
_WITHOUT_EFFECT = {
    "tpu": ("precision", "memory_format", "compile", "tf32", "fused"),
    "cpu": ("tf32",),
    "mps": ("tf32",),
}
"""By kind of device: keys that change nothing there."""
_OFF = {"memory_format": "contiguous", "compile": False}
_CPU_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}  # the last one is ARM's
_NUMBER_KEYS = (("trainer", "devices"), ("trainer", "num_nodes"), ("launch", "processes"))
"""Keys whose values stay as they are: text from a flag is parsed where it is used."""


def make_node(value: Any, setting: RawSetting) -> Node:
    """Give a value the place that asked for it; the node itself where it is just that, or the trainer's own number."""
    wanted = list(value) if isinstance(value, tuple) else value
    is_same = setting.path in _NUMBER_KEYS or plain(setting.node) == wanted
    return setting.node if is_same else graft(wanted, setting.origin)


def resolve_computing(settings: RawSettings, resolved: Resolved) -> tuple[Targets, RawSettings]:
    """Send the block's keys for computing to the keys that take them.

    ``auto`` stays, for `choose_automatic`; where a higher layer sets the key that takes it, this counts, and nothing is
    chosen.

    Returns:
        The values by target key; and the settings for devices and of a fixed precision.

    Raises:
        ConfigError: If a value is wrong, two of one layer contradict each other, or nothing takes the value.
    """
    targets: Targets = {}
    for key in COMPUTING_KEYS:
        for one in settings.get(key, ()):
            if one.path[0] != "accelerator" or one.value is None:
                continue
            _check(one, key)
            if key in ("memory_format", *_SWITCHES):
                targets["accelerator", key] = make_node(one.value, one), one
                continue
            if key == "precision" and one.value != AUTO:
                continue
            target = target_key(key, one, resolved)
            there = None if target is None else _find_node(resolved.tree, target)
            if there is not None and _rank(one.node, resolved) < _rank(there, resolved):
                continue
            if one.value == AUTO:
                targets["accelerator", key] = one.node, one
            elif target is None:
                raise Consequence(f"{one}: what takes it was wrong", places=[one.origin])
            else:
                if (
                    there is not None
                    and plain(there) is not None
                    and _rank(one.node, resolved) == _rank(there, resolved)
                ):
                    other = RawSetting(target, there, parse_value(there))
                    if other.value not in (one.value, AUTO):  # a data module may have an auto of its own
                        raise contradiction(one, other, "say one of them")
                targets[target] = make_node(one.value, one), one
    rest = {subject: found for subject, found in settings.items() if subject not in COMPUTING_KEYS}
    fixed = [one for one in settings.get("precision", ()) if one.path[0] != "accelerator" or one.value != AUTO]
    return targets, {**rest, "precision": fixed} if fixed else rest


def drop_without_effect(targets: Targets, kind: str | None) -> tuple[Targets, list[str]]:
    """Leave out the autos that choose nothing on a kind of device, and on a TPU all that changes nothing there.

    Returns:
        The values; and a sentence for each that was set although it has no effect.
    """
    kept: Targets = {}
    notices = []
    for path, (node, setting) in targets.items():
        has_none = path[0] == "accelerator" and path[-1] in _WITHOUT_EFFECT.get(str(kind), ())
        if has_none and setting.value not in (AUTO, _OFF.get(path[-1])):
            notices.append(f"{setting} has no effect on {'a TPU' if kind == 'tpu' else kind} ({setting.origin})")
        if not has_none or (setting.value != AUTO and kind != "tpu"):
            kept[path] = node, setting
    return kept, notices


def choose_automatic(targets: Targets, resolved: Resolved, values: Mapping[str, Any]) -> tuple[Targets, dict[str, Any]]:
    """Put values in the place of each ``auto``, at the key that takes it.

    Args:
        targets: What `resolve_computing` gave.
        resolved: The config.
        values: By key of the section, as `choose_settings` gives them; None, or none at all, leaves what is set
            elsewhere.

    Returns:
        The values by target key; and what was chosen, by the dotted key that takes it.
    """
    kept: Targets = {}
    chosen: dict[str, Any] = {}
    for path, (node, setting) in targets.items():
        if path[0] != "accelerator" or setting.value != AUTO:
            kept[path] = node, setting
            continue
        target, value = target_key(path[-1], setting, resolved), values.get(path[-1])
        if path[-1] == "num_workers" and _takes_auto(resolved):  # the data knows more, such as what it has cached
            value = AUTO
        if target is not None:
            chosen[dotted(target)] = value
            kept |= {} if value is None else {target: (make_node(value, setting), setting)}
    return kept, chosen


def choose_settings(
    kind: str | None, machine: Machine, *, processes: int, environ: Mapping[str, str] = os.environ
) -> tuple[str, dict[str, Any]]:
    """Choose what `auto` stands for on this hardware. Nothing is measured.

    Whether the model has convolutions decides when it is built: channels_last lays out weights of convolutions only.
    `torch.compile` costs tens of seconds before the first step, and TF32 and fused optimizers round differently:
    `lightkit tune` measures whether these pay, and no rule takes them.

    Sources:
        Precision: Lightning, "N-Bit Precision": bf16-mixed from Ampere (compute capability 8.0) on, 16-mixed before;
            XLA multiplies float32 in bfloat16 on TPUs by itself. CPUs: oneDNN's bf16 kernels need the instructions.
        Memory format: PyTorch's tutorial "Channels Last Memory Format" (tensor cores). On the CPU our own benches in
            docs/hardware.md: with bf16 it is up to 1.25 times as fast (ResNet-18), in float32 no faster.
        Threads, processes: PyTorch's "Performance Tuning Guide", and `lightkit.hardware.cores`.

    Args:
        kind: Kind of device: `cpu`, `gpu`, `mps`, `tpu`; None where it cannot be known before torch is loaded.
        machine: The machine that trains.
        processes: Processes that train on it.
        environ: Environment variables: a user's `OMP_NUM_THREADS` is kept.

    Returns:
        The hardware in words, and the values by key; None, or no value, leaves a key to torch or Lightning.
    """
    share = max(1, (machine.cores or 1) // processes)
    precision, memory_format, threads = "32-true", "contiguous", None
    if kind == "cpu":
        has_bf16 = bool(_CPU_BF16.intersection(machine.instruction_sets))
        words = f"CPU with{'' if has_bf16 else 'out'} bf16 instructions, {share} core{'s' if share > 1 else ''}"
        if has_bf16:
            precision, memory_format = "bf16-mixed", "channels_last"
        threads = None if find_user_threads(environ) else share
    elif kind == "gpu":
        has_bf16 = bool(machine.gpus) and all(gpu.capability >= (8, 0) for gpu in machine.gpus or ())
        words = f"CUDA with{'' if has_bf16 else 'out'} bf16"
        precision, memory_format = "bf16-mixed" if has_bf16 else "16-mixed", "channels_last"
    else:
        words = {"mps": "Apple's GPU", "tpu": "XLA"}.get(str(kind), "a device that only torch can name")
    return words, {
        "precision": precision,
        "memory_format": memory_format,
        "compile": False,
        "threads": threads,
        "num_workers": workers_by_rule(share, device=str(kind), is_cached=False),
    }


def target_key(key: str, setting: RawSetting, resolved: Resolved) -> KeyPath | None:
    """Find the key that takes a value of the block: its own, or one of the trainer, the launcher, the data, the model.

    Args:
        key: Of the block. Which one takes ``num_workers``, ``batch_size`` and ``learning_rate`` depends on the classes.
        setting: The value.
        resolved: The config.

    Returns:
        None where no key is known: the section was wrong and has been left out, or ``auto`` stands in a layer alone.

    Raises:
        ConfigError: If nothing takes it.
    """
    if key not in ("num_workers", *_MEASURED):
        fixed: dict[str, KeyPath] = {"precision": ("trainer", "precision"), "threads": ("launch", "threads")}
        return fixed.get(key, ("accelerator", key))
    section, names = "data", [key]
    if key == "learning_rate":
        optimizer = resolved.tree.entries.get("optimizer")
        has_optimizer = optimizer is not None and plain(optimizer) is not None
        section, names = ("optimizer", ["lr"]) if has_optimizer else ("model", ["learning_rate", "lr"])
    node = resolved.tree.entries.get(section)
    if section not in resolved.layering.class_sections:  # its class is fixed in Python
        return section, _first_given(node, names) or names[0]
    if node is None or plain(node) is None:
        is_removed = any(path[:1] == (section,) for path in resolved.removed)
        if setting.value == AUTO or resolved.is_incomplete or is_removed:
            return None
        raise mistake(f"{setting}: nothing takes it, because {section} is not set; name its class", setting.origin)
    name = _first_given(node.entries.get("init_args") if isinstance(node, MappingNode) else None, names)
    described = None if name else _describe_class(str(class_of(node)), section)
    if described is not None:
        arguments, is_open = described
        name = next((each for each in names if each in arguments), None)
        if name is None and not is_open:
            named = str(class_of(node))
            says = (
                f"{setting}: {named.rpartition('.')[2]} has no argument {' or '.join(names)}, so that nothing takes it"
            )
            raise mistake(f"{says}\narguments of {named}: {', '.join(arguments) or 'none'}", setting.origin)
    return section, "init_args", name or names[0]


def _first_given(arguments: Node | None, names: Sequence[str]) -> str | None:
    entries = arguments.entries if isinstance(arguments, MappingNode) else {}
    return next((name for name in names if name in entries), None)


def _takes_auto(resolved: Resolved) -> bool:
    """Tell whether the config's data chooses its number of loading processes itself."""
    node = resolved.tree.entries.get("data")
    described = None if node is None or plain(node) is None else _describe_class(str(class_of(node)), "data")
    return described is not None and AUTO in str((described[0].get("num_workers") or {}).get("schema"))


def _describe_class(named: str, section: str) -> tuple[Mapping[str, Any], bool] | None:
    """Give a class's arguments, and whether it takes any; None where nothing is known of it."""
    schema = load_schema().with_apart()
    path = schema.path_of(named, schema.data["bases"][section])
    if path is not None and schema.counts(path):
        return schema.classes[path]["arguments"], bool(schema.classes[path].get("open"))
    module, _, name = named.rpartition(".")
    with suppress(Exception, SystemExit):  # building the class reports whatever its module raises
        parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
        is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        return dict.fromkeys(parameters), is_open
    return None


def _check(one: RawSetting, key: str) -> None:
    value, word = one.value, str(one.value).lower()
    if key == "memory_format" and value not in _FORMATS:
        raise one.expect("auto, contiguous or channels_last", near(word, _FORMATS))
    if key in _SWITCHES and not isinstance(value, bool) and value != AUTO:
        raise one.expect("auto, true or false", near(word, (AUTO, "true", "false")))
    if key in _MEASURED and value == AUTO:
        option = key.replace("_", "-")
        says = f"accelerator.{key}: auto: no training measures; `lightkit tune --{option}` finds a number"
        raise mistake(f"{says}, and writes it into a layer", one.origin)
    if key in _NUMBERS and value != AUTO and not _NUMBERS[key][0](value):
        raise one.expect(_NUMBERS[key][1], near(word, (AUTO,)) if key not in _MEASURED else "")


def _rank(node: Node, resolved: Resolved) -> int:
    return resolved.ranks.get(node.origin, 0)


def _find_node(tree: MappingNode, path: KeyPath) -> Node | None:
    node: Node | None = tree
    for key in path:
        node = node.entries.get(key) if isinstance(node, MappingNode) else None
    return node

"""Read the hardware keys of a config, and send the keys for computing to the keys that take them."""

from __future__ import annotations

import importlib
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from lightkit.config.accelerator.vocabulary import (
    BLOCK_KEYS,
    GONE_STRATEGIES,
    KINDS,
    OLD_TRAINER_KEYS,
    STRATEGIES_AS_ACCELERATORS,
    TRAINER_DEFAULTS,
)
from lightkit.config.merge import class_of
from lightkit.config.origins import KeyPath, Origin, dotted, error_at
from lightkit.config.resolved import Resolved
from lightkit.config.schema import load_schema
from lightkit.config.tree import MappingNode, Node, find, graft, to_plain
from lightkit.config.yaml_reader import read_scalar
from lightkit.errors import ConfigError, near
from lightkit.hardware import Machine
from lightkit.hardware.cores import find_user_threads, workers_by_rule


@dataclass(frozen=True)
class AcceleratorSettings:
    """How steps are computed. `auto` takes the value of a table by hardware; `lightkit tune` measures.

    Args:
        memory_format: Of weights and images in memory: `channels_last` is faster for convolutions in mixed precision.
        compile: Whether torch.compile compiles, for training, the layers that are attributes of the model and have
            parameters, each by itself; the code of the steps around them is not compiled.
        tf32: Whether matrix products on CUDA round float32 to TensorFloat-32. `null`: as torch has it.
        fused: Whether the optimizer updates all parameters in one kernel. `null`: as the optimizer has it.
    """

    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    compile: bool = False
    tf32: bool | None = None
    fused: bool | None = None


@dataclass(frozen=True)
class RawSetting:
    """A value as the config gives it.

    Args:
        path: Keys that lead to it.
        node: The value with its origin.
        rank: Number of its layer.
    """

    path: KeyPath
    node: Node
    rank: int = 0

    @property
    def value(self) -> Any:
        """The value as parsed: text that is a number, from a flag or a variable, is one here."""
        value = to_plain(self.node)
        return read_scalar(value.strip()) if isinstance(value, str) else value

    @property
    def subject(self) -> str:
        """What it is about: a key of the block or the trainer, or ``launch.KEY``."""
        if self.path == ("accelerator", "kind"):
            return "accelerator"
        if self.is_strategy_word:
            return "strategy"
        return dotted(self.path) if self.path[0] == "launch" else str(self.path[-1])

    @property
    def origin(self) -> Origin:
        """Place that set it."""
        return self.node.origin

    @property
    def is_strategy_word(self) -> bool:
        """Whether ``trainer.accelerator`` names a strategy, as it did up to Lightning 1.5."""
        words = (*STRATEGIES_AS_ACCELERATORS, *GONE_STRATEGIES)
        return self.path == ("trainer", "accelerator") and str(self.value).lower() in words

    def __str__(self) -> str:
        is_word = self.path == ("accelerator", "kind") and not self.origin.name.startswith("--accelerator.")
        value = class_of(self.node) or to_plain(self.node)
        text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value) or "''"
        return f"{dotted(self.path[:1] if is_word else self.path)}: {text}"

    def expect(self, expected: str, hint: str = "") -> ConfigError:
        """Make the error that says what was expected here instead, with a hint at what may be meant."""
        return error_at(f"{dotted(self.path)}: expected {expected}, got {to_plain(self.node)!r}{hint}", self.origin)


Targets = dict[KeyPath, tuple[Node, RawSetting]]
"""Values by the key that takes them, each with the setting that asks for it."""

AUTO = "auto"


def is_int(value: Any, least: int | None = None) -> bool:
    """Return whether a value is an integer, of at least `least`; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least)


_SWITCH = (lambda value: isinstance(value, bool), "auto, true or false")
_COMPUTING: dict[str, tuple[Callable[[Any], bool], str]] = {
    "precision": (lambda value: value == AUTO, ""),  # a fixed one is parsed with the trainer's
    "memory_format": (lambda value: value in ("contiguous", "channels_last"), "auto, contiguous or channels_last"),
    **dict.fromkeys(("compile", "tf32", "fused"), _SWITCH),
    "threads": (lambda value: is_int(value, 1), "auto, or a number of threads from 1"),
    "num_workers": (lambda value: is_int(value, 0), "auto, or a number of processes from 0"),
    "batch_size": (lambda value: is_int(value, 1), "a number of samples from 1"),
    "learning_rate": (lambda value: type(value) in (int, float) and 0 < value < math.inf, "a number above 0"),
}
"""Keys for computing: which fixed values each takes, and what is expected."""
_WORDS = (AUTO, "contiguous", "channels_last")
_MEASURED = ("batch_size", "learning_rate")
"""Keys for which no rule is any good: `lightkit tune` measures them."""
_WITHOUT_EFFECT = {
    "tpu": ("precision", "memory_format", "compile", "tf32", "fused"),
    "cpu": ("tf32",),
    "mps": ("tf32",),
}
"""By kind of device: keys that change nothing there."""
_CPU_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}  # the last one is ARM's
_TRAINER_AND_LAUNCH: list[KeyPath] = [
    *(("trainer", key) for key in (*OLD_TRAINER_KEYS, *TRAINER_DEFAULTS)),
    *(("launch", key) for key in ("engine", "processes", "hosts")),
]


def read_settings(resolved: Resolved) -> list[RawSetting]:
    """List the hardware settings of a config, those of the block ``accelerator`` before those of ``trainer``.

    Raises:
        ConfigError: If the block is neither a mapping of known keys nor a known word.
    """
    block = resolved.tree.entries.get("accelerator")
    expected = f"one of {', '.join(KINDS)}, or a mapping such as {{gpus: 2}}"
    if block is not None and to_plain(block) is not None and not isinstance(block, MappingNode):
        raise error_at(f"accelerator: expected {expected}, got {to_plain(block)!r}", block.origin)
    entries = block.entries if isinstance(block, MappingNode) else {}
    for key, node in entries.items():
        if key not in BLOCK_KEYS:
            is_callback = key in ("scale_lr", "warmup_epochs")
            hint = "; set callbacks: {scale_lr: {}}" if is_callback else near(str(key), BLOCK_KEYS)
            text = f"accelerator.{key}: there is no such key{hint}\nkeys: {', '.join(BLOCK_KEYS)}"
            raise error_at(text, node.origin.at_key())
        word = to_plain(node)
        if key == "kind" and word is not None and str(word) not in KINDS:
            hint = near(str(word), KINDS) or "; a strategy stands below it, as in accelerator: {strategy: ddp}"
            raise error_at(f"accelerator: expected {expected}, got {word!r}{hint}", node.origin)
    found = (
        _read_setting(resolved, path) for path in [*(("accelerator", key) for key in entries), *_TRAINER_AND_LAUNCH]
    )
    return [setting for setting in found if setting is not None]


def _read_setting(resolved: Resolved, path: KeyPath) -> RawSetting | None:
    node = find(resolved.tree, path)
    return None if node is None else RawSetting(path, node, resolved.ranks.get(node.origin, 0))


def contradiction(one: RawSetting, other: RawSetting, advice: str = "say one of them") -> ConfigError:
    """Make the error that shows two places that exclude each other."""
    return error_at(f"{one} contradicts {other}; {advice}", one.origin, other.origin)


def make_node(value: Any, setting: RawSetting) -> Node:
    """Give a value the place that asked for it; the node itself where it is just that."""
    wanted = list(value) if isinstance(value, tuple) else value
    return setting.node if to_plain(setting.node) == wanted else graft(wanted, setting.origin)


# -- how to compute ----------------------------------------------------------------------------------------------------


def resolve_computing(
    settings: Sequence[RawSetting], resolved: Resolved, kind: str | None, values: Mapping[str, Any]
) -> tuple[Targets, dict[str, Any], list[str]]:
    """Send the block's keys for computing to the keys that take them; a higher layer that sets those counts.

    Args:
        settings: All hardware settings.
        resolved: The config.
        kind: Kind of device.
        values: What `auto` stands for, by key, as `choose_settings` gives it; None leaves a key as it is.

    Returns:
        The values by target key; what was chosen for `auto`, by the dotted key that takes it; and a sentence for each
        setting without effect on this kind of device.

    Raises:
        ConfigError: If a value is wrong, two of one layer contradict each other, or nothing takes the value.
    """
    targets: Targets = {}
    chosen: dict[str, Any] = {}
    notices = []
    for one in settings:
        key, value = str(one.path[-1]), one.value
        is_fixed_precision = key == "precision" and value != AUTO
        if one.path[0] != "accelerator" or key not in _COMPUTING or value is None or is_fixed_precision:
            continue
        accepts, expected = _COMPUTING[key]
        if key in _MEASURED and value == AUTO:
            option = key.replace("_", "-")
            text = f"{one}: no training measures; `lightkit tune --{option}` finds a number, and writes it into a layer"
            raise error_at(text, one.origin)
        if value != AUTO and not accepts(value):
            raise one.expect(expected, near(str(value).lower(), [word for word in _WORDS if word in expected]))
        target = target_key(key, one, resolved)
        if target is None:
            continue
        other = None if target == one.path else _read_setting(resolved, target)
        if other is not None and other.rank > one.rank:
            continue
        differs = other is not None and AUTO not in (value, other.value) and other.value not in (None, value)
        if other is not None and differs and other.rank == one.rank:
            raise contradiction(one, other)
        if key in _WITHOUT_EFFECT.get(str(kind), ()):
            if value not in (AUTO, "contiguous", False):
                notices.append(f"{one} has no effect on {'a TPU' if kind == 'tpu' else kind} ({one.origin})")
            if kind == "tpu" or value == AUTO:
                continue
        if value == AUTO:
            value = AUTO if key == "num_workers" and _takes_auto(resolved) else values.get(key)
            chosen[dotted(target)] = value
        if value is not None:
            targets[target] = make_node(value, one), one
    return targets, chosen, notices


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
        None where ``auto`` stands in a layer alone, or the section was wrong and has been left out.

    Raises:
        ConfigError: If nothing takes it.
    """
    if key not in ("num_workers", *_MEASURED):
        return {"precision": ("trainer", key), "threads": ("launch", key)}.get(key, ("accelerator", key))
    section, names = "data", [key]
    if key == "learning_rate":
        optimizer = find(resolved.tree, ("optimizer",))
        has_optimizer = optimizer is not None and to_plain(optimizer) is not None
        section, names = ("optimizer", ["lr"]) if has_optimizer else ("model", ["learning_rate", "lr"])
    is_fixed = section not in resolved.class_sections  # its class is fixed in Python
    above: KeyPath = (section,) if is_fixed else (section, "init_args")
    node = find(resolved.tree, (section,))
    if not is_fixed and (node is None or to_plain(node) is None):
        if setting.value == AUTO or resolved.is_incomplete or any(path[0] == section for path in resolved.removed):
            return None
        raise error_at(f"{setting}: nothing takes it, because {section} is not set; name its class", setting.origin)
    given = next((name for name in names if find(resolved.tree, (*above, name)) is not None), None)
    if given is not None or is_fixed or node is None:
        return *above, given or names[0]
    named = str(class_of(node))
    arguments = _list_arguments(named, section)
    known = [name for name in names if name in arguments]
    if not known and "**" not in arguments:
        text = f"{setting}: {named.rpartition('.')[2]} has no argument {' or '.join(names)}, so that nothing takes it"
        raise error_at(f"{text}\narguments of {named}: {', '.join(arguments) or 'none'}", setting.origin)
    return *above, (known or names)[0]


def _takes_auto(resolved: Resolved) -> bool:
    """Return whether the config's data chooses its number of loading processes itself, as it knows what is cached."""
    node = find(resolved.tree, ("data",))
    arguments = {} if node is None else _list_arguments(str(class_of(node)), "data")
    return AUTO in str((arguments.get("num_workers") or {}).get("schema"))


def _list_arguments(named: str, section: str) -> Mapping[str, Any]:
    """List a class's arguments, with ``**`` where it takes any, or nothing is known of it."""
    schema = load_schema()
    path = schema.path_of(named, schema.data["bases"][section])
    if path is not None and schema.is_valid_for(path):
        described = schema.classes[path]
        return {**described["arguments"], **({"**": {}} if described.get("open") else {})}
    module, _, name = named.rpartition(".")
    with suppress(Exception, SystemExit):  # building the class reports whatever its module raises
        parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
        is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        return {name: {} for name in (*parameters, *(["**"] if is_open else []))}
    return {"**": {}}

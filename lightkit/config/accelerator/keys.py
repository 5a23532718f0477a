"""Read the hardware keys of a config, parse each value, and send the keys for computing to the keys that take them."""

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
    ALL,
    BLOCK_KEYS,
    COMPUTING_KEYS,
    GONE_STRATEGIES,
    KINDS,
    OLD_TRAINER_KEYS,
    STRATEGIES_AS_ACCELERATORS,
    TRAINER_DEFAULTS,
)
from lightkit.config.loader import Consequence, Resolved
from lightkit.config.merge import class_of
from lightkit.config.origins import KeyPath, Origin, dotted, error_at, near
from lightkit.config.schema import load_schema
from lightkit.config.tree import MappingNode, Node, find, graft, plain
from lightkit.config.yaml_reader import read_scalar
from lightkit.errors import ConfigError
from lightkit.hardware import Machine
from lightkit.hardware.cores import find_user_threads, workers_by_rule

_TPU_CORES = 8  # of a TPU v2 or v3; the machine's own number counts where it is known


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
        value: The value as parsed: text that is a number, from a flag or a variable, is one here.
        rank: Number of its layer.
    """

    path: KeyPath
    node: Node
    value: Any
    rank: int = 0

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
        return self.path == ("trainer", "accelerator") and isinstance(self.value, str) and self.value.lower() in words

    def __str__(self) -> str:
        is_word = self.path == ("accelerator", "kind") and not self.origin.name.startswith("--accelerator.")
        value = plain(self.node)
        if isinstance(value, dict):
            text = str(value.get("class_path", value))
        else:
            text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value) or "''"
        return f"{dotted(self.path[:1] if is_word else self.path)}: {text}"

    def expect(self, expected: str, hint: str = "") -> ConfigError:
        """Make the error that says what was expected here instead, with a hint at what may be meant."""
        return error_at(f"{dotted(self.path)}: expected {expected}, got {plain(self.node)!r}{hint}", self.origin)


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


_TRAINER_AND_LAUNCH: list[KeyPath] = [
    *(("trainer", key) for key in (*OLD_TRAINER_KEYS, *TRAINER_DEFAULTS)),
    *(("launch", key) for key in ("engine", "processes", "hosts", "nodes")),
]


def parse_value(node: Node) -> Any:
    """Read a value whose text, from a flag or a variable, may be a number."""
    value = plain(node)
    return read_scalar(value.strip()) if isinstance(value, str) else value


def read_settings(resolved: Resolved) -> list[RawSetting]:
    """List the hardware settings of a config, those of the block ``accelerator`` before those of ``trainer``.

    Raises:
        ConfigError: If the block is neither a mapping of known keys nor a known word.
    """
    block = resolved.tree.entries.get("accelerator")
    expected = f"one of {', '.join(KINDS)}, or a mapping such as {{gpus: 2}}"
    found: list[tuple[KeyPath, Node]] = []
    if block is not None and plain(block) is not None:
        if not isinstance(block, MappingNode):
            raise error_at(f"accelerator: expected {expected}, got {plain(block)!r}", block.origin)
        for key, node in block.entries.items():
            if key not in BLOCK_KEYS:
                says = f"accelerator.{key}: there is no such key{near(str(key), BLOCK_KEYS)}"
                raise error_at(f"{says}\nkeys: {', '.join(BLOCK_KEYS)}", node.origin.at_key())
            word = plain(node)
            if key == "kind" and word is not None and not (isinstance(word, str) and word in KINDS):
                hint = near(str(word), KINDS) or "; a strategy stands below it, as in accelerator: {strategy: ddp}"
                raise error_at(f"accelerator: expected {expected}, got {word!r}{hint}", node.origin)
            found.append((("accelerator", key), node))
    others = ((path, find(resolved.tree, path)) for path in _TRAINER_AND_LAUNCH)
    found += [(path, node) for path, node in others if node is not None]
    return [RawSetting(path, node, parse_value(node), resolved.ranks.get(node.origin, 0)) for path, node in found]


def contradiction(one: RawSetting, other: RawSetting, advice: str) -> ConfigError:
    """Make the error that shows two places that exclude each other."""
    return error_at(f"{one} contradicts {other}; {advice}", one.origin, other.origin)


# -- values ----------------------------------------------------------------------------------------------------------


def is_int(value: Any) -> bool:
    """Tell whether a value is an integer; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def parse_gpus(setting: RawSetting) -> Any:
    """Return what ``gpus`` asks for: None, a number, `ALL`, or a tuple of numbers.

    Raises:
        ConfigError: If it is none of the forms.
    """
    value = setting.value
    forms = "a number of GPUs, their numbers such as [0, 3] or '0,3', or -1 or all for every visible one"
    if value is None or value == []:
        return None if value is None else 0
    if isinstance(value, bool):
        raise setting.expect(f"{forms}; true and false say neither how many nor which")
    if value in ("all", "auto"):
        return ALL
    numbers = parse_numbers(setting)
    if numbers is None and not (is_int(value) and value >= ALL):
        raise setting.expect(forms)
    return value if numbers is None else numbers


def parse_tpu_cores(setting: RawSetting, *, num_cores: int | None = None) -> Any:
    """Return what ``tpu_cores`` asks for: None, a number of cores, ``auto``, or a tuple with one core.

    Args:
        setting: The value.
        num_cores: Cores of this machine's TPU, where that is known.

    Raises:
        ConfigError: If it is none of the forms, or a number that Lightning does not take.
    """
    most = num_cores or _TPU_CORES
    forms = f"{'1' if most == 1 else f'1, {most}'}, auto, or the number of one core such as [{most - 1}]"
    value = setting.value
    if value in (None, 0) and not isinstance(value, bool):
        return None
    if value in ("all", "auto"):
        return "auto"
    if (numbers := parse_numbers(setting, distinct=False)) is not None:
        if len(numbers) != 1 or not 0 <= numbers[0] < most:
            raise setting.expect(f"{forms}; Lightning takes one core or all, and counts them from 0")
        return numbers
    if isinstance(value, bool) or value not in (1, most):
        raise setting.expect(f"{forms}; Lightning takes one core or all of a TPU's")
    return value


def parse_count(setting: RawSetting) -> RawSetting:
    """Check a number of processes or machines.

    Raises:
        ConfigError: If it is no positive number, nor null.
    """
    if setting.value is not None and not (is_int(setting.value) and setting.value > 0):
        raise setting.expect("a number from 1")
    return setting


def parse_numbers(setting: RawSetting, *, distinct: bool = True) -> tuple[int, ...] | None:
    """Parse ``[0, 3]`` and ``0,3``; None where it is neither."""
    value = setting.value
    if isinstance(value, str) and "," in value:
        value = [word.strip() for word in value.split(",") if word.strip()]
    if not isinstance(value, list) or not value:
        return None
    numbers = [read_scalar(word) if isinstance(word, str) else word for word in value]
    if not all(is_int(number) and number >= 0 for number in numbers):
        return None
    if distinct and len(set(numbers)) < len(numbers):
        raise error_at(f"{dotted(setting.path)}: {numbers} names a device twice", setting.origin)
    return tuple(numbers)


# -- how to compute ----------------------------------------------------------------------------------------------------


def make_node(value: Any, setting: RawSetting) -> Node:
    """Give a value the place that asked for it; the node itself where it is just that, or the trainer's own number."""
    wanted = list(value) if isinstance(value, tuple) else value
    is_same = setting.path in _NUMBER_KEYS or plain(setting.node) == wanted
    return setting.node if is_same else graft(wanted, setting.origin)


def resolve_computing(settings: Sequence[RawSetting], resolved: Resolved) -> tuple[Targets, list[RawSetting]]:
    """Send the block's keys for computing to the keys that take them.

    ``auto`` stays, for `choose_automatic`; where a higher layer sets the key that takes it, this counts, and nothing is
    chosen.

    Returns:
        The values by target key; and the settings for devices and of a fixed precision.

    Raises:
        ConfigError: If a value is wrong, two of one layer contradict each other, or nothing takes the value.
    """
    targets: Targets = {}
    for one in settings:
        key = str(one.path[-1])
        if one.path[0] != "accelerator" or key not in COMPUTING_KEYS or one.value is None:
            continue
        _check(one, key)
        if key in ("memory_format", *_SWITCHES):
            targets["accelerator", key] = make_node(one.value, one), one
        elif key != "precision" or one.value == AUTO:
            target = target_key(key, one, resolved)
            there = None if target is None else find(resolved.tree, target)
            rank = -1 if there is None or plain(there) is None else resolved.ranks.get(there.origin, 0)
            if there is not None and resolved.ranks.get(there.origin, 0) > one.rank:
                continue
            if one.value == AUTO:
                targets["accelerator", key] = one.node, one
            elif target is None:
                raise Consequence(f"{one}: what takes it was wrong", places=[one.origin])
            else:
                if there is not None and rank == one.rank:
                    other = RawSetting(target, there, parse_value(there))
                    if other.value not in (one.value, AUTO):  # a data module may have an auto of its own
                        raise contradiction(one, other, "say one of them")
                targets[target] = make_node(one.value, one), one
    is_fixed = [one.path[0] != "accelerator" or one.value != AUTO for one in settings]
    rest = [one for one, fixed in zip(settings, is_fixed, strict=True) if one.path[-1] not in COMPUTING_KEYS or fixed]
    return targets, [one for one in rest if one.path[-1] not in COMPUTING_KEYS or one.subject == "precision"]


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
        raise error_at(f"{setting}: nothing takes it, because {section} is not set; name its class", setting.origin)
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
            raise error_at(f"{says}\narguments of {named}: {', '.join(arguments) or 'none'}", setting.origin)
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
        raise error_at(f"{says}, and writes it into a layer", one.origin)
    if key in _NUMBERS and value != AUTO and not _NUMBERS[key][0](value):
        raise one.expect(_NUMBERS[key][1], near(word, (AUTO,)) if key not in _MEASURED else "")

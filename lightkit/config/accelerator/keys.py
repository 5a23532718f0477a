"""Read the hardware keys of a config, and parse each value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from lightkit.config.accelerator.vocabulary import (
    ALL,
    BLOCK_KEYS,
    GONE_STRATEGIES,
    HOROVOD,
    KINDS,
    OLD_TRAINER_KEYS,
    STRATEGIES_AS_ACCELERATORS,
    TRAINER_DEFAULTS,
)
from lightkit.config.merge import class_of
from lightkit.config.origins import KeyPath, Origin, dotted, mistake, near
from lightkit.config.tree import MappingNode, Node, plain
from lightkit.config.yaml_reader import read_scalar
from lightkit.errors import ConfigError

_TPU_CORES = 8  # of a TPU v2 or v3; the machine's own number counts where it is known
_REMOTE_ENGINES = ("spark", "ray", "slurm")


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
    """

    path: KeyPath
    node: Node
    value: Any

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
        return mistake(f"{dotted(self.path)}: expected {expected}, got {plain(self.node)!r}{hint}", self.origin)


RawSettings = dict[str, list[RawSetting]]
"""Settings by subject: a key of the block or the trainer, or ``launch.KEY``."""


def parse_value(node: Node) -> Any:
    """Read a value whose text, from a flag or a variable, may be a number."""
    value = plain(node)
    return read_scalar(value.strip()) if isinstance(value, str) else value


def read_settings(tree: MappingNode) -> RawSettings:
    """Collect the settings of each subject, those of the block ``accelerator`` before those of ``trainer``.

    The kind of ``accelerator: cpu`` counts as a value for the subject ``accelerator``.

    Raises:
        ConfigError: If the block is neither a mapping of known keys nor a known word.
    """
    block = tree.entries.get("accelerator")
    expected = f"one of {', '.join(KINDS)}, or a mapping such as {{gpus: 2}}"
    found: list[tuple[str, KeyPath, Node]] = []
    if block is not None and plain(block) is not None:
        if not isinstance(block, MappingNode):
            raise mistake(f"accelerator: expected {expected}, got {plain(block)!r}", block.origin)
        for key, node in block.entries.items():
            if key not in BLOCK_KEYS:
                says = f"accelerator.{key}: there is no such key{near(str(key), BLOCK_KEYS)}"
                raise mistake(f"{says}\nkeys: {', '.join(BLOCK_KEYS)}", node.origin.at_key())
            word = plain(node)
            if key == "kind" and word is not None and not (isinstance(word, str) and word in KINDS):
                hint = near(str(word), KINDS) or "; a strategy stands below it, as in accelerator: {strategy: ddp}"
                raise mistake(f"accelerator: expected {expected}, got {word!r}{hint}", node.origin)
            found.append(("accelerator" if key == "kind" else key, ("accelerator", key), node))
    sections = {"trainer": (*OLD_TRAINER_KEYS, *TRAINER_DEFAULTS), "launch": ("engine", "processes", "hosts", "nodes")}
    for section, keys in sections.items():
        table = tree.entries.get(section)
        entries = table.entries if isinstance(table, MappingNode) else {}
        prefix = "launch." if section == "launch" else ""
        found += [(f"{prefix}{key}", (section, key), entries[key]) for key in keys if key in entries]
    settings: RawSettings = {}
    for subject, path, node in found:
        settings.setdefault(subject, []).append(RawSetting(path, node, parse_value(node)))
    return settings


def combine(settings: Sequence[RawSetting], *, empty: Sequence[Any] = (None,)) -> RawSetting | None:
    """Give the one value that is set, however often; what is empty does not count beside one that is not.

    Raises:
        ConfigError: If two places set different values.
    """
    filled = [setting for setting in settings if setting.value not in empty] or list(settings)
    for other in filled[1:]:
        if other.value != filled[0].value:
            raise contradiction(filled[0], other, "say one of them")
    return filled[0] if filled else None


def contradiction(one: RawSetting, other: RawSetting, advice: str) -> ConfigError:
    """Make the error that shows two places that exclude each other."""
    return mistake(f"{one} contradicts {other}; {advice}", one.origin, other.origin)


def is_remote(settings: RawSettings) -> bool:
    """Tell whether the engine's ranks run on machines that this one knows nothing of."""
    return any(setting.value in _REMOTE_ENGINES for setting in settings.get("launch.engine", ()))


def is_horovod(setting: RawSetting) -> bool:
    """Tell whether a setting names Horovod's strategy."""
    word = str(class_of(setting.node) or setting.value).lower()
    return word in ("horovod", "horovodstrategy", HOROVOD.lower())


# -- values ----------------------------------------------------------------------------------------------------------


def is_int(value: Any) -> bool:
    """Tell whether a value is an integer; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def parse_gpus(setting: RawSetting) -> RawSetting:
    """Parse ``gpus``: None, a number, `ALL`, or a tuple of numbers.

    Raises:
        ConfigError: If it is none of the forms.
    """
    value, forms = (
        setting.value,
        "a number of GPUs, their numbers such as [0, 3] or '0,3', or -1 or all for every visible one",
    )
    if value is None or value == []:
        return replace(setting, value=None if value is None else 0)
    if isinstance(value, bool):
        raise setting.expect(f"{forms}; true and false say neither how many nor which")
    if value in ("all", "auto"):
        return replace(setting, value=ALL)
    if (numbers := _parse_numbers(setting)) is not None:
        return replace(setting, value=numbers)
    if not (is_int(value) and value >= ALL):
        raise setting.expect(forms)
    return setting


def parse_tpu_cores(setting: RawSetting, *, num_cores: int | None = None) -> RawSetting:
    """Parse ``tpu_cores``: None, a number of cores, ``auto``, or a tuple with the one core that is meant.

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
        return replace(setting, value=None)
    if value in ("all", "auto"):
        return replace(setting, value="auto")
    if (numbers := _parse_numbers(setting, distinct=False)) is not None:
        if len(numbers) != 1 or not 0 <= numbers[0] < most:
            raise setting.expect(f"{forms}; Lightning takes one core or all, and counts them from 0")
        return replace(setting, value=numbers)
    if isinstance(value, bool) or value not in (1, most):
        raise setting.expect(f"{forms}; Lightning takes one core or all of a TPU's")
    return setting


def parse_devices(setting: RawSetting) -> RawSetting:
    """Parse today's ``trainer.devices``: None for ``auto``, a tuple for numbers; all else is Lightning's to refuse.

    Raises:
        ConfigError: If a device is named twice.
    """
    numbers = _parse_numbers(setting)
    return replace(
        setting, value=numbers if numbers is not None else None if setting.value == "auto" else setting.value
    )


def parse_count(setting: RawSetting) -> RawSetting:
    """Parse a number of processes or machines.

    Raises:
        ConfigError: If it is no positive number, nor null.
    """
    if setting.value is not None and not (is_int(setting.value) and setting.value > 0):
        raise setting.expect("a number from 1")
    return setting


def _parse_numbers(setting: RawSetting, *, distinct: bool = True) -> tuple[int, ...] | None:
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
        raise mistake(f"{dotted(setting.path)}: {numbers} names a device twice", setting.origin)
    return tuple(numbers)

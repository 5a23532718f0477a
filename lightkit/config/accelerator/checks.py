"""Check the hardware keys of a merged config.

Each value, what goes together, and what the machine has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightkit.config.accelerator.block import BLOCK_KEYS
from lightkit.config.accelerator.setting import AUTO, Setting, contradiction, count_devices
from lightkit.config.accelerator.vocabulary import (
    ALL,
    OLD_TRAINER_KEYS,
    TRAINER_KEYS,
    XLA_STRATEGIES,
)
from lightkit.config.accelerator.words import (
    TPU_CORES,
    expect_kind,
    expect_tpu_cores,
    list_wishes,
    read_count,
)
from lightkit.config.bounds import is_int
from lightkit.config.origins import error_at
from lightkit.config.resolved import Resolved
from lightkit.config.tree import MappingNode, entries_of, to_plain
from lightkit.errors import format_count, near
from lightkit.hardware import Machine

_FOUND = {"tpu": "a TPU", "gpu": "GPUs", "mps": "Apple's GPU", "cpu": "no device but CPUs"}
_INSTALL = (
    "make an environment of its own for it, in lightkit's sources: pip install '.[tpu]' -c"
    " constraints-tpu.txt"
)
_LAST_XLA = "2.9"  # the last version of torch-xla
_CPU_BY_SECTION = {"accelerator": "gpus: 0 for the CPU", "trainer": "trainer.accelerator: cpu"}
"""Keys that ask for the CPU instead, by the section that asks for more."""
_REMOTE_ENGINES = ("spark", "ray", "slurm")
_OTHER_KEY = re.compile(r"\$\{(?!\s*oc\.env:)")
_CALLBACKS = ("scale_lr", "warmup_epochs")


@dataclass(frozen=True)
class Launch:
    """The keys of the launcher that hardware depends on.

    Args:
        engine_by: Setting of the engine.
        processes: Setting of the number of processes, unless it is null.
        has_hosts: Whether hosts are named, each with its number of processes.
    """

    engine_by: Setting | None = None
    processes: Setting | None = None
    has_hosts: bool = False

    @property
    def engine(self) -> Any:
        """Name of the engine; None where none is set."""
        return None if self.engine_by is None else self.engine_by.value

    @property
    def is_remote(self) -> bool:
        """Return whether the processes run on machines that the launcher chooses."""
        return self.engine in _REMOTE_ENGINES

    @property
    def is_elsewhere(self) -> bool:
        """Return whether other machines than this one train, too."""
        return self.is_remote or self.has_hosts


@dataclass(frozen=True)
class Requirements:
    """Hardware that a config asks for, each part with the setting that decides it.

    Args:
        kind: Kind of device; None where none is named.
        kind_by: Setting that names it.
        count: Number of devices, `ALL`, a tuple with their numbers, or ``auto``; None where there
            is none.
        count_by: Setting that decides it.
        strategy: Name of the strategy; empty where Lightning decides.
        strategy_by: Setting that decides it.
        num_nodes: Number of machines.
        nodes_by: Setting that decides it.
        launch: Keys of the launcher.
    """

    kind: str | None = None
    kind_by: Setting | None = None
    count: Any = None
    count_by: Setting | None = None
    strategy: str = ""
    strategy_by: Setting | None = None
    num_nodes: Any = 1
    nodes_by: Setting | None = None
    launch: Launch = field(default_factory=Launch)

    @property
    def is_launched(self) -> bool:
        """Return whether the number of devices is that of the launcher's processes."""
        return self.count_by is not None and self.count_by.path[0] == "launch"

    @property
    def devices(self) -> Any:
        """Number of devices for the trainer; torchrun's processes learn it from their launcher."""
        return None if self.is_launched and self.launch.engine == "torchrun" else self.count

    @property
    def has_known_strategy(self) -> bool:
        """Return whether the strategy is no class of the user's own."""
        return bool(self.strategy) and "." not in self.strategy


# -- each key by itself ----------------------------------------------------------------------------


def list_block(resolved: Resolved) -> list[Setting]:
    """List the settings of the block ``accelerator``.

    Raises:
        ConfigError: If it is neither a mapping of known keys nor a known word.
    """
    block = resolved.tree.entries.get("accelerator")
    if block is None or to_plain(block) is None:
        return []
    if not isinstance(block, MappingNode):
        raise expect_kind(block)
    for key, node in block.entries.items():
        if key not in BLOCK_KEYS:
            hint = (
                "; set callbacks: {scale_lr: {}}"
                if key in _CALLBACKS
                else near(str(key), BLOCK_KEYS)
            )
            text = f"accelerator.{key}: there is no such key{hint}\nkeys: {', '.join(BLOCK_KEYS)}"
            raise error_at(text, node.origin.at_key())
    return [Setting(("accelerator", key), node) for key, node in block.entries.items()]


def list_written(resolved: Resolved) -> list[Setting]:
    """List the trainer's hardware settings of its section as they are written, old and new."""
    trainer = entries_of(resolved.tree.entries.get("trainer"))
    written = {key: trainer[key] for key in TRAINER_KEYS if key in trainer}
    return [
        Setting(("trainer", key), node) for key, node in written.items() if node.origin.word is None
    ]


def check_settings(
    settings: Sequence[Setting], resolved: Resolved, machine: Machine | None
) -> None:
    """Check the value of each setting.

    Args:
        settings: Those of the block and of the trainer.
        resolved: The config.
        machine: The machine that trains; None where it is another one.

    Raises:
        ConfigError: If a value is none of the forms, or GPUs and TPU cores are both set, in
            whichever layers.
    """
    num_cores = TPU_CORES if machine is None else machine.xla.tpu_cores or TPU_CORES
    for setting in settings:
        _check_reference(setting, resolved)
        list_wishes(setting)
        if setting.subject == "tpu_cores":
            _check_tpu_cores(setting, num_cores)
    gpus = _find_asking(settings, "gpus")
    cores = _find_asking(settings, "tpu_cores")
    if gpus is not None and cores is not None:
        raise contradiction(gpus, cores, "a run is on one kind of device, not on gpu and tpu")


def _find_asking(settings: Sequence[Setting], subject: str) -> Setting | None:
    for setting in settings:
        if setting.subject == subject and setting.value not in (None, 0, []):
            return setting
    return None


def _check_reference(setting: Setting, resolved: Resolved) -> None:
    """Check that a setting that is translated refers to no other key.

    Only the merged config tells that.
    """
    is_translated = (
        setting.path[0] == "accelerator"
        or setting.path[1] in OLD_TRAINER_KEYS
        or setting.is_strategy_word
    )
    text = str(resolved.texts.get(setting.path, ""))
    if is_translated and setting.subject in TRAINER_KEYS and _OTHER_KEY.search(text):
        advice = (
            "write the value out, or ${oc.env:NAME}; a hardware key is"
            " translated before keys refer to others"
        )
        raise setting.refuse(f"expected a value, got {text}; {advice}")


def _check_tpu_cores(setting: Setting, most: int) -> None:
    """Check that Lightning takes this number of a TPU's cores: one, all, or the number of one."""
    count = read_count(setting)
    is_one_core = isinstance(count, tuple) and len(count) == 1 and count[0] < most
    if not is_one_core and count not in (None, 0, AUTO, 1, most):
        raise expect_tpu_cores(setting, most)


# -- all keys together -----------------------------------------------------------------------------


def check_combination(asked: Requirements, kind: str | None) -> None:
    """Check that kind of device, number, strategy, machines and launcher go together.

    Args:
        asked: The requirements.
        kind: Kind of device, also where Lightning chooses it.

    Raises:
        ConfigError: If they do not; it shows both places.
    """
    if asked.count_by is not None and not asked.is_launched and not _is_number(asked.count):
        raise asked.count_by.expect(
            "a number of devices from 1, their numbers, or -1 for all of them"
        )
    for one, other, advice in _list_conflicts(asked, kind):
        if other is not None:
            raise contradiction(one, other, advice)
        raise one.refuse(f"Lightning finds {_FOUND[str(kind)]} on this machine; {advice}")


def _is_number(count: Any) -> bool:
    return count not in (0, [], "") and not (is_int(count) and not is_int(count, ALL))


def _list_conflicts(
    asked: Requirements, kind: str | None
) -> Iterator[tuple[Setting, Setting | None, str]]:
    """List the pairs of settings that exclude each other, with the reason.

    Without the second it is the machine.
    """
    if asked.count_by is not None and kind == "cpu" and _is_of_gpus(asked):
        yield asked.count_by, asked.kind_by, "on CPUs it is the number of processes, such as 2"
    if asked.strategy_by is not None:
        reason = _find_reason(asked, kind)
        if reason:
            yield asked.strategy_by, asked.kind_by, reason
        yield from _list_launch_conflicts(asked, asked.strategy_by)


def _list_launch_conflicts(
    asked: Requirements, own: Setting
) -> Iterator[tuple[Setting, Setting | None, str]]:
    """List the settings of numbers, machines and launcher that a strategy excludes."""
    if asked.strategy == "single_device" and is_int(count_devices(asked.count), 2):
        yield own, asked.count_by, "it trains on one device; for several there is ddp"
    if asked.strategy == "horovod" and asked.num_nodes > 1:
        yield own, asked.nodes_by, "for Horovod the machines stand under launch.hosts: 'a:4,b:4'"
    launch = asked.launch
    if launch.engine == "horovod" and asked.strategy != "horovod":
        yield (
            own,
            launch.engine_by,
            "Horovod's launcher starts processes for strategy: horovod only",
        )
    if launch.engine in ("torchrun", "ray", "local") and asked.strategy == "horovod":
        yield (
            own,
            launch.engine_by,
            "Horovod's processes are started by the engine horovod or spark",
        )


def _is_of_gpus(asked: Requirements) -> bool:
    """Return whether the number of devices is one that only GPUs have: their numbers, or all."""
    if isinstance(asked.count, tuple) or (isinstance(asked.count, str) and asked.count != AUTO):
        return True
    return asked.count == ALL and not asked.is_launched


def _find_reason(asked: Requirements, kind: str | None) -> str:
    """Return the reason for which a strategy does not work on a kind of device.

    Empty where it does.
    """
    name = asked.strategy
    is_known = asked.has_known_strategy
    if kind == "tpu" and is_known and name not in (*XLA_STRATEGIES, "single_device"):
        return "a TPU takes the strategy xla, which Lightning chooses by itself"
    if kind in ("cpu", "gpu", "mps") and name in XLA_STRATEGIES:
        return "the strategy xla is for TPUs only"
    if kind == "cpu" and name.startswith(("fsdp", "deepspeed")):
        return f"{name} works on NVIDIA's GPUs only; on CPUs there is ddp"
    if kind == "mps" and is_known and not name.startswith("single_device"):
        return "Apple's GPU works alone, without a strategy"
    return ""


# -- the machine -----------------------------------------------------------------------------------


def _count_usable_gpus(machine: Machine) -> int | None:
    """Count NVIDIA's GPUs that torch can use; None where only CUDA could count them."""
    if "+cpu" in machine.versions.get("torch", ""):
        return 0
    return None if machine.gpus is None else len(machine.gpus)


def count_visible(kind: str | None, machine: Machine | None) -> int | None:
    """Count the machine's devices of the kind that is asked for.

    None where that is not known, or without limit.
    """
    if machine is None or kind in (None, "cpu"):
        return None
    if kind == "tpu":
        is_on_chips = machine.xla.device in (None, "TPU")
        return machine.xla.tpu_cores if is_on_chips else None  # XLA on the CPU has any number
    if machine.mps or kind == "mps":
        return int(machine.mps)
    return _count_usable_gpus(machine)


def find_default_kind(machine: Machine | None) -> str | None:
    """Return the kind of device that Lightning chooses where no key names one.

    None where that is not known.
    """
    if machine is None:
        return None
    if machine.xla.version and machine.xla.tpu_cores and machine.xla.device in (None, "TPU"):
        return "tpu"
    if machine.mps:
        return "mps"
    num_gpus = _count_usable_gpus(machine)
    if num_gpus is None:
        return None
    return "gpu" if num_gpus else "cpu"


def check_machine(
    asked: Requirements, kind: str | None, machine: Machine, environ: Mapping[str, str]
) -> None:
    """Check that the machine has what is asked of it.

    Raises:
        ConfigError: If it has fewer devices, and says which there are; or if its torch cannot use
            them.
    """
    by = asked.count_by or asked.kind_by
    if by is None or kind not in ("gpu", "mps", "tpu"):
        return
    if kind == "tpu" and asked.kind_by is not None:
        _check_xla(asked.kind_by, machine)
    num_there = count_visible(kind, machine)
    if num_there is None or num_there >= _count_wanted(asked.count):
        return
    fewer = f"at most {num_there}, or " if num_there else ""
    cpu = _CPU_BY_SECTION.get(by.path[0], "accelerator.gpus: 0 for the CPU")
    there = _describe_devices(kind, num_there, machine, environ)
    raise by.refuse(f"{there}; say {fewer}{cpu}, or leave it out")


def _count_wanted(count: Any) -> int:
    """Return the number of devices that a machine must have at least."""
    if isinstance(count, tuple):
        return int(max(count)) + 1
    return abs(count) if is_int(count) and count != ALL else 1


def _check_xla(by: Setting, machine: Machine) -> None:
    """Check that torch-xla is installed, with the torch that it was built for."""
    torch = machine.versions.get("torch", "")
    xla = machine.versions.get("torch-xla")
    needed = ".".join((xla or _LAST_XLA).split(".")[:2])
    if xla is not None and torch.split(".")[:2] == needed.split("."):
        return
    there = f"here are torch-xla {xla or '(not installed)'} and torch {torch or '(not installed)'}"
    raise by.refuse(f"TPUs need torch-xla and torch {needed}, and {there}; {_INSTALL}")


def _describe_devices(
    kind: str, num_there: int, machine: Machine, environ: Mapping[str, str]
) -> str:
    """Write which devices of a kind the machine has."""
    if kind == "tpu":
        return f"this machine has {num_there or 'no'} TPU cores"
    if machine.mps:
        return "this machine has one GPU, Apple's"
    if kind == "mps":
        return "this machine has no GPU of Apple's"
    hidden = environ.get("CUDA_VISIBLE_DEVICES")
    text = f"this machine shows {_describe_gpus(machine)}"
    return text if hidden is None else f"{text} (CUDA_VISIBLE_DEVICES is {hidden!r})"


def _describe_gpus(machine: Machine) -> str:
    """Write which of NVIDIA's GPUs the machine shows, and that its torch cannot use them."""
    if not machine.gpus:
        return "no GPU"
    names = ", ".join(
        f"{gpu.index}: {gpu.name} ({gpu.memory_bytes / 2**30:.0f} GiB)" for gpu in machine.gpus
    )
    torch = machine.versions.get("torch", "")
    unused = f", and torch {torch} is built for CPUs only" if "+cpu" in torch else ""
    return f"{format_count(len(machine.gpus), 'GPU')}, {names}{unused}"

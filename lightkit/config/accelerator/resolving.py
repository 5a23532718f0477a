"""All hardware keys of a config, read, decided, checked and written as today's trainer keys."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lightkit.config.accelerator.auto import choose_settings
from lightkit.config.accelerator.computing import choose_automatic, computing_settings, unheeded
from lightkit.config.accelerator.counts import ALL, read_processes, read_tpu_cores
from lightkit.config.accelerator.devices import Devices, decide_devices
from lightkit.config.accelerator.layers import is_remote, outspoken
from lightkit.config.accelerator.machine import (
    check_devices,
    check_xla,
    found_by_lightning,
    num_visible,
    xla_environment,
)
from lightkit.config.accelerator.notices import notices_of, oversubscription
from lightkit.config.accelerator.rules import Precision, check_together, decide_precision
from lightkit.config.accelerator.said import Said, agreed, read_said
from lightkit.config.accelerator.scaling import scaling_entry
from lightkit.config.accelerator.strategy import Strategy, decide_strategy, is_strategy_word
from lightkit.config.accelerator.words import KINDS
from lightkit.config.accelerator.writing import rewritten, valued
from lightkit.config.loader import Resolved
from lightkit.config.origins import KeyPath, Origin, dotted, mistake
from lightkit.config.tree import Leaf, Node, graft
from lightkit.hardware import Machine

__all__ = ["Hardware", "resolve_hardware"]

_DEFAULTS = {"accelerator": "auto", "devices": "auto", "strategy": "auto", "num_nodes": 1, "precision": "32-true"}

_LAUNCHED = ("SLURM_NTASKS", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "HOROVOD_LOCAL_SIZE")


@dataclass(frozen=True)
class Hardware:
    """What a config asks of the hardware.

    Args:
        resolved: The config with today's trainer keys in the place of the keys of Lightning 1.x and of those of the
            block ``accelerator``, in which only what `AcceleratorSettings` knows is left; with Horovod the number of
            processes stands under ``launch.processes``.
        processes: Processes that a launch must start, because Horovod's each have one device; below 0 where Spark's
            driver is to run them. None: nothing is said.
        processes_origin: Place that says so.
        strategy: Name of the strategy: ``horovod``, ``ddp``; None where Lightning decides, or it is a class of the
            user's own.
        kind: Kind of device: ``cpu``, ``gpu``, ``tpu``, ``mps``; None where Lightning decides.
        devices: Devices of each machine for one launch of the trainer, as read, so that text from a flag is a number: a
            number, -1 for all, a tuple with the numbers of those meant, or ``auto``; None: nothing is said.
        notices: For each old spelling, today's; what has no effect on this kind of device; more threads than cores.
        environment: Variables to set before torch-xla is imported.
        chosen: What ``auto`` has come to, by the dotted key that takes it.
        chosen_by: The hardware that has decided it, in words.
    """

    resolved: Resolved
    processes: int | None = None
    processes_origin: Origin | None = None
    strategy: str | None = None
    kind: str | None = None
    devices: int | str | tuple[int, ...] | None = None
    notices: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)
    chosen_by: str = ""


def resolve_hardware(
    resolved: Resolved, machine: Machine | None = None, *, environ: Mapping[str, str] | None = None
) -> Hardware:
    """Turn the hardware keys of a config into today's trainer keys.

    Args:
        resolved: The config.
        machine: The machine that must have the devices; None where it is not this one, and nothing is checked.
        environ: Environment variables; those of this process if None.

    Raises:
        ConfigError: If a value is wrong, there is nothing like it today, two contradict each other, or the machine has
            not what they ask for.
    """
    environ = os.environ if environ is None else environ
    computing, said_of_devices = computing_settings(read_said(resolved.tree), resolved)
    said, gone = outspoken(said_of_devices, resolved.ranks)
    strategy = decide_strategy(said)
    here, machine = machine, None if _is_elsewhere(said) else machine
    cores = machine.xla.tpu_cores or None if machine is not None else None
    devices = decide_devices(said, strategy, num_tpu_cores=cores)
    strategy = _alone(strategy, devices) or _ddp(devices, said)
    num_nodes = agreed([read_processes(one) for one in said.get("num_nodes", ())])
    kind = devices.kind or found_by_lightning(machine)
    found = replace(devices, kind=kind)
    if kind == "tpu" and cores is not None and devices.count_by is not None:
        count = list(devices.count) if isinstance(devices.count, tuple) else devices.count
        read_tpu_cores(replace(devices.count_by, value=count), num_cores=cores)
    if machine is not None:
        check_xla(devices, machine.versions)
        check_devices(_as_started(found, said), machine, environ)
    check_together(found, strategy, num_nodes)
    on_xla = kind == "tpu"
    environment = xla_environment(devices, environ) if on_xla else {}
    precision = decide_precision(said, on_xla=on_xla, environ=environ)

    ranks = _ranks(devices, strategy, machine)
    settings = _defaults(gone) | _settings(said, devices, strategy, precision, num_nodes)
    if (by := gone.get(("launch", "processes"))) is not None:
        settings["launch", "processes"] = graft(_length(devices.count), by.origin), by
    if ranks is not None and devices.count_by is not None:
        settings["launch", "processes"] = valued(ranks, devices.count_by), devices.count_by
    settings.update(scaling_entry(said, resolved))
    computing, without_effect = unheeded(computing, kind)
    words, values = "", dict[str, Any]()
    if here is not None:
        words, values = choose_settings(
            kind or found_by_lightning(here), here, processes=_num_local(found, here, environ), environ=environ
        )
    computing, chosen = choose_automatic(computing, resolved, values)
    result = rewritten(resolved, {**computing, **settings})
    cores = None if machine is None else machine.cores
    crowded = oversubscription(result, processes=_num_here(devices, environ), cores=cores)
    return Hardware(
        result,
        processes=ranks,
        processes_origin=None if ranks is None or devices.count_by is None else devices.count_by.origin,
        strategy=strategy.name if strategy else None,
        kind="tpu" if on_xla else devices.kind if devices.kind in KINDS.values() else None,
        devices=1 if strategy and strategy.name == "horovod" else devices.count,
        notices=(*notices_of(said, settings), *without_effect, *crowded),
        environment=environment,
        chosen=chosen,
        chosen_by=words if chosen else "",
    )


def _alone(strategy: Strategy | None, devices: Devices) -> Strategy | None:
    """Leave one TPU core to Lightning, as ``tpu_spawn`` did; today's xla is for all of them only."""
    if strategy is None or strategy.kind != "tpu" or not (devices.count == 1 or isinstance(devices.count, tuple)):
        return strategy
    return replace(strategy, name=None, node=Leaf("auto", strategy.said.origin))


def _ddp(devices: Devices, said: Mapping[str, Sequence[Said]]) -> Strategy | None:
    """Choose ddp for several processes that are asked for as such, where no strategy is given."""
    by = devices.count_by
    asked = by is not None and by.path[-1] in ("num_processes", "processes") and isinstance(devices.count, int)
    if not asked or by is None or devices.count < 2 or devices.kind in ("tpu", "mps") or said.get("strategy"):
        return None
    return Strategy("ddp", Leaf("ddp", by.origin), by)


def _settings(
    said: Mapping[str, Sequence[Said]],
    devices: Devices,
    strategy: Strategy | None,
    precision: Precision | None,
    num_nodes: Said | None,
) -> dict[KeyPath, tuple[Node, Said]]:
    """List the trainer keys that must be set because the config does not say them in these words."""
    settings = _unsaid(said)
    if devices.word is not None and devices.kind_by is not None:
        settings["trainer", "accelerator"] = valued(devices.word, devices.kind_by), devices.kind_by
    if strategy is not None:
        settings["trainer", "strategy"] = strategy.node, strategy.said
    if strategy is not None and strategy.name == "horovod":
        settings["trainer", "devices"] = Leaf(1, strategy.said.origin), strategy.said
    elif devices.count is not None and devices.count_by is not None:
        settings["trainer", "devices"] = valued(devices.count, devices.count_by), devices.count_by
    if precision is not None and not precision.stays:
        settings["trainer", "precision"] = valued(precision.word, precision.said), precision.said
    if num_nodes is not None and num_nodes.value is not None:
        settings["trainer", "num_nodes"] = valued(num_nodes.value, num_nodes), num_nodes
    return {path: setting for path, setting in settings.items() if setting[0] is not _own(said, path)}


def _unsaid(said: Mapping[str, Sequence[Said]]) -> dict[KeyPath, tuple[Node, Said]]:
    """Put today's defaults where the trainer's keys hold null, Lightning 1.x's default, or what moved elsewhere."""
    return {
        ("trainer", key): (Leaf(default, one.origin), one)
        for key, default in _DEFAULTS.items()
        for one in said.get(key, ())
        if one.path == ("trainer", key) and key != "precision" and (one.value is None or is_strategy_word(one))
    }


def _defaults(gone: Mapping[KeyPath, Said]) -> dict[KeyPath, tuple[Node, Said]]:
    """Put today's defaults where a higher layer leaves nothing of what the trainer's keys hold."""
    own = {path: by for path, by in gone.items() if path[-1] in _DEFAULTS}
    return {path: (Leaf(_DEFAULTS[str(path[-1])], by.origin), by) for path, by in own.items()}


def _length(count: Any) -> int | None:
    """Give the number of processes for devices; None where there is one for each that is found."""
    number = len(count) if isinstance(count, tuple) else count
    return number if isinstance(number, int) and number > 0 else None


def _num_here(devices: Devices, environ: Mapping[str, str]) -> int:
    """Count the processes that share this one's cores, as the config says; a launcher may bind each to its own."""
    is_launched = any(name in environ for name in _LAUNCHED)
    return 1 if is_launched else _length(devices.count) or 1


def _num_local(devices: Devices, machine: Machine, environ: Mapping[str, str]) -> int:
    """Count the processes that train on this machine, as its launcher or the config says."""
    if environ.get("LOCAL_WORLD_SIZE", "").isdigit():
        return max(1, int(environ["LOCAL_WORLD_SIZE"]))
    return _length(devices.count) or (num_visible(devices, machine) if devices.kind == "gpu" else None) or 1


def _own(said: Mapping[str, Sequence[Said]], path: KeyPath) -> Node | None:
    """Give what stands at a path already."""
    subject = dotted(path) if path[0] == "launch" else str(path[-1])
    return next((one.node for one in said.get(subject, ()) if one.path == path), None)


def _ranks(devices: Devices, strategy: Strategy | None, machine: Machine | None) -> int | None:
    """Give the number of Horovod's processes, where something says it."""
    by = devices.count_by
    if strategy is None or strategy.name != "horovod" or by is None or not isinstance(devices.count, int):
        return None
    if devices.count != ALL or by.path[0] == "launch":
        return devices.count
    if machine is not None and num_visible(devices, machine) is None:
        raise mistake(f"{by}: this machine's GPUs cannot be counted without CUDA; say how many", by.origin)
    return num_visible(devices, machine)


def _is_elsewhere(said: Mapping[str, Sequence[Said]]) -> bool:
    """Tell whether the processes will run on machines that this one knows nothing of."""
    return is_remote(said) or any(one.value is not None for one in said.get("launch.hosts", ()))


def _as_started(devices: Devices, said: Mapping[str, Sequence[Said]]) -> Devices:
    """Count what torchrun starts on this machine as devices of it."""
    processes = next(iter(said.get("launch.processes", ())), None)
    if devices.count not in (None, "auto") or processes is None or type(processes.value) is not int:
        return devices
    return replace(devices, count=processes.value, count_by=processes)

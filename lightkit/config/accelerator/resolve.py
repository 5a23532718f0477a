"""Resolve the hardware keys of a config to today's keys of the trainer, and check them against the machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lightkit.config.accelerator.computation import (
    Targets,
    choose_automatic,
    choose_settings,
    drop_without_effect,
    make_node,
    resolve_computing,
)
from lightkit.config.accelerator.devices import (
    Devices,
    Precision,
    Strategy,
    check_combination,
    is_old_precision,
    resolve_devices,
    resolve_precision,
    resolve_strategy,
)
from lightkit.config.accelerator.keys import (
    RawSetting,
    RawSettings,
    combine,
    is_int,
    is_remote,
    parse_count,
    parse_tpu_cores,
    parse_value,
    read_settings,
)
from lightkit.config.accelerator.machine_check import (
    check_devices,
    check_xla,
    count_visible,
    find_default_kind,
    xla_environment,
)
from lightkit.config.accelerator.precedence import apply_precedence
from lightkit.config.accelerator.vocabulary import (
    ALL,
    HOROVOD,
    KINDS,
    OLD_STRATEGIES,
    OLD_TRAINER_KEYS,
    TRAINER_DEFAULTS,
)
from lightkit.config.loader import Resolved
from lightkit.config.merge import class_of
from lightkit.config.origins import KeyPath, Origin, dotted, mistake
from lightkit.config.tree import Leaf, MappingNode, graft, plain, put
from lightkit.hardware import Machine

_LAUNCHED = ("SLURM_NTASKS", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "HOROVOD_LOCAL_SIZE")
_SCALE_LR = ("callbacks", "scale_lr")


@dataclass(frozen=True)
class Hardware:
    """What a config asks of the hardware.

    Args:
        resolved: The config with today's trainer keys in the place of the keys of Lightning 1.x and of those of the
            block ``accelerator``, in which only what `AcceleratorSettings` knows is left; with Horovod the number of
            processes stands under ``launch.processes``.
        processes: Processes that a launch must start, because Horovod's each have one device; below 0 where Spark's
            driver is to run them. None: nothing is set.
        processes_origin: Place that sets it.
        strategy: Name of the strategy: ``horovod``, ``ddp``; None where Lightning decides, or it is a class of the
            user's own.
        kind: Kind of device: ``cpu``, ``gpu``, ``tpu``, ``mps``; None where Lightning decides.
        devices: Devices of each machine for one launch of the trainer, as parsed, so that text from a flag is a
            number: a number, -1 for all, a tuple with the numbers of those meant, or ``auto``; None: nothing is set.
        notices: For each old spelling, today's; what has no effect on this kind of device; more threads than cores.
        environment: Variables to set before torch-xla is imported.
        chosen: What ``auto`` has come to, by the dotted key that takes it; None where the key is left to torch.
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
    computing, settings = resolve_computing(read_settings(resolved.tree), resolved)
    settings, replaced = apply_precedence(settings, resolved.ranks)
    strategy = resolve_strategy(settings)
    is_elsewhere = is_remote(settings) or any(one.value is not None for one in settings.get("launch.hosts", ()))
    here, machine = machine, None if is_elsewhere else machine
    num_tpu_cores = machine.xla.tpu_cores or None if machine is not None else None
    devices = resolve_devices(settings, strategy, num_tpu_cores=num_tpu_cores)
    by = devices.count_source
    strategy = _adapt_strategy(strategy, devices, settings)
    num_nodes = combine([parse_count(one) for one in settings.get("num_nodes", ())])
    kind = devices.kind or find_default_kind(machine)
    found = replace(devices, kind=kind)
    if kind == "tpu" and num_tpu_cores is not None and by is not None:
        count = list(devices.count) if isinstance(devices.count, tuple) else devices.count
        parse_tpu_cores(replace(by, value=count), num_cores=num_tpu_cores)
    if machine is not None:
        check_xla(devices, machine.versions)
        launched = next(iter(settings.get("launch.processes", ())), None)
        counts_launched = devices.count in (None, "auto") and launched is not None and is_int(launched.value)
        started = replace(found, count=launched.value, count_source=launched) if launched and counts_launched else found
        check_devices(started, machine, environ)
    check_combination(found, strategy, num_nodes)
    environment = xla_environment(devices, environ) if kind == "tpu" else {}
    precision = resolve_precision(settings, on_xla=kind == "tpu", environ=environ)
    processes = _count_processes(devices, strategy, machine)

    targets = _trainer_targets(settings, replaced, devices, strategy, precision, num_nodes)
    if (other := replaced.get(("launch", "processes"))) is not None:
        targets["launch", "processes"] = graft(_length(devices.count), other.origin), other
    if processes is not None and by is not None:
        targets["launch", "processes"] = make_node(processes, by), by
    targets.update(_scale_lr_targets(settings, resolved))
    computing, without_effect = drop_without_effect(computing, kind)
    words, values = "", dict[str, Any]()
    if here is not None:
        launched_here = environ.get("LOCAL_WORLD_SIZE", "")
        num_here = int(launched_here) if launched_here.isdigit() else _length(devices.count)
        num_here = num_here or (count_visible(found, here) if kind == "gpu" else None) or 1
        words, values = choose_settings(kind or find_default_kind(here), here, processes=num_here, environ=environ)
    computing, chosen = choose_automatic(computing, resolved, values)
    result = _write_targets(resolved, {**computing, **targets})
    is_launched = any(name in environ for name in _LAUNCHED)  # a launcher may bind each process to its own cores
    crowded = _warn_of_threads(
        result,
        processes=1 if is_launched else _length(devices.count) or 1,
        cores=None if machine is None else machine.cores,
    )
    return Hardware(
        result,
        processes=processes,
        processes_origin=None if processes is None or by is None else by.origin,
        strategy=strategy.name if strategy else None,
        kind="tpu" if kind == "tpu" else devices.kind if devices.kind in KINDS.values() else None,
        devices=1 if strategy and strategy.name == "horovod" else devices.count,
        notices=(*_format_notices(settings, targets), *without_effect, *crowded),
        environment=environment,
        chosen=chosen,
        chosen_by=words if chosen else "",
    )


def _length(count: Any) -> int | None:
    """Give the number of processes for devices; None where there is one for each that is found."""
    number = len(count) if isinstance(count, tuple) else count
    return number if isinstance(number, int) and number > 0 else None


def _adapt_strategy(strategy: Strategy | None, devices: Devices, settings: RawSettings) -> Strategy | None:
    """Leave one TPU core to Lightning, as ``tpu_spawn`` did; choose ddp for several processes without a strategy."""
    by, count = devices.count_source, devices.count
    if strategy is not None:
        is_one_core = strategy.kind == "tpu" and (count == 1 or isinstance(count, tuple))  # today's xla takes all
        return replace(strategy, name=None, node=Leaf("auto", strategy.source.origin)) if is_one_core else strategy
    if by is None or by.path[-1] not in ("num_processes", "processes") or not isinstance(count, int) or count < 2:
        return None
    return (
        None
        if devices.kind in ("tpu", "mps") or settings.get("strategy")
        else Strategy("ddp", Leaf("ddp", by.origin), by)
    )


def _count_processes(devices: Devices, strategy: Strategy | None, machine: Machine | None) -> int | None:
    """Count Horovod's processes, where a setting says how many."""
    by, count = devices.count_source, devices.count
    if strategy is None or strategy.name != "horovod" or by is None or not isinstance(count, int):
        return None
    if count != ALL or by.path[0] == "launch":
        return count
    if machine is not None and count_visible(devices, machine) is None:
        raise mistake(f"{by}: this machine's GPUs cannot be counted without CUDA; say how many", by.origin)
    return count_visible(devices, machine)


# -- the resolved config ---------------------------------------------------------------------------------------------


def _trainer_targets(
    settings: RawSettings,
    replaced: Mapping[KeyPath, RawSetting],
    devices: Devices,
    strategy: Strategy | None,
    precision: Precision | None,
    num_nodes: RawSetting | None,
) -> Targets:
    """List the trainer keys that must be written because the config does not have them in these words."""
    own = {one.path: one for found in settings.values() for one in found if one.path[0] == "trainer"}
    targets: Targets = {}
    for key, default in TRAINER_DEFAULTS.items():  # where they hold null, Lightning 1.x's default, or what moved
        one = own.get(("trainer", key))
        if one is not None and key != "precision" and (one.value is None or one.is_strategy_word):
            targets["trainer", key] = Leaf(default, one.origin), one
    by = devices.count_source
    if devices.word is not None and devices.kind_source is not None:
        targets["trainer", "accelerator"] = make_node(devices.word, devices.kind_source), devices.kind_source
    if strategy is not None:
        targets["trainer", "strategy"] = strategy.node, strategy.source
    if strategy is not None and strategy.name == "horovod":
        targets["trainer", "devices"] = Leaf(1, strategy.source.origin), strategy.source
    elif devices.count is not None and by is not None:
        targets["trainer", "devices"] = make_node(devices.count, by), by
    if precision is not None and not precision.is_todays:
        targets["trainer", "precision"] = make_node(precision.word, precision.source), precision.source
    if num_nodes is not None and num_nodes.value is not None:
        targets["trainer", "num_nodes"] = make_node(num_nodes.value, num_nodes), num_nodes
    changed = {path: each for path, each in targets.items() if path not in own or each[0] is not own[path].node}
    gone = {path: by for path, by in replaced.items() if path[-1] in TRAINER_DEFAULTS}  # a higher layer left nothing
    return {path: (Leaf(TRAINER_DEFAULTS[path[-1]], by.origin), by) for path, by in gone.items()} | changed


def _scale_lr_targets(settings: RawSettings, resolved: Resolved) -> Targets:
    """Add the named callback that scales the learning rate, where ``scale_lr`` is true.

    Raises:
        ConfigError: If the values are wrong, there is a warm-up of nothing, or the entry was removed by its name.
    """
    for one in settings.get("scale_lr", ()):
        if one.value is not None and not isinstance(one.value, bool):
            raise one.expect("true or false")
    for one in settings.get("warmup_epochs", ()):
        if one.value is not None and not ((is_int(one.value) or isinstance(one.value, float)) and one.value >= 0):
            raise one.expect("a number of epochs from 0")
    scale, warmup = combine(settings.get("scale_lr", ())), combine(settings.get("warmup_epochs", ()))
    has_warmup = warmup is not None and warmup.value is not None
    if warmup is not None and has_warmup and (scale is None or scale.value is None):
        says = f"{warmup} has no effect without accelerator.scale_lr"
        raise mistake(f"{says}: it is the warm-up to the scaled learning rate; say scale_lr: true too", warmup.origin)
    if scale is None or not scale.value:
        return {}
    callbacks = resolved.tree.entries.get("callbacks")
    entry = callbacks.entries.get("scale_lr") if isinstance(callbacks, MappingNode) else None
    if entry is not None and plain(entry) is None:
        says = f"{scale} contradicts callbacks.scale_lr: null, which removes it"
        raise mistake(f"{says}; say scale_lr: false", scale.origin, entry.origin)
    targets: Targets = {}
    if entry is None:
        targets[(*_SCALE_LR, "class_path")] = Leaf("lightkit.distributed.ScaledLearningRate", scale.origin), scale
    if warmup is not None and has_warmup:
        targets[(*_SCALE_LR, "init_args", "warmup_epochs")] = make_node(warmup.value, warmup), warmup
    return targets


def _write_targets(resolved: Resolved, targets: Targets) -> Resolved:
    """Write values into a config, and take the old hardware keys out.

    What the environment gave is a reference at its new place too, unless it reads differently there.

    Raises:
        ConfigError: If what a value goes into is no mapping.
    """
    trainer = resolved.tree.entries.get("trainer")
    old = [("trainer", key) for key in OLD_TRAINER_KEYS if isinstance(trainer, MappingNode) and key in trainer.entries]
    removed: list[KeyPath] = [path for path in [("accelerator",), *old] if path[0] in resolved.tree.entries]
    if not targets and not removed:
        return resolved
    tree, references = resolved.tree, dict(resolved.references)
    for path in removed:
        tree = _remove(tree, path)
    for path, (node, _) in targets.items():
        tree = put(tree, path, node)
    for path in [*removed, *targets]:
        references = {old: text for old, text in references.items() if old[: len(path)] != path}
        if path in targets and str(plain(targets[path][1].node)) == str(plain(targets[path][0])):
            source = targets[path][1].path
            below = {old: text for old, text in resolved.references.items() if old[: len(source)] == source}
            references |= {(*path, *old[len(source) :]): text for old, text in below.items()}
    return replace(resolved, tree=tree, references=references)


def _remove(table: MappingNode, path: KeyPath) -> MappingNode:
    key, rest = path[0], path[1:]
    inner = table.entries[key]
    if rest and isinstance(inner, MappingNode):
        return replace(table, entries={**table.entries, key: _remove(inner, rest)})
    return replace(table, entries={other: node for other, node in table.entries.items() if other != key})


# -- notices ---------------------------------------------------------------------------------------------------------


def _format_notices(settings: RawSettings, targets: Targets) -> list[str]:
    """Give one sentence for each spelling of Lightning 1.x, with its place and what to write today."""
    notices = []
    for one in [one for found in settings.values() for one in found]:
        key, is_null = one.path[-1], one.value is None and one.path[-1] != "precision"
        is_old = key in OLD_TRAINER_KEYS or one.is_strategy_word or is_old_precision(one) or is_null
        is_old_strategy = isinstance(one.value, str) and one.value.lower() in OLD_STRATEGIES
        if not (is_old_strategy or (is_old and one.path[0] == "trainer")):
            continue
        today = []
        for path, (node, by) in targets.items():
            if by.node is one.node:
                named = class_of(node)
                today.append(f"{dotted(path)}: {'horovod' if named == HOROVOD else named or plain(node)}")
        says = f"{one} is a spelling of Lightning 1.x; today: {', '.join(today) or 'leave it out'}"
        notices.append(f"{says} ({one.origin})")
    return notices


def _warn_of_threads(resolved: Resolved, *, processes: int, cores: int | None) -> list[str]:
    """Give a sentence where the threads that the config sets are more than this machine's cores.

    Args:
        resolved: The config, in which they stand under ``launch.threads``.
        processes: That train on this machine.
        cores: That they may use; None where nobody knows.
    """
    launch = resolved.tree.entries.get("launch")
    node = launch.entries.get("threads") if isinstance(launch, MappingNode) else None
    threads = None if node is None else parse_value(node)
    if node is None or cores is None or not isinstance(threads, int) or threads * processes <= cores:
        return []
    share = max(1, cores // processes)
    if threads == share:  # there are more processes than cores
        return []
    each = f" for each of {processes} processes" if processes > 1 else ""
    return [
        f"launch.threads: {threads}{each} is more than the {cores} core{'s' if cores > 1 else ''} that this process "
        f"may use, by its affinity and its control group: they wait for each other, which can take several times as "
        f"long; {share} {'fits' if share == 1 else 'fit'} ({node.origin})"
    ]

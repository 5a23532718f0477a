"""Resolve the hardware keys of a config to today's keys of the trainer, and check them against the machine.

Equivalent keys (``gpus``, ``devices``, ``accelerator``) may be set in different layers. What they set is picked one
by one: strategy, kind of device, number of devices, precision, number of machines. The highest layer wins; within one
layer a contradiction is an error. ``--trainer.devices=1`` leaves the TPU of ``accelerator: {tpu_cores: 8}``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lightkit.config.accelerator.keys import (
    RawSetting,
    Targets,
    choose_automatic,
    choose_settings,
    contradiction,
    drop_without_effect,
    is_int,
    make_node,
    parse_count,
    parse_gpus,
    parse_numbers,
    parse_tpu_cores,
    parse_value,
    read_settings,
    resolve_computing,
)
from lightkit.config.accelerator.vocabulary import (
    ACCELERATOR_CLASSES,
    ALL,
    GONE_DEVICES,
    GONE_STRATEGIES,
    HOROVOD,
    KINDS,
    OLD_STRATEGIES,
    OLD_TRAINER_KEYS,
    PRECISIONS,
    STRATEGY_CLASSES,
    TRAINER_DEFAULTS,
    XLA_PRECISIONS,
    XLA_STRATEGIES,
)
from lightkit.config.loader import Resolved
from lightkit.config.merge import class_of
from lightkit.config.origins import KeyPath, Origin, dotted, error_at, near
from lightkit.config.tree import Leaf, MappingNode, Node, find, graft, plain, put, rebuild
from lightkit.errors import ConfigError
from lightkit.hardware import Machine

_REMOTE_ENGINES = ("spark", "ray", "slurm")
_DEVICE_KEYS = ("gpus", "tpu_cores")
_NAMES_KIND = ("accelerator", *_DEVICE_KEYS)
_ORDER = (*_NAMES_KIND, "num_processes", "devices", "launch.processes")
_ANY = "any"
"""Number of devices where ``trainer.devices`` is ``auto`` or null."""
_LAUNCHED = ("SLURM_NTASKS", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "HOROVOD_LOCAL_SIZE")
_SCALE_LR = ("callbacks", "scale_lr")
_FOUND = {"tpu": "a TPU", "gpu": "GPUs", "mps": "Apple's GPU", "cpu": "no device but CPUs"}
_INSTALL = "make an environment of its own for it, in lightkit's sources: pip install '.[tpu]' -c constraints-tpu.txt"


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


@dataclass(frozen=True)
class _Strategy:
    """A strategy: its name where that is known, today's value, its setting, and the kind of device of an old name."""

    name: str | None
    node: Node
    source: RawSetting
    kind: str | None = None

    @property
    def has_arguments(self) -> bool:
        return isinstance(self.node, MappingNode) and "init_args" in self.node.entries


@dataclass(frozen=True)
class _Claim:
    """What one setting asks of the devices.

    Args:
        setting: The setting.
        kind: Kind of device, ``auto`` for any; None where it asks for none.
        count: Number of devices, `ALL`, a tuple with their numbers, or ``auto``; None where it asks for none.
        word: Lightning's word for the kind.
        is_weak: Whether another setting of the same layer decides, where there is one.
    """

    setting: RawSetting
    kind: str | None = None
    count: Any = None
    word: str | None = None
    is_weak: bool = False

    @property
    def rank(self) -> int:
        return self.setting.rank

    @property
    def length(self) -> Any:
        return len(self.count) if isinstance(self.count, tuple) else self.count

    @property
    def is_launched(self) -> bool:
        return self.setting.subject == "launch.processes"


@dataclass(frozen=True)
class _Devices:
    """The kind of device and the number that are asked for, each with its setting; None where nothing asks."""

    kind: str | None = None
    kind_source: RawSetting | None = None
    word: str | None = None
    count: Any = None
    count_source: RawSetting | None = None


class _Settings(list[RawSetting]):
    """All hardware settings of a config, and those that a higher layer has replaced, with what did."""

    def __init__(self, settings: Sequence[RawSetting]) -> None:
        super().__init__(settings)
        self.replaced: dict[KeyPath, RawSetting] = {}

    def of(self, subject: str) -> list[RawSetting]:
        return [one for one in self if one.subject == subject]

    def value(self, subject: str) -> Any:
        return next((one.value for one in self.of(subject)), None)

    def pick(self, found: Sequence[RawSetting], *, empty: Sequence[Any] = (None,)) -> RawSetting | None:
        """Give the setting of the highest layer, within which what is empty does not count beside what is not.

        Raises:
            ConfigError: If two of that layer set different values.
        """
        top = [one for one in found if one.rank == max(each.rank for each in found)]
        filled = [one for one in top if one.value not in empty] or top
        for other in filled[1:]:
            if other.value != filled[0].value:
                raise contradiction(filled[0], other, "say one of them")
        self.replaced |= {one.path: filled[0] for one in found if one not in top}
        return filled[0] if filled else None


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
    computing, rest = resolve_computing(read_settings(resolved), resolved)
    settings, here = _Settings(rest), machine
    is_remote = settings.value("launch.engine") in _REMOTE_ENGINES
    has_hosts = settings.value("launch.hosts") is not None
    machine = None if is_remote or has_hosts else machine
    strategy = _resolve_strategy(settings)
    is_horovod = strategy is not None and strategy.name == "horovod"
    num_cores = machine.xla.tpu_cores or None if machine is not None else None
    devices = _resolve_devices(settings, strategy, num_tpu_cores=num_cores, is_remote=is_remote, has_hosts=has_hosts)
    if strategy is not None and strategy.kind is not None and strategy.source.path in settings.replaced:
        strategy = None  # a higher layer asks for another kind of device
    num_nodes = settings.pick([parse_count(one) for one in settings.of("num_nodes")])
    by, count = devices.count_source, devices.count
    if strategy is not None and strategy.kind == "tpu" and (count == 1 or isinstance(count, tuple)):
        # `tpu_spawn` took one core too; today's xla takes all, and Lightning chooses for one
        strategy = replace(strategy, name=None, node=Leaf("auto", strategy.source.origin))
    is_of_processes = by is not None and by.path[-1] in ("num_processes", "processes") and is_int(count) and count > 1
    has_strategy = any(one.path not in settings.replaced for one in settings.of("strategy"))
    if is_of_processes and by is not None and strategy is None and not has_strategy:
        strategy = None if devices.kind in ("tpu", "mps") else _Strategy("ddp", Leaf("ddp", by.origin), by)
    kind = devices.kind or _find_default_kind(machine)
    if machine is not None:
        _check_machine(devices, kind, settings, machine, environ)
    _check_combination(replace(devices, kind=kind), strategy, num_nodes)
    precision = _resolve_precision(settings, on_xla=kind == "tpu", environ=environ)
    processes = None
    if is_horovod and by is not None and isinstance(count, int):
        processes = count
        if count == ALL and by.path[0] != "launch":
            processes = _count_visible(devices.kind, machine)
            if machine is not None and processes is None:
                raise error_at(f"{by}: this machine's GPUs cannot be counted without CUDA; say how many", by.origin)

    targets = _trainer_targets(settings, devices, strategy, num_nodes)
    if precision is not None:
        targets["trainer", "precision"] = precision
    if (other := settings.replaced.get(("launch", "processes"))) is not None:
        targets["launch", "processes"] = graft(_length(count), other.origin), other
    if processes is not None and by is not None:
        targets["launch", "processes"] = make_node(processes, by), by
    targets |= _scale_lr_targets(settings, resolved)
    computing, without_effect = drop_without_effect(computing, kind)
    words, values = "", dict[str, Any]()
    if here is not None:
        launched = environ.get("LOCAL_WORLD_SIZE", "")
        num_here = int(launched) if launched.isdigit() else _length(count)
        num_here = num_here or (_count_visible(kind, here) if kind == "gpu" else None) or 1
        words, values = choose_settings(kind or _find_default_kind(here), here, processes=num_here, environ=environ)
    computing, chosen = choose_automatic(computing, resolved, values)
    result = _write_targets(resolved, {**computing, **targets})
    crowded = []
    if machine is not None and machine.cores is not None:
        is_bound = any(name in environ for name in _LAUNCHED)  # a launcher may bind each process to its own cores
        crowded = _warn_of_threads(result, processes=1 if is_bound else _length(count) or 1, cores=machine.cores)
    return Hardware(
        result,
        processes=processes,
        processes_origin=None if processes is None or by is None else by.origin,
        strategy=strategy.name if strategy else None,
        kind="tpu" if kind == "tpu" else devices.kind if devices.kind in KINDS.values() else None,
        devices=1 if is_horovod else count,
        notices=(*_format_notices(settings, targets), *without_effect, *crowded),
        environment={} if kind != "tpu" or environ.get("PJRT_DEVICE") else {"PJRT_DEVICE": "TPU"},
        chosen=chosen,
        chosen_by=words if chosen else "",
    )


def _length(count: Any) -> int | None:
    """Give the number of processes for devices; None where there is one for each that is found."""
    number = len(count) if isinstance(count, tuple) else count
    return number if isinstance(number, int) and number > 0 else None


# -- strategy --------------------------------------------------------------------------------------------------------


def _resolve_strategy(settings: _Settings) -> _Strategy | None:
    """Give the strategy of the highest layer that sets one; None where Lightning is to decide.

    Raises:
        ConfigError: If there is none of that name any more, or two places of one layer set different ones.
    """
    given = sorted(settings.of("strategy"), key=lambda one: one.is_strategy_word)
    top = max((one.rank for one in given), default=0)
    settings.replaced |= {one.path: next(each for each in given if each.rank == top) for one in given if one.rank < top}
    found = [_parse_strategy(one) for one in given if one.rank == top and one.value not in (None, "auto")]
    engine = next(iter(settings.of("launch.engine")), None)
    if not found:
        return _horovod(engine) if engine is not None and engine.value == "horovod" else None
    chosen = found[0]
    for other in found[1:]:
        # The one that sets more counts: ``ddp`` and ``{class_path: DDPStrategy}`` agree.
        is_same_name = chosen.name is not None and chosen.name == other.name
        both_have_arguments = chosen.has_arguments and other.has_arguments
        if plain(chosen.node) != plain(other.node) and (both_have_arguments or not is_same_name):
            raise contradiction(chosen.source, other.source, "say one of them")
        first = other if other.has_arguments and not chosen.has_arguments else chosen
        chosen = replace(first, kind=chosen.kind or other.kind)
    if engine is not None and engine.value == "horovod" and chosen.name not in (None, "horovod"):
        raise contradiction(chosen.source, engine, "Horovod's launcher starts processes for strategy: horovod only")
    if engine is not None and chosen.name == "horovod" and engine.value in ("torchrun", "ray", "local"):
        raise contradiction(chosen.source, engine, "Horovod's processes are started by the engine horovod or spark")
    return chosen


def _parse_strategy(setting: RawSetting) -> _Strategy:
    node, named = setting.node, class_of(setting.node)
    if str(named or setting.value).lower().rpartition(".")[2] in ("horovod", "horovodstrategy"):
        return _horovod(setting)
    if named is not None or not isinstance(setting.value, str):  # Lightning refuses what is neither
        return _Strategy(STRATEGY_CLASSES.get(str(named).rpartition(".")[2]), node, setting)
    word = setting.value.lower()
    if word in GONE_STRATEGIES:
        raise error_at(f"{setting} is no strategy any more: {GONE_STRATEGIES[word]}", setting.origin)
    name, kind = OLD_STRATEGIES.get(word, (word, None))
    if isinstance(node, Leaf) and (name != word or setting.path[-1] == "accelerator"):
        node = replace(node, value=name)
    return _Strategy(name, node, setting, kind)


def _horovod(setting: RawSetting) -> _Strategy:
    node = setting.node
    if not isinstance(node, MappingNode):
        node = MappingNode({"class_path": Leaf(HOROVOD, node.origin)}, node.origin, node.replaced)
    elif (named := str(class_of(node))).startswith("lightkit.") or "." not in named:
        node = put(node, ("class_path",), Leaf(HOROVOD, node.entries["class_path"].origin))
    return _Strategy("horovod", node, setting)


# -- kind and number -------------------------------------------------------------------------------------------------


def _resolve_devices(
    settings: _Settings, strategy: _Strategy | None, *, num_tpu_cores: int | None, is_remote: bool, has_hosts: bool
) -> _Devices:
    """Give the kind of device and the number.

    Raises:
        ConfigError: If a value is wrong, is no longer known to Lightning, or two of one layer contradict each other.
    """
    is_horovod = strategy is not None and strategy.name == "horovod"
    claims = _make_claims(settings, is_horovod=is_horovod, num_tpu_cores=num_tpu_cores, is_remote=is_remote)
    if strategy is not None and strategy.kind is not None:
        claims.append(_Claim(strategy.source, strategy.kind, word=strategy.kind))
    kind = _pick_kind(claims)
    kept = claims if kind is None else [claim for claim in claims if _fits(claim, kind, is_horovod=is_horovod)]
    settings.replaced |= {} if kind is None else {c.setting.path: kind.setting for c in claims if c not in kept}
    found = _Devices() if kind is None or kind.kind == "auto" else _Devices(kind.kind, kind.setting, kind.word)
    # `num_processes: 1`, the default of Lightning 1.x, counts only where nothing else names the kind
    counted = [claim for claim in kept if claim.count is not None and (claim.count != 1 or not claim.is_weak)]
    counted += [kind] if kind is not None and kind.is_weak and kind.count == 1 else []
    if is_horovod:
        counted = [claim for claim in counted if claim.count != _ANY and (claim.is_launched or found.kind != "tpu")]
        return _count_horovod(found, counted, has_hosts=has_hosts)
    launched = [claim for claim in counted if claim.is_launched]
    every = next((claim for claim in counted if claim.count == ALL and claim.setting.subject == "devices"), None)
    if is_remote:  # what each of its processes sees is the launcher's business
        counted = [claim for claim in counted if not claim.is_launched]
    else:  # all devices give way to a number of processes
        of_processes = [claim for claim in counted if claim.is_launched or claim.setting.subject == "num_processes"]
        rank = max((math.inf if claim.is_launched else claim.rank for claim in of_processes), default=-1)
        counted = [claim for claim in counted if claim.count != ALL or claim.rank > rank]
    top = [claim for claim in counted if claim.rank == max(each.rank for each in counted)]
    top = [claim for claim in top if claim.count != _ANY] or top
    _check_same_number(top)
    if is_remote:
        _check_same_number([claim for claim in (*top, *launched) if claim.count not in (1, ALL, _ANY)])
    if not top or top[0].count == _ANY:
        return found
    if top == launched and settings.value("launch.engine") == "torchrun":  # its ranks learn their number from it
        return found if every is None else replace(found, count="auto", count_source=every.setting)
    same = [claim for claim in counted if claim in top or claim.is_launched != top[0].is_launched]
    lists = [claim for claim in same if isinstance(claim.count, tuple) and claim.length == top[0].length] or top
    own = next((claim for claim in lists if claim.setting.path == ("trainer", "devices")), lists[0])
    lower = [claim for claim in counted if claim.rank < own.rank and claim.length != own.length]
    settings.replaced |= {claim.setting.path: own.setting for claim in lower}
    return replace(found, count=own.count, count_source=own.setting)


def _make_claims(settings: _Settings, *, is_horovod: bool, num_tpu_cores: int | None, is_remote: bool) -> list[_Claim]:
    """Parse what each setting asks of the devices.

    Raises:
        ConfigError: If a value is none of the forms, or of a kind of device that Lightning dropped.
    """
    claims = []
    kind: str | None
    for one in settings:
        subject, value = one.subject, one.value
        beside = [other for other in settings if other.path[0] == one.path[0]]
        if subject in ("ipus", "hpus") and value not in (None, 0, [], ""):
            raise error_at(f"{one}: {GONE_DEVICES[subject[:-1]]}", one.origin)
        if subject == "accelerator":
            if value in ("ipu", "hpu"):
                raise error_at(f"{one}: {GONE_DEVICES[value]}", one.origin)
            kind = _find_kind(one)
            word = plain(one.node)
            claims.append(_Claim(one, kind, word=word if isinstance(word, str) else None, is_weak=kind == "auto"))
        elif subject == "gpus":
            number = parse_gpus(one)
            beside_it = [other for other in settings.of("accelerator") if other.rank == one.rank]
            is_mac = any(_find_kind(other) == "mps" for other in beside_it)
            kind = "cpu" if not number else "mps" if is_mac else "gpu"
            claims.append(_Claim(one, kind, number or None, kind, is_weak=number is None))
        elif subject == "tpu_cores" and (cores := parse_tpu_cores(one, num_cores=num_tpu_cores)) is not None:
            claims.append(_Claim(one, "tpu", cores, "tpu"))
        elif subject == "num_processes" and (number := parse_count(one).value) is not None:
            of_devices = any(other.subject in _DEVICE_KEYS and other.value not in (None, 0, []) for other in beside)
            kind, count = (None if of_devices else "cpu"), (None if of_devices and number == 1 else number)
            claims.append(_Claim(one, kind, count, "cpu", is_weak=number == 1 or is_horovod))
        elif subject == "devices":
            numbers = parse_numbers(one)
            claims.append(_Claim(one, None, numbers or (_ANY if value in (None, "auto") else value)))
        elif subject == "launch.processes" and is_int(value):
            if value <= 0 and not (is_remote or is_horovod):
                raise one.expect("a number from 1; one below 0 has a meaning for launch.engine: spark only")
            if value:
                claims.append(_Claim(one, None, value if is_horovod else abs(value)))
    by_trainer = [c.kind for c in claims if c.setting.path[0] == "trainer" and c.setting.subject in _NAMES_KIND]
    kind = next((kind for kind in by_trainer if kind != "auto"), None)
    claims.sort(key=lambda claim: _ORDER.index(claim.setting.subject))
    return [replace(claim, kind=kind) if claim.setting.subject == "devices" else claim for claim in claims]


def _pick_kind(claims: Sequence[_Claim]) -> _Claim | None:
    """Give the claim that decides the kind of device; GPUs and TPU cores exclude each other in all layers.

    Raises:
        ConfigError: If two of the highest layer ask for different kinds.
    """
    found = [claim for claim in claims if claim.kind is not None and claim.setting.subject != "devices"]
    found.sort(key=lambda claim: (claim.setting.subject != "accelerator", claim.setting.subject == "num_processes"))
    top = [claim for claim in found if claim.rank == max(each.rank for each in found)]
    top = [claim for claim in top if not claim.is_weak] or [c for c in top if c.kind != "auto"] or top
    if not top:
        return None
    subjects = {top[0].setting.subject, "gpus", "tpu_cores"}
    others = [c for c in found if len(subjects) == 2 and c.setting.subject in subjects and c.kind != "cpu"]
    for other in [*top[1:], *(others if top[0].kind != "cpu" else ())]:
        if other.kind != top[0].kind:
            first, second = sorted((top[0], other), key=found.index)
            advice = f"a run is on one kind of device, not on {first.kind} and {second.kind}"
            raise contradiction(first.setting, second.setting, advice)
    same = [claim for claim in found if claim.kind == top[0].kind and claim.setting.subject == "accelerator"]
    return next((claim for claim in same if claim.setting.path[0] == "trainer"), (same or top)[0])


def _fits(claim: _Claim, kind: _Claim, *, is_horovod: bool) -> bool:
    """Tell whether a claim holds beside the one that decides the kind."""
    if claim.kind in (None, "auto", kind.kind) or (is_horovod and claim.setting.subject == "num_processes"):
        on_gpus = claim.count == ALL or isinstance(claim.count, tuple)
        return not (claim.kind is None and on_gpus and kind.kind == "cpu" and claim.rank < kind.rank)
    return claim.rank >= kind.rank and not claim.is_weak


def _check_same_number(claims: Sequence[_Claim]) -> None:
    for claim in claims[1:]:
        both_lists = isinstance(claim.count, tuple) and isinstance(claims[0].count, tuple)
        if claim.count != claims[0].count and (both_lists or claim.length != claims[0].length):
            raise contradiction(claims[0].setting, claim.setting, "say one of them, or the same number")


def _count_horovod(found: _Devices, counted: Sequence[_Claim], *, has_hosts: bool) -> _Devices:
    """Add the number of Horovod's processes, each of which has one device.

    ``gpus: 1`` says only that, as it did in Lightning 1.x, and ``gpus: -1`` gives way to a number. With
    ``launch.hosts``, which has a number for each host, the keys of one machine say none.
    """
    for one in [claim.setting for claim in counted if not claim.is_launched and not isinstance(claim.count, int)]:
        numbers = parse_numbers(one)
        if numbers is None:
            raise one.expect("a number of processes, each with one device")
        says = f"{one}: Horovod's processes take the visible GPUs in their order; set the variable "
        listed = ",".join(map(str, numbers))
        raise error_at(f"{says}CUDA_VISIBLE_DEVICES={listed}, and say gpus: {len(numbers)}", one.origin)
    given = [claim for claim in counted if claim.is_launched or (claim.count not in (1, ALL) and not has_hosts)]
    top = [claim for claim in given if claim.rank == max(each.rank for each in given)]
    top.sort(key=lambda claim: not claim.is_launched)
    for claim in top[1:]:
        if abs(claim.count) != abs(top[0].count):
            raise contradiction(top[0].setting, claim.setting, "say one of them, or the same number")
    every = [claim for claim in counted if claim.count == ALL and not has_hosts]
    chosen = next(iter([*top, *every]), None)
    return found if chosen is None else replace(found, count=chosen.count, count_source=chosen.setting)


def _find_kind(setting: RawSetting) -> str:
    """Give the kind of device that ``accelerator`` names: its class or its word where that is not known."""
    if setting.value in (None, "auto"):
        return "auto"
    if (named := class_of(setting.node)) is not None:
        return ACCELERATOR_CLASSES.get(named.rpartition(".")[2], named)
    return KINDS.get(str(setting.value)) or str(setting.value)


# -- precision -------------------------------------------------------------------------------------------------------


def _resolve_precision(
    settings: _Settings, *, on_xla: bool, environ: Mapping[str, str]
) -> tuple[Node, RawSetting] | None:
    """Give the precision to write, with its setting; None where today's word stands, or Lightning's default holds.

    ``XLA_USE_BF16`` counts on a TPU.

    Raises:
        ConfigError: If there is no such precision, XLA has it not, or two places of one layer set different ones.
    """

    def parse(setting: RawSetting) -> RawSetting:
        """Give a precision in today's words; what is wrong under ``trainer`` is Lightning's to refuse."""
        value = setting.value
        word = PRECISIONS.get(str(value)) if isinstance(value, (int, str)) and not isinstance(value, bool) else None
        if word is None and value is not None and setting.path[0] == "accelerator":
            words = ("auto", *PRECISIONS)
            raise setting.expect(f"one of {', '.join(words)}", near(str(value).lower(), words))
        return replace(setting, value=word or value)

    given = [parse(one) for one in settings.of("precision")]
    chosen = settings.pick(given)
    if chosen is not None:
        own = [one for one in given if one.path[0] == "trainer" and one.value == chosen.value]
        chosen = own[0] if own else chosen
    is_set = chosen is not None and chosen.value is not None
    word = chosen.value if chosen is not None else None
    if on_xla and chosen is not None and is_set:
        written = chosen.node.value if isinstance(chosen.node, Leaf) else chosen.value
        if (word := XLA_PRECISIONS.get(str(written))) is None:
            why = "16-true computes in float32 there without a word, and mixed precision is refused"
            says = f"{chosen}: on a TPU expected 32-true or bf16-true; {why}; say precision: bf16-true"
            raise error_at(says, chosen.origin)
    if on_xla and (variable := environ.get("XLA_USE_BF16", "")).lower() in ("1", "true", "yes"):
        source = RawSetting(("XLA_USE_BF16",), Leaf(variable, Origin("variable", "XLA_USE_BF16")), "bf16-true")
        if chosen is None or not is_set:
            return Leaf("bf16-true", source.origin), source
        if word != "bf16-true":
            raise contradiction(chosen, source, "say precision: bf16-true, or unset the variable")
    if chosen is None or not is_set or (chosen.path[0] == "trainer" and not _is_old_precision(chosen)):
        return None
    return make_node(word, chosen), chosen


def _is_old_precision(setting: RawSetting) -> bool:
    """Tell whether it is a precision in the words of Lightning 1.x; 32 and 64 are today's too."""
    return setting.path[-1] == "precision" and str(parse_value(setting.node)) in ("16", "bf16")


# -- checks ----------------------------------------------------------------------------------------------------------


def _count_visible(kind: str | None, machine: Machine | None) -> int | None:
    """Count the machine's devices of the kind that is asked for; None where that is not known, or without limit."""
    if machine is None or kind in (None, "cpu"):
        return None
    if kind == "tpu":
        on_chips = machine.xla.device in (None, "TPU")
        return machine.xla.tpu_cores if on_chips else None  # XLA on the CPU has any number
    if machine.mps:
        return 1
    if kind == "mps":
        return 0
    return None if machine.gpus is None else len(machine.gpus)


def _find_default_kind(machine: Machine | None) -> str | None:
    """Give the kind of device that Lightning chooses where no key names one; None where that is not known."""
    if machine is None:
        return None
    if machine.xla.version and machine.xla.tpu_cores and machine.xla.device in (None, "TPU"):
        return "tpu"
    if machine.mps:
        return "mps"
    if machine.gpus is None:
        return None
    return "gpu" if machine.gpus and "+cpu" not in machine.versions.get("torch", "") else "cpu"


def _check_machine(
    devices: _Devices,
    kind: str | None,
    settings: _Settings,
    machine: Machine,
    environ: Mapping[str, str],
) -> None:
    """Check that the machine has what is asked of it.

    Args:
        devices: What is asked for.
        kind: Kind of device, that which Lightning will find where none is set.
        settings: All settings.
        machine: The machine.
        environ: Environment variables.

    Raises:
        ConfigError: If it has fewer devices, and says which there are; or if its torch cannot use them.
    """
    count, by, torch = devices.count, devices.count_source, machine.versions.get("torch", "")
    if kind == "tpu" and machine.xla.tpu_cores and by is not None:
        cores = list(count) if isinstance(count, tuple) else count
        parse_tpu_cores(replace(by, value=cores), num_cores=machine.xla.tpu_cores)
    if devices.kind == "tpu" and devices.kind_source is not None:
        xla, asks = machine.versions.get("torch-xla"), devices.kind_source
        needed = "2.9" if xla is None else ".".join(xla.partition("+")[0].split(".")[:2])
        if xla is None or needed != ".".join(torch.partition("+")[0].split(".")[:2]):
            missing = "TPUs need torch-xla, which is not installed; its last version, 2.9, needs"
            what = missing if xla is None else f"torch-xla {xla} needs"
            says = f"{asks}: {what} torch {needed}, and here is torch {torch or 'none'}; {_INSTALL}"
            raise error_at(says, asks.origin)
    launched = next(iter(settings.of("launch.processes")), None)
    if launched is not None and count in (None, "auto") and is_int(launched.value):
        count, by = launched.value, launched
    num_there = _count_visible(kind, machine)
    by = by or devices.kind_source
    if num_there is None or kind not in ("gpu", "mps", "tpu") or by is None:
        return
    in_trainer, all_auto = by.path[0] == "trainer", "accelerator: auto"
    cpu = "gpus: 0, which is the CPU"  # goes together with all else that the block sets
    if by.path[0] != "accelerator":
        cpu = "trainer.accelerator: cpu" if in_trainer else "accelerator: {gpus: 0}, which is the CPU"
    wanted = max(count) + 1 if isinstance(count, tuple) else abs(count) if isinstance(count, int) else 1
    if num_there and (count in (None, ALL, "auto") or wanted <= num_there):
        if kind == "gpu" and machine.gpus and "+cpu" in torch:
            says = f"{by}: torch {torch} is built for CPUs only; install one that is built with CUDA, or say {cpu}"
            raise error_at(says, by.origin)
        return
    if in_trainer:
        all_auto = "trainer.accelerator: auto and trainer.devices: auto"
    advice = f"ask for what is there, or say {cpu if devices.kind_source is None else all_auto}"
    if kind == "tpu":
        chips = machine.xla.tpu_chips
        found = f"this machine has {chips or 'no'} TPU chip{'s' if chips != 1 else ''}"
        found += f" with {machine.xla.tpu_cores} cores in all" if chips else ""
    elif kind == "mps" or machine.mps:
        found = "this machine has one GPU, Apple's" if machine.mps else "this machine has no GPU of Apple's"
    else:
        gpus, hidden = machine.gpus or (), environ.get("CUDA_VISIBLE_DEVICES")
        names = ", ".join(f"{gpu.index}: {gpu.name} ({gpu.memory_bytes / 2**30:.0f} GiB)" for gpu in gpus)
        found = f"this machine shows {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}, {names}"
        found = found if gpus else "this machine shows no GPU"
        found += f" (CUDA_VISIBLE_DEVICES is {hidden!r})" if hidden is not None else ""
        auto = "" if devices.kind_source is None else f", or {all_auto if in_trainer else 'leave it out'}"
        advice = f"say {f'at most {len(gpus)}, or ' if gpus else ''}{cpu}{auto}"
    raise error_at(f"{by}: {found}; {advice}", by.origin)


def _check_combination(devices: _Devices, strategy: _Strategy | None, num_nodes: RawSetting | None) -> None:
    """Check that the kind of device, its number and the strategy go together.

    Raises:
        ConfigError: If they do not; it shows both places.
    """

    def refuse(setting: RawSetting, advice: str) -> ConfigError:
        """Make the error that shows a value and what asks for the kind of device, or what Lightning will find."""
        other = devices.kind_source
        if other is None:
            found = _FOUND[str(devices.kind)]
            return error_at(f"{setting}: Lightning finds {found} on this machine; {advice}", setting.origin)
        if other.origin == setting.origin:
            return error_at(f"{setting}: {advice}", setting.origin)
        return contradiction(setting, other, advice)

    by, count, kind = devices.count_source, devices.count, devices.kind
    if by is not None and by.path[0] != "launch":
        if count in (0, [], "") or (isinstance(count, int) and count < ALL):
            raise by.expect("a number of devices from 1, their numbers, or -1 for all of them")
        if kind == "cpu" and (count == ALL or isinstance(count, (tuple, str))):
            raise refuse(by, "on CPUs it is the number of processes, such as 2")
    if strategy is None or strategy.name is None:
        return
    name, length = strategy.name, len(count) if isinstance(count, tuple) else count if isinstance(count, int) else 1
    if kind == "tpu" and name not in (*XLA_STRATEGIES, "single_device"):
        advice = "a TPU takes the strategy xla, which Lightning chooses by itself"
        raise refuse(strategy.source, advice)
    if kind in ("cpu", "gpu", "mps") and name in XLA_STRATEGIES:
        raise refuse(strategy.source, "the strategy xla is for TPUs only")
    if kind == "cpu" and name.startswith(("fsdp", "deepspeed")):
        raise refuse(strategy.source, f"{name} works on NVIDIA's GPUs only; on CPUs there is ddp")
    if name == "single_device" and by is not None and length > 1:
        raise contradiction(strategy.source, by, "it trains on one device; for several there is ddp")
    if kind == "mps" and not name.startswith("single_device"):
        raise refuse(strategy.source, "Apple's GPU works alone, without a strategy")
    if name == "horovod" and num_nodes is not None and (num_nodes.value or 1) > 1:
        advice = "for Horovod the machines stand under launch.hosts: 'a:4,b:4'"
        raise contradiction(strategy.source, num_nodes, advice)


# -- the resolved config ---------------------------------------------------------------------------------------------


def _trainer_targets(
    settings: _Settings, devices: _Devices, strategy: _Strategy | None, num_nodes: RawSetting | None
) -> Targets:
    """List the trainer keys that must be written because the config does not have them in these words."""
    own = {one.path: one for one in settings if one.path[0] == "trainer"}
    targets: Targets = {}
    for path, one in own.items():  # where they hold null, Lightning 1.x's default, or what moved
        is_default = path[-1] != "precision" and (one.value is None or one.is_strategy_word)
        if path[-1] in TRAINER_DEFAULTS and is_default:
            targets[path] = Leaf(TRAINER_DEFAULTS[path[-1]], one.origin), one
    by, asks = devices.count_source, devices.kind_source
    if devices.word is not None and asks is not None:
        targets["trainer", "accelerator"] = make_node(devices.word, asks), asks
    if strategy is not None:
        targets["trainer", "strategy"] = strategy.node, strategy.source
    if strategy is not None and strategy.name == "horovod":
        targets["trainer", "devices"] = Leaf(1, strategy.source.origin), strategy.source
    elif devices.count is not None and by is not None:
        targets["trainer", "devices"] = make_node(devices.count, by), by
    if num_nodes is not None and num_nodes.value is not None:
        targets["trainer", "num_nodes"] = make_node(num_nodes.value, num_nodes), num_nodes
    changed = {path: each for path, each in targets.items() if path not in own or each[0] is not own[path].node}
    gone = {
        path: one for path, one in settings.replaced.items() if path[0] == "trainer" and path[-1] in TRAINER_DEFAULTS
    }
    return {path: (Leaf(TRAINER_DEFAULTS[path[-1]], one.origin), one) for path, one in gone.items()} | changed


def _scale_lr_targets(settings: _Settings, resolved: Resolved) -> Targets:
    """Add the named callback that scales the learning rate, where ``scale_lr`` is true.

    Raises:
        ConfigError: If the values are wrong, there is a warm-up of nothing, or the entry was removed by its name.
    """
    scale, warmup = settings.pick(settings.of("scale_lr")), settings.pick(settings.of("warmup_epochs"))
    if scale is not None and scale.value not in (None, True, False):
        raise scale.expect("true or false")
    epochs = None if warmup is None else warmup.value
    if warmup is not None and epochs is not None:
        if not ((is_int(epochs) or isinstance(epochs, float)) and epochs >= 0):
            raise warmup.expect("a number of epochs from 0")
        if scale is None or scale.value is None:
            says = f"{warmup} has no effect without accelerator.scale_lr"
            raise error_at(
                f"{says}: it is the warm-up to the scaled learning rate; say scale_lr: true too", warmup.origin
            )
    if scale is None or not scale.value:
        return {}
    entry = find(resolved.tree, _SCALE_LR)
    if entry is not None and plain(entry) is None:
        says = f"{scale} contradicts callbacks.scale_lr: null, which removes it"
        raise error_at(f"{says}; say scale_lr: false", scale.origin, entry.origin)
    targets: Targets = {}
    if entry is None:
        targets[(*_SCALE_LR, "class_path")] = Leaf("lightkit.distributed.ScaledLearningRate", scale.origin), scale
    if warmup is not None and epochs is not None:
        targets[(*_SCALE_LR, "init_args", "warmup_epochs")] = make_node(epochs, warmup), warmup
    return targets


def _write_targets(resolved: Resolved, targets: Targets) -> Resolved:
    """Write values into a config, and take the old hardware keys out.

    What the environment gave is a reference at its new place too, unless it reads differently there.

    Raises:
        ConfigError: If what a value goes into is no mapping.
    """
    removed = {("accelerator",), *(("trainer", key) for key in OLD_TRAINER_KEYS)}
    removed = {path for path in removed if find(resolved.tree, path) is not None}
    if not targets and not removed:
        return resolved
    tree, references = rebuild(resolved.tree, lambda path, node: None if path in removed else node), resolved.references
    assert isinstance(tree, MappingNode)
    for path, (node, _) in targets.items():
        tree = put(tree, path, node)
    for path in [*removed, *targets]:
        references = {old: text for old, text in references.items() if old[: len(path)] != path}
        if path in targets and str(plain(targets[path][1].node)) == str(plain(targets[path][0])):
            source = targets[path][1].path
            below = {old: text for old, text in resolved.references.items() if old[: len(source)] == source}
            references |= {(*path, *old[len(source) :]): text for old, text in below.items()}
    return replace(resolved, tree=tree, references=references)


def _format_notices(settings: _Settings, targets: Targets) -> list[str]:
    """Give one sentence for each spelling of Lightning 1.x, with its place and what to write today."""
    notices = []
    for one in settings:
        key = one.path[-1]
        is_old = key in OLD_TRAINER_KEYS or one.is_strategy_word or _is_old_precision(one)
        is_old = is_old or (one.value is None and key != "precision")
        is_old_strategy = isinstance(one.value, str) and one.value.lower() in OLD_STRATEGIES
        if one.path in settings.replaced or not (is_old_strategy or (is_old and one.path[0] == "trainer")):
            continue
        today = []
        for path, (node, by) in targets.items():
            if by.node is one.node:
                named = class_of(node)
                today.append(f"{dotted(path)}: {'horovod' if named == HOROVOD else named or plain(node)}")
        says = f"{one} is a spelling of Lightning 1.x; today: {', '.join(today) or 'leave it out'}"
        notices.append(f"{says} ({one.origin})")
    return notices


def _warn_of_threads(resolved: Resolved, *, processes: int, cores: int) -> list[str]:
    """Give a sentence where the threads that the config sets are more than this machine's cores.

    Args:
        resolved: The config, in which they stand under ``launch.threads``.
        processes: That train on this machine.
        cores: That they may use.
    """
    node = find(resolved.tree, ("launch", "threads"))
    threads = None if node is None else parse_value(node)
    if node is None or not isinstance(threads, int) or threads * processes <= cores:
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

"""Resolve the kind and number of devices, the strategy and the precision, and check that they go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightkit.config.accelerator.keys import (
    RawSetting,
    RawSettings,
    combine,
    contradiction,
    is_horovod,
    is_int,
    is_remote,
    parse_count,
    parse_devices,
    parse_gpus,
    parse_tpu_cores,
)
from lightkit.config.accelerator.precedence import find_kind
from lightkit.config.accelerator.vocabulary import (
    ALL,
    GONE_DEVICES,
    GONE_STRATEGIES,
    HOROVOD,
    OLD_STRATEGIES,
    PRECISIONS,
    STRATEGY_CLASSES,
    XLA_PRECISIONS,
    XLA_STRATEGIES,
)
from lightkit.config.merge import class_of
from lightkit.config.origins import Origin, mistake, near
from lightkit.config.tree import Leaf, MappingNode, Node, plain
from lightkit.errors import ConfigError

_FOUND = {"tpu": "a TPU", "gpu": "GPUs", "mps": "Apple's GPU", "cpu": "no device but CPUs"}


@dataclass(frozen=True)
class Devices:
    """The devices that a config asks for.

    Args:
        kind: ``cpu``, ``gpu``, ``tpu`` or ``mps``; None where Lightning is to decide, or it is not known.
        kind_source: The setting that asks for it.
        word: Lightning's word for it.
        count: Number of devices, -1 for all, ``auto``, or a tuple with the numbers of those meant; None if not set.
            For Horovod the number of processes, below 0 where Spark's driver is to run them.
        count_source: The setting that asks for it.
    """

    kind: str | None = None
    kind_source: RawSetting | None = None
    word: str | None = None
    count: Any = None
    count_source: RawSetting | None = None


@dataclass(frozen=True)
class Strategy:
    """A strategy.

    Args:
        name: Its name where that is known: ``ddp``, ``horovod``.
        node: Today's value for ``trainer.strategy``.
        source: The setting that asks for it.
        kind: Kind of device that an old name implied.
    """

    name: str | None
    node: Node
    source: RawSetting
    kind: str | None = None


@dataclass(frozen=True)
class Precision:
    """A precision: Lightning's word today, the setting that asks for it, and whether that is the trainer's own word."""

    word: str
    source: RawSetting
    is_todays: bool


# -- strategy --------------------------------------------------------------------------------------------------------


def resolve_strategy(settings: RawSettings) -> Strategy | None:
    """Give the strategy that is set; None where Lightning is to decide.

    Raises:
        ConfigError: If there is none of that name any more, or two places set different ones.
    """
    words = [one for one in settings.get("accelerator", ()) if one.is_strategy_word]
    found = [_parse_strategy(one) for one in [*settings.get("strategy", ()), *words] if one.value not in (None, "auto")]
    engine = next(iter(settings.get("launch.engine", ())), None)
    if not found:
        return _horovod(engine) if engine is not None and engine.value == "horovod" else None
    chosen = found[0]
    for other in found[1:]:
        # The one that sets more counts: ``ddp`` and ``{class_path: DDPStrategy}`` agree.
        has_arguments = [
            isinstance(one.node, MappingNode) and "init_args" in one.node.entries for one in (chosen, other)
        ]
        is_same_name = chosen.name is not None and chosen.name == other.name
        if plain(chosen.node) != plain(other.node) and not (is_same_name and not all(has_arguments)):
            raise contradiction(chosen.source, other.source, "say one of them")
        first = other if has_arguments == [False, True] else chosen
        chosen = replace(first, kind=chosen.kind or other.kind)
    if engine is not None and engine.value == "horovod" and chosen.name not in (None, "horovod"):
        raise contradiction(chosen.source, engine, "Horovod's launcher starts processes for strategy: horovod only")
    if engine is not None and chosen.name == "horovod" and engine.value in ("torchrun", "ray", "local"):
        raise contradiction(chosen.source, engine, "Horovod's processes are started by the engine horovod or spark")
    return chosen


def _parse_strategy(setting: RawSetting) -> Strategy:
    if (named := class_of(setting.node)) is not None:
        last = named.rpartition(".")[2]
        if named == "horovod" or last == "HorovodStrategy":  # the first where a dotted key reaches below it
            return _horovod(setting)
        return Strategy(STRATEGY_CLASSES.get(last), setting.node, setting)
    if not isinstance(setting.value, str):  # Lightning refuses it
        return Strategy(None, setting.node, setting)
    word, node = setting.value.lower(), setting.node
    if word in GONE_STRATEGIES:
        raise mistake(f"{setting} is no strategy any more: {GONE_STRATEGIES[word]}", setting.origin)
    if is_horovod(setting):
        return _horovod(setting)
    name, kind = OLD_STRATEGIES.get(word, (word, None))
    if isinstance(node, Leaf) and (name != word or setting.path[-1] == "accelerator"):
        node = replace(node, value=name)
    return Strategy(name, node, setting, kind)


def _horovod(setting: RawSetting) -> Strategy:
    node = setting.node
    if not isinstance(node, MappingNode):
        node = MappingNode({"class_path": Leaf(HOROVOD, node.origin)}, node.origin, node.replaced)
    else:
        named = node.entries["class_path"]
        if str(plain(named)).startswith("lightkit.") or "." not in str(plain(named)):
            node = replace(node, entries={**node.entries, "class_path": Leaf(HOROVOD, named.origin)})
    return Strategy("horovod", node, setting)


# -- kind and number -------------------------------------------------------------------------------------------------


def resolve_devices(settings: RawSettings, strategy: Strategy | None, *, num_tpu_cores: int | None = None) -> Devices:
    """Give the kind of device and the number.

    Args:
        settings: Settings by subject.
        strategy: The strategy.
        num_tpu_cores: Cores of this machine's TPU, where that is known.

    Raises:
        ConfigError: If a value is wrong, is no longer known to Lightning, or two contradict each other.
    """
    for subject in ("ipus", "hpus"):
        for one in settings.get(subject, ()):
            if one.value not in (None, 0, [], ""):
                raise mistake(f"{one}: {GONE_DEVICES[subject[:-1]]}", one.origin)
    gpus = combine([parse_gpus(one) for one in settings.get("gpus", ())])
    cores = combine([parse_tpu_cores(one, num_cores=num_tpu_cores) for one in settings.get("tpu_cores", ())])
    processes = combine([parse_count(one) for one in settings.get("num_processes", ())], empty=(None, 1))
    devices = combine([parse_devices(one) for one in settings.get("devices", ())])
    found = _resolve_kind(gpus, cores, processes, _find_accelerator(settings), strategy)
    # Numbers of devices, without what Lightning 1.x had by default.
    numbers = [one for one in (gpus, cores, processes, devices) if one is not None and one.value is not None]
    numbers = [one for one in numbers if not (one is gpus and one.value == 0)]
    numbers = [one for one in numbers if one is not processes or one.value != 1 or found.kind_source is processes]
    if strategy is not None and strategy.name == "horovod":
        return _count_horovod(found, [] if found.kind == "tpu" else numbers, settings)
    return _count_devices(found, numbers, processes, devices, settings)


def _find_accelerator(settings: RawSettings) -> RawSetting | None:
    """Give the setting that names a kind of device; ``cuda`` and ``gpu`` agree."""
    words = [one for one in settings.get("accelerator", ()) if not one.is_strategy_word]
    for one in words:
        if one.value in ("ipu", "hpu"):
            raise mistake(f"{one}: {GONE_DEVICES[one.value]}", one.origin)
    kinds = [replace(one, value=find_kind(one)) for one in words]
    chosen = combine(kinds, empty=(None, "auto"))
    # The trainer's own word stays; that of the block takes the place of an `auto`.
    own = [one for one in kinds if one.path[0] == "trainer" and chosen is not None and one.value == chosen.value]
    return own[0] if own else chosen


def _resolve_kind(
    gpus: RawSetting | None,
    cores: RawSetting | None,
    processes: RawSetting | None,
    accelerator: RawSetting | None,
    strategy: Strategy | None,
) -> Devices:
    """Give the one kind of device that the settings ask for, those that name it first."""
    found: list[Devices] = []
    if accelerator is not None and accelerator.value is not None:
        word = plain(accelerator.node) if accelerator.path[-1] in ("accelerator", "kind") else accelerator.value
        found.append(Devices(accelerator.value, accelerator, word if isinstance(word, str) else None))
    has_gpus = gpus is not None and gpus.value is not None
    if gpus is not None and has_gpus:
        is_mac = bool(found) and found[0].kind == "mps" and gpus.value != 0
        kind = "cpu" if gpus.value == 0 else "mps" if is_mac else "gpu"
        found.append(Devices(kind, gpus, kind))
    if cores is not None and cores.value is not None:
        found.append(Devices("tpu", cores, "tpu"))
    if strategy is not None and strategy.kind is not None:
        found.append(Devices(strategy.kind, strategy.source, strategy.kind))
    if processes is not None and (processes.value or 0) > 1:
        by_key = (gpus is not None and has_gpus and gpus.value != 0) or (cores is not None and cores.value is not None)
        by_key = by_key or (
            accelerator is not None and accelerator.path[-1] == "gpus"
        )  # a higher layer has replaced its number
        counts_ranks = strategy is not None and strategy.name == "horovod"
        if not (found if counts_ranks else by_key):  # with GPUs it counts their processes
            found.append(Devices("cpu", processes, "cpu"))
    for other in found[1:]:
        if other.kind != found[0].kind:
            assert found[0].kind_source is not None
            assert other.kind_source is not None
            advice = f"a run is on one kind of device, not on {found[0].kind} and {other.kind}"
            raise contradiction(found[0].kind_source, other.kind_source, advice)
    if found:
        return found[0]
    if gpus is not None:  # it is null then
        return Devices("cpu", gpus, "cpu")
    if processes is not None and processes.value == 1:
        return Devices("cpu", processes, "cpu")
    return Devices()


def _count_devices(
    found: Devices,
    numbers: Sequence[RawSetting],
    processes: RawSetting | None,
    devices: RawSetting | None,
    settings: RawSettings,
) -> Devices:
    """Add the number of devices, on which all that name one must agree; -1 gives way to a number of processes."""
    launched = _find_launched(settings)
    if is_remote(settings):
        _check_same_number([one for one in (*numbers, launched) if one is not None and one.value not in (1, ALL)])
        launched = None  # what each of its processes sees is the launcher's business
    if launched is not None or processes in numbers:
        numbers = [one for one in numbers if one.value != ALL]
    given = [one for one in (*numbers, launched) if one is not None]
    _check_same_number(given)
    is_torchrun = any(one.value == "torchrun" for one in settings.get("launch.engine", ()))
    if not given or (given == [launched] and is_torchrun):  # torchrun's ranks learn their number from it
        every = devices if devices is not None and devices.value == ALL and given else None
        return found if every is None else replace(found, count="auto", count_source=every)
    given = [one for one in given if isinstance(one.value, tuple)] or given  # which ones says how many too
    own = next((one for one in given if one.path == ("trainer", "devices")), given[0])
    return replace(found, count=own.value, count_source=own)


def _check_same_number(given: Sequence[RawSetting]) -> None:
    for one in given[1:]:
        both_lists = isinstance(one.value, tuple) and isinstance(given[0].value, tuple)
        lengths = [len(each.value) if isinstance(each.value, tuple) else each.value for each in (one, given[0])]
        if one.value != given[0].value and (both_lists or lengths[0] != lengths[1]):
            raise contradiction(given[0], one, "say one of them, or the same number")


def _count_horovod(found: Devices, numbers: Sequence[RawSetting], settings: RawSettings) -> Devices:
    """Add the number of Horovod's processes, each of which has one device.

    ``gpus: 1`` says only that, as it did in Lightning 1.x, and ``gpus: -1`` gives way to a number. With
    ``launch.hosts``, which has a number for each host, the keys of one machine say none.
    """
    for one in numbers:
        if not isinstance(one.value, (int, tuple)):
            raise one.expect("a number of processes, each with one device")
        if isinstance(one.value, tuple):
            says = f"{one}: Horovod's processes take the visible GPUs in their order; set the variable "
            listed = ",".join(map(str, one.value))
            raise mistake(f"{says}CUDA_VISIBLE_DEVICES={listed}, and say gpus: {len(one.value)}", one.origin)
    launched = [one for one in settings.get("launch.processes", ()) if is_int(one.value)]
    has_hosts = any(one.value is not None for one in settings.get("launch.hosts", ()))
    counted = [*launched, *([] if has_hosts else [one for one in numbers if one.value not in (1, ALL)])]
    for one in counted[1:]:
        if abs(one.value) != abs(counted[0].value):
            raise contradiction(counted[0], one, "say one of them, or the same number")
    every = [one for one in numbers if one.value == ALL and not has_hosts]
    chosen = next(iter([*counted, *every]), None)
    return found if chosen is None else replace(found, count=chosen.value, count_source=chosen)


def _find_launched(settings: RawSettings) -> RawSetting | None:
    """Give ``launch.processes``, where it says how many processes are started, with one device each."""
    processes = next(iter(settings.get("launch.processes", ())), None)
    if processes is None or not is_int(processes.value):
        return None  # the launcher's settings tell what is wrong
    if is_remote(settings):
        return replace(processes, value=abs(processes.value)) if processes.value else None
    if processes.value <= 0:
        raise processes.expect("a number from 1; one below 0 has a meaning for launch.engine: spark only")
    return processes


# -- precision -------------------------------------------------------------------------------------------------------


def resolve_precision(settings: RawSettings, *, on_xla: bool, environ: Mapping[str, str]) -> Precision | None:
    """Give the precision that is set; None where Lightning's default holds.

    Args:
        settings: Settings by subject.
        on_xla: Whether it will run on a TPU.
        environ: Environment variables; ``XLA_USE_BF16`` counts on a TPU.

    Raises:
        ConfigError: If there is no such precision, XLA has it not, or two places set different ones.
    """
    given = settings.get("precision", ())
    chosen = combine([_parse_precision(one) for one in given])
    own = next((one for one in given if one.path[0] == "trainer" and one.value is not None), None)
    chosen = chosen if own is None else _parse_precision(own)
    is_todays = own is not None and not is_old_precision(own)
    is_set = chosen is not None and chosen.value is not None
    if on_xla and (variable := environ.get("XLA_USE_BF16", "")).lower() in ("1", "true", "yes"):
        source = RawSetting(("XLA_USE_BF16",), Leaf(variable, Origin("variable", "XLA_USE_BF16")), "bf16-true")
        if chosen is None or not is_set:
            return Precision("bf16-true", source, False)
        if _find_xla_precision(chosen) != "bf16-true":
            raise contradiction(chosen, source, "say precision: bf16-true, or unset the variable")
    if chosen is None or not is_set:
        return None
    return Precision(_find_xla_precision(chosen) if on_xla else chosen.value, chosen, is_todays)


def is_old_precision(setting: RawSetting) -> bool:
    """Tell whether it is a precision in the words of Lightning 1.x; 32 and 64 are today's too."""
    return setting.path[-1] == "precision" and str(setting.value) in ("16", "bf16")


def _parse_precision(setting: RawSetting) -> RawSetting:
    """Give a precision in today's words; what is wrong under ``trainer`` is Lightning's to refuse."""
    value = setting.value
    word = PRECISIONS.get(str(value)) if isinstance(value, (int, str)) and not isinstance(value, bool) else None
    if word is None and value is not None and setting.path[0] == "accelerator":
        words = ("auto", *PRECISIONS)
        raise setting.expect(f"one of {', '.join(words)}", near(str(value).lower(), words))
    return replace(setting, value=word or value)


def _find_xla_precision(setting: RawSetting) -> str:
    written = setting.node.value if isinstance(setting.node, Leaf) else setting.value
    if (word := XLA_PRECISIONS.get(str(written))) is None:
        why = "16-true computes in float32 there without a word, and mixed precision is refused"
        says = f"{setting}: on a TPU expected 32-true or bf16-true; {why}; say precision: bf16-true"
        raise mistake(says, setting.origin)
    return word


# -- combinations ----------------------------------------------------------------------------------------------------


def check_combination(devices: Devices, strategy: Strategy | None, num_nodes: RawSetting | None) -> None:
    """Check that the kind of device, its number and the strategy go together.

    Raises:
        ConfigError: If they do not; it shows both places.
    """
    by, count, kind = devices.count_source, devices.count, devices.kind
    if by is not None and by.path[0] != "launch":
        if count in (0, [], "") or (isinstance(count, int) and count < ALL):
            raise by.expect("a number of devices from 1, their numbers, or -1 for all of them")
        if kind == "cpu" and (count == ALL or isinstance(count, (tuple, str))):
            raise _make_error(by, devices, "on CPUs it is the number of processes, such as 2")
    if strategy is None or strategy.name is None:
        return
    name, length = strategy.name, len(count) if isinstance(count, tuple) else count if isinstance(count, int) else 1
    if kind == "tpu" and name not in (*XLA_STRATEGIES, "single_device"):
        advice = "a TPU takes the strategy xla, which Lightning chooses by itself"
        raise _make_error(strategy.source, devices, advice)
    if kind in ("cpu", "gpu", "mps") and name in XLA_STRATEGIES:
        raise _make_error(strategy.source, devices, "the strategy xla is for TPUs only")
    if kind == "cpu" and name.startswith(("fsdp", "deepspeed")):
        raise _make_error(strategy.source, devices, f"{name} works on NVIDIA's GPUs only; on CPUs there is ddp")
    if name == "single_device" and by is not None and length > 1:
        raise contradiction(strategy.source, by, "it trains on one device; for several there is ddp")
    if kind == "mps" and not name.startswith("single_device"):
        raise _make_error(strategy.source, devices, "Apple's GPU works alone, without a strategy")
    if name == "horovod" and num_nodes is not None and (num_nodes.value or 1) > 1:
        advice = "for Horovod the machines stand under launch.hosts: 'a:4,b:4'"
        raise contradiction(strategy.source, num_nodes, advice)


def _make_error(setting: RawSetting, devices: Devices, advice: str) -> ConfigError:
    """Make the error that shows a value and what asks for the kind of device, or what Lightning will find."""
    other = devices.kind_source
    if other is None:
        found = _FOUND[str(devices.kind)]
        return mistake(f"{setting}: Lightning finds {found} on this machine; {advice}", setting.origin)
    if other.origin == setting.origin:
        return mistake(f"{setting}: {advice}", setting.origin)
    return contradiction(setting, other, advice)

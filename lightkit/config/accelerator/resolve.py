"""Resolve the hardware keys of a config to today's keys of the trainer, and check them against the machine.

Equivalent keys (``gpus``, ``devices``, ``accelerator``) may be set in different layers. What they set is picked one
by one: strategy, kind of device, number of devices, precision, number of machines. The highest layer wins; within one
layer a contradiction is an error. ``--trainer.devices=1`` leaves the TPU of ``accelerator: {tpu_cores: 8}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from lightkit.config.accelerator.keys import (
    AUTO,
    RawSetting,
    Targets,
    choose_settings,
    contradiction,
    is_int,
    make_node,
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
from lightkit.config.merge import class_of
from lightkit.config.origins import Origin, dotted, error_at
from lightkit.config.resolved import Resolved
from lightkit.config.tree import Items, Leaf, MappingNode, Node, find, graft, put, rebuild, to_plain
from lightkit.config.yaml_reader import read_scalar
from lightkit.errors import near
from lightkit.hardware import Machine

_REMOTE_ENGINES = ("spark", "ray", "slurm")
_ORDER = ("accelerator", "gpus", "tpu_cores", "strategy", "num_processes", "devices", "launch.processes")
_TPU_CORES = 8  # of a TPU v2 or v3; the machine's own number counts where it is known
_FOUND = {"tpu": "a TPU", "gpu": "GPUs", "mps": "Apple's GPU", "cpu": "no device but CPUs"}
_GPUS = "a number of GPUs, their numbers such as [0, 3] or '0,3', or -1 or all for every visible one"
_SAME_NUMBER = "say one of them, or the same number"
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
        strategy: Name of the strategy: ``horovod``, ``ddp``; None where Lightning decides, or it is a class of the
            user's own.
        kind: Kind of device: ``cpu``, ``gpu``, ``tpu``, ``mps``; None where Lightning decides.
        devices: Devices of each machine for one launch of the trainer, as parsed, so that text from a flag is a
            number: a number, -1 for all, a tuple with the numbers of those meant, or ``auto``; None: nothing is set.
        notices: For each old spelling, today's; what has no effect on this kind of device.
        environment: Variables to set before torch-xla is imported.
        chosen: What ``auto`` has come to, by the dotted key that takes it; None where the key is left to torch.
        chosen_by: The hardware that has decided it, in words.
    """

    resolved: Resolved
    processes: int | None = None
    strategy: str | None = None
    kind: str | None = None
    devices: int | str | tuple[int, ...] | None = None
    notices: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)
    chosen_by: str = ""


class _Claim(NamedTuple):
    """What one setting asks for.

    Args:
        setting: The setting.
        kind: Kind of device, ``auto`` for any; None where it asks for none.
        count: Number of devices, `ALL`, a tuple with their numbers, or ``auto``; None where it asks for none.
        is_weak: Whether another setting of the same layer decides, where there is one.
        strategy: Name of the strategy.
        node: What the trainer takes for this setting today, where that is another value.
    """

    setting: RawSetting
    kind: str | None = None
    count: Any = None
    is_weak: bool = False
    strategy: str | None = None
    node: Node | None = None

    @property
    def length(self) -> Any:
        """Number of devices; `ALL` and ``auto`` as they are."""
        number = len(self.count) if isinstance(self.count, tuple) else self.count
        return abs(number) if is_int(number) and number != ALL else number


def _pick(claims: Sequence[_Claim], attribute: str, advice: str = "say one of them") -> _Claim | None:
    """Give the claim of the highest layer, within which a weak one gives way to another.

    Raises:
        ConfigError: If two of that layer differ.
    """
    top = [one for one in claims if one.setting.rank == max(each.setting.rank for each in claims)]
    top = [one for one in top if not one.is_weak] or [one for one in top if one.kind != AUTO] or top
    for other in top[1:]:
        both_lists = isinstance(other.count, tuple) and isinstance(top[0].count, tuple)
        found = "count" if both_lists and attribute == "length" else attribute
        if getattr(other, found) != getattr(top[0], found):
            raise contradiction(top[0].setting, other.setting, advice.format(top[0].kind, other.kind))
    return top[0] if top else None


def resolve_hardware(resolved: Resolved, machine: Machine | None = None, *, environ: Mapping[str, str]) -> Hardware:
    """Turn the hardware keys of a config into today's trainer keys.

    Args:
        resolved: The config.
        machine: The machine that must have the devices; None where it is not this one, and nothing is checked.
        environ: Environment variables.

    Raises:
        ConfigError: If a value is wrong, there is nothing like it today, two contradict each other, or the machine has
            not what they ask for.
    """
    settings = read_settings(resolved)
    launch = {one.path[-1]: one for one in settings if one.path[0] == "launch" and one.value is not None}
    engine, has_hosts = launch.get("engine"), "hosts" in launch
    is_remote = engine is not None and engine.value in _REMOTE_ENGINES
    here, machine = machine, None if is_remote or has_hosts else machine

    # strategy, kind of device, number of devices, number of machines, each of the highest layer
    strategies = [_parse_strategy(one) for one in settings if one.subject == "strategy"]
    strategy = _pick(strategies, "strategy")
    if engine is not None and engine.value == "horovod" and (strategy is None or strategy.node is None):
        strategy = _make_horovod(engine)
    is_horovod = strategy is not None and strategy.strategy == "horovod"
    takes_processes = is_horovod or not is_remote  # else what each process sees is the launcher's business
    num_cores = None if machine is None else machine.xla.tpu_cores
    claims = _make_claims(settings, is_horovod=is_horovod, takes_processes=takes_processes, num_cores=num_cores)
    claims = sorted([*claims, *strategies], key=lambda claim: _ORDER.index(claim.setting.subject))
    kind_by = _pick_kind(claims)
    named = None if kind_by is None or kind_by.kind == AUTO else kind_by.kind
    count_by = _pick_count(claims, kind_by, is_horovod=is_horovod, has_hosts=has_hosts)
    by, count = (None, None) if count_by is None else (count_by.setting, count_by.count)
    is_launched = by is not None and by.path[0] == "launch"
    if is_launched and engine is not None and engine.value == "torchrun":
        count = None  # its ranks learn their number from it
    is_of_processes = by is not None and by.path[-1] in ("num_processes", "processes") and is_int(count, 2)
    if by is not None and is_of_processes and strategy is None and named not in ("tpu", "mps"):
        strategy = _Claim(by, strategy="ddp", node=Leaf("ddp", by.origin))
    nodes = [one for one in settings if one.subject == "num_nodes"]
    for each in nodes:
        if each.value is not None and not is_int(each.value, 1):
            raise each.expect("a number from 1")
    nodes_by = _pick([_Claim(each, count=each.value, is_weak=each.value is None) for each in nodes], "count")

    kind = named or _find_default_kind(machine)
    asked_by = kind_by if named else None
    if machine is not None and (count_by or asked_by) is not None:
        _check_machine(asked_by, kind, count_by, machine, environ)
    _check_combination(asked_by, kind, count_by, strategy, nodes_by, engine)
    precision_by, precision = _resolve_precision(settings, on_xla=kind == "tpu", environ=environ)
    processes = None
    if is_horovod and by is not None and is_int(count):
        processes = count
        if count == ALL and not is_launched:
            processes = _count_visible(named, machine)
            if machine is not None and processes is None:
                raise error_at(f"{by}: this machine's GPUs cannot be counted without CUDA; set their number", by.origin)

    # what the trainer and the launcher get
    kind_setting = kind_by and kind_by.setting
    is_word = kind_setting is not None and named is not None and kind_setting.subject == "accelerator"
    winners: dict[str, tuple[RawSetting | None, Any]] = {
        "accelerator": (kind_setting, kind_setting.node if kind_setting is not None and is_word else named),
        "devices": (strategy.setting, 1) if strategy is not None and is_horovod else (by, count),
        "strategy": (strategy and strategy.setting, strategy and strategy.node),
        "num_nodes": (nodes_by and nodes_by.setting, nodes_by and nodes_by.count),
        "precision": (precision_by, precision),
    }
    own = {one.path[-1]: one for one in settings if one.path[0] == "trainer"}
    targets: Targets = {}
    for key, (winner, value) in winners.items():
        one, default = own.get(key), TRAINER_DEFAULTS[key]
        if winner is None or value is None:
            if one is not None and to_plain(one.node) != default:
                is_null = one.value is None and key != "precision"  # where null is Lightning's default, too
                if is_null or one.is_strategy_word or one is not winner:
                    targets["trainer", key] = Leaf(default, one.origin), one
        elif one is None or one is not winner or one.value is None or key not in ("devices", "num_nodes"):
            node = value if isinstance(value, (Leaf, Items, MappingNode)) else make_node(value, winner)
            if one is None or node is not one.node:
                targets["trainer", key] = node, winner
    launched = next((claim for claim in claims if claim.setting.subject == "launch.processes"), None)
    if processes is not None and by is not None and not is_launched:
        targets["launch", "processes"] = make_node(processes, by), by
    elif launched is not None and count_by is not None and launched.length != count_by.length:
        number = _count_processes(count)
        targets["launch", "processes"] = graft(number, count_by.setting.origin), count_by.setting

    words, values = "", dict[str, Any]()
    if here is not None:
        local = environ.get("LOCAL_WORLD_SIZE", "")
        num_here = int(local) if local.isdigit() else _count_processes(count)
        num_here = num_here or (_count_visible(kind, here) if kind == "gpu" else None) or 1
        words, values = choose_settings(kind or _find_default_kind(here), here, processes=num_here, environ=environ)
    computing, chosen, without_effect = resolve_computing(settings, resolved, kind, values)
    return Hardware(
        _write_targets(resolved, {**targets, **computing}),
        processes=processes,
        strategy=None if strategy is None or "." in str(strategy.strategy) else strategy.strategy,
        kind="tpu" if kind == "tpu" else named if named in KINDS.values() else None,
        devices=1 if is_horovod else count,
        notices=(*_format_notices(settings, targets), *without_effect),
        environment={} if kind != "tpu" or environ.get("PJRT_DEVICE") else {"PJRT_DEVICE": "TPU"},
        chosen=chosen,
        chosen_by=words if chosen else "",
    )


def _count_processes(count: Any) -> int | None:
    """Give the number of processes for devices; None where there is one for each that is found."""
    number = len(count) if isinstance(count, tuple) else count
    return number if is_int(number, 1) else None


# -- strategy --------------------------------------------------------------------------------------------------------


def _parse_strategy(setting: RawSetting) -> _Claim:
    """Read a strategy: its name where that is known, today's value, and the kind of device of an old name.

    Raises:
        ConfigError: If there is none of that name any more.
    """
    node, named = setting.node, class_of(setting.node)
    if setting.value in (None, AUTO):
        return _Claim(setting, is_weak=True)
    own = named is not None and "." in named and not named.startswith("lightkit.")
    word = str(named or setting.value).rpartition(".")[2]
    if word.lower() in ("horovod", "horovodstrategy") and not own:
        return _make_horovod(setting)
    if named is not None or not isinstance(setting.value, str):  # Lightning refuses what is neither
        return _Claim(setting, strategy=STRATEGY_CLASSES.get(word, named or str(setting.value)), node=node)
    word = setting.value.lower()
    if word in GONE_STRATEGIES:
        raise error_at(f"{setting} is not a strategy any more: {GONE_STRATEGIES[word]}", setting.origin)
    name, kind = OLD_STRATEGIES.get(word, (word, None))
    return _Claim(setting, kind, strategy=name, node=node if name == to_plain(node) else Leaf(name, setting.origin))


def _make_horovod(setting: RawSetting) -> _Claim:
    node = setting.node if isinstance(setting.node, MappingNode) else MappingNode({}, setting.origin)
    if class_of(node) != HOROVOD:
        node = put(node, ("class_path",), Leaf(HOROVOD, node.origin))
    return _Claim(setting, strategy="horovod", node=node)


# -- kind and number -------------------------------------------------------------------------------------------------


def _make_claims(
    settings: Sequence[RawSetting], *, is_horovod: bool, takes_processes: bool, num_cores: int | None
) -> list[_Claim]:
    """Read what each setting asks of the devices.

    Raises:
        ConfigError: If a value is none of the forms, or of a kind of device that Lightning dropped.
    """
    claims: list[_Claim] = []
    for one in settings:
        subject, value = one.subject, one.value
        numbers = _parse_numbers(one) if subject in ("gpus", "tpu_cores", "devices") else None
        gone = subject[:-1] if subject in ("ipus", "hpus") and value not in (None, 0, [], "") else str(value)
        if gone in GONE_DEVICES and subject in ("accelerator", "ipus", "hpus"):
            raise error_at(f"{one}: {GONE_DEVICES[gone]}", one.origin)
        if subject == "accelerator":
            named = class_of(one.node)
            kind = KINDS.get(str(value)) or str(value)
            kind = ACCELERATOR_CLASSES.get(named.rpartition(".")[2], named) if named else kind
            claims.append(_Claim(one, AUTO, is_weak=True) if value in (None, AUTO) else _Claim(one, kind))
        elif subject == "gpus":
            count = ALL if value in ("all", AUTO) else 0 if value == [] else numbers or value
            if count is not None and numbers is None and not is_int(count, ALL):
                raise one.expect(_GPUS)
            claims.append(_Claim(one, "gpu" if count else "cpu", count or None, is_weak=count is None))
        elif subject == "tpu_cores" and value is not None and (not is_int(value) or value):
            count = AUTO if value in ("all", AUTO) else numbers or value
            _check_tpu_cores(one, count, num_cores or _TPU_CORES)
            claims.append(_Claim(one, "tpu", count))
        elif subject == "num_processes" and value is not None:
            if not is_int(value, 1):
                raise one.expect("a number from 1")
            on_devices = any(
                other.path in ((one.path[0], "gpus"), (one.path[0], "tpu_cores")) and other.value not in (None, 0, [])
                for other in settings
            )
            if not on_devices or value != 1:  # 1 is the default of Lightning 1.x
                claims.append(_Claim(one, None if on_devices else "cpu", value, is_weak=value == 1))
        elif subject == "devices":
            is_auto = value in (None, AUTO)
            kinds = (c.kind for c in claims if c.setting.path[0] == "trainer" and not c.is_weak)
            claims.append(_Claim(one, next(kinds, None), AUTO if is_auto else numbers or value, is_auto))
        elif subject == "launch.processes" and is_int(value) and value and takes_processes:
            if value < 0 and not is_horovod:
                raise one.expect("a number from 1; one below 0 has a meaning for launch.engine: spark only")
            claims.append(_Claim(one, None, value))
    return claims


def _parse_numbers(setting: RawSetting) -> tuple[int, ...] | None:
    """Parse ``[0, 3]`` and ``0,3``; None where it is neither."""
    value = setting.value
    if isinstance(value, str) and "," in value:
        value = [word.strip() for word in value.split(",") if word.strip()]
    given = value if isinstance(value, list) else []
    numbers = [read_scalar(number) if isinstance(number, str) else number for number in given]
    if not numbers or not all(is_int(number, 0) for number in numbers):
        return None
    if len(set(numbers)) < len(numbers):
        raise error_at(f"{dotted(setting.path)}: {numbers} names a device twice", setting.origin)
    return tuple(numbers)


def _check_tpu_cores(setting: RawSetting, count: Any, most: int) -> None:
    """Check that Lightning takes this number of a TPU's cores: one, all of them, or the number of one."""
    if isinstance(count, tuple):
        is_right = len(count) == 1 and count[0] < most
    else:
        is_right = count == AUTO or (is_int(count) and count in (1, most))
    if not is_right:
        forms = f"{'1' if most == 1 else f'1, {most}'}, auto, or the number of one core such as [{most - 1}]"
        raise setting.expect(f"{forms}; Lightning takes one core or all of a TPU's, and counts them from 0")


def _pick_kind(claims: Sequence[_Claim]) -> _Claim | None:
    """Give the claim that decides the kind of device; GPUs and TPU cores exclude each other in all layers."""
    advice = "a run is on one kind of device, not on {} and {}"
    named = [claim for claim in claims if claim.kind is not None and claim.setting.subject != "devices"]
    gpus = [claim for claim in named if (claim.setting.subject, claim.kind) == ("gpus", "gpu")]
    cores = [claim for claim in named if claim.setting.subject == "tpu_cores"]
    if gpus and cores:
        raise contradiction(gpus[0].setting, cores[0].setting, advice.format("gpu", "tpu"))
    return _pick(named, "kind", advice)


def _pick_count(
    claims: Sequence[_Claim], kind_by: _Claim | None, *, is_horovod: bool, has_hosts: bool
) -> _Claim | None:
    """Give the claim that decides the number of devices; with Horovod, that of processes, which have one device each.

    With Horovod ``gpus: 1`` says only that, as in Lightning 1.x. With ``launch.hosts``, which has a number for each
    host, the keys of one machine say none. All devices give way to ``launch.processes``.
    """
    counts = []
    is_launched = any(claim.setting.subject == "launch.processes" for claim in claims)
    for one in claims:
        rank, is_launch = one.setting.rank, one.setting.subject == "launch.processes"
        on_gpus = one.count == ALL or isinstance(one.count, tuple)
        if one.count is None or (one.count == ALL and is_launched and not is_launch):
            continue
        if is_horovod:
            if isinstance(one.count, tuple):
                listed = ",".join(map(str, one.count))
                text = f"{one.setting}: Horovod's processes take the visible GPUs in their order; set the variable "
                advice = f"CUDA_VISIBLE_DEVICES={listed}, and say gpus: {len(one.count)}"
                raise error_at(f"{text}{advice}", one.setting.origin)
            fits = is_launch or not (has_hosts or one.count in (1, AUTO))
        elif kind_by is None:
            fits = True
        elif one.kind in (None, kind_by.kind):
            fits = not (on_gpus and one.kind is None and kind_by.kind == "cpu" and rank < kind_by.setting.rank)
        else:
            fits = rank >= kind_by.setting.rank and not one.is_weak
        counts += [one] if fits else []
    if is_horovod:
        counts = [one for one in counts if one.count != ALL] or counts
    if (top := _pick(counts, "length", _SAME_NUMBER)) is None:
        return None
    is_launch = top.setting.subject == "launch.processes"
    same = [one for one in counts if one.length == top.length and (is_launch or one.setting.rank == top.setting.rank)]
    return next((one for one in same if isinstance(one.count, tuple)), top)


# -- precision -------------------------------------------------------------------------------------------------------


def _resolve_precision(
    settings: Sequence[RawSetting], *, on_xla: bool, environ: Mapping[str, str]
) -> tuple[RawSetting | None, Node | None]:
    """Give the setting that decides the precision, and what the trainer gets; None where Lightning's default holds.

    ``XLA_USE_BF16`` counts on a TPU.

    Raises:
        ConfigError: If there is no such precision, XLA has it not, or two places of one layer set different ones.
    """
    given = []
    for one in settings:
        if one.path[-1] != "precision" or (one.path[0] == "accelerator" and one.value == AUTO):
            continue
        word = PRECISIONS.get(str(one.value)) if not isinstance(one.value, bool) else None
        if word is None and one.value is not None and one.path[0] == "accelerator":
            words = ("auto", *PRECISIONS)
            raise one.expect(f"one of {', '.join(words)}", near(str(one.value).lower(), words))
        # what is wrong under `trainer` is Lightning's to refuse
        given.append(_Claim(one, count=word or one.value, is_weak=one.value is None))
    top = _pick(given, "count")
    by, word = (None, None) if top is None else (top.setting, top.count)
    if on_xla and by is not None and word is not None:
        if str(by.value) not in XLA_PRECISIONS:
            why = "16-true computes in float32 there without a word, and mixed precision is refused"
            text = f"{by}: on a TPU expected 32-true or bf16-true; {why}; set precision: bf16-true"
            raise error_at(text, by.origin)
        word = XLA_PRECISIONS[str(by.value)]
    if on_xla and (variable := environ.get("XLA_USE_BF16", "")).lower() in ("1", "true", "yes"):
        source = RawSetting(("XLA_USE_BF16",), Leaf(variable, Origin("variable", "XLA_USE_BF16")))
        if by is not None and word not in (None, "bf16-true"):
            raise contradiction(by, source, "say precision: bf16-true, or unset the variable")
        if word is None:
            return source, Leaf("bf16-true", source.origin)
    if by is None or word is None or (by.path[0] == "trainer" and not _is_old_precision(by)):
        return by, None
    return by, make_node(word, by)


def _is_old_precision(setting: RawSetting) -> bool:
    """Return whether it is a precision in the words of Lightning 1.x; 32 and 64 are today's too."""
    return setting.path[-1] == "precision" and str(setting.value) in ("16", "bf16")


# -- what the machine has, and what goes together ----------------------------------------------------------------------


def _usable_gpus(machine: Machine) -> int | None:
    """Count NVIDIA's GPUs that torch can use; None where only CUDA could count them."""
    is_for_cpus = "+cpu" in machine.versions.get("torch", "")
    return 0 if is_for_cpus else None if machine.gpus is None else len(machine.gpus)


def _count_visible(kind: str | None, machine: Machine | None) -> int | None:
    """Count the machine's devices of the kind that is asked for; None where that is not known, or without limit."""
    if machine is None or kind in (None, "cpu"):
        return None
    if kind == "tpu":
        on_chips = machine.xla.device in (None, "TPU")
        return machine.xla.tpu_cores if on_chips else None  # XLA on the CPU has any number
    if machine.mps or kind == "mps":
        return int(machine.mps)
    return _usable_gpus(machine)


def _find_default_kind(machine: Machine | None) -> str | None:
    """Give the kind of device that Lightning chooses where no key names one; None where that is not known."""
    if machine is None:
        return None
    if machine.xla.version and machine.xla.tpu_cores and machine.xla.device in (None, "TPU"):
        return "tpu"
    if machine.mps:
        return "mps"
    return {None: None, 0: "cpu"}.get(_usable_gpus(machine), "gpu")


def _check_machine(
    kind_by: _Claim | None, kind: str | None, count_by: _Claim | None, machine: Machine, environ: Mapping[str, str]
) -> None:
    """Check that the machine has what is asked of it.

    Raises:
        ConfigError: If it has fewer devices, and says which there are; or if its torch cannot use them.
    """
    asks = count_by or kind_by
    if asks is None or kind not in ("gpu", "mps", "tpu"):
        return
    by, count, torch = asks.setting, asks.count, machine.versions.get("torch", "")
    if kind == "tpu" and kind_by is not None:
        xla = machine.versions.get("torch-xla")
        needed = ".".join((xla or "2.9").split(".")[:2])  # 2.9 is the last version of torch-xla
        if xla is None or torch.split(".")[:2] != needed.split("."):
            there = f"here are torch-xla {xla or '(not installed)'} and torch {torch or '(not installed)'}"
            text = f"{kind_by.setting}: TPUs need torch-xla and torch {needed}, and {there}; {_INSTALL}"
            raise error_at(text, kind_by.setting.origin)
    num_there = _count_visible(kind, machine)
    wanted = max(count) + 1 if isinstance(count, tuple) else 1 if count == ALL or not is_int(count) else abs(count)
    if num_there is None or num_there >= wanted:
        return
    if kind == "tpu":
        found = f"this machine has {num_there or 'no'} TPU cores"
    elif kind == "mps" or machine.mps:
        found = "this machine has one GPU, Apple's" if machine.mps else "this machine has no GPU of Apple's"
    else:
        gpus, hidden = machine.gpus or (), environ.get("CUDA_VISIBLE_DEVICES")
        names = ", ".join(f"{gpu.index}: {gpu.name} ({gpu.memory_bytes / 2**30:.0f} GiB)" for gpu in gpus)
        found = f"this machine shows {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}, {names}"
        found = found if gpus else "this machine shows no GPU"
        found += f", and torch {torch} is built for CPUs only" if gpus and "+cpu" in torch else ""
        found += f" (CUDA_VISIBLE_DEVICES is {hidden!r})" if hidden is not None else ""
    block = "" if by.path[0] == "accelerator" else "accelerator."
    cpu = "trainer.accelerator: cpu" if by.path[0] == "trainer" else f"{block}gpus: 0 for the CPU"
    advice = f"say {f'at most {num_there}, or ' if num_there else ''}{cpu}, or leave it out"
    raise error_at(f"{by}: {found}; {advice}", by.origin)


def _check_combination(
    kind_by: _Claim | None,
    kind: str | None,
    count_by: _Claim | None,
    strategy: _Claim | None,
    nodes_by: _Claim | None,
    engine: RawSetting | None,
) -> None:
    """Check that kind of device, number, strategy, machines and launcher go together.

    Raises:
        ConfigError: If they do not; it shows both places.
    """
    name, engine_name = str((strategy and strategy.strategy) or ""), None if engine is None else engine.value
    by, count = (None, None) if count_by is None else (count_by.setting, count_by.count)
    nodes, kinds, own = nodes_by and nodes_by.setting, kind_by and kind_by.setting, strategy and strategy.setting
    num_nodes = 1 if nodes_by is None else nodes_by.count or 1
    is_known = bool(name) and "." not in name  # else a class of the user's
    is_launch = by is not None and by.path[0] == "launch"
    if by is not None and not is_launch and (count in (0, [], "") or (is_int(count) and not is_int(count, ALL))):
        raise by.expect("a number of devices from 1, their numbers, or -1 for all of them")
    is_no_number = (
        isinstance(count, tuple) or (isinstance(count, str) and count != AUTO) or (count == ALL and not is_launch)
    )
    rules = [
        (by, kinds, kind == "cpu" and is_no_number, "on CPUs it is the number of processes, such as 2"),
        (own, kinds, kind == "tpu" and is_known and name not in (*XLA_STRATEGIES, "single_device"),
         "a TPU takes the strategy xla, which Lightning chooses by itself"),
        (own, kinds, kind in ("cpu", "gpu", "mps") and name in XLA_STRATEGIES, "the strategy xla is for TPUs only"),
        (own, kinds, kind == "cpu" and name.startswith(("fsdp", "deepspeed")),
         f"{name} works on NVIDIA's GPUs only; on CPUs there is ddp"),
        (own, kinds, kind == "mps" and is_known and not name.startswith("single_device"),
         "Apple's GPU works alone, without a strategy"),
        (own, by, name == "single_device" and count_by is not None and is_int(count_by.length, 2),
         "it trains on one device; for several there is ddp"),
        (own, nodes, name == "horovod" and num_nodes > 1,
         "for Horovod the machines stand under launch.hosts: 'a:4,b:4'"),
        (own, engine, engine_name == "horovod" and name != "horovod",
         "Horovod's launcher starts processes for strategy: horovod only"),
        (own, engine, engine_name in ("torchrun", "ray", "local") and name == "horovod",
         "Horovod's processes are started by the engine horovod or spark"),
    ]  # fmt: skip
    for one, other, is_wrong, advice in rules:
        if one is not None and is_wrong and other is not None:
            raise contradiction(one, other, advice)
        if one is not None and is_wrong:
            text = f"{one}: Lightning finds {_FOUND[str(kind)]} on this machine; {advice}"
            raise error_at(text, one.origin)


# -- the resolved config ---------------------------------------------------------------------------------------------


def _write_targets(resolved: Resolved, targets: Targets) -> Resolved:
    """Write values into a config, each with what it replaces, and take the old hardware keys out.

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
    for path, (node, by) in targets.items():
        old = find(resolved.tree, path)
        replaced: tuple[Node, ...] = () if old is None else old.replaced
        replaced += () if old is None or old.origin == node.origin else (replace(old, replaced=()),)
        replaced += () if path == by.path else by.node.replaced
        tree = put(tree, path, replace(node, replaced=replaced))
    for path in [*removed, *targets]:
        references = {key: text for key, text in references.items() if key[: len(path)] != path}
        if path in targets and str(to_plain(targets[path][1].node)) == str(to_plain(targets[path][0])):
            source = targets[path][1].path
            below = {key: text for key, text in resolved.references.items() if key[: len(source)] == source}
            references |= {(*path, *key[len(source) :]): text for key, text in below.items()}
    return replace(resolved, tree=tree, references=references)


def _format_notices(settings: Sequence[RawSetting], targets: Targets) -> list[str]:
    """Give one sentence for each spelling of Lightning 1.x, with its place and what to write today."""
    notices = []
    for one in settings:
        key, says_nothing = one.path[-1], one.value in (None, 0, 1, "", [])
        is_old = key in OLD_TRAINER_KEYS or one.is_strategy_word or _is_old_precision(one)
        is_old = one.path[0] == "trainer" and (is_old or (one.value is None and key != "precision"))
        if not is_old and not (one.subject == "strategy" and str(one.value).lower() in OLD_STRATEGIES):
            continue
        today = []
        for path, (node, by) in targets.items():
            if by.path == one.path:
                named = class_of(node)
                today.append(f"{dotted(path)}: {'horovod' if named == HOROVOD else named or to_plain(node)}")
        if today or says_nothing:  # else a higher layer has replaced it
            text = f"{one} is a spelling of Lightning 1.x; today: {', '.join(sorted(today)) or 'leave it out'}"
            notices.append(f"{text} ({one.origin})")
    return notices

"""Which kind of device, and how many of it: what all the keys together come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightkit.config.accelerator.counts import ALL, read_devices, read_gpus, read_processes, read_tpu_cores
from lightkit.config.accelerator.layers import is_remote, kind_of
from lightkit.config.accelerator.said import Said, agreed, contradiction
from lightkit.config.accelerator.strategy import Strategy, is_strategy_word
from lightkit.config.accelerator.words import why_gone
from lightkit.config.origins import mistake
from lightkit.config.tree import plain

__all__ = ["Devices", "decide_devices"]


@dataclass(frozen=True)
class Devices:
    """The devices that a config asks for.

    Args:
        kind: ``cpu``, ``gpu``, ``tpu`` or ``mps``; None where Lightning is to decide, or it is not known.
        kind_by: What says so.
        word: Lightning's word for it.
        count: Number of devices, -1 for all, ``auto``, or a tuple with the numbers of those meant; None if not said.
            For Horovod the number of processes, below 0 where Spark's driver is to run them.
        count_by: What says so.
    """

    kind: str | None = None
    kind_by: Said | None = None
    word: str | None = None
    count: Any = None
    count_by: Said | None = None


@dataclass(frozen=True)
class _Keys:
    """The keys that say something about devices, each as read, or None."""

    gpus: Said | None
    tpu_cores: Said | None
    num_processes: Said | None
    devices: Said | None
    accelerator: Said | None


def decide_devices(
    said: Mapping[str, Sequence[Said]], strategy: Strategy | None, *, num_tpu_cores: int | None = None
) -> Devices:
    """Decide on the kind of device and the number.

    Args:
        said: What the config says, by subject.
        strategy: The strategy that it asks for.
        num_tpu_cores: Cores of this machine's TPU, where that is known.

    Raises:
        ConfigError: If a value is wrong, is no longer known to Lightning, or two contradict each other.
    """
    for subject in ("ipus", "hpus"):
        for one in said.get(subject, ()):
            if one.value not in (None, 0, [], ""):
                raise mistake(f"{one}: {why_gone(subject[:-1])}", one.origin)
    keys = _Keys(
        gpus=agreed([read_gpus(one) for one in said.get("gpus", ())]),
        tpu_cores=agreed([read_tpu_cores(one, num_cores=num_tpu_cores) for one in said.get("tpu_cores", ())]),
        num_processes=agreed([read_processes(one) for one in said.get("num_processes", ())], empty=(None, 1)),
        devices=agreed([read_devices(one) for one in said.get("devices", ())]),
        accelerator=_accelerator(said.get("accelerator", ())),
    )
    devices = _kind(keys, strategy)
    if strategy is not None and strategy.name == "horovod":
        return _ranked(devices, keys, said)
    return _counted(devices, keys, said)


def _accelerator(said: Sequence[Said]) -> Said | None:
    """Give what names a kind of device in so many words; ``cuda`` and ``gpu`` agree."""
    words = [one for one in said if not is_strategy_word(one)]
    for one in words:
        if one.value in ("ipu", "hpu"):
            raise mistake(f"{one}: {why_gone(one.value)}", one.origin)
    kinds = [replace(one, value=kind_of(one)) for one in words]
    chosen = agreed(kinds, empty=(None, "auto"))
    # The trainer's own word stays; that of the block takes the place of an `auto`.
    own = [one for one in kinds if one.path[0] == "trainer" and chosen is not None and one.value == chosen.value]
    return own[0] if own else chosen


def _kind(keys: _Keys, strategy: Strategy | None) -> Devices:
    claims = _claims(keys, strategy)
    for one in claims[1:]:
        if one.kind != claims[0].kind:
            assert claims[0].kind_by is not None
            assert one.kind_by is not None
            raise contradiction(claims[0].kind_by, one.kind_by, _one_kind(claims[0].kind, one.kind))
    if claims:
        return claims[0]
    if keys.gpus is not None:  # it is null then
        return Devices("cpu", keys.gpus, "cpu")
    if keys.num_processes is not None and keys.num_processes.value == 1:
        return Devices("cpu", keys.num_processes, "cpu")
    return Devices()


def _claims(keys: _Keys, strategy: Strategy | None) -> list[Devices]:
    """List what demands a kind of device, the words for it first."""
    found: list[Devices] = []
    accelerator = keys.accelerator
    if accelerator is not None and accelerator.value is not None:
        found.append(Devices(accelerator.value, accelerator, _word(accelerator)))
    if keys.gpus is not None and keys.gpus.value is not None:
        is_mac = bool(found) and found[0].kind == "mps" and keys.gpus.value != 0
        kind = "cpu" if keys.gpus.value == 0 else "mps" if is_mac else "gpu"
        found.append(Devices(kind, keys.gpus, kind))
    if keys.tpu_cores is not None and keys.tpu_cores.value is not None:
        found.append(Devices("tpu", keys.tpu_cores, "tpu"))
    if strategy is not None and strategy.kind is not None:
        found.append(Devices(strategy.kind, strategy.said, strategy.kind))
    processes = keys.num_processes
    if processes is not None and (processes.value or 0) > 1:
        ranks = strategy is not None and strategy.name == "horovod"
        by_key = keys.gpus is not None and keys.gpus.value not in (None, 0)
        by_key = by_key or (keys.tpu_cores is not None and keys.tpu_cores.value is not None)
        by_key = by_key or (accelerator is not None and accelerator.path[-1] == "gpus")  # whose number gave way
        if not (found if ranks else by_key):  # with GPUs it counts their processes
            found.append(Devices("cpu", processes, "cpu"))
    return found


def _word(said: Said) -> str | None:
    """Give Lightning's word for a kind of device; None where it is a class."""
    word = plain(said.node) if said.path[-1] in ("accelerator", "kind") else said.value
    return word if isinstance(word, str) else None


def _one_kind(one: str | None, other: str | None) -> str:
    return f"a run is on one kind of device, not on {one} and {other}"


def _counted(devices: Devices, keys: _Keys, said: Mapping[str, Sequence[Said]]) -> Devices:
    """Add the number of devices, on which all that name one must agree; -1 gives way to a number of processes."""
    numbers = _numbers(devices, keys)
    launched = _launched(said)
    if is_remote(said):
        _agree([one for one in (*numbers, launched) if one is not None and one.value not in (1, ALL)])
        launched = None  # what each of its processes sees is the launcher's business
    if launched is not None or keys.num_processes in numbers:
        numbers = [one for one in numbers if one.value != ALL]
    telling = [one for one in (*numbers, launched) if one is not None]
    _agree(telling)
    if not telling or (telling == [launched] and _is_torchrun(said)):  # torchrun's ranks learn their number from it
        every = keys.devices if keys.devices is not None and keys.devices.value == ALL and telling else None
        return devices if every is None else replace(devices, count="auto", count_by=every)
    telling = [one for one in telling if isinstance(one.value, tuple)] or telling  # which ones says how many too
    own = next((one for one in telling if one.path == ("trainer", "devices")), telling[0])
    return replace(devices, count=own.value, count_by=own)


def _agree(telling: Sequence[Said]) -> None:
    listed = [one for one in telling if isinstance(one.value, tuple)]
    for one in telling[1:]:
        lists = one in listed and telling[0] in listed
        if one.value != telling[0].value and (lists or _length(one.value) != _length(telling[0].value)):
            raise contradiction(telling[0], one, "say one of them, or the same number")


def _length(number: Any) -> Any:
    return len(number) if isinstance(number, tuple) else number


def _numbers(devices: Devices, keys: _Keys) -> list[Said]:
    """List the keys that name a number of devices, leaving out what Lightning 1.x had by default."""
    gpus = keys.gpus if keys.gpus is not None and keys.gpus.value != 0 else None
    processes = keys.num_processes
    if processes is not None and processes.value == 1 and devices.kind_by is not processes:
        processes = None
    told = (gpus, keys.tpu_cores, processes, keys.devices)
    return [one for one in told if one is not None and one.value is not None]


def _ranked(devices: Devices, keys: _Keys, said: Mapping[str, Sequence[Said]]) -> Devices:
    """Add the number of Horovod's processes, each of which has one device.

    ``gpus: 1`` says only that, as it did in Lightning 1.x, and ``gpus: -1`` gives way to a number. With
    ``launch.hosts``, which has a number for each host, the keys of one machine say none.
    """
    told = [] if devices.kind == "tpu" else _numbers(devices, keys)  # which Horovod has not, as is told elsewhere
    for one in told:
        if not isinstance(one.value, (int, tuple)):
            raise one.wrong("a number of processes, each with one device")
        if isinstance(one.value, tuple):
            number = len(one.value)
            listed = ",".join(map(str, one.value))
            says = f"{one}: Horovod's processes take the visible GPUs in their order"
            raise mistake(f"{says}; set the variable CUDA_VISIBLE_DEVICES={listed}, and say gpus: {number}", one.origin)
    launched = [one for one in said.get("launch.processes", ()) if type(one.value) is int]
    hosts = [one for one in said.get("launch.hosts", ()) if one.value is not None]
    counted = [*launched, *([] if hosts else [one for one in told if one.value not in (1, ALL)])]
    for one in counted[1:]:
        if abs(one.value) != abs(counted[0].value):
            raise contradiction(counted[0], one, "say one of them, or the same number")
    every = [one for one in told if one.value == ALL and not hosts]
    chosen = next(iter([*counted, *every]), None)
    return devices if chosen is None else replace(devices, count=chosen.value, count_by=chosen)


def _launched(said: Mapping[str, Sequence[Said]]) -> Said | None:
    """Give ``launch.processes``, where it says how many processes are started, with one device each."""
    processes = said.get("launch.processes", [None])[0]
    if processes is None or not isinstance(processes.value, int) or isinstance(processes.value, bool):
        return None  # the launcher's settings tell what is wrong
    if is_remote(said):
        return replace(processes, value=abs(processes.value)) if processes.value else None
    if processes.value <= 0:
        raise processes.wrong("a number from 1; one below 0 has a meaning for launch.engine: spark only")
    return processes


def _is_torchrun(said: Mapping[str, Sequence[Said]]) -> bool:
    return any(one.value == "torchrun" for one in said.get("launch.engine", ()))

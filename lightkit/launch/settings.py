"""The config's `launch` block: how many processes a run has, and what starts them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from lightkit.config import KeyPath, Origin, Resolved, mistake, near, read_scalar

__all__ = ["ENGINES", "LaunchSettings", "check_engine", "read_settings"]

ENGINES = ("local", "horovod", "torchrun", "spark", "ray", "slurm")
_CONTROLLERS = ("gloo", "mpi")


@dataclass(frozen=True)
class LaunchSettings:
    """From one process to many.

    Args:
        engine: What starts the processes: `horovod` (horovodrun), `torchrun`, `spark`, `ray`, `slurm` (through
            `lightkit submit`), or `local`, Lightning's own launcher on this machine. `null`: `horovod` where the
            strategy is Horovod's, else `local`.
        processes: Number of processes, each with one device; on each node for `torchrun`. For `spark` a negative
            number means that many on the driver, a positive one on the workers.
        hosts: `horovod` only: hosts and the processes that each may have, as in `a:4,b:4`.
        nodes: `torchrun` and `slurm`: number of machines; for `torchrun` also the fewest and the most, as in `1:4`.
        rendezvous: `torchrun` with several nodes: `HOST:PORT` at which they find each other.
        max_restarts: `torchrun` only: how often all processes begin again from the last checkpoint once one is lost.
        max_failures: `ray` only: the same.
        master: `spark`: URL of the cluster, such as `spark://host:7077`; `ray`: address of the cluster. `null`: the
            session that is there, or this machine.
        controller: `horovod` only: `gloo` or `mpi`.
        network_interface: Interface by which machines reach each other, such as `eth0`, where the launcher takes the
            wrong one.
        timeout_s: Seconds in which all processes must have arrived.
        stall_timeout_s: With several processes the most that `watchdog` lets one of them wait without a finished
            batch, in seconds, whatever the steps take; 0 waits for ever.
        all_ranks: Show what the other processes write too, each line after its rank.
        threads: Threads of each process. `null`: the cores of a machine shared out among its processes; one on a
            cluster of Spark or Ray, where nobody knows how many share a machine.
        slurm: Options of `sbatch`, such as `{partition: gpu, time: "2:00:00"}`.
    """

    engine: str | None = None
    processes: int | None = None
    hosts: str | None = None
    nodes: int | str = 1
    rendezvous: str | None = None
    max_restarts: int = 0
    max_failures: int = 0
    master: str | None = None
    controller: str = "gloo"
    network_interface: str | None = None
    timeout_s: float = 300.0
    stall_timeout_s: float = 600.0
    all_ranks: bool = False
    threads: int | None = None
    slurm: dict[str, Any] | None = None

    @property
    def num_nodes(self) -> tuple[int, int]:
        """The fewest and the most machines."""
        fewest, _, most = str(self.nodes).partition(":")
        return int(fewest), int(most or fewest)

    @property
    def slots(self) -> dict[str, int]:
        """Processes that each host may have."""
        pairs = (host.strip().rpartition(":") for host in (self.hosts or "").split(",") if host.strip())
        return {host: int(slots) for host, _, slots in pairs}


@dataclass(frozen=True)
class _Rule:
    holds: Callable[[Any], bool]
    expects: str


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_seconds(value: Any) -> bool:
    return (_is_int(value) or isinstance(value, float)) and value >= 0


def _is_nodes(value: Any) -> bool:
    fewest, colon, most = str(value).partition(":")
    if not fewest.isdigit() or (colon and not most.isdigit()):
        return False
    return 1 <= int(fewest) <= int(most or fewest)


def _is_hosts(value: Any) -> bool:
    pairs = [pair.strip().rpartition(":") for pair in value.split(",")] if isinstance(value, str) else []
    hosts = [host for host, _, _ in pairs]
    return bool(hosts) and len({*hosts}) == len(hosts) and all(h and n.isdigit() and int(n) > 0 for h, _, n in pairs)


def _is_address(value: Any) -> bool:
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return bool(host) and port.isdigit() and 0 < int(port) < 65536


def _or_null(rule: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or rule(value)


_RULES = {
    "engine": _Rule(_or_null(lambda value: value in ENGINES), f"one of {', '.join(ENGINES)}"),
    "processes": _Rule(
        _or_null(lambda value: _is_int(value) and value != 0),
        "a number of processes, such as 2 (spark: -2 on the driver)",
    ),
    "hosts": _Rule(_or_null(_is_hosts), "each host once with its number of processes, such as 'a:4,b:4'"),
    "nodes": _Rule(_is_nodes, "a number of machines, or the fewest and the most, such as 1:4"),
    "rendezvous": _Rule(_or_null(_is_address), "HOST:PORT"),
    "max_restarts": _Rule(lambda value: _is_int(value) and value >= 0, "a number of restarts"),
    "max_failures": _Rule(lambda value: _is_int(value) and value >= 0, "a number of failures"),
    "master": _Rule(_or_null(lambda value: isinstance(value, str)), "the address of a cluster"),
    "controller": _Rule(lambda value: value in _CONTROLLERS, f"one of {', '.join(_CONTROLLERS)}"),
    "network_interface": _Rule(
        _or_null(lambda value: isinstance(value, str)), "the name of an interface, such as eth0"
    ),
    "timeout_s": _Rule(lambda value: _is_seconds(value) and value > 0, "seconds"),
    "stall_timeout_s": _Rule(_is_seconds, "seconds, or 0 to wait for ever"),
    "all_ranks": _Rule(lambda value: isinstance(value, bool), "true or false"),
    "threads": _Rule(_or_null(lambda value: _is_int(value) and value > 0), "a number of threads"),
    "slurm": _Rule(_or_null(lambda value: isinstance(value, dict)), "options of sbatch, such as {partition: gpu}"),
}
_ENGINES_OF = {
    "hosts": ("horovod",),
    "controller": ("horovod",),
    "nodes": ("torchrun", "slurm"),
    "rendezvous": ("torchrun",),
    "max_restarts": ("torchrun",),
    "max_failures": ("ray",),
    "master": ("spark", "ray"),
    "network_interface": ("horovod", "torchrun", "spark", "ray"),
    "slurm": ("slurm",),
}


def read_settings(resolved: Resolved) -> LaunchSettings:
    """Check the `launch` block of a config.

    Raises:
        ConfigError: If a key or a value in it is wrong, or speaks of another engine than the one that is named.
    """
    given = resolved.values.get("launch")
    if given is None:
        return LaunchSettings()
    if not isinstance(given, dict):
        raise mistake(
            f"launch: expected a mapping such as {{processes: 2}}, got {given!r}", resolved.origin_of("launch")
        )
    given = {key: _as_meant(value, resolved, ("launch", key)) for key, value in given.items()}
    names = [field.name for field in fields(LaunchSettings)]
    for key, value in given.items():
        origin = resolved.origin_of(("launch", key))
        if key not in names:
            raise mistake(
                f"launch.{key}: there is no such key{near(str(key), names)}\nkeys: {', '.join(names)}", origin
            )
        if not _RULES[key].holds(value):
            raise mistake(f"launch.{key}: expected {_RULES[key].expects}, got {value!r}", origin)
    settings = LaunchSettings(**given)
    if settings.engine is not None:
        _check_keys(settings, resolved, settings.engine)
    return settings


def check_engine(settings: LaunchSettings, resolved: Resolved, *, strategy: str | None) -> None:
    """Check that the engine which will start the processes heeds all that the config says of them.

    Args:
        settings: The config's `launch` block.
        resolved: The config, with today's trainer keys.
        strategy: Name of the strategy, None where Lightning chooses it.

    Raises:
        ConfigError: If a key is for other engines only.
    """
    engine = settings.engine or ("horovod" if strategy == "horovod" or settings.hosts else "local")
    _check_keys(settings, resolved, engine)
    _check_num_nodes(settings, resolved, engine)


def _as_meant(value: Any, resolved: Resolved, path: KeyPath) -> Any:
    """Give a value of the block as it is meant: YAML takes 1:4 for a number to the base of 60, and a flag is text."""
    if isinstance(value, dict):  # the options of sbatch, which are text: 2:00:00, 0123
        return {name: _option_as_meant(child, resolved, (*path, name)) for name, child in value.items()}
    written = _written(value, resolved.origin_of(path))
    return written if re.fullmatch(r"\d+(:\d+)+", written) else value if value is None else _scalar(value)


def _option_as_meant(value: Any, resolved: Resolved, path: KeyPath) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return _written(value, resolved.origin_of(path)) or value
    return _scalar(value) if value in ("true", "false", "null") else value


def _scalar(value: Any) -> Any:
    return read_scalar(value) if isinstance(value, str) else value


def _written(value: Any, origin: Origin | None) -> str:
    """Give the text of a number where it is known."""
    if isinstance(value, str):
        return value
    if not isinstance(value, int) or origin is None or origin.kind != "file":
        return ""
    return origin.source[(origin.column or 1) - 1 : (origin.end_column or 1) - 1].strip()


def _check_keys(settings: LaunchSettings, resolved: Resolved, engine: str) -> None:
    for key, engines in _ENGINES_OF.items():
        is_said = getattr(settings, key) not in (None, getattr(LaunchSettings, key))
        if not is_said or engine in engines or _is_overruled(resolved, ("launch", key), ("launch", "engine")):
            continue
        here = "launch.engine is" if settings.engine is not None else "launch.engine is not said, which comes to"
        raise mistake(
            f"launch.{key}: is for the engine {' or '.join(engines)} only, but {here} {engine!r}",
            resolved.origin_of(("launch", key)),
            _place(resolved, ("launch", "engine")),
        )


def _check_num_nodes(settings: LaunchSettings, resolved: Resolved, engine: str) -> None:
    path = ("trainer", "num_nodes")
    trainer = resolved.values.get("trainer")
    wanted = _scalar(trainer.get("num_nodes")) if isinstance(trainer, dict) else None
    if not isinstance(wanted, int) or wanted == 1:
        return
    if engine not in ("torchrun", "slurm"):
        raise mistake(
            f"trainer.num_nodes: {wanted} machines whose processes are started by hand are not joined to one run, and "
            f"the engine here is {engine!r}; say launch.engine: torchrun, launch.nodes: {wanted} and launch.rendezvous",
            resolved.origin_of(path),
        )
    fewest, most = settings.num_nodes
    is_asked = engine == "slurm" and most == 1  # `lightkit submit` takes the trainer's number then
    if not is_asked and not fewest <= wanted <= most and not _is_overruled(resolved, path, ("launch", "nodes")):
        raise mistake(
            f"trainer.num_nodes: {wanted} contradicts launch.nodes, which is {settings.nodes}; say launch.nodes only",
            resolved.origin_of(path),
            _place(resolved, ("launch", "nodes")),
        )


def _is_overruled(resolved: Resolved, path: KeyPath, by: KeyPath) -> bool:
    """Whether a higher layer says the other key: what a lower one says for another engine counts no more."""
    lower, higher = _place(resolved, path), _place(resolved, by)
    return lower is not None and higher is not None and resolved.ranks.get(lower, 0) < resolved.ranks.get(higher, 0)


def _place(resolved: Resolved, path: KeyPath) -> Origin | None:
    """Give the place of a key, and not of the section that it is missing from."""
    return resolved.origins.get(path)

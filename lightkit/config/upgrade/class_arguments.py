"""Arguments of Lightning's classes that 1.x had in other words: one rule each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lightkit.config.upgrade.edits import SAME
from lightkit.config.upgrade.trainer_arguments import Refusal

__all__ = ["ArgumentRule", "argument_rules"]

Keys = tuple[tuple[str, Any], ...]


class ArgumentRule(NamedTuple):
    """A rule for one argument of a class.

    Args:
        why: What became of it.
        today: From its value and all the class's arguments, to the keys that take its place; None where it stays.
    """

    why: str
    today: Callable[[Any, Mapping[str, Any]], Keys | Refusal | None]


def argument_rules(class_name: str) -> Mapping[str, ArgumentRule]:
    """Give the rules for a class, by argument; the class by the last part of its path, as in 1.x or today."""
    return _RULES.get(class_name, {})


def _renamed(key: str) -> Callable[[Any, Mapping[str, Any]], Keys]:
    return lambda _value, _arguments: ((key, SAME),)


def _dropped(_value: Any, _arguments: Mapping[str, Any]) -> Keys:
    return ()


def _mode(value: Any, arguments: Mapping[str, Any]) -> Keys | None:
    """Decide as 1.x's ``auto`` did, by the metric's name."""
    if value != "auto":
        return None
    monitor = str(arguments.get("monitor") or "")
    return (("mode", "max" if "acc" in monitor or monitor.startswith("fmeasure") else "min"),)


def _filepath(value: Any, _arguments: Mapping[str, Any]) -> Keys | Refusal:
    if value is None:
        return ()
    if not isinstance(value, str):
        return Refusal("say dirpath and filename")
    folder, _, name = value.rpartition("/")
    return (*((("dirpath", folder or "/"),) if "/" in value else ()), *((("filename", name),) if name else ()))


def _output_filename(value: Any, _arguments: Mapping[str, Any]) -> Keys | Refusal:
    found = _filepath(value, {})
    if isinstance(found, Refusal):
        return found
    return tuple((key, part.removesuffix(".txt") if key == "filename" else part) for key, part in found)


def _prefix(value: Any, _arguments: Mapping[str, Any]) -> Keys | Refusal:
    return Refusal("write it at the beginning of filename") if value else ()


def _inverted(key: str) -> Callable[[Any, Mapping[str, Any]], Keys | Refusal]:
    def today(value: Any, _arguments: Mapping[str, Any]) -> Keys | Refusal:
        return ((key, not value),) if isinstance(value, bool) else Refusal(f"say {key}, which means the opposite")

    return today


_MODE = ArgumentRule("Lightning 1.3 dropped auto, which went by the metric's name", _mode)
_TRAINERS = ArgumentRule("the trainer's own counts", _dropped)
_GONE = ArgumentRule("DeviceStatsMonitor records all there is", _dropped)
_STATS = dict.fromkeys(
    ("memory_utilization", "gpu_utilization", "intra_step_time", "inter_step_time", "fan_speed", "temperature"), _GONE
)
_OUTPUT = {"output_filename": ArgumentRule("Lightning 1.5 takes dirpath and filename", _output_filename)}
_DDP = {"num_nodes": _TRAINERS, "sync_batchnorm": _TRAINERS}
_RULES: dict[str, dict[str, ArgumentRule]] = {
    "AdvancedProfiler": _OUTPUT,
    "CometLogger": {
        "offline": ArgumentRule("Lightning 2.5 takes online", _inverted("online")),
        "project_name": ArgumentRule("Lightning 2.5 renamed it", _renamed("project")),
    },
    "DDPPlugin": _DDP,
    "DDPSpawnPlugin": _DDP,
    "EarlyStopping": {"mode": _MODE},
    "GPUStatsMonitor": _STATS,
    "ModelCheckpoint": {
        "every_n_val_epochs": ArgumentRule("Lightning 1.6 renamed it", _renamed("every_n_epochs")),
        "filepath": ArgumentRule("Lightning 1.2 takes dirpath and filename", _filepath),
        "mode": _MODE,
        "period": ArgumentRule("Lightning 1.5 renamed it", _renamed("every_n_epochs")),
        "prefix": ArgumentRule("Lightning 1.3 dropped it", _prefix),
    },
    "PyTorchProfiler": {
        **_OUTPUT,
        "profiled_functions": ArgumentRule("Lightning dropped it; it records each hook by itself", _dropped),
        "record_functions": ArgumentRule("Lightning dropped it; it records each hook by itself", _dropped),
    },
    "RichProgressBar": {
        "refresh_rate_per_second": ArgumentRule("Lightning 1.7 draws once a batch", _dropped),
    },
    "SimpleProfiler": _OUTPUT,
    "XLAStatsMonitor": {"verbose": _GONE},
}

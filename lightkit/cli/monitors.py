"""The metrics that a config monitors, with the modes that it sets.

Also where these contradict the metric. No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from lightkit.config import KeyPath, Resolved, dotted
from lightkit.registry.gate import read_gate
from lightkit.runs.metric_mode import Mode, infer_mode

_OWN = ("Checkpoint", "lightkit.callbacks.Checkpoint")
"""lightkit's own, which takes the mode of the metric where the config sets none; what it sets is
meant."""
_DEFAULTS = {"ModelCheckpoint": "min", "EarlyStopping": "min", "ReduceLROnPlateau": "min"}
"""Classes of Lightning and torch that judge by a metric, with their default of ``mode``."""


class Monitor(NamedTuple):
    """A class of the config that judges by a metric, or the gate.

    Args:
        path: Path of its arguments.
        name: Name of the class, or ``gate``.
        key: Key that names the metric: ``monitor``, or ``metric`` of the gate.
        metric: The metric.
        mode: ``min`` or ``max``; None where the metric decides.
        is_given: Whether the config sets the mode, so that it is no default.
        is_own: Whether it is lightkit's `Checkpoint`.
    """

    path: KeyPath
    name: str
    key: str
    metric: str
    mode: str | None
    is_given: bool
    is_own: bool = False


def list_monitors(resolved: Resolved) -> Iterator[Monitor]:
    """List the callbacks, the scheduler and the gate that judge by a metric that is named."""
    entries = {
        **resolved.entries_of("callbacks"),
        ("lr_scheduler",): resolved.value_of("lr_scheduler"),
    }
    for path, entry in entries.items():
        arguments = entry.get("init_args") if isinstance(entry, Mapping) else None
        if isinstance(arguments, Mapping):
            yield from _read_monitor(path, str(entry.get("class_path")), arguments)
    gate = resolved.section("gate")
    if isinstance(gate.get("metric"), str):
        mode = gate.get("mode")
        yield Monitor(
            ("gate",), "gate", "metric", gate["metric"], mode and str(mode), mode is not None
        )


def _read_monitor(
    path: KeyPath, class_path: str, arguments: Mapping[str, Any]
) -> Iterator[Monitor]:
    """Read the metric and the mode of a class, if it names a metric."""
    metric = arguments.get("monitor")
    if not isinstance(metric, str) or metric == "auto":
        return
    name = class_path.rpartition(".")[2]
    given = arguments.get("mode")
    mode = _DEFAULTS.get(name) if given is None else str(given)
    yield Monitor(
        (*path, "init_args"), name, "monitor", metric, mode, given is not None, class_path in _OWN
    )


def find_config_modes(resolved: Resolved) -> dict[str, Mode]:
    """Return the modes that a config sets, by metric; without those that contradict each other.

    A mode in a run's saved config may be a default that was written out; such a default says
    nothing.
    """
    found: dict[str, set[Mode]] = {}
    for each in list_monitors(resolved):
        origin = resolved.origin_of((*each.path, "mode"))
        is_saved = (
            origin is not None
            and origin.file is not None
            and (origin.file.parent / "manifest.json").is_file()
        )
        if not each.is_given or (is_saved and each.mode == _DEFAULTS.get(each.name)):
            continue
        if (mode := infer_mode("", explicit=each.mode)) is not None:
            found.setdefault(each.metric, set()).add(mode)
    return {metric: modes.pop() for metric, modes in found.items() if len(modes) == 1}


def list_mode_warnings(resolved: Resolved) -> list[str]:
    """List the monitors whose mode contradicts their metric.

    Also list a gate whose metric says nothing, each with its place.
    """
    warnings = []
    for each in list_monitors(resolved):
        text = _describe_contradiction(each, resolved)
        if each.name == "gate" and each.mode is None:
            text = _describe_unknown_mode(each.metric, resolved)
        if text is not None:
            origin = resolved.origin_of((*each.path, "mode" if each.is_given else each.key))
            warnings.append(text if origin is None else f"{text}\n{origin.render()}")
    return warnings


def _describe_contradiction(each: Monitor, resolved: Resolved) -> str | None:
    """Describe what speaks against the mode of a monitor; None where nothing does."""
    # a mode that is set does not confirm itself
    recorded = {} if each.is_given else find_config_modes(resolved)
    best = None if each.is_own else infer_mode(each.metric, recorded=recorded)
    if each.mode is None or best is None or each.mode == best:
        return None
    default = "" if each.is_given else ", which is its default"
    size, other = ("smallest", "largest") if each.mode == "min" else ("largest", "smallest")
    return (
        f"{dotted((*each.path, 'mode'))}: {each.mode}{default}: {each.name} takes the {size}"
        f" {each.metric} for the best, but the {other} is; set mode: {best}"
    )


def _describe_unknown_mode(metric: str, resolved: Resolved) -> str | None:
    """Describe that neither the config nor the metric tells the mode of a gate that compares.

    None where one does, or the gate has thresholds alone.
    """
    mode = infer_mode(metric, recorded=find_config_modes(resolved))
    if mode is not None or {*read_gate(resolved).rules} <= {"min", "max"}:
        return None
    return (
        f"gate.mode: not set, and neither the name of {metric} nor another mode of the config tells"
        " whether a small or a large value is good: unless a metric object with"
        " higher_is_better is logged under that name, the gate ends with code 2; set mode: min"
        " or mode: max"
    )

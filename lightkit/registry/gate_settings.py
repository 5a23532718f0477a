"""The config's `gate` block: how good a model must be to be promoted. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from lightkit.config import Origin, Resolved, mistake, near, read_scalar

__all__ = ["GateSettings", "read_gate", "split_of"]

_SPLITS = {"test": "test", "val": "val", "valid": "val", "validation": "val"}
_DRIFT = ("window", "max_drop")


@dataclass(frozen=True)
class GateSettings:
    """What a model must reach before an alias of MLflow's registry moves to it.

    Args:
        metric: Logged metric that is judged, such as `test/accuracy`; its first part names the split. `null`: nothing
            is judged.
        mode: Whether large (`max`) or small (`min`) values are good.
        min: Smallest value that passes.
        max: Largest value that passes.
        max_drop: How much worse than the baseline the model may be, in the metric's unit; `null`: any amount.
        baseline: What it is compared with: an alias or a version of the registered model, or a run. Where the alias
            points to nothing yet, nothing is compared. `null`: nothing.
        slices: The smallest value (the largest with `mode: min`) of the metric on the samples of a class, by its name.
        drift: `{window: 5, max_drop: 0.03}`: how much worse than the best of the last `window` promoted models it may
            be.
        name: Registered model. `null`: the name of the run.
    """

    metric: str | None = None
    mode: Literal["max", "min"] = "max"
    min: float | None = None
    max: float | None = None
    max_drop: float | None = None
    baseline: str | None = "champion"
    slices: dict[str, float] | None = None
    drift: dict[str, float] | None = None
    name: str | None = None


@dataclass(frozen=True)
class _Rule:
    holds: Callable[[Any], bool]
    expects: str


def split_of(metric: str) -> str:
    """Give the split on which a metric is taken, `val` or `test`, by its first part; `test` where that tells none."""
    first = metric.replace("_", "/").partition("/")[0]
    return _SPLITS.get(first, "test")


def read_gate(resolved: Resolved) -> GateSettings:
    """Check the `gate` block of a config.

    Raises:
        ConfigError: If a key or a value in it is wrong, or two of them contradict each other.
    """
    given = resolved.values.get("gate")
    if given is None:
        return GateSettings()
    if not isinstance(given, dict):
        raise mistake(
            f"gate: expected a mapping such as {{metric: test/accuracy, min: 0.8}}, got {given!r}",
            resolved.origin_of("gate"),
        )
    names = [field.name for field in fields(GateSettings)]
    meant = {key: _as_meant(key, value) for key, value in given.items()}
    for key, value in meant.items():
        if key not in names:
            raise mistake(
                f"gate.{key}: there is no such key{near(str(key), names)}\nkeys: {', '.join(names)}",
                _place(resolved, key),
            )
        if not _RULES[key].holds(value):
            raise mistake(f"gate.{key}: expected {_RULES[key].expects}, got {value!r}", _place(resolved, key))
    settings = GateSettings(**meant)
    _check_drift(settings, resolved)
    _check_together(settings, resolved)
    return settings


def _as_meant(key: str, value: Any) -> Any:
    """Give a value as it is meant: that of a flag is text, and a version of a model may be a number."""
    if isinstance(value, Mapping):
        return {str(name): _scalar(child) for name, child in value.items()}
    value = _scalar(value)
    return str(value) if key in ("baseline", "name", "metric") and _is_count(value) else value


def _scalar(value: Any) -> Any:
    return read_scalar(value) if isinstance(value, str) else value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_drop(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _or_null(rule: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or rule(value)


def _is_metric(value: Any) -> bool:
    return _is_word(value) and value.replace("_", "/").partition("/")[0] != "train"


def _are_numbers(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_is_number(number) for number in value.values())


_RULES = {
    "metric": _Rule(_or_null(_is_metric), "a metric of the test or the validation split, such as test/accuracy"),
    "mode": _Rule(lambda value: value in ("max", "min"), "max or min"),
    "min": _Rule(_or_null(_is_number), "a number"),
    "max": _Rule(_or_null(_is_number), "a number"),
    "max_drop": _Rule(_or_null(_is_drop), "a number of at least 0"),
    "baseline": _Rule(_or_null(_is_word), "an alias such as champion, a version, a run, or null"),
    "slices": _Rule(_or_null(_are_numbers), "numbers by class, such as {roses: 0.7}"),
    "drift": _Rule(
        _or_null(lambda value: isinstance(value, Mapping)), "a window and a drop, such as {window: 5, max_drop: 0.03}"
    ),
    "name": _Rule(_or_null(_is_word), "the name of a registered model"),
}


def _check_drift(settings: GateSettings, resolved: Resolved) -> None:
    if settings.drift is None:
        return
    for key, value in settings.drift.items():
        if key not in _DRIFT:
            raise mistake(
                f"gate.drift.{key}: there is no such key{near(key, _DRIFT)}\nkeys: {', '.join(_DRIFT)}",
                _place(resolved, "drift", key),
            )
        if key == "window" and not (_is_number(value) and value >= 1 and value == int(value)):
            raise mistake(
                f"gate.drift.window: expected a number of promoted models, at least 1, got {value!r}",
                _place(resolved, "drift", key),
            )
        if key == "max_drop" and not _is_drop(value):
            raise mistake(
                f"gate.drift.max_drop: expected a number of at least 0, got {value!r}", _place(resolved, "drift", key)
            )
    if missing := [key for key in _DRIFT if key not in settings.drift]:
        raise mistake(
            f"gate.drift: {missing[0]} is missing; expected both, such as {{window: 5, max_drop: 0.03}}",
            _place(resolved, "drift"),
        )


def _check_together(settings: GateSettings, resolved: Resolved) -> None:
    """Refuse what cannot hold together, at the places of both."""
    if settings.min is not None and settings.max is not None and settings.min > settings.max:
        raise mistake(
            f"gate.min: {settings.min:g} is above gate.max, which is {settings.max:g}: nothing passes both",
            _place(resolved, "min"),
            _place(resolved, "max"),
        )
    if settings.max_drop is not None and settings.baseline is None:
        raise mistake(
            "gate.max_drop: there is nothing that the model could be worse than: gate.baseline is null. Name a "
            "baseline, such as champion, or leave max_drop out",
            _place(resolved, "max_drop"),
            _place(resolved, "baseline"),
        )
    asked = [key for key in ("min", "max", "max_drop", "slices", "drift") if getattr(settings, key) is not None]
    if settings.metric is None and asked:
        raise mistake(
            f"gate.{asked[0]}: of which metric? gate.metric is not set; say one such as test/accuracy",
            _place(resolved, asked[0]),
        )


def _place(resolved: Resolved, *keys: str) -> Origin | None:
    """Give the place of a value of the block that somebody has set."""
    return resolved.origin_of(("gate", *keys)) if "gate" in resolved.values else None

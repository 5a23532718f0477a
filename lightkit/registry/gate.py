"""Whether a model is good enough: scores against thresholds, the baseline, and the best of late. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lightkit.registry.gate_settings import GateSettings

__all__ = ["RECORD", "Check", "Decision", "Drift", "Scored", "decide"]

RECORD = "gate.json"
"""Name of the file in the run folder that holds the decision."""
_ROUNDING = 2e-7  # relative: scores are float32, so that 0.7 may arrive as 0.69999999


@dataclass(frozen=True)
class Scored:
    """A model's scores on the data of the gate.

    Args:
        name: The model, in words.
        metrics: Logged metrics by name.
        slices: The judged metric on the samples of each class; None where there is no sample, or no such value.
    """

    name: str
    metrics: Mapping[str, float]
    slices: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Drift:
    """The best of the models that were promoted of late.

    Args:
        window: Number of them that were asked for.
        best: Its score; None where nothing was promoted yet.
        version: Its version.
        unknown: Versions that could not be scored on this data, each with the reason.
    """

    window: int
    best: float | None
    version: str | None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """One condition and how it came out.

    Args:
        name: What is judged: the metric, or the metric on a class.
        challenger: The model's value.
        baseline: That of the model it is compared with; None where there is none.
        asks: The condition in words.
        passed: Whether it holds.
    """

    name: str
    challenger: float | None
    baseline: float | None
    asks: str
    passed: bool


@dataclass(frozen=True)
class Decision:
    """What the gate has decided, and by what.

    Args:
        passed: Whether the model may be promoted.
        metric: The judged metric; None where nothing is judged.
        scores: Metrics of the ``challenger`` and of the ``baseline`` on the same samples; None where there is none.
        slices: By class the values of ``challenger`` and ``baseline``.
        drift: What is known of the models promoted of late; None where it does not count.
        reasons: What failed, in words; empty where it passed.
        baseline: The model that it was compared with, in words.
        num_samples: Number of samples that both were scored on.
        run: The run, as ``name/id``.
        checks: Every condition.
        about: What else a reader of the file needs: checkpoint, settings, data, baseline, notices, time.
    """

    passed: bool
    metric: str | None
    scores: Mapping[str, Mapping[str, float] | None]
    slices: Mapping[str, Mapping[str, float | None]]
    drift: Mapping[str, Any] | None
    reasons: tuple[str, ...]
    baseline: str | None
    num_samples: int
    run: str
    checks: tuple[Check, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Give it as ``gate.json`` holds it, with ``about`` among its fields."""
        record = asdict(self)
        about = record.pop("about")
        return {"schema": 1, **record, "reasons": list(self.reasons), "checks": list(record["checks"]), **about}


def decide(
    settings: GateSettings,
    challenger: Scored,
    baseline: Scored | None,
    *,
    drift: Drift | None = None,
    num_samples: int,
    run: str,
    about: Mapping[str, Any] | None = None,
) -> Decision:
    """Judge a model by its scores.

    A value that is missing or not finite fails every condition on it. A drop of exactly what is allowed passes. From
    a baseline that is not finite nothing drops; where no threshold judges the model, it fails then.

    Args:
        settings: The conditions.
        challenger: The model; its metrics have the judged one.
        baseline: What it is compared with.
        drift: The best of late, where that counts.
        num_samples: Number of samples of the scores.
        run: The run, as ``name/id``.
        about: Further fields of the decision.
    """
    checks: list[Check] = []
    if settings.metric is not None:
        checks = [*_of_metric(settings, challenger, baseline), *_of_slices(settings, challenger, baseline)]
        checks += _of_drift(settings, challenger, drift)
    reasons = tuple(_reason(check) for check in checks if not check.passed)
    slices = {
        name: {"challenger": value, "baseline": None if baseline is None else baseline.slices.get(name)}
        for name, value in challenger.slices.items()
    }
    return Decision(
        passed=not reasons,
        metric=settings.metric,
        scores={
            "challenger": dict(challenger.metrics),
            "baseline": None if baseline is None else dict(baseline.metrics),
        },
        slices=slices,
        drift=None if drift is None else asdict(drift),
        reasons=reasons,
        baseline=None if baseline is None else baseline.name,
        num_samples=num_samples,
        run=run,
        checks=tuple(checks),
        about=dict(about or {}),
    )


def worse_by(settings: GateSettings, score: float, than: float) -> float:
    """Tell how much worse a score is than another, in the metric's unit; below 0 where it is better."""
    return than - score if settings.mode == "max" else score - than


def _of_metric(settings: GateSettings, challenger: Scored, baseline: Scored | None) -> list[Check]:
    assert settings.metric is not None
    value = challenger.metrics.get(settings.metric)
    other = None if baseline is None else baseline.metrics.get(settings.metric)

    def check(asks: str, passed: bool) -> Check:
        return Check(settings.metric or "", value, other, asks, passed)

    checks = []
    if settings.min is not None:
        checks.append(check(f"at least {settings.min:g}", _is_at_least(value, settings.min)))
    if settings.max is not None:
        checks.append(check(f"at most {settings.max:g}", _is_at_most(value, settings.max)))
    if settings.max_drop is not None and baseline is not None:
        words = f"at most {settings.max_drop:g} worse than {baseline.name}"
        checks.append(check(words, _drops_at_most(settings, value, other, settings.max_drop)))
    return checks or [check("a finite number", value is not None and math.isfinite(value))]


def _of_slices(settings: GateSettings, challenger: Scored, baseline: Scored | None) -> list[Check]:
    checks = []
    for name, bound in (settings.slices or {}).items():
        value = challenger.slices.get(name)
        holds, words = (_is_at_least, "at least") if settings.mode == "max" else (_is_at_most, "at most")
        other = None if baseline is None else baseline.slices.get(name)
        label = f"{settings.metric} of {name}"
        checks.append(Check(label, value, other, f"{words} {bound:g}", holds(value, bound)))
    return checks


def _of_drift(settings: GateSettings, challenger: Scored, drift: Drift | None) -> Sequence[Check]:
    if drift is None or drift.best is None or settings.drift is None or settings.metric is None:
        return []
    value, allowed = challenger.metrics.get(settings.metric), settings.drift["max_drop"]
    of_late = "the last promoted model" if drift.window == 1 else f"the best of the last {drift.window} promoted models"
    asks = f"at most {allowed:g} worse than {of_late} (version {drift.version}: {drift.best:.6g})"
    passed = _drops_at_most(settings, value, drift.best, allowed)
    return [Check(f"{settings.metric} of late", value, drift.best, asks, passed)]


def _drops_at_most(settings: GateSettings, value: float | None, other: float | None, allowed: float) -> bool:
    if value is None or not math.isfinite(value):
        return False
    if other is None or not math.isfinite(other):  # a baseline that gives NaN is no measure; the thresholds are
        return other is not None and (settings.min is not None or settings.max is not None)
    return worse_by(settings, value, other) <= allowed + _ROUNDING * max(abs(value), abs(other), abs(allowed))


def _is_at_least(value: float | None, bound: float) -> bool:
    return value is not None and math.isfinite(value) and value >= bound - _ROUNDING * max(abs(value), abs(bound))


def _is_at_most(value: float | None, bound: float) -> bool:
    return value is not None and math.isfinite(value) and value <= bound + _ROUNDING * max(abs(value), abs(bound))


def _reason(check: Check) -> str:
    got = "has no value" if check.challenger is None else f"is {check.challenger:.6g}"
    against = "" if check.baseline is None or " worse than " not in check.asks else f" (that has {check.baseline:.6g})"
    against = "" if check.name.endswith(" of late") else against
    return f"{check.name} {got}, expected {check.asks}{against}"

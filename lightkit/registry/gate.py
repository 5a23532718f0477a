"""The config's `gate` block, and the decision by it: scores against thresholds and the promoted models. No torch."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from lightkit.config import Resolved, error_at, read_scalar, shown_path
from lightkit.errors import ConfigError
from lightkit.runs.folder import Run
from lightkit.runs.metric_mode import Mode, infer_mode

if TYPE_CHECKING:
    from lightkit.reports.predictions import Predictions

_log = logging.getLogger("lightkit")
RECORD = "gate.json"
"""Name of the file in the run folder that holds the decision."""
_NUMBERS = ("min", "max", "max_drop", "margin", "confidence")
_ROUNDING = 2e-7  # relative: scores are float32, so that 0.7 may arrive as 0.69999999


@dataclass(frozen=True)
class GateSettings:
    """Conditions that a model must meet before an alias of MLflow's registry moves to it.

    Args:
        metric: Logged metric that is judged, such as `test/accuracy`; its first part names the split. `null`: nothing
            is judged.
        mode: Whether large (`max`) or small (`min`) values are good. `null`: as the metric's object says (torchmetrics'
            `higher_is_better`), else its name; where neither does, only `min` and `max` can judge.
        min: Smallest value that passes.
        max: Largest value that passes.
        max_drop: How much worse than the baseline the model may be, in the metric's unit; `null`: any amount.
        margin: A test of non-inferiority: the model passes if it is shown to be worse than the baseline by less than
            this, in the metric's unit. The lower end of the paired interval of the difference, on the samples that both
            predict, lies above minus the margin. It needs models whose steps return predictions.
        confidence: Of `margin`, one-sided; `null` is 0.95. With it a drop counts in `max_drop` only if the model
            differs from the baseline with this confidence, by McNemar's exact test of accuracy or a paired bootstrap of
            other metrics; few samples show no difference, so prefer `margin`.
        baseline: Model to compare with: an alias or a version of the registered model, or a run. Where the alias
            points to nothing yet, nothing is compared. `null`: nothing.
        slices: The smallest value (the largest with `mode: min`) that a class has of the metric, by its name: of
            accuracy, error, precision, recall and F1 from the predictions for all samples, else on its samples alone.
        drift: `{window: 5, max_drop: 0.03}`: how much worse than the best of the last `window` promoted models it may
            be.
        name: Registered model. `null`: the name of the run.
    """

    metric: str | None = None
    mode: Literal["min", "max"] | None = None
    min: float | None = None
    max: float | None = None
    max_drop: float | None = None
    margin: float | None = None
    confidence: float | None = None
    baseline: str | None = "champion"
    slices: dict[str, float] | None = None
    drift: dict[str, float] | None = None
    name: str | None = None

    @property
    def rules(self) -> list[str]:
        """Names of the conditions that are set."""
        keys = ("min", "max", "max_drop", "margin", "slices", "drift")
        return [key for key in keys if getattr(self, key) is not None]

    @property
    def is_against_run(self) -> bool:
        """Return whether the baseline is a run, and no alias or version of the registered model."""
        return self.baseline is not None and ("/" in self.baseline or self.baseline == "latest")

    @property
    def is_loss(self) -> bool:
        """Return whether small values of the metric are good, as far as config and name tell."""
        return self.metric is not None and infer_mode(self.metric, explicit=self.mode) == "min"


def split_of(metric: str) -> str:
    """Return the split on which a metric is taken, `val` or `test`, by its first part; `test` where that is neither."""
    return "val" if _first_part(metric) in ("val", "valid", "validation") else "test"


def _first_part(metric: str) -> str:
    return metric.replace("_", "/").partition("/")[0]


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def read_gate(resolved: Resolved) -> GateSettings:
    """Read the `gate` block of a config, whose keys and types are checked with all others.

    Raises:
        ConfigError: If a value in it is out of range, or two of them contradict each other.
    """
    given = resolved.section("gate")
    values = {each.name: given[each.name] for each in fields(GateSettings) if each.name in given}

    def error(message: str, *keys: str) -> ConfigError:
        return error_at(message, *(resolved.origin_of(("gate", key)) for key in keys))

    def refuse(key: str, expected: str) -> ConfigError:
        return error(f"gate.{key}: expected {expected}, got {values[key]!r}", key)

    for key, value in values.items():
        if key in _NUMBERS or isinstance(value, Mapping):
            values[key] = _read_numbers(value)
        elif value == "":
            raise refuse(key, "max or min" if key == "mode" else "a name or null")
        if not _is_finite(values[key]):
            raise refuse(key, "finite numbers")
    settings = GateSettings(**values)
    for key, expected in _find_out_of_range(settings):
        raise refuse(key, expected)
    for message, *keys in _find_contradictions(settings):
        raise error(message, *keys)
    return settings


def _find_contradictions(settings: GateSettings) -> Iterator[tuple[str, ...]]:
    """Find values that contradict each other, in words, each with the keys."""
    if _is_number(settings.min) and _is_number(settings.max) and settings.min > settings.max:
        text = f"gate.min: {settings.min:g} is above gate.max, which is {settings.max:g}: nothing passes both"
        yield text, "min", "max"
    of_baseline = [rule for rule in settings.rules if rule in ("max_drop", "margin")]
    if of_baseline and settings.baseline is None:
        text = (
            f"gate.{of_baseline[0]}: there is nothing that the model could be worse than: gate.baseline is null. Name "
            f"a baseline, such as champion, or leave {of_baseline[0]} out"
        )
        yield text, of_baseline[0], "baseline"
    if settings.metric is None and settings.rules:
        rule = settings.rules[0]
        text = f"gate.{rule}: of which metric? gate.metric is not set; set it, for example to test/accuracy"
        yield text, rule


def _read_numbers(value: Any) -> Any:
    """Read a number, or the numbers of a mapping, that a flag has as text."""
    if isinstance(value, Mapping):
        return {str(name): _read_numbers(child) for name, child in value.items()} or None
    return read_scalar(value) if isinstance(value, str) else value


def _is_finite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, float) or math.isfinite(value)


def _find_out_of_range(settings: GateSettings) -> Iterator[tuple[str, str]]:
    """Find the keys whose value is out of its range, each with what is expected."""
    if _first_part(str(settings.metric)) == "train":
        yield "metric", "a metric of the test or the validation split, such as test/accuracy"
    if _is_number(settings.max_drop) and settings.max_drop < 0:
        yield "max_drop", "a number of at least 0"
    if _is_number(settings.margin) and settings.margin <= 0:
        yield "margin", "a number above 0, such as 0.02"
    least = 0 if settings.margin is None else 0.5
    if _is_number(settings.confidence) and not least < settings.confidence < 1:
        yield "confidence", f"a number between {least:g} and 1, such as 0.95"
    if not _is_drift(settings.drift):
        yield "drift", "a number of promoted models and a drop, such as {window: 5, max_drop: 0.03}"


def _is_drift(drift: Any) -> bool:
    if not isinstance(drift, Mapping):  # null, or reported with all other types
        return True
    if {*drift} != {"window", "max_drop"} or not all(map(_is_number, drift.values())):
        return False
    return bool(drift["window"] >= 1 and drift["window"] % 1 == 0 and drift["max_drop"] >= 0)


def require_rule(settings: GateSettings, advice: str = "") -> None:
    """Refuse settings by which every model passes.

    Args:
        settings: The settings.
        advice: What else can be done.

    Raises:
        ConfigError: If they have no condition.
    """
    if not settings.rules:
        metric = "" if settings.metric else "gate.metric is not set; give --gate.metric=test/accuracy, and "
        bound = "max" if settings.is_loss else "min"
        raise ConfigError(
            f"gate: there is no rule to judge by: {metric}give --gate.{bound}=VALUE or --gate.margin=VALUE, or set "
            f"gate.max_drop, gate.slices or gate.drift.{advice}"
        )


def find_gate_mode(settings: GateSettings, resolved: Resolved, recorded: Mapping[str, Any]) -> Mode | None:
    """Find which value of the judged metric is best, and warn where the config's mode contradicts the metric.

    None where nothing tells, and the thresholds `min` and `max`, which need no mode, judge alone.

    Args:
        settings: The conditions.
        resolved: The config, for the place of an error.
        recorded: Modes of metrics that the run has recorded, or that its metric objects know.

    Raises:
        ConfigError: If neither the config nor the metric tells, and the conditions compare.
    """
    metric = str(settings.metric)
    known = infer_mode(metric, recorded=recorded)
    mode = infer_mode(metric, explicit=settings.mode, recorded=recorded)
    if mode is None and {*settings.rules} - {"min", "max"}:
        raise error_at(
            f"gate.mode: not set, and nothing tells whether a small or a large {metric} is good: no metric object with "
            f"higher_is_better was logged under that name, and the name does not say. Set gate.mode to min or max",
            resolved.origin_of(("gate", "metric")),
        )
    if None not in (known, mode) and known != mode:
        good = "small" if known == "min" else "large"
        _log.warning("gate.mode: %s, but %s values of %s are good by its name or object", mode, good, metric)
    return mode


@dataclass(frozen=True)
class ModelScores:
    """A model's scores on the data of the gate.

    Args:
        name: Its name in messages.
        metrics: Logged metrics by name.
        slices: The judged metric on the samples of each class; None without samples, or without a finite value.
        predictions: For each sample, in the order of the data; None where the model's steps do not return them.
        unit: Numbers of this model's own by which the judged metric is divided; None for a unit that all models share.
    """

    name: str
    metrics: Mapping[str, float]
    slices: Mapping[str, float | None] = field(default_factory=dict)
    predictions: Predictions | None = None
    unit: tuple[float, ...] | None = None


def decide(
    settings: GateSettings,
    candidate: ModelScores,
    baseline: ModelScores | None,
    *,
    drift: Mapping[str, Any] | None = None,
    num_samples: int,
    run: str,
) -> dict[str, Any]:
    """Judge a model by its scores.

    A value that is missing or not finite fails every condition on it. A drop of exactly the allowed size passes. A
    baseline that is not finite bounds nothing; where no threshold judges the model, it fails then. A baseline that is
    the model itself is no better than it.

    Args:
        settings: The conditions. Without a mode, the metric's name decides, or else large values are good.
        candidate: Scores of the model.
        baseline: Scores of the model to compare with.
        drift: The recently promoted models: their number ``window``, the ``best`` score and its ``version``.
        num_samples: Number of samples of the scores.
        run: The run, as ``name/id``.

    Returns:
        The content of ``gate.json``: whether it ``passed``, the failed conditions in words as ``reasons``, all of them
        as ``checks``, the ``scores`` and ``slices`` of ``challenger`` and ``baseline``, their ``intervals``, as
        ``significance`` whether they differ beyond the noise of the samples, see `compare_on_same_samples`, as
        ``non_inferiority`` what `bound_difference` found for the margin, and as ``smallest_drop`` the smallest drop of
        an accuracy that so many samples can show.

    Raises:
        ConfigError: If there is a margin, but no prediction of each sample.
    """
    # here: it loads numpy, which no command needs that reads a config
    from lightkit.reports.statistics import (
        compare_on_same_samples,
        compute_class_interval,
        compute_interval,
        format_difference,
        select_class,
        smallest_drop,
    )

    metric = str(settings.metric)
    confidence = settings.confidence or 0.95
    mode = infer_mode(metric, explicit=settings.mode)
    settings = replace(settings, mode=mode or "max")
    other = ModelScores("", {}) if baseline is None else baseline
    value = candidate.metrics.get(metric)
    reference = other.metrics.get(metric)
    compute = partial(compute_interval, metric, confidence=confidence)
    significance = None
    if baseline is not None:
        significance = compare_on_same_samples(
            metric, (value, reference), candidate.predictions, other.predictions, confidence=confidence
        )
    checks: list[dict[str, Any]] = []
    reasons: list[str] = []

    def add(name: str, value: float | None, other: float | None, asks: str, passed: bool, *, against: str = "") -> None:
        checks.append({"name": name, "challenger": value, "baseline": other, "asks": asks, "passed": passed})
        if not passed:
            found = "has no value" if value is None else f"is {value:.6g}"
            reasons.append(f"{name} {found}, expected {asks}{against}")

    def add_bound(name: str, value: float | None, other: float | None, bound: float, *, is_least: bool) -> None:
        passed = _is_number(value)
        if _is_number(value):
            passed = (bound - value if is_least else value - bound) <= _ROUNDING * max(abs(value), abs(bound))
        add(name, value, other, f"at {'least' if is_least else 'most'} {bound:g}", passed)

    def drops_at_most(reference: float | None, allowed: float) -> bool:
        if not _is_number(value):
            return False
        if not _is_number(reference):  # a baseline that gives NaN is no measure; the thresholds are
            return reference is not None and (settings.min is not None or settings.max is not None)
        drop = reference - value if settings.mode == "max" else value - reference
        return drop <= allowed + _ROUNDING * max(abs(value), abs(reference), abs(allowed))

    if settings.min is not None:
        add_bound(metric, value, reference, settings.min, is_least=True)
    if settings.max is not None:
        add_bound(metric, value, reference, settings.max, is_least=False)
    if settings.max_drop is not None and baseline is not None:
        asks = f"at most {settings.max_drop:g} worse than {baseline.name}"
        against = "" if reference is None else f" (that has {reference:.6g})"
        if _is_number(value) and _is_number(reference) and value != reference:
            against += f"; it is {format_difference(value - reference, 0.0, None, mode=settings.mode)}"
        is_noise = settings.confidence is not None and significance is not None and not significance["counts"]
        if settings.confidence is not None:
            asks += f", or no different with {settings.confidence:.4g} confidence"
        add(metric, value, reference, asks, is_noise or drops_at_most(reference, settings.max_drop), against=against)
    non_inferiority = _test_non_inferiority(settings, candidate, baseline)
    if settings.margin is not None and baseline is not None:
        asks = f"less than {settings.margin:g} worse than {baseline.name}, with {confidence:.4g} confidence"
        # as for a drop: a baseline that gives NaN is no measure, and the thresholds are
        passed = drops_at_most(reference, 0.0) if non_inferiority is None else non_inferiority["passed"]
        add(metric, value, reference, asks, passed, against=_describe_bound(settings, non_inferiority, reference))
    if settings.metric is not None and not checks:
        add(metric, value, reference, "a finite number", _is_number(value))
    for name, bound in (settings.slices or {}).items():
        scores = candidate.slices.get(name), other.slices.get(name)
        add_bound(f"{metric} of {name}", *scores, bound, is_least=settings.mode == "max")
    if settings.drift is not None and drift is not None and drift["best"] is not None:
        window = drift["window"]
        best = drift["best"]
        allowed = settings.drift["max_drop"]
        last = "the last promoted model" if window == 1 else f"the best of the last {window} promoted models"
        asks = f"at most {allowed:g} worse than {last} (version {drift['version']}: {best:.6g})"
        add(f"{metric} of late", value, best, asks, drops_at_most(best, allowed))
    slices: dict[str, dict[str, Any]] = {}
    for name, score in candidate.slices.items():
        found = select_class(candidate.predictions, name)
        slices[name] = {"challenger": score, "baseline": other.slices.get(name)}
        interval = compute_class_interval(metric, name, score, candidate.predictions, confidence=confidence)
        slices[name] |= {"num_samples": None if found is None else len(found), "interval": interval}
    is_share = metric.endswith(("accuracy", "error"))
    return {
        "schema": 1,
        "passed": not reasons,
        "metric": settings.metric,
        "mode": mode,
        "scores": {"challenger": {**candidate.metrics}, "baseline": baseline and {**baseline.metrics}},
        "slices": slices,
        "intervals": {
            "confidence": confidence,
            "challenger": compute(value, candidate.predictions),
            "baseline": compute(reference, other.predictions),
        },
        "significance": significance,
        "non_inferiority": non_inferiority,
        "smallest_drop": smallest_drop(num_samples, confidence=confidence) if is_share else None,
        "drift": drift,
        "reasons": reasons,
        "baseline": baseline and baseline.name,
        "num_samples": num_samples,
        "run": run,
        "checks": checks,
    }


def _test_non_inferiority(
    settings: GateSettings, candidate: ModelScores, baseline: ModelScores | None
) -> dict[str, Any] | None:
    """Bound the difference of a model to its baseline; None without both, or where a score is not finite.

    Raises:
        ConfigError: If predictions of each sample are missing, also where there is no baseline yet: the next night
            there is one.
    """
    from lightkit.reports.statistics import bound_difference, reproduces_score, smallest_margin  # here: numpy

    if settings.margin is None:
        return None
    metric = str(settings.metric)
    confidence = settings.confidence or 0.95
    models = [candidate, *([baseline] if baseline is not None else [])]
    scores = [model.metrics.get(metric) for model in models]
    if not all(map(_is_number, scores)):
        return None
    for model, score in zip(models, scores, strict=True):
        if not reproduces_score(metric, score, model.predictions):
            raise ConfigError(
                f"gate.margin: {model.name} has no prediction of each sample that gives {metric}, which a paired "
                f"interval is made of. Return logits or prediction, and target, from {split_of(metric)}"
                f"{'idation' if split_of(metric) == 'val' else ''}_step (docs/your-lightningmodule.md), or set "
                f"gate.max_drop in its place."
            )
    if baseline is None:
        return None

    found: dict[str, Any] | None
    if candidate.predictions is baseline.predictions:  # the model itself
        found = {"difference": 0.0, "low": 0.0, "high": 0.0, "method": "the same model"}
        found["num_samples"] = len(candidate.predictions or ())
    else:
        found = bound_difference(
            metric,
            scores,
            candidate.predictions,
            baseline.predictions,
            mode=settings.mode or "max",
            confidence=confidence,
        )
    if found is None:
        raise ConfigError(
            f"gate.margin: {candidate.name} and {baseline.name} were not scored on the same samples, which a paired "
            f"interval is made of. Set gate.max_drop in its place."
        )
    found |= {"margin": settings.margin, "confidence": confidence, "passed": found["low"] > -settings.margin}
    if found["method"] == "paired score interval":
        found["smallest_margin"] = smallest_margin(found["num_samples"], confidence=confidence)
    return found


def _describe_bound(settings: GateSettings, found: Mapping[str, Any] | None, reference: float | None) -> str:
    """Write why a model is not shown to be good enough: the interval, and whether the samples could show it at all."""
    from lightkit.reports.statistics import format_difference  # here: numpy

    if found is None:
        return "" if reference is None else f" (that has {reference:.6g})"
    words = format_difference(found["difference"], found["low"], found["high"], mode="max")  # positive is better
    text = f" (that has {reference:.6g}); it is {words}"
    least = found.get("smallest_margin", 0.0)
    if settings.margin is not None and settings.margin <= least:
        text += f"; {found['num_samples']} samples show no margin of {least:.2g} or less"
    return text


def explain_refusal(decision: Mapping[str, Any], run: Run) -> str:
    """Write why a gate refuses a run, which run it is, and where the page of the decision is: one line, for a mail."""
    reasons = "; ".join(map(str, decision.get("reasons") or ["there is no decision"]))
    page = run.folder / "gate.html"
    file = page if page.is_file() else run.folder / RECORD
    return f"the gate says no: {reasons} (run {run.name}/{run.id}; {shown_path(file)})"

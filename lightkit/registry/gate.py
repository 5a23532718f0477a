"""The config's `gate` block, and the decision by it.

Scores against thresholds and the promoted models. No torch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from lightkit.config import Resolved, error_at, shown_path
from lightkit.config.bounds import (
    MAX_FLOAT,
    Bounds,
    FiniteFloat,
    Form,
    is_number,
)
from lightkit.errors import ConfigError
from lightkit.runs.folder import Run
from lightkit.runs.metric_mode import Mode, infer_mode

if TYPE_CHECKING:
    from lightkit.reports.predictions import Predictions

_log = logging.getLogger("lightkit")
RECORD = "gate.json"
"""Name of the file in the run folder that holds the decision."""
_OF_BASELINE = ("max_drop", "margin")
"""Conditions that compare with a baseline."""
_STEPS = {"val": "validation_step", "test": "test_step"}
_ROUNDING = 2e-7  # relative: scores are float32, so that 0.7 may arrive as 0.69999999


_JUDGED = Form(
    r"(?!train([/_]|$)).+",
    "a metric of the test or the validation split, such as test/accuracy",
)
_Drop = Annotated[float, Bounds(ge=0, le=MAX_FLOAT, expected="a number of at least 0")]
_Window = Annotated[
    float, Bounds(ge=1, multiple_of=1, expected="a number of promoted models, 1 or more")
]
_Margin = Annotated[float, Bounds(gt=0, le=MAX_FLOAT, expected="a number above 0, such as 0.02")]
_Confidence = Annotated[
    float, Bounds(gt=0, lt=1, expected="a number between 0 and 1, such as 0.95")
]
_Name = Annotated[str, Form(r"(?s).+", "a name")]


class Drift(TypedDict):
    """How much worse than the best of the last ``window`` promoted models a model may be."""

    window: _Window
    max_drop: _Drop


@dataclass(frozen=True)
class GateSettings:
    """Conditions that a model must meet before an alias of MLflow's registry moves to it.

    Args:
        metric: Logged metric that is judged, such as `test/accuracy`; its first part names the
            split. `null`: nothing is judged.
        mode: Whether large (`max`) or small (`min`) values are good. `null`: as the metric's object
            says (torchmetrics' `higher_is_better`), else its name; where neither does, only `min`
            and `max` can judge.
        min: Smallest value that passes.
        max: Largest value that passes.
        max_drop: How much worse than the baseline the model may be, in the metric's unit; `null`:
            any amount.
        margin: A test of non-inferiority: the model passes if it is shown to be worse than the
            baseline by less than this, in the metric's unit. The lower end of the paired interval
            of the difference, on the samples that both predict, lies above minus the margin. It
            needs models whose steps return predictions.
        confidence: Of `margin`, one-sided; `null` is 0.95. With it a drop counts in `max_drop` only
            if the model differs from the baseline with this confidence, by McNemar's exact test of
            accuracy or a paired bootstrap of other metrics; few samples show no difference, so
            prefer `margin`.
        baseline: Model to compare with: an alias or a version of the registered model, or a run.
            Where the alias points to nothing yet, nothing is compared. `null`: nothing.
        slices: The smallest value (the largest with `mode: min`) that a class has of the metric, by
            its name: of accuracy, error, precision, recall and F1 from the predictions for all
            samples, else on its samples alone.
        drift: `{window: 5, max_drop: 0.03}`: how much worse than the best of the last `window`
            promoted models it may be.
        name: Registered model. `null`: the name of the run.
    """

    metric: Annotated[str, _JUDGED] | None = None
    mode: Literal["min", "max"] | None = None
    min: FiniteFloat | None = None
    max: FiniteFloat | None = None
    max_drop: _Drop | None = None
    margin: _Margin | None = None
    confidence: _Confidence | None = None
    baseline: _Name | None = "champion"
    slices: dict[str, FiniteFloat] | None = None
    drift: Drift | None = None
    name: _Name | None = None

    @property
    def rules(self) -> list[str]:
        """Names of the conditions that are set."""
        keys = ("min", "max", "max_drop", "margin", "slices", "drift")
        return [key for key in keys if getattr(self, key) is not None]

    @property
    def needs_registry(self) -> bool:
        """Return whether the model is compared with others, which may be registered."""
        return self.metric is not None and (self.baseline, self.drift) != (None, None)

    @property
    def test_confidence(self) -> float:
        """Confidence of intervals and tests."""
        return self.confidence or 0.95

    @property
    def is_against_run(self) -> bool:
        """Return whether the baseline is a run, and no alias or version of the registered model."""
        return self.baseline is not None and ("/" in self.baseline or self.baseline == "latest")

    @property
    def history_alias(self) -> str:
        """Alias whose promoted models `drift` looks at: that of the baseline, else `champion`."""
        alias = self.baseline or "champion"
        return "champion" if alias.isdecimal() or self.is_against_run else alias

    @property
    def is_loss(self) -> bool:
        """Return whether small values of the metric are good, as far as config and name tell."""
        return self.metric is not None and infer_mode(self.metric, explicit=self.mode) == "min"


def split_of(metric: str) -> str:
    """Return the split on which a metric is taken, `val` or `test`, by its first part.

    `test` where that is neither.
    """
    return "val" if _first_part(metric) in ("val", "valid", "validation") else "test"


def _first_part(metric: str) -> str:
    return metric.replace("_", "/").partition("/")[0]


def read_gate(resolved: Resolved) -> GateSettings:
    """Read the `gate` block of a config, whose keys and types are checked with all others.

    Raises:
        ConfigError: If two values in it contradict each other.
    """
    settings = resolved.read_section("gate", GateSettings)
    settings = replace(settings, slices=settings.slices or None)
    for message, *keys in _find_contradictions(settings):
        raise error_at(message, *(resolved.origin_of(("gate", key)) for key in keys))
    return settings


def _find_contradictions(settings: GateSettings) -> Iterator[tuple[str, ...]]:
    """Find values that contradict each other, in words, each with the keys."""
    if settings.margin is not None and settings.test_confidence <= 0.5:
        text = (
            "gate.confidence: with gate.margin expected a number between 0.5 and 1, such as 0.95,"
            f" got {settings.test_confidence}"
        )
        yield text, "confidence"
    if settings.min is not None and settings.max is not None and settings.min > settings.max:
        text = (
            f"gate.min: {settings.min:g} is above gate.max, which is {settings.max:g}: nothing"
            " passes both"
        )
        yield text, "min", "max"
    for rule in settings.rules:
        if settings.metric is None:
            text = (
                f"gate.{rule}: of which metric? gate.metric is not set; set it, for example to"
                " test/accuracy"
            )
            yield text, rule
        if rule in _OF_BASELINE and settings.baseline is None:
            text = (
                f"gate.{rule}: there is nothing that the model could be worse than: gate.baseline"
                f" is null. Name a baseline, such as champion, or leave {rule} out"
            )
            yield text, rule, "baseline"


def require_rule(settings: GateSettings, advice: str = "") -> None:
    """Refuse settings by which every model passes.

    Args:
        settings: The settings.
        advice: What else can be done.

    Raises:
        ConfigError: If they have no condition.
    """
    if not settings.rules:
        metric = (
            ""
            if settings.metric
            else "gate.metric is not set; give --gate.metric=test/accuracy, and "
        )
        bound = "max" if settings.is_loss else "min"
        raise ConfigError(
            f"gate: there is no rule to judge by: {metric}give --gate.{bound}=VALUE or"
            f" --gate.margin=VALUE, or set gate.max_drop, gate.slices or gate.drift.{advice}"
        )


def find_gate_mode(
    settings: GateSettings, resolved: Resolved, recorded: Mapping[str, Any]
) -> Mode | None:
    """Find which value of the judged metric is best.

    Warn where the config's mode contradicts the metric.

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
            f"gate.mode: not set, and nothing tells whether a small or a large {metric} is good: no"
            " metric object with higher_is_better was logged under that name, and the name does"
            " not say. Set gate.mode to min or max",
            resolved.origin_of(("gate", "metric")),
        )
    if None not in (known, mode) and known != mode:
        good = "small" if known == "min" else "large"
        _log.warning(
            "gate.mode: %s, but %s values of %s are good by its name or object", mode, good, metric
        )
    return mode


@dataclass(frozen=True)
class ModelScores:
    """A model's scores on the data of the gate.

    Args:
        name: Its name in messages.
        metrics: Logged metrics by name.
        slices: The judged metric on the samples of each class; None without samples, or without a
            finite value.
        predictions: For each sample, in the order of the data; None where the model's steps do not
            return them.
        unit: Numbers of this model's own by which the judged metric is divided; None for a unit
            that all models share.
    """

    name: str
    metrics: Mapping[str, float]
    slices: Mapping[str, float | None] = field(default_factory=dict)
    predictions: Predictions | None = None
    unit: tuple[float, ...] | None = None


@dataclass(frozen=True)
class _Comparison:
    """A model and its baseline, by the judged metric.

    Args:
        settings: The conditions.
        mode: Whether large or small values are good.
        candidate: Scores of the model.
        baseline: Scores of the model to compare with; None where there is none.
    """

    settings: GateSettings
    mode: Mode
    candidate: ModelScores
    baseline: ModelScores | None

    @property
    def metric(self) -> str:
        """Name of the judged metric."""
        return str(self.settings.metric)

    @property
    def other(self) -> ModelScores:
        """Scores of the baseline, of which there are none without one."""
        return self.baseline or ModelScores("", {})

    @property
    def value(self) -> float | None:
        """The metric of the model."""
        return self.candidate.metrics.get(self.metric)

    @property
    def reference(self) -> float | None:
        """The metric of the baseline."""
        return self.other.metrics.get(self.metric)

    @property
    def confidence(self) -> float:
        """Confidence of intervals and tests."""
        return self.settings.test_confidence

    def drops_at_most(self, allowed: float, reference: float | None) -> bool:
        """Return whether the model is worse than a reference by no more than an allowed drop."""
        value = self.value
        if not is_number(value):
            return False
        if not is_number(reference):  # a baseline that gives NaN is no measure; the thresholds are
            return reference is not None and (
                self.settings.min is not None or self.settings.max is not None
            )
        drop = reference - value if self.mode == "max" else value - reference
        return drop <= allowed + _ROUNDING * max(abs(value), abs(reference), abs(allowed))


@dataclass(frozen=True)
class _Check:
    """A condition and its outcome.

    Args:
        name: Name of the score.
        value: The score of the model.
        other: The score of the baseline.
        asks: The condition in words.
        passed: Whether the model meets it.
        against: Words on the baseline for the reason of a refusal.
    """

    name: str
    value: float | None
    other: float | None
    asks: str
    passed: bool
    against: str = ""

    def describe(self) -> dict[str, Any]:
        """Return the entry in ``gate.json``."""
        return {
            "name": self.name,
            "challenger": self.value,
            "baseline": self.other,
            "asks": self.asks,
            "passed": self.passed,
        }

    def explain(self) -> str:
        """Write why the condition is not met."""
        found = "has no value" if self.value is None else f"is {self.value:.6g}"
        return f"{self.name} {found}, expected {self.asks}{self.against}"


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

    A value that is missing or not finite fails every condition on it. A drop of exactly the allowed
    size passes. A baseline that is not finite bounds nothing; where no threshold judges the model,
    it fails then. A baseline that is the model itself is no better than it.

    Args:
        settings: The conditions. Without a mode, the metric's name decides, or else large values
            are good.
        candidate: Scores of the model.
        baseline: Scores of the model to compare with.
        drift: The recently promoted models: their number ``window``, the ``best`` score and its
            ``version``.
        num_samples: Number of samples of the scores.
        run: The run, as ``name/id``.

    Returns:
        The content of ``gate.json``: whether it ``passed``, the failed conditions in words as
        ``reasons``, all of them as ``checks``, the ``scores`` and ``slices`` of ``challenger`` and
        ``baseline``, their ``intervals``, as ``significance`` whether they differ beyond the noise
        of the samples, see `compare_on_same_samples`, as ``non_inferiority`` what
        `bound_difference` found for the margin, and as ``smallest_drop`` the smallest drop of an
        accuracy that so many samples can show.

    Raises:
        ConfigError: If there is a margin, but no prediction of each sample.
    """
    # here: it loads numpy, which no command needs that reads a config
    from lightkit.reports.statistics import compare_on_same_samples, compute_interval, smallest_drop

    mode = infer_mode(str(settings.metric), explicit=settings.mode)
    compared = _Comparison(settings, mode or "max", candidate, baseline)
    metric = compared.metric
    confidence = compared.confidence
    value = compared.value
    reference = compared.reference
    other = compared.other
    significance = None
    if baseline is not None:
        significance = compare_on_same_samples(
            metric,
            (value, reference),
            candidate.predictions,
            other.predictions,
            confidence=confidence,
        )
    non_inferiority = _test_non_inferiority(compared)

    # each rule of the settings adds its checks; a metric that no rule judges must at least be a
    # number
    checks = [
        *_check_thresholds(compared),
        *_check_drop(compared, significance),
        *_check_margin(compared, non_inferiority),
    ]
    if settings.metric is not None and not checks:
        checks.append(_Check(metric, value, reference, "a finite number", is_number(value)))
    checks += [*_check_slices(compared), *_check_drift(compared, drift)]
    reasons = [check.explain() for check in checks if not check.passed]

    # of samples that are right or wrong: neither of pixels nor of a mean absolute error
    scored = candidate.predictions
    is_share = metric.endswith(("accuracy", "error")) and (
        scored is None or scored.is_correct is not None
    )
    return {
        "schema": 1,
        "passed": not reasons,
        "metric": settings.metric,
        "mode": mode,
        "scores": {
            "challenger": {**candidate.metrics},
            "baseline": baseline and {**baseline.metrics},
        },
        "slices": _describe_slices(compared),
        "intervals": {
            "confidence": confidence,
            "challenger": compute_interval(
                metric, value, candidate.predictions, confidence=confidence
            ),
            "baseline": compute_interval(
                metric, reference, other.predictions, confidence=confidence
            ),
        },
        "significance": significance,
        "non_inferiority": non_inferiority,
        "smallest_drop": smallest_drop(num_samples, confidence=confidence) if is_share else None,
        "drift": drift,
        "reasons": reasons,
        "baseline": baseline and baseline.name,
        "num_samples": num_samples,
        "run": run,
        "checks": [check.describe() for check in checks],
    }


def _check_bound(
    name: str, value: float | None, other: float | None, bound: float, *, is_least: bool
) -> _Check:
    """Check a score against its smallest or largest value."""
    passed = False
    if is_number(value):
        gap = bound - value if is_least else value - bound
        passed = gap <= _ROUNDING * max(abs(value), abs(bound))
    return _Check(name, value, other, f"at {'least' if is_least else 'most'} {bound:g}", passed)


def _check_thresholds(compared: _Comparison) -> Iterator[_Check]:
    """Check `gate.min` and `gate.max`."""
    for bound, is_least in ((compared.settings.min, True), (compared.settings.max, False)):
        if bound is not None:
            yield _check_bound(
                compared.metric, compared.value, compared.reference, bound, is_least=is_least
            )


def _check_drop(compared: _Comparison, significance: Mapping[str, Any] | None) -> Iterator[_Check]:
    """Check `gate.max_drop`, where a difference that is noise is none if there is a confidence."""
    from lightkit.reports.statistics import format_difference  # here: numpy

    settings = compared.settings
    value = compared.value
    reference = compared.reference
    if settings.max_drop is None or significance is None:
        return
    asks = f"at most {settings.max_drop:g} worse than {compared.other.name}"
    passed = compared.drops_at_most(settings.max_drop, reference)
    if settings.confidence is not None:
        asks += f", or no different with {settings.confidence:.4g} confidence"
        passed = passed or not significance["counts"]
    against = _describe_reference(reference)
    if is_number(value) and is_number(reference) and value != reference:
        against += f"; it is {format_difference(value - reference, 0.0, None, mode=compared.mode)}"
    yield _Check(compared.metric, value, reference, asks, passed, against)


def _check_margin(compared: _Comparison, found: Mapping[str, Any] | None) -> Iterator[_Check]:
    """Check `gate.margin`, by what `_test_non_inferiority` has found."""
    margin = compared.settings.margin
    if margin is None or compared.baseline is None:
        return
    asks = (
        f"less than {margin:g} worse than {compared.baseline.name}, with"
        f" {compared.confidence:.4g} confidence"
    )
    # as for a drop: a baseline that gives NaN is no measure, and the thresholds are
    passed = compared.drops_at_most(0.0, compared.reference) if found is None else found["passed"]
    against = _describe_reference(compared.reference) + _describe_bound(margin, found)
    yield _Check(compared.metric, compared.value, compared.reference, asks, passed, against)


def _check_slices(compared: _Comparison) -> Iterator[_Check]:
    """Check `gate.slices`: the bound of each class."""
    for name, bound in (compared.settings.slices or {}).items():
        yield _check_bound(
            f"{compared.metric} of {name}",
            compared.candidate.slices.get(name),
            compared.other.slices.get(name),
            bound,
            is_least=compared.mode == "max",
        )


def _check_drift(compared: _Comparison, drift: Mapping[str, Any] | None) -> Iterator[_Check]:
    """Check `gate.drift`, where a model was promoted before."""
    settings = compared.settings
    if settings.drift is None or drift is None or drift["best"] is None:
        return
    window = drift["window"]
    best = drift["best"]
    allowed = settings.drift["max_drop"]
    last = (
        "the last promoted model"
        if window == 1
        else f"the best of the last {window} promoted models"
    )
    asks = f"at most {allowed:g} worse than {last} (version {drift['version']}: {best:.6g})"
    yield _Check(
        f"{compared.metric} of late",
        compared.value,
        best,
        asks,
        compared.drops_at_most(allowed, best),
    )


def _describe_slices(compared: _Comparison) -> dict[str, dict[str, Any]]:
    """Return the scores of each class, with their samples and interval, for ``gate.json``."""
    from lightkit.reports.statistics import compute_class_interval, select_class  # here: numpy

    predictions = compared.candidate.predictions
    slices: dict[str, dict[str, Any]] = {}
    for name, score in compared.candidate.slices.items():
        found = select_class(predictions, name)
        slices[name] = {
            "challenger": score,
            "baseline": compared.other.slices.get(name),
            "num_samples": None if found is None else len(found),
            "interval": compute_class_interval(
                compared.metric, name, score, predictions, confidence=compared.confidence
            ),
        }
    return slices


def _test_non_inferiority(compared: _Comparison) -> dict[str, Any] | None:
    """Bound the difference of a model to its baseline.

    The result is None without both, or where a score is not finite.

    Raises:
        ConfigError: If predictions of each sample are missing, also where there is no baseline yet:
            the next night there is one.
    """
    from lightkit.reports.statistics import reproduces_score, smallest_margin  # here: numpy

    margin = compared.settings.margin
    if margin is None:
        return None
    models = [compared.candidate]
    if compared.baseline is not None:
        models.append(compared.baseline)
    scores = [model.metrics.get(compared.metric) for model in models]
    if not all(map(is_number, scores)):
        return None
    for model, score in zip(models, scores, strict=True):
        if not reproduces_score(compared.metric, score, model.predictions):
            raise ConfigError(
                f"gate.margin: {model.name} has no prediction of each sample that gives"
                f" {compared.metric}, which a paired interval is made of. Return logits or"
                f" prediction, and target, from {_STEPS[split_of(compared.metric)]}"
                " (docs/your-lightningmodule.md), or set gate.max_drop in its place."
            )
    if compared.baseline is None:
        return None

    found = _bound_difference(compared)
    if found is None:
        raise ConfigError(
            f"gate.margin: {compared.candidate.name} and {compared.baseline.name} were not scored"
            " on the same samples, which a paired interval is made of."
            " Set gate.max_drop in its place."
        )
    found |= {"margin": margin, "confidence": compared.confidence, "passed": found["low"] > -margin}
    if found["method"] == "paired score interval":
        found["smallest_margin"] = smallest_margin(
            found["num_samples"], confidence=compared.confidence
        )
    return found


def _bound_difference(compared: _Comparison) -> dict[str, Any] | None:
    """Compute the interval of the difference, see `bound_difference`.

    The interval of a model to itself has no width.
    """
    from lightkit.reports.statistics import bound_difference  # here: numpy

    mine = compared.candidate.predictions
    theirs = compared.other.predictions
    if mine is not None and mine is theirs:
        return {
            "difference": 0.0,
            "low": 0.0,
            "high": 0.0,
            "method": "the same model",
            "num_samples": len(mine),
        }
    scores = (compared.value, compared.reference)
    return bound_difference(
        compared.metric, scores, mine, theirs, mode=compared.mode, confidence=compared.confidence
    )


def _describe_reference(reference: float | None) -> str:
    return "" if reference is None else f" (that has {reference:.6g})"


def _describe_bound(margin: float, found: Mapping[str, Any] | None) -> str:
    """Write why a model is not shown to be good enough.

    The interval, and whether the samples could show it at all.
    """
    from lightkit.reports.statistics import format_difference  # here: numpy

    if found is None:
        return ""
    # positive is better
    words = format_difference(found["difference"], found["low"], found["high"], mode="max")
    text = f"; it is {words}"
    least = found.get("smallest_margin", 0.0)
    if margin <= least:
        text += f"; {found['num_samples']} samples show no margin of {least:.2g} or less"
    return text


def explain_refusal(decision: Mapping[str, Any], run: Run) -> str:
    """Write why a gate refuses a run, which run it is, and where the page of the decision is.

    One line, for a mail.
    """
    reasons = "; ".join(map(str, decision.get("reasons") or ["there is no decision"]))
    page = run.folder / "gate.html"
    file = page if page.is_file() else run.folder / RECORD
    return f"the gate says no: {reasons} (run {run.name}/{run.id}; {shown_path(file)})"

"""All that a report shows of a run, read from its folder.

Of finished, running, failed and killed runs. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import yaml

from lightkit.config.origins import setting_key
from lightkit.config.secrets import mask
from lightkit.config.yaml_reader import YamlLoader
from lightkit.errors import LightkitError, format_count
from lightkit.launch.resources import read_resources
from lightkit.reports.predictions import (
    Predictions,
    Split,
    gives_score,
    predictions_path,
    read_predictions,
)
from lightkit.reports.statistics import bootstrap_interval, wilson_interval
from lightkit.runs.bad_images import BadImage, read_bad_images
from lightkit.runs.checkpoints import known_digest
from lightkit.runs.events import read_events
from lightkit.runs.files import find_value, inspect_json
from lightkit.runs.folder import Run
from lightkit.runs.index import flatten, index_run
from lightkit.runs.metric_mode import Mode, infer_mode, is_better
from lightkit.runs.metrics import MetricsTable
from lightkit.runs.records import DataDescription, keep_matching
from lightkit.runs.scores import StageScore, find_best_checkpoint, list_own_scores, read_scores
from lightkit.task import list_main_metrics

SPLITS: Mapping[Split, str] = {"test": "test", "validation": "val"}
"""Splits with predictions, in the order of preference, each with the prefix of its metrics."""
_SHARE_ERROR = 1e-3
_ROUNDING = 2e-7
"""How far a share of samples may be from a whole number of them: absolute, and relative, of a mean
in float32."""
_T = TypeVar("_T")


class Setting(NamedTuple):
    """A value of the config.

    Args:
        key: As users write it, without ``init_args`` and ``class_path``.
        value: Plain value without secrets.
        place: File and line, variable or flag that set it; None for a default.
    """

    key: str
    value: Any
    place: str | None


@dataclass(frozen=True)
class RunFacts:
    """Contents of a run's folder, without secrets.

    A file that is missing or cannot be read gives an empty value.

    Args:
        run: The run.
        status: As in summary.json, or ``killed``.
        manifest: As in manifest.json.
        summary: As in summary.json.
        rows: Those of metrics.csv, one an epoch.
        events: Those of events.jsonl, in order.
        settings: Values of the config: those of the user's files, variables and flags, of packaged
            configs, defaults.
        predictions: By their split: those of the best checkpoint for the run's own data.
        bad_images: Rows of bad_images.csv.
        gate: As in gate.json.
        exports: Entries of export.json.
        problems: Files that could not be read, each with the reason.
        sha256: Digest of the best checkpoint; None where there is none.
        own_scores: Results of ``test`` and ``validate``, by stage: those of the best checkpoint and
            own data.
        other_scores: Those of other weights, data or settings, in the order in which they were
            recorded.
        usage: Rows of resources.csv.
        importance: As in importance.json; empty where it is of other weights or data.
    """

    run: Run
    status: str
    manifest: Mapping[str, Any]
    summary: Mapping[str, Any]
    rows: list[dict[str, float]]
    events: list[dict[str, Any]]
    settings: list[Setting]
    predictions: Mapping[Split, Predictions]
    bad_images: list[BadImage]
    gate: Mapping[str, Any]
    exports: list[Mapping[str, Any]]
    problems: list[str]
    sha256: str | None = None
    own_scores: Mapping[str, StageScore] = field(default_factory=dict)
    other_scores: list[StageScore] = field(default_factory=list)
    usage: list[dict[str, float]] = field(default_factory=list)
    importance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``NAME/ID``."""
        return f"{self.run.name}/{self.run.id}"

    @property
    def data(self) -> Mapping[str, Any]:
        """Description of the data module by itself, without values that a report cannot show."""
        return keep_matching(self.manifest.get("data") or {}, DataDescription)

    @property
    def fingerprint(self) -> str | None:
        """Digest of the run's data; None where its data module has none."""
        return self.data.get("fingerprint")

    def infer_mode(self, metric: str) -> Mode | None:
        """Infer whether the smallest (``min``) or largest (``max``) value of a metric is best."""
        best = self.summary.get("best") or {}
        chosen = best.get("mode") if best.get("monitor") == metric else None
        return infer_mode(metric, recorded=self.summary.get("modes"), chosen=chosen)


def read_facts(run: Run) -> RunFacts:
    """Read a run's folder."""
    problems: list[str] = []

    def attempt(name: str, read: Callable[[], _T], default: _T) -> _T:
        try:
            return read()
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            RecursionError,
            LightkitError,
            yaml.YAMLError,
        ) as error:
            problems.append(f"{name} cannot be read: {' '.join(str(error).split())[:200]}")
            return default

    def read_object(name: str) -> Mapping[str, Any]:
        value, damage = inspect_json(run.folder / name)
        if damage is not None:
            problems.append(f"{name} cannot be read: {damage}")
        masked: Mapping[str, Any] = mask(value or {})
        return masked

    def read_config() -> Any:
        config = yaml.load(run.config_path.read_text(encoding="utf-8"), Loader=YamlLoader)  # noqa: S506 - a safe loader
        return mask(config) if isinstance(config, dict) else {}

    config: dict[str, Any] = (
        attempt("config.yaml", read_config, {}) if run.config_path.is_file() else {}
    )
    manifest = read_object("manifest.json")
    artefacts = read_object("export/export.json").get("artefacts") or {}

    # what belongs to other weights, or to other data, is not the best checkpoint's
    summary = read_object("summary.json")
    sha256 = known_digest(find_best_checkpoint(run, summary))
    predictions = {}
    for split in SPLITS:
        path = predictions_path(run.folder, split)
        if path.exists():
            found = attempt(path.name, partial(read_predictions, path), None)
            if found is not None and _is_own(found, manifest, sha256):
                predictions[split] = found
    importance = _select_importance(read_object("importance.json"), manifest, sha256)
    gate = read_object("gate.json")
    if _is_of_other_checkpoint(gate, sha256):
        problems.append(
            "gate.json is of another checkpoint than the best, and is not"
            " shown; `lightkit gate` judges it"
        )
        gate = {}
    own_scores = {each.stage: each for each in list_own_scores(run, summary, manifest)}
    other_scores = [each for each in read_scores(summary) if each not in own_scores.values()]
    facts = RunFacts(
        run=run,
        status=index_run(run).status,
        manifest=manifest,
        summary=summary,
        rows=attempt("metrics.csv", lambda: MetricsTable(run.metrics_path).rows, []),
        events=attempt("events.jsonl", lambda: mask(list(read_events(run.events_path))), []),
        settings=_list_settings(config, manifest.get("origins") or {}),
        predictions=predictions,
        bad_images=attempt(
            "bad_images.csv", lambda: read_bad_images(run.folder / "bad_images.csv"), []
        ),
        gate=gate,
        importance=importance,
        exports=[each for each in artefacts.values() if isinstance(each, dict)],
        problems=problems,
        sha256=sha256,
        own_scores=own_scores,
        other_scores=other_scores,
        usage=attempt("resources.csv", lambda: read_resources(run.folder / "resources.csv"), []),
    )
    problems.extend(_describe_contradictions(facts))
    return facts


def _describe_contradictions(facts: RunFacts) -> Iterator[str]:
    """Write for each split by what its predictions differ from what was logged."""
    for split in SPLITS:
        found = find_contradiction(facts, split)
        if found is not None:
            yield (
                f"{predictions_path(facts.run.folder, split).name} gives {found.predicted:.4g} for"
                f" {found.metric}, and the model logged {found.logged:.4g}. The model may use"
                " another threshold, or a mean over classes. The logged value is used; tables of"
                " classes and samples are those of the file."
            )


def _list_settings(config: Mapping[str, Any], origins: Mapping[str, str]) -> list[Setting]:
    """List the values of a config: the user's, then those of packaged configs, then defaults."""
    values = {setting_key(path): value for path, value in flatten(config)}
    settings = [Setting(key, value, origins.get(key)) for key, value in values.items()]
    return sorted(
        settings, key=lambda each: (each.place is None, str(each.place).startswith("lightkit:"))
    )


def _is_own(found: Predictions, manifest: Mapping[str, Any], sha256: str | None) -> bool:
    """Return whether predictions are of the best weights of a fit and of its data.

    Those of another run are its own.
    """
    is_fit = manifest.get("subcommand", "fit") == "fit"
    return not is_fit or found.is_of(
        sha256, fingerprint=find_value(manifest, "data", "fingerprint")
    )


def _is_of_other_checkpoint(gate: Mapping[str, Any], sha256: str | None) -> bool:
    """Return whether a decision is known to be of other weights than the best checkpoint's."""
    judged = find_value(gate, "checkpoint", "sha256")
    return None not in (judged, sha256) and judged != sha256


def _select_importance(
    record: Mapping[str, Any], manifest: Mapping[str, Any], sha256: str | None
) -> Mapping[str, Any]:
    """Return importance.json where it is of the best weights of a fit and of its data.

    That of a run that is no fit counts, too.
    """
    is_fit = manifest.get("subcommand", "fit") == "fit"
    own = (sha256, find_value(manifest, "data", "fingerprint"))
    return record if not is_fit or (record.get("sha256"), record.get("fingerprint")) == own else {}


def select_checkpoint(facts: RunFacts, sha256: str) -> RunFacts:
    """Return the facts of a run for another of its checkpoints than the best.

    Without what is the best one's alone.

    Args:
        facts: Of the run.
        sha256: Digest of the other checkpoint.
    """
    own = {
        each.stage: each
        for each in facts.other_scores
        if each.is_of(sha256, data=facts.fingerprint)
    }
    kept = {
        key: facts.summary[key] for key in ("epochs", "modes", "scores") if key in facts.summary
    }
    return replace(
        facts,
        summary=kept,
        predictions={},
        importance={},
        sha256=sha256,
        own_scores=own,
        other_scores=[],
        gate={},
    )


class Score(NamedTuple):
    """A metric of the best checkpoint.

    Args:
        metric: Its name, such as ``test/accuracy``.
        value: Its value.
        interval: Bounds of its 95 % interval; None where the samples do not give one.
        num_samples: Samples that it is computed on; None where unknown.
        chance: Value of a model that does not look at its input, on the same samples; None where
            unknown.
        is_loss: Whether small values are good.
    """

    metric: str
    value: float
    interval: tuple[float, float] | None = None
    num_samples: int | None = None
    chance: float | None = None
    is_loss: bool = False


def find_score(facts: RunFacts) -> Score | None:
    """Choose the metric that a run is judged by.

    It is the accuracy or the mean absolute error, on the test split if it was tested, else on the
    validation split; of other models the metric that chose the best checkpoint. None if there is no
    metric.
    """
    scores = list_scores(facts)
    for prefix in SPLITS.values():
        for name in list_main_metrics():
            if (score := scores.get(f"{prefix}/{name}")) is not None:
                return score
    best = facts.summary.get("best") or {}
    if isinstance(best.get("value"), (int, float)):
        monitor = str(best.get("monitor"))
        return Score(monitor, float(best["value"]), is_loss=facts.infer_mode(monitor) == "min")
    return None


def list_scores(facts: RunFacts) -> dict[str, Score]:
    """List the metrics of the best checkpoint, in its epoch and in its test.

    With intervals where samples give one. A value is that of the predictions only where these do
    not contradict what was logged.
    """
    scores = {}
    for split, prefix in SPLITS.items():
        found = facts.predictions.get(split)
        if found is not None and len(found) and find_contradiction(facts, split) is None:
            score = score_predictions(prefix, found)
            scores[score.metric] = score
    for key, (value, num_samples) in _list_logged(facts).items():
        scores.setdefault(key, _score_logged(facts, key, value, num_samples=num_samples))
    return {key: scores[key] for key in sorted(scores, key=split_order)}


class Contradiction(NamedTuple):
    """A metric of which the predictions of a split give another value than the one that was logged.

    Args:
        metric: Its name, such as ``test/accuracy``.
        predicted: Its value by the predictions.
        logged: Its value as the model logged it.
    """

    metric: str
    predicted: float
    logged: float


def find_contradiction(facts: RunFacts, split: Split) -> Contradiction | None:
    """Find whether the predictions of a split contradict what was logged of the best checkpoint."""
    logged = {key: value for key, (value, _) in _list_logged(facts).items()}
    num_ranks = find_value(facts.manifest, "hardware", "devices")
    return contradict(
        facts.predictions.get(split),
        logged,
        num_ranks=num_ranks if isinstance(num_ranks, int) else 1,
    )


def contradict(
    found: Predictions | None, logged: Mapping[str, float], *, num_ranks: int = 1
) -> Contradiction | None:
    """Compare the metric that a task is judged by, of its predictions, with the logged value.

    The two differ where the steps of a model decide by another threshold than its recorded
    predictions, or log a mean over classes or batches under the name of a mean over samples.
    Where Lightning has repeated the first samples, so that all ranks have the same number, the
    predictions are right, which have each sample once.

    Args:
        found: Predictions of a split.
        logged: Metrics of the same weights and samples by name.
        num_ranks: Processes that the samples were shared by.

    Returns:
        None where they agree, or where there is one of them alone.
    """
    if found is None or not len(found):
        return None
    metric = f"{SPLITS[found.split]}/{found.task.gate_metric}"
    value = logged.get(metric, math.nan)
    if not math.isfinite(value):
        return None
    measure = found.task.form.measure(found)
    predicted = float(measure.statistic(measure.values))
    if gives_score(predicted, value):
        return None
    num_repeated = -len(found) % max(num_ranks, 1)
    repeated = np.concatenate([measure.values, measure.values[:num_repeated]])
    if gives_score(float(measure.statistic(repeated)), value):
        return None
    return Contradiction(metric, predicted, value)


def _list_logged(facts: RunFacts) -> dict[str, tuple[float, int | None]]:
    """List the logged metrics of the best checkpoint, each with the number of its samples."""
    best = find_value(facts.summary, "metrics", "best") or {}
    tested = facts.own_scores.get("test")
    # of an earlier version, which did not say of what it is
    if tested is None and "scores" not in facts.summary:
        tested = StageScore("test", find_value(facts.summary, "stages", "test") or {})
    tested = tested or StageScore("test", {})
    validated = find_value(facts.summary, "samples", "val")
    logged: dict[str, tuple[float, int | None]] = {}
    for metrics, num_samples in ((best, validated), (tested.metrics, tested.num_samples)):
        for key, value in metrics.items():
            if is_metric(key) and isinstance(value, (int, float)):
                logged.setdefault(key, (float(value), num_samples))
    return logged


def score_predictions(prefix: str, found: Predictions) -> Score:
    """Compute the metric that the task is judged by, against chance.

    The metric of the best constant prediction.

    Args:
        prefix: Of the metric's name: ``test`` or ``val``.
        found: At least one prediction.
    """
    num = len(found)
    name = str(found.task.gate_metric)
    measure = found.task.form.measure(found)
    if measure.is_share:
        interval = wilson_interval(int(measure.values.sum()), num)
    else:
        interval = bootstrap_interval(measure.values, measure.statistic, confidence=0.95)
    return Score(
        f"{prefix}/{name}",
        float(measure.statistic(measure.values)),
        interval,
        num,
        measure.chance,
        is_loss=found.task.metrics.get(name) == "min",
    )


def _score_logged(facts: RunFacts, metric: str, value: float, *, num_samples: int | None) -> Score:
    """Return a logged metric.

    An accuracy has an interval where it is a share of the samples that were scored.

    Args:
        facts: Of the run.
        metric: Its name.
        value: Its value.
        num_samples: Number of samples that were scored, whatever limits left of the split; None
            where unknown.
    """
    prefix, _, name = metric.partition("/")
    is_loss = facts.infer_mode(metric) == "min"
    if prefix not in SPLITS.values():
        num_samples = None  # of the training split, which was not counted
    if name != "accuracy" or num_samples is None or not 0 <= value <= 1:
        return Score(metric, value, num_samples=num_samples, is_loss=is_loss)
    num_right = round(value * num_samples)
    if num_samples == 0 or abs(value * num_samples - num_right) > max(
        _SHARE_ERROR, num_samples * _ROUNDING
    ):
        # a mean over classes, or over batches
        return Score(metric, value, num_samples=num_samples, is_loss=is_loss)
    return Score(metric, value, wilson_interval(num_right, num_samples), num_samples)


def is_metric(name: str) -> bool:
    """Return whether a column of `metrics.csv` is a metric, and no count, time or learning rate."""
    return name not in (
        "epoch",
        "step",
        "epoch_seconds",
        "samples_per_s",
        "lr",
    ) and not name.startswith("lr/")


def split_order(metric: str) -> int:
    """Order metrics by their split: test, validation, unknown, training."""
    prefixes = (*SPLITS.values(), "", "train")
    prefix = metric.partition("/")[0]
    return prefixes.index(prefix if prefix in prefixes else "")


def describe_verdict(facts: RunFacts) -> str:
    """Write in one sentence how good the model is, against chance and the champion.

    Write why that is unknown where it is.
    """
    score = find_score(facts)
    state = {
        "running": "The run is still training",
        "failed": "The run failed",
        "killed": "The run's process was killed",
        "interrupted": "The run was interrupted and left nothing to resume from",
        "pruned": "Its sweep has stopped it early",
        "preempted": "The run was interrupted and resumes where it stopped",
    }.get(facts.status)
    compared = _describe_gate(facts)
    if score is None:
        has_logged = any(map(is_metric, find_value(facts.summary, "metrics", "best") or ()))
        found = (
            "its metrics are not finite" if has_logged else "it has logged no metric to judge it by"
        )
        return f"{state or 'The run is done'}; {found}{compared}."
    text = f"{score.metric} is {score.value:.4g}"
    if score.interval is not None:
        low, high = score.interval
        text += (
            f" (95 % interval {low:.3g} to {high:.3g},"
            f" {format_count(score.num_samples or 0, 'sample')})"
        )
        if score.chance is not None:
            beats_chance = high < score.chance if score.is_loss else low > score.chance
            text += (
                f", {'better' if beats_chance else 'not better'} than chance ({score.chance:.3g} on"
                " these samples)"
            )
    return f"{state}: so far {text}{compared}." if state else f"{text}{compared}."


def _describe_gate(facts: RunFacts) -> str:
    """Write how the run compares with the gate's baseline.

    Empty where the gate compared nothing.
    """
    metric = facts.gate.get("metric")
    scores = facts.gate.get("scores") or {}
    mine, other = (_read_score(scores.get(which), metric) for which in ("challenger", "baseline"))
    if mine is None or other is None:
        return ""
    significance = facts.gate.get("significance") or {}
    explicit = facts.gate.get("mode") or find_value(facts.gate, "settings", "mode")
    mode = infer_mode(str(metric), explicit=explicit, recorded=facts.summary.get("modes"))
    if significance.get("test") and not significance.get("counts"):
        found = "no different beyond noise from"
    elif mine == other or not (math.isfinite(mine) or math.isfinite(other)):
        found = "equal to"
    elif mode is None:  # nothing says which value is good
        found = "not equal to"
    else:
        found = "better than" if is_better(mine, other, mode) else "worse than"
    return f"; by {metric} ({mine:.4g}) it is {found} {facts.gate.get('baseline')} ({other:.4g})"


def _read_score(scores: Any, metric: Any) -> float | None:
    """Return a score of gate.json: NaN where it is not finite, which JSON writes as null.

    None where there is none.
    """
    if not isinstance(scores, Mapping) or metric not in scores:
        return None
    value = scores[metric]
    return float(value) if isinstance(value, (int, float)) else math.nan

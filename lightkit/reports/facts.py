"""All that a report shows of a run, read from its folder: of finished, running, failed and killed runs. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import yaml

from lightkit.config.secrets import HIDDEN, is_secret_value, mask_credentials
from lightkit.config.yaml_reader import YamlLoader
from lightkit.errors import LightkitError
from lightkit.reports.predictions import Predictions, Split, predictions_path, read_predictions
from lightkit.reports.statistics import bootstrap_interval, wilson_interval
from lightkit.runs.bad_images import BadImage, read_bad_images
from lightkit.runs.events import read_events
from lightkit.runs.files import read_json
from lightkit.runs.folder import Run
from lightkit.runs.index import flatten, index_run, infer_mode
from lightkit.runs.metrics import MetricsTable
from lightkit.task import CLASSIFICATION, REGRESSION

SPLITS: Mapping[Split, str] = {"test": "test", "validation": "val"}
"""Splits with predictions, in the order of preference, each with the prefix of its metrics."""
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
    """What the folder of a run holds, without secrets. A file that is missing or cannot be read gives an empty value.

    Args:
        run: The run.
        status: As in summary.json, or ``killed``.
        manifest: As in manifest.json.
        summary: As in summary.json.
        rows: Those of metrics.csv, one an epoch.
        events: Those of events.jsonl, in order.
        settings: Values of the config: those of the user's files, variables and flags, of packaged configs, defaults.
        predictions: By their split.
        bad_images: Rows of bad_images.csv.
        gate: As in gate.json.
        exports: Entries of export.json.
        problems: Files that could not be read, each with the reason.
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

    @property
    def name(self) -> str:
        """``NAME/ID``."""
        return f"{self.run.name}/{self.run.id}"

    @property
    def data(self) -> Mapping[str, Any]:
        """What the data module says of itself."""
        return self.manifest.get("data") or {}


def read_facts(run: Run) -> RunFacts:
    """Read a run's folder."""
    problems: list[str] = []

    def attempt(name: str, read: Callable[[], _T], default: _T) -> _T:
        try:
            return read()
        except (OSError, ValueError, KeyError, TypeError, LightkitError, yaml.YAMLError) as error:
            problems.append(f"{name} cannot be read: {' '.join(str(error).split())[:200]}")
            return default

    def read_object(name: str) -> Mapping[str, Any]:
        path = run.folder / name
        value = read_json(path)
        if value is None and path.exists():
            problems.append(f"{name} cannot be read: it holds no JSON object")
        masked: Mapping[str, Any] = mask_secrets(value or {})
        return masked

    def read_config() -> Any:
        config = yaml.load(run.config_path.read_text(encoding="utf-8"), Loader=YamlLoader)  # noqa: S506 - a safe loader
        return mask_secrets(config) if isinstance(config, dict) else {}

    config: dict[str, Any] = attempt("config.yaml", read_config, {}) if run.config_path.exists() else {}
    manifest = read_object("manifest.json")
    origins = manifest.get("origins") or {}
    values = {setting_key(path): value for path, value in flatten(config)}
    settings = [Setting(key, value, origins.get(key)) for key, value in values.items()]
    artefacts = read_object("export/export.json").get("artefacts") or {}
    predictions = {}
    for split in SPLITS:
        path = predictions_path(run.folder, split)
        if path.exists() and (found := attempt(path.name, partial(read_predictions, path), None)) is not None:
            predictions[split] = found
    return RunFacts(
        run=run,
        status=index_run(run).status,
        manifest=manifest,
        summary=read_object("summary.json"),
        rows=attempt("metrics.csv", lambda: MetricsTable(run.metrics_path).rows, []),
        events=attempt("events.jsonl", lambda: mask_secrets(list(read_events(run.events_path))), []),
        settings=sorted(settings, key=lambda each: (each.place is None, str(each.place).startswith("lightkit:"))),
        predictions=predictions,
        bad_images=attempt("bad_images.csv", lambda: read_bad_images(run.folder / "bad_images.csv"), []),
        gate=read_object("gate.json"),
        exports=[each for each in artefacts.values() if isinstance(each, dict)],
        problems=problems,
    )


def mask_secrets(value: Any, key: object = "") -> Any:
    """Replace secrets by ``***``: values under the key of a secret, and passwords and tokens in addresses."""
    if isinstance(value, Mapping):
        return {name: mask_secrets(child, name) for name, child in value.items()}
    if isinstance(value, list):
        return [mask_secrets(child, key) for child in value]
    if is_secret_value(key, value):
        return HIDDEN
    return mask_credentials(value) if isinstance(value, str) else value


def setting_key(path: tuple[Any, ...]) -> str:
    """Write the path of a value as `Setting` has it: ``model.backbone`` for ``model.init_args.backbone``."""
    return ".".join(str(part) for part in path if part not in ("init_args", "class_path"))


class Score(NamedTuple):
    """A metric of the best checkpoint.

    Args:
        metric: Its name, such as ``test/accuracy``.
        value: Its value.
        interval: Bounds of its 95 % interval; None where the samples do not give one.
        num_samples: Samples that it is computed on; None where unknown.
        chance: Value of a model that does not look at its input; None where unknown.
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

    It is the accuracy or the mean absolute error, on the test split if it was tested, else on the validation split; of
    other models the metric that chose the best checkpoint. None if there is no metric.
    """
    scores = list_scores(facts)
    for prefix in SPLITS.values():
        for name in (CLASSIFICATION.gate_metric, REGRESSION.gate_metric):
            if (score := scores.get(f"{prefix}/{name}")) is not None:
                return score
    best = facts.summary.get("best") or {}
    if isinstance(best.get("value"), (int, float)):
        return Score(str(best.get("monitor")), float(best["value"]), is_loss=best.get("mode") == "min")
    return None


def list_scores(facts: RunFacts) -> dict[str, Score]:
    """List the metrics of the best epoch and of the test by name, with intervals where samples give one."""
    scores = {}
    for split, prefix in SPLITS.items():
        if (found := facts.predictions.get(split)) is not None and len(found):
            score = score_predictions(prefix, found)
            scores[score.metric] = score
    logged = (facts.summary.get("metrics") or {}).get("best") or {}
    for key, value in {**logged, **((facts.summary.get("stages") or {}).get("test") or {})}.items():
        if is_metric(key) and isinstance(value, (int, float)):
            scores.setdefault(key, _score_logged(facts, key, float(value)))
    return {key: scores[key] for key in sorted(scores, key=split_order)}


def score_predictions(prefix: str, found: Predictions) -> Score:
    """Compute the accuracy of a classifier, or the mean absolute error of a regressor, against chance.

    Chance is the accuracy or error of the best constant prediction: of the most frequent class, the "no information
    rate" of R's caret, or of the median.

    Args:
        prefix: Of the metric's name: ``test`` or ``val``.
        found: At least one prediction.
    """
    num = len(found)
    if found.is_classifier:
        right, chance = int(found.is_correct.sum()), float(np.bincount(found.target).max() / num)
        return Score(f"{prefix}/{found.task.gate_metric}", right / num, wilson_interval(right, num), num, chance)
    errors = np.abs(found.prediction - found.target)
    chance = float(np.abs(found.target - np.median(found.target)).mean())
    interval = bootstrap_interval(errors, confidence=0.95)
    return Score(f"{prefix}/{found.task.gate_metric}", float(errors.mean()), interval, num, chance, is_loss=True)


def _score_logged(facts: RunFacts, metric: str, value: float) -> Score:
    """Give a logged metric; an accuracy has an interval if the size of its split is known."""
    prefix, _, name = metric.partition("/")
    if name != "accuracy" or prefix not in SPLITS.values() or not 0 <= value <= 1:
        return Score(metric, value, is_loss=infer_mode(metric) == "min")
    total = (facts.data.get("counts") or {}).get(prefix)
    num_classes = len(facts.data.get("class_names") or ())
    interval = wilson_interval(round(value * total), total) if total else None
    return Score(metric, value, interval, total, 1 / num_classes if num_classes else None)


def is_metric(name: str) -> bool:
    """Return whether a column of `metrics.csv` is a metric, and no count, time or learning rate."""
    return name not in ("epoch", "step", "epoch_seconds", "samples_per_s", "lr") and not name.startswith("lr/")


def split_order(metric: str) -> int:
    """Order metrics by their split: test, validation, unknown, training."""
    prefixes, prefix = (*SPLITS.values(), "", "train"), metric.partition("/")[0]
    return prefixes.index(prefix if prefix in prefixes else "")


def describe_verdict(facts: RunFacts) -> str:
    """Write in one sentence how good the model is, against chance and the champion, or why that is unknown."""
    score = find_score(facts)
    state = {
        "running": "The run is still training",
        "failed": "The run failed",
        "killed": "The run's process was killed",
        "interrupted": "The run was interrupted and left nothing to resume from",
        "preempted": "The run was interrupted and resumes where it stopped",
    }.get(facts.status)
    if score is None:
        return f"{state or 'The run is done'}; it has logged no metric to judge it by."
    text = f"{score.metric} is {score.value:.4g}"
    if score.interval is not None:
        low, high = score.interval
        text += f" (95 % interval {low:.3g} to {high:.3g}, {score.num_samples} samples)"
        if score.chance is not None:
            is_better = high < score.chance if score.is_loss else low > score.chance
            text += f", {'better' if is_better else 'not better'} than chance ({score.chance:.3g})"
    metric, scores = facts.gate.get("metric"), facts.gate.get("scores") or {}
    mine, other = ((scores.get(which) or {}).get(metric) for which in ("challenger", "baseline"))
    if isinstance(mine, (int, float)) and isinstance(other, (int, float)):
        significance = facts.gate.get("significance") or {}
        gain = other - mine if infer_mode(str(metric)) == "min" else mine - other
        found = "better than" if gain > 0 else "worse than" if gain < 0 else "equal to"
        if significance.get("test") and not significance.get("counts"):
            found = "no different beyond noise from"
        text += f"; by {metric} ({mine:.4g}) it is {found} {facts.gate.get('baseline')} ({other:.4g})"
    return f"{state}: so far {text}." if state else f"{text}."

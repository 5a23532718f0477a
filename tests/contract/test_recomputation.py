"""Every number that a run shows is computed once more.

With numpy, SciPy and scikit-learn, from weights and samples.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
import math
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from PIL import Image
from scipy import optimize, stats
from sklearn import metrics as sk  # type: ignore[import-untyped]
from torch.nn import functional

from lightkit.data import Temperatures
from tests.contract.conftest import Once
from tests.contract.recomputed import (
    AGAINST_EARLIER,
    CLASSES,
    COUNTS,
    JOBS,
    NUM_ROWS,
    make_jobs,
    read_table,
)
from tests.contract.workspace import load_checkpoint, read_json

pytestmark = pytest.mark.timeout(900)  # on a busy machine

Array = np.ndarray[Any, Any]
_REL = 2e-5
"""Tolerance of a number: weights, outputs and sums of a run are float32, and here float64."""
_OF_DRAWS = 0.12
"""Tolerance of an end of a bootstrap interval of 1,000 draws, as part of the width of one of
20,000."""
_NUM_DRAWS = 20_000
_CLOCK = ("epoch_seconds", "samples_per_s")
_LR, _SMOOTHING = 0.01, 0.1
_CLASSIFIERS = ("label", "ranks", "own")
_SIZES = {
    **{job: {split: sum(counts) for split, counts in COUNTS.items()} for job in ("label", "ranks")},
    "table": NUM_ROWS,
    "regression": {"train": 100, "val": 25, "test": 25},
    "own": {"train": 50, "val": 19, "test": 23},
}
_STEPS = {"label": 7, "regression": 7, "table": 7, "ranks": 4, "own": 4}
"""Optimizer steps of an epoch: of batches of 8, 16, 6, 2 x 8, and of two batches of 8."""


# -- what is stored, and what the weights make of it
# -------------------------------------------------------------------


@dataclass(frozen=True)
class Samples:
    """Samples of a split, in stored order.

    Args:
        inputs: float64, ``(samples, ...)``.
        targets: Labels, or float64 ``(samples,)``.
        weights: float64 ``(samples,)``.
    """

    inputs: Array
    targets: Array
    weights: Array


def read_pictures(folder: Path, split: str) -> Samples:
    """Read the pictures of a split as the network gets them."""
    paths = [
        path
        for name in CLASSES
        for path in sorted((folder / "pictures" / split / name).glob("*.png"))
    ]
    pixels = np.stack(
        [np.asarray(Image.open(path), dtype=float)[3:45, 3:45] / 255 for path in paths]
    )
    # ImageNet's mean and standard deviation
    inputs = (pixels - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    labels = np.array([CLASSES.index(path.parent.name) for path in paths])
    return Samples(np.moveaxis(inputs, -1, 1), labels, np.ones(len(paths)))


def read_samples(folder: Path, job: str, split: str) -> Samples:
    """Read the samples of a split."""
    if job in ("label", "ranks"):
        return read_pictures(folder, split)
    if job == "table":
        table = read_table()
        rows = [at for at, each in enumerate(table["split"]) if each == split]
        inputs = np.stack([table["height"], table["width"]], axis=1)[rows]
        return Samples(inputs, table["price"][rows], table["weight"][rows])
    if job == "own":
        x, sides = load_own(folder).points(split)
        return Samples(x.double().numpy(), sides.numpy(), np.ones(len(x)))
    data = Temperatures(num_samples=100, noise=15.0, seed=7)
    data.setup()
    found = data.datasets[split]  # type: ignore[index]
    celsius = found.celsius.double().numpy()[:, 0]
    return Samples(found.fahrenheit.double().numpy(), celsius, np.ones(len(celsius)))


def load_own(folder: Path) -> Any:
    """Import the user's module."""
    spec = importlib.util.spec_from_file_location("recomputed_sides", folder / "sides.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compute_outputs(
    job: str, weights: Mapping[str, Any], inputs: Array, *, trains: bool = False
) -> Array:
    """Compute a network in float64: logits ``(samples, classes)``, or numbers ``(samples,)``.

    Args:
        job: Its job.
        weights: Its state dict.
        inputs: ``(samples, ...)``; in training all of a batch.
        trains: Whether batch norms take the statistics of the batch.
    """
    w = {name: value.double() for name, value in weights.items()}
    x = torch.from_numpy(np.asarray(inputs, dtype=float))
    if job in ("label", "ranks"):
        for block, (stride, padding) in enumerate(((4, 2), (2, 1), (2, 1), (2, 1))):
            name = f"network.{block}"
            x = functional.conv2d(x, w[f"{name}.0.weight"], stride=stride, padding=padding)
            mean, var = w[f"{name}.1.running_mean"], w[f"{name}.1.running_var"]
            if trains:
                mean, var = x.mean(dim=(0, 2, 3)), x.var(dim=(0, 2, 3), correction=0)
            scale = w[f"{name}.1.weight"] / (var + 1e-5).sqrt()
            x = (
                (x - mean[:, None, None]) * scale[:, None, None]
                + w[f"{name}.1.bias"][:, None, None]
            ).relu()
        return np.asarray(x.mean(dim=(2, 3)) @ w["network.6.weight"].T + w["network.6.bias"])
    if job == "own":
        hidden = (x @ w["hidden.weight"].T + w["hidden.bias"]).tanh()
        return np.asarray(hidden @ w["head.weight"].T + w["head.bias"])
    x = (x - w["input_mean"]) / w["input_std"]
    x = (x @ w["network.0.weight"].T + w["network.0.bias"]).relu() @ w["network.2.weight"].T + w[
        "network.2.bias"
    ]
    return np.asarray(x * w["output_std"] + w["output_mean"])[:, 0]


def compute_probabilities(logits: Array) -> Array:
    """Compute the softmax."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def score(
    job: str,
    split: str,
    outputs: Array,
    samples: Samples,
    *,
    output_std: float = 1.0,
    smoothing: float = 0.0,
) -> dict[str, float]:
    """Compute the metrics of outputs for samples, by their logged names."""
    targets, weights = samples.targets, samples.weights
    found: dict[str, float] = {}
    if job in _CLASSIFIERS:
        logs, predicted = np.log(compute_probabilities(outputs)), outputs.argmax(axis=1)
        losses = (
            -logs[np.arange(len(targets)), targets] * (1 - smoothing)
            - logs.mean(axis=1) * smoothing
        )
        found["loss"] = float(losses.mean())
        found["accuracy"] = float(sk.accuracy_score(targets, predicted))
        if job != "own":
            options: dict[str, Any] = {"average": "macro", "zero_division": 0}
            found["f1"] = float(sk.f1_score(targets, predicted, **options))
            found["precision"] = float(sk.precision_score(targets, predicted, **options))
            found["recall"] = float(sk.recall_score(targets, predicted, **options))
    else:
        found["loss"] = float(np.average(((outputs - targets) / output_std) ** 2, weights=weights))
        counts = weights > 0
        found["mae"] = float(sk.mean_absolute_error(targets[counts], outputs[counts]))
        found["mse"] = float(sk.mean_squared_error(targets[counts], outputs[counts]))
    return {f"{split}/{name}": value for name, value in found.items()}


@dataclass
class Trained:
    """A finished run, and what is computed of it.

    Args:
        folder: The working directory.
        job: Its name.
    """

    folder: Path
    job: str
    _samples: dict[str, Samples] = field(default_factory=dict)

    @property
    def runs(self) -> list[Path]:
        """Run folders of the job, oldest first."""
        return sorted(path for path in self.folder.glob(f"runs/{self.job}/2*") if path.is_dir())

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.runs[-1]

    @cached_property
    def trace(self) -> list[dict[str, Any]]:
        """What the ranks have written of their steps."""
        num_ranks = 2 if self.job == "ranks" else 1
        return [
            torch.load(self.folder / f"{self.job}-{rank}.pt", weights_only=True)
            for rank in range(num_ranks)
        ]

    @cached_property
    def summary(self) -> dict[str, Any]:
        """summary.json."""
        found: dict[str, Any] = read_json(self.run / "summary.json")
        return found

    @cached_property
    def weights(self) -> dict[str, Any]:
        """Weights of best.ckpt."""
        found: dict[str, Any] = load_checkpoint(self.run / "checkpoints" / "best.ckpt")[
            "state_dict"
        ]
        return found

    def samples(self, split: str) -> Samples:
        """Samples of a split."""
        if split not in self._samples:
            self._samples[split] = read_samples(self.folder, self.job, split)
        return self._samples[split]

    def outputs(self, split: str, weights: Mapping[str, Any] | None = None) -> Array:
        """Outputs for a split, by the best weights."""
        return compute_outputs(
            self.job, self.weights if weights is None else weights, self.samples(split).inputs
        )

    def score(self, split: str, weights: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Metrics of a split, by the best weights."""
        weights = self.weights if weights is None else weights
        std = float(weights["output_std"]) if "output_std" in weights else 1.0
        return score(
            self.job, split, self.outputs(split, weights), self.samples(split), output_std=std
        )

    def rates(self, step: int) -> list[float]:
        """Learning rates of a step, counted from 0, by parameter group where they differ."""
        epoch, total = step // _STEPS[self.job], 2 * _STEPS[self.job]
        if self.job == "own":
            return [0.2 * 0.5**epoch, 0.05 * 0.5**epoch]
        if self.job == "table":
            return [0.05 * 0.3**epoch]
        return [_LR * (1 + math.cos(math.pi * step / total)) / 2]

    def train_scores(self, epoch: int) -> dict[str, float]:
        """Metrics of the training steps of an epoch, each of the weights before it."""
        outputs, parts, std = [], [], 1.0
        for each in (
            step for rank in self.trace for step in rank["steps"] if step["epoch"] == epoch
        ):
            weights, batch = each["weights"], [tensor.double().numpy() for tensor in each["batch"]]
            outputs.append(compute_outputs(self.job, weights, batch[0], trains=True))
            targets = batch[1].astype(int) if self.job in _CLASSIFIERS else batch[1][:, 0]
            parts.append((targets, batch[2] if len(batch) > 2 else np.ones(len(targets))))
            std = float(weights.get("output_std", std))
        targets, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
        smoothing = _SMOOTHING if self.job in ("label", "ranks") else 0.0
        samples = Samples(np.empty(0), targets, weights)
        return score(
            self.job, "train", np.concatenate(outputs), samples, output_std=std, smoothing=smoothing
        )

    @cached_property
    def epochs(self) -> list[dict[str, float]]:
        """The metrics of each epoch, by name."""
        found = []
        for epoch in range(2):
            weights = self.trace[0]["validations"][epoch]["weights"]
            found.append({**self.train_scores(epoch), **self.score("val", weights)})
        return found

    @property
    def best_epoch(self) -> int:
        """The epoch of least validation loss."""
        return int(np.argmin([each["val/loss"] for each in self.epochs]))

    def row(self, epoch: int) -> dict[str, float]:
        """The row of an epoch in metrics.csv, but for what the clock says."""
        steps = _STEPS[self.job]
        rates = self.rates(epoch * steps)
        named = (
            {"lr": rates[0]}
            if len(rates) == 1
            else {f"lr/{at}": rate for at, rate in enumerate(rates)}
        )
        return {"epoch": epoch, "step": (epoch + 1) * steps, **named, **self.epochs[epoch]}

    @cached_property
    def gate(self) -> dict[str, Any]:
        """gate.json."""
        found: dict[str, Any] = read_json(self.run / "gate.json")
        return found

    @cached_property
    def earlier_weights(self) -> dict[str, Any]:
        """Weights of best.ckpt of the earlier run."""
        found: dict[str, Any] = load_checkpoint(self.runs[0] / "checkpoints" / "best.ckpt")[
            "state_dict"
        ]
        return found


@pytest.fixture(scope="session")
def recomputed(made_once: Once) -> Path:
    """The working directory of all jobs, which no test changes."""
    return made_once("recomputed", make_jobs)


_known: dict[tuple[Path, str], Trained] = {}


@pytest.fixture(params=[*JOBS])
def trained(request: pytest.FixtureRequest, recomputed: Path) -> Trained:
    """Each of the five runs."""
    return _known.setdefault((recomputed, request.param), Trained(recomputed, request.param))


def close(value: Any, *, rel: float = _REL) -> Any:
    """Return what equals a number or numbers within the tolerance."""
    return pytest.approx(value, rel=rel, abs=1e-6)


def numbers_of(value: Any, at: str = "") -> dict[str, float]:
    """Return the numbers in nested lists and mappings by their place."""
    if isinstance(value, bool) or value is None:
        return {}
    if isinstance(value, (int, float)):
        return {at: value}
    items: Any = (
        value.items()
        if isinstance(value, Mapping)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return {
        name: number
        for key, child in items
        for name, number in numbers_of(child, f"{at}.{key}").items()
    }


def read_rows(path: Path) -> list[dict[str, float]]:
    """Read a CSV file of numbers; empty cells are left out."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            {name: float(cell) for name, cell in row.items() if cell}
            for row in csv.DictReader(file)
        ]


# -- predictions and epochs ------------------------------------------------------------------------


def test_the_predictions_of_a_run_are_those_of_its_best_weights_for_the_stored_samples(
    trained: Trained,
) -> None:
    for split, file in (("val", "validation"), ("test", "test")):
        table = pq.read_table(trained.run / f"{file}_predictions.parquet")
        samples, outputs = trained.samples(split), trained.outputs(split)
        counts = np.flatnonzero(samples.weights > 0)
        targets, outputs = samples.targets[counts], outputs[counts]
        assert table["index"].to_pylist() == counts.tolist()
        if trained.job in _CLASSIFIERS:
            names = ("below", "above") if trained.job == "own" else CLASSES
            probabilities = compute_probabilities(outputs)
            assert table["label"].to_pylist() == [names[each] for each in targets]
            assert table["predicted"].to_pylist() == [
                names[each] for each in outputs.argmax(axis=1)
            ]
            assert table["probability"].to_pylist() == close(probabilities.max(axis=1).tolist())
            of_label = probabilities[np.arange(len(targets)), targets]
            assert table["label_probability"].to_pylist() == close(of_label.tolist())
            for at, name in enumerate(names):
                assert table[f"probability_{name}"].to_pylist() == close(
                    probabilities[:, at].tolist()
                )
        else:
            assert table["target"].to_pylist() == close(targets.tolist())
            assert table["prediction"].to_pylist() == close(outputs.tolist())


def test_the_metrics_of_each_epoch_are_those_of_its_weights(trained: Trained) -> None:
    rows = read_rows(trained.run / "metrics.csv")
    assert [row["epoch"] for row in rows] == [0, 1]
    for epoch, row in enumerate(rows):
        seconds, speed = (row.pop(name) for name in _CLOCK)
        assert row == close(trained.row(epoch))
        # which is of the training without validation
        assert seconds * speed >= 0.98 * _SIZES[trained.job]["train"]


def test_the_learning_rate_of_each_step_is_that_of_its_schedule(trained: Trained) -> None:
    size = 2 if trained.job == "own" else 1
    for rank in trained.trace:
        for epoch in range(2):
            steps = [each for each in rank["steps"] if each["epoch"] == epoch]
            for number, each in enumerate(steps):
                expected = trained.rates(epoch * _STEPS[trained.job] + number // size)
                assert sorted(set(each["rates"])) == close(sorted(expected))


def test_the_best_checkpoint_holds_the_weights_of_the_least_validation_loss(
    trained: Trained,
) -> None:
    kept = trained.trace[0]["validations"][trained.best_epoch]["weights"]
    assert kept.keys() == trained.weights.keys()
    for name, weight in kept.items():
        assert torch.equal(trained.weights[name], weight), name


def test_a_step_on_weighted_rows_is_that_of_gradient_descent_on_their_weighted_loss(
    recomputed: Path,
) -> None:
    trained = Trained(recomputed, "table")
    (rank,) = trained.trace
    steps = rank["steps"]
    rows = trained.samples("train")
    counted = rows.inputs[rows.weights > 0], rows.targets[rows.weights > 0]
    last = load_checkpoint(trained.run / "checkpoints" / "last.ckpt")["state_dict"]
    names = ("input_mean", "input_std", "output_mean", "output_std")
    scales = [counted[0].mean(0), counted[0].std(0), counted[1].mean(0), counted[1].std(0)]
    for name, expected in zip(names, scales, strict=True):
        assert trained.weights[name].tolist() == close(np.atleast_1d(expected).tolist())
    for number, (one, after) in enumerate(zip(steps, [*steps[1:], None], strict=True)):
        floats = {
            name: value.double()
            for name, value in one["weights"].items()
            if value.is_floating_point()
        }
        weights = {
            name: value.requires_grad_(name.startswith("network")) for name, value in floats.items()
        }
        inputs, targets, of_rows = (each.double() for each in one["batch"])
        x = (inputs - weights["input_mean"]) / weights["input_std"]
        x = (x @ weights["network.0.weight"].T + weights["network.0.bias"]).relu()
        x = x @ weights["network.2.weight"].T + weights["network.2.bias"]
        wanted = (targets - weights["output_mean"]) / weights["output_std"]
        loss = (of_rows[:, None] * (x - wanted) ** 2).mean() / rows.weights.mean()
        loss.backward()
        reached = last if after is None else after["weights"]
        for name, value in weights.items():
            if value.grad is not None:
                stepped = value.detach() - trained.rates(number)[0] * value.grad
                torch.testing.assert_close(reached[name].double(), stepped, rtol=1e-4, atol=1e-6)


# -- summary.json and the loggers ------------------------------------------------------------------


def test_every_number_of_a_summary_is_that_of_weights_samples_and_files(trained: Trained) -> None:
    summary, best, steps = trained.summary, trained.best_epoch, _STEPS[trained.job]
    rows = read_rows(trained.run / "metrics.csv")
    clock = [{name: row[name] for name in _CLOCK} for row in rows]
    counts = {split: int((trained.samples(split).weights > 0).sum()) for split in ("val", "test")}
    score_of_test = {"metrics": trained.score("test"), "epoch": best, "num_samples": counts["test"]}
    expected = {
        "schema": 1,
        "exit_code": 0,
        "epochs": 2,
        "steps": 2 * steps,
        "metrics": {
            "best": {**trained.row(best), **clock[best]},
            "last": {**trained.row(1), **clock[1]},
        },
        "best": {
            "value": trained.epochs[best]["val/loss"],
            "epoch": best,
            "step": (best + 1) * steps,
        },
        "stages": {"test": trained.score("test")},
        "scores": [score_of_test],
        "samples": {"val": counts["val"]},
    }
    measured = {name: summary.pop(name) for name in ("durations", "phases", "throughput")}
    assert numbers_of(summary) == close(numbers_of(expected))
    checkpoint = (trained.run / "checkpoints" / "best.ckpt").read_bytes()
    assert summary["scores"][0]["sha256"] == hashlib.sha256(checkpoint).hexdigest()
    assert summary["best"]["monitor"] == "val/loss"

    # what the clock says agrees with itself
    durations, phases = measured["durations"], measured["phases"]
    assert 0 < durations["fit"] <= durations["total"]
    assert durations["test"] > 0
    assert sum(phases.values()) <= durations["total"] + 0.1
    seconds = [_SIZES[trained.job]["train"] / row["samples_per_s"] for row in rows]
    speed = 2 * _SIZES[trained.job]["train"] / sum(seconds)
    assert measured["throughput"]["samples_per_s"] == pytest.approx(speed, rel=1e-3)


def test_a_manifest_says_how_many_samples_each_split_has(trained: Trained) -> None:
    data = read_json(trained.run / "manifest.json").get("data")
    if trained.job != "own":  # whose data does not describe itself
        assert data["counts"] == _SIZES[trained.job]


def test_tensorboard_csv_and_mlflow_have_the_same_numbers_of_each_epoch_and_of_the_test(
    trained: Trained,
) -> None:
    steps = _STEPS[trained.job]
    of_fit = {
        name: [((epoch + 1) * steps - 1, row[name]) for epoch, row in enumerate(trained.epochs)]
        for name in trained.epochs[0]
    }
    of_test = trained.score("test")
    epochs = [((epoch + 1) * steps - 1, epoch) for epoch in range(2)]

    # TensorBoard
    assert read_scalars(trained.run / "tensorboard") == close_points(
        {**of_fit, "epoch": epochs, "hp_metric": [(0, -1)]}
    )
    tested = {name: [(0, value)] for name, value in of_test.items()}
    found = read_scalars(trained.run / "tensorboard" / "test")
    assert {name: points for name, points in found.items() if name in tested} == close_points(
        tested
    )
    assert found.keys() - tested.keys() <= {"epoch", "hp_metric"}

    # CSV
    cells: dict[str, list[tuple[int, float]]] = {}
    for row in read_rows(trained.run / "csv" / "metrics.csv"):
        assert row["epoch"] == row["step"] // steps
        for name in row.keys() - {"epoch", "step"}:
            cells.setdefault(name, []).append((int(row["step"]), row[name]))
    assert cells == close_points(of_fit)
    (row,) = read_rows(trained.run / "csv" / "test" / "metrics.csv")
    assert row == close({"epoch": 0, "step": 0, **of_test})

    # MLflow, with rates and speed
    rows = read_rows(trained.run / "metrics.csv")
    speed = {
        name: [(int(row["step"]), row[name]) for row in rows]
        for name in rows[0]
        if name in _CLOCK or name.startswith("lr")
    }
    tested = {name: [(2 * steps, value)] for name, value in of_test.items()}
    assert read_mlflow(trained) == close_points({**of_fit, **speed, **tested, "epoch": epochs})


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read the scalars of a folder of event files, without those of folders below it."""
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    events = EventAccumulator(str(folder)).Reload()
    return {
        name: sorted({(each.step, each.value) for each in events.Scalars(name)})
        for name in events.Tags()["scalars"]
    }


def read_mlflow(trained: Trained) -> dict[str, list[tuple[int, float]]]:
    """Read the points of a run from MLflow's database; MLflow's client takes 2 s to import."""
    run_id = read_json(trained.run / "mlflow.json")["run_id"]
    with closing(sqlite3.connect(trained.folder / "runs" / "mlflow.db")) as connection:
        query = (
            "SELECT key, step, value FROM metrics WHERE run_uuid = ? AND"
            " is_nan = 0 ORDER BY step, timestamp"
        )
        rows = connection.execute(query, (run_id,)).fetchall()
        newest = connection.execute(
            "SELECT key, step, value FROM latest_metrics WHERE run_uuid = ?", (run_id,)
        )
        latest = {key: (step, value) for key, step, value in newest}
    points: dict[str, list[tuple[int, float]]] = {}
    for key, step, value in rows:
        if (step, value) not in points.setdefault(key, []):
            points[key].append((step, value))
    assert latest == {key: found[-1] for key, found in points.items()}
    return points


def close_points(points: Mapping[str, Sequence[tuple[int, float]]]) -> dict[str, Any]:
    """Return what equals points of a curve: equal steps, values within the tolerance."""
    return {name: [(step, close(value)) for step, value in found] for name, found in points.items()}


# -- intervals and tests, by SciPy -----------------------------------------------------------------


def wilson(num_right: int, num: int, confidence: float = 0.95) -> list[float]:
    """Compute Wilson's interval of a share."""
    found = stats.binomtest(num_right, num).proportion_ci(confidence, method="wilson")
    return [float(found.low), float(found.high)]


def bootstrap(
    values: Array, statistic: Callable[[Array], float], confidence: float
) -> tuple[list[float], Array]:
    """Compute the percentile interval of a statistic of rows that are drawn anew, and its draws."""
    random = np.random.default_rng(99)
    rows = random.integers(
        len(values), size=(_NUM_DRAWS // (10 if values.ndim > 1 else 1), len(values))
    )
    draws = np.array([statistic(values[each]) for each in rows])
    tail = 100 * (1 - confidence) / 2
    return [float(each) for each in np.percentile(draws, [tail, 100 - tail])], draws


def close_interval(interval: Sequence[float]) -> Any:
    """Return what equals an interval within the noise of its draws."""
    return pytest.approx(list(interval), abs=_OF_DRAWS * (interval[1] - interval[0]))


def tango(only_mine: int, only_theirs: int, num: int, confidence: float) -> float:
    """Compute the lower end of Tango's interval, one-sided.

    The nuisance parameter is found by maximising.

    It is the least difference that a score test does not reject.
    """

    def statistic(difference: float) -> float:
        def unlikely(theirs: float) -> float:
            rest = 1 - 2 * theirs - difference
            parts = (
                (only_mine, theirs + difference),
                (only_theirs, theirs),
                (num - only_mine - only_theirs, rest),
            )
            return -sum(count * math.log(max(part, 1e-300)) for count, part in parts if count)

        least, most = max(0.0, -difference), (1 - difference) / 2
        found = optimize.minimize_scalar(
            unlikely, bounds=(least, most), method="bounded", options={"xatol": 1e-12}
        )
        variance = 2 * found.x + difference - difference**2
        return float((only_mine - only_theirs - num * difference) / math.sqrt(num * variance))

    z = float(stats.norm.ppf(confidence))
    estimate = (only_mine - only_theirs) / num
    return float(optimize.brentq(lambda each: statistic(each) - z, -1 + 1e-9, estimate))


def macro_f1(pairs: Array) -> float:
    """Compute the mean of F1 over the classes that occur in pairs of label and prediction."""
    return float(sk.f1_score(pairs[:, 0], pairs[:, 1], average="macro", zero_division=0))


def find_interval(
    metric: str, pairs: tuple[Array, Array], confidence: float = 0.95
) -> tuple[list[float], Any] | tuple[None, None]:
    """Compute the interval of a metric of targets and predictions, and what equals it.

    None where it has none.
    """
    targets, predicted = pairs
    name = metric.rpartition("/")[2]
    if name == "accuracy":
        interval = wilson(int((targets == predicted).sum()), len(targets), confidence)
        return interval, close(interval)
    if name == "f1":
        interval, _ = bootstrap(np.stack([targets, predicted], axis=1), macro_f1, confidence)
    elif name == "mae":
        interval, _ = bootstrap(
            np.abs(targets - predicted), lambda each: float(each.mean()), confidence
        )
    else:
        return None, None
    return interval, close_interval(interval)


def list_pairs(
    trained: Trained, split: str, weights: Mapping[str, Any] | None = None
) -> tuple[Array, Array]:
    """Return targets and predictions of the samples of a split that count."""
    samples, outputs = trained.samples(split), trained.outputs(split, weights)
    counts = samples.weights > 0
    predicted = outputs.argmax(axis=1) if trained.job in _CLASSIFIERS else outputs
    return samples.targets[counts], predicted[counts]


# -- report.html and card.md -----------------------------------------------------------------------


def read_page(page: str) -> tuple[dict[str, str], dict[str, list[list[str]]], str]:
    """Return the pairs and tables of a page, and all its text; tables by their caption."""

    def text_of(html: str) -> str:
        return " ".join(unescape(re.sub("<[^>]*>", " ", html)).split())

    facts = {
        text_of(name): text_of(text)
        for name, text in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page)
    }
    tables = {}
    for caption, body in re.findall(
        r"<caption>(.*?)</caption>.*?<tbody>(.*?)</tbody>", page, re.DOTALL
    ):
        rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
        tables[text_of(caption)] = [
            [text_of(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
            for row in rows
        ]
    return facts, tables, text_of(page)


def read_markdown_table(card: str, head: str) -> list[list[str]]:
    """Return the rows of a table of a model card."""
    _, _, rest = card.partition(f"| {head} |\n")
    lines = rest.split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def assert_shown(text: str, value: float, *, digits: str = ".4g") -> None:
    """Assert that a text is a number with so many digits, within one of the last."""
    shown = float(text.replace("\u202f", ""))
    step = (
        10.0 ** (math.floor(math.log10(abs(value) or 1)) - 3)
        if digits == ".4g"
        else 10.0 ** -int(digits[1])
    )
    assert shown == pytest.approx(value, abs=0.51 * step + _REL * abs(value)), (text, value)


def assert_interval_shown(text: str, expected: Sequence[float] | None, *, is_drawn: bool) -> None:
    """Assert that a text is an interval with three digits; one of draws within their noise."""
    assert bool(text) == (expected is not None)
    if expected is not None:
        noise = _OF_DRAWS * (expected[1] - expected[0]) if is_drawn else 0.0
        for shown, end in zip(text.split(" to "), expected, strict=True):
            step = 10.0 ** (math.floor(math.log10(abs(end) or 1)) - 2)
            assert float(shown) == pytest.approx(end, abs=0.51 * step + noise)


def check_scores(trained: Trained, rows: list[list[str]], *, splits: Sequence[str]) -> None:
    """Assert that rows of metric, value, interval and samples are those of the best checkpoint."""
    best = trained.epochs[trained.best_epoch]
    expected = {**trained.score("test"), **best}
    assert {row[0] for row in rows} == {name for name in expected if name.split("/")[0] in splits}
    for metric, value, interval, num_samples in rows:
        assert_shown(value, expected[metric])
        split, name = metric.split("/")
        if split == "train":
            assert (interval, num_samples) == ("", "")
            continue
        pairs = list_pairs(trained, split)
        assert int(num_samples) == len(pairs[0])
        has_interval = name in ("accuracy", "mae")
        found = find_interval(metric, pairs)[0] if has_interval else None
        assert_interval_shown(interval, found, is_drawn=name == "mae")


def check_classes(trained: Trained, rows: list[list[str]]) -> None:
    """Assert that rows of class, counts, precision, recall, F1 (and main error) are the test's."""
    targets, predicted = list_pairs(trained, "test")
    names = ("below", "above") if trained.job == "own" else CLASSES
    scores = sk.precision_recall_fscore_support(
        targets, predicted, labels=range(len(names)), zero_division=0
    )
    counts = sk.confusion_matrix(targets, predicted, labels=range(len(names)))
    assert [row[0] for row in rows] == [*names]
    for at, row in enumerate(rows):
        assert int(row[1]) == scores[3][at] == counts[at].sum()
        assert row[2:5] == [f"{scores[each][at]:.3f}" for each in range(3)]
        wrong = counts[at] * (np.arange(len(names)) != at)
        if len(row) > 5:
            assert row[5] == (f"{names[wrong.argmax()]} ({wrong.max()})" if wrong.any() else "")


def check_class_curves(trained: Trained, page: str, rows: list[list[str]]) -> None:
    """Assert that areas, precision, recall and false positive rate of classes are sklearn's."""
    names = ("below", "above") if trained.job == "own" else CLASSES
    targets = trained.samples("test").targets
    probabilities = compute_probabilities(trained.outputs("test"))
    found = re.search(r'id="rate-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    drawn = {each["name"]: each for each in json.loads(found[1])}
    assert {*drawn} == {*names} | (set() if len(names) == 2 else {"right predictions"})
    assert [row[0] for row in rows] == [*names]
    for at, (name, num_samples, precision, area) in enumerate(rows):
        is_class = targets == at
        scores = probabilities[:, at]
        assert int(num_samples) == is_class.sum()
        assert_shown(precision, float(sk.average_precision_score(is_class, scores)), digits=".3f")
        assert_shown(area, float(sk.roc_auc_score(is_class, scores)), digits=".3f")
        right, wrong = (np.array(drawn[name][kind]) for kind in ("right", "wrong"))
        rates, recalls, thresholds = sk.roc_curve(is_class, scores, drop_intermediate=False)
        assert (wrong / wrong[-1]).tolist() == close(rates.tolist())
        assert (right / right[-1]).tolist() == close(recalls.tolist())
        assert drawn[name]["threshold"][1:] == pytest.approx(thresholds[1:].tolist(), rel=1e-3)
        precisions, _, _ = sk.precision_recall_curve(is_class, scores)
        assert (right[1:] / (right + wrong)[1:]).tolist() == close(precisions[:-1][::-1].tolist())


def compute_calibration_error(trained: Trained) -> float:
    """Compute the expected calibration error of the test, with 15 bins with their upper end."""
    probabilities = compute_probabilities(trained.outputs("test"))
    confidence = probabilities.max(axis=1)
    is_right = probabilities.argmax(axis=1) == trained.samples("test").targets
    error = 0.0
    for number in range(15):
        inside = (confidence > number / 15) & (confidence <= (number + 1) / 15)
        if inside.any():
            error += inside.mean() * abs(is_right[inside].mean() - confidence[inside].mean())
    return float(error)


def check_verdict(trained: Trained, text: str) -> None:
    """Assert that the sentence on a run is of its test, chance and its gate."""
    name = "accuracy" if trained.job in _CLASSIFIERS else "mae"
    targets, predicted = list_pairs(trained, "test")
    number = r"(-?[\d.]+(?:e[+-]\d+)?)"
    found = re.search(
        rf"test/{name} is {number} \(95 % interval {number} to {number}, (\d+) samples\), (not"
        r" )?better than chance "
        rf"\({number} on these samples\)(?:; by (\S+) \({number}\) it is (no different beyond noise"
        r" from|better than|"
        rf"worse than) run \S+ \({number}\))?\.",
        text,
    )
    assert found is not None, text
    value, low, high, num, is_not, chance, metric, mine, verdict, theirs = found.groups()
    assert_shown(value, trained.score("test")[f"test/{name}"])
    interval = find_interval(f"test/{name}", (targets, predicted))[0]
    assert interval is not None
    assert_interval_shown(f"{low} to {high}", interval, is_drawn=name == "mae")
    assert int(num) == len(targets)
    if name == "accuracy":
        expected = float(stats.mode(targets).count / len(targets))
        is_better = interval[0] > expected
    else:
        expected = float(np.abs(targets - np.median(targets)).mean())
        is_better = interval[1] < expected
    assert_interval_shown(f"{chance} to {chance}", [expected, expected], is_drawn=False)
    assert (is_not is None) == is_better

    # the comparison with the baseline of the gate
    assert (metric is not None) == (trained.job in AGAINST_EARLIER)
    if metric is not None:
        assert metric == trained.gate["metric"]
        assert_shown(mine, trained.score("test")[metric])
        earlier = trained.score("test", trained.earlier_weights)[metric]
        assert_shown(theirs, earlier)
        is_noise = not trained.gate["significance"]["counts"]
        is_better = (trained.score("test")[metric] > earlier) == (metric == "test/accuracy")
        assert verdict == (
            "no different beyond noise from"
            if is_noise
            else "better than"
            if is_better
            else "worse than"
        )


def test_every_number_of_a_report_is_that_of_the_best_weights_and_the_samples(
    trained: Trained,
) -> None:
    page = (trained.run / "report.html").read_text(encoding="utf-8")
    facts, tables, text = read_page(page)
    best = trained.epochs[trained.best_epoch]
    check_verdict(trained, text)
    assert facts["Epochs"] == f"2, {2 * _STEPS[trained.job]} steps"
    epoch, value = re.fullmatch(r"(\d) by val/loss (\S+)", facts["Best epoch"]).groups()  # type: ignore[union-attr]
    assert int(epoch) == trained.best_epoch
    assert_shown(value, best["val/loss"])
    check_scores(trained, tables["Metrics of the best checkpoint"], splits=("test", "val", "train"))
    if trained.job != "own":
        shown = [int(facts[f"{split} samples"]) for split in ("Training", "Validation", "Test")]
        assert shown == [*_SIZES[trained.job].values()]

    # the curves, whose numbers are in the description of each figure
    labels = re.findall(r'aria-label="([^"]*) over 2 epochs; at the end: ([^"]*)"', page)
    shown_last = [part.rsplit(" ", 1) for _, parts in labels for part in parts.split(", ")]
    assert {name for name, _ in shown_last} == {*trained.epochs[1]}
    for name, number in shown_last:
        assert_shown(number, trained.epochs[1][name])

    # samples
    targets, predicted = list_pairs(trained, "test")
    if trained.job not in _CLASSIFIERS:
        assert f"Predictions for {len(targets)} samples of the test split" in page
        worst = np.argsort(-np.abs(targets - predicted), kind="stable")[:20]
        rows = tables["The worst errors"]
        assert len(rows) == len(worst)
        for at, (_, target, prediction) in zip(worst, rows, strict=True):
            assert_shown(target, float(targets[at]))
            assert_shown(prediction, float(predicted[at]))
        return
    check_classes(trained, tables["Scores of each class"])
    check_class_curves(trained, page, tables["Areas of each class"])
    names = ("below", "above") if trained.job == "own" else CLASSES
    counts = sk.confusion_matrix(targets, predicted, labels=range(len(names)))
    for label, prediction, number in tables.get("Most frequent errors", []):
        assert int(number) == counts[names.index(label), names.index(prediction)]
    assert (
        sum(int(row[2]) for row in tables.get("Most frequent errors", []))
        == (targets != predicted).sum()
    )
    num_right = int(counts.diagonal().sum())
    described = (
        f"{len(names)} classes, {len(targets)} samples of the test split,"
        f" of which {num_right} are right"
    )
    assert described in page
    error = compute_calibration_error(trained)
    assert [
        float(each) for each in re.findall(r"expected calibration error (?:is )?(\d\.\d+)", page)
    ] == [pytest.approx(error, abs=0.00051)] * 2
    probabilities = compute_probabilities(trained.outputs("test"))
    of_label = probabilities[np.arange(len(targets)), targets]
    mistaken = np.flatnonzero(targets != predicted)
    worst = mistaken[np.argsort(of_label[mistaken], kind="stable")][:20]
    uncertain = np.argsort(probabilities.max(axis=1), kind="stable")[:20]
    for group, chosen in (("worst", worst), ("uncertain", uncertain)):
        section = re.search(rf'<section id="{group}">(.*?)</section>', page, re.DOTALL)
        assert section is not None
        notes = re.findall(r"(\d\.\d\d), label (\d\.\d\d)", section[1])
        expected = [[probabilities.max(axis=1)[at], of_label[at]] for at in chosen]
        assert [[float(each) for each in note] for note in notes] == [
            pytest.approx(each, abs=0.00501) for each in expected
        ]


def test_every_number_of_a_model_card_is_that_of_the_best_weights_and_the_samples(
    trained: Trained,
) -> None:
    card = (trained.run / "card.md").read_text(encoding="utf-8")
    check_verdict(trained, card)
    assert "| Epochs | 2 |" in card
    rows = read_markdown_table(card, "metric | value | 95 % interval | samples")
    check_scores(trained, rows, splits=("test", "val"))
    for name, split in (("train", "train"), ("validate", "val"), ("test", "test")):
        if trained.job != "own":
            assert f"| Samples to {name} | {_SIZES[trained.job][split]} |" in card
    if trained.job in _CLASSIFIERS:
        check_classes(
            trained, read_markdown_table(card, "class | samples | precision | recall | F1")
        )
        (error,) = re.findall(r"Expected calibration error: (\d\.\d+) \(15 bins", card)
        assert float(error) == pytest.approx(compute_calibration_error(trained), abs=0.00051)
    metadata = yaml.safe_load(card.split("---\n")[1])
    values = {
        f"{'val' if result['dataset']['split'] == 'validation' else 'test'}/{each['type']}": each[
            "value"
        ]
        for index in metadata.get("model-index", [])
        for result in index["results"]
        for each in result["metrics"]
    }
    is_described = trained.job in ("label", "ranks")
    computed = {**trained.score("test"), **trained.epochs[trained.best_epoch]}
    names = [
        name for name in computed if not name.startswith("train/") and not name.endswith("/loss")
    ]
    assert values == close({name: computed[name] for name in names} if is_described else {})


# -- gate.json -------------------------------------------------------------------------------------


def test_every_number_of_a_gate_is_that_of_both_models_on_the_same_samples(
    trained: Trained,
) -> None:
    gate, metric = trained.gate, trained.gate["metric"]
    split = metric.split("/")[0]
    mine, samples = trained.score(split), trained.samples(split)
    pairs = list_pairs(trained, split)
    earlier = trained.earlier_weights if trained.job in AGAINST_EARLIER else None
    theirs = None if earlier is None else trained.score(split, earlier)
    confidence = gate["settings"]["confidence"] or 0.95
    assert gate["num_samples"] == len(pairs[0])
    assert gate["scores"]["challenger"] == close(mine)
    assert (gate["scores"]["baseline"] is None) == (theirs is None)
    if theirs is not None:
        assert gate["scores"]["baseline"] == close(theirs)

    # intervals
    is_known = metric.rpartition("/")[2] != "loss"
    assert gate["intervals"]["confidence"] == confidence
    if is_known:
        assert gate["intervals"]["challenger"] == find_interval(metric, pairs, confidence)[1]
    if earlier is not None:
        expected = find_interval(metric, list_pairs(trained, split, earlier), confidence)[1]
        assert gate["intervals"]["baseline"] == expected
    is_share = metric.endswith("accuracy")
    fewest = next(
        count
        for count in range(1, 99)
        if stats.binomtest(count, count).pvalue / 2 <= 1 - confidence + 1e-12
    )
    assert gate["smallest_drop"] == (close(fewest / len(pairs[0])) if is_share else None)

    # single classes
    names = ("below", "above") if trained.job == "own" else CLASSES
    for name, found in gate["slices"].items():
        is_of_class = pairs[0] == names.index(name)
        models = {
            "challenger": pairs,
            "baseline": None if earlier is None else list_pairs(trained, split, earlier),
        }
        for model, given in models.items():
            if given is None:
                assert found[model] is None
                continue
            options: dict[str, Any] = {
                "labels": [names.index(name)],
                "average": None,
                "zero_division": 0,
            }
            compute = sk.f1_score if metric.endswith("f1") else sk.recall_score
            assert found[model] == close(float(compute(*given, **options)[0]))
        assert found["num_samples"] == is_of_class.sum()
        if is_share:
            num_right = int((pairs[1] == pairs[0])[is_of_class].sum())
            assert found["interval"] == close(wilson(num_right, int(is_of_class.sum()), confidence))
    asked = gate["settings"]["slices"] or {}
    assert gate["slices"].keys() == asked.keys()

    # conditions
    scores = [mine[metric], None if theirs is None else theirs[metric]]
    for check in gate["checks"]:
        found = gate["slices"].get(check["name"].partition(" of ")[2])
        expected = scores if found is None else [found["challenger"], found["baseline"]]
        assert [check["challenger"], check["baseline"]] == [
            None if each is None else close(each) for each in expected
        ]
        assert check["passed"] == (trained.job != "table")
    assert gate["passed"] == (trained.job != "table")

    # the samples that decide
    for sample in gate["samples"]:
        counted = np.flatnonzero(samples.weights > 0).tolist()
        at = counted.index(sample["index"])
        if trained.job in _CLASSIFIERS:
            assert (sample["label"], sample["challenger"]) == (
                names[pairs[0][at]],
                names[pairs[1][at]],
            )
            if earlier is not None:
                assert sample["baseline"] == names[list_pairs(trained, split, earlier)[1][at]]
        else:
            assert_shown(sample["label"], float(pairs[0][at]))
            assert_shown(sample["challenger"], float(pairs[1][at]))
    if earlier is None:
        assert (gate["significance"], gate["non_inferiority"]) == (None, None)
        return
    check_comparison(trained, pairs, list_pairs(trained, split, earlier))


def check_comparison(
    trained: Trained, mine: tuple[Array, Array], theirs: tuple[Array, Array]
) -> None:
    """Assert that the tests of the difference to the earlier run are those of SciPy."""
    gate, targets = trained.gate, mine[0]
    found, bounded = gate["significance"], gate["non_inferiority"]
    confidence = gate["settings"]["confidence"]
    num = len(targets)
    assert (found["num_samples"], bounded["num_samples"]) == (num, num)
    assert (found["confidence"], bounded["confidence"]) == (confidence, confidence)
    assert bounded["margin"] == gate["settings"]["margin"]
    if trained.job == "regression":
        values = [np.abs(each[1] - targets) for each in (theirs, mine)]
    else:
        values = [(each[1] == targets).astype(float) for each in (theirs, mine)]
    differences = values[1] - values[0]
    interval, draws = bootstrap(differences, lambda each: float(each.mean()), confidence)
    assert found["difference"] == close(float(differences.mean()))
    assert [found["low"], found["high"]] == close_interval(interval)
    if trained.job == "regression":
        p_value = 2 * min(float((draws <= 0).mean()), float((draws >= 0).mean()))
        assert found["p_value"] == pytest.approx(p_value, abs=0.04)
        one_sided, _ = bootstrap(-differences, lambda each: float(each.mean()), 2 * confidence - 1)
        assert bounded["difference"] == close(-float(differences.mean()))
        assert bounded["low"] == pytest.approx(
            one_sided[0], abs=_OF_DRAWS * (one_sided[1] - one_sided[0])
        )
    else:
        only_mine, only_theirs = int((differences > 0).sum()), int((differences < 0).sum())
        assert (found["only_challenger"], found["only_baseline"]) == (only_mine, only_theirs)
        assert found["p_value"] == close(
            float(stats.binomtest(only_mine, only_mine + only_theirs).pvalue)
        )
        assert bounded["difference"] == close((only_mine - only_theirs) / num)
        assert bounded["low"] == pytest.approx(
            tango(only_mine, only_theirs, num, confidence), abs=1e-5
        )
        z = float(stats.norm.ppf(confidence))
        assert bounded["smallest_margin"] == close(z**2 / (num + z**2))
    assert found["counts"] == (found["p_value"] <= 1 - confidence)
    assert bounded["passed"] == (bounded["low"] > -bounded["margin"])

"""Predictions and facts of runs that were not trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lightkit.reports.facts import RunFacts
from lightkit.reports.predictions import Predictions
from lightkit.runs.folder import Run

NAMES = ("cat", "dog")


def predict(targets: Sequence[int], predicted: Sequence[int], **changes: Any) -> Predictions:
    """Predictions of a classifier, whose samples are called data/0.png and so on."""
    num = len(targets)
    values = Predictions(
        split="test",
        index=np.arange(num),
        paths=[f"data/{at}.png" for at in range(num)],
        target=np.array(targets),
        prediction=np.array(predicted),
        probability=np.full(num, 0.9, dtype=np.float32),
        label_probability=np.where(np.equal(targets, predicted), 0.9, 0.1).astype(np.float32),
        class_names=NAMES,
        fingerprint="f1",
    )
    return replace(values, **changes)


def regress(targets: Sequence[float], predicted: Sequence[float]) -> Predictions:
    values = predict([0] * len(targets), [0] * len(targets))
    arrays: dict[str, Any] = {"target": np.array(targets), "prediction": np.array(predicted)}
    return replace(
        values, class_names=(), probability=np.array([]), label_probability=np.array([]), **arrays
    )


def facts_of(folder: Path, predictions: Predictions | None = None, **changes: Any) -> RunFacts:
    run_id = "20260101-030000-0001"
    run = Run(folder / "runs" / "job" / run_id, "job", run_id, folder / "runs")
    empty: dict[str, Any] = {key: {} for key in ("manifest", "summary", "gate")}
    lists: dict[str, Any] = {
        key: [] for key in ("rows", "events", "settings", "bad_images", "exports", "problems")
    }
    found = {} if predictions is None else {predictions.split: predictions}
    facts = RunFacts(run=run, status="done", predictions=found, **empty, **lists)
    return replace(facts, **changes)

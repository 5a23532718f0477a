"""A sweep in MLflow: one run of the sweep, with the runs of its trials below it. No torch."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.config import Resolved
from lightkit.registry.store import address_of_job
from lightkit.sweep.record import SweepRecord, Trial
from lightkit.sweep.results import choose_best
from lightkit.sweep.settings import Plan

_FILE = "mlflow.json"
_OWN_FILE = "tracking.json"
"""The run of the sweep itself, in its folder."""
_PARENT_TAG = "mlflow.parentRunId"
_log = logging.getLogger("lightkit")


def track_sweep(
    resolved: Resolved,
    root: Path,
    record: SweepRecord,
    plan: Plan,
    metric: str | None,
    mode: str | None,
) -> None:
    """Put the MLflow runs of the trials below one of the sweep.

    A tracker that is away is a warning.

    Args:
        resolved: The config, which says where MLflow is.
        root: Folder of all runs.
        record: The record of the sweep.
        plan: The sweep.
        metric: What is searched.
        mode: ``min`` or ``max``.
    """
    children = _list_children(root, record)
    if not children:
        return
    try:
        _track(address_of_job(resolved, root).uri, children, record, plan, metric, mode)
    except Exception as error:  # noqa: BLE001 (the sweep is done, and its results are on the disk)
        text = " ".join(f"{type(error).__name__}: {error}".split())
        _log.warning("the sweep is not in MLflow: %s", text)


def _list_children(root: Path, record: SweepRecord) -> list[tuple[Trial, Mapping[str, Any]]]:
    """List the trials that MLflow has recorded, each with the ids of its run there."""
    found: list[tuple[Trial, Mapping[str, Any]]] = []
    for trial in record.trials:
        ids = runs.read_json(root / trial.run / _FILE) if trial.run is not None else None
        if ids and ids.get("run_id"):
            found.append((trial, ids))
    return found


def _track(
    uri: str,
    children: list[tuple[Trial, Mapping[str, Any]]],
    record: SweepRecord,
    plan: Plan,
    metric: str | None,
    mode: str | None,
) -> None:
    from mlflow import MlflowClient  # here: it takes two seconds

    folder = record.path.parent
    first = children[0][1]
    client = MlflowClient(tracking_uri=uri)
    kept = runs.read_json(folder / _OWN_FILE) or {}
    parent = kept.get("run_id")
    if parent is None:
        experiment = str(first["experiment_id"])
        tags = {"lightkit.sweep": folder.name, "sweep_folder": str(folder)}
        parent = client.create_run(
            experiment, run_name=f"sweep {folder.name}", tags=tags
        ).info.run_id
        runs.write_json(folder / _OWN_FILE, {"run_id": parent, "experiment_id": experiment})
    for trial, ids in children:
        client.set_tag(ids["run_id"], _PARENT_TAG, parent)
        client.set_tag(ids["run_id"], "lightkit.trial", str(trial.number))
    best = choose_best(record.trials, plan, mode)
    if best is not None and best.value is not None and metric is not None:
        client.log_metric(parent, metric, best.value)
        client.set_tag(parent, "lightkit.best_trial", str(best.number))
        for key, value in best.params.items():
            client.set_tag(parent, f"best.{key}", str(value))
    client.set_terminated(parent)

"""What leads from a model version back to the run that it came from. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from lightkit import __version__, runs
from lightkit.artefacts.metadata import Metadata
from lightkit.loggers.entries import tags_of

__all__ = ["best_metrics", "exports_of", "origin_tags", "training_of"]

_LONGEST_NAMES = 5000  # characters: the smallest limit of a tag among MLflow's stores


def origin_tags(run: runs.Run, checkpoint: Path, metadata: Metadata) -> dict[str, str]:
    """Give the tags of a model version: its run, code, data, checkpoint and best score, as far as they are known.

    Args:
        run: The run.
        checkpoint: File of the weights, with its digest beside it or not.
        metadata: What the model says of itself; class names that are too long for a tag stand in it alone.
    """
    manifest = runs.read_json(run.manifest_path) or {}
    tags = {name: value for name, value in tags_of(manifest).items() if not name.startswith("mlflow.")}
    tags |= {
        "run": f"{run.name}/{run.id}",
        "run_folder": str(run.folder),
        "checkpoint": _shown(checkpoint, run),
        "checkpoint_sha256": runs.digest(checkpoint),
        "lightkit": __version__,
        "output_kind": metadata.output_kind,
    }
    best = (runs.read_json(run.summary_path) or {}).get("best") or {}
    if best.get("monitor") and best.get("value") is not None and checkpoint.name == "best.ckpt":
        tags[f"best.{best['monitor']}"] = f"{best['value']:.6g}"
    if metadata.class_names is not None and len(names := json.dumps(metadata.class_names)) <= _LONGEST_NAMES:
        tags["class_names"] = names
    return tags


def training_of(run: runs.Run) -> Mapping[str, str]:
    """Give the MLflow run of the training, as the logger MLflow noted it: ``tracking_uri`` and ``run_id``, or nothing.

    A URI that lost its password when it was noted is left out.
    """
    noted = runs.read_json(run.folder / "mlflow.json") or {}
    if "***@" in str(noted.get("tracking_uri")):
        noted.pop("tracking_uri")
    return {name: str(noted[name]) for name in ("tracking_uri", "run_id") if noted.get(name)}


def best_metrics(run: runs.Run) -> dict[str, float]:
    """Give the metrics of the best epoch, as the run's summary has them."""
    metrics = ((runs.read_json(run.summary_path) or {}).get("metrics") or {}).get("best") or {}
    return {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))}


def exports_of(run: runs.Run, checkpoint_digest: str) -> tuple[Path | None, str | None]:
    """Find the exports of a run.

    Args:
        run: The run.
        checkpoint_digest: Of the weights that are registered.

    Returns:
        The folder, None where it holds no exports of these weights; and why it does not, where that is news.
    """
    folder = run.folder / "export"
    record = runs.read_json(folder / "export.json")
    if record is None:
        return None, None
    if checkpoint_digest not in json.dumps(record):
        return None, f"{folder} holds exports of another checkpoint, which are left out; `lightkit export` renews them"
    return folder, None


def _shown(checkpoint: Path, run: runs.Run) -> str:
    path = checkpoint.resolve()
    return str(path.relative_to(run.folder)) if path.is_relative_to(run.folder) else str(path)

"""What leads from a model version back to the run that it came from. No torch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.artefacts.metadata import Metadata
from lightkit.errors import RunLocked
from lightkit.export.publishing import held
from lightkit.loggers.mlflow_address import manifest_tags
from lightkit.runs.files import write_json
from lightkit.version import __version__

__all__ = ["RECORD", "best_metrics", "gather_exports", "origin_tags", "training_of"]

RECORD = "export.json"
"""Name of the file that tells what exports there are."""
_LONGEST_NAMES = 5000  # characters: the smallest limit of a tag among MLflow's stores


def origin_tags(run: runs.Run, checkpoint: Path, metadata: Metadata) -> dict[str, str]:
    """Give the tags of a model version: its run, code, data, checkpoint and best score, as far as they are known.

    Args:
        run: The run.
        checkpoint: File of the weights, with its digest beside it or not.
        metadata: What the model says of itself; class names that are too long for a tag stand in it alone.
    """
    manifest = runs.read_json(run.manifest_path) or {}
    tags = {name: value for name, value in manifest_tags(manifest).items() if not name.startswith("mlflow.")}
    tags |= {
        "run": f"{run.name}/{run.id}",
        "run_folder": str(run.folder),
        "checkpoint": _shown(checkpoint, run),
        "checkpoint_sha256": metadata.source.get("sha256") or runs.digest(checkpoint),
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


def gather_exports(run: runs.Run, checkpoint_digest: str, target: Path) -> list[str]:
    """Copy the exports of some weights, with an ``export.json`` that tells of these alone.

    Args:
        run: The run.
        checkpoint_digest: Of the weights.
        target: Folder for the copies; made if there are any.

    Returns:
        What of the run's ``export.json`` was left out, and why, in words.

    Raises:
        RunLocked: If an export is writing there.
    """
    folder = run.folder / "export"
    if not (folder / RECORD).is_file():
        return []
    with _unchanged(folder):
        entries = (runs.read_json(folder / RECORD) or {}).get("artefacts") or {}
        taken, left = {}, []
        for name, entry in entries.items():
            if (fault := _copied(folder, name, entry, checkpoint_digest, target)) is None:
                taken[name] = entry
            else:
                left.append(f"{folder / name} {fault}, and is left out; `lightkit export` renews it")
    if taken:
        write_json(target / RECORD, {"schema": 1, "artefacts": taken})
    return left


@contextmanager
def _unchanged(folder: Path) -> Iterator[None]:
    """Keep exports out of a folder."""
    with ExitStack() as stack:
        try:
            stack.enter_context(held(folder))
        except RunLocked as error:
            raise RunLocked(f"An export is writing to {folder}. Try again when it has ended.") from error
        yield


def _copied(folder: Path, name: str, entry: Mapping[str, Any], checkpoint_digest: str, target: Path) -> str | None:
    """Copy a file and its external data; say what is wrong with them where they are not what their entry says."""
    if (entry.get("source") or {}).get("sha256") != checkpoint_digest:
        return "is of another checkpoint"
    parts = {name: entry.get("sha256"), **({data["file"]: data["sha256"]} if (data := entry.get("data")) else {})}
    target.mkdir(exist_ok=True)
    for part, promised in parts.items():
        copy = target / Path(part).name
        if (folder / copy.name).is_file():
            shutil.copyfile(folder / copy.name, copy)
        if not copy.is_file() or runs.digest(copy) != promised:
            for one in parts:
                (target / Path(one).name).unlink(missing_ok=True)
            return "is not the file that was proved"
    return None


def _shown(checkpoint: Path, run: runs.Run) -> str:
    path = checkpoint.resolve()
    return str(path.relative_to(run.folder)) if path.is_relative_to(run.folder) else str(path)

"""What there is to say of each run on one line: how it stands, how good it is, how large and how old."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lightkit.config.tree import plain
from lightkit.config.yaml_reader import read_file
from lightkit.errors import ConfigError
from lightkit.runs.files import read_json
from lightkit.runs.folder import list_runs
from lightkit.runs.lock import lock_holder
from lightkit.runs.run import Run

__all__ = ["KILLED", "PROMOTED", "Listed", "list_all", "mode_of", "mode_of_name", "size_of", "stamp_of"]

KILLED = "killed"
"""Status of a run that says ``running`` and whose process is gone; summary.json has no such word."""
PROMOTED = "promoted.json"
"""File in a run that was promoted: the registered models, each with its version."""
_SMALL_IS_GOOD = {
    *("loss", "error", "err", "mae", "mse", "rmse", "mape", "perplexity", "nll", "wer", "cer", "fid", "brier", "ece"),
    *("kl", "crossentropy", "distance"),
}
_LARGE_IS_GOOD = {
    *("accuracy", "acc", "f1", "auc", "auroc", "precision", "recall", "iou", "miou", "dice", "map", "psnr", "ssim"),
    *("r2", "bleu", "rouge"),
}
_TURNS = {"neg", "negative", "inverse"}
_MOST_CONFIGS = 10  # of old runs that are read for a mode: each takes milliseconds
_CHANGING = ("events.jsonl", "summary.json", "retrain.json", "gate.json", PROMOTED)
_CREATED = "%Y%m%d-%H%M%S"


@dataclass(frozen=True)
class Listed:
    """A run as a table shows it.

    Args:
        run: The run.
        status: As in summary.json, or ``killed``.
        is_training: Whether it is a ``fit`` that is worth keeping, and no ``fast_dev_run``.
        metric: Name of the metric that is shown; None where the run has none.
        value: Its value.
        size_bytes: Of all its files.
        created: When it began, in seconds since 1970.
        is_locked: Whether a living process works on it.
        is_promoted: Whether it was promoted from here.
        needs: Paths that its manifest names: the checkpoint that it began from, and its parent.
        in_retrain: Whether a `lightkit retrain` has not come to its end in it.
        mode: What the run itself says of its metric: ``min`` or ``max`` is best; None where it does not.
        stamp: What changes when a process works in its folder, see `stamp_of`.
    """

    run: Run
    status: str
    is_training: bool
    metric: str | None
    value: float | None
    size_bytes: int
    created: float
    is_locked: bool
    is_promoted: bool = False
    needs: tuple[str, ...] = ()
    in_retrain: bool = False
    mode: str | None = None
    stamp: tuple[object, ...] = ()

    @property
    def key(self) -> str:
        """``NAME/ID``."""
        return f"{self.run.name}/{self.run.id}"

    def as_dict(self, *, now: float) -> dict[str, Any]:
        """Give it for programs.

        Args:
            now: Seconds since 1970.
        """
        return {
            "name": self.run.name,
            "id": self.run.id,
            "folder": str(self.run.folder),
            "status": self.status,
            "metric": self.metric,
            "value": self.value,
            "size_bytes": self.size_bytes,
            "created": datetime.fromtimestamp(self.created, timezone.utc).isoformat(),
            "age_s": round(max(0.0, now - self.created)),
            "locked": self.is_locked,
            "promoted": self.is_promoted,
        }


def list_all(root: Path | str, name: str | None = None, *, metric: str | None = None) -> list[Listed]:
    """List the runs under a root, or those of one job, the newest first.

    Args:
        root: Folder that holds the runs of all jobs.
        name: The job; all if None.
        metric: What is shown of each; None: what its best checkpoint was chosen by.
    """
    found = list_runs(root, name)
    holders = {job: lock_holder(root, job) for job in {run.name for run in found}}
    return [_listed(run, holders[run.name], metric) for run in found]


def mode_of(metric: str, listed: Sequence[Listed]) -> str | None:
    """Tell whether the smallest (``min``) or the largest (``max``) value of a metric is best; None: nobody knows.

    Args:
        metric: Its name.
        listed: Runs of one job that have measured it, the newest first. What one of them has chosen its best
            checkpoint by is asked before the name.
    """
    said = next((each.mode for each in listed if each.metric == metric and each.mode), None)
    chose = (each.run for each in listed[:_MOST_CONFIGS] if each.metric == metric)
    return said or next(filter(None, (_configured_mode(run, metric) for run in chose)), None) or mode_of_name(metric)


def mode_of_name(metric: str) -> str | None:
    """Tell from its name which value of a metric is best, where the name is a usual one."""
    words = {*metric.lower().replace("/", "_").replace("-", "_").split("_")}
    small, large = bool(words & _SMALL_IS_GOOD), bool(words & _LARGE_IS_GOOD)
    if small == large or words & _TURNS:
        return None
    return "min" if small else "max"


def stamp_of(folder: Path) -> tuple[object, ...]:
    """Give what changes when a process begins or ends something in a run's folder."""
    return tuple(_state_of(folder / name) for name in _CHANGING)


def _state_of(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def size_of(folder: Path | str) -> int:
    """Sum the sizes of all files below a folder, without following links; what vanishes meanwhile counts as nothing."""
    size_bytes = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                size_bytes += size_of(entry.path) if is_folder else entry.stat(follow_symlinks=False).st_size
    except OSError:
        return size_bytes
    return size_bytes


def _listed(run: Run, holder: Mapping[str, Any] | None, metric: str | None) -> Listed:
    stamp = stamp_of(run.folder)  # before anything is read: what changes from here on is seen
    summary, manifest = read_json(run.summary_path) or {}, read_json(run.manifest_path) or {}
    status = str(summary.get("status") or "running")
    folder = None if holder is None else holder.get("folder")
    is_locked = folder is not None and Path(folder).name == run.id
    # A holder that has not chosen yet, and a stage of a run, which takes no lock, may be at work on any run.
    is_dead = status == "running" and not is_locked and (holder is None or folder is not None)
    best = summary.get("best") or {}
    metric = metric or best.get("monitor")
    retrain = read_json(run.folder / "retrain.json")
    return Listed(
        run,
        status=KILLED if is_dead else status,
        is_training=_is_training(run, manifest),
        metric=metric,
        value=None if metric is None else _value_of(metric, summary),
        size_bytes=size_of(run.folder),
        created=_created(run),
        is_locked=is_locked,
        is_promoted=(run.folder / PROMOTED).is_file(),
        needs=_needs(manifest),
        in_retrain=retrain is not None and retrain.get("ended") is None,
        mode=best.get("mode") if best.get("monitor") == metric else None,
        stamp=stamp,
    )


def _needs(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Give the paths as the training meant them: its working directory is rarely that of `lightkit gc`."""
    began_in = Path(manifest.get("working_directory") or "")
    return tuple(str(began_in / str(manifest[key])) for key in ("ckpt_path", "parent") if manifest.get(key))


def _configured_mode(run: Run, metric: str) -> str | None:
    """Read from the config by what a run has chosen its best checkpoint: its summary did not say it once."""
    try:
        callbacks = plain(read_file(run.config_path)).get("callbacks")
    except ConfigError:
        return None
    for entry in callbacks.values() if isinstance(callbacks, dict) else []:
        said = entry if isinstance(entry, dict) else {}
        arguments = said.get("init_args") or {}
        is_keeper = str(said.get("class_path", "")).endswith("Checkpoint") and isinstance(arguments, dict)
        if is_keeper and arguments.get("monitor") in (metric, "auto") and arguments.get("mode") in ("min", "max"):
            return str(arguments["mode"])
    return None


def _is_training(run: Run, manifest: Mapping[str, Any]) -> bool:
    if not manifest:  # killed before it was written
        return any(run.checkpoints.glob("*.ckpt"))
    return manifest.get("subcommand") == "fit" and not manifest.get("fast_dev_run")


def _value_of(metric: str, summary: Mapping[str, Any]) -> float | None:
    """Find a metric in the best epoch, else in what a later stage has measured."""
    best = summary.get("best") or {}
    found = [best.get("value")] if best.get("monitor") == metric else []
    metrics = summary.get("metrics") or {}
    tables = [metrics.get("best"), *(summary.get("stages") or {}).values(), metrics.get("last")]
    found += [table.get(metric) for table in tables if isinstance(table, Mapping)]
    numbers = (float(value) for value in found if isinstance(value, (int, float)) and math.isfinite(value))
    return next(numbers, None)


def _created(run: Run) -> float:
    try:
        return datetime.strptime(run.id[:15], _CREATED).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:  # digits that are no date
        return 0.0

"""What a message tells of a run: which one it is, its numbers, and where trackers show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from lightkit import runs

__all__ = ["best_of", "is_told", "masked", "numbers_in", "places_of", "this_run"]


def is_told(trainer: Trainer) -> bool:
    """Tell whether this process is the one that tells, of a training that is more than a trial."""
    return bool(trainer.is_global_zero) and not getattr(trainer, "fast_dev_run", False)


def numbers_in(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Keep what is a number, or a tensor of one."""
    read = {str(name): _number(value) for name, value in metrics.items()}
    return {name: value for name, value in read.items() if value is not None}


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # a tensor of many, or a text
        return None


def best_of(trainer: Trainer) -> dict[str, Any] | None:
    """Give monitor and value of the best checkpoint so far; None where nothing is monitored."""
    keeper = trainer.checkpoint_callback
    if not isinstance(keeper, ModelCheckpoint) or keeper.monitor is None or keeper.best_model_score is None:
        return None
    return {"monitor": keeper.monitor, "value": float(keeper.best_model_score)}


def this_run() -> dict[str, str]:
    """Say which run it is, and where MLflow has it if its training was tracked on a server."""
    run = runs.current()
    if run is None:
        return {}
    kept = runs.read_json(run.folder / "mlflow.json") or {}
    about = {"job": run.name, "run": run.id, "folder": str(run.folder)}
    server = str(kept.get("tracking_uri") or "").replace("***@", "").rstrip("/")
    if not server.startswith(("http://", "https://")):
        return about
    return {**about, "mlflow_url": f"{server}/#/experiments/{kept.get('experiment_id')}/runs/{kept.get('run_id')}"}


def places_of(trainer: Trainer) -> dict[str, str]:
    """Say what opens MLflow's local database, if the run is in one."""
    commands = (getattr(logger, "view_command", None) for logger in trainer.loggers)
    found = (words for words in commands if isinstance(words, list) and words[:1] == ["mlflow"])
    command = next((" ".join(words) for words in found), None)
    return {} if command is None else {"mlflow_command": command}


def masked(value: Any, mask: Callable[[str], str]) -> Any:
    """Put references in the place of secrets in the texts of plain containers."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {str(key): masked(child, mask) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(child, mask) for child in value]
    return value

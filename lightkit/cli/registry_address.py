"""Where the MLflow is that has the registered models. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightkit import runs
from lightkit.config import Resolved, shown_path
from lightkit.loggers.mlflow_address import Address, find_address
from lightkit.registry.lineage import training_of

__all__ = ["address_of_root", "address_of_run"]


def address_of_run(tracking_uri: str | None, run: runs.Run, resolved: Resolved) -> Address:
    """Find MLflow: as said, else where the run's config says, else by the environment, else where it was tracked.

    Args:
        tracking_uri: What ``--tracking-uri`` says.
        run: The run.
        resolved: Its config.
    """
    named, origin = tracking_uri, "--tracking-uri"
    if not named and (named := _configured(resolved.values)):
        origin = "the logger MLflow of the run's config"
    if not named and not os.environ.get("MLFLOW_TRACKING_URI") and (named := training_of(run).get("tracking_uri")):
        origin = shown_path(run.folder / "mlflow.json")
    with runs.activate(run):  # whose root says where the default database is
        return find_address(named, origin=origin)


def address_of_root(tracking_uri: str | None, root: Path) -> Address:
    """Find MLflow without a run: as said, else by the environment, else ``mlflow.db`` in the run root."""
    root = root.absolute()
    with runs.activate(runs.Run(root, "", "", root)):
        return find_address(tracking_uri, origin="--tracking-uri")


def _configured(values: Mapping[str, Any]) -> str | None:
    loggers = values.get("logger")
    for entry in loggers.values() if isinstance(loggers, Mapping) else []:
        if isinstance(entry, Mapping) and str(entry.get("class_path", "")).endswith(("loggers.MLflow", "MLFlowLogger")):
            uri = (entry.get("init_args") or {}).get("tracking_uri")
            if uri and not str(uri).startswith("file:"):  # which MLflow refuses by now
                return str(uri)
    return None

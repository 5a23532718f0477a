"""Where a run is registered: as said, else as its config says, the environment, or where it was tracked."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lightkit import runs
from lightkit.cli.registry_address import address_of_run
from lightkit.config import Resolved

LOGGER = {"mlflow": {"class_path": "lightkit.loggers.MLflow", "init_args": {"tracking_uri": "http://config"}}}
FOLDER = {"mlflow": {"class_path": "MLFlowLogger", "init_args": {"tracking_uri": "file:mlruns"}}}


@pytest.mark.parametrize(
    ("said", "loggers", "environment", "expected", "origin"),
    [
        ("http://said", LOGGER, "http://env", "http://said", "--tracking-uri"),
        (None, LOGGER, "http://env", "http://config", "the logger MLflow of the run's config"),
        (None, FOLDER, "http://env", "http://env", "the environment variable MLFLOW_TRACKING_URI"),
        (None, {}, None, "http://noted", "mlflow.json"),
    ],
    ids=["said", "config", "environment", "noted"],
)
def test_the_nearest_word_on_mlflow_counts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: str | None,
    loggers: dict[str, Any],
    environment: str | None,
    expected: str,
    origin: str,
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if environment is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", environment)
    folder = tmp_path / "runs" / "net" / "20261120-101112-ab12"
    folder.mkdir(parents=True)
    (folder / "mlflow.json").write_text(json.dumps({"tracking_uri": "http://noted", "run_id": "r1"}))
    found = address_of_run(said, runs.open_run(folder), resolved({"logger": loggers}))
    assert found.uri == expected
    assert found.origin.endswith(origin)


def resolved(values: dict[str, Any]) -> Resolved:
    """A config of which only the values count here."""
    return cast("Resolved", SimpleNamespace(values=values))

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

import pytest

from lightkit import runs
from lightkit.loggers import CSV


def _rows(folder: Path) -> list[dict[str, Any]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_resumed_run_appends(run: runs.Run) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in (1, 2):
            logger = CSV()
            logger.log_hyperparams({"lr": 0.1})
            logger.log_metrics({"loss": 1.0 / step}, step=step)
            logger.finalize("success")
    assert _rows(run.folder / "csv") == [{"loss": "1.0", "step": "1"}, {"loss": "0.5", "step": "2"}]
    assert "lr: 0.1" in (run.folder / "csv" / "hparams.yaml").read_text()


def test_a_new_metric_after_a_resume_becomes_a_column(run: runs.Run) -> None:
    for name in ("loss", "accuracy"):
        logger = CSV()
        logger.log_metrics({name: 0.5}, step=1)
        logger.finalize("success")
    assert _rows(run.folder / "csv") == [
        {"accuracy": "", "loss": "0.5", "step": "1"},
        {"accuracy": "0.5", "loss": "", "step": "1"},
    ]


@pytest.mark.parametrize(
    "left", ["loss,step\n1.0,1\n0.2", "loss,ste", ""], ids=["half a row", "half a header", "empty"]
)
def test_what_a_killed_process_left_half_written_is_cut(run: runs.Run, left: str) -> None:
    (run.folder / "csv").mkdir()
    (run.folder / "csv" / "metrics.csv").write_text(left)
    logger = CSV()
    logger.log_metrics({"loss": 0.5}, step=2)
    logger.finalize("success")
    whole = [{"loss": "1.0", "step": "1"}] if "1.0" in left else []
    assert _rows(run.folder / "csv") == [*whole, {"loss": "0.5", "step": "2"}]


def test_a_training_writes_every_metric(train: Any, run: runs.Run) -> None:
    train(run.folder, CSV())
    assert [row["step"] for row in _rows(run.folder / "csv") if row["val_loss"]] == ["3", "7", "11"]


def test_outside_a_run_versions_lie_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for version in ("version_0", "version_1"):
        logger = CSV()
        logger.log_metrics({"x": 1.0}, step=0)
        logger.finalize("success")
        assert len(_rows(tmp_path / "csv" / version)) == 1

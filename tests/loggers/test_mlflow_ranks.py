from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning_utilities.core.rank_zero import rank_zero_only

from lightkit import runs
from lightkit.loggers import CSV, MLflow, TensorBoard


@pytest.fixture
def _second_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)


@pytest.mark.usefixtures("_second_rank")
@pytest.mark.parametrize("kind", [CSV, MLflow, TensorBoard])
def test_only_rank_zero_records(kind: Any, net: Any, run: runs.Run) -> None:
    logger = kind()
    trainer = SimpleNamespace(
        callback_metrics={"x": torch.tensor(1.0)}, global_step=1, world_size=2
    )
    logger.log_hyperparams({"lr": 0.1})
    logger.log_metrics({"x": 1.0}, step=1)
    logger.experiment.anything("goes")
    for name, arguments in {
        "add_picture": ("x", torch.zeros(3, 2, 2, dtype=torch.uint8), 1),
        "log_manifest": ({"git": {"commit": "f00d"}},),
        "log_graph": (net(),),
        **dict.fromkeys(["record_fit_start", "record_fit_end"], (trainer, net())),
    }.items():
        getattr(logger, name, lambda *_: None)(*arguments)
    logger.finalize("success")
    assert list(run.folder.iterdir()) == []
    assert {path.name for path in run.root.iterdir()} == {run.name}

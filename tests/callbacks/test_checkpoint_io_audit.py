from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.plugins import CheckpointIO
from torch.utils.data import DataLoader

from lightkit.callbacks import Checkpoint, VerifiedCheckpointIO
from lightkit.callbacks.checkpoint_io import missing_checkpoint


class Point(LightningModule):
    """One weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: Any, index: int) -> Any:
        return self.layer(batch).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Scores(Callback):
    """Logs a metric for each epoch."""

    def __init__(self, scores: list[float]) -> None:
        self.scores = scores

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.log("score", self.scores[trainer.current_epoch])


def _trained(*callbacks: Callback, plugin: CheckpointIO | None = None) -> Trainer:
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        callbacks=list(callbacks),
        plugins=[plugin or VerifiedCheckpointIO()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Point(), DataLoader(torch.ones(2, 1)))  # type: ignore[arg-type]
    return trainer


def _kept(folder: Path) -> Trainer:
    every: Any = ModelCheckpoint(
        dirpath=folder / "elsewhere",
        filename="{step}",
        save_top_k=-1,
        every_n_train_steps=1,
        save_last=True,
    )
    return _trained(Checkpoint(monitor=None, dirpath=str(folder / "checkpoints")), every)


def test_all_is_well_where_all_are_there(tmp_path: Path) -> None:
    assert missing_checkpoint(_kept(tmp_path)) is None


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "elsewhere/step=4.ckpt",
        "elsewhere/last.ckpt",
    ],
)
def test_a_checkpoint_that_is_gone_is_reported(name: str, tmp_path: Path) -> None:
    trainer = _kept(tmp_path)
    (tmp_path / name).unlink()
    assert missing_checkpoint(trainer) == f"{tmp_path / name} is missing"


def test_nan_is_never_the_best_and_is_reported_where_no_epoch_had_more(tmp_path: Path) -> None:
    trainer = _trained(
        Scores([math.nan, math.nan]), Checkpoint(monitor="score", dirpath=str(tmp_path))
    )
    broken = missing_checkpoint(trainer) or ""
    assert broken.startswith(
        f"{tmp_path}/best.ckpt was not written: score, which callbacks.checkpoint monitors, was"
    )
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == ["last-1.ckpt", "last.ckpt"]


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize(
    ("scores", "best"), [([math.nan, 2.0], 1), ([2.0, math.nan], 0)], ids=["first", "then"]
)
def test_an_epoch_that_was_measured_is_better_than_nan(
    mode: Any, scores: list[float], best: int, tmp_path: Path
) -> None:
    trainer = _trained(
        Scores(scores), keeper := Checkpoint(monitor="score", mode=mode, dirpath=str(tmp_path))
    )
    assert missing_checkpoint(trainer) is None
    assert torch.load(tmp_path / "best.ckpt", weights_only=True)["epoch"] == best
    assert keeper.best_model_score == 2.0


def test_nothing_is_promised_before_it_is_due(tmp_path: Path) -> None:
    later: Any = ModelCheckpoint(dirpath=tmp_path, save_last=True, every_n_epochs=5)
    assert missing_checkpoint(_trained(later)) is None

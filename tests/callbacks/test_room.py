from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningModule, Trainer
from torch.utils.data import DataLoader

from lightkit import runs
from lightkit.callbacks import Checkpoint, VerifiedCheckpointIO
from lightkit.errors import CheckpointError
from lightkit.runs import files


class Wide(LightningModule):
    """Some hundred kilobytes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(300, 300)

    def training_step(self, batch: Any, index: int) -> Any:
        return self.layer(batch).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.1)


def _fit(run: runs.Run) -> Trainer:
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=3,
        callbacks=[Checkpoint(monitor=None, dirpath=str(run.checkpoints))],
        plugins=[VerifiedCheckpointIO()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Wide(), DataLoader(torch.ones(2, 300)))  # type: ignore[arg-type]
    return trainer


def test_a_training_whose_first_checkpoint_does_not_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs.create(tmp_path, "job")
    monkeypatch.setattr(files, "free_bytes", lambda _: 300_000)
    with pytest.raises(CheckpointError, match=r"last\.ckpt needs 4\d\d kB, but 300 kB are free"):
        _fit(run)
    assert not list(tmp_path.rglob("*.ckpt"))
    monkeypatch.setattr(files, "free_bytes", lambda _: 2_000_000)
    assert _fit(run).global_step == 6

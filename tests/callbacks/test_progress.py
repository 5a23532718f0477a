from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightkit import runs
from lightkit.callbacks import RunRecorder
from lightkit.callbacks.progress import PlainProgress, RichProgress, SilentProgress, create_progress

# Lightning 2.6.6 asks torch 2.15 for a name that is going; seen 2026-11-20.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:.*isinstance\(treespec, LeafSpec\).*", "ignore:.*does not have many workers.*"
)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("terminal", RichProgress),
        ("plain", PlainProgress),
        ("quiet", SilentProgress),
        ("json", SilentProgress),
    ],
)
def test_each_screen_has_its_progress(mode: Any, kind: type) -> None:
    assert type(create_progress(mode)) is kind


class Late(pl.LightningModule):
    """Logs what it is given, where torchmetrics users log: at the end of the epoch."""

    by_step: Mapping[str, float] = {}

    def __init__(self, logs: Mapping[str, float]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.logs = logs

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).mean()
        self.log_dict(dict(self.by_step))
        return loss

    def on_train_epoch_end(self) -> None:
        self.log_dict(dict(self.logs))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _shown(
    logs: Mapping[str, float],
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    *,
    max_epochs: int = 1,
) -> list[str]:
    run = runs.create(folder, "late")
    loader = DataLoader(TensorDataset(torch.ones(4, 1)), batch_size=4)
    trainer = pl.Trainer(
        max_epochs=max_epochs,
        max_steps=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        callbacks=[PlainProgress(), RunRecorder(run, events=runs.EventStream(run.events_path))],
    )
    trainer.fit(Late(logs), loader)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("logs", "shown"),
    [
        ({"mae": 0.5}, "mae 0.5"),
        ({"train/loss": 0.25, "train/f1": 0.5}, "train/loss 0.25"),
        ({f"m{number}": 1.0 for number in range(9)}, "m0 1  m1 1  m2 1  m3 1  m4 1  m5 1"),
        ({"loss": float("nan")}, "loss nan"),
    ],
    ids=["late", "telling", "many", "nan"],
)
def test_the_line_has_what_reports_most(
    logs: Mapping[str, float], shown: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (epoch,) = _shown(logs, capsys, tmp_path)
    assert re.fullmatch(rf"epoch 0 \(1 of 1\)  {shown}  \d+\.\d s  \d+ samples/s", epoch)


def test_the_line_names_the_value_of_the_last_step_as_such(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Late, "by_step", {"train/loss": 0.25, "other": 1.0})
    (epoch,) = _shown({"val/loss": 0.5}, capsys, tmp_path)
    assert "  train/loss_step 0.25  val/loss 0.5  " in epoch
    assert "train/loss 0.25" not in epoch


def test_without_a_last_epoch_the_line_counts_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = _shown({"mae": 0.5}, capsys, tmp_path, max_epochs=-1)
    assert [line.split("  ")[0] for line in lines] == ["epoch 0", "epoch 1"]

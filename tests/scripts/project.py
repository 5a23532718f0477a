"""A small project of a user's, and the runs that it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

MINE = '''\
"""What somebody wrote beside their configs."""

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from torch.utils.data import DataLoader, TensorDataset


class Net(LightningModule):
    """A small network that drops units."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
        )

    def training_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val/loss", torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Points(LightningDataModule):
    """Points near a plane, shuffled by torch's own loader."""

    def _loader(self, shuffle):
        x = torch.randn(48, 3, generator=torch.Generator().manual_seed(3))
        return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=shuffle)

    def train_dataloader(self):
        return self._loader(True)

    def val_dataloader(self):
        return self._loader(False)
'''

SMALL: dict[str, Any] = {
    "seed_everything": 7,
    "model": {"class_path": "mine.Net"},
    "data": {"class_path": "mine.Points"},
    "trainer": {"accelerator": "cpu", "max_epochs": 3, "log_every_n_steps": 1, "logger": False},
}


def write_project(folder: Path, config: dict[str, Any]) -> Path:
    """Write `mine.py` and a config, `job.yaml`, into a working directory."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.py").write_text(MINE, encoding="utf-8")
    (folder / "job.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder


def list_runs(folder: Path) -> list[Path]:
    """List the folders of all runs below a working directory, oldest first."""
    return sorted(
        path for path in folder.glob("runs/[!.]*/2*-*") if path.is_dir() and not path.is_symlink()
    )

"""The data: replace `Points` with your own LightningDataModule."""

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset


class Points(pl.LightningDataModule):
    """Random points in the plane with the value sin(x) * y.

    Args:
        batch_size: Points of a batch.
    """

    def __init__(self, batch_size: int = 32) -> None:
        super().__init__()
        self.batch_size = batch_size

    def _points(self, number: int, seed: int) -> TensorDataset:
        points = torch.rand(number, 2, generator=torch.Generator().manual_seed(seed)) * 4 - 2
        return TensorDataset(points, torch.sin(points[:, :1]) * points[:, 1:])

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self._points(512, seed=1), self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self._points(128, seed=2), self.batch_size)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(self._points(128, seed=3), self.batch_size)

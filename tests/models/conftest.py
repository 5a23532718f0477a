"""Small images, data modules and trainers that the tests of models share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningDataModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.trainers import quiet_trainer

CLASS_NAMES = ["daisy", "rose", "tulip"]


class SmallImages(LightningDataModule):
    """Three classes that differ in where the image is bright.

    The last batch is smaller than the others.
    """

    def __init__(
        self,
        *,
        num_images: int = 22,
        batch_size: int = 8,
        size: int = 32,
        class_names: Sequence[str] | None = CLASS_NAMES,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.labels = torch.randint(3, (num_images,), generator=generator)
        self.images = torch.randn(num_images, 3, size, size, generator=generator)
        for index, label in enumerate(self.labels):
            self.images[index, :, int(label) * size // 3 : (int(label) + 1) * size // 3] += 1.0
        self.batch_size = batch_size
        self.image_size = size
        if class_names is not None:
            self.class_names = list(class_names)

    def _loader(self) -> DataLoader[Any]:
        dataset: Dataset[tuple[Tensor, ...]] = TensorDataset(self.images, self.labels)
        return DataLoader(dataset, batch_size=self.batch_size)

    train_dataloader = val_dataloader = test_dataloader = predict_dataloader = _loader


@pytest.fixture
def small_images() -> type[SmallImages]:
    return SmallImages


@pytest.fixture
def make_trainer(tmp_path: Path) -> Callable[..., Trainer]:
    """A quiet trainer on the CPU."""

    def make(**settings: Any) -> Trainer:
        if any(isinstance(callback, ModelCheckpoint) for callback in settings.get("callbacks", [])):
            settings = {"enable_checkpointing": True, **settings}
        return quiet_trainer(tmp_path, **settings)

    return make


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            # 2026-11: Lightning 2.6 asks for loader workers, which would only slow down tests of a
            # few batches
            item.add_marker(pytest.mark.filterwarnings("ignore:.*does not have many workers"))
            # and some of them train without validating
            item.add_marker(
                pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")
            )

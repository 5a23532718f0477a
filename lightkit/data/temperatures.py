"""Fahrenheit and Celsius: the smallest regression there is, for trying things out."""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar

import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightkit.config.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt
from lightkit.data.image_module import seed_of
from lightkit.data.loader import ResumableLoader, eval_loader, predict_loader, train_loader
from lightkit.data.sampler import SampleKey, stable_seed
from lightkit.errors import ConfigError
from lightkit.images.splits import Split

LOWEST_F = -100.0
HIGHEST_F = 300.0
_SPLITS: tuple[Split, ...] = ("train", "val", "test")


class TemperatureDataset(Dataset[tuple[Tensor, Tensor]]):
    """Pairs of the same temperature in degrees Fahrenheit and in degrees Celsius.

    A pair is two float32 tensors of shape ``(1,)``. The temperatures are spread evenly from -100 to
    300 °F.

    Args:
        num_samples: Number of pairs.
        noise: Standard deviation of a normal error on the Celsius side, in °C.
        seed: Decides temperatures and errors.
    """

    def __init__(self, num_samples: int = 1000, noise: float = 0.0, seed: int = 0) -> None:
        if num_samples < 1:
            raise ConfigError(f"data.init_args.num_samples: expected 1 or more, got {num_samples}")
        if noise < 0:
            raise ConfigError(
                f"data.init_args.noise: expected 0 or more degrees Celsius, got {noise}"
            )
        generator = torch.Generator().manual_seed(seed)
        self.fahrenheit = (
            torch.rand(num_samples, 1, generator=generator) * (HIGHEST_F - LOWEST_F) + LOWEST_F
        )
        self.celsius = (self.fahrenheit - 32) * 5 / 9 + noise * torch.randn(
            num_samples, 1, generator=generator
        )

    def __len__(self) -> int:
        return len(self.fahrenheit)

    def __getitem__(self, key: SampleKey | int) -> tuple[Tensor, Tensor]:
        index = key.index if isinstance(key, SampleKey) else key
        return self.fahrenheit[index], self.celsius[index]


class Temperatures(LightningDataModule):
    """Fahrenheit to Celsius: batches of two float32 tensors of shape (batch, 1).

    Args:
        num_samples: Pairs to train on; validation and test have a quarter of that each.
        batch_size: Pairs of one batch on one process.
        num_workers: Processes that load; 0, as there is next to nothing to load.
        noise: Standard deviation of an error on the Celsius side of the training pairs, in °C; the
            others are exact.
        seed: Decides pairs and order; default is the run's seed_everything.
    """

    sample_arguments: ClassVar[tuple[str, ...]] = ("num_samples", "noise", "seed")
    """Arguments that choose the samples of a split: in a gate the same for both models. The others
    prepare them."""

    def __init__(
        self,
        num_samples: PositiveInt = 1000,
        batch_size: PositiveInt = 32,
        num_workers: NonNegativeInt = 0,
        noise: NonNegativeFloat = 0.0,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.noise = noise
        self.seed = seed
        self.datasets: dict[Split, TemperatureDataset] = {}

    def setup(self, stage: str | None = None) -> None:
        """Make the pairs, once."""
        if self.datasets:
            return
        for number, split in enumerate(_SPLITS):
            self.datasets[split] = TemperatureDataset(
                self.num_samples if split == "train" else max(1, self.num_samples // 4),
                noise=self.noise if split == "train" else 0.0,
                seed=stable_seed(seed_of(self), number),
            )

    def describe(self) -> dict[str, Any]:
        """Return the manifest's entry of the data."""
        self.setup()
        tensors = [
            tensor for data in self.datasets.values() for tensor in (data.fahrenheit, data.celsius)
        ]
        return {
            "source": "Temperatures",
            "root": None,
            "fingerprint": (
                hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()
            ),
            "counts": {split: len(data) for split, data in self.datasets.items()},
        }

    @property
    def predict_paths(self) -> list[str]:
        """Names of the pairs behind `predict_dataloader`, in its order."""
        return [
            f"{fahrenheit:.2f} °F"
            for fahrenheit in self.datasets["test"].fahrenheit.flatten().tolist()
        ]

    def train_dataloader(self) -> ResumableLoader:
        """Shuffled batches; after a restored checkpoint, the rest of its epoch first."""
        return train_loader(self.datasets["train"], **self._loading)

    def val_dataloader(self) -> DataLoader[Any]:
        """Pairs that are not trained on."""
        return eval_loader(self.datasets["val"], **self._loading)

    def test_dataloader(self) -> DataLoader[Any]:
        """Pairs that are neither trained nor validated on."""
        return eval_loader(self.datasets["test"], **self._loading)

    def predict_dataloader(self) -> DataLoader[Any]:
        """The test pairs again."""
        return predict_loader(self.datasets["test"], **self._loading)

    @property
    def _loading(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "seed": seed_of(self),
            "trainer": self.trainer,
        }

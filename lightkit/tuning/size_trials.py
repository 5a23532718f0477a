"""A short training with one batch size: how long a step takes, and how much memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from pytorch_lightning.utilities.data import extract_batch_size
from pytorch_lightning.utilities.memory import garbage_collection_cuda

from lightkit.errors import ConfigError
from lightkit.tuning.memory_limits import ResidentPeak, cuda_limited, is_out_of_memory
from lightkit.tuning.short_fits import by_itself, short_trainer, synchronized

__all__ = ["MOST", "Trial", "TriedSize", "batch_size_of", "set_batch_size"]

MOST = 8192
"""No batch is larger: the limit of Lightning's finder."""
_FEWEST_STEPS, _MOST_STEPS = 3, 50  # timed, after one that is not
_LONG_ENOUGH_S = 0.5


@dataclass(frozen=True)
class TriedSize:
    """What a short training with one batch size has shown.

    Args:
        batch_size: Samples of one batch.
        step_s: Least seconds of a step, the one that other processes disturbed least; None where memory was short.
        samples_per_s: Samples of a whole batch by those seconds.
        peak_bytes: Most memory that was held: the GPU's, else this process's.
    """

    batch_size: int
    step_s: float | None = None
    samples_per_s: float | None = None
    peak_bytes: int | None = None


def batch_size_of(datamodule: LightningDataModule) -> Any:
    """Give what the loaders go by.

    Raises:
        ConfigError: If there is nothing of that name.
    """
    if hasattr(datamodule, "batch_size"):
        return datamodule.batch_size
    if "batch_size" in datamodule.hparams:
        return datamodule.hparams["batch_size"]
    raise ConfigError(
        f"accelerator.batch_size: auto needs an attribute batch_size that the loaders of {type(datamodule).__name__} "
        "go by (self.batch_size, or save_hyperparameters), and it has none. Give a number."
    )


def set_batch_size(datamodule: LightningDataModule, size: Any) -> None:
    """Have the loaders that are made from now on go by a size."""
    if hasattr(datamodule, "batch_size"):
        datamodule.batch_size = size
    if "batch_size" in datamodule.hparams:
        datamodule.hparams["batch_size"] = size


class Trial:
    """A short training with a batch size."""

    def __init__(
        self,
        build: Callable[[], LightningModule],
        datamodule: LightningDataModule,
        trainer_values: Mapping[str, Any],
        seed: int,
        callbacks: Callable[[], Sequence[Callback]],
        folder: Path,
    ) -> None:
        self._build, self._datamodule, self._seed, self._callbacks = build, datamodule, seed, callbacks
        self._values = {**trainer_values, "limit_train_batches": None, "overfit_batches": None}
        self._folder = folder
        self._loaders: dict[tuple[float, int | None], int] = {}
        self.device = self._trainer([]).strategy.root_device
        self.on_cpu = self.device.type == "cpu"
        self.most_samples: int | None = None
        """Samples that there are; None where nobody knows."""

    def run(self, size: int) -> TriedSize:
        """Try a size.

        Raises:
            ConfigError: If the data goes on as with another size.
        """
        set_batch_size(self._datamodule, size)
        steps = _Steps()
        fits, peak_bytes = self._fit(steps)
        garbage_collection_cuda()
        if not fits:
            return TriedSize(size)
        self._check_loader(size, steps)
        step_s = min(steps.seconds[1:] or steps.seconds)
        return TriedSize(size, step_s, min(size, self.most_samples or size) / step_s, peak_bytes)

    def _fit(self, steps: _Steps) -> tuple[bool, int]:
        seed_everything(self._seed, workers=True, verbose=False)
        trainer = self._trainer([*self._callbacks(), steps])
        device = trainer.strategy.root_device
        with cuda_limited(device) as limit_bytes, ResidentPeak() as held:
            try:
                trainer.fit(by_itself(self._build()), datamodule=self._datamodule)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                return False, 0
        return True, held.bytes if limit_bytes is None else torch.cuda.max_memory_allocated(device)

    def _trainer(self, callbacks: Sequence[Callback]) -> Trainer:
        return short_trainer(self._values, callbacks, folder=self._folder)

    def _check_loader(self, size: int, steps: _Steps) -> None:
        """Find out how many samples there are, and whether the loader has followed the attribute."""
        if steps.num_samples is not None:
            self.most_samples = steps.num_samples
        elif steps.num_batches != float("inf"):
            self.most_samples = int(steps.num_batches) * size
        other = self._loaders.setdefault((steps.num_batches, steps.batch_size), size)
        if other != size and steps.num_batches > 1:
            raise ConfigError(
                f"accelerator.batch_size: auto has set batch_size of {type(self._datamodule).__name__} to {other} and "
                f"to {size}, and its loader gave the same batches. Have it go by that attribute, or give a number."
            )


class _Steps(Callback):
    """Times the steps of a short training, and ends it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.num_batches: float = 0
        self.num_samples: int | None = None
        self.batch_size: int | None = None
        self._begun_s = 0.0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let it last as long as it takes; schedules, which may wait for a validation, have nothing to say in it."""
        trainer.fit_loop.max_epochs, trainer.fit_loop.epoch_loop.max_steps = -1, -1
        trainer.strategy.lr_scheduler_configs = []
        if pl_module.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(pl_module.device)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin a step."""
        if not self.seconds:
            self._look_at(trainer, batch)
        self._begun_s = _now_s(pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End it, and the training after enough of them; the last of an epoch may have fewer samples."""
        if batch_idx + 1 == self.num_batches > 1:
            return
        self.seconds.append(_now_s(pl_module) - self._begun_s)
        timed = self.seconds[1:]
        is_enough = len(timed) >= _FEWEST_STEPS and sum(timed) >= _LONG_ENOUGH_S
        trainer.should_stop = is_enough or len(timed) >= _MOST_STEPS

    def _look_at(self, trainer: Trainer, batch: Any) -> None:
        self.num_batches = trainer.num_training_batches
        dataset = getattr(trainer.train_dataloader, "dataset", None)
        if isinstance(dataset, Sized):
            self.num_samples = len(dataset)
        with suppress(MisconfigurationException):  # there is no tensor in it
            self.batch_size = extract_batch_size(batch)


def _now_s(module: LightningModule) -> float:
    synchronized(module.device)
    return time.perf_counter()

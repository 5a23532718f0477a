"""A few batches of a config's data as training would get them, before any of it is computed on."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pytorch_lightning import LightningDataModule, LightningModule, Trainer
from pytorch_lightning.utilities.combined_loader import CombinedLoader

from lightkit.launch import heartbeat
from lightkit.tuning.short_fits import MEASURING, PREPARING, num_batches_of

__all__ = ["Batches", "count_samples", "taken_batches"]

_T = TypeVar("_T")

_NUM_BATCHES = 4
_MOST_S = 8.0
_LIMITS = ("limit_train_batches", "overfit_batches", "reload_dataloaders_every_n_epochs")
_ALONE: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "max_epochs": 0,
    "limit_val_batches": 0,
    "num_sanity_val_steps": 0,
}
_UNSEEN: dict[str, Any] = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)


@dataclass(frozen=True)
class Batches:
    """What a training would compute on.

    Args:
        items: Batches as the loader gives them, on the CPU.
        per_epoch: Number of them in an epoch, whatever limits the training; None where nobody knows.
        load_s: Median seconds in which this process alone loads one; None where others load.
    """

    items: tuple[Any, ...]
    per_epoch: int | None
    load_s: float | None


class _StandIn(LightningModule, Generic[_T]):
    """Looks at the loader once the trainer has made it, and trains nothing.

    Data modules that ask which model they feed see none of lightkit's: they give what any model would get.
    """

    def __init__(self, look: Callable[[Trainer], _T]) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.seen: list[_T] = []
        self._look = look

    def training_step(self, *_: Any) -> None:
        """Lightning asks for one."""

    def configure_optimizers(self) -> None:
        """Lightning asks for one."""

    def on_fit_end(self) -> None:
        """The loader is there, and the data not torn down yet."""
        heartbeat().enter(MEASURING)
        self.seen.append(self._look(self.trainer))
        heartbeat().enter(PREPARING)


def taken_batches(
    model: LightningModule | None, data: LightningDataModule | None, values: Mapping[str, Any], *, folder: str
) -> Batches:
    """Take batches of the train split.

    Args:
        model: Gives the loader where there is no data module.
        data: The data module.
        values: The config's `trainer` section; its limits count.
        folder: For what is written.
    """
    return _seen(_taken, model, data, values, folder)


def count_samples(
    model: LightningModule | None, data: LightningDataModule | None, values: Mapping[str, Any], *, folder: str
) -> list[int | None] | None:
    """Count the samples of the train split, and its batches in an epoch; None where there is no end of them.

    Args:
        model: Gives the loader where there is no data module.
        data: The data module.
        values: The config's `trainer` section; its limits count.
        folder: For what is written.
    """
    return _seen(_counted, model, data, values, folder)


def _seen(
    look: Callable[[Trainer], _T],
    model: LightningModule | None,
    data: LightningDataModule | None,
    values: Mapping[str, Any],
    folder: str,
) -> _T:
    limits = {key: values[key] for key in _LIMITS if values.get(key) is not None}
    stand_in = _StandIn(look)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the training warns of the same
        trainer = Trainer(**_ALONE, **_UNSEEN, **limits, default_root_dir=folder, plugins=[LightningEnvironment()])
        if data is None and model is not None:
            stand_in.train_dataloader = model.train_dataloader  # type: ignore[method-assign]
            model.trainer = trainer  # whose data the loaders may ask for
            model.prepare_data()
            model.setup("fit")
        trainer.fit(stand_in, datamodule=data)
    return stand_in.seen[0]


def _counted(trainer: Trainer) -> list[int | None] | None:
    number, dataset = trainer.num_training_batches, getattr(trainer.train_dataloader, "dataset", None)
    counted = [len(dataset) if isinstance(dataset, Sized) else None, None if number == float("inf") else int(number)]
    return None if counted == [None, None] else counted


def _taken(trainer: Trainer) -> Batches:
    number: float = trainer.num_training_batches
    loaders: Any = trainer.train_dataloader
    batches: list[Any] = []
    seconds: list[float] = []
    began = time.monotonic()
    are_several = isinstance(loaders, (dict, list))
    loading: Iterator[Any] = iter(CombinedLoader(loaders, "max_size_cycle") if are_several else loaders)
    while len(batches) < min(_NUM_BATCHES, number) and not (batches and time.monotonic() - began > _MOST_S):
        before = time.monotonic()
        batch = next(loading, None)
        if batch is None:
            break
        heartbeat().beat()
        batches.append(batch[0] if are_several else batch)
        seconds.append(time.monotonic() - before)
    alone = getattr(loaders, "num_workers", None) == 0
    steady = sorted(seconds[1:] or seconds)  # the first one opens files
    return Batches(
        tuple(batches),
        per_epoch=num_batches_of(trainer),
        load_s=steady[len(steady) // 2] if steady and alone else None,
    )

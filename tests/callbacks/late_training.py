"""A training whose clock is moved by its batches, and which has a deadline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.strategies import SingleDeviceStrategy
from torch.utils.data import DataLoader, Sampler, TensorDataset

from lightkit import runs
from lightkit.callbacks import Checkpoint, ResumeState, interruption
from lightkit.runs import deadline
from lightkit.runs.deadline import Deadline

BATCHES = 10


class Plane(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Any, _index: int) -> None:
        self.log("val/loss", self.layer(batch[0]).square().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Order(Sampler[int]):
    """The samples one after another, from any on."""

    start = 0

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return self.batches - self.start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.batches))

    def resume(self, *, epoch: int, batches: int) -> None:
        """Skip these."""
        self.start = batches if epoch == 0 else 0


class OfTwo(SingleDeviceStrategy):
    """One of two ranks, of which the other one never wants anything.

    Counts the messages that they send.
    """

    def __init__(self) -> None:
        super().__init__(device="cpu")
        self.world_size = 2
        self.num_messages = 0

    def all_gather(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Give what both say."""
        self.num_messages += 1
        return torch.stack([tensor, torch.zeros_like(tensor)])

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002 (Lightning's name)
        """Tell what this one says: where any rank decides, the other has nothing to add."""
        self.num_messages += 1
        return decision


class Hands(Callback):
    """A clock on which a training batch takes ten seconds.

    A validation batch takes one, unless set otherwise.
    """

    def __init__(
        self,
        slow_from: int = 1000,
        slow_s: float = 10.0,
        start_s: float = 0.0,
        *,
        batch_s: float = 10.0,
        val_s: float = 1.0,
    ) -> None:
        self.now_s = start_s
        self.batch_s, self.val_s = batch_s, val_s
        self.slow_from, self.slow_s = slow_from, slow_s
        self.spikes_s: dict[int, float] = {}

    def __call__(self) -> float:
        return self.now_s

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        usual_s = self.slow_s if trainer.global_step >= self.slow_from else self.batch_s
        self.now_s += self.spikes_s.get(trainer.global_step, usual_s)

    def on_validation_batch_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        if not trainer.sanity_checking:
            self.now_s += self.val_s


def trained(
    folder: Path,
    deadline_s: float,
    hands: Hands,
    *,
    resumable: bool = False,
    ckpt: Path | None = None,
    save_every: int | None = None,
    batches: int = BATCHES,
    callbacks: Sequence[Callback] = (),
    **trainer: Any,
) -> tuple[Trainer, list[str]]:
    """Train epochs of 10 batches and 5 for validation: 105 s by the clock.

    Args:
        save_every: Steps after which it is saved within an epoch.
        batches: Those of an epoch, where they are not 10.
    """
    stopped: list[str] = []
    keeper = Checkpoint(dirpath=str(folder), save_last_every_n_steps=save_every)
    stop = interruption.StopAtDeadline(
        Deadline(datetime.fromtimestamp(deadline_s, UTC), deadline_s),
        last_good=lambda: runs.last_good(folder) or next(folder.glob("last.ckpt"), None),
        stopped=lambda: stopped.append("deadline"),
    )
    data = TensorDataset(torch.ones(batches, 2))
    sampler = Order(batches) if resumable else None
    made = Trainer(
        accelerator="cpu",
        callbacks=[hands, ResumeState(), stop, keeper, *callbacks],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **{"max_epochs": 20, "num_sanity_val_steps": 0, "log_every_n_steps": 1, **trainer},
    )
    loader = DataLoader(data, sampler=sampler)
    with (
        mock.patch.object(interruption, "elapsed_s", hands),
        mock.patch.object(deadline, "elapsed_s", hands),
    ):
        made.fit(Plane(), loader, DataLoader(TensorDataset(torch.ones(5, 2))), ckpt_path=ckpt)
    return made, stopped

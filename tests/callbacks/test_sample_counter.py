"""How many samples an evaluation has scored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from lightkit.callbacks.sample_counter import SampleCounter, count_samples


class _Counting(Callback):
    counter: SampleCounter
    total: int | None = None

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.counter = SampleCounter()

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        loader: int = 0,
    ) -> None:
        self.counter.add(batch, outputs, loader=loader)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.total = self.counter.total(trainer, trainer.test_dataloaders)


class _Silent(LightningModule):
    def test_step(self, batch: Any, index: int, dataloader_idx: int = 0) -> None:
        pass


class _Weighted(LightningModule):
    def test_step(self, batch: Any, index: int) -> dict[str, torch.Tensor]:
        return {"target": batch[0], "weights": batch[0]}


X, Y = torch.arange(10.0), torch.zeros(10, 3)
PAIRS = TensorDataset(X, Y)
BATCHES = TensorDataset(torch.zeros(3, 4, 2))  # each element is a batch of 4


def _join(samples: list[Any]) -> dict[str, Any]:
    return {
        "x": torch.stack([x for x, _ in samples]),
        "name": ["a"] * len(samples),
        "scale": torch.tensor(1.0),
    }


@pytest.mark.parametrize(
    ("loaders", "options", "expected"),
    [
        (DataLoader(PAIRS, 4), {}, 10),
        (DataLoader(PAIRS, 4, drop_last=True), {}, 8),
        (DataLoader(PAIRS, 4), {"limit_test_batches": 2}, 8),
        (DataLoader(PAIRS, 4, sampler=SubsetRandomSampler([1, 2, 3])), {}, 3),
        (DataLoader(PAIRS, 4, sampler=[0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]), {}, 10),
        (DataLoader(PAIRS, 4, collate_fn=_join), {}, 10),
        ([DataLoader(PAIRS, 4), DataLoader(PAIRS, 3)], {"limit_test_batches": 2}, 14),
        (DataLoader(BATCHES, batch_size=None), {}, 12),
        (
            DataLoader(
                PAIRS,
                batch_size=None,
                sampler=BatchSampler(SequentialSampler(PAIRS), 4, drop_last=False),
            ),
            {},
            10,
        ),
        (
            DataLoader(TensorDataset(X, X), 5, collate_fn=lambda each: ["text"] * len(each)),
            {},
            None,
        ),
    ],
    ids=[
        "all",
        "last left out",
        "limit",
        "sampler",
        "more than there are",
        "mapping",
        "several loaders",
        "whole batches",
        "lists of samples",
        "no tensors",
    ],
)
def test_samples_are_counted_as_they_were_scored(
    loaders: Any, options: dict[str, Any], expected: int | None
) -> None:
    counting = _Counting()
    trainer = Trainer(
        accelerator="cpu",
        callbacks=[counting],
        logger=False,
        enable_progress_bar=False,
        barebones=False,
        **options,
    )
    trainer.test(_Silent(), loaders, verbose=False)
    assert counting.total == expected


def test_samples_without_weight_do_not_count() -> None:
    counting = _Counting()
    trainer = Trainer(
        accelerator="cpu", callbacks=[counting], logger=False, enable_progress_bar=False
    )
    trainer.test(_Weighted(), DataLoader(PAIRS, 4), verbose=False)
    assert counting.total == 9  # X is 0 once


@pytest.mark.parametrize(
    ("batch", "outputs", "expected"),
    [
        (torch.zeros(4, 3), None, 4),
        ((torch.zeros(4, 3), torch.zeros(5)), None, None),
        ((torch.zeros(4, 3), torch.zeros(5)), {"target": torch.zeros(5)}, 5),
        ({"a": [torch.zeros(2), torch.zeros(2, 7)]}, None, 2),
        (torch.tensor(1.0), None, None),
        (None, None, None),
    ],
    ids=["tensor", "of two sizes", "of two sizes, with targets", "nested", "a number", "nothing"],
)
def test_the_size_of_a_batch_is_known_where_its_tensors_agree(
    batch: Any, outputs: Any, expected: int | None
) -> None:
    assert count_samples(batch, outputs) == expected

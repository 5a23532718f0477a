"""What each of several processes gets to evaluate."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_lightning import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from lightkit.data import eval_loader


def loader_of(rank: int, *, num: int, ranks: int, batch_size: int, num_workers: int = 0) -> DataLoader[Any]:
    place: Any = SimpleNamespace(
        world_size=ranks, global_rank=rank, strategy=SimpleNamespace(root_device=torch.device("cpu"))
    )
    data: Any = range(num)
    return eval_loader(data, batch_size=batch_size, seed=0, trainer=place, num_workers=num_workers)


def batches_of(rank: int, **what: int) -> list[list[int]]:
    loader = loader_of(rank, **what)
    batches = [batch.tolist() for batch in loader]
    assert len(loader) == len(batches)
    return batches


@settings(deadline=None, derandomize=True)
@given(num=st.integers(0, 70), ranks=st.integers(2, 6), batch_size=st.integers(1, 20))
def test_every_sample_counts_once_and_no_rank_waits_for_another(num: int, ranks: int, batch_size: int) -> None:
    shares = [batches_of(rank, num=num, ranks=ranks, batch_size=batch_size) for rank in range(ranks)]
    num_batches = math.ceil(math.ceil(num / ranks) / batch_size)
    assert [len(share) for share in shares] == [num_batches] * ranks
    sizes = [[len(batch) for batch in share] for share in shares]
    assert all(0 < size <= batch_size for share in sizes for size in share)
    assert all(max(share) - min(share) <= 1 for share in sizes if share)
    seen = sorted(index for share in shares for batch in share for index in batch)
    if batch_size > 1 and num >= ranks:
        assert seen == list(range(num))
    else:  # a batch cannot be empty: some samples are there twice
        assert set(seen) == set(range(num))
        assert len(seen) <= ranks * num_batches * batch_size


@pytest.mark.parametrize(
    ("num", "batch_size", "expected"),
    [
        (7, 2, [[[0, 2], [4, 6]], [[1, 3], [5]]]),
        (9, 4, [[[0, 2, 4], [6, 8]], [[1, 3], [5, 7]]]),  # four in one batch would leave rank 1 without a second one
        (3, 1, [[[0], [2]], [[1], [0]]]),
        (1, 4, [[[0]], [[0]]]),
        (0, 4, [[], []]),
    ],
    ids=["a rest", "as many batches", "batch size 1", "fewer samples than ranks", "none"],
)
def test_two_ranks_take_turns(num: int, batch_size: int, expected: list[list[list[int]]]) -> None:
    assert [batches_of(rank, num=num, ranks=2, batch_size=batch_size) for rank in (0, 1)] == expected


def test_workers_give_the_same_batches() -> None:
    loader = loader_of(1, num=9, ranks=2, batch_size=4, num_workers=2)
    assert [batch.tolist() for _ in range(2) for batch in loader] == [[1, 3], [5, 7]] * 2


def test_one_process_gets_full_batches() -> None:
    assert batches_of(0, num=9, ranks=1, batch_size=4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


class Watching(LightningModule):
    """Notes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def val_dataloader(self) -> DataLoader[Any]:
        data: Any = TensorDataset(torch.arange(9.0)[:, None])
        return eval_loader(data, batch_size=4, seed=0, trainer=self.trainer)

    train_dataloader = val_dataloader

    def training_step(self, batch: Any, index: int) -> Any:
        return self.layer(batch[0]).mean()

    def validation_step(self, batch: Any, index: int) -> None:
        self.seen.append(batch[0].flatten().int().tolist())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("settings", "seen"),
    [({}, [[1, 3], [5, 7]]), ({"overfit_batches": 1}, [[1, 3, 5, 7]])],
    ids=["as it is", "overfit_batches"],
)
def test_lightning_leaves_the_shares_alone_unless_it_overfits(
    settings: dict[str, Any], seen: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 of two, which nobody has to wait for as nothing is exchanged."""
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **settings,
    )
    monkeypatch.setattr(type(trainer), "world_size", 2)
    monkeypatch.setattr(type(trainer), "global_rank", 1)
    monkeypatch.setattr(type(trainer._accelerator_connector), "is_distributed", True)
    monkeypatch.setattr(type(trainer), "distributed_sampler_kwargs", {"num_replicas": 2, "rank": 1})
    model = Watching()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(model)
    assert model.seen == seen

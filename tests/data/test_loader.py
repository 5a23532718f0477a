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

from lightkit.data import eval_loader, predict_loader, train_loader
from lightkit.errors import ConfigError


class Place:
    """The trainer of one of several ranks, as far as a loader asks it."""

    def __init__(self, world_size: int, global_rank: int) -> None:
        self.world_size = world_size
        self.global_rank = global_rank
        self.strategy = SimpleNamespace(root_device=torch.device("cpu"))
        self.is_global_zero = global_rank == 0


def loader_of(
    rank: int, *, num: int, ranks: int, batch_size: int, num_workers: int = 0
) -> DataLoader[Any]:
    place: Any = Place(ranks, rank)
    data: Any = range(num)
    return eval_loader(data, batch_size=batch_size, seed=0, trainer=place, num_workers=num_workers)


def batches_of(rank: int, **what: int) -> list[list[int]]:
    loader = loader_of(rank, **what)
    batches = [batch.tolist() for batch in loader]
    assert len(loader) == len(batches)
    return batches


@settings(deadline=None, derandomize=True)
@given(num=st.integers(0, 70), ranks=st.integers(2, 6), batch_size=st.integers(1, 20))
def test_every_sample_counts_once_and_no_rank_waits_for_another(
    num: int, ranks: int, batch_size: int
) -> None:
    shares = [
        batches_of(rank, num=num, ranks=ranks, batch_size=batch_size) for rank in range(ranks)
    ]
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
        # four in one batch would leave rank 1 without a second one
        (9, 4, [[[0, 2, 4], [6, 8]], [[1, 3], [5, 7]]]),
        (3, 1, [[[0], [2]], [[1], [0]]]),
        (1, 4, [[[0]], [[0]]]),
        (0, 4, [[], []]),
    ],
    ids=["a rest", "as many batches", "batch size 1", "fewer samples than ranks", "none"],
)
def test_two_ranks_take_turns(num: int, batch_size: int, expected: list[list[list[int]]]) -> None:
    assert [
        batches_of(rank, num=num, ranks=2, batch_size=batch_size) for rank in (0, 1)
    ] == expected


def test_samples_that_count_twice_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Three samples in batches of one are four on two ranks; in batches of two none is repeated."""
    batches_of(0, num=3, ranks=2, batch_size=2)
    assert not caplog.records
    batches_of(0, num=3, ranks=2, batch_size=1)
    (record,) = caplog.records
    assert "count 1 sample more than the 3 that there are" in record.getMessage()


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


class Joined:
    """Numbers that are put together in a way of their own, as large as is said."""

    def __init__(self, num: int, sample_bytes: int = 8) -> None:
        self.num, self.sample_bytes = num, sample_bytes

    def __len__(self) -> int:
        return self.num

    def __getitems__(self, keys: list[Any]) -> str:
        return "+".join(
            str(getattr(key, "index", key)) if isinstance(key, tuple) else str(key) for key in keys
        )

    @staticmethod
    def collate(batch: str) -> str:
        return f"<{batch}>"


LOADERS = pytest.mark.parametrize(
    "make", [train_loader, eval_loader, predict_loader], ids=["train", "eval", "predict"]
)


@LOADERS
@pytest.mark.parametrize("num_workers", [0, 1], ids=["no worker", "a worker"])
def test_a_data_set_that_makes_whole_batches_has_them_handed_over(
    make: Any, num_workers: int
) -> None:
    batches = list(make(Joined(5), batch_size=2, seed=0, num_workers=num_workers))
    assert [batch.count("+") for batch in batches] == [1, 1, 0]
    assert sorted(number for batch in batches for number in batch.strip("<>").split("+")) == list(
        "01234"
    )


@LOADERS
def test_no_more_workers_than_batches(make: Any) -> None:
    assert make(Joined(5), batch_size=5, seed=0, num_workers=2).num_workers == 1
    assert make(Joined(0), batch_size=5, seed=0, num_workers=2).num_workers == 0


@LOADERS
def test_workers_prepare_as_far_ahead_as_is_said(make: Any) -> None:
    loader = make(Joined(50), batch_size=2, seed=0, num_workers=1, prefetch_factor=3)
    assert (loader.num_workers, loader.prefetch_factor) == (1, 3)
    assert loader.persistent_workers == (make is not predict_loader)
    with pytest.raises(
        ConfigError, match=r"data\.init_args\.prefetch_factor: expected 1 or more, got 0"
    ):
        make(Joined(50), batch_size=2, seed=0, prefetch_factor=0)


@LOADERS
def test_batches_that_the_shared_memory_does_not_hold_are_loaded_without_workers(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert (
        make(Joined(50, sample_bytes=10**15), batch_size=2, seed=0, num_workers=1).num_workers == 0
    )
    assert len(caplog.messages) == 1
    assert "docker run --shm-size=2g" in caplog.messages[0]


class TrainingOn:
    """As much of a trainer as is asked."""

    world_size, global_rank = 1, 0

    def __init__(self, device: str) -> None:
        self.strategy = SimpleNamespace(root_device=torch.device(device))


@pytest.mark.parametrize(
    ("device", "asked", "is_pinned"),
    [
        ("cpu", "auto", False),
        ("cuda", "auto", True),
        ("meta", "auto", False),
        ("cuda", True, True),
        ("cuda", False, False),
    ],
)
def test_batches_are_pinned_where_a_gpu_takes_them(
    device: str, asked: Any, is_pinned: bool
) -> None:
    training: Any = TrainingOn(device)
    loader = predict_loader(Joined(5), batch_size=2, seed=0, trainer=training, pin_memory=asked)
    assert loader.pin_memory is is_pinned


def test_pinning_for_no_gpu_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    training: Any = TrainingOn("cpu")
    for _ in range(2):
        assert not predict_loader(
            Joined(5), batch_size=2, seed=0, trainer=training, pin_memory=True
        ).pin_memory
    assert caplog.messages == ["data.init_args.pin_memory: no effect where no GPU trains, but cpu"]


@pytest.mark.parametrize("make", [train_loader, eval_loader])
def test_workers_end_with_an_epoch_where_that_is_said(make: Any) -> None:
    loader = make(Joined(5), batch_size=2, seed=0, num_workers=1, persistent_workers=False)
    assert not loader.persistent_workers

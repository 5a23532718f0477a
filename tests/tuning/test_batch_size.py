from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lightkit.errors import ConfigError
from lightkit.tuning import memory_limits, size_trials
from lightkit.tuning.allowance import Allowance
from lightkit.tuning.batch_size import FoundSize, find_batch_size

_CPU = {"accelerator": "cpu", "max_epochs": 2, "limit_train_batches": 1}


class Points(LightningDataModule):
    """Points whose loader goes by the attribute, or by none."""

    def __init__(self, num_samples: int = 128, *, batch_size: int = 4, ignores: bool = False) -> None:
        super().__init__()
        self.num_samples, self.batch_size, self.ignores = num_samples, batch_size, ignores

    def train_dataloader(self) -> DataLoader[Any]:
        points = TensorDataset(torch.randn(self.num_samples, 8), torch.randint(0, 3, (self.num_samples,)))
        return DataLoader(points, batch_size=3 if self.ignores else self.batch_size, shuffle=True)


class Stream(IterableDataset[Any]):
    """Points of which nobody knows how many there are."""

    def __iter__(self) -> Iterator[Any]:
        return repeat((torch.zeros(8), 0))


class Streamed(Points):
    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Stream(), batch_size=self.batch_size)


class ByHyperParameter(Points):
    def __init__(self, batch_size: int = 4) -> None:
        super().__init__()
        del self.batch_size
        self.save_hyperparameters()

    def train_dataloader(self) -> DataLoader[Any]:
        self.batch_size = self.hparams["batch_size"]
        try:
            return super().train_dataloader()
        finally:
            del self.batch_size


class Net(LightningModule):
    """A step takes 20 ms of a clock of its own, and as much again for what it cannot compute at a time."""

    clock_s = 0.0
    at_a_time = 16
    most = 1 << 30

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 3)
        self.sizes: list[int] = []

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        size = len(batch[0])
        if size > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        Net.clock_s += 0.02 * -(-size // self.at_a_time)
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val/loss"}}


@pytest.fixture(autouse=True)
def _own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_trials, "_LONG_ENOUGH_S", 0.0)
    monkeypatch.setattr(size_trials, "_now_s", lambda module: Net.clock_s)


def with_most(samples: int) -> type[Net]:
    return type("Small", (Net,), {"most": samples})


@pytest.mark.parametrize("limits", [{}, {"overfit_batches": 2}], ids=["batch", "batches that are the same"])
def test_the_search_ends_where_larger_batches_are_no_faster(limits: dict[str, Any]) -> None:
    data = Points()
    found = find_batch_size(Net, data, trainer_values={**_CPU, **limits}, seed=1)
    assert found.batch_size == 16
    assert [one.batch_size for one in found.tried] == [2, 4, 8, 16, 32, 64]
    assert found.ended == "larger ones gain less than 5%"
    assert data.batch_size == 4
    told = "batch_size 16: 800 samples/s, 4 times those of 4 (larger ones gain less than 5%)"
    assert found.words == f"{told}; the learning rate stays what it is"


def test_a_hyper_parameter_does_as_well() -> None:
    data = ByHyperParameter()
    assert find_batch_size(Net, data, trainer_values=_CPU, seed=1).batch_size == 16
    assert data.hparams["batch_size"] == 4


def test_no_batch_has_more_samples_than_there_are() -> None:
    found = find_batch_size(Net, Points(12, batch_size=2), trainer_values=_CPU, seed=1)
    assert (found.batch_size, found.ended) == (8, "the training data has 12 samples")
    assert find_batch_size(Net, Points(12, batch_size=64), trainer_values=_CPU, seed=1).batch_size == 12
    shared = find_batch_size(Net, Points(12, batch_size=2), trainer_values=_CPU, seed=1, ranks=2)
    assert (shared.batch_size, shared.ended) == (4, "the training data has 12 samples for 2 processes")


@pytest.mark.parametrize(("start", "size"), [(2, 8), (64, 8)], ids=["from below", "from above"])
def test_what_does_not_fit_ends_it(start: int, size: int) -> None:
    found = find_batch_size(with_most(11), Points(batch_size=start), trainer_values=_CPU, seed=1)
    assert (found.batch_size, found.ended.partition(" ")[2]) == (size, "does not fit into memory")
    larger = [one for one in found.tried if one.batch_size > size]
    assert larger
    assert all(one.step_s is None for one in larger)


def test_not_even_one_sample_is_a_mistake_of_the_config() -> None:
    with pytest.raises(ConfigError, match=r"accelerator\.batch_size: not even a batch of one sample fits"):
        find_batch_size(with_most(0), Points(batch_size=2), trainer_values=_CPU, seed=1)


def test_other_errors_are_the_models() -> None:
    class Broken(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            raise RuntimeError("shapes do not match")

    data = Points()
    with pytest.raises(RuntimeError, match="shapes do not match"):
        find_batch_size(Broken, data, trainer_values=_CPU, seed=1)
    assert data.batch_size == 4


@pytest.mark.long
def test_memory_on_a_cpu_is_foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hungry(Net):
        at_a_time = 1 << 20

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            held = torch.ones(len(batch[0]), 2_000_000)  # 8 MB a sample
            return super().training_step(batch, batch_idx) + 0 * held.mean()

    room_bytes = memory_limits.resident_bytes() + 300_000_000
    monkeypatch.setattr(memory_limits, "memory_to_take_bytes", lambda: room_bytes)
    found = find_batch_size(Hungry, Points(batch_size=2), trainer_values=_CPU, seed=1)
    assert 8 <= found.batch_size <= 32
    assert " would take " in found.ended
    assert max(one.peak_bytes or 0 for one in found.tried) < room_bytes


def test_a_budget_ends_it() -> None:
    found = find_batch_size(Net, Points(batch_size=2), trainer_values=_CPU, seed=1, part=Allowance(0.0).next())
    assert (found.batch_size, found.ended) == (2, "4 would have taken too long to try")
    assert found.left_out == (found.ended,)


def test_a_short_training_has_no_time_for_another_size() -> None:
    seen: list[int | None] = []

    def num_steps(per_epoch: int | None) -> int:
        seen.append(per_epoch)
        return 0

    values: dict[str, Any] = {"trainer_values": {**_CPU, "limit_train_batches": 8}, "seed": 1}
    assert find_batch_size(Net, Points(), **values, part=Allowance(1000.0, num_steps=num_steps).next()).left_out
    assert find_batch_size(Net, Points(), **values, part=Allowance(None, num_steps=num_steps).next()).left_out == ()
    assert seen == [32]  # all of 128 samples by 4; and without a budget no training limits it


@pytest.mark.parametrize("ranks", [1, 2])
def test_data_without_a_length_has_no_number_of_samples(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    monkeypatch.setattr(Net, "at_a_time", 1 << 20)
    found = find_batch_size(Net, Streamed(batch_size=4096), trainer_values=_CPU, seed=1, ranks=ranks)
    assert (found.batch_size, found.ended) == (8192, "8192 is the most")


def test_nobody_knows_the_batches_of_data_without_a_length() -> None:
    told: list[int | None] = []

    def num_steps(per_epoch: int | None) -> int:
        told.append(per_epoch)
        return 0

    part = Allowance(1000.0, num_steps=num_steps).next()
    find_batch_size(Net, Streamed(batch_size=256), trainer_values=_CPU, seed=1, part=part)
    assert told == [None]


def test_what_was_found_is_kept_and_fits_as_long_as_there_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_batch_size(Net, Points(), trainer_values=_CPU, seed=1)
    assert FoundSize.of_json(json.loads(json.dumps(found.as_json()))) == found
    assert found.fits(ranks=1)
    assert found.fits(ranks=1, num_samples=16)
    assert not found.fits(ranks=1, num_samples=15)
    assert not found.fits(ranks=2, num_samples=16)
    monkeypatch.setattr(memory_limits, "memory_to_take_bytes", lambda: 1_000_000)
    assert not found.fits(ranks=1)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (Points(ignores=True), "has set batch_size of Points to 2 and to 4, and its loader gave the same batches"),
        (LightningDataModule(), "needs an attribute batch_size that the loaders of LightningDataModule go by"),
        (None, "needs a data module"),
    ],
    ids=["ignored", "missing", "no data"],
)
def test_data_that_does_not_go_by_the_attribute_is_told(data: LightningDataModule | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        find_batch_size(Net, data, trainer_values=_CPU, seed=1, start=8)


def test_random_numbers_are_what_they_were() -> None:
    before = torch.get_rng_state()
    find_batch_size(Net, Points(), trainer_values=_CPU, seed=1, part=Allowance(0.0).next())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_is_limited_to_what_others_leave() -> None:
    device = torch.device("cuda", 0)
    total_bytes = torch.cuda.mem_get_info(device)[1]
    with memory_limits.cuda_limited(device) as limit_bytes:
        assert limit_bytes is not None
        assert limit_bytes < total_bytes * (1 - memory_limits.HEADROOM)
        with pytest.raises(torch.OutOfMemoryError) as error:
            torch.empty(limit_bytes + (1 << 26), dtype=torch.uint8, device=device)
    assert memory_limits.is_out_of_memory(error.value)

"""The order that ranks draw from a sampler of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from lightning_fabric.utilities.distributed import DistributedSamplerWrapper
from pytorch_lightning import Trainer
from pytorch_lightning.overrides.distributed import UnrepeatedDistributedSamplerWrapper
from torch.utils.data import DataLoader, SubsetRandomSampler

from lightkit.data.shared_order import share_orders


class CountsEpochs:
    """A sampler that wants to know the epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Note the epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter((torch.randperm(8) + 100 * self.epoch).tolist())

    def __len__(self) -> int:
        return 8


def cut(sampler: Iterable[int], rank: int, kind: type[Any] = DistributedSamplerWrapper) -> Any:
    """Return the share of a rank, in whose process other random numbers were drawn."""
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    share_orders(trainer)
    share = kind(sampler, num_replicas=2, rank=rank, shuffle=False)
    trainer.strategy.process_dataloader(DataLoader(range(1000), sampler=share))  # type: ignore[arg-type]
    torch.rand(rank + 1)
    return share


@pytest.mark.parametrize(
    "kind", [DistributedSamplerWrapper, UnrepeatedDistributedSamplerWrapper], ids=["fit", "predict"]
)
def test_ranks_share_each_epoch_of_a_shuffled_sampler_out(kind: type[Any]) -> None:
    shares = [cut(SubsetRandomSampler(range(80, 100)), rank, kind) for rank in (0, 1)]
    orders = []
    for epoch in range(3):
        for share in shares:
            share.set_epoch(epoch)
        orders.append([list(share) for share in shares])
        assert sorted(orders[-1][0] + orders[-1][1]) == list(range(80, 100))
    assert orders[0] != orders[1] != orders[2]


def test_an_order_leaves_the_random_states_as_they_were() -> None:
    share = cut(SubsetRandomSampler(range(20)), 0)
    before = torch.get_rng_state()
    list(share)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_sampler_of_ones_own_is_told_the_epoch() -> None:
    share = cut(CountsEpochs(), 1)
    share.set_epoch(3)
    assert {index // 100 for index in share} == {3}

"""Which GPU a rank under Horovod takes, with GPUs that are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightkit.distributed import HorovodStrategy
from lightkit.distributed.collectives import hvd
from lightkit.errors import ConfigError
from tests.distributed.launching import needs_horovod

pytestmark = needs_horovod


def chosen(
    monkeypatch: pytest.MonkeyPatch,
    *,
    local_rank: int,
    uuids: list[str],
    others: list[str],
    index: int = 0,
) -> int:
    """Let rank ``local_rank`` choose among the GPUs that it is shown.

    ``others`` are those that other ranks chose.
    """
    strategy: Any = HorovodStrategy()
    strategy.parallel_devices = [torch.device("cuda", index)]
    strategy._environment._local_rank = local_rank
    strategy._environment.start = lambda **_: None
    strategy.gather_objects = lambda own: [own, *others]
    monkeypatch.setattr(hvd, "nccl_built", lambda: 21000)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(uuids))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda own: SimpleNamespace(uuid=uuids[own])
    )
    strategy.set_world_ranks()
    found: int = strategy.root_device.index
    return found


@pytest.mark.parametrize(
    ("shown", "local_rank", "index", "expected"),
    [(["a", "b"], 0, 0, 0), (["a", "b"], 1, 0, 1), (["b"], 1, 0, 0), (["a", "b", "c"], 0, 2, 2)],
    ids=[
        "first of two",
        "second of two",
        "its own, which is all it is shown",
        "the one that is named",
    ],
)
def test_a_rank_takes_the_gpu_of_its_number_or_the_only_one(
    shown: list[str], local_rank: int, index: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"local_rank": local_rank, "index": index}
    assert chosen(monkeypatch, uuids=shown, others=["z"], **place) == expected


def test_ranks_that_would_share_a_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match=r"ranks 0, 2 would share the GPU with the UUID a.*CUDA_VISIBLE_DEVICES"
    ):
        chosen(monkeypatch, local_rank=1, uuids=["a"], others=["b", "a"])


def test_too_few_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match="rank 2 of this machine needs GPU 2, but only 2 can be seen"
    ):
        chosen(monkeypatch, local_rank=2, uuids=["a", "b"], others=["a", "b"])

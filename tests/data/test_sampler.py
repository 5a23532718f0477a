"""Order and randomness come from (seed, epoch, index) alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from lightkit.data.loader import Transformed, eval_loader, predict_loader, train_loader
from lightkit.data.sampler import (
    Position,
    ResumableSampler,
    SampleKey,
    position_of,
    sample_randomness,
    stable_seed,
)

NUM_SAMPLES = 23


def sampler(**options: int) -> ResumableSampler:
    return ResumableSampler(range(NUM_SAMPLES), batch_size=4, **options)


def test_an_epoch_holds_every_sample_once() -> None:
    keys = list(sampler())
    assert sorted(key.index for key in keys) == list(range(NUM_SAMPLES))
    assert {key.epoch for key in keys} == {0}


def test_the_order_is_the_same_for_the_same_seed_and_epoch() -> None:
    one, two, other_seed = sampler(seed=5), sampler(seed=5), sampler(seed=6)
    assert list(one) == list(two) != list(other_seed)
    two.set_epoch(1)
    assert [key.index for key in one] != [key.index for key in two]
    assert {key.epoch for key in two} == {1}


@pytest.mark.parametrize("num_replicas", [1, 2, 5])
def test_an_order_without_keys_is_that_with_keys(num_replicas: int) -> None:
    """Rows of a table are the same in each epoch, and their order is made in parts."""
    for rank in range(num_replicas):
        plain = sampler(seed=3, num_replicas=num_replicas, rank=rank)
        plain.has_keys = False
        keyed = sampler(seed=3, num_replicas=num_replicas, rank=rank)
        for each in (plain, keyed):
            each.resume(epoch=2, batches=1)
        indices: list[Any] = list(plain)
        assert indices == [key.index for key in keyed]
        assert len(indices) == -(-NUM_SAMPLES // num_replicas) - 4
    empty = ResumableSampler([], batch_size=4, num_replicas=num_replicas)
    empty.has_keys = False
    assert list(empty) == []


def test_seed_and_epoch_do_not_stand_in_for_each_other() -> None:
    """torch's own sampler adds them, so that epoch 1 of seed 0 is epoch 0 of seed 1."""
    one, two = sampler(seed=0), sampler(seed=1)
    one.set_epoch(1)
    assert [key.index for key in one] != [key.index for key in two]


def test_a_resumed_epoch_starts_after_its_batches_and_later_ones_are_whole() -> None:
    whole, resumed = sampler(), sampler()
    resumed.resume(epoch=3, batches=2)
    whole.set_epoch(3)
    assert list(resumed) == list(whole)[8:]
    resumed.set_epoch(3)  # Lightning says it again before the epoch
    assert list(resumed) == list(whole)[8:]
    for epoch in (4, 3):
        resumed.set_epoch(epoch)
        whole.set_epoch(epoch)
        assert list(resumed) == list(whole)


def test_the_length_is_that_of_a_whole_epoch_also_when_resumed() -> None:
    resumed = sampler()
    resumed.resume(epoch=0, batches=2)
    assert len(resumed) == NUM_SAMPLES
    assert len(list(resumed)) == NUM_SAMPLES - 8


@pytest.mark.parametrize("num_replicas", [2, 3, 4, 30])
def test_processes_share_an_epoch_in_equal_parts(num_replicas: int) -> None:
    shares = [list(sampler(num_replicas=num_replicas, rank=rank)) for rank in range(num_replicas)]
    assert {len(share) for share in shares} == {-(-NUM_SAMPLES // num_replicas)}
    assert {key.index for share in shares for key in share} == set(range(NUM_SAMPLES))


def test_resumed_processes_go_on_each_in_its_own_share() -> None:
    for rank in range(2):
        whole, resumed = sampler(num_replicas=2, rank=rank), sampler(num_replicas=2, rank=rank)
        resumed.resume(epoch=0, batches=1)
        assert list(resumed) == list(whole)[4:]


def drawn() -> tuple[float, float, float]:
    return torch.rand(()).item(), float(np.random.rand()), random.random()


def test_randomness_within_a_sample_depends_on_its_key_alone() -> None:
    draws: dict[tuple[int, SampleKey], list[tuple[float, float, float]]] = {}
    for noise in range(2):
        torch.manual_seed(noise)
        for key in [(0, SampleKey(1, 0)), (0, SampleKey(0, 1)), (1, SampleKey(0, 0))]:
            with sample_randomness(*key):
                draws.setdefault(key, []).append(drawn())
    assert all(first == second for first, second in draws.values())
    assert len({first for first, _ in draws.values()}) == 3


def test_randomness_within_a_sample_leaves_the_global_states_alone() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    expected = drawn()
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    with pytest.raises(KeyError), sample_randomness(0, SampleKey(0, 0)):
        raise KeyError(drawn())
    assert drawn() == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loaders_draw_nothing_from_the_global_generator(num_workers: int) -> None:
    dataset = Transformed(
        [(float(i), i) for i in range(6)],
        lambda value: torch.tensor(value) + torch.rand(()),
        seed=0,
    )
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for loader in (
        train_loader(dataset, batch_size=2, seed=0, num_workers=num_workers),
        eval_loader(dataset, batch_size=2, seed=0, num_workers=num_workers),
        predict_loader(dataset, batch_size=2, seed=0, num_workers=num_workers),
    ):
        for _ in range(2):
            assert sum(len(batch[1]) for batch in loader) == 6
    assert torch.equal(torch.get_rng_state(), before)


def test_a_stable_seed_is_the_same_number_everywhere() -> None:
    assert stable_seed(1, 2, 3) == 4192231477761290773


def test_without_a_trainer_training_starts_at_the_start() -> None:
    assert position_of(None) == Position(0, 0)

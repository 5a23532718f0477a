"""The batches of a gate: all samples, in one order, at each pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lightkit.registry.evaluation import ReplayLoader, class_labels


def loader(count: int = 10, **more: Any) -> DataLoader[Any]:
    """Numbers with their remainder by three as the label."""
    numbers = torch.arange(count)
    return DataLoader(TensorDataset(numbers.float(), numbers % 3), batch_size=4, **more)


def numbers_of(passes: ReplayLoader) -> list[float]:
    """The inputs of a pass."""
    return [number for batch in passes for number in batch[0].tolist()]


@pytest.mark.parametrize("max_kept", [1 << 20, 0], ids=["kept", "read again"])
@pytest.mark.parametrize("more", [{}, {"shuffle": True}, {"drop_last": True}, {"shuffle": True, "drop_last": True}],
                         ids=["plain", "shuffled", "dropping", "both"])  # fmt: skip
def test_no_sample_is_lost_and_the_order_stays(more: dict[str, Any], max_kept: int) -> None:
    passes = ReplayLoader(loader(**more), max_kept_bytes=max_kept)
    first, second = numbers_of(passes), numbers_of(passes)
    assert first == second == [float(number) for number in range(10)]
    assert passes.num_samples == 10


def test_small_splits_are_read_once() -> None:
    reads = []

    class Counted:
        def __iter__(self) -> Iterator[Any]:
            reads.append(1)
            return iter(loader())

    passes = ReplayLoader(Counted())
    assert numbers_of(passes) == numbers_of(passes)
    assert len(reads) == 1


@pytest.mark.parametrize("max_kept", [1 << 20, 0], ids=["kept", "read again"])
@pytest.mark.parametrize("form", ["pair", "mapping", "nested", "array"])
def test_a_step_that_works_in_place_does_not_change_what_the_next_model_gets(form: str, max_kept: int) -> None:
    x, y = torch.arange(4.0), torch.arange(4)
    batch = {"pair": [x, y], "mapping": {"x": x}, "nested": [[x, (y,)], "text"], "array": [y, x.numpy()]}[form]
    passes = ReplayLoader([batch], max_kept_bytes=max_kept)

    def spoiled() -> list[str]:
        seen = []
        for given in passes:
            seen.append(str(given))
            part = given["x"] if form == "mapping" else given[0][0] if form == "nested" else given[-1]
            part *= 0
        return seen

    first, digest = spoiled(), passes.digest
    assert first == spoiled() == spoiled() == [str(batch)]
    assert passes.digest == digest
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0], "the data set itself was changed"


def test_the_digest_is_of_the_samples_and_not_of_the_batches() -> None:
    def digest(batches: list[Any]) -> tuple[str, str]:
        passes = ReplayLoader(batches)
        assert len(list(passes)) == len(batches)
        return passes.digest, passes.labels_digest

    x, y = torch.arange(6.0), torch.arange(6)
    assert digest([[x, y]]) == digest([[x, y]])
    assert digest([[x, y]])[0] != digest([[x + 1, y]])[0]
    assert digest([[x, y]])[1] == digest([[x + 1, y]])[1]
    assert digest([[x, y]])[1] != digest([[x, y + 1]])[1]


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        ([torch.zeros(3, 2), torch.zeros(3)], 3),
        ([torch.zeros(3, 2), torch.zeros(3), torch.tensor([1.0, 0.0, 1.0])], 2),
        (torch.zeros(4, 2), 4),
        ({"image": torch.zeros(5, 2), "label": torch.zeros(5)}, 5),
        ([[torch.zeros(2, 2)], "text"], 2),
    ],
    ids=["pair", "stand-ins", "alone", "mapping", "nested"],
)
def test_samples_are_counted_in_any_form(batch: Any, count: int) -> None:
    passes = ReplayLoader([batch])
    assert len(list(passes)) == 1
    assert passes.num_samples == count


@pytest.mark.parametrize(
    ("labels", "is_classes"),
    [(torch.tensor([0, 1]), True), (torch.tensor([0.5, 1.0]), False), (torch.zeros(2, 2, dtype=torch.long), False)],
    ids=["classes", "numbers", "several"],
)
def test_only_whole_numbers_are_classes(labels: Tensor, is_classes: bool) -> None:
    assert (class_labels([torch.zeros(2), labels]) is not None) is is_classes
    assert class_labels(torch.zeros(2)) is None

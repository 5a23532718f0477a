"""Images are loaded in the order that is told; what was not foreseen is loaded beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from lightkit.data import ImageFolder
from lightkit.data.frozen_features import BatchesAhead, ImagesAhead
from lightkit.data.image_dataset import ImageSamples
from lightkit.data.loader import Ahead

NAMES = [f"{name}/{number}.png" for name in ("rose", "tulip") for number in range(4)]


def samples_of(root: Path) -> ImageSamples:
    data = ImageFolder(str(root), image_size=32, val_fraction=0.0, test_fraction=0.0, augment=False)
    data.setup("fit")
    samples = data.train_dataloader().dataset
    assert isinstance(samples, ImageSamples)
    return samples


def test_one_that_is_loaded_alone_leaves_the_plan_as_it_was(make_images: Callable[..., Path]) -> None:
    samples, plans = samples_of(make_images(*NAMES)), []

    def plan() -> list[list[int]]:
        plans.append([[0, 1], [2, 3], [4, 5]])
        return plans[-1]

    ahead = ImagesAhead(samples, Ahead(0, 2), 1)
    assert ahead.next_of([0, 1], plan).indices == [0, 1]
    alone = [ahead.alone(index) for index in (2, 3)]
    assert [loaded.indices for loaded in alone] == [[2], [3]]
    later = [ahead.next_of([4, 5], plan) for _ in range(2)]  # nobody has asked for the second, which comes before
    assert [loaded.indices for loaded in later] == [[2, 3], [4, 5]]
    assert torch.equal(later[0].images, torch.cat([loaded.images for loaded in alone]))
    assert len(plans) == 1


def test_batches_are_planned_again_only_where_another_one_is_asked_for(make_images: Callable[..., Path]) -> None:
    samples, plans = samples_of(make_images(*NAMES)), []

    def coming(*batches: list[int]) -> Callable[[], list[list[int]]]:
        return lambda: plans.append([*batches]) or [*batches]  # type: ignore[func-returns-value]

    ahead = BatchesAhead(samples, Ahead(0, 2), 1)
    order = [[0, 1], [2, 3], [6, 7], [4, 5]]
    for number, keys in enumerate(order):
        images, labels = ahead.of(keys, coming([0, 1], [2, 3], [4, 5]) if number < 2 else coming(keys))
        expected = samples.__getitems__(keys)
        assert torch.equal(images, expected[0])
        assert torch.equal(labels, expected[1])
    assert plans == [[[0, 1], [2, 3], [4, 5]], [[6, 7]], [[4, 5]]]

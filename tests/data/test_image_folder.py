"""The data module over a folder of images: what its loaders give, and what it says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.data import ImageFolder, ResumableSampler
from lightkit.data.sampling import SampleKey
from lightkit.errors import ConfigError, DataError

PLAIN = [f"{name}/{number}.png" for name in ("rose", "tulip") for number in range(30)]
GIVEN = [f"{split}/{name}/{number}.png" for split in ("train", "val") for name in "ab" for number in range(3)]


def folder(root: Path, **options: Any) -> ImageFolder:
    return ImageFolder(str(root), **{"image_size": 16, "batch_size": 4, "seed": 0, **options})


def test_batches_are_normalised_images_and_labels(make_images: Any) -> None:
    data = folder(make_images(*PLAIN))
    data.setup("fit")
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader(), data.predict_dataloader()):
        images, labels = next(iter(loader))
        assert (images.shape[1:], images.dtype) == ((3, 16, 16), torch.float32)
        assert labels.dtype == torch.int64
        assert set(labels.tolist()) <= {0, 1}
        assert -2.2 < images.min() < 0 < images.max() < 2.7  # black and white, by ImageNet's mean and deviation


def test_every_image_is_in_one_loader_once(make_images: Any) -> None:
    data = folder(make_images(*PLAIN))
    data.setup()
    sizes = {
        name: sum(len(labels) for _, labels in loader)
        for name, loader in zip(
            ("train", "val", "test"),
            (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()),
            strict=True,
        )
    }
    assert sizes == data.describe()["counts"]
    assert sum(sizes.values()) == len(PLAIN)


def test_it_describes_itself(make_images: Any) -> None:
    root = make_images(*PLAIN)
    data = folder(root)
    data.setup("fit")
    told = data.describe()
    assert (told["source"], told["root"], told["class_names"]) == ("photos", str(root), ["rose", "tulip"])
    assert (len(told["fingerprint"]), set(told["counts"])) == (64, {"train", "val", "test"})
    assert (data.class_names, data.num_classes) == (["rose", "tulip"], 2)


def test_the_training_loader_resumes(make_images: Any) -> None:
    data = folder(make_images(*PLAIN))
    data.setup("fit")
    assert isinstance(data.train_dataloader().sampler, ResumableSampler)


@pytest.mark.parametrize("options", [{}, {"color_jitter": 0.5}, {"rand_augment": True}, {"crop_scale": (0.1, 0.2)}])
def test_a_training_image_depends_on_seed_epoch_and_index(make_images: Any, options: dict[str, Any]) -> None:
    root = make_images(*PLAIN)

    def image(seed: int, epoch: int) -> torch.Tensor:
        data = folder(root, seed=seed, **options)
        data.setup("fit")
        torch.rand(3)
        tensor: torch.Tensor = data.train_dataloader().dataset[SampleKey(0, epoch)][0]
        return tensor

    assert torch.equal(image(0, 0), image(0, 0))
    assert not torch.equal(image(0, 0), image(0, 1))
    assert not torch.equal(image(0, 0), image(1, 0))


def test_augmentations_change_the_images(make_images: Any) -> None:
    root = make_images(*PLAIN)
    images = []
    for options in ({}, {"color_jitter": 0.5}, {"rand_augment": True}, {"crop_scale": (0.1, 0.2)}):
        data = folder(root, **options)
        data.setup("fit")
        images.append(next(iter(data.train_dataloader()))[0])
    assert all(not torch.equal(images[0], other) for other in images[1:])


def test_the_seed_is_that_of_the_run_where_none_is_given(make_images: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_images(*PLAIN)
    orders = {}
    for name, seed, variable in (("own", 5, "1"), ("run's", None, "5"), ("other", None, "6")):
        monkeypatch.setenv("PL_GLOBAL_SEED", variable)
        data = folder(root, seed=seed)
        data.setup("fit")
        orders[name] = list(data.train_dataloader().sampler)
    assert orders["own"] == orders["run's"] != orders["other"]


def test_predictions_follow_the_paths(make_images: Any) -> None:
    data = folder(make_images(*PLAIN))
    data.setup("predict")
    labels = [data.class_names[label] for _, batch in data.predict_dataloader() for label in batch.tolist()]
    assert [Path(path).parent.name for path in data.predict_paths] == labels
    assert len(labels) == data.describe()["counts"]["test"]


def test_without_a_test_split_predictions_are_of_the_validation_split(make_images: Any) -> None:
    data = folder(make_images(*GIVEN))
    data.setup("predict")
    assert {Path(path).parts[-3] for path in data.predict_paths} == {"val"}


def test_testing_without_a_test_split_is_told(make_images: Any) -> None:
    data = folder(make_images(*GIVEN))
    data.setup("fit")
    with pytest.raises(DataError, match=r"there is no test split\. Add a folder .*/test with the same class folders"):
        data.setup("test")


def test_validation_can_be_left_out(make_images: Any) -> None:
    data = folder(make_images(*PLAIN), val_fraction=0)
    data.setup("fit")
    assert data.val_dataloader() == []
    with pytest.raises(DataError, match=r"set data\.init_args\.val_fraction above 0"):
        data.setup("validate")


def test_bad_shares_are_refused_before_anything_is_read() -> None:
    with pytest.raises(ConfigError, match="val_fraction"):
        ImageFolder("nowhere", val_fraction=2)

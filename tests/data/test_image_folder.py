"""The data module over a folder of images: what its loaders give, and what it says of itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.cli.model_loading import load_model
from lightkit.data import ImageFolder, ResumableSampler, image_cache, image_dataset
from lightkit.data.sampler import SampleKey
from lightkit.errors import ConfigError, DataError
from lightkit.export.samples import draw_samples
from lightkit.images import image_file
from lightkit.images.splits import Split
from lightkit.models import ImageClassifier

PLAIN = [f"{name}/{number}.png" for name in ("rose", "tulip") for number in range(30)]
GIVEN = [
    f"{split}/{name}/{number}.png"
    for split in ("train", "val")
    for name in "ab"
    for number in range(3)
]


def folder(root: Path, **options: Any) -> ImageFolder:
    return ImageFolder(str(root), **{"image_size": 16, "batch_size": 4, "seed": 0, **options})


def test_batches_are_uint8_images_and_labels_and_are_normalised_after_the_transfer(
    make_images: Any,
) -> None:
    data = folder(make_images(*PLAIN))
    data.setup("fit")
    for loader in (
        data.train_dataloader(),
        data.val_dataloader(),
        data.test_dataloader(),
        data.predict_dataloader(),
    ):
        images, labels = batch = next(iter(loader))
        assert (images.shape[1:], images.dtype) == ((3, 16, 16), torch.uint8)
        images, labels = data.on_after_batch_transfer(batch, 0)
        assert (images.shape[1:], images.dtype) == ((3, 16, 16), torch.float32)
        assert labels.dtype == torch.int64
        assert set(labels.tolist()) <= {0, 1}
        # black and white, by ImageNet's mean and deviation
        assert -2.2 < images.min() < 0 < images.max() < 2.7


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
    description = data.describe()
    assert (description["source"], description["root"], description["class_names"]) == (
        "photos",
        str(root),
        ["rose", "tulip"],
    )
    assert (len(description["fingerprint"]), set(description["counts"])) == (
        64,
        {"train", "val", "test"},
    )
    assert (data.class_names, data.num_classes) == (["rose", "tulip"], 2)
    assert description["cache"] == {"kept": "nowhere", "size": 18}


def test_the_training_loader_resumes(make_images: Any) -> None:
    data = folder(make_images(*PLAIN))
    data.setup("fit")
    assert isinstance(data.train_dataloader().sampler, ResumableSampler)


@pytest.mark.parametrize(
    "options", [{}, {"color_jitter": 0.5}, {"rand_augment": True}, {"crop_scale": (0.1, 0.2)}]
)
def test_a_training_image_depends_on_seed_epoch_and_index(
    make_images: Any, options: dict[str, Any]
) -> None:
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


def test_the_seed_is_that_of_the_run_where_none_is_given(
    make_images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    labels = [
        data.class_names[label]
        for _, batch in data.predict_dataloader()
        for label in batch.tolist()
    ]
    assert [Path(path).parent.name for path in data.predict_paths] == labels
    assert len(labels) == data.describe()["counts"]["test"]


def test_without_a_test_split_predictions_are_of_the_validation_split(make_images: Any) -> None:
    data = folder(make_images(*GIVEN))
    data.setup("predict")
    assert {Path(path).parts[-3] for path in data.predict_paths} == {"val"}


def test_testing_without_a_test_split_is_reported(make_images: Any) -> None:
    data = folder(make_images(*GIVEN))
    data.setup("fit")
    with pytest.raises(
        DataError,
        match=r"there is no test split\. Add a folder .*/test with the same class folders",
    ):
        data.setup("test")


def test_validation_can_be_left_out(make_images: Any) -> None:
    data = folder(make_images(*PLAIN), val_fraction=0)
    data.setup("fit")
    assert data.val_dataloader() == []
    with pytest.raises(DataError, match=r"set data\.init_args\.val_fraction above 0"):
        data.setup("validate")


def test_an_image_that_vanishes_is_replaced_in_training_left_out_elsewhere_and_noted(
    make_images: Any,
) -> None:
    data = folder(make_images(*PLAIN), batch_size=64)
    data.setup("fit")
    loaders: tuple[tuple[Split, Any], ...] = (
        ("train", data.train_dataloader()),
        ("val", data.val_dataloader()),
    )
    for split, loader in loaders:
        gone = data.index.splits[split][0].path
        gone.unlink()
        (batch,) = loader
        assert len(batch[1]) == len(batch[0]) == data.index.counts[split] - (split == "val")
        assert [(defect.name, defect.reason) for defect in data.defects.take_noted()] == [
            (str(gone), "No such file or directory")
        ]


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_image_that_vanishes_before_its_prediction_is_an_error_that_names_it(
    make_images: Any, num_workers: int
) -> None:
    data = folder(make_images(*PLAIN), num_workers=num_workers)
    data.setup("predict")
    gone = data.index.splits["test"][1].path
    gone.unlink()
    with pytest.raises(
        DataError, match=f"^{gone}: this image cannot be decoded \\(No such file or directory\\)"
    ) as raised:
        list(data.predict_dataloader())
    assert raised.value.exit_code == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_bad_fraction": 1.5}, r"max_bad_fraction: expected a number from 0 to 1, got 1\.5"),
        (
            {"max_bad_fraction": float("nan")},
            r"max_bad_fraction: expected a number from 0 to 1, got nan",
        ),
        ({"cache_size": 0}, r"cache_size: expected 1 or more, got 0"),
        ({"cache_limit_gb": -1.0}, r"cache_limit_gb: expected more than 0, got -1\.0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_meant_is_refused_before_anything_is_read(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^data\.init_args\.{says}\.$"):
        folder(Path("nowhere"), **options)


def test_bad_shares_are_refused_before_anything_is_read() -> None:
    with pytest.raises(ConfigError, match="val_fraction"):
        ImageFolder("nowhere", val_fraction=2)


def test_how_workers_and_memory_are_used_is_said_by_the_config(make_images: Any) -> None:
    data = folder(make_images(*PLAIN), num_workers=1, persistent_workers=False, pin_memory=False)
    data.setup()
    loader = data.train_dataloader()
    assert (loader.num_workers, loader.persistent_workers, loader.pin_memory) == (1, False, False)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"cache_size": 300},
            "data.init_args.cache_size: no effect with data.init_args.cache: none",
        ),
        (
            {"augment": False, "color_jitter": 0.5},
            "data.init_args.color_jitter: no effect with data.init_args.augment: false",
        ),
    ],
    ids=["cache", "augment"],
)
def test_what_has_no_effect_is_reported_at_the_start_of_a_fit(
    make_images: Any, caplog: pytest.LogCaptureFixture, options: dict[str, Any], says: str
) -> None:
    data = folder(make_images(*PLAIN), cache="none", **options)
    with caplog.at_level("INFO", "lightkit.data"):
        data.setup("fit")
    assert caplog.messages == [says]


@pytest.mark.parametrize("cache", ["auto", "memory", "disk", "none"])
def test_an_export_decodes_the_images_that_it_looks_at_alone(
    cache: Any, make_images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_images(
        *(
            f"{split}/{kind}/{at}.png"
            for split in ("train", "val")
            for kind in "ab"
            for at in range(40)
        )
    )
    num_decoded = Counter[str]()

    def count(decode: Any) -> Any:
        def decode_and_count(*args: Any, **options: Any) -> Any:
            num_decoded["all"] += 1
            return decode(*args, **options)

        return decode_and_count

    monkeypatch.setattr(image_cache, "upright_rgb", count(image_file.upright_rgb))
    monkeypatch.setattr(image_dataset, "decode_rgb", count(image_file.decode_rgb))
    data = ImageFolder(str(root), image_size=16, batch_size=8, num_workers=0, cache=cache)
    module = ImageClassifier(backbone="small_cnn")
    load_model(module, data, None)
    assert num_decoded["all"] == 0
    samples = draw_samples(module, data, 20)
    assert samples is not None
    assert len(samples.names) == num_decoded["all"] == 20

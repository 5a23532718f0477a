"""Normalising on the device: the same numbers as `Preprocessing`.

In the dtype that the trainer computes in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning import LightningModule, Trainer
from torch import Tensor, nn

from lightkit.data import ImageFolder
from lightkit.data.image_dataset import Encoded, EvalView, normalised, stack_images
from lightkit.data.sampler import SampleKey
from lightkit.images.image_file import read_rgb
from lightkit.images.preprocessing import preprocessing_of

PREPROCESSING = preprocessing_of(16)
NAMES = [f"{name}/{number}.png" for name in ("rose", "tulip") for number in range(30)]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    # 2026-11: pytorch-lightning 2.6.6 builds LeafSpec itself
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),
]


class Seen(LightningModule):
    """Keeps what its steps get."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.batches: dict[str, Any] = {}

    def _step(self, name: str, batch: Any) -> Tensor:
        self.batches[name] = batch
        loss: Tensor = self.layer(batch[0].mean().reshape(1)).mean()
        return loss

    def training_step(self, batch: Any) -> Tensor:
        return self._step("train", batch)

    def validation_step(self, batch: Any) -> None:
        self._step("val", batch)

    def test_step(self, batch: Any) -> None:
        self._step("test", batch)

    def predict_step(self, batch: Any) -> Tensor:
        return self._step("predict", batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Hooked(Seen):
    """A model with a hook of its own."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.batches["hook"] = batch
        return [batch[0] * 0 + 5, batch[1]]


def trainer(**options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu", max_steps=1, limit_val_batches=1, limit_test_batches=1,
        limit_predict_batches=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False, **options,
    )  # fmt: skip


def folder(root: Path) -> ImageFolder:
    return ImageFolder(str(root), image_size=16, batch_size=4, seed=0, num_workers=0, cache="none")


def test_evaluation_is_to_the_last_bit_what_the_preprocessing_makes(photos: Path) -> None:
    preprocessing = preprocessing_of(96)
    paths = sorted(photos.glob("*/*.jpg"))[::40]
    view = EvalView(preprocessing)
    batch = stack_images([view(Encoded(path), 0, SampleKey(0, 0)) for path in paths])
    images = normalised(batch, preprocessing, None)
    assert images.is_contiguous()
    for image, path in zip(images, paths, strict=True):
        assert np.array_equal(image.numpy(), preprocessing(read_rgb(path))), path


@pytest.mark.parametrize("form", [tuple, list])
def test_only_the_images_of_a_batch_change(form: Any) -> None:
    labels, weights = torch.tensor([1, 2]), torch.ones(2)
    batch = normalised(
        form([torch.zeros(2, 3, 4, 4, dtype=torch.uint8), labels, weights]), PREPROCESSING, None
    )
    assert type(batch) is form
    assert batch[0].dtype == torch.float32
    assert batch[1] is labels
    assert batch[2] is weights


def test_images_alone_are_normalised_too() -> None:
    images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    assert torch.equal(
        normalised(images, PREPROCESSING, None), normalised((images, 0), PREPROCESSING, None)[0]
    )


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(2, 3, 4, 4),
        (torch.zeros(2, 3, 4, 4), torch.tensor([1, 2])),
        [torch.zeros(2, 5, dtype=torch.uint8)],
        (),
        {"images": torch.zeros(2, 3, 4, 4, dtype=torch.uint8)},
        "text",
    ],
    ids=["floats", "float batch", "features", "empty", "mapping", "text"],
)
def test_any_other_batch_is_given_back_as_it_is(batch: Any) -> None:
    assert normalised(batch, PREPROCESSING, None) is batch


def test_constants_made_in_inference_mode_serve_in_training() -> None:
    images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    other = preprocessing_of(17)
    with torch.inference_mode():
        normalised((images, None), other, None)
    floats, _ = normalised((images, None), other, None)
    assert not floats.is_inference()
    (floats * torch.ones(1, requires_grad=True)).sum().backward()


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("32-true", torch.float32),
        ("64-true", torch.float64),
        ("bf16-true", torch.bfloat16),
        ("16-true", torch.float16),
        ("bf16-mixed", torch.float32),
    ],
)
def test_a_model_gets_the_dtype_of_its_precision(
    make_images: Any, precision: Any, dtype: torch.dtype
) -> None:
    module = Seen()
    trainer(precision=precision).fit(module, datamodule=folder(make_images(*NAMES)))
    for name in ("train", "val"):
        images, labels = module.batches[name]
        assert (images.dtype, images.shape[1:], labels.dtype) == (dtype, (3, 16, 16), torch.int64)
        assert -2.2 < images.min() < 0 < images.max() < 2.7


def test_every_stage_gets_normalised_images(make_images: Any) -> None:
    module, data = Seen(), folder(make_images(*NAMES))
    for stage in ("validate", "test", "predict"):
        getattr(trainer(), stage)(module, datamodule=data)
    for name in ("val", "test", "predict"):
        assert module.batches[name][0].dtype == torch.float32


# Lightning's warning, which is wrong here: the data module calls the model's hook
@pytest.mark.filterwarnings("ignore:.*in both `LightningModule` and `LightningDataModule`")
def test_a_models_own_hook_gets_the_normalised_batch(make_images: Any) -> None:
    module = Hooked()
    trainer().fit(module, datamodule=folder(make_images(*NAMES)))
    assert module.batches["hook"][0].dtype == torch.float32
    assert module.batches["train"][0].unique().tolist() == [5]

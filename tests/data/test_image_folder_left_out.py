"""What was left out of an epoch is counted, and too much of it ends a training.

A single image never does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional

from lightkit.data.image_folder import ImageFolder
from lightkit.errors import DataError
from lightkit.images.splits import Split
from lightkit.models import ImageClassifier

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    # 2026-11: pytorch-lightning 2.6.6 builds LeafSpec itself
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),
]


class Losing(Callback):
    """Deletes photos of splits before the second epoch."""

    def __init__(self, **fractions: float) -> None:
        self.fractions = fractions

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        for split, fraction in self.fractions.items():
            photos = data.index.splits[split]
            for photo in (
                photos[: max(1, int(fraction * len(photos)))] if trainer.current_epoch == 1 else []
            ):
                photo.path.unlink()


class Plain(LightningModule):
    """A user's own model, which knows of images and labels alone, with BatchNorm of pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4), nn.BatchNorm1d(4)
        )
        self.nums: list[int] = []

    def training_step(self, batch: Any) -> Tensor:
        images, labels = batch
        self.nums.append(len(labels))
        logits = self.network(images) if len(labels) > 1 else self.network[:3](images)
        return functional.cross_entropy(logits, labels)

    def validation_step(self, batch: Any) -> None:
        images, labels = batch
        self.log("val/loss", functional.cross_entropy(self.network(images), labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fitted(
    root: Path,
    model: LightningModule,
    losing: Losing,
    *,
    batch_size: int,
    image_size: int = 8,
    **options: Any,
) -> Trainer:
    data = ImageFolder(
        str(root),
        image_size=image_size,
        batch_size=batch_size,
        num_workers=0,
        cache="none",
        test_fraction=0,
        **options,
    )
    trainer = Trainer(
        accelerator="cpu", max_epochs=2, callbacks=[losing], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(model, data)
    return trainer


NAMES = [f"{name}/{number}.png" for name in "ab" for number in range(20)]


@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_users_own_model_trains_on_where_images_vanish(make_images: Any, batch_size: int) -> None:
    model = Plain()
    fitted(
        make_images(*NAMES), model, Losing(train=0.5), batch_size=batch_size, max_bad_fraction=0.9
    )
    assert set(model.nums) == {batch_size}


@pytest.mark.slow
def test_half_of_the_images_of_batches_of_two_may_vanish_under_a_network_with_batch_norm(
    make_images: Any,
) -> None:
    model = ImageClassifier(backbone="mobilenet_v2")
    losing = Losing(train=0.5)
    trainer = fitted(
        make_images(*NAMES), model, losing, batch_size=2, image_size=32, max_bad_fraction=0.9
    )
    assert trainer.callback_metrics["train/loss"].isfinite()


@pytest.mark.parametrize(
    "fractions",
    [{"train": 1.0}, {"train": 0.2}, {"val": 1.0}],
    ids=["all", "a fifth", "all of validation"],
)
def test_a_training_whose_images_vanish_ends_with_an_error(
    make_images: Any, fractions: dict[Split, float]
) -> None:
    with pytest.raises(DataError, match=r"could (?:not )?be read") as raised:
        fitted(make_images(*NAMES), Plain(), Losing(**fractions), batch_size=4)
    assert raised.value.exit_code == 3

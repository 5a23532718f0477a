"""mixup and CutMix.

In training alone, after the conversion to floats, the same numbers again after a resume.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor

from lightkit.callbacks import EMA
from lightkit.callbacks.resume import ResumeState
from lightkit.data import DrawnFlowers, Table
from lightkit.errors import ConfigError
from lightkit.models.classifier import ImageClassifier
from tests.trainers import quiet_trainer


class Watched(ImageClassifier):
    """Keeps the batches of the steps."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: dict[str, list[tuple[Tensor, Tensor]]] = {"train": [], "val": []}

    def _step(self, stage: Any, batch: Any, **options: Any) -> dict[str, Tensor]:
        self.seen[stage].append((batch[0], batch[1]))
        return super()._step(stage, batch, **options)


def data(**options: Any) -> DrawnFlowers:
    return DrawnFlowers(
        image_size=32, batch_size=8, num_workers=0, num_images=40, seed=3, **options
    )


def train(
    folder: Path, *callbacks: Any, epochs: int = 1, ckpt_path: Any = None, **options: Any
) -> Watched:
    torch.manual_seed(5)
    model = Watched(class_weight="auto")
    trainer = quiet_trainer(
        folder, callbacks=[ResumeState(), *callbacks], max_epochs=epochs, enable_checkpointing=True
    )
    trainer.fit(model, datamodule=data(**options), ckpt_path=ckpt_path)
    return model


@pytest.mark.parametrize("options", [{"mixup": 0.4}, {"cutmix": 1.0}], ids=["mixup", "cutmix"])
def test_images_and_targets_are_mixed_alike_in_training_alone(
    options: dict[str, Any], tmp_path: Path
) -> None:
    mixed = train(tmp_path / "mixed", **options).seen
    plain = train(tmp_path / "plain").seen
    images, targets = mixed["train"][0]
    before, labels = plain["train"][0]
    assert images.dtype == torch.float32
    assert targets.shape == (8, 5)
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(8))
    one_hot = torch.nn.functional.one_hot(labels, 5).float()
    pairs = one_hot.roll(1, 0)
    differ = (one_hot != pairs).any(dim=1)
    share = float((targets[differ] * one_hot[differ]).sum(dim=1)[0])
    torch.testing.assert_close(targets, share * one_hot + (1 - share) * pairs)
    if "mixup" in options:
        torch.testing.assert_close(images, share * before + (1 - share) * before.roll(1, 0))
    else:
        own = (images == before).all(dim=1).float().mean(dim=(1, 2))
        assert ((images == before) | (images == before.roll(1, 0))).all()
        assert float(own.min()) == pytest.approx(share, abs=1e-3)
    for (one, label), (other, same) in zip(mixed["val"], plain["val"], strict=True):
        assert torch.equal(one, other)
        assert torch.equal(label, same)


def test_without_augmentation_nothing_is_mixed_and_a_warning_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = train(tmp_path, mixup=0.4, augment=False).seen
    assert seen["train"][0][1].ndim == 1
    assert "data.init_args.mixup: no effect with data.init_args.augment: false" in caplog.text


def test_samples_with_weights_are_not_mixed_unless_nothing_is() -> None:
    given: tuple[dict[str, Any], ...] = ({"mixup": 0.4}, {"cutmix": 1.0})
    for options in given:
        with pytest.raises(
            ConfigError,
            match=r"init_args\.weight \(importance\) and data\.init_args\.(mixup|cutmix)",
        ):
            Table("photos.parquet", image="image", weight="importance", **options)
        Table("photos.parquet", image="image", weight="importance", augment=False, **options)
        Table("photos.parquet", image="image", **options)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")
@pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning")
def test_a_training_that_goes_on_with_all_of_it_is_the_same_to_the_bit(tmp_path: Path) -> None:
    options = {"mixup": 0.4, "cutmix": 1.0, "rand_augment": True}
    keeper = ModelCheckpoint(
        tmp_path / "kept", filename="at-{step}", every_n_train_steps=2, save_top_k=-1
    )
    whole = train(tmp_path / "whole", EMA(), keeper, epochs=2, **options)
    path = next((tmp_path / "kept").glob("at-step=2.ckpt"))
    resumed = train(tmp_path / "resumed", EMA(), epochs=2, ckpt_path=path, **options)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name

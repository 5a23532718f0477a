"""Features of a frozen backbone in place of images: the same training, each image computed once."""

from __future__ import annotations

import multiprocessing
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer, seed_everything
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor

from lightkit.data import ImageFolder
from lightkit.data.image_dataset import Encoded
from lightkit.models import ImageClassifier

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
]
NAMES = [f"{name}/{number}.png" for name in ("rose", "tulip") for number in range(14)]
Fit = Callable[..., "Seen"]


class Seen(Callback):
    """Notes losses, sizes of inputs, and the values of each epoch."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.inputs: set[tuple[int, ...]] = set()
        self.values: list[dict[str, float]] = []
        self.head: Tensor = torch.empty(0)
        self.kept = ""
        self.loading: set[Any] = set()
        self._before: set[Any] = set()

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._before = set(multiprocessing.active_children())

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, number: int
    ) -> None:
        self.losses.append(float(outputs["loss"]))
        self.inputs.add(tuple(batch[0].shape[1:]))

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        self.kept = trainer.datamodule.describe()["cache"]["kept"]  # type: ignore[attr-defined]
        self.loading |= set(multiprocessing.active_children()) - self._before
        self.values.append({name: float(value) for name, value in trainer.callback_metrics.items()})
        self.head = (
            next(each for each in module.parameters() if each.requires_grad).detach().clone()
        )


@pytest.fixture
def fit(make_images: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fit:
    root = make_images(*NAMES)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(
        features: str = "auto", *, ckpt_path: Path | None = None,
        callbacks: tuple[Callback, ...] = (), data: dict[str, Any] | None = None,
        model: dict[str, Any] | None = None,
        kinds: tuple[type[ImageClassifier], type[ImageFolder]] = (ImageClassifier, ImageFolder),
        **trainer: Any,
    ) -> Seen:  # fmt: skip
        seed_everything(7)
        settings: dict[str, Any] = {
            "freeze": "backbone",
            "backbone": "small_cnn",
            "learning_rate": 0.05,
        }
        module = kinds[0](features=features, **{**settings, **(model or {})})  # type: ignore[arg-type]
        folder: dict[str, Any] = {
            "image_size": 32,
            "batch_size": 4,
            "augment": False,
            "num_workers": 0,
        }
        folder |= {"seed": 3, "test_fraction": 0.0}
        seen = Seen()
        quiet = {
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "accelerator": "cpu",
        }
        if not any(isinstance(callback, ModelCheckpoint) for callback in callbacks):
            quiet["enable_checkpointing"] = False
        Trainer(
            **{"max_epochs": 3, "default_root_dir": tmp_path, **quiet, **trainer},
            callbacks=[seen, *callbacks],
        ).fit(module, kinds[1](str(root), **{**folder, **(data or {})}), ckpt_path=ckpt_path)
        return seen

    return run


def alike(one: Seen, other: Seen) -> None:
    assert one.losses == pytest.approx(other.losses, abs=1e-5)
    assert len(one.values) == len(other.values)
    for values, others in zip(one.values, other.values, strict=True):
        assert values == pytest.approx(others, abs=1e-5)
    torch.testing.assert_close(one.head, other.head, atol=1e-4, rtol=1e-4)


def test_losses_metrics_and_weights_are_those_of_training_on_images(fit: Fit) -> None:
    kept, each = fit("auto"), fit("each_step")
    assert kept.inputs == {(120,)}
    assert each.inputs == {(3, 32, 32)}
    assert {"train/loss", "val/loss", "val/accuracy"} <= set(kept.values[-1])
    alike(kept, each)


def test_each_image_is_decoded_once_and_a_head_after_a_mean_is_trained_alike(
    fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: Counter[str] = Counter()
    whole = Encoded.whole

    def counted(self: Encoded) -> Any:
        read[self._name] += 1
        return whole(self)

    monkeypatch.setattr(Encoded, "whole", counted)
    kept = fit(model={"backbone": "squeezenet1_1", "learning_rate": 0.01}, max_epochs=2)
    assert set(read.values()) == {1}  # the scan before decodes in another way
    assert len(read) == len(NAMES)
    alike(
        kept,
        fit("each_step", model={"backbone": "squeezenet1_1", "learning_rate": 0.01}, max_epochs=2),
    )


def test_a_training_that_goes_on_in_the_middle_of_an_epoch_is_the_same_to_the_last_bit(
    fit: Fit, tmp_path: Path
) -> None:
    saving = ModelCheckpoint(
        tmp_path / "kept", every_n_train_steps=8, save_top_k=-1, filename="{step}"
    )
    whole = fit(callbacks=(saving,))
    rest = fit(ckpt_path=tmp_path / "kept" / "step=8.ckpt")
    assert rest.losses == whole.losses[8:]
    for name in ("val/loss", "val/accuracy"):
        assert rest.values[-1][name] == whole.values[-1][name]
    assert torch.equal(rest.head, whole.head)


@pytest.mark.parametrize("num_workers", [0, 1], ids=["this process loads", "another loads"])
def test_an_image_that_cannot_be_read_any_more_is_left_out_as_ever(
    fit: Fit, num_workers: int
) -> None:
    # no copy outlives the file
    data = {"max_bad_fraction": 0.5, "num_workers": num_workers, "cache": "none"}
    kept, each = (
        fit(way, callbacks=(Breaks(),), data=data, max_epochs=2) for way in ("auto", "each_step")
    )
    alike(kept, each)


@pytest.mark.parametrize("num_workers", [0, 1], ids=["this process loads", "another loads"])
@pytest.mark.parametrize("at", [(1, 0), (0, 2)], ids=["an epoch", "in the middle"])
def test_a_backbone_that_is_unfrozen_gets_images_again(
    fit: Fit, caplog: pytest.LogCaptureFixture, at: tuple[int, int], num_workers: int
) -> None:
    settings: dict[str, Any] = {"data": {"num_workers": num_workers}, "max_epochs": 2}
    seen = fit(callbacks=(Unfreezes(*at),), **settings)
    assert seen.inputs == {(120,), (3, 32, 32)}
    assert not seen.loading
    assert "not all of the backbone is frozen any more" in caplog.text
    alike(seen, fit("each_step", callbacks=(Unfreezes(*at),), **settings))


def test_who_loads_has_ended_with_the_epoch_which_a_limit_may_end_early(fit: Fit) -> None:
    seen = fit(data={"num_workers": 1}, limit_train_batches=3, limit_val_batches=1, max_epochs=2)
    assert seen.inputs == {(120,)}
    assert not seen.loading


class OwnTransfer(ImageFolder):
    """Does something with each batch of images."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        images, labels = super().on_after_batch_transfer(batch, dataloader_idx)
        return images.flip(3), labels


class OwnLoader(ImageFolder):
    """May put something around its loader."""

    def train_dataloader(self) -> Any:
        return super().train_dataloader()


class OwnStep(ImageClassifier):
    """Augments by itself."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.flip(3) if self.training else images)


@pytest.mark.parametrize(
    ("kinds", "says"),
    [
        (
            (ImageClassifier, OwnTransfer),
            "at each step: on_after_batch_transfer of OwnTransfer's own may get images",
        ),
        (
            (ImageClassifier, OwnLoader),
            "at each step: train_dataloader of OwnLoader's own may get images",
        ),
        (
            (OwnStep, ImageFolder),
            "features: once has no effect with forward of OwnStep's own: they get images",
        ),
    ],
    ids=["transfer hook", "loader", "forward"],
)
def test_who_does_something_with_images_gets_images_and_they_are_kept_decoded(
    fit: Fit, caplog: pytest.LogCaptureFixture, kinds: Any, says: str
) -> None:
    with caplog.at_level("INFO"):
        seen = fit("once", kinds=kinds)
    assert seen.inputs == {(3, 32, 32)}
    assert caplog.text.count(says) == 1
    assert seen.kept == "memory"
    assert "decoded each time" not in caplog.text


@pytest.mark.parametrize(
    ("data", "model", "says"),
    [
        ({"augment": True}, {}, "has no effect with this data module"),
        ({}, {"freeze": "none"}, "has no effect without model.init_args.freeze: backbone"),
    ],
    ids=["augmented", "trained"],
)
def test_what_cannot_be_kept_is_reported_to_who_asked_for_it(
    fit: Fit,
    caplog: pytest.LogCaptureFixture,
    data: dict[str, Any],
    model: dict[str, Any],
    says: str,
) -> None:
    seen = fit(
        "once", data=data, model=model, limit_train_batches=2, limit_val_batches=0, max_epochs=1
    )
    assert seen.inputs == {(3, 32, 32)}
    assert f"model.init_args.features: once {says}" in caplog.text


def test_features_for_which_the_disk_has_no_room_are_not_kept(
    fit: Fit, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightkit.data.image_cache._SHARE_OF_DISK", 0)
    seen = fit(max_epochs=2)
    assert seen.inputs == {(3, 32, 32)}
    assert re.search(
        r"computed at each step, as they cannot be kept on disk: there is no room for .* MB",
        caplog.text,
    )


def test_computing_features_is_reported_every_ten_seconds(
    fit: Fit, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightkit.images.progress._LINE_EVERY_S", 0.0)
    with caplog.at_level("INFO"):
        fit(max_epochs=1)
    assert re.search(r"data: \d+ of \d+ features computed", caplog.text)


class Breaks(Callback):
    """Breaks an image of training after the scan, and puts it back at the end."""

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        self.path = trainer.datamodule.index.splits["train"][5].path  # type: ignore[attr-defined]
        self.content = self.path.read_bytes()
        self.path.write_bytes(b"no image")

    def on_fit_end(self, trainer: Trainer, module: LightningModule) -> None:
        self.path.write_bytes(self.content)


class Unfreezes(Callback):
    """Trains the backbone as well from a batch on."""

    def __init__(self, epoch: int, batch: int) -> None:
        self.at = (epoch, batch)

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        if (trainer.current_epoch, 0) == self.at:
            module.requires_grad_(requires_grad=True)

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (trainer.current_epoch, batch_idx + 1) == self.at:
            module.requires_grad_(requires_grad=True)

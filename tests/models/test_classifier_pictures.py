from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.loggers import Logger
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from lightkit.models import ImageClassifier
from lightkit.models.classifier import draw_grid
from lightkit.reports import figures

MakeTrainer = Callable[..., Trainer]
MakeData = Callable[..., Any]


class Plain(Logger):
    """A logger that takes no pictures."""

    name = "plain"
    version = 0

    def log_metrics(self, *args: Any, **kwargs: Any) -> None:
        """Take them."""

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Take them."""


class Album(Plain):
    """A logger that keeps pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures: list[tuple[str, int, Tensor]] = []

    def add_picture(self, name: str, image: Tensor, step: int) -> None:
        self.pictures.append((name, step, image))


def test_a_logger_gets_the_first_images_and_one_matrix_a_validation(
    make_trainer: MakeTrainer, small_images: MakeData
) -> None:
    album, other = Album(), Album()
    trainer = make_trainer(max_epochs=2, logger=[album, Plain(), other], log_every_n_steps=1)
    # three batches an epoch, and a sanity check before
    trainer.fit(ImageClassifier(), datamodule=small_images())
    expected = [("train/images", 1), ("val/confusion_matrix", 3), ("val/confusion_matrix", 6)]
    assert [(name, step) for name, step, _ in album.pictures] == expected
    assert len(other.pictures) == 3
    for _, _, image in album.pictures:
        assert image.dtype == torch.uint8
        assert image.shape[0] == 3


def test_the_matrix_counts_the_validation_alone(
    make_trainer: MakeTrainer, small_images: MakeData, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[Any] = []

    def note(matrix: Any, class_names: list[str]) -> Any:
        counts.append(matrix)
        assert class_names == ["daisy", "rose", "tulip"]
        return draw(matrix, class_names)

    draw = figures.draw_confusion_matrix
    monkeypatch.setattr("lightkit.reports.figures.draw_confusion_matrix", note)
    data = small_images()
    make_trainer(max_epochs=2, logger=Album(), log_every_n_steps=1).fit(
        ImageClassifier(), datamodule=data
    )
    assert [int(matrix.sum()) for matrix in counts] == [22, 22]
    assert counts[0].sum(1).tolist() == data.labels.bincount(minlength=3).tolist()


def test_nothing_is_counted_or_drawn_where_no_logger_takes_pictures(
    make_trainer: MakeTrainer, small_images: MakeData, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("drawn for nobody")

    monkeypatch.setattr("lightkit.models.classifier.draw_grid", refuse)
    monkeypatch.setattr(MulticlassConfusionMatrix, "update", refuse)
    make_trainer(logger=Plain(), log_every_n_steps=1).fit(
        ImageClassifier(), datamodule=small_images()
    )


def test_a_grid_shows_images_in_their_own_colours() -> None:
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    colours = torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
    images = ((colours - mean) / std)[:, :, None, None].expand(5, 3, 10, 12)
    grid = draw_grid(images)
    assert grid.dtype == torch.uint8
    # two columns and three rows, two pixels between
    assert grid.shape == (3, 2 + 3 * 12, 2 + 2 * 14)
    torch.testing.assert_close(grid[:, 7, 7], (colours[0] * 255).round().to(torch.uint8))
    torch.testing.assert_close(grid[:, 7, 21], (colours[1] * 255).round().to(torch.uint8))


@pytest.mark.parametrize("num_images", [1, 4, 16, 40])
def test_a_grid_of_any_batch_has_at_most_sixteen_images(num_images: int) -> None:
    assert draw_grid(torch.zeros(num_images, 3, 8, 8)).shape[2] <= 4 * 10 + 2

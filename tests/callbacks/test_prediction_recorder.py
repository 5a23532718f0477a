"""Predictions that a test and a fit leave.

Each sample once, with its own name, and which samples have a thumbnail.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pytorch_lightning import LightningModule
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from lightkit.callbacks.checkpoint import Checkpoint
from lightkit.callbacks.prediction_recorder import PredictionRecorder, reduce_outputs
from lightkit.data import ImageFolder
from lightkit.data.sampler import EvenBatchSampler, EvenDistributedSampler
from lightkit.models import ImageClassifier
from lightkit.reports.predictions import confusion_counts, read_predictions
from tests.trainers import quiet_trainer


class Scripted(LightningModule):
    """Gives what its script says for each epoch, and logs the other value as its metric."""

    def __init__(self, losses: list[float]) -> None:
        super().__init__()
        self.losses, self.layer = losses, nn.Linear(1, 1)

    def training_step(self, batch: Any) -> Tensor:
        return 0 * self.layer.weight.sum()

    def validation_step(self, batch: Any) -> Any:
        self.log("val/loss", self.losses[self.current_epoch])
        return {"prediction": batch[0] + self.current_epoch, "target": batch[0]}

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return {"prediction": batch[0], "target": batch[0]}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def numbers(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(10.0)[:, None]), batch_size=4, **options)


@pytest.mark.parametrize(
    ("outputs", "rows"),
    [
        ({"logits": torch.tensor([[0.0, 0.0], [9.0, -90.0]]), "target": torch.tensor([1, 0])},
         [[1, 0], [0, 0], [0.5, 1], [0.5, 1], [1, 1]]),
        ({"probabilities": torch.tensor([[0.25, 0.75]]), "target": torch.tensor([0])},
         [[0], [1], [0.75], [0.25], [1]]),
        ({"logits": torch.zeros(2, 2), "target": torch.tensor([-100, 1]),
          "weights": torch.tensor([1.0, 0.0])},
         [[-100, 1], [0, 0], [0.5, 0.5], [0.5, 0.5], [0, 0]]),
        ({"prediction": torch.tensor([[1.5]]), "target": torch.tensor([[2.0]])},
         [[2], [1.5], [0], [0], [1]]),
        (None, None),
        (torch.tensor(0.5), None),
        ({"loss": torch.tensor(0.5)}, None),
        ({"logits": torch.zeros(2, 3, 8, 8), "target": torch.zeros(2, 8, 8, dtype=torch.long)},
         None),
        ({"prediction": torch.zeros(2, 2), "target": torch.zeros(2, 2)}, None),
    ],
    ids=["logits", "probabilities", "ignored and weightless", "regression", "none", "a loss",
         "a mapping", "segments",
         "two outputs"],
)  # fmt: skip
def test_outputs_of_a_step_are_reduced_to_what_is_recorded(
    outputs: Any, rows: list[list[float]] | None
) -> None:
    reduced = reduce_outputs(outputs)
    assert (reduced is None) == (rows is None)
    if reduced is not None:
        columns = {
            name: column for name, column in reduced[0].items() if name != "class_probability"
        }
        torch.testing.assert_close(
            torch.stack([*columns.values()]), torch.tensor(rows, dtype=torch.float32)
        )


@pytest.mark.parametrize(("num_classes", "is_kept"), [(2, True), (100, True), (101, False)])
def test_the_probabilities_of_all_of_at_most_100_classes_are_recorded(
    num_classes: int, is_kept: bool
) -> None:
    logits = torch.randn(5, num_classes)
    reduced = reduce_outputs({"logits": logits, "target": torch.arange(5) % num_classes})
    assert reduced is not None
    found = reduced[0].get("class_probability")
    assert (found is not None) == is_kept
    if found is not None:
        torch.testing.assert_close(found, logits.softmax(dim=1))


@pytest.mark.parametrize(("most", "is_kept"), [(30, True), (29, False)])
def test_too_many_probabilities_are_left_out_and_the_others_stay(
    most: int, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Classes(Scripted):
        def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            values = batch[0][:, 0]
            return {
                "logits": torch.stack([values, -values, 0 * values], dim=1),
                "target": values.long() % 3,
            }

    monkeypatch.setattr("lightkit.callbacks.prediction_recorder._MAX_PROBABILITIES", most)
    recorder = PredictionRecorder(tmp_path)
    quiet_trainer(tmp_path, callbacks=[recorder]).test(Classes([0.0]), numbers(), verbose=False)
    read = read_predictions(tmp_path / "test_predictions.parquet")
    assert read.index.tolist() == list(range(10))
    assert read.class_probability.shape == ((10, 3) if is_kept else (0, 0))
    if is_kept:
        at = np.arange(10)
        assert read.class_probability[at, read.target].tolist() == read.label_probability.tolist()
        assert read.class_probability.max(axis=1).tolist() == read.probability.tolist()


@pytest.mark.parametrize("num", [1, 2, 3, 10, 11])
@pytest.mark.parametrize("batch_size", [1, 2, 4])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_indices_of_a_ranks_batches_are_those_it_gets(
    num: int, batch_size: int, ranks: int
) -> None:
    num_given = num_repeated = 0
    for rank in range(ranks):
        sampler = EvenDistributedSampler(
            range(num), batch_size=batch_size, num_replicas=ranks, rank=rank
        )
        batches = list(EvenBatchSampler(sampler, batch_size))
        num_given += sum(map(len, batches))
        num_repeated = sampler.num_repeated
        assert [
            sampler.indices_of(epoch=0, batch=batch) for batch in range(len(batches))
        ] == batches
    assert num_given == num + num_repeated
    assert num_repeated == 0 or batch_size == 1 or num < ranks


@pytest.mark.filterwarnings("ignore:Your `test_dataloader`'s sampler has shuffling:UserWarning")
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_samples_of_a_users_own_loader_are_numbered(is_shuffled: bool, tmp_path: Path) -> None:
    loader = numbers(sampler=RandomSampler(range(10))) if is_shuffled else numbers()
    quiet_trainer(tmp_path, callbacks=[PredictionRecorder(tmp_path)]).test(
        Scripted([0.0]), loader, verbose=False
    )
    read = read_predictions(tmp_path / "test_predictions.parquet")
    assert read.index.tolist() == list(range(10))
    assert sorted(read.target.tolist()) == list(range(10))
    assert (read.target.tolist() == list(range(10))) or is_shuffled


def test_several_loaders_and_other_outputs_leave_no_file(tmp_path: Path) -> None:
    class Silent(Scripted):
        def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return None

    for module, loaders in ((Silent([0.0]), numbers()), (Silent([0.0]), [numbers(), numbers()])):
        quiet_trainer(tmp_path, callbacks=[PredictionRecorder(tmp_path)]).test(
            module, loaders, verbose=False
        )
    assert not (tmp_path / "test_predictions.parquet").exists()


@pytest.mark.parametrize(
    "outputs",
    [
        {
            "logits": torch.zeros(4, 2),
            "target": torch.zeros(4, dtype=torch.long),
            "weights": torch.ones(2),
        },
        {"logits": torch.zeros(4, 2, device="meta"), "target": torch.zeros(4, dtype=torch.long)},
        {"prediction": torch.zeros(4, device="meta"), "target": torch.zeros(4, device="meta")},
    ],
    ids=["weights of classes", "on two devices", "unreadable"],
)
def test_outputs_that_cannot_be_recorded_are_one_warning(
    outputs: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(Scripted):
        def validation_step(self, batch: Any) -> Any:
            return outputs

        def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return outputs

    trainer = quiet_trainer(tmp_path, max_epochs=1, callbacks=[PredictionRecorder(tmp_path)])
    trainer.test(Odd([0.0]), numbers(), verbose=False)
    trainer.fit(Odd([0.0]), numbers(), numbers())
    assert caplog.text.count("predictions cannot be recorded") == 1
    assert not list(tmp_path.glob("*.parquet"))


@pytest.mark.parametrize(("losses", "best"), [([3, 1, 2], 1), ([3, 2, 1], 2), ([1, 1, 2], 0)])
def test_a_fit_leaves_the_validation_of_its_best_epoch(
    losses: list[float], best: int, tmp_path: Path
) -> None:
    keeper = ModelCheckpoint(tmp_path, monitor="val/loss")
    trainer = quiet_trainer(
        tmp_path,
        max_epochs=3,
        enable_checkpointing=True,
        callbacks=[keeper, PredictionRecorder(tmp_path)],
    )
    trainer.fit(Scripted(losses), numbers(), numbers())
    read = read_predictions(tmp_path / "validation_predictions.parquet")
    assert (read.epoch, set((read.prediction - read.target).tolist())) == (best, {float(best)})
    assert read.sha256 is not None


class Manual(Scripted):
    """Steps an optimizer by itself, of which Lightning counts no step."""

    def __init__(self, losses: list[float]) -> None:
        super().__init__(losses)
        self.automatic_optimization = False

    def training_step(self, batch: Any) -> Any:
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        optimizer.step()


@pytest.mark.parametrize(
    ("module", "keeper"),
    [
        (Manual, partial(Checkpoint, monitor="val/loss", mode="min")),
        (Scripted, partial(ModelCheckpoint, "memory://best", monitor="val/loss")),
    ],
    ids=["no step is counted", "the checkpoint is in another store"],
)
def test_where_steps_tell_nothing_the_score_says_which_validation_is_of_the_best_checkpoint(
    module: type[Scripted], keeper: Any, tmp_path: Path
) -> None:
    checkpoint = keeper()
    checkpoint.dirpath = checkpoint.dirpath or str(tmp_path)
    callbacks = [PredictionRecorder(tmp_path), checkpoint]
    trainer = quiet_trainer(tmp_path, max_epochs=3, enable_checkpointing=True, callbacks=callbacks)
    trainer.fit(module([0.5, 0.1, 0.9]), numbers(), numbers())
    found = read_predictions(tmp_path / "validation_predictions.parquet")
    assert {*(found.prediction - found.target).tolist()} == {1}


class Counted(LightningModule):
    """Predicts the number of its optimizer steps, which is its weight."""

    def __init__(self, losses: list[float]) -> None:
        super().__init__()
        self.losses = losses
        self.weight = nn.Parameter(torch.zeros(()))

    def training_step(self, batch: Any) -> Tensor:
        self.log("train/loss", self.losses[self.current_epoch], on_step=False, on_epoch=True)
        return -self.weight

    def validation_step(self, batch: Any) -> Any:
        self.log("val/other", 1.0)
        return {"prediction": self.weight.expand(len(batch[0])), "target": batch[0][:, 0]}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


@pytest.mark.parametrize(
    ("keeper", "options", "steps"),
    [
        (Checkpoint(monitor="train/loss", mode="min"), {"max_epochs": 4}, None),
        (Checkpoint(monitor="train/loss", mode="min"), {"max_epochs": 2}, 6),
        (Checkpoint(monitor=None), {"max_epochs": 3}, None),
        (Checkpoint(monitor=None), {"max_epochs": 4}, 12),
        (Checkpoint(), {"max_steps": 7}, None),
        (
            ModelCheckpoint(monitor="train/loss", save_on_train_epoch_end=True),
            {"max_epochs": 4},
            None,
        ),
        (
            ModelCheckpoint(monitor="train/loss", save_on_train_epoch_end=True),
            {"max_epochs": 2},
            6,
        ),
    ],
    ids=[
        *("best is not validated", "best is validated", "newest is not validated"),
        *("newest is validated", "newest of steps", "of Lightning", "of Lightning, validated"),
    ],
)
def test_the_predictions_of_a_fit_are_of_the_weights_in_its_best_checkpoint(
    keeper: ModelCheckpoint, options: dict[str, Any], steps: int | None, tmp_path: Path
) -> None:
    """The second and the fourth epoch of three steps each are validated; the third is the best."""
    keeper.dirpath = str(tmp_path)
    recorder = PredictionRecorder(tmp_path)
    trainer = quiet_trainer(
        tmp_path,
        check_val_every_n_epoch=2,
        enable_checkpointing=True,
        callbacks=[recorder, keeper],
        **options,
    )
    trainer.fit(Counted([5.0, 4.0, 3.0, 6.0]), numbers(), numbers())
    path = tmp_path / "validation_predictions.parquet"
    assert path.exists() == (steps is not None)
    if steps is not None:
        state = torch.load(keeper.best_model_path)["state_dict"]
        assert {*read_predictions(path).prediction} == {float(state["weight"])} == {float(steps)}


def test_images_have_their_own_names_and_thumbnails_and_bad_ones_are_left_out(
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(3)
    for number in range(120):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (20, 400, 3), np.uint8)).save(path)
    data = ImageFolder(
        str(tmp_path / "photos"),
        image_size=16,
        batch_size=8,
        num_workers=0,
        test_fraction=0.7,
        max_bad_fraction=0.5,
    )
    data.setup("test")
    photos = data.index.splits["test"]
    gone = {str(photos[3].path), str(photos[-1].path)}
    for name in gone:
        Path(name).write_bytes(b"no image any more")
    model = ImageClassifier(num_classes=2, class_names=["a", "b"])
    quiet_trainer(tmp_path, callbacks=[PredictionRecorder(tmp_path)]).test(
        model, data, verbose=False
    )
    read = read_predictions(tmp_path / "test_predictions.parquet")
    assert set(read.paths) == {str(photo.path) for photo in photos} - gone
    assert [Path(str(path)).parent.name for path in read.paths] == [
        read.class_names[label] for label in read.target
    ]
    assert confusion_counts(read).sum() == len(photos) - 2
    assert read.fingerprint == data.index.fingerprint
    thumbnails = list((tmp_path / "thumbnails").iterdir())
    assert len(thumbnails) == 60
    with Image.open(thumbnails[0]) as image:
        assert image.size == (160, 8)

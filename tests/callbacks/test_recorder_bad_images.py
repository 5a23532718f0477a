"""What is left out is listed, reported in one line, and an event of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningDataModule, LightningModule, Trainer
from torch.utils.data import DataLoader

from lightkit import runs
from lightkit.callbacks import RunRecorder, recorder
from lightkit.data.bad_samples import Defects
from lightkit.images.image_index import Defect
from lightkit.runs.bad_images import BadImage, read_bad_images


class Losing(LightningDataModule):
    """Notes an image in each epoch of training, and again in those after it.

    Args:
        found: By the scan.
        lost: Names, by epoch; those of tests under None.
    """

    def __init__(self, found: list[str], lost: dict[int | None, list[str]]) -> None:
        super().__init__()
        self.defects = Defects([Defect(name, "cut short") for name in found])
        self.lost = lost

    def _loader(self, epoch: int | None) -> DataLoader[Any]:
        for name in self.lost.get(epoch, []):
            self.defects.note(Defect(name, "gone"))
        return DataLoader(torch.zeros(2, 1), batch_size=1)  # type: ignore[arg-type]

    def train_dataloader(self) -> DataLoader[Any]:
        assert self.trainer is not None
        return self._loader(self.trainer.current_epoch)

    def test_dataloader(self) -> DataLoader[Any]:
        return self._loader(None)


class Line(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return self.layer(batch).sum()  # type: ignore[no-any-return]

    def test_step(self, batch: torch.Tensor, index: int) -> None:
        self.layer(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[runs.Run]:
    folder = tmp_path / "job" / "1"
    folder.mkdir(parents=True)
    with runs.activate(runs.Run(folder, "job", "1", tmp_path)) as run:
        yield run


def trainer_for(run: runs.Run, **options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu", max_epochs=3, logger=False, enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False, reload_dataloaders_every_n_epochs=1,
        default_root_dir=run.folder,
        callbacks=[RunRecorder(run, events=runs.EventStream(run.events_path))], **options,
    )  # fmt: skip


def bad_image_events(run: runs.Run) -> list[dict[str, Any]]:
    return [event for event in runs.read_events(run.events_path) if event["event"] == "bad_images"]


def test_a_scan_and_each_epoch_are_reported_once(
    run: runs.Run, caplog: pytest.LogCaptureFixture
) -> None:
    data = Losing(["s"], {0: ["a", "b"], 1: ["a"], 2: ["c", "s"]})
    trainer_for(run).fit(Line(), datamodule=data)
    assert read_bad_images(run.folder / "bad_images.csv") == [
        BadImage("s", "cut short", "scan"),
        BadImage("a", "gone", "epoch 0"),
        BadImage("b", "gone", "epoch 0"),
        BadImage("c", "gone", "epoch 2"),
    ]
    assert [
        (event["count"], event["reasons"], event["found"], event["path"])
        for event in bad_image_events(run)
    ] == [
        (1, {"cut short": 1}, "scan", "bad_images.csv"),
        (2, {"gone": 2}, "epoch 0", "bad_images.csv"),
        (1, {"gone": 1}, "epoch 2", "bad_images.csv"),
    ]
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    place = run.folder / "bad_images.csv"
    assert lines == [
        f"1 image cannot be used and will be left out (1 cut short); listed in {place}",
        f"2 images could not be read any more and will be left out (2 gone); listed in {place}",
        f"1 image could not be read any more and will be left out (1 gone); listed in {place}",
    ]


def test_a_test_adds_to_the_list_of_its_run(run: runs.Run) -> None:
    trainer_for(run).fit(Line(), datamodule=Losing(["s"], {1: ["a"]}))
    before = len(bad_image_events(run))
    trainer_for(run).test(Line(), datamodule=Losing(["s"], {None: ["a", "t"]}), verbose=False)
    assert [(row.path, row.found) for row in read_bad_images(run.folder / "bad_images.csv")] == [
        ("s", "scan"), ("a", "epoch 1"), ("t", "test"),
    ]  # fmt: skip
    assert [event["found"] for event in bad_image_events(run)[before:]] == ["scan", "test"]


def test_what_other_ranks_have_met_is_listed_by_the_first(
    run: runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather_two(trainer: Trainer, rows: list[BadImage]) -> list[list[BadImage]]:
        return [
            rows,
            [BadImage("theirs", "gone", "epoch 1")] if trainer.current_epoch == 1 and rows else [],
        ]

    monkeypatch.setattr(recorder, "gather", gather_two)
    trainer_for(run).fit(Line(), datamodule=Losing([], {1: ["mine"]}))
    assert [(event["count"], event["found"]) for event in bad_image_events(run)] == [(2, "epoch 1")]
    assert [row.path for row in read_bad_images(run.folder / "bad_images.csv")] == [
        "mine",
        "theirs",
    ]


def test_before_an_exception_what_is_known_is_listed(run: runs.Run) -> None:
    class Failing(Line):
        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            raise ValueError("out of stock")

    with pytest.raises(ValueError, match="out of stock"):
        trainer_for(run).fit(Failing(), datamodule=Losing([], {0: ["a"]}))
    assert read_bad_images(run.folder / "bad_images.csv") == [BadImage("a", "gone", "epoch 0")]
    assert len(bad_image_events(run)) == 1


def test_data_without_bad_images_leave_no_list(
    run: runs.Run, caplog: pytest.LogCaptureFixture
) -> None:
    trainer_for(run).fit(Line(), datamodule=Losing([], {}))
    plain: Any = DataLoader(torch.zeros(2, 1), batch_size=1)  # type: ignore[arg-type]
    trainer_for(run).fit(Line(), train_dataloaders=plain)
    assert not (run.folder / "bad_images.csv").exists()
    assert bad_image_events(run) == []
    assert "left out" not in caplog.text

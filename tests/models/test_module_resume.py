"""The metrics of an epoch after an interruption.

With `ResumeState` and Lightning's own trainer and checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytorch_lightning import Callback, LightningModule, Trainer, seed_everything
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from lightkit.callbacks import ResumeState
from lightkit.models import ImageClassifier

# 2026-11: Lightning 2.6 asks for the callback that wrote the checkpoint, which these tests leave
# out when they resume
pytestmark = pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")

MakeTrainer = Callable[..., Trainer]
MakeData = Callable[..., Any]


class Rows(Callback):
    """Notes the training metrics that each epoch logs."""

    def __init__(self) -> None:
        self.seen: dict[int, dict[str, float]] = {}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch = trainer.current_epoch

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._note(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._note(trainer)

    def _note(self, trainer: Trainer) -> None:
        values = {
            name: float(v)
            for name, v in trainer.callback_metrics.items()
            if name.startswith("train/")
        }
        if values:
            self.seen.setdefault(self._epoch, values)


class SkipsDone(DataLoader[Any]):
    """Gives the rest of an interrupted epoch, as a resumable loader does."""

    num_done = 0

    def __iter__(self) -> Any:
        batches = list(super().__iter__())[self.num_done :]
        self.num_done = 0
        return iter(batches)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lightning asks whether there is one."""


def fit(
    make_trainer: MakeTrainer,
    data: Any,
    *,
    callbacks: list[Callback],
    ckpt_path: Path | None = None,
    num_done: int = 0,
) -> dict[int, dict[str, float]]:
    seed_everything(7)
    rows, model = Rows(), ImageClassifier(learning_rate=0.01)
    loader = SkipsDone(data.train_dataloader().dataset, batch_size=data.batch_size)
    loader.num_done = num_done
    data.train_dataloader = lambda: loader
    make_trainer(max_epochs=3, callbacks=[rows, ResumeState(), *callbacks]).fit(
        model, datamodule=data, ckpt_path=ckpt_path
    )
    return rows.seen


def test_an_interrupted_epoch_has_the_values_of_an_undisturbed_one(
    tmp_path: Path, make_trainer: MakeTrainer, small_images: MakeData
) -> None:
    saving = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    undisturbed = fit(make_trainer, small_images(num_images=30), callbacks=[saving])
    assert set(undisturbed) == {0, 1, 2}
    for step, epoch in ((2, 0), (5, 1), (7, 1)):  # four batches an epoch
        resumed = fit(
            make_trainer,
            small_images(num_images=30),
            callbacks=[],
            ckpt_path=tmp_path / f"step={step}.ckpt",
            num_done=step % 4,
        )
        assert set(resumed) == set(range(epoch, 3))
        for later in resumed:
            assert resumed[later] == pytest.approx(undisturbed[later], abs=1e-6), (
                f"step {step}, epoch {later}"
            )


@pytest.mark.parametrize(
    "settings",
    [
        {"save_on_train_epoch_end": True},
        {"save_on_train_epoch_end": False},
        {"every_n_train_steps": 4},
    ],
    ids=["after the epoch", "after validation", "after the last batch"],
)
def test_a_finished_epoch_is_not_counted_twice(
    tmp_path: Path, make_trainer: MakeTrainer, small_images: MakeData, settings: dict[str, Any]
) -> None:
    saving = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, **settings)
    undisturbed = fit(make_trainer, small_images(num_images=30), callbacks=[saving])
    resumed = fit(
        make_trainer, small_images(num_images=30), callbacks=[], ckpt_path=tmp_path / "step=4.ckpt"
    )
    assert {1, 2} <= set(resumed)
    for epoch, values in resumed.items():
        assert values == pytest.approx(undisturbed[epoch], abs=1e-6), f"epoch {epoch}"


@pytest.mark.parametrize(
    "on_train_epoch_end", [True, False], ids=["after the epoch", "after validation"]
)
def test_a_finished_run_that_is_resumed_logs_nothing_wrong(
    tmp_path: Path, make_trainer: MakeTrainer, small_images: MakeData, on_train_epoch_end: bool
) -> None:
    saving = ModelCheckpoint(
        tmp_path, filename="{step}", save_top_k=-1, save_on_train_epoch_end=on_train_epoch_end
    )
    undisturbed = fit(make_trainer, small_images(num_images=30), callbacks=[saving])
    resumed = fit(
        make_trainer, small_images(num_images=30), callbacks=[], ckpt_path=tmp_path / "step=12.ckpt"
    )
    for epoch, values in resumed.items():
        assert values == pytest.approx(undisturbed[epoch], abs=1e-6)

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightkit import runs
from lightkit.callbacks import Checkpoint, ResumeState, VerifiedCheckpointIO
from lightkit.callbacks.checkpoint import DistributedFlag
from lightkit.data.loader import train_loader
from lightkit.errors import ConfigError


class Rising(pl.LightningModule):
    """Its validation metric is 3, 1, 2 in its first epochs."""

    def __init__(self, metric: str | None = "val/loss") -> None:
        super().__init__()
        self.layer, self.metric = torch.nn.Linear(4, 1), metric

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = (
            self.layer(batch if isinstance(batch, torch.Tensor) else batch[0]).pow(2).mean()
        )
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if self.metric:
            self.log(self.metric, (3.0, 1.0, 2.0)[self.current_epoch])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Validated(Rising):
    """Notes the steps of the checkpoints that are written at the end of a validation."""

    def __init__(self) -> None:
        super().__init__()
        self.saved_validated: list[int] = []

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.trainer.validating:
            self.saved_validated.append(self.trainer.global_step)


class Keyed(Dataset[torch.Tensor]):
    """Rows of a tensor, for a sampler whose indices know their epoch."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, key: Any) -> torch.Tensor:
        return self.data[getattr(key, "index", key)]


class Saves(pl.Callback):
    """Notes in which step which file is written."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: Any
    ) -> None:
        self.steps.append(trainer.global_step)


def fit(
    keeper: Checkpoint,
    module: pl.LightningModule,
    *,
    exact: bool = False,
    max_epochs: int = 3,
    ckpt_path: str | None = None,
    plugin: VerifiedCheckpointIO | None = None,
    **settings: Any,
) -> list[int]:
    saves = Saves()
    trainer = pl.Trainer(
        max_epochs=max_epochs, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[ResumeState(), saves, keeper],
        plugins=[plugin or VerifiedCheckpointIO()],
        **settings,
    )  # fmt: skip
    data = torch.ones(20, 4)
    loader: DataLoader[Any] = DataLoader(TensorDataset(data), batch_size=4)
    train = train_loader(Keyed(data), batch_size=4, seed=1) if exact else loader
    trainer.fit(module, train, loader, ckpt_path=ckpt_path)
    return saves.steps


def epoch_of(path: Path) -> int:
    return int(torch.load(path, weights_only=True)["epoch"])


@pytest.mark.parametrize(
    ("settings", "metric", "best"),
    [
        ({}, "val/loss", 1),
        ({}, "val_loss", 1),
        ({"monitor": "score", "mode": "max"}, "score", 0),
        ({}, "val/other", 2),
        ({"monitor": None}, "val/loss", 2),
    ],
    ids=["auto", "auto_underscore", "named_max", "auto_finds_none", "none"],
)
def test_the_best_epoch_is_kept_next_to_the_last(
    tmp_path: Path, settings: dict[str, Any], metric: str, best: int
) -> None:
    fit(Checkpoint(dirpath=str(tmp_path), **settings), Rising(metric))
    assert epoch_of(tmp_path / "best.ckpt") == best
    assert epoch_of(tmp_path / "last.ckpt") == 2


def test_a_metric_that_is_not_logged_is_an_error_that_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"monitor: 'val/lose' is not logged.*val/loss.*logged are val/loss"
    ):
        fit(Checkpoint("val/lose", dirpath=str(tmp_path)), Rising())


def test_best_and_last_of_one_epoch_are_two_names_of_one_file(tmp_path: Path) -> None:
    steps = fit(Checkpoint(dirpath=str(tmp_path)), Rising(), max_epochs=2)
    assert steps == [5, 10]
    best, last = tmp_path / "best.ckpt", tmp_path / "last.ckpt"
    assert best.samefile(last)
    assert runs.find_fault(best) is None
    assert runs.find_fault(last) is None
    kept = torch.load(last, weights_only=True)["callbacks"]["lightkit.callbacks.Checkpoint"]
    assert (kept["best_model_path"], kept["last_model_path"]) == (str(best), str(last))
    assert runs.find_fault(tmp_path / "last-1.ckpt") is None


def test_an_epoch_that_is_not_the_best_has_a_last_checkpoint_of_its_own(tmp_path: Path) -> None:
    assert fit(Checkpoint(dirpath=str(tmp_path)), Rising()) == [5, 10, 15]
    steps = {
        path.name: torch.load(path, weights_only=True)["global_step"]
        for path in tmp_path.glob("*.ckpt")
    }
    assert steps == {"best.ckpt": 10, "last.ckpt": 15, "last-1.ckpt": 10}


def test_who_does_more_when_the_last_checkpoint_is_written_is_called_in_each_epoch(
    tmp_path: Path,
) -> None:
    class Sending(Checkpoint):
        sent = 0

        def save_last_now(self, trainer: pl.Trainer) -> None:
            self.sent += 1
            super().save_last_now(trainer)

    keeper = Sending(dirpath=str(tmp_path))
    fit(keeper, Rising())
    assert keeper.sent == 3


def test_the_last_checkpoint_is_written_within_epochs_that_can_be_resumed_there(
    tmp_path: Path,
) -> None:
    steps = fit(
        Checkpoint(None, dirpath=str(tmp_path), save_last_every_n_steps=2), Rising(), exact=True
    )
    assert sorted({*steps}) == [2, 4, 5, 7, 9, 10, 12, 14, 15]


def test_time_makes_a_write_due_too(tmp_path: Path) -> None:
    steps = fit(
        Checkpoint(None, dirpath=str(tmp_path), save_last_every_s=0.0), Rising(), exact=True
    )
    assert sorted({*steps})[:6] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("exact", [True, False])
def test_ranks_ask_each_other_only_where_a_write_may_come(
    tmp_path: Path, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def after_batch(_: DistributedFlag, trainer: pl.Trainer, wanted: bool) -> bool:
        asked.append(trainer.global_step)
        return wanted

    monkeypatch.setattr(DistributedFlag, "after_batch", after_batch)
    fit(
        Checkpoint(None, dirpath=str(tmp_path), save_last_every_s=0.0),
        Rising(),
        exact=exact,
        max_epochs=1,
    )
    assert asked == ([1, 2, 3, 4] if exact else [])


def test_other_data_gets_checkpoints_at_the_end_of_epochs_alone(tmp_path: Path) -> None:
    steps = fit(Checkpoint(None, dirpath=str(tmp_path), save_last_every_n_steps=1), Rising())
    assert sorted({*steps}) == [5, 10, 15]


def test_before_a_validation_within_the_epoch_nothing_is_written_but_behind_it(
    tmp_path: Path,
) -> None:
    keeper = Checkpoint(None, dirpath=str(tmp_path), save_last_every_n_steps=1)
    module = Validated()
    steps = fit(keeper, module, exact=True, val_check_interval=2)
    assert steps == list(range(1, 16))
    assert module.saved_validated == [2, 4, 7, 9, 12, 14]


def test_nor_before_one_that_counts_batches_across_epochs(tmp_path: Path) -> None:
    keeper = Checkpoint(None, dirpath=str(tmp_path), save_last_every_n_steps=1)
    module = Validated()
    steps = fit(keeper, module, exact=True, val_check_interval=3, check_val_every_n_epoch=None)
    assert steps == list(range(1, 16))
    assert module.saved_validated == [3, 6, 9, 12]  # 15 is the end of an epoch


def test_a_damaged_last_checkpoint_is_written_again_where_nothing_is_left_to_train(
    tmp_path: Path,
) -> None:
    fit(Checkpoint(monitor=None, dirpath=str(tmp_path)), Rising(), max_epochs=2)
    (tmp_path / "last.ckpt").unlink()  # another name of best.ckpt
    (tmp_path / "last.ckpt").write_bytes(b"cut short")
    fit(
        Checkpoint(monitor=None, dirpath=str(tmp_path)),
        Rising(),
        max_epochs=2,
        ckpt_path=str(tmp_path / "best.ckpt"),
    )
    assert runs.find_fault(tmp_path / "last.ckpt") is None
    last = str(tmp_path / "last.ckpt")
    assert fit(Checkpoint(monitor=None, dirpath=str(tmp_path)), Rising(), ckpt_path=last) == [15]


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "older"])
def test_a_best_checkpoint_is_made_after_a_kill_before_it_where_nothing_is_left_to_train(
    tmp_path: Path, is_gone: bool
) -> None:
    best, last = tmp_path / "best.ckpt", str(tmp_path / "last.ckpt")
    fit(Checkpoint(dirpath=str(tmp_path)), Rising(), max_epochs=1)
    older = best.read_bytes()
    fit(Checkpoint(dirpath=str(tmp_path)), Rising(), max_epochs=2, ckpt_path=last)
    assert epoch_of(best) == 1

    best.unlink()
    runs.sidecar(best).unlink()
    if not is_gone:
        best.write_bytes(older)
        runs.write_digest(best)
    fit(Checkpoint(dirpath=str(tmp_path)), Rising(), max_epochs=2, ckpt_path=last)
    assert epoch_of(best) == 1
    assert runs.find_fault(best) is None


def test_a_fast_dev_run_writes_nothing(tmp_path: Path) -> None:
    assert fit(Checkpoint(dirpath=str(tmp_path)), Rising(), fast_dev_run=True) == []
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("is_moved", "best"), [(False, 1), (True, 2)], ids=["same-folder", "new-run"]
)
def test_a_best_score_counts_where_its_checkpoint_is(
    tmp_path: Path, is_moved: bool, best: int
) -> None:
    first = tmp_path / "first"
    fit(Checkpoint(dirpath=str(first)), Rising(), max_epochs=2)
    folder = tmp_path / "second" if is_moved else first
    fit(Checkpoint(dirpath=str(folder)), Rising(), ckpt_path=str(first / "last.ckpt"))
    assert epoch_of(folder / "best.ckpt") == best
    assert epoch_of(first / "best.ckpt") == 1


def test_a_run_of_a_copied_folder_keeps_its_best(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    fit(Checkpoint(dirpath=str(first)), Rising(), max_epochs=2)
    shutil.copytree(first, second)
    fit(Checkpoint(dirpath=str(second)), Rising(), ckpt_path=str(second / "last.ckpt"))
    assert epoch_of(second / "best.ckpt") == 1

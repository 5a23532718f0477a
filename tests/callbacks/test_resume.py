"""A killed training goes on as if nothing had happened.

Random states, plateau steps and the decision to stop.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.distributed import DistributedSamplerWrapper
from pytorch_lightning.callbacks import Callback, EarlyStopping, ModelCheckpoint
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from lightkit.callbacks import Checkpoint, ResumeState
from lightkit.callbacks.resume import list_indices, random_states, restore_random_states
from lightkit.data.loader import train_loader
from tests.trainers import quiet_trainer

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory:UserWarning")


class Noise(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, key: Any) -> torch.Tensor:
        return torch.full((4,), float(getattr(key, "index", key)) / 10)


class Data(pl.LightningDataModule):
    def __init__(self, *, exact: bool) -> None:
        super().__init__()
        self.exact = exact

    def train_dataloader(self) -> DataLoader[Any]:
        if self.exact:
            return train_loader(Noise(), batch_size=3, seed=7, trainer=self.trainer)
        return DataLoader(Noise(), batch_size=3, shuffle=True, num_workers=0)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.ones(4, 4)), batch_size=2)


class Drawing(Data):
    """Data whose loaders are made with random numbers."""

    def train_dataloader(self) -> DataLoader[Any]:
        torch.rand(3)
        return super().train_dataloader()


class Net(pl.LightningModule):
    def __init__(self, *, plateau: bool, num_steps: bool = False) -> None:
        super().__init__()
        self.num_steps = num_steps
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
        )
        self.plateau = plateau

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        noise = random.random() + float(np.random.rand())
        loss: torch.Tensor = (self.layers(batch) - noise).pow(2).mean()
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.log("val/loss", self.layers(batch[0]).pow(2).mean() + self.current_epoch)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        # makes the training data's loader, and an iterator over it, before any hook of the fit
        if self.num_steps:
            total = int(self.trainer.estimated_stepping_batches)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=total)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]
        if not self.plateau:
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.3)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "monitor": "val/loss"},
        }


class Killed(BaseException):
    """Stands for kill -9: nothing in the process reacts to it by saving."""


class Kill(Callback):
    def __init__(self, when: Callable[[pl.Trainer], bool]) -> None:
        self.when = when

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if self.when(trainer):
            raise Killed

    def on_train_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if self.when(trainer):
            raise Killed


def train(
    folder: Path, *, exact: bool, plateau: bool = False,
    kill: Callable[[pl.Trainer], bool] | None = None, resume: bool = False, accumulate: int = 1,
    save_steps: int | None = 1, max_steps: int = -1, validate_every: int = 1,
    num_steps: bool = False, data: type[Data] = Data,
) -> dict[str, Any]:  # fmt: skip
    pl.seed_everything(3, workers=True, verbose=False)
    np.random.seed(3)
    module = Net(plateau=plateau, num_steps=num_steps)
    if resume:
        torch.rand(17)  # whatever ran before in this process must not matter
    checkpoint = Checkpoint(dirpath=str(folder), save_last_every_n_steps=save_steps)
    trainer = pl.Trainer(
        max_epochs=4 if max_steps == -1 else None, max_steps=max_steps, accelerator="cpu",
        logger=False,
        enable_progress_bar=False, enable_model_summary=False,
        check_val_every_n_epoch=validate_every,
        accumulate_grad_batches=accumulate,
        callbacks=[ResumeState(), checkpoint, *([Kill(kill)] if kill else [])],
    )  # fmt: skip
    trainer.fit(module, data(exact=exact), ckpt_path=str(folder / "last.ckpt") if resume else None)
    states = {key: value.clone() for key, value in module.state_dict().items()}
    return {
        "weights": states,
        "epochs": trainer.current_epoch,
        "lr": trainer.optimizers[0].param_groups[0]["lr"],
    }


def steps_of_the_sweep(*steps: int) -> list[Any]:
    return [pytest.param(step, marks=pytest.mark.long) for step in steps]


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["epochs"] == other["epochs"]
    assert one["lr"] == other["lr"]
    for key, value in one["weights"].items():
        assert torch.equal(value, other["weights"][key]), f"{key} differs"


@pytest.mark.parametrize(
    "step", [8, *steps_of_the_sweep(1, 4, 7, 13, 20, 27)], ids=lambda step: f"step{step}"
)
@pytest.mark.parametrize("plateau", [False, True], ids=["step_schedule", "plateau"])
def test_a_training_killed_at_any_step_ends_with_the_same_weights(
    tmp_path: Path, step: int, plateau: bool
) -> None:
    expected = train(tmp_path / "whole", exact=True, plateau=plateau)
    with pytest.raises(Killed):
        train(
            tmp_path / "cut",
            exact=True,
            plateau=plateau,
            kill=lambda trainer: trainer.global_step == step,
        )
    assert_same(expected, train(tmp_path / "cut", exact=True, plateau=plateau, resume=True))


@pytest.mark.parametrize("step", [9, *steps_of_the_sweep(3, 15)], ids=lambda step: f"step{step}")
def test_accumulated_gradients_are_never_cut_in_two(tmp_path: Path, step: int) -> None:
    expected = train(tmp_path / "whole", exact=True, accumulate=2)
    with pytest.raises(Killed):
        train(
            tmp_path / "cut",
            exact=True,
            accumulate=2,
            kill=lambda trainer: trainer.global_step == step,
        )
    assert_same(expected, train(tmp_path / "cut", exact=True, accumulate=2, resume=True))


@pytest.mark.parametrize(
    ("exact", "step"),
    [
        (True, 15),
        (False, 14),
        *(pytest.param(True, step, marks=pytest.mark.long) for step in (4, 7, 8, 13, 14, 20)),
        *(pytest.param(False, step, marks=pytest.mark.long) for step in (7, 8, 20)),
    ],
    ids=str,
)
def test_a_training_that_counts_steps_ends_with_the_same_weights(
    tmp_path: Path, step: int, exact: bool
) -> None:
    expected = train(tmp_path / "whole", exact=exact, max_steps=25)
    with pytest.raises(Killed):
        train(
            tmp_path / "cut",
            exact=exact,
            max_steps=25,
            kill=lambda trainer: trainer.global_step == step,
        )
    assert_same(expected, train(tmp_path / "cut", exact=exact, max_steps=25, resume=True))


@pytest.mark.parametrize("data", [Data, Drawing])
@pytest.mark.parametrize("max_steps", [-1, 28], ids=["epochs", "steps"])
@pytest.mark.parametrize("num_steps", [False, True], ids=["plain", "counts_steps"])
def test_a_shuffled_loader_of_ones_own_goes_on_in_the_order_that_it_would_have_had(
    tmp_path: Path, num_steps: bool, max_steps: int, data: type[Data]
) -> None:
    settings: dict[str, Any] = {
        "exact": False,
        "num_steps": num_steps,
        "max_steps": max_steps,
        "data": data,
    }
    settings["save_steps"] = None
    expected = train(tmp_path / "whole", **settings)
    with pytest.raises(Killed):
        train(tmp_path / "cut", **settings, kill=lambda trainer: trainer.global_step == 10)
    assert_same(expected, train(tmp_path / "cut", **settings, resume=True))


class Stateful(DataLoader[Any]):
    """A loader that keeps its place by itself."""

    def state_dict(self) -> dict[str, Any]:
        return {"place": 2}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        assert state_dict == {"place": 2}


class Several(Data):
    """Several loaders at once."""

    def train_dataloader(self) -> Any:
        other: Any = Stateful if self.exact else DataLoader
        return {"one": Stateful(Noise(), batch_size=3), "other": other(Noise(), batch_size=3)}


class NetOfSeveral(Net):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step(batch["one"], batch_idx)


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before")
@pytest.mark.parametrize("exact", [True, False])
def test_of_several_loaders_the_one_without_a_state_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, exact: bool
) -> None:
    def fit(kill: int | None, path: Path | None) -> None:
        callbacks = [
            ResumeState(),
            ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=2),
            Kill(lambda trainer: trainer.global_step == kill),
        ]
        trainer = quiet_trainer(
            tmp_path, max_epochs=1, enable_checkpointing=True, callbacks=callbacks
        )
        trainer.fit(NetOfSeveral(plateau=False), Several(exact=exact), ckpt_path=path)

    with pytest.raises(Killed):
        fit(3, None)
    fit(None, tmp_path / "step=2.ckpt")
    assert ("its loader (DataLoader) begins anew" in caplog.text) == (not exact)


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before")
@pytest.mark.parametrize(
    ("exact", "step", "warns"),
    [(False, 3, True), (True, 3, False), (False, None, False)],
    ids=["own loader", "resumable loader", "own loader at the end of an epoch"],
)
def test_a_resume_within_an_epoch_warns_where_the_loader_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, exact: bool, step: int | None, warns: bool
) -> None:
    def fit(kill: int | None, *, resume: bool) -> None:
        def dies(trainer: pl.Trainer) -> bool:
            return trainer.global_step == kill

        callbacks = [ResumeState(), Checkpoint(dirpath=str(tmp_path)), Kill(dies)]
        trainer = quiet_trainer(
            tmp_path,
            max_epochs=2,
            val_check_interval=2,
            enable_checkpointing=True,
            callbacks=callbacks,
        )
        path = str(tmp_path / "last.ckpt") if resume else None
        trainer.fit(Net(plateau=False), Data(exact=exact), ckpt_path=path)

    num_batches = len(Data(exact=exact).train_dataloader())
    with pytest.raises(Killed):
        fit(num_batches + 1 if step is None else step, resume=False)
    fit(None, resume=True)
    words = "epoch 0 goes on after 2 of its batches, and its loader (DataLoader) begins anew"
    assert (words in caplog.text) == warns
    assert ("begins anew" in caplog.text) == warns


@pytest.mark.parametrize("step", [15, *steps_of_the_sweep(7, 20)], ids=str)
def test_the_best_epoch_stays_the_best_where_validation_is_rare(tmp_path: Path, step: int) -> None:
    train(tmp_path / "whole", exact=True, validate_every=2)
    with pytest.raises(Killed):
        train(
            tmp_path / "cut",
            exact=True,
            validate_every=2,
            kill=lambda trainer: trainer.global_step == step,
        )
    train(tmp_path / "cut", exact=True, validate_every=2, resume=True)
    whole, cut = (
        torch.load(tmp_path / name / "best.ckpt", weights_only=True) for name in ("whole", "cut")
    )
    assert cut["global_step"] == whole["global_step"]
    assert all(
        torch.equal(value, cut["state_dict"][key]) for key, value in whole["state_dict"].items()
    )


def test_a_moved_run_folder_keeps_its_best_score(tmp_path: Path) -> None:
    train(tmp_path / "whole", exact=True)
    with pytest.raises(Killed):
        train(tmp_path / "cut", exact=True, kill=lambda trainer: trainer.global_step == 15)
    (tmp_path / "cut").rename(tmp_path / "moved")
    train(tmp_path / "moved", exact=True, resume=True)
    whole, moved = (
        torch.load(tmp_path / name / "last.ckpt", weights_only=True)["callbacks"][
            "lightkit.callbacks.Checkpoint"
        ]
        for name in ("whole", "moved")
    )
    assert Path(moved["best_model_path"]) == tmp_path / "moved" / "best.ckpt"
    assert moved["best_model_score"] == whole["best_model_score"]


def test_random_states_are_restored_by_value() -> None:
    random.seed(1)
    saved = random_states()
    drawn = (random.random(), float(np.random.rand()), float(torch.rand(1)))
    restore_random_states(saved)
    assert (random.random(), float(np.random.rand()), float(torch.rand(1))) == drawn


def test_the_indices_of_a_batch_are_those_of_a_known_order_alone() -> None:
    # which Lightning divides among ranks by a sampler of its own
    own = SubsetRandomSampler(range(20))
    known: DistributedSampler[Any] = DistributedSampler(Noise(), 2, 1, shuffle=False)
    unknown: DistributedSampler[Any] = DistributedSamplerWrapper(own, 2, 1, shuffle=False)
    loaders = [DataLoader(Noise(), batch_size=3, sampler=sampler) for sampler in (known, unknown)]
    given = [list_indices(loader, epoch=0, batch=1) for loader in loaders]
    assert given == [[7, 9, 11], None]


class Flat(pl.LightningModule):
    """Its loss falls again after nine epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch).mean()
        return loss

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("loss", 1.0 if self.current_epoch < 9 else 1 / self.current_epoch)
        self.log("flat", 1.0)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train_with_patience(
    folder: Path,
    patience: int,
    *,
    epochs: int,
    resume: bool = False,
    min_epochs: int = 0,
    others: Sequence[Callback] = (),
) -> int:
    """Return the number of epochs at the end."""
    trainer = quiet_trainer(
        folder,
        max_epochs=epochs,
        min_epochs=min_epochs,
        enable_checkpointing=True,
        num_sanity_val_steps=0,
        callbacks=[
            ResumeState(),
            EarlyStopping("loss", patience=patience),
            *others,
            Checkpoint(dirpath=str(folder)),
        ],
    )
    data: DataLoader[Any] = DataLoader(torch.ones(2, 1))  # type: ignore[arg-type]
    start = folder / "last.ckpt" if resume else None
    trainer.fit(Flat(), data, data, ckpt_path=start, weights_only=False)
    return trainer.current_epoch


@pytest.mark.parametrize(
    ("before", "cut", "after", "expected"),
    [(20, 3, 5, 6), (20, 7, 2, 8), (3, 30, 20, 30), (3, 30, 5, 6), (3, 2, 3, 4)],
    ids=["less", "less_than_waited", "more_after_a_stop", "a_little_more", "the_same"],
)
def test_a_resumed_training_has_the_patience_that_it_is_given(
    tmp_path: Path, before: int, cut: int, after: int, expected: int
) -> None:
    train_with_patience(tmp_path, before, epochs=cut)
    assert train_with_patience(tmp_path, after, epochs=30, resume=True) == expected


def test_a_stop_that_waits_for_the_least_epochs_holds_after_a_resume(tmp_path: Path) -> None:
    # decided in epoch 3, and the loss falls again from epoch 9 on
    train_with_patience(tmp_path, 3, epochs=11, min_epochs=11)
    assert train_with_patience(tmp_path, 3, epochs=30, resume=True, min_epochs=12) == 12


def test_a_patience_of_another_metric_that_has_run_out_holds_after_a_resume(tmp_path: Path) -> None:
    train_with_patience(tmp_path, 3, epochs=30, others=[EarlyStopping("flat", patience=3)])
    others = [EarlyStopping("flat", patience=3)]
    assert train_with_patience(tmp_path, 20, epochs=30, resume=True, others=others) == 4
    others = [EarlyStopping("flat", patience=5)]
    assert train_with_patience(tmp_path, 20, epochs=30, resume=True, others=others) == 6

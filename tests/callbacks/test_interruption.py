from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from lightkit import runs
from lightkit.callbacks import Checkpoint, ResumeState, StopOnSignal, VerifiedCheckpointIO
from lightkit.data.loader import train_loader
from lightkit.errors import Interrupted
from lightkit.runs.signals import SignalWatch
from tests.callbacks.test_checkpoint import Keyed, Rising


class Knock(pl.Callback):
    """Sends this process a SIGTERM in one hook, at one step."""

    def __init__(self, hook: str, step: int) -> None:
        self.step, self.sent = step, False
        setattr(self, hook, self._knock)

    def _knock(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        if trainer.global_step == self.step and not trainer.sanity_checking and not self.sent:
            self.sent = True
            os.kill(os.getpid(), signal.SIGTERM)


def fit(
    folder: Path,
    hook: str,
    step: int,
    *,
    exact: bool = True,
    noted: int | None = None,
    **settings: Any,
) -> pl.Trainer:
    with SignalWatch() as watch:
        if noted is not None:
            watch.note(noted)
        stop = StopOnSignal(watch, last_good=lambda: runs.last_good(folder))
        keeper = Checkpoint(None, dirpath=str(folder))
        trainer = pl.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[Knock(hook, step), ResumeState(), stop, keeper],
            plugins=[VerifiedCheckpointIO()], **settings,
        )  # fmt: skip
        data = Keyed(torch.ones(20, 4))
        train: Any = train_loader(data, batch_size=4, seed=1)
        if not exact:
            train = torch.utils.data.DataLoader(data, batch_size=4)
        trainer.fit(Rising(), train, torch.utils.data.DataLoader(data, batch_size=4))
        return trainer


@pytest.mark.parametrize(
    ("hook", "step", "exact", "saved"),
    [
        ("on_train_batch_start", 1, True, 2),
        ("on_train_batch_start", 4, True, 5),  # the last batch: its epoch's end comes first
        ("on_validation_batch_start", 5, True, 5),
        ("on_train_batch_start", 4, False, 5),
        ("on_validation_batch_start", 5, False, 5),
        ("on_train_batch_start", 7, False, 5),
        ("on_train_batch_start", 9, True, 5),  # a validation could last longer than who asked waits
    ],
    ids=[
        "batch",
        "last_batch",
        "validation",
        "other_last_batch",
        "other_validation",
        "other_second_epoch",
        "second_last_batch",
    ],
)
def test_a_signal_stops_where_the_training_can_be_resumed(
    tmp_path: Path, hook: str, step: int, exact: bool, saved: int
) -> None:
    with pytest.raises(Interrupted) as caught:
        fit(tmp_path, hook, step, exact=exact)
    assert caught.value.exit_code == 75
    assert caught.value.checkpoint == tmp_path / "last.ckpt"
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == saved


def test_a_signal_far_from_the_first_checkpoint_leaves_none(tmp_path: Path) -> None:
    with pytest.raises(Interrupted) as caught:
        fit(tmp_path, "on_train_batch_start", 1, exact=False)
    assert caught.value.exit_code == 143
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("batches", [1, 2])
def test_a_wish_from_before_the_training_is_met_after_its_first_step(
    tmp_path: Path, batches: int
) -> None:
    with pytest.raises(Interrupted) as caught:
        fit(tmp_path, "on_train_end", -1, noted=signal.SIGUSR1, accumulate_grad_batches=batches)
    assert caught.value.exit_code == 75
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 1


def test_lightnings_handler_is_gone_before_the_loaders_are_made(tmp_path: Path) -> None:
    with SignalWatch() as watch:
        ours, seen = signal.getsignal(signal.SIGTERM), list[Any]()
        trainer = pl.Trainer(
            max_steps=1, accelerator="cpu", logger=False, enable_progress_bar=False,
            enable_model_summary=False, num_sanity_val_steps=0, default_root_dir=tmp_path,
            enable_checkpointing=False,
            callbacks=[StopOnSignal(watch, last_good=lambda: None)],
        )  # fmt: skip

        class Looked(pl.LightningDataModule):
            def train_dataloader(self) -> Any:
                handler = signal.getsignal(signal.SIGTERM)
                seen.extend(getattr(handler, "signal_handlers", [handler]))
                return torch.utils.data.DataLoader(Keyed(torch.ones(4, 4)), batch_size=2)

            val_dataloader = train_dataloader

        trainer.fit(Rising(), datamodule=Looked())
        assert seen == [ours, ours], "for the training's and the validation's"
        assert signal.getsignal(signal.SIGTERM) == ours


def test_accumulated_gradients_are_not_cut_in_two(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        fit(tmp_path, "on_train_batch_start", 0, accumulate_grad_batches=2)
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 1


def test_processes_of_a_loader_leave_ctrl_c_to_their_parent() -> None:
    with SignalWatch() as watch:
        stop = StopOnSignal(watch, last_good=lambda: None)
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        child = context.Process(target=_press_ctrl_c, args=(answers.put,))
        child.start()
        child.join()
    assert stop is not None
    assert (child.exitcode, answers.get()) == (0, "goes on")


def _press_ctrl_c(answer: Callable[[str], None]) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    answer("goes on")

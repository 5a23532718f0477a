"""What a watchdog sees of a fit: slow work goes on, a hang leaves what it has not spoilt."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from lightkit import runs
from lightkit.callbacks import Checkpoint, ResumeState, StallWatch, VerifiedCheckpointIO
from lightkit.data.loader import train_loader
from lightkit.launch.watchdog import Heartbeat, Hung, Stall, Watchdog, WatchdogSettings, heartbeat
from tests.callbacks.test_checkpoint import Keyed

EVER_S = 60
FLOOR_S = 600.0
"""No machine stands still for so long: what hangs sets `HANGS`, and what is slow pretends to have
taken longer."""
HANGS = threading.Event()


class ZeroesUnits(pl.LightningModule):
    """A model whose steps draw random numbers, and one of which may hang.

    Args:
        at: Which step hangs, by the name of its hook and its number, once.
    """

    def __init__(self, at: tuple[str, int] | None = None) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)
        )
        self.at, self.seen = at, Counter[str]()

    def count(self, hook: str) -> None:
        if self.trainer.sanity_checking:
            return
        self.seen[hook] += 1
        if (hook, self.seen[hook]) == self.at:
            HANGS.set()
            time.sleep(EVER_S)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layers(batch).pow(2).mean()
        self.count("training_step")
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.count("validation_step")

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        self.count("validation_step")
        return batch

    def on_train_epoch_end(self) -> None:
        self.count("on_train_epoch_end")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Sleepy(Keyed):
    """Rows, at the n-th of which it hangs or does something else, once."""

    def __init__(self, nth: int | None = None, do: Callable[[], None] | None = None) -> None:
        super().__init__(torch.randn(24, 4, generator=torch.Generator().manual_seed(3)))
        self.nth, self.do, self.asked = nth, do, 0

    def __getitem__(self, key: Any) -> torch.Tensor:
        self.asked += 1
        if self.asked == self.nth and self.do is None:
            HANGS.set()
            time.sleep(EVER_S)
        elif self.asked == self.nth and self.do is not None:
            self.do()
        return super().__getitem__(key)


@dataclass
class Watched:
    """Fits that a watchdog watches.

    Args:
        folder: Of the checkpoints.
    """

    folder: Path
    stalls: queue.Queue[Stall] = field(default_factory=queue.Queue)
    watchdog: Watchdog | None = None
    asked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def limit_s(self) -> float:
        self.asked.release()
        settings = WatchdogSettings(factor=20, floor_s=0.1 if HANGS.is_set() else FLOOR_S)
        return settings.limit_s(heartbeat())

    def seem_silent(self) -> None:
        """Let the watchdog look as if nothing had been finished for longer than a step may take."""
        heartbeat().progress_at_s -= 1.5 * FLOOR_S
        while self.asked.acquire(blocking=False):
            pass
        for _ in range(4):  # it asks twice in each round, and may be in the middle of one
            assert self.asked.acquire(timeout=EVER_S)

    def trainer(self, *callbacks: pl.Callback, **settings: Any) -> pl.Trainer:
        HANGS.clear()
        self.watchdog = Watchdog(
            heartbeat(), limit_s=self.limit_s, report=self.stalls.put, end=lambda _: None
        )
        every = [
            *callbacks,
            ResumeState(),
            StallWatch(self.watchdog),
            Checkpoint(None, dirpath=str(self.folder)),
        ]
        return pl.Trainer(
            **{"max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_progress_bar": False,
               "enable_model_summary": False, "callbacks": every,
               "plugins": [VerifiedCheckpointIO()], **settings}
        )  # fmt: skip

    def fit(
        self,
        model: pl.LightningModule,
        data: Keyed,
        *,
        exact: bool = True,
        ckpt_path: str | None = None,
        **settings: Any,
    ) -> None:
        trainer = self.trainer(**settings)
        loader: Any = DataLoader(data, batch_size=4)
        if exact:
            checkpoint = ckpt_path and torch.load(ckpt_path, weights_only=True)
            loader = train_loader(data, batch_size=4, seed=1, trainer=trainer)
            # as a data module's loader, which is made once the checkpoint is restored
            if checkpoint:
                epoch = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
                current = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]
                loader.sampler.resume(epoch=epoch, batches=current["processed"])
        try:
            trainer.fit(
                model,
                loader,
                DataLoader(Keyed(torch.ones(8, 4)), batch_size=4),
                ckpt_path=ckpt_path,
            )
        finally:
            assert self.watchdog is not None
            self.watchdog.stop()

    def saved(self) -> dict[str, Any] | None:
        last = self.folder / "last.ckpt"
        assert not last.exists() or runs.find_fault(last) is None
        return torch.load(last, weights_only=True) if last.exists() else None


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(sys.modules["lightkit.launch.watchdog"], "_HEARTBEAT", Heartbeat())
    monkeypatch.setattr("lightkit.launch.watchdog._POLL_S", 0.05)
    return Watched(tmp_path)


def hung(watched: Watched, *args: Any, **settings: Any) -> Stall:
    with pytest.raises(Hung) as caught:
        watched.fit(*args, **settings)
    assert caught.value.stall is watched.stalls.get_nowait()
    return caught.value.stall


def test_a_data_set_that_sleeps_is_named_and_the_training_goes_on_as_if_it_had_not(
    watched: Watched, tmp_path: Path
) -> None:
    pl.seed_everything(5)
    whole = ZeroesUnits()
    Watched(tmp_path / "whole").fit(whole, Sleepy())
    pl.seed_everything(5)
    stall = hung(watched, ZeroesUnits(), Sleepy(24 + 14))  # the second epoch's fourth batch
    assert stall.phase == "train"
    assert stall.culprit.name == "the main thread"
    assert stall.culprit.own_line is not None
    assert stall.culprit.own_line.startswith("tests/callbacks/test_watchdog.py:")
    assert stall.culprit.own_line.endswith(" in __getitem__")
    assert stall.culprit.sample in (stall.culprit.batch or ())
    saved = watched.saved()
    assert saved is not None
    assert (saved["epoch"], saved["global_step"]) == (1, 6 + 3)
    model = ZeroesUnits()
    watched.fit(model, Sleepy(), ckpt_path=str(watched.folder / "last.ckpt"))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


@pytest.mark.parametrize(
    ("at", "nth", "settings", "phase", "steps"),
    [
        (("training_step", 9), None, {}, "train", 6),
        (("validation_step", 4), None, {}, "validate", 6),
        (("on_train_epoch_end", 2), None, {}, "epoch_end", 6),
        (None, 24 + 14, {"accumulate_grad_batches": 2}, "train", 3),
        (None, 24 + 14, {"exact": False}, "train", 6),
        (None, 14, {"exact": False}, "train", None),
        (None, 1, {}, "train", None),
    ],
    ids=[
        "step",
        "validation",
        "epoch_end",
        "accumulated",
        "other_data",
        "first_epoch",
        "first_batch",
    ],
)
def test_nothing_is_saved_that_could_not_be_resumed_exactly(
    watched: Watched,
    at: tuple[str, int] | None,
    nth: int | None,
    settings: dict[str, Any],
    phase: str,
    steps: int | None,
) -> None:
    stall = hung(watched, ZeroesUnits(at), Sleepy(nth), **settings)
    saved = watched.saved()
    assert stall.phase == phase
    assert (None if saved is None else saved["global_step"]) == steps


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_other_stages_are_watched_too(watched: Watched, stage: str) -> None:
    model = ZeroesUnits(("validation_step", 3))
    trainer = watched.trainer()
    run: Callable[..., Any] = getattr(trainer, stage)
    try:
        with pytest.raises(Hung) as caught:
            run(model, dataloaders=DataLoader(Keyed(torch.ones(24, 4)), batch_size=4))
    finally:
        assert watched.watchdog is not None
        watched.watchdog.stop()
    assert caught.value.stall.phase == stage
    assert caught.value.stall.culprit.own_line is not None
    assert caught.value.stall.culprit.own_line.endswith(" in count")


class Slow(pl.Callback):
    """Makes what is no training step last longer than one may."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched

    def on_validation_batch_start(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        self.watched.seem_silent()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.watched.seem_silent()

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: Any
    ) -> None:
        self.watched.seem_silent()


def test_what_is_slow_but_alive_is_not_ended(watched: Watched) -> None:
    trainer = watched.trainer(Slow(watched), max_epochs=1)
    first_is_slow = Sleepy(1, watched.seem_silent)
    trainer.fit(
        ZeroesUnits(),
        DataLoader(first_is_slow, batch_size=4),
        DataLoader(Keyed(torch.ones(8, 4)), batch_size=4),
    )
    assert watched.stalls.empty()
    assert trainer.global_step == 6
    assert watched.saved() is not None


def test_a_step_costs_little(watched: Watched) -> None:
    watch = StallWatch(Watchdog(Heartbeat(), limit_s=lambda: 300.0, report=watched.stalls.put))
    trainer = watched.trainer()
    times = []
    for _ in range(20):
        began = time.thread_time()
        for _ in range(100):
            watch.on_train_batch_end(trainer, *[None] * 3, 0)  # type: ignore[arg-type, call-arg]
        times.append((time.thread_time() - began) / 100)
    assert min(times) < 50e-6  # seconds; measured: 1e-6

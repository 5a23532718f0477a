"""When a training with a deadline stops, by a clock that the batches move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, Sampler, TensorDataset

from lightkit import runs
from lightkit.callbacks import Checkpoint, ResumeState
from lightkit.callbacks.deadline import STOPPED_BY, StopAtDeadline
from lightkit.errors import OutOfTime

BATCHES = 10


class Plane(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Any, _index: int) -> None:
        self.log("val/loss", self.layer(batch[0]).square().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Order(Sampler[int]):
    """The samples one after another, from any on."""

    start = 0

    def __len__(self) -> int:
        return BATCHES - self.start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, BATCHES))

    def resume(self, *, epoch: int, batches: int) -> None:
        """Skip these."""
        self.start = batches if epoch == 0 else 0


class Hands(Callback):
    """A clock on which a training batch takes ten seconds, and a validation batch one."""

    def __init__(self, slow_from: int = 1000, slow_s: float = 10.0, start_s: float = 0.0) -> None:
        self.now_s = start_s
        self.slow_from, self.slow_s = slow_from, slow_s
        self.write_s = 0.0
        self._asked: list[tuple[float, Callable[[], object]]] = []

    def __call__(self) -> float:
        return self.now_s

    def put(self, job: Callable[[], object]) -> None:
        """Do it when what was saved just before is written."""
        self._asked.append((self.now_s + self.write_s, job))

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        while self._asked and self._asked[0][0] <= self.now_s:
            self._asked.pop(0)[1]()
        self.now_s += self.slow_s if trainer.global_step >= self.slow_from else 10.0

    def on_validation_batch_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        if not trainer.sanity_checking:
            self.now_s += 1.0


def _trained(
    folder: Path,
    deadline_s: float,
    hands: Hands,
    *,
    resumable: bool = False,
    ckpt: Path | None = None,
    save_every: int | None = None,
    **trainer: Any,
) -> tuple[Trainer, list[str]]:
    """Train epochs of 10 batches and 5 for validation: 105 s by the clock.

    Args:
        save_every: Steps after which it is saved within an epoch.
    """
    stopped: list[str] = []
    keeper = Checkpoint(dirpath=str(folder), save_last_every_n_steps=save_every)
    stop = StopAtDeadline(
        datetime.fromtimestamp(deadline_s, timezone.utc),
        last_good=lambda: runs.last_good(folder, report=lambda _: None) or next(folder.glob("last.ckpt"), None),
        stopped=stopped.append,
        put=hands.put,
        clock=hands,
    )
    data = TensorDataset(torch.ones(BATCHES, 2))
    sampler = Order() if resumable else None
    made = Trainer(
        accelerator="cpu",
        callbacks=[hands, ResumeState(), stop, keeper],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **{"max_epochs": 20, "num_sanity_val_steps": 0, "log_every_n_steps": 1, **trainer},
    )
    loader = DataLoader(data, sampler=sampler)
    made.fit(Plane(), loader, DataLoader(TensorDataset(torch.ones(5, 2))), ckpt_path=ckpt)
    return made, stopped


@pytest.mark.parametrize(
    ("deadline_s", "epochs"),
    [(105 + 115.5 + 1, 1), (105 + 115.5 + 3, 2), (600, 5), (100000, 20)],
    ids=["the second would be late", "the second just fits", "five fit", "all fit"],
)
def test_training_stops_after_the_last_epoch_that_leaves_time(tmp_path: Path, deadline_s: float, epochs: int) -> None:
    hands = Hands()
    trainer, stopped = _trained(tmp_path, deadline_s, hands)
    assert trainer.current_epoch == epochs
    assert trainer.global_step == BATCHES * epochs
    assert hands.now_s <= deadline_s
    assert stopped == ([] if epochs == 20 else [STOPPED_BY])
    assert {path.name for path in tmp_path.glob("*.ckpt")} >= {"best.ckpt", "last.ckpt"}


@pytest.mark.parametrize(
    ("write_s", "save_every", "epochs"),
    [(0.0, None, 5), (80.0, None, 4), (20.0, 1, 5)],
    ids=["at_once", "later", "ten_times_an_epoch"],
)
def test_the_end_leaves_time_for_files_that_are_still_being_written(
    tmp_path: Path, write_s: float, save_every: int | None, epochs: int
) -> None:
    hands = Hands()
    hands.write_s = write_s
    trainer, stopped = _trained(tmp_path, 600, hands, resumable=save_every is not None, save_every=save_every)
    assert (trainer.current_epoch, stopped) == (epochs, [STOPPED_BY])


@pytest.mark.parametrize("limits", [{"max_epochs": 1}, {"max_steps": 10}], ids=["epochs", "steps"])
def test_a_training_that_is_done_was_not_stopped_by_its_deadline(tmp_path: Path, limits: dict[str, Any]) -> None:
    _, stopped = _trained(tmp_path, 180, Hands(), **limits)
    assert stopped == []


def test_the_fewest_epochs_do_not_outlast_the_deadline(tmp_path: Path) -> None:
    trainer, stopped = _trained(tmp_path, 230, Hands(), min_epochs=10)
    assert (trainer.current_epoch, stopped) == (2, [STOPPED_BY])


def test_an_epoch_that_becomes_slow_is_ended_in_time_for_its_validation(tmp_path: Path) -> None:
    hands = Hands(slow_from=BATCHES, slow_s=50.0)
    trainer, stopped = _trained(tmp_path, 400, hands)
    assert stopped == [STOPPED_BY]
    assert BATCHES < trainer.global_step < 2 * BATCHES
    assert trainer.current_epoch == 2  # which was validated
    assert hands.now_s <= 400
    assert torch.load(tmp_path / "last.ckpt")["global_step"] == trainer.global_step


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended")  # said by lightkit where it is so
def test_without_time_for_one_epoch_it_is_saved_and_goes_on_the_next_night(tmp_path: Path) -> None:
    with pytest.raises(OutOfTime, match=r"no time for the first epoch; the same command goes on from .*last\.ckpt"):
        _trained(tmp_path, 75, Hands(), resumable=True)
    saved = torch.load(tmp_path / "last.ckpt")
    assert 0 < saved["global_step"] < BATCHES

    hands = Hands(start_s=1000)
    trainer, stopped = _trained(tmp_path, 1190, hands, resumable=True, ckpt=tmp_path / "last.ckpt")
    assert (trainer.global_step, trainer.current_epoch, stopped) == (BATCHES, 1, [STOPPED_BY])


def test_what_cannot_be_saved_within_an_epoch_is_told_with_the_time_it_needs(tmp_path: Path) -> None:
    with pytest.raises(OutOfTime, match=r"nothing could be saved before its end\. It takes about 3 min: say a later"):
        _trained(tmp_path, 100, Hands())
    assert not (tmp_path / "last.ckpt").exists()


def test_a_training_that_is_resumed_too_late_is_done_with_what_it_has(tmp_path: Path) -> None:
    _trained(tmp_path, 300, Hands(), max_epochs=1)
    hands = Hands(start_s=1000)
    trainer, stopped = _trained(tmp_path, 1001, hands, ckpt=tmp_path / "last.ckpt")
    assert (trainer.global_step, stopped, hands.now_s) == (BATCHES, [STOPPED_BY], 1000)


def test_without_any_time_nothing_is_trained(tmp_path: Path) -> None:
    hands = Hands(start_s=1000)
    with pytest.raises(OutOfTime, match=r"nothing could be saved before its end\. Say a later --deadline"):
        _trained(tmp_path, 999, hands)
    assert hands.now_s == 1000


def test_the_first_rank_decides_for_all() -> None:
    class Other:
        world_size, is_global_zero = 2, False

        def __init__(self) -> None:
            self.strategy, self.asked = self, list[bool]()

        def reduce_boolean_decision(self, decision: bool, *, all: bool) -> bool:  # noqa: A002 (Lightning's name)
            self.asked.append(decision)
            return True

    other: Any = Other()
    late = datetime.fromtimestamp(5, timezone.utc)
    stop = StopAtDeadline(late, last_good=lambda: None, stopped=lambda _: None, clock=lambda: 100.0)
    assert stop._decide(other, True)
    assert other.asked == [False]  # its own clock does not count


def test_an_epoch_that_is_resumed_at_its_end_is_none_that_took_no_time(tmp_path: Path) -> None:
    _trained(tmp_path, 10_000, Hands(), max_epochs=1)
    hands = Hands(start_s=1000)
    trainer, stopped = _trained(tmp_path, 1105 + 90, hands, ckpt=tmp_path / "last.ckpt")
    assert (trainer.current_epoch, stopped, hands.now_s) == (2, [STOPPED_BY], 1105)

"""When a training with a deadline stops, by a clock that the batches move."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pytorch_lightning.callbacks import EarlyStopping

from lightkit.callbacks import checkpoint
from lightkit.callbacks.interruption import StopAtDeadline
from lightkit.errors import OutOfTime, TooLittleTime
from lightkit.runs.deadline import Deadline
from tests.callbacks.late_training import BATCHES, Hands, OfTwo, trained


@pytest.mark.parametrize(
    ("deadline_s", "epochs"),
    [(105 + 115.5 + 1, 1), (105 + 115.5 + 3, 2), (600, 5), (100000, 20)],
    ids=["the second would be late", "the second just fits", "five fit", "all fit"],
)
def test_training_stops_after_the_last_epoch_that_leaves_time(
    tmp_path: Path, deadline_s: float, epochs: int
) -> None:
    hands = Hands()
    trainer, stopped = trained(tmp_path, deadline_s, hands)
    assert trainer.current_epoch == epochs
    assert trainer.global_step == BATCHES * epochs
    assert hands.now_s <= deadline_s
    assert stopped == ([] if epochs == 20 else ["deadline"])
    assert {path.name for path in tmp_path.glob("*.ckpt")} >= {"best.ckpt", "last.ckpt"}


@pytest.mark.parametrize("limits", [{"max_epochs": 1}, {"max_steps": 10}], ids=["epochs", "steps"])
def test_a_training_that_is_done_was_not_stopped_by_its_deadline(
    tmp_path: Path, limits: dict[str, Any]
) -> None:
    _, stopped = trained(tmp_path, 180, Hands(), **limits)
    assert stopped == []


def test_the_fewest_epochs_do_not_outlast_the_deadline(tmp_path: Path) -> None:
    trainer, stopped = trained(tmp_path, 230, Hands(), min_epochs=10)
    assert (trainer.current_epoch, stopped) == (2, ["deadline"])


def test_an_epoch_that_becomes_slow_is_ended_in_time_for_its_validation(tmp_path: Path) -> None:
    hands = Hands(slow_from=BATCHES, slow_s=50.0)
    trainer, stopped = trained(tmp_path, 400, hands)
    assert stopped == ["deadline"]
    assert BATCHES < trainer.global_step < 2 * BATCHES
    assert trainer.current_epoch == 2  # which was validated
    assert hands.now_s <= 400
    assert torch.load(tmp_path / "last.ckpt")["global_step"] == trainer.global_step


# said by lightkit where it is so
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended")
def test_without_time_for_one_epoch_it_is_saved_and_goes_on_the_next_night(tmp_path: Path) -> None:
    with pytest.raises(
        OutOfTime, match=r"no time for the first epoch; the same command goes on from .*last\.ckpt"
    ):
        trained(tmp_path, 75, Hands(), resumable=True)
    saved = torch.load(tmp_path / "last.ckpt")
    assert 0 < saved["global_step"] < BATCHES
    with pytest.raises(
        TooLittleTime, match=r"ended before a batch, and training from .*last\.ckpt gets no further"
    ):
        trained(tmp_path, 10, Hands(start_s=11), resumable=True, ckpt=tmp_path / "last.ckpt")

    hands = Hands(start_s=1000)
    trainer, stopped = trained(tmp_path, 1100, hands, resumable=True, ckpt=tmp_path / "last.ckpt")
    assert (trainer.global_step, trainer.current_epoch, stopped) == (BATCHES, 1, ["deadline"])


def test_what_cannot_be_saved_within_an_epoch_is_reported_with_the_time_it_needs(
    tmp_path: Path,
) -> None:
    with pytest.raises(TooLittleTime, match=r"nothing could be saved before its end\. Say a later"):
        trained(tmp_path, 100, Hands())
    assert not (tmp_path / "last.ckpt").exists()


def test_a_training_that_is_resumed_too_late_is_done_with_what_it_has(tmp_path: Path) -> None:
    trained(tmp_path, 300, Hands(), max_epochs=1)
    hands = Hands(start_s=1000)
    trainer, stopped = trained(tmp_path, 1001, hands, ckpt=tmp_path / "last.ckpt")
    assert (trainer.global_step, stopped, hands.now_s) == (BATCHES, ["deadline"], 1000)


def test_without_any_time_nothing_is_trained(tmp_path: Path) -> None:
    hands = Hands(start_s=1000)
    with pytest.raises(
        TooLittleTime, match=r"nothing could be saved before its end\. Say a later --deadline"
    ):
        trained(tmp_path, 999, hands)
    assert hands.now_s == 1000


def test_the_first_rank_decides_for_all() -> None:
    class Other:
        world_size, is_global_zero = 2, False

        def __init__(self) -> None:
            self.strategy, self.asked = self, list[bool]()

        def reduce_boolean_decision(self, decision: bool, *, all: bool) -> bool:  # noqa: A002 (Lightning's name)
            self.asked.append(decision)
            return False

    other: Any = Other()
    late = Deadline(datetime.fromtimestamp(5, UTC))
    stop = StopAtDeadline(late, last_good=lambda: None, stopped=lambda: None)
    stop._stop_if_late(other, True)
    assert other.asked == [False]  # its own clock does not count


@pytest.mark.parametrize("seed", range(4))
def test_ranks_that_ask_now_and_then_stop_where_one_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    lots, steps = random.Random(seed), dict[str, int]()
    batch_s, slow_from, slow_s = (
        lots.uniform(0.001, 0.05),
        lots.randrange(110, 170),
        lots.uniform(2, 5),
    )
    spikes_s = {lots.randrange(300): lots.uniform(0.1, 2) for _ in range(10)}
    deadline_s = 100 + lots.uniform(0, 20)
    strategy = OfTwo()
    for name, settings in {"alone": dict[str, Any](), "of_two": {"strategy": strategy}}.items():
        hands = Hands(slow_from, slow_s, batch_s=batch_s)
        hands.spikes_s = spikes_s
        monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=hands))
        trainer, stopped = trained(tmp_path / name, deadline_s, hands, batches=100, **settings)
        assert stopped == ["deadline"]
        assert hands.now_s <= deadline_s
        steps[name] = trainer.global_step
    assert steps["of_two"] == steps["alone"] > slow_from
    assert 0 < strategy.num_messages < steps["alone"] / 2


def test_a_wish_of_the_first_rank_holds_until_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = Hands(batch_s=0.001)
    hands.spikes_s = {96: 300.0}  # one more like this is too many; the next question comes later
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=hands))
    trainer, stopped = trained(tmp_path, 600, hands, batches=64, strategy=OfTwo())
    assert stopped == ["deadline"]
    assert 97 < trainer.global_step <= 97 + checkpoint.MOST_BATCHES


def test_an_epoch_that_is_resumed_at_its_end_is_none_that_took_no_time(tmp_path: Path) -> None:
    trained(tmp_path, 10_000, Hands(), max_epochs=1)
    hands = Hands(start_s=1000)
    trainer, stopped = trained(tmp_path, 1105 + 90, hands, ckpt=tmp_path / "last.ckpt")
    assert (trainer.current_epoch, stopped, hands.now_s) == (2, ["deadline"], 1105)


def test_a_stop_that_waits_for_the_fewest_epochs_does_not_outlast_the_deadline(
    tmp_path: Path,
) -> None:
    hands = Hands()
    stops = EarlyStopping("val/loss", patience=1, min_delta=1e6)
    trainer, stopped = trained(tmp_path, 600, hands, min_epochs=10, callbacks=[stops])
    assert (trainer.current_epoch, stopped) == (5, ["deadline"])
    assert hands.now_s <= 600

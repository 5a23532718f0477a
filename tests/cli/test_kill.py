"""A fit that is killed at any moment: the same command goes on in the same folder, to the same weights."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit import runs
from tests.cli.commands import (
    PICTURES,
    SMALL,
    Ended,
    assert_same_training,
    events,
    fit,
    only_run,
    rows,
    started,
    wait_for,
    workplace,
)

pytestmark = pytest.mark.slow

HELD = '''\
"""A classifier whose training stands still where a file says so, so that it cannot end before it is killed."""

import time
from pathlib import Path

from lightkit.models import ImageClassifier


class Held(ImageClassifier):
    """Trains as far as the number of optimizer steps in the file `leash`, if there is one."""

    def on_train_batch_start(self, batch, batch_idx):
        leash = Path("leash")
        while leash.exists() and self.global_step >= int(leash.read_text()):
            Path("held").touch()
            time.sleep(0.02)
        super().on_train_batch_start(batch, batch_idx)
'''
LEASHES = (9, 18, 27)
"""Optimizer steps of which a process does no more before it is killed: 9 have 5 checkpoints or more, and all 30 are
six epochs of 5."""
TRAINING: dict[str, Any] = {
    **PICTURES,
    "model": {**PICTURES["model"], "class_path": "held.Held"},
    "callbacks": {
        **PICTURES["callbacks"],
        "early_stopping": {"init_args": {"monitor": "val/loss", "patience": 50}},
    },
    "optimizer": {"class_path": "AdamW", "init_args": {"lr": 0.01}},
    "lr_scheduler": {"class_path": "ReduceLROnPlateau", "init_args": {"monitor": "val/loss", "patience": 0}},
}


def place(folder: Path, *, num_workers: int) -> Path:
    data = {**PICTURES["data"], "init_args": {**PICTURES["data"]["init_args"], "num_workers": num_workers}}
    workplace(folder, {**TRAINING, "data": data}, pictures=60)
    (folder / "held.py").write_text(HELD, encoding="utf-8")
    return folder


@dataclass(frozen=True)
class Story:
    """A fit that was killed three times.

    Args:
        folder: Its working directory.
        kills: When it was killed, and what it had recorded last.
        end: What the process said that was not killed.
    """

    folder: Path
    kills: list[str]
    end: Ended


def killed(folder: Path, dice: random.Random, *, most: int, leash: int, in_writing: bool = False) -> str:
    """Start the command, and kill it after some checkpoints and a moment more, or while it writes the next."""
    held = folder / "held"
    held.unlink(missing_ok=True)
    (folder / "leash").write_text(str(leash), encoding="utf-8")
    before = len(events(folder, "checkpoint"))
    enough, moment_s = before + dice.randint(1, most), dice.uniform(0, 0.15)
    with started(folder, "fit", "-c", "job.yaml", stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        assert wait_for(lambda: len(events(folder, "checkpoint")) >= enough, process), "it ended before it was killed"
        if in_writing:
            checkpoints = only_run(folder) / "checkpoints"
            wait_for(lambda: next(checkpoints.glob(".*.aside"), None) or held.exists(), process)
        else:
            time.sleep(moment_s)  # no event tells of a moment between events
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it ended before it was killed"
    assert_no_checkpoint_came_before_its_epoch(folder)
    what = "writing the next" if in_writing else f"{moment_s:.3f} s"
    return f"killed after {enough - before} checkpoints and {what}; the last event was {events(folder)[-1]}"


def assert_no_checkpoint_came_before_its_epoch(folder: Path) -> None:
    """The next process goes on after an epoch that is in a checkpoint, and would never write its row or its event.

    One that was killed between an epoch's `best.ckpt` and its `last.ckpt` is followed by one that begins within the
    epoch and drops its row, which `best.ckpt` still counts. The row is back here because `killed` waits for a new
    checkpoint: with `save_last_every_n_steps: 2` the first one after such a resume, which is less than two steps before
    the epoch's end, is that of the end, and its row is written before it.
    """
    for path in (only_run(folder) / "checkpoints").glob("*.ckpt"):
        if runs.verify(path):
            loops = torch.load(path, weights_only=True)["loops"]
            done = set(range(loops["fit_loop"]["epoch_progress"]["total"]["processed"]))
            assert done <= {event["epoch"] for event in events(folder, "epoch")}, path
            assert not done or done <= {int(row["epoch"]) for row in rows(folder)}, path


def story(folder: Path, num_workers: int, seed: int, most: int) -> Story:
    """Kill a fit three times, then let it end. Without workers, its newest checkpoint is cut off at last."""
    dice = random.Random(seed)
    place(folder, num_workers=num_workers)
    kills = [killed(folder, dice, most=most, leash=leash, in_writing=turn == 1) for turn, leash in enumerate(LEASHES)]
    (folder / "leash").unlink()
    if num_workers == 0:
        last = only_run(folder) / "checkpoints" / "last.ckpt"
        last.write_bytes(last.read_bytes()[:-1000])
    return Story(folder, kills, fit(folder))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same fit, not killed."""
    folder = place(tmp_path_factory.mktemp("undisturbed"), num_workers=0)
    done = fit(folder)
    assert done.code == 0, done.err
    return folder


@pytest.fixture(scope="module")
def seed() -> int:
    return random.SystemRandom().randrange(10**6)


@pytest.fixture(scope="module")
def stories(
    tmp_path_factory: pytest.TempPathFactory, undisturbed: Path, seed: int
) -> Iterator[dict[int, Future[Story]]]:
    """Two fits that are killed, at the same time, by their number of loading processes."""
    most = len(events(undisturbed, "checkpoint")) // 5
    with ThreadPoolExecutor(2) as pool:
        yield {
            num_workers: pool.submit(story, tmp_path_factory.mktemp("killed"), num_workers, seed + num_workers, most)
            for num_workers in (0, 2)
        }


@pytest.mark.parametrize("num_workers", [0, 2], ids=["no_workers", "two_workers"])
def test_a_fit_killed_three_times_at_random_ends_with_the_same_weights(
    stories: dict[int, Future[Story]], undisturbed: Path, seed: int, num_workers: int
) -> None:
    print(f"seed of the kills: {seed}")
    told = stories[num_workers].result()
    print(*told.kills, sep="\n")
    assert told.end.code == 0, told.end.err
    assert f"resumes {only_run(told.folder)} from " in told.end.err
    assert len(events(told.folder, "resume")) == 3
    assert_same_training(told.folder, undisturbed)  # the number of loading processes changes nothing in it
    assert not list(only_run(told.folder).glob("checkpoints/.*.aside"))


def test_a_checkpoint_that_was_cut_off_is_passed_over_and_told(stories: dict[int, Future[Story]]) -> None:
    told = stories[0].result()
    last = only_run(told.folder) / "checkpoints" / "last.ckpt"
    assert f"{last} is not used: its content is not what last.ckpt.sha256 promises" in told.end.err
    assert "from last.ckpt" not in told.end.err


def test_data_of_the_users_own_resumes_at_the_last_epoch(tmp_path: Path) -> None:
    every_step = {"checkpoint": {"init_args": {"save_last_every_n_steps": 1}}}
    arguments = {"at": "train", "step": 7, "signals": [int(signal.SIGKILL)]}  # in the second epoch
    config = {**SMALL, "callbacks": {**every_step, "knock": {"class_path": "mine.Knock", "init_args": arguments}}}
    whole, cut = (workplace(tmp_path / name, config) for name in ("whole", "cut"))
    (whole / "knocked").touch()  # nobody knocks there
    with ThreadPoolExecutor(1) as aside:
        expected = aside.submit(fit, whole)
        cut_off, resumed = fit(cut), fit(cut)
    assert cut_off.code == -signal.SIGKILL, cut_off.err
    assert (expected.result().code, resumed.code) == (0, 0), resumed.err
    (resume,) = events(cut, "resume")
    assert resume["step"] == 6
    assert_same_training(cut, whole)

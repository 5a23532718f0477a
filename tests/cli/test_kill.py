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
    ended,
    events,
    fit,
    only_run,
    rows,
    started,
    wait_for,
    workplace,
)

pytestmark = pytest.mark.slow

TRAINING: dict[str, Any] = {
    **PICTURES,
    "callbacks": {
        **PICTURES["callbacks"],
        "early_stopping": {"init_args": {"monitor": "val/loss", "patience": 50}},
    },
    "optimizer": {"class_path": "AdamW", "init_args": {"lr": 0.01}},
    "lr_scheduler": {"class_path": "ReduceLROnPlateau", "init_args": {"monitor": "val/loss", "patience": 0}},
}


def place(folder: Path, *, num_workers: int) -> Path:
    data = {**PICTURES["data"], "init_args": {**PICTURES["data"]["init_args"], "num_workers": num_workers}}
    return workplace(folder, {**TRAINING, "data": data}, pictures=60)


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


def killed(folder: Path, dice: random.Random, *, most: int, in_writing: bool = False) -> str:
    """Start the command, and kill it after some checkpoints and a moment more, or while it writes the next."""
    before = len(events(folder, "checkpoint"))
    enough, moment_s = before + dice.randint(1, most), dice.uniform(0, 0.15)
    with started(folder, "fit", "-c", "job.yaml", stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        assert wait_for(lambda: len(events(folder, "checkpoint")) >= enough, process), "it ended before it was killed"
        if in_writing:
            checkpoints = only_run(folder) / "checkpoints"
            wait_for(lambda: next(checkpoints.glob(".*.aside"), None), process)
        else:
            time.sleep(moment_s)  # no event tells of a moment between events
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it ended before it was killed"
    assert_no_checkpoint_came_before_its_epoch(folder)
    what = "writing the next" if in_writing else f"{moment_s:.3f} s"
    return f"killed after {enough - before} checkpoints and {what}; the last event was {events(folder)[-1]}"


def assert_no_checkpoint_came_before_its_epoch(folder: Path) -> None:
    """The next process goes on after an epoch that is in a checkpoint, and would never write its row or its event."""
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
    kills = [killed(folder, dice, most=most, in_writing=turn == 1) for turn in range(3)]
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
    pause = {"pause": {"class_path": "mine.Pause", "init_args": {"seconds": 0.05}}}
    config = {**SMALL, "callbacks": {**every_step, **pause}}
    whole, cut = (workplace(tmp_path / name, config) for name in ("whole", "cut"))
    with ThreadPoolExecutor(1) as aside:
        expected = aside.submit(fit, whole)
        with started(cut, "fit", "-c", "job.yaml") as process:
            assert wait_for(lambda: len(events(cut, "epoch")) == 1, process)
            time.sleep(0.12)  # into the second epoch, which lasts at least 0.3 s
            process.kill()
            ended(process)
        resumed = fit(cut)
    assert (expected.result().code, resumed.code) == (0, 0), resumed.err
    (resume,) = events(cut, "resume")
    assert resume["step"] == 6
    assert_same_training(cut, whole)

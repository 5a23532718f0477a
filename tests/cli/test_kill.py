"""A fit that is killed at any moment: the same command goes on in the same folder, to the same weights."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import (
    PICTURES,
    SMALL,
    assert_same_training,
    ended,
    events,
    fit,
    only_run,
    started,
    wait_for,
    workplace,
)

pytestmark = pytest.mark.slow

STOPPING = {"early_stopping": {"init_args": {"monitor": "val/loss", "patience": 50}}}
TRAINING = {**PICTURES, "callbacks": {**PICTURES["callbacks"], **STOPPING}}
PLATEAU = {
    "optimizer": {"class_path": "AdamW", "init_args": {"lr": 0.01}},
    "lr_scheduler": {"class_path": "ReduceLROnPlateau", "init_args": {"monitor": "val/loss", "patience": 0}},
}


def place(folder: Path, *, num_workers: int) -> Path:
    config: dict[str, Any] = {**TRAINING, **PLATEAU, "data": {**PICTURES["data"]}}
    config["data"]["init_args"] = {**PICTURES["data"]["init_args"], "num_workers": num_workers}
    return workplace(folder, config, pictures=60)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = place(tmp_path_factory.mktemp("undisturbed"), num_workers=0)
    done = fit(folder)
    assert done.code == 0, done.err
    return folder


def killed(folder: Path, dice: random.Random, *, most: int, in_writing: bool = False) -> None:
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
    print(f"killed after {enough - before} checkpoints and {moment_s:.3f} s: {events(folder)[-1]}")


@pytest.mark.parametrize("num_workers", [0, 2], ids=["no_workers", "two_workers"])
def test_a_fit_killed_three_times_at_random_ends_with_the_same_weights(
    tmp_path: Path, undisturbed: Path, num_workers: int
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed of the kills: {seed}")
    dice, folder = random.Random(seed), place(tmp_path, num_workers=num_workers)
    most = len(events(undisturbed, "checkpoint")) // 5
    for turn in range(3):
        killed(folder, dice, most=most, in_writing=turn == 1 and num_workers == 2)
    done = fit(folder)
    assert done.code == 0, done.err
    assert f"resumes {only_run(folder)} from last.ckpt" in done.err
    assert len(events(folder, "resume")) == 3
    assert_same_training(folder, undisturbed) if num_workers == 0 else same_but_workers(folder, undisturbed)


def same_but_workers(folder: Path, undisturbed: Path) -> None:
    """The number of loading processes changes nothing in what is trained."""
    assert_same_training(folder, undisturbed)
    assert not list(only_run(folder).glob("checkpoints/.*.aside"))


def test_a_checkpoint_that_was_cut_off_is_passed_over_and_told(tmp_path: Path, undisturbed: Path) -> None:
    folder = place(tmp_path, num_workers=0)
    killed(folder, random.Random(1), most=5)
    last = only_run(folder) / "checkpoints" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:-1000])
    done = fit(folder)
    assert done.code == 0, done.err
    assert f"{last} is not used: its content is not what last.ckpt.sha256 promises" in done.err
    assert_same_training(folder, undisturbed)


def test_data_of_the_users_own_resumes_at_the_last_epoch(tmp_path: Path) -> None:
    every_step = {"checkpoint": {"init_args": {"save_last_every_n_steps": 1}}}
    pause = {"pause": {"class_path": "mine.Pause", "init_args": {"seconds": 0.05}}}
    config = {**SMALL, "callbacks": {**every_step, **pause}}
    whole, cut = (workplace(tmp_path / name, config) for name in ("whole", "cut"))
    with ThreadPoolExecutor(1) as aside:
        expected = aside.submit(fit, whole)
        with started(cut, "fit", "-c", "job.yaml") as process:
            assert wait_for(lambda: len(events(cut, "epoch")) == 1, process)
            time.sleep(0.12)  # into the second epoch of 0.3 s
            process.kill()
            ended(process)
    (resumed,) = [fit(cut)]
    assert (expected.result().code, resumed.code) == (0, 0), resumed.err
    (resume,) = events(cut, "resume")
    assert resume["step"] % 6 == 0
    assert_same_training(cut, whole)

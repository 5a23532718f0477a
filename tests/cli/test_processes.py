"""How real processes end: exit codes and signals."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import (
    PICTURES,
    SMALL,
    Ended,
    assert_same_training,
    ended,
    events,
    fit,
    only_run,
    processes_of,
    runs_in,
    started,
    summary,
    workplace,
)

pytestmark = pytest.mark.slow


def knock(**arguments: Any) -> dict[str, Any]:
    """Callbacks of a job to which a signal comes at a known moment."""
    every_step = {"checkpoint": {"init_args": {"save_last_every_n_steps": 1}}}
    return {**every_step, "knock": {"class_path": "mine.Knock", "init_args": arguments}}


def pictures(callbacks: dict[str, Any], *, num_workers: int = 0) -> dict[str, Any]:
    """A job of three epochs of five steps that can be resumed at every step."""
    data = {**PICTURES["data"], "init_args": {**PICTURES["data"]["init_args"], "num_workers": num_workers}}
    trainer = {**PICTURES["trainer"], "max_epochs": 3}
    # A constant learning rate: metrics.csv has the one at which this process began with the epoch.
    optimizer = {"class_path": "AdamW", "init_args": {"lr": 0.01}}
    return {**PICTURES, "callbacks": callbacks, "data": data, "trainer": trainer, "optimizer": optimizer}


TERM, INT, USR1 = int(signal.SIGTERM), int(signal.SIGINT), int(signal.SIGUSR1)
JOBS: dict[str, dict[str, Any]] = {
    "undisturbed": pictures(knock(at="never")),
    "crash": {**SMALL, "model": {"class_path": "mine.Net", "init_args": {"fails_at": 2}}},
    "wrong_config": {**SMALL, "trainer": {"max_epochs": "ten"}},
    "no_data": {**PICTURES, "data": {"class_path": "ImageFolder", "init_args": {"root": "nowhere"}}},
    "term_in_training": pictures(knock(at="train", step=4)),
    "usr1_in_validation": pictures(knock(at="validation", step=10, signals=[USR1])),
    "term_to_all": pictures(knock(at="train", step=7, to_group=True), num_workers=2),
    "int_to_all": pictures(knock(at="train", step=7, signals=[INT], to_group=True), num_workers=2),
    "own_data": {**SMALL, "callbacks": knock(at="train", step=2)},
    "own_data_in_first_validation": {**SMALL, "callbacks": knock(at="validation", step=6)},
    "at_the_start": {**SMALL, "callbacks": knock(at="setup", signals=[INT])},
    "at_the_end": {**SMALL, "callbacks": knock(at="end")},
    "twice": pictures(knock(at="train", step=4, signals=[TERM, INT])),
}


@dataclass(frozen=True)
class Scene:
    """A job that has ended, in a folder of its own.

    Args:
        folder: Its working directory.
        end: What its process said.
        left: Processes that outlived it.
        told: What its summary said by then; empty if there was none.
        resumed: What the same command said when it was run again, if it was.
    """

    folder: Path
    end: Ended
    left: list[int]
    told: dict[str, Any]
    resumed: Ended | None


Scenes = Mapping[str, "Future[Scene]"]


def play(folder: Path, job: dict[str, Any]) -> Scene:
    workplace(folder, job, pictures=60 if job["data"]["class_path"] == "ImageFolder" else 0)
    with started(folder, "fit", "-c", "job.yaml") as process:
        end = ended(process)
        left = processes_of(process.pid)
    told = summary(folder) if runs_in(folder) else {}
    return Scene(folder, end, left, told, fit(folder) if end.code == 75 else None)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenes]:
    """All jobs, run two at a time: most of what each does is to import torch."""
    root = tmp_path_factory.mktemp("scenes")
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(play, root / name, job) for name, job in JOBS.items()}


def test_a_defect_of_the_user_is_a_traceback_and_code_1(scenes: Scenes) -> None:
    scene = scenes["crash"].result()
    assert scene.end.code == 1
    assert "Traceback" in scene.end.err
    assert "ValueError: batches are out of stock" in scene.end.err
    assert (scene.told["status"], scene.told["exit_code"]) == ("failed", 1)
    assert scene.told["error"] == "ValueError: batches are out of stock"


@pytest.mark.parametrize(
    ("job", "code", "says"),
    [("wrong_config", 2, "trainer.max_epochs"), ("no_data", 3, "nowhere")],
    ids=["config", "data"],
)
def test_a_mistake_is_told_without_a_traceback_and_leaves_no_run(
    scenes: Scenes, job: str, code: int, says: str
) -> None:
    scene = scenes[job].result()
    assert scene.end.code == code
    assert says in scene.end.err
    assert "Traceback" not in scene.end.err
    assert scene.end.out == ""
    assert not runs_in(scene.folder)


@pytest.mark.parametrize("job", ["term_in_training", "usr1_in_validation", "term_to_all", "int_to_all"])
def test_a_signal_in_training_is_75_and_the_same_command_ends_with_the_same_weights(scenes: Scenes, job: str) -> None:
    scene, undisturbed = scenes[job].result(), scenes["undisturbed"].result()
    last = only_run(scene.folder) / "checkpoints" / "last.ckpt"
    assert scene.end.code == 75, scene.end.err
    assert (scene.told["status"], scene.told["exit_code"]) == ("preempted", 75)
    assert f"the same command resumes from {last}" in scene.end.err
    assert "Traceback" not in scene.end.err
    assert scene.left == []
    assert undisturbed.end.code == 0, undisturbed.end.err

    assert scene.resumed is not None
    assert scene.resumed.code == 0, scene.resumed.err
    assert summary(scene.folder)["status"] == "done"
    (resume,) = events(scene.folder, "resume")
    assert resume["step"] > 0
    assert_same_training(scene.folder, undisturbed.folder)


def test_a_signal_to_one_process_stops_after_the_batch_it_came_in(scenes: Scenes) -> None:
    ends = [events(scenes[job].result().folder, "checkpoint") for job in ("term_in_training", "own_data")]
    assert [checkpoint["step"] for checkpoint in ends[0]][:4] == [1, 2, 3, 4]
    assert ends[1] == [], "data that cannot be resumed within an epoch got a checkpoint there"


@pytest.mark.parametrize(("job", "code"), [("own_data", 143), ("at_the_start", 130)])
def test_a_signal_with_nothing_to_resume_from_says_so(scenes: Scenes, job: str, code: int) -> None:
    scene = scenes[job].result()
    assert scene.end.code == code
    assert "there is nothing to resume" in scene.end.err
    assert "Traceback" not in scene.end.err
    assert (scene.told["status"], scene.told["exit_code"]) == ("interrupted", code)


def test_a_signal_before_the_first_checkpoint_waits_for_it_where_it_is_near(scenes: Scenes) -> None:
    scene = scenes["own_data_in_first_validation"].result()
    assert scene.end.code == 75, scene.end.err
    assert scene.told["status"] == "preempted"
    assert scene.resumed is not None
    assert scene.resumed.code == 0, scene.resumed.err
    (resume,) = events(scene.folder, "resume")
    assert (resume["epoch"], resume["step"]) == (1, 6)


def test_a_signal_after_the_last_epoch_loses_nothing(scenes: Scenes) -> None:
    scene = scenes["at_the_end"].result()
    assert scene.end.code == 75
    assert scene.resumed is not None
    assert scene.resumed.code == 0, scene.resumed.err
    assert summary(scene.folder)["status"] == "done"
    assert [event["epoch"] for event in events(scene.folder, "epoch")] == [0, 1, 2]


def test_a_second_signal_ends_at_once(scenes: Scenes) -> None:
    scene = scenes["twice"].result()
    assert scene.end.code == 130
    assert not (scene.folder / "survived").exists()
    assert [checkpoint["step"] for checkpoint in events(scene.folder, "checkpoint")] == [1, 2, 3, 4]
    assert events(scene.folder, "end") == []

"""A training that is killed at any moment: the same command brings it to the same end."""

from __future__ import annotations

import hashlib
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import Once
from tests.contract.fault_examples import (
    HOLD,
    MY_FAULTS,
    callback,
    kill_once_saved,
    release,
    start_held,
    train_undisturbed,
    write_exact,
)
from tests.contract.workspace import (
    Workspace,
    assert_equal,
    assert_same_training,
    load_checkpoint,
    read_events,
    read_json,
    read_metrics,
)

KILL = int(signal.SIGKILL)


@pytest.fixture(scope="module")
def undisturbed(made_once: Once) -> Path:
    """Run folder of `exact.yaml`, which nobody disturbed."""
    folder = made_once("undisturbed", train_undisturbed)
    return next(folder.glob("runs/exact/2*"))


def kill_in(hook: str, step: int = 0) -> dict[str, Any]:
    return callback("my_project.SendSignal", hook=hook, step=step, signum=KILL)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (kill_in("setup"), -KILL),
        (kill_in("on_train_batch_start"), -KILL),
        (
            callback("my_faults.LimitFileSize", size=100_000, step=7, is_killed=True),
            -int(signal.SIGXFSZ),
        ),
        (kill_in("on_validation_batch_start", 10), -KILL),
        (kill_in("on_train_epoch_start", 10), -KILL),
    ],
    ids=["start-up", "first_step", "writing_a_checkpoint", "validation", "between_epochs"],
)
def test_a_killed_fit_ends_with_the_weights_and_metrics_of_an_undisturbed_one(
    fault: dict[str, Any], code: int, workspace: Workspace, undisturbed: Path
) -> None:
    run = killed_and_resumed(workspace, fault, code)
    assert_same_training(run, undisturbed)


def test_a_fit_that_is_killed_at_its_end_ends_with_the_same_weights_and_metrics(
    workspace: Workspace, undisturbed: Path
) -> None:
    run = killed_and_resumed(workspace, kill_in("on_train_end", 15), -KILL)
    one, other = (
        load_checkpoint(each / "checkpoints" / "last.ckpt")["state_dict"]
        for each in (run, undisturbed)
    )
    assert_equal(one, other, "state_dict")
    assert read_metrics(run) == read_metrics(undisturbed)


@pytest.mark.parametrize(
    "number",
    [17, *(pytest.param(each, marks=pytest.mark.long) for each in range(1, 25, 2) if each != 17)],
)
def test_a_fit_that_is_killed_between_the_two_names_of_a_checkpoint_ends_with_the_same_weights(
    number: int, workspace: Workspace, undisturbed: Path
) -> None:
    fault = callback("my_faults.KillBetweenNames", number=number, step=10)
    # the newest weights are the best
    fault["callbacks"]["checkpoint"] = {"init_args": {"monitor": None}}
    run = killed_and_resumed(workspace, fault, -KILL)
    (resume,) = read_events(run, "resume")
    assert (resume["step"], Path(resume["checkpoint"]).name) == (10, "last.ckpt")
    assert_same_training(run, undisturbed)
    checkpoints = run / "checkpoints"
    assert (checkpoints / "best.ckpt").samefile(checkpoints / "last.ckpt")
    for name in ("best.ckpt", "last.ckpt"):
        (digest,) = {
            line.split()[0] for line in (checkpoints / f"{name}.sha256").read_text().splitlines()
        }
        assert hashlib.sha256((checkpoints / name).read_bytes()).hexdigest() == digest


def killed_and_resumed(workspace: Workspace, fault: dict[str, Any], code: int) -> Path:
    """Run `exact.yaml` with a fault that kills it, and again.

    Return the run's folder after some checks of it.
    """
    write_exact(workspace)
    workspace.write("fault.yaml", {**fault, "run": {"name": "exact"}})
    words = ("fit", "-c", "exact.yaml", "-c", "fault.yaml")
    assert workspace.run(*words).code == code
    saved = [event["step"] for event in read_events(workspace.only_run, "checkpoint")]
    workspace.run(*words).ok()
    run = workspace.only_run
    resumed = [event["step"] for event in read_events(run, "resume")]
    assert not saved or resumed[0] >= max(saved), "a checkpoint was lost"
    assert not list(run.rglob(".*")), "a file is left half-written"
    assert not (run.parent / "lock.json").exists()
    assert read_json(run / "summary.json")["status"] == "done"
    return run


def test_within_an_epoch_a_checkpoint_is_written_every_so_many_steps(undisturbed: Path) -> None:
    steps = [
        event["step"] for event in read_events(undisturbed, "checkpoint") if event["kind"] == "last"
    ]
    assert steps == [2, 4, 5, 7, 9, 10, 12, 14, 15]
    assert {path.name for path in (undisturbed / "checkpoints").glob("*.ckpt")} == {
        "best.ckpt",
        "last.ckpt",
        "last-1.ckpt",
    }


@pytest.mark.parametrize(
    ("step", "saved", "epoch"), [(8, 7, 1), (13, 12, 2)], ids=["second_epoch", "last_epoch"]
)
def test_a_kill_within_an_epoch_costs_no_more_than_the_steps_since_the_last_checkpoint(
    step: int, saved: int, epoch: int, workspace: Workspace, undisturbed: Path
) -> None:
    write_exact(workspace)
    kill_once_saved(workspace, "-c", "exact.yaml", step=step, saved=saved)
    workspace.run("fit", "-c", "exact.yaml", HOLD).ok()
    (resume,) = read_events(workspace.only_run, "resume")
    assert (resume["epoch"], resume["step"]) == (epoch, saved)
    assert_same_training(workspace.only_run, undisturbed)


@pytest.mark.parametrize(
    "ranks", [1, pytest.param(2, marks=pytest.mark.long)], ids=["one_process", "two_ranks"]
)
def test_metrics_of_a_resume_within_an_epoch_are_those_of_an_undisturbed_run(
    ranks: int, workspace: Workspace
) -> None:
    """Learning rate and training metrics of a user's module, bit for bit."""
    workspace.write("my_faults.py", MY_FAULTS)
    workspace.write(
        "measured.yaml",
        {
            "model": {"class_path": "my_faults.Measured"},
            "data": {"class_path": "my_faults.Hanging"},
            "trainer": {
                "devices": ranks,
                "strategy": "ddp" if ranks > 1 else "auto",
                "max_epochs": 4,
            },
        },
    )
    words = ("-c", "small.yaml", "-c", "measured.yaml")
    process = start_held(workspace, *words, "--run.name=disturbed", step=8)
    process.signal(signal.SIGTERM)
    release(workspace)
    assert process.wait() == 75
    workspace.run("fit", *words, HOLD, "--run.name=disturbed").ok()
    workspace.run("fit", *words, "--run.name=undisturbed").ok()
    disturbed, undisturbed = sorted(workspace.runs, key=lambda run: run.parent.name)
    (resume,) = read_events(disturbed, "resume")
    assert resume["step"] % 12 or ranks > 1, "it was not interrupted within an epoch"
    assert_same_training(disturbed, undisturbed)


def test_a_loader_without_resume_is_saved_and_resumed_at_the_end_of_an_epoch(
    workspace: Workspace,
) -> None:
    """Its random numbers are torch's, Python's and NumPy's, which go on where they were."""
    write_exact(workspace)
    saving = {"checkpoint": {"init_args": {"save_last_every_n_steps": 1}}}
    workspace.write(
        "random.yaml", {"model": {"class_path": "my_faults.Random"}, "callbacks": saving}
    )
    words = ("-c", "small.yaml", "-c", "random.yaml")
    kill_once_saved(workspace, *words, "--run.name=killed", step=9, saved=6)
    workspace.run("fit", *words, HOLD, "--run.name=killed").ok()
    workspace.run("fit", *words, "--run.name=undisturbed").ok()
    killed, undisturbed = sorted(workspace.runs, key=lambda run: run.parent.name)
    (resume,) = read_events(killed, "resume")
    assert resume["step"] == 6
    assert_same_training(killed, undisturbed)


def test_a_decision_to_stop_early_survives_a_kill(workspace: Workspace) -> None:
    fault = kill_in("on_train_end")
    stopping = {"monitor": "val/loss", "mode": "max", "patience": 1}  # the loss falls in each epoch
    fault["callbacks"]["stopping"] = {"class_path": "EarlyStopping", "init_args": stopping}
    workspace.write("fault.yaml", {**fault, "run": {"name": "small"}})
    words = ("fit", "-c", "small.yaml", "-c", "fault.yaml", "--trainer.max_epochs=5")
    assert workspace.run(*words).code == -KILL
    decided = [row["epoch"] for row in read_metrics(workspace.only_run)]
    assert decided == ["0", "1"]
    workspace.run(*words).ok()
    assert [row["epoch"] for row in read_metrics(workspace.only_run)] == decided


@pytest.mark.long
@pytest.mark.parametrize("num_workers", [0, 2], ids=["no_workers", "two_workers"])
@pytest.mark.parametrize("seed", range(5))
def test_a_fit_that_is_killed_three_times_at_random_ends_with_the_weights_of_an_undisturbed_one(
    seed: int, num_workers: int, workspace: Workspace, undisturbed: Path
) -> None:
    write_exact(workspace)
    dice = random.Random(100 * num_workers + seed)
    held, hold = workspace.folder / "held", workspace.folder / "hold"
    words = ("fit", "-c", "exact.yaml", HOLD, f"--data.num_workers={num_workers}")
    for most in (5, 10, 14):
        held.unlink(missing_ok=True)
        hold.write_text(str(most), encoding="utf-8")
        process = workspace.start(*words)
        before = sum(len(read_events(run, "checkpoint")) for run in workspace.runs)
        num_more = dice.randint(0, 2)
        process.wait_for(
            lambda: (
                held.exists()
                or sum(len(read_events(run, "checkpoint")) for run in workspace.runs)
                >= before + num_more  # noqa: B023
            )
        )
        time.sleep(dice.uniform(0, 0.3))  # which moment it is between two events is the question
        process.signal(KILL)
        assert process.wait() == -KILL
        for run in workspace.runs:
            assert_no_checkpoint_came_before_its_epoch(run)
    hold.unlink()
    workspace.run(*words).ok()
    assert_same_training(workspace.only_run, undisturbed)


def assert_no_checkpoint_came_before_its_epoch(run: Path) -> None:
    """A process that resumed after an epoch would never write its row or its event."""
    for path in (run / "checkpoints").glob("*.ckpt"):
        if path.name == "last.ckpt" and path.with_name("last.ckpt.sha256").exists():
            done = set(
                range(
                    load_checkpoint(path)["loops"]["fit_loop"]["epoch_progress"]["total"][
                        "processed"
                    ]
                )
            )
            assert done <= {event["epoch"] for event in read_events(run, "epoch")}, path
            assert not done or done <= {int(row["epoch"]) for row in read_metrics(run)}, path

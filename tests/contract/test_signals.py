"""Signals end a command in order, once, and at any moment."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.contract.conftest import Once
from tests.contract.fault_examples import (
    HOLD,
    MY_FAULTS,
    callback,
    release,
    start_held,
    train_undisturbed,
    wait_until_saved,
    write_exact,
)
from tests.contract.workspace import (
    Process,
    Workspace,
    assert_same_training,
    load_checkpoint,
    read_events,
    read_json,
    wait_until_gone,
)

TERM, INT, USR1, HUP = (
    int(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
)
SIGNALS = pytest.mark.parametrize(
    "signum", [TERM, INT, USR1, HUP], ids=["SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"]
)
IGNORING = """\
import signal
import sys

signal.signal(int(sys.argv.pop(1)), signal.SIG_IGN)

from lightkit.main import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def undisturbed(made_once: Once) -> Path:
    """Run folder of `exact.yaml`, which nobody disturbed."""
    folder = made_once("undisturbed", train_undisturbed)
    return next(folder.glob("runs/exact/2*"))


def assert_preempted(process: Process, run: Path) -> None:
    """Assert that a fit ended in order, with what there is to go on with on record.

    Also that no process is left.
    """
    assert process.wait() == 75, process.err
    assert re.search(
        r"interrupted by SIG\w+; the same command resumes from \S+/last\.ckpt", process.err
    )
    assert "Traceback" not in process.err
    (end,) = read_events(run, "end")
    assert (end["status"], end["exit_code"]) == ("preempted", 75)
    summary = read_json(run / "summary.json")
    assert (summary["status"], summary["exit_code"]) == ("preempted", 75)
    wait_until_gone(process.pid)


@SIGNALS
def test_a_signal_is_75_where_the_same_command_can_resume(
    signum: int, workspace: Workspace
) -> None:
    process = start_held(workspace, "-c", "small.yaml", step=8)
    wait_until_saved(workspace, process, 6)
    process.signal(signum)
    release(workspace)
    assert_preempted(process, workspace.only_run)
    assert load_checkpoint(workspace.only_run / "checkpoints" / "last.ckpt")["global_step"] == 6


@SIGNALS
def test_a_signal_is_128_plus_its_number_where_there_is_nothing_to_resume(
    signum: int, workspace: Workspace
) -> None:
    process = start_held(workspace, "-c", "small.yaml", step=2)
    process.signal(signum)
    release(workspace)
    assert process.wait() == 128 + signum
    assert re.search(
        rf"interrupted by {signal.Signals(signum).name}; there is nothing to resume", process.err
    )
    assert "Traceback" not in process.err
    summary = read_json(workspace.only_run / "summary.json")
    assert (summary["status"], summary["exit_code"]) == ("interrupted", 128 + signum)
    wait_until_gone(process.pid)


@pytest.mark.parametrize(
    ("hook", "step", "signum", "saved"),
    [("on_train_batch_start", 7, TERM, 8), ("on_validation_batch_start", 10, USR1, 9)],
    ids=["training", "validation"],
)
def test_training_stops_after_the_batch_under_way_and_the_same_command_ends_with_the_same_weights(
    hook: str, step: int, signum: int, saved: int, workspace: Workspace, undisturbed: Path
) -> None:
    write_exact(workspace)
    workspace.write(
        "signal.yaml", callback("my_project.SendSignal", hook=hook, step=step, signum=signum)
    )
    words = ("fit", "-c", "exact.yaml", "-c", "signal.yaml")
    process = workspace.start(*words)
    process.wait()
    assert_preempted(process, workspace.only_run)
    assert load_checkpoint(workspace.only_run / "checkpoints" / "last.ckpt")["global_step"] == saved
    workspace.run(*words).ok()
    assert [event["step"] for event in read_events(workspace.only_run, "resume")] == [saved]
    assert_same_training(workspace.only_run, undisturbed)


@pytest.mark.parametrize("signum", [INT, TERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_to_all_processes_ends_the_loading_ones_too_and_loses_nothing(
    signum: int, workspace: Workspace, undisturbed: Path
) -> None:
    write_exact(workspace)
    words = ("-c", "exact.yaml", "--data.num_workers=2")
    process = start_held(workspace, *words, step=8)
    process.signal_group(signum)
    release(workspace)
    process.wait()
    assert_preempted(process, workspace.only_run)
    workspace.run("fit", *words, HOLD).ok()
    assert_same_training(workspace.only_run, undisturbed)


def test_a_signal_before_the_first_checkpoint_waits_for_it_where_it_is_near(
    workspace: Workspace,
) -> None:
    result = send(workspace, "on_validation_batch_start", 6)
    assert result.wait() == 75, result.err
    assert load_checkpoint(workspace.only_run / "checkpoints" / "last.ckpt")["global_step"] == 6


def test_a_signal_after_the_last_epoch_loses_nothing(workspace: Workspace) -> None:
    assert send(workspace, "on_fit_end", 12).wait() == 75
    assert send(workspace, "on_fit_end", 12).wait() == 0
    assert read_json(workspace.only_run / "summary.json")["status"] == "done"
    assert [event["epoch"] for event in read_events(workspace.only_run, "epoch")] == [0, 1]


def test_a_signal_at_the_start_leaves_nothing_to_resume(workspace: Workspace) -> None:
    process = send(workspace, "setup", 0, INT)
    assert process.wait() == 130
    assert "Traceback" not in process.err
    assert read_json(workspace.only_run / "summary.json")["status"] == "interrupted"


def test_a_signal_in_a_test_is_128_plus_its_number(workspace: Workspace) -> None:
    process = send(workspace, "on_test_batch_start", 0, TERM, command="test")
    assert process.wait() == 143
    assert "Traceback" not in process.err
    wait_until_gone(process.pid)


def send(
    workspace: Workspace, hook: str, step: int, signum: int = TERM, command: str = "fit"
) -> Process:
    workspace.write(
        "signal.yaml", callback("my_project.SendSignal", hook=hook, step=step, signum=signum)
    )
    process = workspace.start(command, "-c", "small.yaml", "-c", "signal.yaml", "--run.name=small")
    process.wait()
    return process


@pytest.mark.parametrize(
    ("signums", "pause_s", "code", "survives"),
    [
        ([TERM, INT], 0.0, 130, False),
        ([TERM, TERM], 0.7, 143, False),
        ([TERM, TERM], 0.0, 75, True),
    ],
    ids=["another", "same_later", "same_at_once"],
)
def test_a_second_signal_ends_at_once_and_the_same_within_half_a_second_counts_once(
    signums: list[int], pause_s: float, code: int, survives: bool, workspace: Workspace
) -> None:
    workspace.write("my_faults.py", MY_FAULTS)
    fault = callback(
        "my_faults.SendSignals",
        signums=signums,
        pause_s=pause_s,
        step=9,
        then_s=0 if survives else 60,
    )
    workspace.write("signals.yaml", fault)
    result = workspace.run("fit", "-c", "small.yaml", "-c", "signals.yaml")
    first, second = map(float, (workspace.folder / "moments").read_text().split())
    if survives and second - first > 0.4:
        pytest.skip("this machine let half a second pass between two signals in a row")
    assert result.code == code
    assert (workspace.folder / "survived").exists() is survives
    assert bool(read_events(workspace.only_run, "end")) is survives


@pytest.mark.parametrize("signum", [HUP, INT], ids=["nohup", "background"])
def test_a_signal_that_the_process_was_started_to_ignore_is_ignored(
    signum: int, workspace: Workspace
) -> None:
    workspace.write("ignoring.py", IGNORING)
    (workspace.folder / "hold").write_text("2", encoding="utf-8")
    process = workspace.start(str(signum), "fit", "-c", "small.yaml", HOLD, script="ignoring.py")
    process.wait_for((workspace.folder / "held").exists)
    process.signal(signum)
    release(workspace)
    assert process.wait() == 0, process.err


def test_a_loading_process_that_hangs_is_ended_by_force_within_15_seconds_with_the_end_on_record(
    workspace: Workspace,
) -> None:
    workspace.write("my_faults.py", MY_FAULTS)
    arguments = {"num_workers": 1, "is_stubborn": True, "is_exact": False}
    data = {"class_path": "my_faults.Hanging", "init_args": arguments}
    workspace.write("hanging.yaml", {"data": data, "trainer": {"max_epochs": 100_000}})
    process = workspace.start("fit", "-c", "small.yaml", "-c", "hanging.yaml", "--run.name=small")
    process.wait_for(lambda: workspace.runs and read_events(workspace.only_run, "checkpoint"))
    (workspace.folder / "hang").touch()
    process.wait_for((workspace.folder / "hangs").exists)
    process.signal(TERM)
    process.wait()
    assert_preempted(process, workspace.only_run)
    assert re.search(r"ended by force", process.err)

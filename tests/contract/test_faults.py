"""Trainings that go wrong by themselves.

Losses that are not finite, disks that are full, hangs, a deadline.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.examples import SMALL
from tests.contract.fault_examples import (
    HOLD,
    MY_FAULTS,
    callback,
    release,
    start_held,
    write_exact,
)
from tests.contract.test_earlier_version import unpack
from tests.contract.workspace import (
    LIGHTKIT,
    Result,
    Workspace,
    load_checkpoint,
    read_events,
    read_json,
    read_metrics,
    wait_until_gone,
)


def assert_failed(result: Result, code: int = 1) -> None:
    assert result.code == code, result.err
    assert "error: " in result.err
    assert "Traceback" not in result.err


def step_of(path: Path) -> int:
    step = load_checkpoint(path)["global_step"]
    assert isinstance(step, int)
    return step


# -- losses that are not finite --------------------------------------------------------------------


def write_nan(workspace: Workspace, steps: list[int]) -> tuple[str, ...]:
    """Write a job whose loss is NaN in some of its 12 batches; return the words that run it."""
    workspace.write(
        "nan.yaml", {"model": {"class_path": "my_project.NaNInStep", "init_args": {"steps": steps}}}
    )
    return "fit", "-c", "small.yaml", "-c", "nan.yaml"


def test_a_loss_that_is_not_finite_ends_the_run_before_a_checkpoint_has_it(
    workspace: Workspace,
) -> None:
    result = workspace.run(*write_nan(workspace, [8]))
    assert_failed(result)
    run = workspace.only_run
    last = run / "checkpoints" / "last.ckpt"
    assert re.search(r"loss of epoch 1, step 8, batch 2 is nan \(.*shuffled", result.err)
    assert re.search(
        r"last good checkpoint is \S+/checkpoints/last\.ckpt.*on_nonfinite=skip", result.err
    )
    (event,) = read_events(run, "nonfinite")
    assert (event["epoch"], event["step"], event["batch"], event["action"]) == (1, 8, 2, "stop")
    assert step_of(last) == 6
    assert read_json(run / "summary.json")["status"] == "failed"


def test_the_run_goes_on_without_such_batches_once_they_are_skipped(workspace: Workspace) -> None:
    words = write_nan(workspace, [8])
    assert workspace.run(*words).code == 1
    workspace.run(*words, f"--run.resume={workspace.only_run}", "--watchdog.on_nonfinite=skip").ok()
    assert read_json(workspace.only_run / "summary.json")["status"] == "done"
    assert [row["epoch"] for row in read_metrics(workspace.only_run)] == ["0", "1"]


MARKED = '''
import json

import torch
from pytorch_lightning import LightningModule


class Marked(LightningModule):
    """Has a loss of NaN for the batch with row 37 of a table, and writes down which rows it is
    of."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        rows = batch[0].flatten().int().tolist()
        loss = self.layer(batch[0]).square().mean()
        if 37 not in rows:
            return loss
        with open("marked.jsonl", "a") as file:
            print(json.dumps([self.current_epoch, index, rows]), file=file)
        return loss * torch.nan

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)
'''


def test_a_loss_that_is_not_finite_names_the_stored_rows_of_a_table_in_each_epoch(
    workspace: Workspace,
) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "x": [float(row) for row in range(100)],
        "y": [0.0] * 100,
        "split": ["train"] * 90 + ["val"] * 10,
    }
    parquet.write_table(pa.table(columns), workspace.folder / "t.parquet", row_group_size=17)
    workspace.write("marked.py", MARKED)
    table = {
        "path": "t.parquet",
        "features": ["x"],
        "label": "y",
        "batch_size": 8,
        "shuffle_buffer": 24,
    }
    workspace.write(
        "rows.yaml",
        {
            "seed_everything": 3,
            "model": {"class_path": "marked.Marked"},
            "data": {"class_path": "Table", "init_args": {**table, "num_workers": 0}},
            "trainer": {"accelerator": "cpu", "devices": 1, "max_epochs": 3, "logger": False},
            "watchdog": {"on_nonfinite": "skip"},
        },
    )
    result = workspace.run("fit", "-c", "rows.yaml").ok()
    seen = [
        json.loads(line) for line in (workspace.folder / "marked.jsonl").read_text().splitlines()
    ]
    events = read_events(workspace.only_run, "nonfinite")
    assert len(seen) == 3
    assert [[event["epoch"], event["batch"], event["indices"]] for event in events] == seen
    for event, (_, _, rows) in zip(events, seen, strict=True):
        assert [int(name.rpartition(" ")[2]) for name in event["names"]] == rows
    assert result.err.count("t.parquet, row ") == sum(len(rows) for _, _, rows in seen)


def test_skip_leaves_such_a_batch_out_of_weights_and_metrics(workspace: Workspace) -> None:
    workspace.run(*write_nan(workspace, [2, 8]), "--watchdog.on_nonfinite=skip").ok()
    events = read_events(workspace.only_run, "nonfinite")
    assert [(event["epoch"], event["batch"], event["action"]) for event in events] == [
        (0, 2, "skip"),
        (1, 2, "skip"),
    ]
    weights = load_checkpoint(workspace.only_run / "checkpoints" / "last.ckpt")["state_dict"]
    assert all(bool(value.isfinite().all()) for value in weights.values())
    assert all(0 < float(row["train/loss"]) < 100 for row in read_metrics(workspace.only_run))


def test_ten_such_batches_in_a_row_end_the_run(workspace: Workspace) -> None:
    result = workspace.run(
        *write_nan(workspace, list(range(1, 40))),
        "--watchdog.on_nonfinite=skip",
        "--data.batch_size=4",
    )
    assert_failed(result)
    assert [event["action"] for event in read_events(workspace.only_run, "nonfinite")] == [
        "skip"
    ] * 9 + ["stop"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("action", "code", "step"), [("stop", 1, 3), ("skip", 0, 6)], ids=["stop", "skip"]
)
def test_all_ranks_do_the_same_about_a_loss_of_one_of_them(
    action: str, code: int, step: int, workspace: Workspace
) -> None:
    workspace.write("my_faults.py", MY_FAULTS)
    ranks = ("--trainer.devices=2", "--trainer.strategy=ddp")
    words = ("fit", "-c", "small.yaml", "--model=my_faults.NaNOnRank", *ranks)
    result = workspace.run(*words, f"--watchdog.on_nonfinite={action}")
    assert result.code == code, result.err
    (event,) = read_events(workspace.only_run, "nonfinite")
    assert (event["epoch"], event["step"], event["batch"], event["rank"]) == (1, 4, 1, 1)
    assert event["action"] == action
    assert step_of(workspace.only_run / "checkpoints" / "last.ckpt") == step


# -- disks -----------------------------------------------------------------------------------------


def test_a_checkpoint_that_cannot_be_written_ends_the_run_and_costs_none_that_is_there(
    workspace: Workspace,
) -> None:
    write_exact(workspace)
    workspace.write("full.yaml", callback("my_faults.LimitFileSize", size=100_000, step=6))
    words = ("fit", "-c", "exact.yaml", "-c", "full.yaml")
    result = workspace.run(*words)
    assert_failed(result)
    assert re.search(
        r"last\.ckpt cannot be written: .*Free space.*run the same command to resume", result.err
    )
    run = workspace.only_run
    assert step_of(run / "checkpoints" / "last.ckpt") == 5
    assert not list((run / "checkpoints").glob(".*"))
    assert read_json(run / "summary.json")["status"] == "failed"
    workspace.run(*words).ok()
    assert [event["step"] for event in read_events(run, "resume")] == [5]


def test_a_folder_of_checkpoints_that_is_lost_ends_the_run(workspace: Workspace) -> None:
    workspace.write("my_faults.py", MY_FAULTS)
    workspace.write("lost.yaml", callback("my_faults.BlockCheckpoints"))
    result = workspace.run("fit", "-c", "small.yaml", "-c", "lost.yaml")
    assert_failed(result)
    assert re.search(r"The checkpoint \S+ cannot be written", result.err)


@pytest.mark.parametrize("own", [True, False], ids=["own", "last"])
def test_a_promised_checkpoint_that_is_not_there_at_the_end_fails_the_fit(
    own: bool, workspace: Workspace
) -> None:
    workspace.write("my_faults.py", MY_FAULTS)
    folder = "elsewhere" if own else "runs/small/latest/checkpoints"
    layer = callback("my_faults.LoseCheckpoints", folder=folder)
    layer["callbacks"]["own"] = {
        "class_path": "ModelCheckpoint",
        "init_args": {"dirpath": "elsewhere"},
    }
    workspace.write("lost.yaml", {**layer, "run": {"name": "small"}})
    result = workspace.run("fit", "-c", "small.yaml", "-c", "lost.yaml")
    assert_failed(result)
    assert re.search(r"elsewhere/\S+\.ckpt" if own else r"resume\.ckpt", result.err)


def test_a_callback_finds_the_checkpoint_the_row_and_the_event_of_the_epoch_before(
    workspace: Workspace,
) -> None:
    workspace.write("my_faults.py", MY_FAULTS)
    workspace.write("list.yaml", callback("my_faults.ListRun"))
    workspace.run("fit", "-c", "small.yaml", "-c", "list.yaml").ok()
    found = (workspace.folder / "found.txt").read_text(encoding="utf-8")
    assert found == "1 rows, True, best.ckpt best.ckpt.sha256 last.ckpt last.ckpt.sha256"


@pytest.fixture
def small_disk(workspace: Workspace) -> Iterator[Workspace]:
    """A workspace whose `runs` are on a disk of 8 MB, with checkpoints of 1.4 MB."""
    runs = workspace.folder / "runs"
    runs.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "lightkit-test", str(runs)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(
            f"no disk can be mounted here without root privileges: {mounted.stderr.strip()}"
        )
    workspace.write("my_faults.py", MY_FAULTS)
    try:
        yield workspace
    finally:
        subprocess.run(["umount", "-l", str(runs)], check=True)


@pytest.mark.parametrize("free", [1_000_000, 0], ids=["nearly_full", "full"])
def test_a_full_disk_costs_no_checkpoint_and_the_same_command_goes_on_later(
    free: int, small_disk: Workspace
) -> None:
    small_disk.write(
        "full.yaml",
        {"model": {"class_path": "my_faults.Large"}, **callback("my_faults.FillDisk", free=free)},
    )
    words = ("fit", "-c", "small.yaml", "-c", "full.yaml")
    result = small_disk.run(*words)
    assert_failed(result)
    assert re.search(r"No space left", result.err)
    assert re.search(r"run the same command to resume", result.err)
    run = small_disk.only_run
    assert step_of(run / "checkpoints" / "last.ckpt") == 6
    (small_disk.folder / "runs" / "junk").unlink()
    small_disk.run(*words).ok()
    assert [event["step"] for event in read_events(run, "resume")] == [6]


@pytest.mark.parametrize(
    "words",
    [("fit", "-c", "small.yaml"), ("retrain", "-c", "small.yaml"), ("report", "small/latest")],
    ids=lambda words: words[0],
)
def test_a_disk_that_is_full_at_the_start_is_one_error_with_code_1(
    words: tuple[str, ...], workspace: Workspace
) -> None:
    unpack(workspace)
    # a limit on the length of a file is to a process what a full disk is
    limited = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50));"
    limited += "os.execv(sys.argv[1], sys.argv[1:])"
    ended = subprocess.run(
        [sys.executable, "-c", limited, str(LIGHTKIT), *words],
        cwd=workspace.folder,
        env=workspace.environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    *others, last = ended.stderr.splitlines()  # Matplotlib says that it cannot keep a list of fonts
    assert re.fullmatch(
        r"error: File too large: .*(lock\.json|report\.html) cannot be written\. Make room.*", last
    )
    assert all("font_manager" in line for line in others)


def test_a_full_disk_ends_a_test_with_one_error_and_the_same_command_goes_on_later(
    workspace: Workspace,
) -> None:
    unpack(workspace)
    limit = [
        sys.executable,
        "-c",
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50));"
        " os.execv(sys.argv[1], sys.argv[1:])",
    ]
    words = ("test", "--run", "latest")
    ended = subprocess.run(
        [*limit, str(LIGHTKIT), *words],
        cwd=workspace.folder,
        env=workspace.environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    (error,) = (line for line in ended.stderr.splitlines() if line.startswith("error: "))
    assert error == ended.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"error: File too large: .* cannot be written\. Make room.*the same command to go on\.",
        error,
    )
    workspace.run(*words).ok()


def test_a_disk_that_becomes_read_only_ends_the_run_and_the_same_command_goes_on_later(
    small_disk: Workspace,
) -> None:
    (small_disk.folder / "hold").write_text("8", encoding="utf-8")
    words = ("fit", "-c", "small.yaml", "callbacks.hold.class_path=my_project.Hold")
    process = small_disk.start(*words)
    process.wait_for((small_disk.folder / "held").exists)
    process.wait_for(lambda: len(read_events(small_disk.only_run, "checkpoint")) == 2)
    runs = str(small_disk.folder / "runs")
    subprocess.run(["mount", "--bind", runs, runs], check=True)  # over what has files open
    subprocess.run(["mount", "-o", "remount,bind,ro", runs], check=True)
    try:
        (small_disk.folder / "hold").unlink()
        process.wait()
    finally:
        subprocess.run(["umount", "-l", runs], check=True)
    assert_failed(process.result())
    assert re.search(r"Read-only file system", process.err)
    small_disk.run(*words).ok()
    assert [event["step"] for event in read_events(small_disk.only_run, "resume")] == [6]


# -- hangs -----------------------------------------------------------------------------------------


def write_hanging(workspace: Workspace, **arguments: Any) -> str:
    """Write a job of which a sample hangs as long as the file `hang` is there.

    Return the line that hangs.
    """
    workspace.write("my_faults.py", MY_FAULTS)
    (workspace.folder / "hang").touch()
    data = {"class_path": "my_faults.Hanging", "init_args": arguments}
    workspace.write(
        "hanging.yaml", {"data": data, "watchdog": {"floor_s": 2}, "run": {"name": "small"}}
    )
    lines = MY_FAULTS.splitlines()
    return (
        rf"my_faults\.py:{next(n for n, line in enumerate(lines, 1) if '# hangs here' in line)}\b"
    )


HANGING = ("-c", "small.yaml", "-c", "hanging.yaml")


@pytest.mark.parametrize(
    ("arguments", "who"),
    [
        ({"num_workers": 0}, "main thread"),
        ({"num_workers": 2}, r"data loader worker \d+"),
        ({"num_workers": 0, "is_stubborn": True}, "main thread"),
    ],
    ids=["no_workers", "two_workers", "stubborn"],
)
def test_a_fit_that_hangs_ends_with_70_and_names_the_line_and_the_sample(
    arguments: dict[str, Any], who: str, workspace: Workspace
) -> None:
    line = write_hanging(workspace, **arguments)
    process = workspace.start("fit", *HANGING)
    process.wait()
    assert_failed(process.result(), code=70)
    assert re.search(rf"error: .*phase train.*{who} \S.*{line}.*sample 37", process.err)
    run = workspace.only_run
    (stall,) = read_events(run, "stall")
    assert (stall["phase"], stall["sample"]) == ("train", 37)
    assert re.search(line, stall["at"])
    assert 37 in stall["batch"]
    stacks = (run / stall["path"]).read_text(encoding="utf-8")
    assert "MainThread" in stacks
    assert "my_faults.py" in stacks
    (end,) = read_events(run, "end")
    assert (end["status"], end["exit_code"]) == ("failed", 70)
    summary = read_json(run / "summary.json")
    assert (summary["status"], summary["exit_code"]) == ("failed", 70)
    wait_until_gone(process.pid)


def test_a_fit_that_hung_waiting_for_data_has_saved_all_batches_and_the_same_command_goes_on_there(
    workspace: Workspace,
) -> None:
    write_hanging(workspace, num_workers=1)
    result = workspace.run("fit", *HANGING)
    assert result.code == 70
    assert re.search(r"same command resumes from \S+/last\.ckpt", result.err)
    run = workspace.only_run
    saved = step_of(run / "checkpoints" / "last.ckpt")
    assert saved > 0
    (workspace.folder / "hang").unlink()
    workspace.run("fit", *HANGING).ok()
    assert [event["step"] for event in read_events(run, "resume")] == [saved]
    assert [event["step"] for event in read_events(run, "epoch")] == [12, 24]


def test_a_test_that_hangs_ends_with_70(workspace: Workspace) -> None:
    line = write_hanging(workspace)
    result = workspace.run("test", *HANGING)
    assert_failed(result, code=70)
    assert re.search(rf"phase test.*{line}", result.err)
    assert "resumes" not in result.err


# -- a deadline ------------------------------------------------------------------------------------


def test_a_duration_that_leaves_no_time_is_2(workspace: Workspace) -> None:
    result = workspace.run("fit", "-c", "small.yaml", "--deadline=1s")
    assert_failed(result, code=2)
    assert re.search(r"deadline \(20\d\d-\S+ \S+\) leaves no time", result.err)


@pytest.mark.long
def test_a_deadline_in_the_first_epoch_is_75_and_the_same_command_goes_on(
    workspace: Workspace,
) -> None:
    write_exact(workspace)
    began_s = time.monotonic()
    process = start_held(workspace, "-c", "exact.yaml", "--deadline=20s", step=2)
    process.wait_for(lambda: time.monotonic() > began_s + 20)
    release(workspace)
    assert_failed(process.result(), code=75)
    assert re.search(
        r"no time for the first epoch; the same command goes on from \S+/last\.ckpt", process.err
    )
    assert step_of(workspace.only_run / "checkpoints" / "last.ckpt") == 3
    workspace.run("fit", "-c", "exact.yaml", HOLD).ok()
    assert [event["step"] for event in read_events(workspace.only_run, "resume")] == [3]


def test_a_deadline_ends_a_training_well_after_the_last_epoch_that_fits(
    workspace: Workspace,
) -> None:
    workspace.write("my_faults.py", MY_FAULTS)
    workspace.write("rest.yaml", callback("my_faults.Rest"))
    words = ("fit", "-c", "small.yaml", "-c", "rest.yaml", "--deadline=15s", "--quiet")
    workspace.run(*words, "--trainer.max_epochs=1000000").ok()
    summary = read_json(workspace.only_run / "summary.json")
    assert (summary["status"], summary["stopped_by"]) == ("done", "deadline")
    assert summary["metrics"]["last"]["val/loss"] > 0
    epochs = len(read_metrics(workspace.only_run))
    assert epochs >= 1
    # Of the last epoch at least one batch: one that turns out to be longer ends after a batch and
    # is validated.
    assert (
        6 * (epochs - 1) < step_of(workspace.only_run / "checkpoints" / "last.ckpt") <= 6 * epochs
    )


def test_a_deadline_that_is_no_time_is_an_error(workspace: Workspace) -> None:
    result = workspace.run("fit", "-c", "small.yaml", "--deadline=teatime")
    assert_failed(result, code=2)
    assert re.search(r"--deadline.*teatime", result.err)


LOGGER_THAT_RAISES = """\
from pytorch_lightning.loggers import CSVLogger


class OutOfStock(CSVLogger):
    def __init__(self, save_dir: str = "logs"):
        raise RuntimeError("the tracker is out of stock")
"""


@pytest.mark.parametrize(
    ("word", "code", "says"),
    [
        ("--logger.mlflow.tracking_uri=./mlruns", 2, r"'\./mlruns', a folder"),
        (
            "--callbacks.slack.webhook_url=host/x",
            2,
            r"webhook_url of SlackNotifier: expected an address",
        ),
        (
            "logger.own.class_path=my_logger.OutOfStock",
            1,
            r"RuntimeError: the tracker is out of stock",
        ),
    ],
    ids=["mlflow", "webhook", "own"],
)
def test_a_logger_or_notifier_whose_constructor_raises_ends_the_fit(
    word: str, code: int, says: str, workspace: Workspace
) -> None:
    workspace.write("my_logger.py", LOGGER_THAT_RAISES)
    workspace.write("small.yaml", {**SMALL, "trainer": {"accelerator": "cpu", "max_epochs": 1}})
    result = workspace.run("fit", "-c", "small.yaml", word, timeout_s=60)
    assert result.code == code, result.err
    assert re.search(says, result.err)

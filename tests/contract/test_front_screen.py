"""What a terminal, a pipe, a program, nobody and a full disk get, and what a defect looks like."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest

from tests.contract.batch import Answer, Command, run_batch
from tests.contract.conftest import Once
from tests.contract.examples import MY_PROJECT, SMALL
from tests.contract.workspace import (
    ForkServer,
    Result,
    Workspace,
    read_events,
    read_json,
    read_metrics,
)

FULL = Path("/dev/full")
LOST = "error: standard output cannot be written: No space left on device"
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
MY_DEFECTS = '''\
import os
import threading

from my_project import Net


class Leaks(Net):
    """Its defects speak of what came from the environment."""

    def __init__(self, token: str = ""):
        super().__init__()
        self.token = token

    def training_step(self, batch, index):
        thread = threading.Thread(target=int, args=[self.token])
        thread.start()
        thread.join()
        int(self.token)
'''


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Workspace]:
    """A working directory with a small job."""
    workspace = Workspace(tmp_path_factory.mktemp("screen") / "work", fork_server)
    workspace.write("my_project.py", MY_PROJECT)
    workspace.write("small.yaml", SMALL)
    workspace.write("wrong.yaml", {**SMALL, "trainer": {"max_epochs": "ten"}})
    yield workspace
    workspace.close()


def on_terminal(workspace: Workspace, *words: str) -> Result:
    """Run a command with a pseudo-terminal as standard output and error."""
    ours, theirs = os.openpty()
    parts: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # the other side is closed
            while part := os.read(ours, 1 << 16):
                parts.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    environ = {"TERM": "xterm-256color", "COLUMNS": "120", "NO_COLOR": None}
    with os.fdopen(theirs, "wb", buffering=0) as terminal:
        process = workspace.start(*words, stdout=terminal, stderr=terminal, environ=environ)
        code = process.wait()
    reader.join()
    os.close(ours)
    return Result(code, b"".join(parts).decode(), "")


# -- a fit -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def piped(made_once: Once) -> tuple[Result, Path, str]:
    """A fit into pipes with a page of a CI job: how it ended, its directory, and that page."""

    def fill(workspace: Workspace) -> None:
        result = workspace.run(
            "fit", "-c", "small.yaml", environ={"GITHUB_STEP_SUMMARY": "page.md"}
        )
        workspace.write("result.json", json.dumps([result.code, result.out, result.err]))

    folder = made_once("piped", fill)
    result = Result(*read_json(folder / "result.json"))
    return result, folder, (folder / "page.md").read_text(encoding="utf-8")


def test_a_pipe_gets_plain_lines_and_one_an_epoch(piped: tuple[Result, Path, str]) -> None:
    result, _, _ = piped
    result.ok()
    assert not {"\r", "\x1b"} & set(result.out + result.err)
    assert re.findall(r"^epoch (\d \(\d of 2\)) ", result.out, re.MULTILINE) == [
        "0 (1 of 2)",
        "1 (2 of 2)",
    ]
    assert [line.split()[0] for line in result.out.splitlines()[:4]] == [
        "run",
        "data",
        "model",
        "on",
    ]


def test_the_screen_the_step_summary_and_the_files_number_epochs_alike(
    piped: tuple[Result, Path, str],
) -> None:
    result, folder, page = piped
    run = folder / "runs" / "small" / "latest"
    rows = {row["epoch"]: float(row["val/loss"]) for row in read_metrics(run)}
    assert list(rows) == ["0", "1"] == re.findall(r"^epoch (\d) ", result.out, re.MULTILINE)
    best = min(rows, key=rows.__getitem__)
    assert f"after epoch {best})" in result.out
    assert f"in epoch {best}" in page
    assert str(read_json(run / "summary.json")["best"]["epoch"]) == best


def test_a_fit_ends_with_the_best_checkpoint_the_run_and_the_next_commands(
    piped: tuple[Result, Path, str],
) -> None:
    result, folder, _ = piped
    (run,) = (path.relative_to(folder) for path in folder.glob("runs/small/2*-*"))
    assert re.search(rf"^best +{run}/checkpoints/best\.ckpt .*val/loss", result.out, re.MULTILINE)
    assert re.search(rf"^run +{run}$", result.out, re.MULTILINE)
    assert re.search(rf"^next +lightkit test --run {run}$", result.out, re.MULTILINE)


def test_a_fit_adds_its_metrics_and_checkpoint_to_the_page_of_the_job(
    piped: tuple[Result, Path, str],
) -> None:
    _, folder, page = piped
    (run,) = folder.glob("runs/small/2*-*")
    assert page.startswith(f"### lightkit fit: small/{run.name} done\n")
    assert "checkpoints/best.ckpt" in page
    assert re.search(r"\| val/loss \| [\d.]+ \| [\d.]+ \|", page)


def test_a_terminal_gets_bars_a_table_and_the_last_block(room: Workspace) -> None:
    result = on_terminal(room, "fit", "-c", "small.yaml", "--run.name=terminal")
    assert result.code == 0, result.out
    assert "\x1b[" in result.out
    assert "━" in result.out
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", result.out)
    assert "train/loss" in plain
    assert "val/loss" in plain
    assert "lightkit test --run runs/terminal/" in plain


def test_a_terminal_gets_errors_as_a_pipe_does(room: Workspace) -> None:
    screen = on_terminal(room, "check", "-c", "wrong.yaml")
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", screen.out).replace("\r\n", "\n")
    assert (screen.code, plain) == (2, room.run("check", "-c", "wrong.yaml").err)


@pytest.fixture(scope="module")
def said(room: Workspace) -> dict[str, Answer]:
    """What fits print with options, and what defects look like."""
    room.write("my_defects.py", MY_DEFECTS)
    words = {
        "quiet": ("--quiet",),
        "json": ("--output", "json"),
        "defect": ("--model=my_project.FailsInStep",),
        "json defect": ("--model=my_project.FailsInStep", "--output=json"),
        "quiet defect": ("--model=my_project.FailsInStep", "--quiet"),
        "built": ("--model=my_project.FailsInInit",),
        "secret": ("--model=my_defects.Leaks", "--model.token=${oc.env:MY_TOKEN}"),
        "no data": ("--data=null",),
        "monitor": ("callbacks.early_stopping.monitor=val/los",),
        "schedule": (
            "--optimizer=SGD",
            "--lr_scheduler=ReduceLROnPlateau",
            "--lr_scheduler.monitor=val/los",
        ),
    }
    commands = {}
    for name, given in words.items():
        job = f"--run.name={name.replace(' ', '_')}"
        page = str(room.home / f"{name}.md")
        environ = {"MY_TOKEN": "hunter2", "GITHUB_STEP_SUMMARY": page}
        commands[name] = Command(("fit", "-c", "small.yaml", job, *given), environ=environ)
    return run_batch(room, commands)


def run_of(room: Workspace, name: str) -> Path:
    """The folder of the one run of a job."""
    (run,) = (room.folder / "runs" / name).glob("2*-*")
    return run


def test_quiet_prints_nothing_where_all_is_well(room: Workspace, said: dict[str, Answer]) -> None:
    assert (said["quiet"].code, said["quiet"].out, said["quiet"].err) == (0, "", "")
    assert len(read_events(run_of(room, "quiet"), "epoch")) == 2


def test_output_json_prints_the_events_of_the_run_and_nothing_else(
    room: Workspace, said: dict[str, Answer]
) -> None:
    assert said["json"].ok().json_lines == read_events(run_of(room, "json"))
    assert said["json"].json_lines[-1]["event"] == "end"
    assert said["json"].err == ""


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("defect", "ValueError: batches are out of stock"),
        ("quiet defect", "ValueError: batches are out of stock"),
        ("built", "ValueError: hidden layers are out of stock"),
    ],
    ids=["in training", "quiet", "in a constructor"],
)
def test_a_defect_is_code_1_with_a_traceback_and_on_record(
    name: str, error: str, room: Workspace, said: dict[str, Answer]
) -> None:
    answer = said[name]
    assert answer.code == 1
    assert "Traceback (most recent call last):" in answer.err
    assert re.search(
        r"(The .*\n){1,2}Traceback(.|\n)*my_project\.py\", line"
        rf" \d+(.|\n)*{re.escape(error)}\n\Z",
        answer.err,
    )
    assert "site-packages" not in answer.err
    run = run_of(room, name.replace(" ", "_"))
    (end,) = read_events(run, "end")
    summary = read_json(run / "summary.json")
    for record in (end, summary):
        assert (record["status"], record["exit_code"], record["error"]) == ("failed", 1, error)


def test_json_of_a_defect_ends_with_its_end(said: dict[str, Answer]) -> None:
    assert said["json defect"].code == 1
    end = said["json defect"].json_lines[-1]
    assert (end["event"], end["status"], end["exit_code"]) == ("end", "failed", 1)


def test_the_page_of_the_job_says_why_a_fit_failed(
    room: Workspace, said: dict[str, Answer]
) -> None:
    page = (room.home / "defect.md").read_text(encoding="utf-8")
    assert "failed (exit code 1)" in page
    assert "batches are out of stock" in page


def test_a_traceback_holds_no_secret(said: dict[str, Answer]) -> None:
    answer = said["secret"]
    assert answer.code == 1
    assert answer.err.count("ValueError: invalid literal for int()") == 2
    assert "Exception in thread" in answer.err
    assert "hunter2" not in answer.err + answer.out


def test_a_fit_without_data_is_an_error_without_a_traceback(said: dict[str, Answer]) -> None:
    answer = said["no data"]
    assert (answer.code, "Traceback" in answer.err) == (2, False)
    assert re.search(r"error: .*(data|train_dataloader)", answer.err)


@pytest.mark.parametrize(
    ("name", "key"),
    [("monitor", "callbacks.early_stopping"), ("schedule", "lr_scheduler")],
    ids=["callback", "scheduler"],
)
def test_a_metric_that_a_fit_does_not_log_is_reported_with_those_that_it_logs(
    name: str, key: str, room: Workspace, said: dict[str, Answer]
) -> None:
    answer = said[name]
    assert (answer.code, "Traceback" in answer.err) == (2, False)
    assert re.search(rf"error: {re.escape(key)}.*val/los\b", answer.err)
    assert "train/loss" in answer.err
    assert read_json(run_of(room, name) / "summary.json")["status"] == "failed"


# -- standard output that is lost ------------------------------------------------------------------


@needs_full
@pytest.mark.parametrize("words", ["--help", "check -c small.yaml", "schema"])
def test_standard_output_that_cannot_be_written_is_code_74_and_one_line(
    words: str, room: Workspace
) -> None:
    with FULL.open("wb", buffering=0) as full:
        result = room.run(*words.split(), stdout=full)
        # as in a container
        at_once = room.run_cold(*words.split(), stdout=full, environ={"PYTHONUNBUFFERED": "1"})
    assert (result.code, result.err) == (at_once.code, at_once.err) == (74, f"{LOST}\n")


@needs_full
def test_where_standard_error_is_lost_too_the_exit_code_reports(room: Workspace) -> None:
    with FULL.open("wb", buffering=0) as full:
        assert room.run("--help", stdout=full, stderr=full).code == 74
        assert room.run("fitt", stderr=full).code == 2


@needs_full
def test_a_fit_whose_output_is_lost_is_on_record_and_can_be_repeated(room: Workspace) -> None:
    words = ("fit", "-c", "small.yaml", "--run.name=lost")
    with FULL.open("wb", buffering=0) as full:
        result = room.run(*words, stdout=full)
    assert (result.code, result.err.splitlines()[-1:]) == (74, [LOST])
    assert "Traceback" not in result.err
    summary = read_json(run_of(room, "lost") / "summary.json")
    assert (summary["status"], summary["exit_code"]) == ("failed", 74)
    room.run(*words, "--quiet").ok()


@pytest.mark.parametrize(
    "words", ["--help", "schema", "configs", "explain -c small.yaml", "devices"]
)
def test_a_reader_that_leaves_the_pipe_is_code_141_and_silence(words: str, room: Workspace) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as pipe:
        result = room.run(*words.split(), stdout=pipe)
    assert (result.code, result.err) == (141, "")


def test_a_reader_that_leaves_a_fit_after_a_line_is_code_141(room: Workspace) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb", buffering=0) as pipe:
        process = room.start("fit", "-c", "small.yaml", "--run.name=head", stdout=pipe)
    with os.fdopen(reading, encoding="utf-8") as lines:
        assert lines.readline().startswith("run ")
    result = process.result()
    assert (result.code, result.err) == (141, "")


@pytest.mark.parametrize(
    "words",
    [
        *(
            "--version",
            "configs",
            "devices",
            "check -c small.yaml",
            "explain trainer -c small.yaml",
        ),
        *("fit -c small.yaml --print_config", "fit -c small.yaml --run.name=closed"),
    ],
)
def test_a_closed_standard_output_is_no_error(words: str, room: Workspace) -> None:
    argv = ["lightkit", *words.split()]
    room.write(
        "closed.py",
        f"import os, sys\nos.close(1)\nsys.stdout = sys.__stdout__ = None\nsys.argv[:] = {argv!r}\n"
        "from lightkit.main import main\nsys.exit(main())\n",
    )
    result = room.run(script="closed.py")
    assert (result.code, result.err) == (0, "")


# -- devices ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def devices(room: Workspace) -> dict[str, Answer]:
    """`lightkit devices`, as text and as JSON, where CUDA shows no GPU."""
    words = {"text": ("devices",), "json": ("devices", "--json"), "wrong": ("devices", "gpus=2")}
    return run_batch(room, {name: Command(given) for name, given in words.items()})


def test_devices_prints_what_the_machine_has(devices: dict[str, Answer]) -> None:
    out = devices["text"].ok().out
    rows = [line.split()[0] for line in out.splitlines() if not line.startswith(" ")]
    assert rows == ["host", "cpu", "cores", "memory", "gpus", "xla", "horovod", "versions"]
    assert re.search(rf"^cores +{len(os.sched_getaffinity(0))} ", out, re.MULTILINE)
    assert re.search(r"^gpus +none", out, re.MULTILINE)
    assert f"torch {metadata.version('torch')}\n" in out
    assert "\x1b" not in out
    assert devices["text"].err == ""


def test_devices_as_json_is_one_object(devices: dict[str, Answer]) -> None:
    machine = json.loads(devices["json"].ok().out)
    assert {
        "schema",
        "host",
        "cpu",
        "cores",
        "memory_bytes",
        "gpus",
        "xla",
        "horovod",
        "versions",
    } <= machine.keys()
    assert machine["schema"] == 1
    assert machine["cores"] == len(os.sched_getaffinity(0))
    assert machine["gpus"] == []
    assert machine["versions"]["torch"] == metadata.version("torch")


def test_devices_takes_no_keys(devices: dict[str, Answer]) -> None:
    assert (devices["wrong"].code, devices["wrong"].out) == (2, "")
    assert re.match(r"error: devices: .*'gpus=2'", devices["wrong"].err)

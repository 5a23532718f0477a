"""What a run writes into its folder and onto the screen, if it ends well, fails or resumes."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.contract.batch import Answer, Command, run_batch
from tests.contract.conftest import Once
from tests.contract.examples import MY_PROJECT, SMALL
from tests.contract.workspace import (
    ForkServer,
    Result,
    Workspace,
    assert_same_training,
    load_checkpoint,
    read_events,
    read_json,
    read_metrics,
)

WARNING = """
import warnings

from pytorch_lightning import Callback


class Warn(Callback):
    def on_train_start(self, trainer, module):
        warnings.warn("shelves are empty")
"""
RECORDED: dict[str, Any] = {
    **SMALL,
    "callbacks": {
        "checkpoint": {"init_args": {"monitor": "val/loss", "mode": "max"}},
        "warn": {"class_path": "my_callbacks.Warn"},
    },
}
"""The best epoch is the first, since val/loss falls; so best.ckpt is not last.ckpt."""


@dataclass(frozen=True)
class Recorded:
    """A command that trained: its workspace, its run folder, and how it ended."""

    workspace: Workspace
    run: Path
    result: Result


@pytest.fixture(scope="module")
def recorded(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Recorded]:
    """A finished fit in a git repository with uncommitted changes."""
    workspace = Workspace(tmp_path_factory.mktemp("recorded") / "work", fork_server)
    workspace.write("my_project.py", MY_PROJECT)
    workspace.write("my_callbacks.py", WARNING)
    workspace.write("job.yaml", RECORDED)
    git(workspace, "init", "-q")
    git(workspace, "add", ".")
    git(
        workspace, "-c", "user.name=me", "-c", "user.email=me@example.org", "commit", "-qm", "first"
    )
    workspace.write("my_callbacks.py", WARNING + "\n")
    result = workspace.run("fit", "-c", "job.yaml").ok()
    yield Recorded(workspace, workspace.only_run, result)
    workspace.close()


@pytest.fixture(scope="module")
def failed(recorded: Recorded) -> Recorded:
    """A fit, the second run of its workspace, that fails in its second epoch."""
    words = ("--model=my_project.FailsInStep", "--model.step=8")
    result = recorded.workspace.run("fit", "-c", "job.yaml", *words)
    assert result.code == 1, result.err
    return Recorded(recorded.workspace, recorded.workspace.runs[-1], result)


@pytest.fixture(scope="module")
def replayed(
    recorded: Recorded, tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Recorded]:
    """A fit with `--quiet` of the run's config.yaml alone, in another working directory."""
    workspace = Workspace(tmp_path_factory.mktemp("replayed") / "work", fork_server)
    workspace.write("my_project.py", MY_PROJECT)
    workspace.write("my_callbacks.py", WARNING)
    workspace.write("copied.yaml", (recorded.run / "config.yaml").read_text(encoding="utf-8"))
    result = workspace.run("fit", "-c", "copied.yaml", "--quiet").ok()
    yield Recorded(workspace, workspace.only_run, result)
    workspace.close()


@pytest.fixture(scope="module")
def resumed(made_once: Once, interrupted_original: Path) -> Path:
    """The folder of a run that SIGTERM interrupted and the same command finished."""

    def resume(workspace: Workspace) -> None:
        subprocess.run(["cp", "-a", f"{interrupted_original}/.", str(workspace.folder)], check=True)
        workspace.run("fit", "-c", "small.yaml", "-c", "signal.yaml").ok()

    (run,) = made_once("resumed", resume).glob("runs/small/2*")
    return run


@pytest.fixture(scope="module")
def evaluated(made_once: Once, finished_original: Path) -> Path:
    """The folder of a finished run after `lightkit test`."""

    def evaluate(workspace: Workspace) -> None:
        subprocess.run(["cp", "-a", f"{finished_original}/.", str(workspace.folder)], check=True)
        workspace.run("test", "--run", "latest").ok()

    (run,) = made_once("evaluated", evaluate).glob("runs/small/2*")
    return run


def git(workspace: Workspace, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=workspace.folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# -- the folder ------------------------------------------------------------------------------------


def test_a_run_is_in_a_folder_of_its_own_below_the_name_of_the_config_file(
    recorded: Recorded,
) -> None:
    assert re.fullmatch(
        r"runs/job/\d{8}-\d{6}-[0-9a-f]{4,}",
        str(recorded.run.relative_to(recorded.workspace.folder)),
    )


@pytest.mark.parametrize(
    "file",
    [
        "config.yaml",
        "manifest.json",
        "events.jsonl",
        "metrics.csv",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "summary.json",
        "inputs.json",
    ],
)
@pytest.mark.parametrize("ended", ["recorded", "failed"])
def test_a_finished_and_a_failed_run_have_each_documented_file(
    ended: str, file: str, request: pytest.FixtureRequest
) -> None:
    assert (request.getfixturevalue(ended).run / file).stat().st_size > 0


@pytest.mark.parametrize("ended", ["recorded", "failed"])
def test_nothing_that_was_written_aside_is_left(ended: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(ended).run
    left = {
        file
        for file in files_below(run.parent)
        if re.search(r"(^|/)\.|(aside|tmp|part|partial|new)$", file)
    }
    assert left == set()
    assert all(
        re.search(r"\.ckpt(\.sha256)?$", path.name) for path in (run / "checkpoints").iterdir()
    )


def test_latest_is_a_relative_link_to_the_newest_run(failed: Recorded) -> None:
    link = failed.run.parent / "latest"
    assert link.readlink() == Path(failed.run.name)


def test_run_name_and_run_root_say_where_a_run_is(workspace: Workspace) -> None:
    words = ("--run.name=roses", "--run.root=elsewhere/deep", "--trainer.max_epochs=1")
    workspace.run("fit", "-c", "small.yaml", *words).ok()
    (run,) = workspace.folder.glob("elsewhere/deep/roses/2*")
    assert (run.parent / "latest").resolve() == run
    assert not (workspace.folder / "runs").exists()


NAMES = {
    "empty": "",
    "parent": "..",
    "dot": ".hidden",
    "hyphen": "-x",
    "slash": "a/b",
    "latest": "latest",
}


@pytest.fixture(scope="module")
def refused(replayed: Recorded) -> dict[str, Answer]:
    """What fits print whose `run.name` or `run.root` cannot be."""
    fit = ("fit", "-c", "copied.yaml")
    commands = {key: Command((*fit, f"--run.name={name}")) for key, name in NAMES.items()}
    return run_batch(
        replayed.workspace, {**commands, "root": Command((*fit, "--run.root=copied.yaml/x"))}
    )


@pytest.mark.parametrize("key", NAMES)
def test_a_run_name_that_no_folder_can_have_is_a_config_error(
    key: str, refused: dict[str, Answer], replayed: Recorded
) -> None:
    assert refused[key].code == 2
    assert f"error: run.name: '{NAMES[key]}' " in refused[key].err
    assert replayed.workspace.only_run == replayed.run


def test_a_run_root_that_cannot_be_made_is_a_config_error(refused: dict[str, Answer]) -> None:
    assert refused["root"].code == 2
    assert re.search(r"error: run\.root: .*copied\.yaml/x.*Not a directory", refused["root"].err)


# -- config.yaml -----------------------------------------------------------------------------------


def test_config_yaml_replays_by_itself_to_the_same_weights(
    recorded: Recorded, replayed: Recorded
) -> None:
    assert_same_training(recorded.run, replayed.run)


def test_a_replay_writes_the_same_config_yaml(recorded: Recorded, replayed: Recorded) -> None:
    first, second = (
        (run / "config.yaml").read_text(encoding="utf-8") for run in (recorded.run, replayed.run)
    )
    assert first == second


def test_config_yaml_holds_defaults_as_well_as_what_was_said(recorded: Recorded) -> None:
    config = yaml.safe_load((recorded.run / "config.yaml").read_text(encoding="utf-8"))
    assert config["trainer"]["max_epochs"] == 2
    assert config["model"] == {
        "class_path": "my_project.Net",
        "init_args": {"hidden": 8, "name": "net", "tags": None},
    }
    assert config["trainer"]["accumulate_grad_batches"] == 1


# -- manifest.json ---------------------------------------------------------------------------------


def test_the_manifest_has_versions_command_seed_and_hardware(recorded: Recorded) -> None:
    manifest = read_json(recorded.run / "manifest.json")
    assert manifest["run"] == f"job/{recorded.run.name}"
    assert manifest["subcommand"] == "fit"
    assert manifest["command"] == ["lightkit", "fit", "-c", "job.yaml"]
    assert manifest["working_directory"] == str(recorded.workspace.folder)
    assert manifest["lightkit"] == version("lightkit-train")
    assert manifest["python"] == platform.python_version()
    assert {
        name: manifest["packages"][name] for name in ("torch", "pytorch-lightning", "jsonargparse")
    } == {name: version(name) for name in ("torch", "pytorch-lightning", "jsonargparse")}
    assert manifest["seed"] == 7
    assert manifest["parent"] is None
    hardware = manifest["hardware"]
    assert (hardware["accelerator"], hardware["devices"], hardware["gpus"]) == ("cpu", 1, [])
    assert hardware["host"] == platform.node()
    assert min(hardware["cores"], hardware["memory_bytes"]) >= 1


def test_the_manifest_has_the_git_commit_and_that_files_differ_from_it(recorded: Recorded) -> None:
    found = read_json(recorded.run / "manifest.json")["git"]
    assert (found["commit"], found["dirty"]) == (git(recorded.workspace, "rev-parse", "HEAD"), True)


def test_outside_a_git_repository_the_manifest_has_no_commit(replayed: Recorded) -> None:
    assert read_json(replayed.run / "manifest.json")["git"] is None


def test_the_manifest_has_the_data_fingerprint(classifier_original: Path) -> None:
    (path,) = classifier_original.glob("runs/pictures/2*/manifest.json")
    data = read_json(path)["data"]
    assert re.search(r"[0-9a-f]{16}", data["fingerprint"])
    assert (data["source"], data["root"]) == ("photos", "pictures")
    assert sum(data["counts"].values()) == 60


def test_the_manifest_of_a_resumed_run_keeps_the_earlier_process(resumed: Path) -> None:
    manifest = read_json(resumed / "manifest.json")
    (earlier,) = manifest["earlier"]
    assert (
        earlier["command"]
        == manifest["command"]
        == ["lightkit", "fit", "-c", "small.yaml", "-c", "signal.yaml"]
    )
    assert earlier["created"] <= manifest["created"]  # to the second: both may begin in one


# -- events.jsonl ----------------------------------------------------------------------------------

NUMBER = (int, float)
EVENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "start": ("recorded", {"run": str, "stage": str}),
    "epoch": ("recorded", {"epoch": int, "step": int, "metrics": dict, "seconds": NUMBER}),
    "checkpoint": ("recorded", {"path": str, "epoch": int, "step": int, "kind": str}),
    "warning": ("recorded", {"message": str, "source": str}),
    "end": ("recorded", {"status": str, "exit_code": int, "seconds": NUMBER}),
    "resume": ("resumed", {"run": str, "stage": str, "checkpoint": str, "epoch": int, "step": int}),
    "result": ("evaluated", {"stage": str, "metrics": dict}),
}


@pytest.mark.parametrize("kind", EVENTS)
def test_an_event_has_its_documented_fields_and_its_time_in_utc(
    kind: str, request: pytest.FixtureRequest
) -> None:
    source, fields = EVENTS[kind]
    found = request.getfixturevalue(source)
    event = read_events(found if isinstance(found, Path) else found.run, kind)[0]
    assert {
        name: event[name] for name, types in fields.items() if not isinstance(event[name], types)
    } == {}
    assert datetime.fromisoformat(event["time"]).utcoffset() == timedelta(0)


def test_events_stand_in_the_order_in_which_they_happened(recorded: Recorded) -> None:
    events = read_events(recorded.run)
    assert events[0]["event"] == "start"
    assert events[-1]["event"] == "end"
    happened = [(event["event"], event.get("kind"), event.get("epoch")) for event in events]
    assert happened.index(("warning", None, None)) < happened.index(("epoch", None, 0))
    assert [each for each in happened if each[0] == "epoch"] == [
        ("epoch", None, 0),
        ("epoch", None, 1),
    ]
    assert {each for each in happened if each[0] == "checkpoint"} == {
        ("checkpoint", "best", 0),
        ("checkpoint", "last", 0),
        ("checkpoint", "last", 1),
    }
    for kind, epoch in (("best", 0), ("last", 0), ("last", 1)):
        assert happened.index(("epoch", None, epoch)) < happened.index(("checkpoint", kind, epoch))


def test_an_epoch_event_has_the_metrics_of_its_row(recorded: Recorded) -> None:
    rows = read_metrics(recorded.run)
    events = read_events(recorded.run, "epoch")
    for row, event in zip(rows, events, strict=True):
        said = {name: float(value) for name, value in row.items() if name not in ("epoch", "step")}
        assert said.items() <= event["metrics"].items()
        assert (int(row["epoch"]), int(row["step"])) == (event["epoch"], event["step"])


def test_the_events_of_a_failed_run_end_with_the_error(failed: Recorded) -> None:
    events = read_events(failed.run)
    end = events[-1]
    assert (end["event"], end["status"], end["exit_code"]) == ("end", "failed", 1)
    assert end["error"] == "ValueError: batches are out of stock"
    assert [event["epoch"] for event in events if event["event"] == "epoch"] == [0]


def test_a_resumed_run_appends_its_events_to_those_of_the_interrupted_one(resumed: Path) -> None:
    events = read_events(resumed)
    marks = [event["event"] for event in events if event["event"] in ("start", "resume", "end")]
    assert marks == ["start", "end", "resume", "end"]
    assert [event["status"] for event in events if event["event"] == "end"] == ["preempted", "done"]
    (resume,) = read_events(resumed, "resume")
    assert (resume["epoch"], resume["step"]) == (
        1,
        6,
    ), "torch's own loader resumes at the end of an epoch"
    assert (resumed / resume["checkpoint"]).suffix == ".ckpt"


# -- metrics.csv -----------------------------------------------------------------------------------


def test_metrics_csv_has_one_row_an_epoch_with_each_metric_that_was_logged(
    recorded: Recorded,
) -> None:
    rows = read_metrics(recorded.run)
    assert [(row["epoch"], row["step"]) for row in rows] == [("0", "6"), ("1", "12")]
    assert all(float(row[name]) > 0 for row in rows for name in ("train/loss", "val/loss"))


def test_metrics_csv_of_a_failed_run_has_its_complete_epochs(
    recorded: Recorded, failed: Recorded
) -> None:
    assert read_metrics(failed.run) == read_metrics(recorded.run)[:1]


def test_metrics_csv_of_a_resumed_run_has_each_epoch_once(resumed: Path) -> None:
    assert [row["epoch"] for row in read_metrics(resumed)] == ["0", "1"]


# -- checkpoints -----------------------------------------------------------------------------------


def test_each_checkpoint_has_its_digest_next_to_it_as_sha256sum_writes_it(
    recorded: Recorded,
) -> None:
    folder = recorded.run / "checkpoints"
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.ckpt")
    }
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.sha256")} == {
        f"{name}.sha256": f"{digest}  {name}\n" for name, digest in digests.items()
    }


@pytest.mark.parametrize(
    ("file", "step"), [("best.ckpt", 6), ("last.ckpt", 12)], ids=["best", "last"]
)
def test_best_ckpt_is_of_the_best_epoch_and_last_ckpt_of_the_last(
    file: str, step: int, recorded: Recorded
) -> None:
    losses = [float(row["val/loss"]) for row in read_metrics(recorded.run)]
    assert losses[0] > losses[1], "the first epoch has to be the best by mode max"
    assert load_checkpoint(recorded.run / "checkpoints" / file)["global_step"] == step


# -- summary.json ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def summary(recorded: Recorded) -> dict[str, Any]:
    """What summary.json of the finished run holds."""
    content: dict[str, Any] = read_json(recorded.run / "summary.json")
    return content


@pytest.fixture(scope="module")
def summary_schema(recorded: Recorded) -> dict[str, Any]:
    """What `lightkit schema --summary` prints."""
    schema: dict[str, Any] = json.loads(recorded.workspace.run("schema", "--summary").ok().out)
    return schema


def test_the_summary_says_how_the_run_ended(summary: dict[str, Any], recorded: Recorded) -> None:
    assert (summary["schema"], summary["run"]) == (1, f"job/{recorded.run.name}")
    assert (summary["status"], summary["exit_code"], summary["error"], summary["stopped_by"]) == (
        "done",
        0,
        None,
        None,
    )
    assert (summary["epochs"], summary["steps"]) == (2, 12)
    started, ended = (datetime.fromisoformat(summary[name]) for name in ("started", "ended"))
    assert started <= ended


def test_the_summary_has_the_metrics_of_the_best_and_of_the_last_epoch(
    summary: dict[str, Any], recorded: Recorded
) -> None:
    first, last = read_metrics(recorded.run)
    assert summary["best"] == {
        "monitor": "val/loss",
        "mode": "max",
        "value": float(first["val/loss"]),
        "epoch": 0,
        "step": 6,
    }
    assert summary["metrics"]["best"]["val/loss"] == float(first["val/loss"])
    assert summary["metrics"]["last"]["val/loss"] == float(last["val/loss"])
    assert summary["metrics"]["last"]["train/loss"] == float(last["train/loss"])


def test_the_paths_of_the_summary_are_files_of_the_run(
    summary: dict[str, Any], recorded: Recorded
) -> None:
    paths = {name: (recorded.run / path).resolve() for name, path in summary["paths"].items()}
    assert paths["best_checkpoint"] == recorded.run / "checkpoints" / "best.ckpt"
    assert paths["last_checkpoint"] == recorded.run / "checkpoints" / "last.ckpt"
    assert {name for name, path in paths.items() if not path.is_file()} == set()


def test_the_summary_has_durations_and_throughput(summary: dict[str, Any]) -> None:
    assert 0 < summary["durations"]["fit"] <= summary["durations"]["total"]
    assert summary["throughput"]["samples_per_s"] > 0


def test_the_summary_of_a_failed_run_has_the_error_and_what_was_done_before(
    failed: Recorded,
) -> None:
    summary = read_json(failed.run / "summary.json")
    assert (summary["status"], summary["exit_code"]) == ("failed", 1)
    assert summary["error"] == "ValueError: batches are out of stock"
    assert summary["epochs"] == 1
    assert summary["metrics"]["last"]["epoch"] == 0
    assert (failed.run / summary["paths"]["last_checkpoint"]).is_file()


def test_a_later_stage_adds_its_result_to_the_summary(
    evaluated: Path, finished_original: Path
) -> None:
    before, after = (
        read_json(folder / "summary.json")
        for folder in (*finished_original.glob("runs/small/2*"), evaluated)
    )
    assert (before["stages"], after["stages"]) == ({}, read_results(evaluated))
    assert after["durations"]["test"] > 0
    assert {name: after[name] for name in ("metrics", "best", "epochs")} == {
        name: before[name] for name in ("metrics", "best", "epochs")
    }


def read_results(run: Path) -> dict[str, Any]:
    return {event["stage"]: event["metrics"] for event in read_events(run, "result")}


@pytest.mark.parametrize("ended", ["recorded", "failed", "interrupted_original", "evaluated"])
def test_the_summary_follows_the_schema_that_lightkit_prints(
    ended: str, summary_schema: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    made = request.getfixturevalue(ended)
    run = made if isinstance(made, Path) else made.run
    (path,) = (
        [run / "summary.json"]
        if (run / "summary.json").exists()
        else run.glob("runs/small/2*/summary.json")
    )
    jsonschema.validate(read_json(path), summary_schema)


# -- the screen ------------------------------------------------------------------------------------


def test_the_heading_says_the_run_its_data_its_model_and_the_device(recorded: Recorded) -> None:
    head = recorded.result.out.partition("epoch 0 (1 of 2)")[0]
    assert re.search(rf"^run +runs/job/{recorded.run.name}$", head, re.MULTILINE)
    assert re.search(r"^data +Points", head, re.MULTILINE)
    assert re.search(r"^model +Net\b.*41 parameters", head, re.MULTILINE)
    assert re.search(r"^on +CPU", head, re.MULTILINE)


def test_in_a_pipe_there_is_one_line_an_epoch_with_its_metrics(recorded: Recorded) -> None:
    lines = [line for line in recorded.result.out.splitlines() if line.startswith("epoch ")]
    for number, (line, row) in enumerate(zip(lines, read_metrics(recorded.run), strict=True)):
        assert line.startswith(f"epoch {number} ({number + 1} of 2) ")
        for name in ("train/loss", "val/loss"):
            (shown,) = re.findall(rf"{name} ([\d.]+)", line)
            assert float(shown) == pytest.approx(float(row[name]), rel=0.01)


def test_warnings_are_on_standard_error_and_in_the_events(recorded: Recorded) -> None:
    assert recorded.result.err == "warning: shelves are empty\n"
    assert [event["message"] for event in read_events(recorded.run, "warning")] == [
        "shelves are empty"
    ]


def test_quiet_prints_warnings_only(replayed: Recorded) -> None:
    assert (replayed.result.out, replayed.result.err) == ("", "warning: shelves are empty\n")


def test_the_start_event_names_the_checkpoint_that_is_loaded(finished: Workspace) -> None:
    finished.run("test", "--run", "latest").ok()
    finished.run("validate", "--run", "latest", "--ckpt_path=last").ok()
    starts = {
        event["stage"]: event["checkpoint"] for event in read_events(finished.only_run, "start")
    }
    assert starts == {
        "fit": None,
        "test": "checkpoints/best.ckpt",
        "validate": "checkpoints/last.ckpt",
    }

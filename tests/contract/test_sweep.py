"""`lightkit sweep` with real trainings; `tests/sweep` holds more promises, with trials of a tenth of a second."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.contract.conftest import Once, copy_of
from tests.contract.examples import SMALL
from tests.contract.test_tasks import row_job, write_rows
from tests.contract.workspace import Workspace, read_events, read_json, read_metrics, session_members, wait_until_gone
from tests.receiving import receiving

pytestmark = pytest.mark.timeout(1800)

pytest.importorskip("optuna", reason="needs the extra lightkit[sweep]")
GRID: dict[str, Any] = {"sweep": {"metric": "val/loss", "sampler": "grid", "space": {"model.hidden": [4, 16]}}}
SWEEP = ("sweep", "-c", "small.yaml", "-c", "grid.yaml")


def read_ends(workspace: Workspace) -> list[dict[str, Any]]:
    """Read how the trials of the one sweep have ended."""
    (path,) = workspace.folder.glob("sweeps/*/trials.jsonl")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["event"] == "end"]


def select(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Select what does not depend on the clock."""
    return [{key: value for key, value in line.items() if key not in ("time", "run", "seconds")} for line in lines]


@pytest.fixture(scope="module")
def original(made_once: Once) -> Path:
    """A sweep of three trials, after a fit of the config itself."""

    def fill(workspace: Workspace) -> None:
        workspace.write("grid.yaml", GRID)
        workspace.fit("-c", "small.yaml", "--run.name=alone")
        process = workspace.start(*SWEEP, cold=True)
        process.wait_for(lambda: list(workspace.folder.glob("runs/small/*/events.jsonl")))
        maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
        workspace.write("maps.txt", "\n".join(line for line in maps.splitlines() if "libtorch" in line))
        workspace.write("printed.txt", process.result().ok().out)

    return made_once("sweep", fill)


@pytest.fixture
def swept(original: Path, workspace: Workspace) -> Workspace:
    """A copy of it."""
    return copy_of(original, workspace)


def test_the_first_trial_trains_as_fit_does_and_each_has_its_value_from_its_best_checkpoint(swept: Workspace) -> None:
    (alone,) = swept.folder.glob("runs/alone/2*")
    trials = [swept.folder / "runs" / line["run"] for line in read_ends(swept)]
    assert len(trials) == 3
    assert read_metrics(trials[0]) == read_metrics(alone)
    for line, run in zip(read_ends(swept), trials, strict=True):
        assert line["value"] == read_json(run / "summary.json")["best"]["value"]
    assert [line["params"] for line in read_ends(swept)] == [41, 21, 81]  # 3 inputs and 1 output


def test_what_a_sweep_finds_is_a_layer_of_the_config(swept: Workspace) -> None:
    best = min(read_ends(swept), key=lambda line: float(line["value"]))
    printed = swept.run("fit", "-c", "small.yaml", "-c", "sweeps/small/best.yaml", "--print_config").yaml
    (run,) = swept.folder.glob(f"runs/{best['run']}")
    assert printed["model"] == swept.run("fit", "-c", f"{run}/config.yaml", "--print_config").yaml["model"]
    assert "sweep" not in printed


@pytest.mark.long
def test_a_killed_sweep_resumes_the_trial_at_its_batch(swept: Workspace) -> None:
    before = select(read_ends(swept))
    swept.write("small.yaml", {**SMALL, "callbacks": {"hold": {"class_path": "my_project.Hold"}}})
    for path in (*swept.folder.glob("sweeps"), *swept.folder.glob("runs/small")):
        path.rename(path.with_name(f".{path.name}-before"))
    (swept.folder / "hold").write_text("2", encoding="utf-8")
    process = swept.start(*SWEEP)
    process.wait_for((swept.folder / "held").exists)
    process.signal(signal.SIGKILL)
    process.result()
    trials = [psutil.Process(pid) for pid in session_members(process.pid)]
    for step in range(3, 12):  # one batch at a time, until the end of one comes after the signal
        (swept.folder / "hold").write_text(str(step), encoding="utf-8")
        if not psutil.wait_procs(trials, timeout=0.5)[1]:
            break
    wait_until_gone(process.pid)
    (swept.folder / "hold").unlink()
    swept.run(*SWEEP).ok()
    assert select(read_ends(swept)) == before
    first = swept.folder / "runs" / read_ends(swept)[0]["run"]
    (resume,) = read_events(first, "resume")
    assert 2 < resume["step"] < 12


@pytest.mark.long
def test_two_ranks_stop_at_the_end_of_an_epoch_where_their_sweep_says_so(workspace: Workspace) -> None:
    space = {"model.hidden": [8, 9, 10, 11, 12, 1]}
    sweep = {**GRID["sweep"], "space": space, "pruner": {"kind": "median", "warmup_epochs": 1}}
    workspace.write("grid.yaml", {"sweep": sweep, "accelerator": {"strategy": "ddp"}, "launch": {"processes": 2}})
    workspace.run(*SWEEP, "--trainer.max_epochs=4", timeout_s=900).ok()
    pruned = [line for line in read_ends(workspace) if line["state"] == "pruned"]
    for line in pruned:
        run = workspace.folder / "runs" / line["run"]
        assert read_json(run / "summary.json")["status"] == "pruned"
        assert len(read_events(run, "epoch")) == len(line["values"])
    assert len(pruned) >= 1


NOTIFIER = {"class_path": "WebhookNotifier", "init_args": {"webhook_url": "${oc.env:WEBHOOK_URL}"}}


def test_a_sweep_of_rows_tests_its_trials_and_sends_one_message_for_all_of_them(workspace: Workspace) -> None:
    write_rows(workspace)
    config = {
        "seed_everything": 7,
        **row_job({"target": "kind", "ignore": ["price"]}),
        "accelerator": "cpu",
        "callbacks": {"hook": NOTIFIER},
        "trainer": {"max_epochs": 1, "logger": False, "callbacks": [NOTIFIER]},
        "run": {"heartbeat_url": "${oc.env:HEARTBEAT_URL}"},
        "sweep": {
            "sampler": "grid",
            "space": {"model.learning_rate": [0.05]},
            "constraints": {"test/accuracy": {"min": 0}},
        },
    }
    workspace.write("rows.yaml", config)
    with receiving() as receiver:
        environ = {"WEBHOOK_URL": receiver.url("hook"), "HEARTBEAT_URL": receiver.url("beat")}
        printed = workspace.run("sweep", "-c", "rows.yaml", environ=environ, timeout_s=600).ok()
    lines = read_ends(workspace)
    assert [line["state"] for line in lines] == ["complete", "complete"], printed.out
    runs = [workspace.folder / "runs" / line["run"] for line in lines]
    for line, run in zip(lines, runs, strict=True):
        summary = read_json(run / "summary.json")
        assert line["value"] == summary["best"]["value"]
        assert summary["stages"]["test"]["test/accuracy"] == line["constraints"]["test/accuracy"]
    rates = [yaml.safe_load((run / "config.yaml").read_text())["model"]["init_args"]["learning_rate"] for run in runs]
    assert rates[0] != rates[1] == 0.05

    # each of the two notifiers has sent one message, of the sweep
    messages = [request.json for request in receiver.of("hook")]
    assert [[each[key] for key in ("kind", "status", "stage", "job")] for each in messages] == [
        ["end", "done", "sweep", "rows"]
    ] * 2
    best = min(float(line["value"]) for line in lines)
    assert [each["best"] for each in messages] == [{"monitor": "val/loss", "value": best}] * 2
    assert [request.path for request in receiver.of("beat")] == ["/beat/*/start", "/beat/*"]


def test_the_process_of_a_sweep_has_no_torch(swept: Workspace) -> None:
    assert (swept.folder / "maps.txt").read_text(encoding="utf-8") == ""
    assert "best  trial" in (swept.folder / "printed.txt").read_text(encoding="utf-8")


MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "a key that the class has not": (
        {"model.hiden": [4, 8]},
        {},
        ["sweep.space.model.hiden: ", "has no such argument; did you mean 'hidden'?", "grid.yaml:"],
    ),
    "a type that the key has not": ({"model.hidden": [4, "many"]}, {}, ["sweep.space.model.hidden: ", "an integer"]),
    "a value that the class refuses": ({"model.hidden": {"int": [0, 8]}}, {}, ["sweep.space.model.hidden: ", "got 0"]),
    "a condition that never holds": (
        {"model.hidden": [4], "model.learning_rate": {"log": [0.1, 1], "when": {"model.hidden": [5]}}},
        {},
        ["sweep.space.model.learning_rate.when: it never holds: model.hidden is never 5"],
    ),
    "a pruner that can never prune": (
        {"model.hidden": [4]},
        {"pruner": {"kind": "median", "warmup_epochs": 20}, "trials": 20},
        ["sweep.pruner: it can never prune: warmup_epochs is 20, and a trial has trainer.max_epochs=20"],
    ),
    "fewer trials than the median needs": (
        {"model.hidden": [4]},
        {"pruner": "median", "trials": 5},
        ["sweep.pruner: it can never prune: the median needs 5 complete trials before it, and sweep.trials is 5"],
    ),
    "a range the wrong way round": (
        {"model.learning_rate": {"log": [1, 0.1]}},
        {},
        ["sweep.space.model.learning_rate: the least value, 1, is above the greatest, 0.1"],
    ),
    "a grid of a range": (
        {"model.learning_rate": {"float": [0, 1]}},
        {"sampler": "grid"},
        ["sweep.space.model.learning_rate: a grid needs a list of values, or a range with a step"],
    ),
    "a kind that there is not": ({"model.hidden": {"itn": [4, 8]}}, {}, ["did you mean 'int'?"]),
    "a metric of the test split": (
        {"model.hidden": [4]},
        {"metric": "test/loss"},
        ["sweep.metric: expected a metric of the validation split"],
    ),
    "a layer that is not there": ({"regime": {"layers": ["none.yaml"]}}, {}, ["none.yaml: no such file"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_section_is_one_error_at_its_place(name: str, workspace: Workspace) -> None:
    space, more, texts = MISTAKES[name]
    workspace.write("grid.yaml", {"sweep": {"metric": "val/loss", "space": space, **more}})
    words = ("-c", "lightkit:temperatures", "-c", "grid.yaml")
    for command in ("check", "sweep"):
        result = workspace.run(command, *words)
        assert result.code == 2, result.out
        assert result.err.count("error: ") == 1, result.err
        for text in texts:
            assert text in result.err
        assert "grid.yaml:" in result.err
    assert not (workspace.folder / "sweeps").exists()


def test_a_searched_key_that_a_flag_sets_is_an_error(workspace: Workspace) -> None:
    workspace.write("grid.yaml", GRID)
    result = workspace.run("check", "-c", "lightkit:temperatures", "-c", "grid.yaml", "--model.hidden=3")
    assert result.code == 2
    assert "model.hidden is searched (sweep.space), and is set by --model.hidden=3" in result.err


def test_a_deep_check_finds_a_metric_of_a_sweep_that_nothing_logs(workspace: Workspace) -> None:
    workspace.write("grid.yaml", {"sweep": {**GRID["sweep"], "metric": "val/los"}})
    result = workspace.run("check", "-c", "small.yaml", "-c", "grid.yaml", "--deep")
    assert result.code == 2
    assert "'val/los' is never logged; did you mean 'val/loss'" in result.err


def test_a_fit_passes_a_sweep_over(workspace: Workspace) -> None:
    workspace.write("grid.yaml", GRID)
    printed = workspace.run("fit", "-c", "small.yaml", "-c", "grid.yaml", "--run.name=small", "--print_config").yaml
    assert printed == workspace.run("fit", "-c", "small.yaml", "--print_config").yaml

"""`lightkit sweep` with real trainings.

`tests/sweep` holds more promises, with trials of a tenth of a second.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.contract.conftest import Once, copy_of
from tests.contract.data_cases import pictures_config, write_given_splits
from tests.contract.examples import SMALL
from tests.contract.fault_examples import MY_FAULTS
from tests.contract.test_front_terminal import look
from tests.contract.test_tasks import row_job, write_rows, write_texts
from tests.contract.workspace import (
    Workspace,
    read_events,
    read_json,
    read_metrics,
    session_members,
    wait_until_gone,
)
from tests.receiving import receiving

pytestmark = pytest.mark.timeout(1800)

pytest.importorskip("optuna", reason="needs the extra lightkit[sweep]")
GRID: dict[str, Any] = {
    "sweep": {"metric": "val/loss", "sampler": "grid", "space": {"model.hidden": [4, 16]}}
}
SWEEP = ("sweep", "-c", "small.yaml", "-c", "grid.yaml")


def read_ends(workspace: Workspace) -> list[dict[str, Any]]:
    """Read how the trials of the one sweep have ended."""
    (path,) = workspace.folder.glob("sweeps/*/trials.jsonl")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["event"] == "end"]


def select(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Select what does not depend on the clock."""
    return [
        {key: value for key, value in line.items() if key not in ("time", "run", "seconds")}
        for line in lines
    ]


@pytest.fixture(scope="module")
def original(made_once: Once) -> Path:
    """A sweep of three trials, after a fit of the config itself."""

    def fill(workspace: Workspace) -> None:
        workspace.write("grid.yaml", GRID)
        workspace.fit("-c", "small.yaml", "--run.name=alone")
        process = workspace.start(*SWEEP, cold=True)
        process.wait_for(lambda: list(workspace.folder.glob("runs/small/*/events.jsonl")))
        maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
        workspace.write(
            "maps.txt", "\n".join(line for line in maps.splitlines() if "libtorch" in line)
        )
        workspace.write("printed.txt", process.result().ok().out)

    return made_once("sweep", fill)


@pytest.fixture
def swept(original: Path, workspace: Workspace) -> Workspace:
    """A copy of it."""
    return copy_of(original, workspace)


def test_the_first_trial_trains_as_fit_does_and_each_has_its_value_from_its_best_checkpoint(
    swept: Workspace,
) -> None:
    (alone,) = swept.folder.glob("runs/alone/2*")
    trials = [swept.folder / "runs" / line["run"] for line in read_ends(swept)]
    assert len(trials) == 3
    assert read_metrics(trials[0]) == read_metrics(alone)
    for line, run in zip(read_ends(swept), trials, strict=True):
        assert line["value"] == read_json(run / "summary.json")["best"]["value"]
    assert [line["params"] for line in read_ends(swept)] == [41, 21, 81]  # 3 inputs and 1 output


def test_what_a_sweep_finds_is_a_layer_of_the_config(swept: Workspace) -> None:
    best = min(read_ends(swept), key=lambda line: float(line["value"]))
    printed = swept.run(
        "fit", "-c", "small.yaml", "-c", "sweeps/small/best.yaml", "--print_config"
    ).yaml
    (run,) = swept.folder.glob(f"runs/{best['run']}")
    assert (
        printed["model"]
        == swept.run("fit", "-c", f"{run}/config.yaml", "--print_config").yaml["model"]
    )
    assert "sweep" not in printed


@pytest.mark.long
def test_a_killed_sweep_resumes_the_trial_at_its_batch(workspace: Workspace) -> None:
    # of lightkit's loader, which resumes within an epoch
    data = {"class_path": "Temperatures", "init_args": {"num_samples": 96, "batch_size": 8}}
    hold = {"hold": {"class_path": "my_project.Hold"}}
    job = {**SMALL, "model": {"class_path": "Regressor"}, "data": data, "callbacks": hold}
    workspace.write("small.yaml", job)
    workspace.write("grid.yaml", GRID)
    workspace.run(*SWEEP).ok()
    before = select(read_ends(workspace))
    for path in (*workspace.folder.glob("sweeps"), *workspace.folder.glob("runs/small")):
        path.rename(path.with_name(f".{path.name}-before"))

    (workspace.folder / "hold").write_text("2", encoding="utf-8")
    process = workspace.start(*SWEEP)
    process.wait_for((workspace.folder / "held").exists)
    process.signal(signal.SIGKILL)
    process.result()
    trials = [psutil.Process(pid) for pid in session_members(process.pid)]
    for step in range(3, 12):  # one batch at a time, until the end of one comes after the signal
        (workspace.folder / "hold").write_text(str(step), encoding="utf-8")
        if not psutil.wait_procs(trials, timeout=0.5)[1]:
            break
    wait_until_gone(process.pid)
    (workspace.folder / "hold").unlink()

    workspace.run(*SWEEP).ok()
    assert select(read_ends(workspace)) == before
    first = workspace.folder / "runs" / read_ends(workspace)[0]["run"]
    (resume,) = read_events(first, "resume")
    assert 2 < resume["step"] < 12


def test_a_sweep_does_not_go_on_with_other_data(workspace: Workspace) -> None:
    workspace.write("my_faults.py", MY_FAULTS)
    workspace.write("data.txt", "one")
    workspace.write("grid.yaml", GRID)
    hold = {"hold": {"class_path": "my_project.Hold"}}
    job = {**SMALL, "data": {"class_path": "my_faults.Described"}, "callbacks": hold}
    workspace.write("small.yaml", job)

    # A trial that is interrupted in its second epoch is not resumed.
    (workspace.folder / "hold").write_text("8", encoding="utf-8")
    process = workspace.start(*SWEEP)
    process.wait_for((workspace.folder / "held").exists)
    process.signal(signal.SIGTERM)
    (workspace.folder / "hold").unlink()
    assert process.result().code == 75
    (run,) = workspace.folder.glob("runs/small/2*")
    saved = (run / "checkpoints" / "last.ckpt").read_bytes()
    saved_step = read_events(run, "checkpoint")[-1]["step"]
    workspace.write("data.txt", "two")
    refused = workspace.run(*SWEEP)
    assert refused.code == 3, refused.out
    assert "the data has changed since the earlier trials of small (fingerprint" in refused.err
    assert "delete sweeps/small" in refused.err
    assert (run / "checkpoints" / "last.ckpt").read_bytes() == saved
    assert read_ends(workspace) == []

    # It goes on with the data of before; then a new trial on other data is refused.
    workspace.write("data.txt", "one")
    workspace.run(*SWEEP, "--sweep.trials=1").ok()
    (resume,) = read_events(run, "resume")
    assert resume["step"] == saved_step >= 6
    workspace.write("data.txt", "two")
    assert workspace.run(*SWEEP).code == 3
    assert [line["trial"] for line in read_ends(workspace)] == [0]
    workspace.write("data.txt", "one")
    workspace.run(*SWEEP).ok()
    ends = read_ends(workspace)
    assert [line["state"] for line in ends] == ["complete"] * 3
    assert len({line["data"] for line in ends}) == 1


@pytest.mark.long
def test_two_ranks_stop_at_the_end_of_an_epoch_where_their_sweep_says_so(
    workspace: Workspace,
) -> None:
    space = {"model.hidden": [8, 9, 10, 11, 12, 1]}
    sweep = {**GRID["sweep"], "space": space, "pruner": {"kind": "median", "warmup_epochs": 1}}
    workspace.write(
        "grid.yaml",
        {"sweep": sweep, "accelerator": {"strategy": "ddp"}, "launch": {"processes": 2}},
    )
    workspace.run(*SWEEP, "--trainer.max_epochs=4", timeout_s=900).ok()
    pruned = [line for line in read_ends(workspace) if line["state"] == "pruned"]
    for line in pruned:
        run = workspace.folder / "runs" / line["run"]
        assert read_json(run / "summary.json")["status"] == "pruned"
        assert len(read_events(run, "epoch")) == len(line["values"])
    assert len(pruned) >= 1


ODD = '''\
"""A network and a callback of a user who searches odd values."""

import os
import signal
import time

from my_project import Hold, Net


class Odd(Net):
    """A network that fails in a way that can be chosen.

    Args:
        odd: How it fails.
    """

    def __init__(self, odd: str = "no"):
        super().__init__()
        self.odd = odd
        if odd == "refused":
            raise ValueError("[/red] is out of stock")

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        if self.global_step == 8 and self.odd == "hangs":
            time.sleep(3600)
        if self.global_step == 8 and self.odd == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return loss * float("nan") if self.odd == "nan" else loss

    def validation_step(self, batch, index):
        loss = self._loss(batch)
        self.log("val/loss", loss * float("nan") if self.odd == "nan of validation" else loss)


class HoldWide(Hold):
    """Waits as `Hold` does, in a network of 16."""

    def on_train_batch_start(self, trainer, module, batch, index):
        if module.hparams.hidden == 16:
            super().on_train_batch_start(trainer, module, batch, index)
'''


FAILURES = {
    "refused": "ValueError: [/red] is out of stock",
    "nan": "The loss of epoch 0, step 0, batch 0 is nan",
    "nan of validation": "was never finite",
    "hangs": "nothing was finished",
    "killed": "killed by SIGKILL: most likely no memory was left",
}
"""Why the trial of each value fails."""


def write_odd(workspace: Workspace, *values: str) -> tuple[str, ...]:
    """Write a sweep of a network that fails with some of its values; return its words."""
    workspace.write("my_odd.py", ODD)
    job = {**SMALL, "model": {"class_path": "my_odd.Odd"}, "watchdog": {"floor_s": 5}}
    sweep = {"metric": "val/loss", "sampler": "grid", "space": {"model.odd": list(values)}}
    workspace.write("odd.yaml", {**job, "sweep": sweep})
    return ("sweep", "-c", "odd.yaml")


def test_a_value_that_crashes_hangs_or_is_not_finite_fails_its_trial_alone(
    workspace: Workspace,
) -> None:
    printed = workspace.run(*write_odd(workspace, *FAILURES), timeout_s=600).ok()
    lines = read_ends(workspace)
    assert [line["state"] for line in lines] == [
        "complete",
        *["failed"] * len(FAILURES),
    ], printed.out
    for line, says in zip(lines[1:], FAILURES.values(), strict=True):
        assert says in line["reason"]
        assert line["value"] is None
    shown = [line for line in printed.out.splitlines() if line.startswith("trial ")]
    assert [line.partition(":")[0] for line in shown] == [
        f"trial {number}" for number in range(len(lines))
    ]
    assert "gain  none: no trial beat the config itself" in printed.out
    assert "Traceback" not in printed.err
    starts = [
        len(list(read_events(workspace.folder / "runs" / line["run"], "resume")))
        for line in lines[-2:]
    ]
    assert starts == [1, 1], "what hangs or is killed is tried once more, from its checkpoint"


def test_a_terminal_shows_a_table_of_the_trials_until_the_result(workspace: Workspace) -> None:
    written, screen = look(workspace, 100, *write_odd(workspace, "refused", "fine"))
    assert "trial  state " in written
    assert "[/red] is out of stock" in written, "brackets are no markup"
    assert " running " in written
    seen = "\n".join(screen.lines)
    assert "trial  state " not in seen, "the table makes room for the result"
    assert "best  trial 0: val/loss " in seen
    assert "report sweeps/odd/report.html" in seen


def test_layers_are_searched_as_values_are_and_a_condition_may_name_one(
    workspace: Workspace,
) -> None:
    workspace.write("layers/short.yaml", {"trainer": {"max_epochs": 1}})
    workspace.write("layers/large.yaml", {"data": {"init_args": {"batch_size": 16}}})
    space = {
        "regime": {"layers": ["layers/short.yaml", "layers/large.yaml"]},
        "model.hidden": {"choice": [4, 5], "when": {"regime": ["layers/large.yaml"]}},
    }
    workspace.write("grid.yaml", {"sweep": {**GRID["sweep"], "space": space}})
    workspace.run(*SWEEP, timeout_s=600).ok()
    found = []
    for line in read_ends(workspace):
        run = workspace.folder / "runs" / line["run"]
        config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
        hidden = config["model"]["init_args"].get("hidden")
        found.append(
            (config["trainer"]["max_epochs"], config["data"]["init_args"].get("batch_size"), hidden)
        )
        assert len(read_metrics(run)) == config["trainer"]["max_epochs"]
    assert [(epochs, size or 8, hidden or 8) for epochs, size, hidden in found] == [
        (2, 8, 8),
        (1, 8, 8),
        (2, 16, 4),
        (2, 16, 5),
    ]
    best = min(read_ends(workspace), key=lambda line: float(line["value"]))
    workspace.run(
        "fit", "-c", "small.yaml", "-c", "sweeps/small/best.yaml", "--run.name=again"
    ).ok()
    again = read_json(workspace.folder / "runs" / "again" / "latest" / "summary.json")
    assert again["best"]["value"] == best["value"]


SHIPPED = {
    "texts": (
        "-c",
        "lightkit:text",
        "--data.path=texts.csv",
        "--data.batch_size=4",
        "--model.buckets=4096",
    ),
    "masks": (
        *(
            "-c",
            "lightkit:masks",
            "--data.num_images=60",
            "--data.drawn_size=32",
            "--data.image_size=32",
        ),
        "--model.width=4",
    ),
}


@pytest.mark.parametrize("kind", ["texts", pytest.param("masks", marks=pytest.mark.long)])
def test_a_sweep_of_texts_and_of_masks_has_the_values_of_its_runs(
    kind: str, workspace: Workspace
) -> None:
    write_texts(workspace)
    words = (
        *SHIPPED[kind],
        "--run.name=job",
        "--trainer.max_epochs=2",
        "--trainer.accelerator=cpu",
    )
    rates = {0.0001, 0.05}
    space = ("--space", f"model.learning_rate={','.join(map(str, sorted(rates)))}")
    printed = workspace.run("sweep", *words, *space, timeout_s=900).ok()
    lines = read_ends(workspace)
    assert [line["state"] for line in lines] == ["complete"] * 3, printed.out
    found = {}
    modes = set()
    for line in lines:
        run = workspace.folder / "runs" / line["run"]
        best = read_json(run / "summary.json")["best"]
        assert line["value"] == best["value"]
        assert line["values"][str(best["epoch"])] == best["value"]
        modes.add((best["monitor"], best["mode"]))
        found[line["trial"]] = yaml.safe_load((run / "config.yaml").read_text())["model"][
            "init_args"
        ]["learning_rate"]
    assert {found[1], found[2]} == rates
    ((metric, mode),) = modes
    choose = {"min": min, "max": max}[mode]
    best = choose(lines, key=lambda line: float(line["value"]))
    assert f"best  trial {best['trial']}: {metric} {best['value']:.4g}" in printed.out
    layer = yaml.safe_load(
        (workspace.folder / "sweeps" / "job" / "best.yaml").read_text(encoding="utf-8")
    )
    assert layer == ({} if best["trial"] == 0 else {"model.learning_rate": found[best["trial"]]})


def test_gc_keeps_the_runs_of_a_sweep_until_it_is_finished(workspace: Workspace) -> None:
    workspace.write("grid.yaml", GRID)
    workspace.write("my_odd.py", ODD)
    workspace.write(
        "small.yaml", {**SMALL, "callbacks": {"hold": {"class_path": "my_odd.HoldWide"}}}
    )
    workspace.write("hold", "8")
    process = workspace.start(*SWEEP)
    process.wait_for((workspace.folder / "held").exists)
    for pid in session_members(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.result()
    wait_until_gone(process.pid)
    (workspace.folder / "hold").unlink()
    trials = workspace.runs
    assert len(trials) == 3
    assert [line["trial"] for line in read_ends(workspace)] == [0, 1]
    # after which no fit goes on with a trial
    newest = workspace.fit("-c", "small.yaml", "--seed_everything=8")

    printed = json.loads(workspace.run("gc", "--keep-last=0", "--json").ok().out)
    assert printed["deleted"] == []
    kept = {
        name: reason for name, reason in printed["kept"].items() if name != f"small/{newest.name}"
    }
    assert kept == {f"small/{run.name}": "its sweep is not finished" for run in trials}
    assert workspace.runs == [*trials, newest]

    workspace.run(*SWEEP).ok()
    assert [f"small/{run.name}" for run in trials] == [line["run"] for line in read_ends(workspace)]
    assert [event["step"] for event in read_events(trials[2], "resume")] == [6]
    workspace.run("gc", "--keep-last=0").ok()
    assert workspace.runs == [newest]


def test_trials_share_the_features_of_a_frozen_backbone(workspace: Workspace) -> None:
    write_given_splits(workspace.folder / "pictures", per_class=(4, 2, 1))
    config = pictures_config(augment=False, cache="none", trainer={"max_epochs": 1})
    model = {
        "class_path": "ImageClassifier",
        "init_args": {"freeze": "backbone", "features": "once"},
    }
    sweep = {
        "metric": "val/loss",
        "sampler": "grid",
        "space": {"model.learning_rate": [0.01, 0.02]},
    }
    workspace.write("once.yaml", {**config, "model": model, "sweep": sweep})
    workspace.run("sweep", "-c", "once.yaml", timeout_s=600).ok()
    assert len(read_ends(workspace)) == 3
    kept = list(workspace.home.glob(".cache/lightkit/features/*.rows"))
    assert len(kept) == 2, "one file of each split for all trials"
    for line in read_ends(workspace):
        summary = read_json(workspace.folder / "runs" / line["run"] / "summary.json")
        assert summary["throughput"]["features_per_s"] > 0


@pytest.mark.long
def test_trials_are_below_their_sweep_in_mlflow(workspace: Workspace) -> None:
    from mlflow import MlflowClient  # here: it takes two seconds

    workspace.write("grid.yaml", GRID)
    trainer = {**SMALL["trainer"]}
    del trainer["logger"]
    workspace.write(
        "small.yaml", {**SMALL, "trainer": trainer, "logger": {"mlflow": {"class_path": "MLflow"}}}
    )
    workspace.run(*SWEEP, timeout_s=600).ok()
    client = MlflowClient(f"sqlite:///{workspace.folder}/runs/mlflow.db")
    (experiment,) = [each for each in client.search_experiments() if each.name == "small"]
    found = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in found if "mlflow.parentRunId" not in run.data.tags]
    children = {run.data.tags["lightkit.trial"]: run for run in found if run is not parent}
    assert {run.data.tags["mlflow.parentRunId"] for run in children.values()} == {
        parent.info.run_id
    }
    values = {str(line["trial"]): line["value"] for line in read_ends(workspace)}
    assert children.keys() == values.keys()
    assert parent.data.metrics["val/loss"] == min(values.values())
    assert values[parent.data.tags["lightkit.best_trial"]] == min(values.values())


NOTIFIER = {"class_path": "WebhookNotifier", "init_args": {"webhook_url": "${oc.env:WEBHOOK_URL}"}}


def test_a_sweep_of_rows_tests_its_trials_and_sends_one_message_for_all_of_them(
    workspace: Workspace,
) -> None:
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
    rates = [
        yaml.safe_load((run / "config.yaml").read_text())["model"]["init_args"]["learning_rate"]
        for run in runs
    ]
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
    "a type that the key has not": (
        {"model.hidden": [4, "many"]},
        {},
        ["sweep.space.model.hidden: ", "an integer"],
    ),
    "a value that the class refuses": (
        {"model.hidden": {"int": [0, 8]}},
        {},
        ["sweep.space.model.hidden: ", "got 0"],
    ),
    "a wrong value behind a hundred right ones": (
        {"model.learning_rate": {"log": [0.1, 1]}, "model.hidden": [*range(1, 101), "many"]},
        {},
        ["sweep.space.model.hidden: ", "got 'many'"],
    ),
    "a condition that never holds": (
        {
            "model.hidden": [4],
            "model.learning_rate": {"log": [0.1, 1], "when": {"model.hidden": [5]}},
        },
        {},
        ["sweep.space.model.learning_rate.when: it never holds: model.hidden is never 5"],
    ),
    "a pruner that can never prune": (
        {"model.hidden": [4]},
        {"pruner": {"kind": "median", "warmup_epochs": 20}, "trials": 20},
        [
            "sweep.pruner: it can never prune: warmup_epochs is 20, and a trial has"
            " trainer.max_epochs=20"
        ],
    ),
    "fewer trials than the median needs": (
        {"model.hidden": [4]},
        {"pruner": "median", "trials": 5},
        [
            "sweep.pruner: it can never prune: the median needs 5 complete trials before it, and"
            " sweep.trials is 5"
        ],
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
    "a layer that is not there": (
        {"regime": {"layers": ["none.yaml"]}},
        {},
        ["none.yaml: no such file"],
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_section_is_one_error_at_its_place(
    name: str, workspace: Workspace
) -> None:
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


WORDS: dict[str, tuple[tuple[str, ...], str]] = {
    "nothing is searched": ((), "sweep: nothing is searched: set sweep.space"),
    "a value without a key": (("--space", "4,8"), "--space: expected KEY=VALUE,VALUE"),
    "seeds and values": (("--seeds=2", "--space", "model.hidden=4,8"), "--space and --seeds: "),
    "no seeds": (("--seeds=0",), "--seeds: expected"),
    "the status of no sweep": (("--status",), "sweep: --status of which sweep?"),
    "the status of one that has not begun": (
        ("-c", "grid.yaml", "--status"),
        "sweep: there is no sweep of 'small'",
    ),
    "a run": (("--run=latest",), "sweep: --run is no option of it"),
    "a deadline that is no time": (("-c", "grid.yaml", "--deadline=teatime"), "--deadline"),
}


@pytest.mark.parametrize("name", WORDS)
def test_words_that_say_nothing_of_a_sweep_are_an_error_and_leave_nothing(
    name: str, workspace: Workspace
) -> None:
    words, says = WORDS[name]
    workspace.write("grid.yaml", GRID)
    result = workspace.run("sweep", "-c", "small.yaml", *words)
    assert result.code == 2, result.out
    assert says in result.err
    assert not (workspace.folder / "sweeps").exists()


def test_a_mistake_in_the_grid_of_the_command_line_names_its_option(workspace: Workspace) -> None:
    words = ("--space", "model.hidden=4,8", "--space", "model.learning_rat=1e-3,1e-2")
    result = workspace.run("sweep", "-c", "lightkit:temperatures", *words)
    assert result.code == 2, result.out
    assert result.err == (
        "error: sweep.space.model.learning_rat: model.init_args.learning_rat: Regressor has no such"
        " argument; did you mean 'learning_rate'?\n"
        "  --> --space model.learning_rat=1e-3,1e-2\n"
    )
    assert not (workspace.folder / "sweeps").exists()


def test_a_searched_key_that_a_flag_sets_is_an_error(workspace: Workspace) -> None:
    workspace.write("grid.yaml", GRID)
    result = workspace.run(
        "check", "-c", "lightkit:temperatures", "-c", "grid.yaml", "--model.hidden=3"
    )
    assert result.code == 2
    assert "model.hidden is searched (sweep.space), and is set by --model.hidden=3" in result.err


def test_a_deep_check_finds_a_metric_of_a_sweep_that_nothing_logs(workspace: Workspace) -> None:
    constraints = {"params": {"max": 5}, "val/mae": {"max": 1}, "train/loss": {"max": 1}}
    workspace.write(
        "grid.yaml", {"sweep": {**GRID["sweep"], "metric": "val/los", "constraints": constraints}}
    )
    result = workspace.run("check", "-c", "small.yaml", "-c", "grid.yaml", "--deep")
    assert result.code == 2
    assert "'val/los' is never logged; did you mean 'val/loss'" in result.err
    assert "sweep.constraints.val/mae: 'val/mae' is never logged" in result.err
    assert result.err.count("is never logged") == 2


def test_a_fit_passes_a_sweep_over(workspace: Workspace) -> None:
    workspace.write("grid.yaml", GRID)
    printed = workspace.run(
        "fit", "-c", "small.yaml", "-c", "grid.yaml", "--run.name=small", "--print_config"
    ).yaml
    assert printed == workspace.run("fit", "-c", "small.yaml", "--print_config").yaml

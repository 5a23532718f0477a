"""`lightkit sweep`, with trials that are processes without torch: see `tests/sweep/stand_in.py`."""

from __future__ import annotations

import csv
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from tests.contract.workspace import ForkServer, Process, Workspace
from tests.receiving import receiving
from tests.sweep.stand_in import HELD, read_lines

pytest.importorskip("optuna", reason="needs the extra lightkit[sweep]")
pytestmark = pytest.mark.slow

STAND_IN = Path(__file__).with_name("stand_in.py")
SERVERS: list[ForkServer] = []
BASE: dict[str, Any] = {"extends": ["lightkit:temperatures"], "trainer": {"max_epochs": 4}}
RATES = {"model.learning_rate": {"log": [1e-4, 1e-1]}, "model.hidden": {"int": [4, 32], "step": 4}}


@dataclass(frozen=True)
class Started:
    """A command that was started.

    Args:
        process: Its process.
        output: File with its standard output and error.
    """

    process: Process
    output: Path

    @property
    def text(self) -> str:
        """What it has printed."""
        return self.output.read_text(encoding="utf-8")


def write(folder: Path, **sweep: Any) -> None:
    """Write a config with a sweep."""
    config = {**BASE, "sweep": {"metric": "val/loss", **sweep}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


@pytest.fixture(scope="module", autouse=True)
def _server(fork_server: ForkServer) -> Iterator[None]:
    """The process from which `start` forks."""
    SERVERS.append(fork_server)
    yield
    SERVERS.clear()


def start(
    folder: Path,
    *words: str,
    pace_s: float = 0.0,
    environ: Mapping[str, str] | None = None,
    output: int | None = None,
) -> Started:
    """Start a sweep in a folder.

    Args:
        folder: The folder.
        words: Words after `sweep -c config.yaml`.
        pace_s: Seconds of an epoch of its trials.
        environ: Changes to the environment.
        output: Where its standard output and error go, by default `Started.output`.
    """
    return start_command(
        folder,
        "sweep",
        "-c",
        "config.yaml",
        *words,
        environ={"STAND_IN_S": str(pace_s), **(environ or {})},
        output=output,
    )


def start_command(
    folder: Path,
    *words: str,
    environ: Mapping[str, str] | None = None,
    output: int | None = None,
) -> Started:
    """Start `lightkit` with stand-ins for trials; arguments are those of `start`."""
    workspace = Workspace(folder, SERVERS[0])
    path = workspace.home / f"{len(list(workspace.home.glob('*.txt')))}.txt"
    with path.open("wb") as file:
        stream = file.fileno() if output is None else output
        process = workspace.start(
            *words, script=STAND_IN, environ=environ, stdout=stream, stderr=stream
        )
    return Started(process, path)


def run(
    folder: Path, *words: str, pace_s: float = 0.0, environ: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a sweep; return its exit code and what it printed."""
    started = start(folder, *words, pace_s=pace_s, environ=environ)
    return started.process.wait(timeout_s=240), started.text


def run_command(folder: Path, *words: str) -> str:
    """Run another command on the runs of a sweep, and return what it printed."""
    started = start_command(folder, *words)
    assert started.process.wait() == 0, started.text
    return started.text


def kill(started: Started) -> None:
    """Kill a sweep; its trials see that it is gone, and end."""
    started.process.signal(signal.SIGKILL)
    started.process.wait()


def ends(folder: Path) -> list[dict[str, Any]]:
    """Return how each trial ended, by number."""
    found = [line for line in read_lines(folder) if line["event"] == "end"]
    return sorted(found, key=lambda line: int(line["trial"]))


def hold(folder: Path, trial: str) -> None:
    """Let a trial wait before its second epoch, until `release`."""
    (folder / HELD).write_text(trial, encoding="utf-8")


def release(folder: Path) -> None:
    """Let the trial go on that was held."""
    (folder / HELD).unlink()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    ends_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < ends_s, "the condition was never true"
        time.sleep(0.02)


def wait_for(folder: Path, event: str, number: int) -> None:
    """Wait until a trial has begun, or has ended."""

    def is_there() -> bool:
        lines = read_lines(folder) if list(folder.glob("sweeps/*/trials.jsonl")) else []
        return any(line["event"] == event and line.get("trial") == number for line in lines)

    wait_until(is_there)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A sweep of twelve trials with pruning, that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    write(folder, trials=12, seed=3, pruner={"kind": "median", "warmup_epochs": 1}, space=RATES)
    code, text = run(folder)
    assert code == 0, text
    return folder, text


def test_a_sweep_ends_with_the_best_values_as_a_layer(whole: tuple[Path, str]) -> None:
    folder, text = whole
    found = ends(folder)
    assert len(found) == 12
    complete = [line for line in found if line["state"] == "complete"]
    best = min(complete, key=lambda line: float(line["value"]))
    begins = [line for line in read_lines(folder) if line["event"] == "begin"]
    params = begins[best["trial"]]["params"]
    assert (
        yaml.safe_load((folder / "sweeps/config/best.yaml").read_text(encoding="utf-8")) == params
    )
    assert f"best  trial {best['trial']}: val/loss" in text
    assert "in one run each, of which the best was chosen: it may be chance" in text
    # the defaults of the class
    assert begins[0]["params"] == {"model.learning_rate": 0.01, "model.hidden": 32}


def test_a_trial_is_a_run_with_one_more_layer(whole: tuple[Path, str]) -> None:
    folder, _ = whole
    begins = [line for line in read_lines(folder) if line["event"] == "begin"]
    layer = folder / "sweeps/config/trials/0003/trial.yaml"
    assert yaml.safe_load(layer.read_text(encoding="utf-8")) == begins[3]["params"]
    assert len(list(folder.glob("runs/config/2*/summary.json"))) == 12


def test_a_trial_that_is_worse_than_the_median_is_stopped_and_is_pruned_in_the_table_of_runs(
    whole: tuple[Path, str],
) -> None:
    folder, _ = whole
    pruned = [line for line in ends(folder) if line["state"] == "pruned"]
    assert pruned
    assert all(len(line["values"]) < 4 for line in pruned)
    words = ("runs", "--sweep", "config", "--filter", "status=pruned", "--output", "csv")
    assert len(run_command(folder, *words).splitlines()) == 1 + len(pruned)
    summaries = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in folder.glob("runs/config/2*/summary.json")
    ]
    assert Counter(each["status"] for each in summaries)["pruned"] == len(pruned)


def collect(folder: Path, *words: str) -> str:
    """Delete runs, and return what that has printed."""
    return run_command(folder, "gc", *words)


def read_states(folder: Path) -> dict[str, str]:
    """Read the states of the runs that are there, by the name of the run."""
    paths = folder.glob("runs/config/2*/summary.json")
    return {
        f"config/{path.parent.name}": json.loads(path.read_text(encoding="utf-8"))["status"]
        for path in sorted(paths)
    }


@pytest.fixture
def copied(whole: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of that sweep, with the folders of its runs."""
    for name in ("runs", "sweeps"):
        shutil.copytree(whole[0] / name, tmp_path / name, symlinks=True)
    return tmp_path


def read_pruned(folder: Path) -> list[str]:
    """Return the runs of pruned trials as the record has them."""
    lines = [
        json.loads(line)
        for line in (folder / "sweeps/config/trials.jsonl").read_text().splitlines()
    ]
    return [line["run"] for line in lines if line["event"] == "end" and line["state"] == "pruned"]


def test_gc_deletes_what_was_stopped_before_anything_else(copied: Path) -> None:
    before = read_states(copied)
    printed = collect(copied, "--keep-last=50")
    assert "pruned" in before.values()
    assert read_states(copied) == {
        name: state for name, state in before.items() if state != "pruned"
    }, printed


def test_gc_keeps_what_an_unfinished_sweep_needs_and_no_more(copied: Path) -> None:
    record = copied / "sweeps/config/trials.jsonl"
    whole = record.read_text(encoding="utf-8")
    assert whole.splitlines()[-1].endswith('"event": "done"}')
    before = read_states(copied)
    pruned = read_pruned(copied)
    assert sorted(pruned) == [name for name, state in before.items() if state == "pruned"]

    # one that was killed between the end of its training and the line that says so is not over yet
    lines = whole.splitlines(keepends=True)
    lost = next(at for at, line in enumerate(lines) if '"state": "pruned"' in line)
    record.write_text("".join([*lines[:lost], *lines[lost + 1 : -1]]), encoding="utf-8")
    kept = json.loads(collect(copied, "--keep-last=0", "--json"))["kept"]
    assert [*kept] == [name for name in sorted(before, reverse=True) if name not in pruned[1:]]
    assert "its sweep is not finished" in kept.values()
    assert sorted(read_states(copied)) == sorted(kept)

    record.write_text(whole, encoding="utf-8")
    assert len(json.loads(collect(copied, "--keep-last=0", "--json"))["kept"]) == 1, (
        "the newest good one"
    )


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "type": (
        lambda path: path.write_text(
            path.read_text(encoding="utf-8").replace('"trial": 3,', '"trial": "3",', 1),
            encoding="utf-8",
        ),
        "this is no line of a sweep",
    ),
    "first line": (
        lambda path: path.write_bytes(path.read_bytes().partition(b"\n")[2]),
        "line 1: this is no line of a sweep",
    ),
    "folder": (become_folder, "it is no file"),
    "link to nothing": (become_link, "it is no file"),
    "empty": (lambda path: path.write_bytes(b""), ""),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_gc_keeps_all_runs_of_a_sweep_whose_record_cannot_be_read(name: str, copied: Path) -> None:
    before = read_states(copied)
    damage, says = DAMAGES[name]
    damage(copied / "sweeps/config/trials.jsonl")
    printed = collect(copied, "--keep-last=0")
    assert read_states(copied) == before
    assert says in printed
    assert ("Until then its runs are kept" in printed) == bool(says)


def test_a_record_that_cannot_be_read_stops_no_other_sweep_of_the_job(tmp_path: Path) -> None:
    for seed in (1, 2):
        write(tmp_path, trials=2, sampler="random", seed=seed, space=RATES)
        assert run(tmp_path)[0] == 0
    damaged = tmp_path / "sweeps/config/trials.jsonl"
    damaged.write_text("{\n", encoding="utf-8")
    for words in (("--status",), ()):
        code, text = run(tmp_path, *words)
        assert code == 0, text
        assert "best  trial" in text

    # it may be the record of this one
    write(tmp_path, trials=2, sampler="random", seed=3, space=RATES)
    for words in (("--status",), ()):
        code, text = run(tmp_path, *words)
        assert code == 2, text
        assert "config/trials.jsonl, line 1: this is no line of a sweep" in text
    assert len((tmp_path / "trained.txt").read_text().splitlines()) == 4


def test_trials_are_in_a_table_and_on_a_page(whole: tuple[Path, str]) -> None:
    folder, _ = whole
    with (folder / "sweeps/config/trials.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["trial"]) for row in rows] == list(range(12))
    assert float(rows[0]["val/loss"]) == pytest.approx(ends(folder)[0]["value"])
    page = (folder / "sweeps/config/report.html").read_text(encoding="utf-8")
    for part in ("History of the best", "Importance", "PED-ANOVA", "model.learning_rate", "pruned"):
        assert part in page
    assert "mathdefault" not in page, "labels of a logarithmic axis are numbers"
    _, _, listed = page.partition("<caption>Trials, the best first</caption>")
    shown = re.findall(r"<tr><th scope=\"row\">(\d+)</th><td>search</td><td>(\w+)</td>", listed)
    assert {int(number): state for number, state in shown} == {
        line["trial"]: line["state"] for line in ends(folder)
    }


def test_a_finished_sweep_is_printed_again_and_trains_nothing(
    whole: tuple[Path, str], tmp_path: Path
) -> None:
    folder = tmp_path
    shutil.copytree(whole[0], folder, dirs_exist_ok=True)
    before = (folder / "trained.txt").read_text(encoding="utf-8")
    code, text = run(folder)
    assert code == 0
    assert "best  trial" in text
    assert (folder / "trained.txt").read_text(encoding="utf-8") == before
    code, text = run(folder, "--status")
    assert code == 0
    assert "12 of 12 trials" in text
    record = folder / "sweeps/config/trials.jsonl"
    content = record.read_bytes()
    code, text = run(folder, "--sweep.trials=13")  # finished ones count
    assert code == 0
    assert len(ends(folder)) == 13
    assert record.read_bytes().startswith(content)


def test_a_sweep_that_was_killed_before_it_wrote_its_table_and_its_layer_writes_them(
    whole: tuple[Path, str], tmp_path: Path
) -> None:
    """The record has its last trial, and nothing is left to train."""
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    written = [tmp_path / "sweeps/config/trials.csv", tmp_path / "sweeps/config/best.yaml"]
    before = [path.read_text(encoding="utf-8") for path in written]
    for path in written:
        path.unlink()
    code, text = run(tmp_path)
    assert code == 0, text
    assert [path.read_text(encoding="utf-8") for path in written] == before


def test_a_search_that_is_killed_three_times_ends_as_one_that_was_not(
    whole: tuple[Path, str], tmp_path: Path
) -> None:
    write(tmp_path, trials=12, seed=3, pruner={"kind": "median", "warmup_epochs": 1}, space=RATES)
    for event, number in (("begin", 2), ("end", 5), ("begin", 9)):
        started = start(tmp_path, pace_s=0.05)
        wait_for(tmp_path, event, number)
        kill(started)
    with next(tmp_path.glob("sweeps/*/trials.jsonl")).open("ab") as file:
        file.write(b'{"event": "end", "tri')  # as a cut write leaves it
    code, text = run(tmp_path)
    assert code == 0, text
    assert read_lines(tmp_path) == read_lines(whole[0])
    fresh = Counter(
        line
        for line in (tmp_path / "trained.txt").read_text().splitlines()
        if line.endswith("from 0")
    )
    assert set(fresh.values()) == {1}  # nothing is trained twice


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_a_search_that_is_killed_at_random_moments_ends_as_one_that_was_not(
    seed: int, whole: tuple[Path, str], tmp_path: Path
) -> None:
    draw = random.Random(seed)
    write(tmp_path, trials=12, seed=3, pruner={"kind": "median", "warmup_epochs": 1}, space=RATES)
    for _ in range(3):
        started = start(tmp_path, pace_s=0.05)
        time.sleep(1 + 6 * draw.random())
        kill(started)
    code, text = run(tmp_path)
    assert code == 0, text
    assert read_lines(tmp_path) == read_lines(whole[0])


def test_a_search_that_is_killed_ends_after_as_many_failures_as_one_that_was_not(
    tmp_path: Path,
) -> None:
    space = {"model.weight_decay": [2.0], "model.hidden": [1, 2, 3, 4, 5, 6]}
    write(tmp_path, max_failures=3, sampler="grid", space=space)
    hold(tmp_path, "config/3")
    started = start(tmp_path)
    wait_for(tmp_path, "end", 2)
    kill(started)
    release(tmp_path)
    code, text = run(tmp_path)
    assert code == 1
    assert "3 trials in a row have failed" in text
    assert [line["state"] for line in ends(tmp_path)] == ["complete", "failed", "failed", "failed"]
    code, text = run(tmp_path)  # after what was wrong may have been repaired
    assert code == 1
    assert len(ends(tmp_path)) == 7


def test_with_two_at_a_time_each_proposal_is_recorded_and_nothing_is_trained_twice(
    tmp_path: Path,
) -> None:
    write(tmp_path, trials=8, seed=1, parallel=2, space=RATES)
    started = start(tmp_path, pace_s=0.1)
    wait_for(tmp_path, "end", 3)
    kill(started)
    code, text = run(tmp_path)
    assert code == 0, text
    assert [line["state"] for line in ends(tmp_path)] == ["complete"] * 8
    begins = [line for line in read_lines(tmp_path) if line["event"] == "begin"]
    assert [line["trial"] for line in begins] == list(range(8))
    assert len({json.dumps(line["params"]) for line in begins}) == 8
    fresh = Counter(
        line
        for line in (tmp_path / "trained.txt").read_text().splitlines()
        if line.endswith("from 0")
    )
    assert set(fresh.values()) == {1}


def test_sigterm_saves_the_running_trials_and_the_same_command_goes_on(tmp_path: Path) -> None:
    write(tmp_path, trials=3, sampler="random", space=RATES)
    hold(tmp_path, "config/1")
    started = start(tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("runs/config/2*/checkpoints/last.ckpt.sha256"))) == 2)
    started.process.signal(signal.SIGTERM)
    assert started.process.wait(timeout_s=60) == 75, started.text
    assert "interrupted by SIGTERM; the same command goes on with trial 1 of config" in started.text
    release(tmp_path)
    code, text = run(tmp_path)
    assert code == 0, text
    trained = (tmp_path / "trained.txt").read_text().splitlines()
    assert [line for line in trained if not line.endswith("from 0")], trained


def test_what_goes_wrong_in_a_trial_is_recorded_and_the_search_goes_on(tmp_path: Path) -> None:
    """A crash, a NaN, a signal once, a hang twice, and a signal twice."""
    write(tmp_path, sampler="grid", space={"model.weight_decay": [0.5, 2.0, 3.0, 4.0, 6.0, 8.0]})
    code, text = run(tmp_path, "--junit=cases.xml")
    assert code == 0, text
    states = [line["state"] for line in ends(tmp_path)]
    assert states == ["complete", "complete", "failed", "failed", "complete", "failed", "failed"]
    reasons = [line["reason"] or "" for line in ends(tmp_path)]
    assert reasons[2] == "ValueError: batches are out of stock"
    assert reasons[3] == "val/loss was not finite"
    assert reasons[5] == "nothing was finished for 60 s"
    assert reasons[6].startswith("killed by SIGKILL")
    trained = (tmp_path / "trained.txt").read_text().splitlines()
    assert Counter(line.partition(" ")[0] for line in trained)["config/5"] == 2  # once more
    cases = ET.parse(tmp_path / "cases.xml").getroot().iter("testcase")
    assert [case.find("failure") is not None for case in cases] == [
        state == "failed" for state in states
    ]


def test_a_trial_that_ends_with_75_goes_on_and_one_that_always_does_ends_the_sweep(
    tmp_path: Path,
) -> None:
    write(tmp_path, sampler="grid", space={"model.weight_decay": [9.0, 10.0, 0.5]})
    code, text = run(tmp_path)
    assert code == 75
    assert "the tracker is away" in text
    assert [line["state"] for line in ends(tmp_path)] == ["complete", "complete"]
    trained = (tmp_path / "trained.txt").read_text().splitlines()
    assert [line for line in trained if line.startswith("config/1 ")] == [
        "config/1 from 0",
        "config/1 from 1",
    ]
    # its first start, and three more
    assert len([line for line in trained if line.startswith("config/2 ")]) == 4


@pytest.mark.parametrize("value", [11.0, 12.0], ids=["the trial", "the sweep too"])
def test_a_trial_that_is_killed_before_its_first_epoch_begins_anew_and_has_its_own_value(
    value: float, tmp_path: Path
) -> None:
    write(tmp_path, sampler="grid", space={"model.weight_decay": [value], "model.hidden": [16]})
    if value == 12.0:
        assert run(tmp_path)[0] == -signal.SIGKILL
    code, text = run(tmp_path)
    assert code == 0, text
    assert [line["state"] for line in ends(tmp_path)] == ["complete", "complete"]
    check_values(tmp_path)
    first, second = sorted(tmp_path.glob("runs/config/2*"))[1:]
    assert not (first / "summary.json").exists()
    record = json.loads((tmp_path / "sweeps/config/trials.jsonl").read_text().splitlines()[-2])
    assert record["run"] == f"config/{second.name}"
    assert record["values"].keys() == {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    ("value", "code", "says"), [(5.0, 2, "the config"), (7.0, 3, "the data")], ids=["2", "3"]
)
def test_an_error_that_each_trial_would_have_ends_the_sweep_at_once(
    value: float, code: int, says: str, tmp_path: Path
) -> None:
    write(tmp_path, sampler="grid", space={"model.weight_decay": [value, 0.5, 0.6]})
    found, text = run(tmp_path)
    assert found == code
    assert f"{says} is wrong" in text
    assert [line["trial"] for line in ends(tmp_path)] == [0]


def test_a_full_disk_fails_no_trial_and_the_same_command_goes_on_with_it(tmp_path: Path) -> None:
    write(tmp_path, sampler="grid", space={"model.weight_decay": [13.0, 0.5]})
    code, text = run(tmp_path)
    assert code == 1
    assert "No space left on device" in text
    assert [line["trial"] for line in ends(tmp_path)] == [0]
    code, text = run(tmp_path)
    assert code == 0, text
    assert [line["state"] for line in ends(tmp_path)] == ["complete"] * 3
    check_values(tmp_path)


def test_equal_failures_in_a_row_end_the_sweep_with_the_first_error(tmp_path: Path) -> None:
    write(
        tmp_path,
        max_failures=2,
        sampler="grid",
        space={"model.weight_decay": [2.0], "model.hidden": [1, 2, 3, 4]},
    )
    code, text = run(tmp_path)
    assert code == 1
    assert (
        "2 trials in a row have failed (sweep.max_failures): ValueError: batches are out of stock"
        in text
    )
    assert [line["state"] for line in ends(tmp_path)] == ["complete", "failed", "failed"]


def test_a_sweep_that_fails_sends_one_message(tmp_path: Path) -> None:
    write(
        tmp_path,
        max_failures=2,
        sampler="grid",
        space={"model.weight_decay": [2.0], "model.hidden": [1, 2]},
    )
    hook = {"callbacks": {"webhook": {"init_args": {"webhook_url": "${oc.env:HOOK}"}}}}
    layer = {**hook, "run": {"heartbeat_url": "${oc.env:BEAT}"}}
    (tmp_path / "notify.yaml").write_text(yaml.safe_dump(layer), encoding="utf-8")
    with receiving() as receiver:
        environ = {"HOOK": receiver.url("hook"), "BEAT": receiver.url("beat")}
        code, text = run(tmp_path, "-c", "notify.yaml", environ=environ)
    assert code == 1, text
    (message,) = [request.json for request in receiver.of("hook")]
    assert [message[key] for key in ("kind", "status", "stage", "job")] == [
        "failure",
        "failed",
        "sweep",
        "config",
    ]
    assert "2 trials in a row have failed" in message["error"]
    assert message["best"] == {"monitor": "val/loss", "value": ends(tmp_path)[0]["value"]}
    assert [request.path for request in receiver.of("beat")] == ["/beat/*/start", "/beat/*/fail"]


def test_a_constraint_that_all_break_says_how_far_they_are(tmp_path: Path) -> None:
    bounds = {"params": {"max": 5}, "test/loss": {"max": 9}}
    write(tmp_path, sampler="grid", constraints=bounds, space={"model.hidden": [4, 8]})
    code, text = run(tmp_path)
    assert code == 1
    assert (
        "no trial is within all bounds of sweep.constraints: params is to have max 5, and is 40"
        " to 320" in text
    )
    assert not (tmp_path / "sweeps/config/best.yaml").exists()
    code, text = run(tmp_path, "--sweep.constraints.params.max=50")  # another search
    assert code == 0, text
    assert (tmp_path / "sweeps/config-2/best.yaml").exists()


def test_a_constraint_that_nothing_measures_fails_the_trial(tmp_path: Path) -> None:
    constraints = {"val/other": {"max": 1}}
    write(
        tmp_path,
        sampler="grid",
        max_failures=2,
        constraints=constraints,
        space={"model.hidden": [4, 8]},
    )
    code, text = run(tmp_path)
    assert code == 1
    assert (
        "sweep.constraints: val/other was not measured; logged are val/loss, val/mae, and params"
        in text
    )


def test_the_best_are_trained_again_with_fresh_seeds_and_their_mean_decides(tmp_path: Path) -> None:
    write(
        tmp_path,
        sampler="grid",
        confirm={"top": 2, "seeds": 3},
        space={"model.hidden": [12, 16, 28]},
    )
    code, text = run(tmp_path)
    assert code == 0, text
    again = [
        line
        for line in read_lines(tmp_path)
        if line["event"] == "begin" and line["kind"] == "confirm"
    ]
    assert {line["of"] for line in again} == {0, 1, 2}  # the config itself, too
    assert sorted({line["seed"] for line in again}) == [8, 9, 10]
    values = [
        end["value"]
        for end in ends(tmp_path)
        if end["trial"] in [a["trial"] for a in again if a["of"] == 2]
    ]
    mean = sum(values) / 3
    deviation = (sum((value - mean) ** 2 for value in values) / 2) ** 0.5
    half = 4.302653 * deviation / 3**0.5  # Student's t with two degrees of freedom
    assert (
        f"again trial 2: mean {mean:.4g} [{mean - half:.4g}, {mean + half:.4g}] of 3 fresh seeds"
        in text
    )
    assert "over the config itself, with fresh seeds" in text
    page = (tmp_path / "sweeps/config/report.html").read_text(encoding="utf-8")
    assert "Confirmation with fresh seeds" in page
    assert f"{mean - half:.4g} to {mean + half:.4g}" in page


def test_a_sweep_with_nothing_to_gain_says_so(tmp_path: Path) -> None:
    write(tmp_path, sampler="grid", space={"model.learning_rate": [1e-4, 1e-1]})
    code, text = run(tmp_path)
    assert code == 0, text
    assert "gain  none: no trial beat the config itself" in text


def test_seeds_train_the_config_itself_and_print_mean_and_interval(tmp_path: Path) -> None:
    write(tmp_path)
    code, text = run(tmp_path, "--seeds=3")
    assert code == 0, text
    values = [line["value"] for line in ends(tmp_path)]
    mean = sum(values) / 3
    deviation = (sum((value - mean) ** 2 for value in values) / 2) ** 0.5
    half = 4.302653 * deviation / 3**0.5
    assert f"val/loss: mean {mean:.6g}, standard deviation {deviation:.4g}, 95 % interval" in text
    assert f"95 % interval {mean - half:.4g} to {mean + half:.4g}, n=3" in text


def test_a_grid_needs_no_file_and_no_metric(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(BASE), encoding="utf-8")
    words = ("model.learning_rate=1e-3,1e-2", "model.hidden=8", "model.hidden=16")
    code, text = run(tmp_path, *(f"--space={word}" for word in words))
    assert code == 0, text
    found = [line["params"] for line in read_lines(tmp_path) if line["event"] == "begin"]
    expected = [(0.01, 32), (0.001, 8), (0.001, 16), (0.01, 8), (0.01, 16)]
    assert [(each["model.learning_rate"], each["model.hidden"]) for each in found] == expected


@pytest.mark.parametrize("sampler", ["grid", "tpe"])
def test_the_status_counts_no_more_trials_than_the_space_has_points(
    sampler: str, tmp_path: Path
) -> None:
    """The config itself, whose net has 32 neurons, is one of the two."""
    write(tmp_path, sampler=sampler, space={"model.hidden": [8, 32]})
    assert run(tmp_path)[0] == 0
    code, text = run(tmp_path, "--status")
    assert code == 0, text
    assert text.startswith("config: 2 of 2 trials (2 complete)\n")


def test_a_deadline_saves_the_trials_and_ends_with_75(tmp_path: Path) -> None:
    write(tmp_path, trials=30, sampler="random", space=RATES)
    hold(tmp_path, "config/1")
    code, text = run(tmp_path, "--deadline=20s")
    assert code == 75, text
    assert "the same command goes on with trial 1 of config" in text


def test_a_deadline_while_torch_is_imported_leaves_the_trial_to_the_next_start(
    tmp_path: Path,
) -> None:
    """Nor does the process that imports it hold the output open, for whose end a pipe waits."""
    write(tmp_path, trials=3, sampler="random", space=RATES)
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n", encoding="utf-8")
    program = (
        "import sys\n"
        "from lightkit.cli import stage_processes\n"
        "from lightkit.main import main\n"
        "stage_processes.OF_TRAINING[:] = ['slow']\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "sweep", "-c", "config.yaml", "--deadline=5s"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr == (
        "error: The deadline is near; the same command goes on with trial 0 of config, and has no"
        " more time. Name a longer --deadline.\n"
    )
    code, text = run(tmp_path)
    assert code == 0, text
    assert [line["state"] for line in ends(tmp_path)] == ["complete"] * 3


def test_events_of_trials_come_as_json_lines(tmp_path: Path) -> None:
    write(tmp_path, sampler="grid", space={"model.hidden": [4, 8]})
    code, text = run(tmp_path, "--json")
    assert code == 0, text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["number"], line["state"]) for line in lines] == [
        (0, "complete"),
        (1, "complete"),
        (2, "complete"),
    ]


# -- several at a time, and other processes
# ----------------------------------------------------------------------------


def test_a_second_sweep_of_the_job_ends_with_75_and_status_shows_the_first(tmp_path: Path) -> None:
    write(tmp_path, trials=9, sampler="random", space=RATES)
    hold(tmp_path, "config/1")
    first = start(tmp_path)
    wait_for(tmp_path, "begin", 1)
    code, text = run(tmp_path, "--status")
    assert code == 0, text
    assert re.search(r"config: 1 of 9 trials \(1 complete, 1 running\), about .* left", text)
    assert re.search(r"^best: trial 0: complete, val/loss", text, re.MULTILINE)
    assert re.search(r"^1 +running +model\.learning_rate=", text, re.MULTILINE)
    code, text = run(tmp_path)
    assert code == 75, text
    assert f"is being run by process {first.process.pid}" in text
    first.process.signal(signal.SIGTERM)
    assert first.process.wait(timeout_s=60) == 75
    numbers = [line["trial"] for line in read_lines(tmp_path) if line["event"] == "begin"]
    assert numbers == list(range(len(numbers)))


def test_as_many_trials_run_at_a_time_as_there_is_room_for(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        pytest.skip("needs two cores")
    write(tmp_path, trials=8, parallel="auto", sampler="random", space=RATES)
    code, text = run(tmp_path, pace_s=0.3)
    assert code == 0, text
    running = most = 0
    for line in read_lines(tmp_path):
        running += {"begin": 1, "end": -1}.get(line["event"], 0)
        most = max(most, running)
    assert 1 < most <= cores
    assert [line["state"] for line in ends(tmp_path)] == ["complete"] * 8


def test_a_reader_that_leaves_the_pipe_ends_the_sweep_and_the_same_command_goes_on(
    tmp_path: Path,
) -> None:
    write(tmp_path, trials=4, sampler="random", space=RATES)
    hold(tmp_path, "config/1")
    reader, writer = os.pipe()
    started = start(tmp_path, output=writer)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        assert pipe.readline().startswith("trial 0: complete, val/loss")
    release(tmp_path)
    assert started.process.wait(timeout_s=60) == 141
    code, text = run(tmp_path)
    assert code == 0, text
    assert [line["state"] for line in ends(tmp_path)] == ["complete"] * 4
    fresh = Counter(
        line
        for line in (tmp_path / "trained.txt").read_text().splitlines()
        if line.endswith("from 0")
    )
    assert set(fresh.values()) == {1}


# -- which values, and which is the best -----------------------------------------------------------


def compute_loss(params: Mapping[str, Any]) -> float:
    """Compute the value of a stand-in of four epochs."""
    rate = float(params.get("model.learning_rate", 0.01))
    return (
        abs(math.log10(rate) + 2.5)
        + (float(params.get("model.hidden", 32)) - 16) ** 2 / 1000
        + 1 / 4
    )


def check_values(folder: Path) -> None:
    """Assert that each trial has the value of its own training."""
    begins = [line for line in read_lines(folder) if line["event"] == "begin"]
    for line in ends(folder):
        assert line["value"] == pytest.approx(compute_loss(begins[line["trial"]]["params"])), line


def test_a_sweep_whose_folder_was_deleted_begins_another_and_takes_no_run_of_the_first(
    tmp_path: Path,
) -> None:
    write(tmp_path, trials=3, sampler="random", seed=1, space=RATES)
    assert run(tmp_path)[0] == 0
    check_values(tmp_path)
    shutil.rmtree(tmp_path / "sweeps")
    write(tmp_path, trials=3, sampler="random", seed=2, space=RATES)
    code, text = run(tmp_path)
    assert code == 0, text
    assert [path.name for path in tmp_path.glob("sweeps/*")] == ["config-2"]
    check_values(tmp_path)
    assert len((tmp_path / "trained.txt").read_text().splitlines()) == 6


def test_a_search_without_a_metric_takes_that_of_the_checkpoint_of_its_first_trial(
    tmp_path: Path,
) -> None:
    config = {**BASE, "sweep": {"trials": 4, "space": {"model.hidden": {"int": [4, 32]}}}}
    config["callbacks"] = {"checkpoint": None}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    code, text = run(tmp_path)
    assert code == 0, text
    check_values(tmp_path)
    (found,) = [line for line in read_lines(tmp_path) if line["event"] == "metric"]
    assert (found["metric"], found["mode"]) == ("val/loss", "min")


def test_a_metric_that_nothing_logs_is_the_error_of_the_sweep_with_a_near_name(
    tmp_path: Path,
) -> None:
    write(tmp_path, trials=3, metric="val/los", space=RATES)
    code, text = run(tmp_path)
    assert code == 2, text
    assert text.splitlines()[-1] == (
        "error: sweep.metric: 'val/los' is not logged; logged are val/loss, val/mae; did you mean"
        " 'val/loss'?"
    )


def test_a_key_with_a_condition_is_set_where_it_holds(tmp_path: Path) -> None:
    condition = {"choice": [0.25, 0.5], "when": {"model.hidden": [16]}}
    write(
        tmp_path, sampler="grid", space={"model.weight_decay": condition, "model.hidden": [8, 16]}
    )
    code, text = run(tmp_path)
    assert code == 0, text
    layers = [
        yaml.safe_load(path.read_text())
        for path in sorted(tmp_path.glob("sweeps/config/trials/*/trial.yaml"))
    ]
    assert layers == [
        {},
        {"model.hidden": 8},
        {"model.hidden": 16, "model.weight_decay": 0.25},
        {"model.hidden": 16, "model.weight_decay": 0.5},
    ]


@pytest.mark.parametrize("confirm", [None, {"top": 1, "seeds": 2}], ids=["once", "confirmed"])
def test_a_config_that_breaks_a_bound_is_never_the_best(
    confirm: dict[str, int] | None, tmp_path: Path
) -> None:
    """The config itself has the lower loss, and 320 parameters."""
    space = {"model.learning_rate": [1e-4], "model.hidden": [20]}
    write(
        tmp_path, sampler="grid", constraints={"params": {"max": 250}}, confirm=confirm, space=space
    )
    code, text = run(tmp_path)
    assert code == 0, text
    found = ends(tmp_path)
    assert found[0]["value"] < found[1]["value"]
    assert "best  trial 1: " in text
    assert "gain  unknown: the config itself is not within all bounds of sweep.constraints" in text
    best = yaml.safe_load((tmp_path / "sweeps/config/best.yaml").read_text(encoding="utf-8"))
    assert best == {"model.learning_rate": 1e-4, "model.hidden": 20}
    assert len(found) == (2 if confirm is None else 6)
    with (tmp_path / "sweeps/config/trials.csv").open(encoding="utf-8") as file:
        head, first, *_ = csv.reader(file)
    assert len({*head}) == len(head)
    assert first[head.index("params")] == "320"

"""`lightkit retrain` as the process that a schedule starts: its words, and real stages that are killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from lightkit import runs
from lightkit.cli.completing import answer
from tests.cli.commands import Ended, ended, run, started, wait_for, wait_until_gone
from tests.cli.conftest import MY_MODELS, SMALL, House, read_json

STAGES = ["fit", "test", "export", "gate", "promote"]
JUDGED = ("--gate.metric=test/loss", "--gate.mode=min", "--gate.max=9")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--run", "latest"],
            "retrain: unexpected argument '--run': it trains; to go on in a run's folder, say --run.resume",
        ),
        (["--print_config"], "retrain: unexpected argument '--print_config'"),
        (["--format=onnx"], "say --export-format"),
        (["--if-changed=yes"], "--if-changed takes no value"),
        (["--skip"], "retrain: --skip: expected a word after it"),
        (["--skip", "gate"], "nothing is promoted that was not judged"),
        (["--skip", "fit"], "--skip: expected test, export, promote, got 'fit'"),
        (["--skip", "tests"], "did you mean 'test'?"),
        (["--export-format", "onxx"], "--export-format: expected"),
        (["--reserve", "soon"], "--reserve: expected a duration such as 10m, 90s or 1h30m, got 'soon'"),
        (["--deadline", "soon"], "--deadline: expected a time of day such as 05:30"),
        (["--deadline", "2020-01-01T05:30"], "is over since"),
        (["--deadline", "4h", "--deadline=5h"], "--deadline is said twice"),
        (["--unchanged-ok"], "--unchanged-ok has no effect without --if-changed"),
        (["--reason", "why not"], "--reason: nothing is promoted without gate.metric"),
        (["--trainer.fast_dev_run=true"], "trainer.fast_dev_run: leaves nothing that could be tested"),
        (["--gate.min=0.8"], "gate.min"),
        (["--trainer.max_epoch=3"], "did you mean"),
        (["--model.help=Net"], "retrain: unexpected argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_meant_is_told_before_hours_of_training(house: House, words: list[str], says: str) -> None:
    done = house("retrain", "-c", "small.yaml", *words)
    assert done.code == 2
    assert says in done.err
    assert not list(house.folder.glob("runs/*/2*"))


def test_a_second_retrain_of_the_job_is_told_who_runs_it(house: House) -> None:
    with runs.Lock("runs", "small"):
        done = house("retrain", "-c", "small.yaml", "--junit=j.xml")
    assert done.code == 75
    assert "is being run by process" in done.err
    assert "is being run by process" in (house.folder / "j.xml").read_text(encoding="utf-8")


def test_help_and_the_shell_know_its_options(house: House) -> None:
    told = house("retrain", "--help")
    assert told.code == 0
    assert "--deadline WHEN" in told.out
    assert {"--deadline", "--skip", "--if-changed", "-c"} <= {*answer(["retrain", "-"], is_split=False)}
    assert answer(["retrain", "--skip", ""], is_split=False) == ["export", "promote", "test"]
    assert "onnx" in answer(["retrain", "--export-format", ""], is_split=False)


class Night:
    """A working directory in which retrains are started, and killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "my_models.py").write_text(MY_MODELS, encoding="utf-8")
        (folder / "job.yaml").write_text(SMALL, encoding="utf-8")
        self.words = ("retrain", "-c", "job.yaml", *JUDGED, "--logger.csv={}", "--skip=export")

    @property
    def runs(self) -> list[Path]:
        return [each.folder for each in runs.list_runs(self.folder / "runs", "job")]

    def states(self) -> dict[str, str]:
        """How the stages of the newest run stand; none where there is no run yet."""
        record = runs.read_json(self.runs[0] / "retrain.json") if self.runs else None
        return {} if record is None else {state["stage"]: state["status"] for state in record["stages"]}

    def stopped_in(self, stage: str, signum: int) -> Ended:
        """Send the retrain alone a signal once a stage runs, and wait for all that it had started."""
        with started(self.folder, *self.words, group=True) as process:
            assert wait_for(lambda: self.states().get(stage) == "running", process)
            os.kill(process.pid, signum)
            done = ended(process)
            assert wait_until_gone(process.pid)
            return done

    def history(self) -> list[tuple[str, str]]:
        return [
            (event["stage"], event["status"])
            for event in runs.read_events(self.runs[0] / "events.jsonl")
            if event["event"] == "stage"
        ]


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Night:
    return Night(tmp_path_factory.mktemp("night"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_retrain_that_is_killed_and_interrupted_goes_on_to_its_promotion(night: Night) -> None:
    killed = night.stopped_in("fit", signal.SIGKILL)
    assert killed.code == -signal.SIGKILL

    asked = night.stopped_in("test", signal.SIGTERM)
    assert asked.code == 75, asked.err
    assert "the same command goes on with test" in asked.out

    done = run(night.folder, *night.words, "--reason=of November", timeout_s=600)
    assert done.code == 0, done.err
    assert "goes on with test" in done.err
    assert len(night.runs) == 1
    assert night.states() == {**dict.fromkeys(STAGES, "done"), "export": "skipped"}
    assert [stage for stage, status in night.history() if status == "begun"].count("promote") == 1
    assert [stage for stage, status in night.history() if status == "done"].count("fit") == 1
    promotions = [e for e in runs.read_events(night.runs[0] / "events.jsonl") if e["event"] == "promotion"]
    assert [(each["alias"], each["to"], each["reason"]) for each in promotions] == [("champion", "1", "of November")]
    assert runs.lock_holder(night.folder / "runs", "job") is None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_model_that_is_not_good_enough_ends_the_retrain_with_4(night: Night) -> None:
    words = (*night.words[:3], "--gate.metric=test/loss", "--gate.mode=min", "--gate.max=0", "--skip=test,export")
    done = run(night.folder, *words, "--output=json", "--junit=j.xml", timeout_s=600)
    assert done.code == 4, done.err
    events = [json.loads(line) for line in done.out.splitlines()]
    assert [(e["stage"], e["status"]) for e in events if e["event"] == "stage" and e["status"] != "begun"] == [
        ("fit", "done"),
        ("test", "skipped"),
        ("export", "skipped"),
        ("gate", "failed"),
        ("promote", "skipped"),
    ]
    assert {"start", "epoch", "checkpoint", "end", "gate"} <= {event["event"] for event in events}
    assert read_json(night.runs[0] / "retrain.json")["outcome"] == "not promoted"
    assert not (night.runs[0] / "promoted.json").exists()

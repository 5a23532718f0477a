"""Which stages a retrain runs, with what words, and where it goes on.

The stages themselves are pretended.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from lightkit import runs
from lightkit.cli.command_table import COMMANDS, parse
from lightkit.cli.config_loader import load_config
from lightkit.cli.console import configure_console
from lightkit.cli.notifications import CommandNotifier
from lightkit.cli.session import create_job_lock
from lightkit.cli.stage_config import read_run_settings
from lightkit.cli.stage_processes import StageProcesses
from lightkit.cli.stage_runner import open_stage_config
from lightkit.cli.up_to_date import Comparison
from lightkit.commands.retrain import Retrain
from lightkit.config import Problems
from lightkit.errors import OutOfTime
from lightkit.registry.gate import GateSettings, read_gate
from lightkit.runs.ci_report import CiReport
from lightkit.runs.deadline import parse_deadline
from lightkit.runs.resume import RunSettings
from lightkit.runs.signals import SignalWatch
from tests.cli.conftest import House, read_json

STAGES = ["fit", "test", "export", "gate", "promote"]
JUDGED = ("--gate.metric=test/loss", "--gate.mode=min", "--gate.max=9", "--gate.baseline=null")


class Felled(BaseException):
    """What a kill of the whole retrain looks like from within."""


class Stagehands(StageProcesses):
    """Pretends to run the commands.

    Args:
        house: The working directory.
    """

    def __init__(self, house: House) -> None:
        super().__init__()
        self.house = house
        self.codes: dict[str, int] = {}
        self.seconds = 2.0
        self.trains = True
        self.monotonic_s = 0.0
        self.felled_at: str | None = None
        self.gate: dict[str, Any] = {}
        self.meanwhile: Callable[[str], None] = lambda _stage: None
        self.calls: list[list[str]] = []
        self.environments: list[dict[str, str]] = []
        self.notifier = CommandNotifier()

    @property
    def stages(self) -> list[str]:
        """The commands that were run, since the last look."""
        names = [words[0] for words in self.calls]
        self.calls = []
        return names

    def run(
        self, args: Sequence[str], environment: Mapping[str, str], on_poll: Callable[[], None]
    ) -> int:
        stage = args[0]
        self.calls.append([*args])
        self.environments.append({**environment})
        code = self.codes.get(stage, 0)
        if stage == "fit" and code != 6 and self.trains:
            self._train(code)
            on_poll()
        self.meanwhile(stage)
        if self.felled_at == stage:
            raise Felled
        self.monotonic_s += self.seconds
        return code

    def _train(self, code: int) -> None:
        run = runs.newest_interrupted("runs", "small") or runs.create("runs", "small")
        runs.write_json(run.manifest_path, {"subcommand": "fit"})
        runs.write_json(run.config_path, {"gate": self.gate})  # which is YAML as well
        status = "done" if code == 0 and self.felled_at != "fit" else "failed"
        runs.write_json(run.summary_path, {"run": f"small/{run.id}", "status": status})
        lock = Path("runs/small/lock.json")
        runs.write_json(lock, {**read_json(lock), "folder": str(run.folder)})

    def retrain(
        self,
        *words: str,
        left_s: float | None = None,
        may_continue: bool = True,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> int:
        """Run a retrain in this process."""
        session = open_stage_config(parse(["fit", "-c", "small.yaml", *words]))
        configure_console(session.mode)
        self.gate = read_gate(session.resolved).__dict__
        deadline = None if left_s is None else parse_deadline(f"{left_s:g}s")
        settings = RunSettings(
            name="small", resume="auto" if may_continue else "never", report=False
        )
        self.received = None
        self.notifier = CommandNotifier()
        junit = Path(options["junit"]) if "junit" in options else None
        given = {**COMMANDS["retrain"].defaults, **options}
        with (
            create_job_lock(settings, SignalWatch()) as lock,
            CiReport("lightkit retrain", junit, case="retrain") as report,
        ):
            report.code = Retrain(
                session, given, settings, deadline, self, lock, report, self.notifier
            ).run()
            return report.code

    @property
    def states(self) -> dict[str, str]:
        """How the newest retrain's stages stand."""
        return {state["stage"]: state["status"] for state in self.record["stages"]}

    @property
    def record(self) -> dict[str, Any]:
        """The newest retrain.json."""
        found: dict[str, Any] = read_json(
            runs.list_runs("runs", "small")[0].folder / "retrain.json"
        )
        return found


@pytest.fixture
def hands(house: House, monkeypatch: pytest.MonkeyPatch) -> Stagehands:
    made = Stagehands(house)
    monkeypatch.setattr(
        "lightkit.commands.retrain.time", SimpleNamespace(monotonic=lambda: made.monotonic_s)
    )
    return made


def test_nothing_is_judged_or_promoted_without_a_metric(
    hands: Stagehands, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hands.retrain() == 0
    assert hands.stages == ["fit", "test", "export"]
    assert hands.record["outcome"] == "trained"
    out = capsys.readouterr().out
    assert "gate     skipped                 gate.metric is not set" in out
    assert "promote  skipped                 nothing is promoted that was not judged" in out


def test_a_gate_that_says_no_ends_the_retrain_and_the_next_start_trains_anew(
    hands: Stagehands, capsys: pytest.CaptureFixture[str]
) -> None:
    hands.codes["gate"] = 4
    assert hands.retrain(*JUDGED, options={"junit": "j.xml"}) == 4
    assert hands.stages == ["fit", "test", "export", "gate"]
    assert hands.record["outcome"] == "not promoted"
    assert hands.states["promote"] == "skipped"
    assert "end   not promoted" in capsys.readouterr().out
    failures = {
        case.get("name")
        for case in ET.parse("j.xml").iter("testcase")
        if case.find("failure") is not None
    }
    assert failures == {"gate"}

    hands.codes.clear()
    assert hands.retrain(*JUDGED) == 0
    assert hands.stages == STAGES
    assert len(runs.list_runs("runs", "small")) == 2


def test_a_training_that_ended_well_just_before_the_kill_is_not_trained_again(
    hands: Stagehands,
) -> None:
    def fell(stage: str) -> None:
        if stage == "fit":
            raise Felled

    hands.meanwhile = fell
    with pytest.raises(Felled):
        hands.retrain()
    assert hands.states["fit"] == "running"
    hands.meanwhile, hands.calls = lambda _stage: None, []

    assert hands.retrain() == 0
    assert hands.stages == ["test", "export"]


@pytest.mark.parametrize(
    ("stage", "code"),
    [("fit", 1), ("fit", 75), ("test", 1), ("export", 5), ("gate", 2), ("promote", 75)],
    ids=str,
)
def test_a_stage_that_fails_ends_the_retrain_with_its_code(
    hands: Stagehands, stage: str, code: int
) -> None:
    hands.codes[stage] = code
    assert hands.retrain(*JUDGED) == code
    assert hands.stages == STAGES[: STAGES.index(stage) + 1]
    assert hands.states[stage] == ("interrupted" if code == 75 else "failed")
    assert hands.record["ended"] is None

    hands.codes.clear()
    assert hands.retrain(*JUDGED) == 0
    assert hands.stages == STAGES[STAGES.index(stage) :]
    assert len(runs.list_runs("runs", "small")) == 1


def test_a_fit_that_removes_its_folder_leaves_no_retrain(hands: Stagehands) -> None:
    hands.codes["fit"] = 2
    hands.meanwhile = lambda _stage: shutil.rmtree(runs.list_runs("runs", "small")[0].folder)
    assert hands.retrain() == 2
    assert runs.list_runs("runs", "small") == []


def test_interruptions_are_no_failures(hands: Stagehands) -> None:
    hands.codes["export"] = 75
    for _ in range(5):
        assert hands.retrain() == 75
    assert hands.stages == ["fit", "test", *["export"] * 5]


def test_another_config_begins_a_new_training(
    hands: Stagehands, capsys: pytest.CaptureFixture[str]
) -> None:
    hands.codes["test"] = 1
    hands.retrain()
    hands.codes.clear()
    hands.calls = []
    hands.retrain("--model.hidden=5")
    assert hands.stages[0] == "fit"
    assert "was not finished, but had another config" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", [{"schema": 99}, {"schema": 1, "stages": [{"stage": "fit", "naps": 2}]}], ids=str
)
def test_an_unfinished_retrain_of_another_version_is_reported(
    hands: Stagehands, capsys: pytest.CaptureFixture[str], content: dict[str, Any]
) -> None:
    hands.codes["test"] = 1
    hands.retrain()
    runs.write_json(runs.list_runs("runs", "small")[0].folder / "retrain.json", content)
    hands.codes.clear()
    hands.calls = []
    assert hands.retrain() == 0
    assert hands.stages[0] == "fit"
    assert "was not finished, but its retrain.json is of another version" in capsys.readouterr().err


@pytest.mark.parametrize(
    "said",
    ["--run.wait_s=5", "--run.stale_s=60"],
)
def test_what_does_not_change_the_training_is_no_other_config(hands: Stagehands, said: str) -> None:
    hands.codes["test"] = 1
    hands.retrain()
    hands.codes.clear()
    hands.calls = []
    hands.retrain(said)
    assert hands.stages == ["test", "export"]


@pytest.mark.usefixtures("house")
def test_what_flags_say_of_the_run_is_read() -> None:
    words = ["-c", "small.yaml", "--run.report=false", "--run.wait_s=5", "--run.name=3"]
    stage_config = open_stage_config(parse(["fit", *words]))
    settings = read_run_settings(stage_config.resolved, stage_config.job_name)
    assert (settings.report, settings.wait_s, settings.name) == (False, 5, "3")


def test_a_slip_in_the_gate_costs_no_training(hands: Stagehands) -> None:
    slip = ("--gate.metric=test/acuracy", '--gate.slices={"tulips": 0.5}')
    hands.codes["gate"] = 2
    assert hands.retrain(*slip) == 2
    hands.codes.clear()
    hands.calls = []

    assert (
        hands.retrain(
            "--gate.metric=test/accuracy",
            '--gate.slices={"roses": 0.5}',
            options={"if-changed": True},
        )
        == 0
    )
    folder = runs.list_runs("runs", "small")[0].folder
    assert len(runs.list_runs("runs", "small")) == 1
    assert [words[:2] for words in hands.calls] == [
        ["gate", f"--run={folder}"],
        ["promote", f"--run={folder}"],
    ]
    judged_by = []
    for _, _, *words in hands.calls:
        loaded = load_config(parse(["test", "--run", str(folder), *words]), Problems())
        judged_by.append(read_gate(loaded.resolved))
    expected = GateSettings(metric="test/accuracy", slices={"roses": 0.5})
    assert judged_by == [expected, expected]


def test_a_new_run_is_begun_where_that_is_asked_for(hands: Stagehands) -> None:
    hands.codes["test"] = 1
    hands.retrain()
    hands.codes.clear()
    hands.calls = []
    hands.retrain(may_continue=False)
    assert hands.stages == ["fit", "test", "export"]


def test_stages_are_left_out_on_request_and_made_up_for_later(
    hands: Stagehands, capsys: pytest.CaptureFixture[str]
) -> None:
    hands.codes["gate"] = 75
    assert hands.retrain(*JUDGED, options={"skip": ("test", "export")}) == 75
    assert hands.stages == ["fit", "gate"]
    capsys.readouterr()
    assert hands.retrain(*JUDGED, options={"skip": ("test", "export")}) == 75
    assert "goes on with gate" in capsys.readouterr().err
    hands.codes.clear()
    hands.calls = []
    assert hands.retrain(*JUDGED, options={"skip": ("test",)}) == 0
    assert hands.stages == ["export", "gate", "promote"]
    assert hands.states["test"] == "skipped"


def test_a_stage_that_is_killed_is_a_failure(hands: Stagehands) -> None:
    hands.codes["test"] = -signal.SIGKILL
    assert hands.retrain() == 1
    (message,) = [state["message"] for state in hands.record["stages"] if state["stage"] == "test"]
    assert message.startswith("killed by SIGKILL: most likely no memory was left")


def test_a_signal_ends_the_retrain_and_the_same_command_goes_on(
    hands: Stagehands, capsys: pytest.CaptureFixture[str]
) -> None:
    def knock(stage: str) -> None:
        if stage == "test":
            hands.received = signal.SIGTERM

    hands.meanwhile, hands.codes["test"] = knock, 143
    assert hands.retrain() == 75
    assert (
        "Interrupted by SIGTERM. not finished: the same command goes on with test"
        in capsys.readouterr().out
    )
    hands.codes["test"] = 0  # it was as good as done when the signal came
    assert hands.retrain() == 75
    assert hands.states["test"] == "done"
    hands.meanwhile, hands.calls = lambda _stage: None, []
    assert hands.retrain() == 0
    assert hands.stages == ["export"]


def test_a_training_that_was_interrupted_with_nothing_to_resume_says_so(hands: Stagehands) -> None:
    def knock(_stage: str) -> None:
        hands.received = signal.SIGINT

    hands.meanwhile, hands.codes["fit"] = knock, 130
    assert hands.retrain() == 130


def _seconds_before(hands: Stagehands, left_s: float) -> float:
    (said,) = [word for word in hands.calls[0] if word.startswith("--deadline=")]
    moment = datetime.fromisoformat(said.partition("=")[2])
    return (datetime.now(UTC) + timedelta(seconds=left_s) - moment).total_seconds()


def test_training_is_given_less_time_than_there_is(hands: Stagehands) -> None:
    assert hands.retrain(left_s=1000.0) == 0
    # the first time a quarter
    assert _seconds_before(hands, 1000.0) == pytest.approx(250.0, abs=20)
    hands.calls = []
    hands.seconds = 100.0
    assert hands.retrain(left_s=1000.0) == 0
    assert _seconds_before(hands, 1000.0) == pytest.approx(1.5 * (2 + 2) + 10, abs=5)
    hands.calls = []
    assert hands.retrain(left_s=1000.0) == 0
    # medians of two
    assert _seconds_before(hands, 1000.0) == pytest.approx(1.5 * (51 + 51) + 10, abs=5)
    hands.calls = []
    assert hands.retrain(left_s=1000.0, options={"reserve": "33s"}) == 0
    assert _seconds_before(hands, 1000.0) == pytest.approx(33, abs=5)


def test_what_does_not_fit_any_more_is_left_to_the_next_start(
    hands: Stagehands, capsys: pytest.CaptureFixture[str]
) -> None:
    hands.seconds = 50.0
    assert hands.retrain() == 0
    hands.calls = []
    with pytest.raises(
        OutOfTime, match=r"test takes about 50 s; the same command goes on with test\."
    ):
        hands.retrain(left_s=30.0, options={"reserve": "1s", "junit": "j.xml"})
    assert hands.stages == ["fit"]
    assert "the same command goes on with test" in capsys.readouterr().out
    skipped = [
        case.get("name")
        for case in ET.parse("j.xml").iter("testcase")
        if case.find("skipped") is not None
    ]
    assert skipped == ["export", "gate", "promote"]
    (failure,) = ET.parse("j.xml").iter("failure")
    assert "test was not run: The deadline is in" in str(failure.get("message"))

    assert hands.retrain(left_s=1000.0) == 0
    assert hands.stages == ["test", "export"]


def test_quiet_reaches_all_stages(hands: Stagehands, capsys: pytest.CaptureFixture[str]) -> None:
    assert hands.retrain(*JUDGED, "--quiet", "--trust") == 0
    assert capsys.readouterr().out == ""
    assert all("--quiet" in words and "--trust" in words for words in hands.calls)


CODES = {
    "fit": [1, 2, 3, 6, 70, 74, 75, 130, 143, -9, -11],
    "test": [1, 2, 3, 70, 75, 143, -9],
    "export": [1, 2, 5, 75, 143, -9],
    "gate": [1, 2, 4, 75, 143, -9],
    "promote": [1, 2, 4, 5, 75, 143, -9],
}


ENDS = [(stage, code, True) for stage, codes in CODES.items() for code in codes]
# of a training that removes its folder
ENDS += [("fit", code, False) for code in CODES["fit"] if code != 6]


@pytest.mark.parametrize(("stage", "code", "has_folder"), ENDS, ids=str)
def test_junit_and_the_page_agree_with_the_code_of_each_stage(
    hands: Stagehands, monkeypatch: pytest.MonkeyPatch, stage: str, code: int, has_folder: bool
) -> None:
    def remove_folder(at: str) -> None:
        if at == stage and not has_folder:
            shutil.rmtree(runs.list_runs("runs", "small")[0].folder)

    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "page.md")
    hands.meanwhile, hands.codes[stage] = remove_folder, code
    returned = hands.retrain(*JUDGED, options={"junit": "j.xml"})

    cases = {str(case.get("name")): case for case in ET.parse("j.xml").iter("testcase")}
    failed = {
        name: each for name, case in cases.items() if (each := case.find("failure")) is not None
    }
    assert (len(failed) > 0) == (returned not in (0, 6))
    page = Path("page.md").read_text(encoding="utf-8")
    if failed:
        assert [*failed] == [stage]
        reason = str(failed[stage].get("message")).partition(": ")[2]
        assert reason
        assert reason[:40] in page
    else:
        assert str(cases["fit"].find("skipped").get("message")) == "nothing has changed"  # type: ignore[union-attr]
        assert "nothing has changed" in page


def test_nothing_to_do_with_code_0_is_no_failure(hands: Stagehands) -> None:
    hands.trains = False
    assert hands.retrain(options={"junit": "j.xml"}) == 0  # of --unchanged-ok
    assert ET.parse("j.xml").getroot().get("failures") == "0"
    assert ET.parse("j.xml").getroot().get("skipped") == "5"


@pytest.mark.parametrize("code", [2, 3, 1, 70], ids=str)
def test_a_reason_of_the_stage_is_that_of_the_retrain(hands: Stagehands, code: int) -> None:
    def fail(_stage: str) -> None:
        hands.reason = "photos: no such folder\n  --> small.yaml:3"

    hands.meanwhile = fail
    hands.codes["fit"] = code
    assert hands.retrain(options={"junit": "j.xml"}) == code
    (failure,) = ET.parse("j.xml").iter("failure")
    assert failure.get("message") == f"fit has ended with exit code {code}: photos: no such folder"
    assert "--> small.yaml:3" in str(failure.text)


@pytest.mark.parametrize(
    ("stage", "code", "sent"),
    [("fit", 2, True), ("fit", 3, True), ("fit", -9, False), ("test", 1, True), ("export", 5, True),
     ("export", -9, False),
     ("gate", 2, False), ("promote", 4, False), ("promote", 75, False)],
    ids=str,
)  # fmt: skip
def test_a_failure_is_sent_once_by_the_stage_or_by_the_retrain(
    hands: Stagehands, stage: str, code: int, sent: bool
) -> None:
    hands.codes[stage] = code
    hands.retrain(*JUDGED)
    assert hands.notifier.has_sent_end is sent
    assert hands.notifier.message.startswith(f"{stage}: ")


def test_a_decision_of_the_gate_is_the_message_of_its_refusal(hands: Stagehands) -> None:
    def refuse(stage: str) -> None:
        if stage == "gate":
            runs.write_json(
                runs.list_runs("runs", "small")[0].folder / "gate.json", {"passed": False}
            )

    hands.meanwhile, hands.codes["gate"] = refuse, 4
    hands.retrain(*JUDGED)
    assert hands.notifier.has_sent_end


@pytest.mark.parametrize(
    ("url", "expected", "passed"),
    [
        (
            "http://127.0.0.1:9/can-ary",
            "${oc.env:_LIGHTKIT_ADDRESS_0}",
            "http://127.0.0.1:9/can-ary",
        ),
        ("${oc.env:HOOK_URL}", "${oc.env:HOOK_URL}", None),
    ],
    ids=["plain", "reference"],
)
@pytest.mark.parametrize("place", ["callbacks", "trainer"])
def test_later_stages_get_the_notifiers_of_the_command_and_no_secret_among_their_arguments(
    hands: Stagehands,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    url: str,
    expected: str,
    passed: str | None,
) -> None:
    monkeypatch.setenv("HOOK_URL", "http://127.0.0.1:9/of-the-environment")
    entry = {"class_path": "WebhookNotifier", "init_args": {"webhook_url": url}}
    layer = (
        {"callbacks": {"hook": entry}}
        if place == "callbacks"
        else {"trainer": {"callbacks": [entry]}}
    )
    hands.house.write("hook.yaml", json.dumps(layer))  # which is YAML
    hands.retrain(*JUDGED, "-c", "hook.yaml")
    for words, environment in zip(hands.calls[1:], hands.environments[1:], strict=True):
        option = "--callbacks.hook=" if place == "callbacks" else "--trainer.callbacks="
        (flag,) = [word for word in words if word.startswith(option)]
        found = json.loads(flag.removeprefix(option))
        found = found[0] if place == "trainer" else found
        assert found["init_args"]["webhook_url"] == expected
        assert environment.get("_LIGHTKIT_ADDRESS_0") == passed
        assert not any("can-ary" in word or "of-the-environment" in word for word in words)


def judge(run: runs.Run, session: Any, **changes: Any) -> None:
    """Write the decision of a gate as `lightkit gate` does."""
    settings = {**read_gate(session.resolved).__dict__, "name": run.name, **changes}
    runs.write_json(run.folder / "gate.json", {"passed": True, "settings": settings})


def test_a_gate_alone_that_has_changed_is_judged_again_without_a_training(
    hands: Stagehands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = {"if-changed": True}
    assert hands.retrain(*JUDGED) == 0
    (run,) = runs.list_runs("runs", "small")
    monkeypatch.setattr(
        "lightkit.commands.retrain.compare_inputs", lambda _stage_config: Comparison(run, None, "")
    )
    judge(run, open_stage_config(parse(["fit", "-c", "small.yaml", *JUDGED])))
    hands.calls = []

    hands.codes["fit"] = 6
    assert hands.retrain(*JUDGED, options=changed) == 6
    assert hands.stages == ["fit"]

    assert hands.retrain(*JUDGED, "--gate.max=8", options=changed) == 0
    assert hands.stages == ["gate", "promote"]
    assert hands.record["outcome"] == "promoted"
    assert hands.states == dict.fromkeys(STAGES, "done")
    assert "only the gate has changed" in capsys.readouterr().err

    judge(run, open_stage_config(parse(["fit", "-c", "small.yaml", *JUDGED, "--gate.max=8"])))
    assert hands.retrain(*JUDGED, "--gate.max=8", options=changed) == 6
    assert hands.stages == ["fit"]

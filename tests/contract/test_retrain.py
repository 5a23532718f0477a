"""`lightkit retrain`: fit, test, export, gate and promote in one run folder.

It goes on from where a kill has left it.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.contract.conftest import copy_of
from tests.contract.examples import MY_PROJECT, SMALL
from tests.contract.workspace import (
    ForkServer,
    Process,
    Result,
    Workspace,
    read_events,
    read_json,
    wait_until_gone,
)
from tests.receiving import CANARY, Receiver, receiving

pytestmark = pytest.mark.timeout(1800)  # each stage is a new Python process

STAGES = ["fit", "test", "export", "gate", "promote"]
JUDGED = ("--gate.metric=test/loss", "--gate.mode=min", "--gate.max=9")
# a file, for --if-changed
RETRAIN = ("retrain", "-c", "small.yaml", "--data.init_args.note=small.yaml")


def stages_of(workspace: Workspace) -> dict[str, str]:
    """Read how the stages of the newest run stand; none if there is no run yet."""
    if not workspace.runs or not (workspace.runs[-1] / "retrain.json").exists():
        return {}
    return {
        state["stage"]: state["status"]
        for state in read_json(workspace.runs[-1] / "retrain.json")["stages"]
    }


def begun(run: Path) -> list[str]:
    """List the stages that were begun, in order."""
    return [event["stage"] for event in read_events(run, "stage") if event["status"] == "begun"]


def wait_for_stage(process: Process, workspace: Workspace, stage: str, *, time: int = 1) -> None:
    """Wait until a stage of the one run was begun so many times."""
    process.wait_for(
        lambda: workspace.runs and begun(workspace.only_run).count(stage) == time, timeout_s=400
    )


def kill_in(workspace: Workspace, stage: str, *words: str) -> Result:
    """Start a retrain, and kill it and all that it has started once a stage runs."""
    process = workspace.start(*RETRAIN, *JUDGED, *words)
    wait_for_stage(process, workspace, stage)
    process.signal_group(signal.SIGKILL)
    result = process.result()
    wait_until_gone(process.pid)
    return result


COUNTED = MY_PROJECT.replace(
    "    def _loader(self, shuffle):\n        x = torch.randn(self.count",
    "    def describe(self):\n"
    "        return {'fingerprint': f'{self.num_points} points'}\n\n"
    "    @property\n"
    "    def num_points(self):\n"
    "        return int(Path('count').read_text()) if Path('count').exists() else self.count\n\n"
    "    def _loader(self, shuffle):\n        x = torch.randn(self.num_points",
)
"""Data with a fingerprint, of as many points as the file `count` says."""


@dataclass(frozen=True)
class Nights:
    """A retrain that was killed, then interrupted, then went on to its end, and was begun again.

    Args:
        workspace: Where it ran.
        results: What each start printed.
        receiver: What its dead-man's switch was told.
    """

    workspace: Workspace
    results: dict[str, Result]
    receiver: Receiver

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.workspace.only_run


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Nights]:
    """A retrain through all stages; read only."""
    workspace = Workspace(tmp_path_factory.mktemp("nights") / "work", fork_server)
    assert COUNTED != MY_PROJECT
    workspace.write("my_project.py", COUNTED)
    with receiving() as receiver:
        workspace.write("small.yaml", {**SMALL, "run": {"heartbeat_url": receiver.url("beat")}})
        results = {}

        killed = workspace.start(*RETRAIN, *JUDGED)
        wait_for_stage(killed, workspace, "fit")
        results["beside"] = workspace.run(*RETRAIN, *JUDGED, "--run.heartbeat_url=null")
        wait_for_stage(killed, workspace, "test")
        killed.signal_group(signal.SIGKILL)
        results["killed"] = killed.result()
        wait_until_gone(killed.pid)

        interrupted = workspace.start(*RETRAIN, *JUDGED)
        wait_for_stage(interrupted, workspace, "test", time=2)
        interrupted.signal(signal.SIGTERM)
        results["interrupted"] = interrupted.result()

        words = (*RETRAIN, *JUDGED, "--reason=of November", "--junit=night.xml")
        results["finished"] = workspace.run(
            *words, environ={"GITHUB_STEP_SUMMARY": "step.md"}, timeout_s=900
        )
        results["history"] = workspace.run("history", "small")
        page = {"GITHUB_STEP_SUMMARY": "unchanged.md"}
        unchanged = (*RETRAIN, *JUDGED, "--if-changed", "--junit=unchanged.xml")
        results["unchanged"] = workspace.run(*unchanged, timeout_s=300)
        results["unchanged ok"] = workspace.run(
            *unchanged, "--unchanged-ok", environ=page, timeout_s=300
        )
        results["gate changed"] = workspace.run(*unchanged, "--gate.max=8", timeout_s=600)
        results["gate known"] = workspace.run(*unchanged, "--gate.max=8", timeout_s=600)
    yield Nights(workspace, results, receiver)
    workspace.close()


def test_retrain_fits_tests_exports_judges_and_promotes_in_one_folder(nights: Nights) -> None:
    nights.results["finished"].ok()
    assert stages_of(nights.workspace) == dict.fromkeys(STAGES, "done")
    assert read_json(nights.run / "retrain.json")["outcome"] == "promoted"
    assert (nights.run / "checkpoints" / "best.ckpt").is_file()
    assert (nights.run / "export" / "model.pt2").is_file()
    assert read_json(nights.run / "gate.json")["passed"] is True


def test_a_retrain_writes_the_report_of_all_stages(nights: Nights) -> None:
    page = (nights.run / "report.html").read_text(encoding="utf-8")
    assert "The gate passed this run" in page
    assert "points to this model" in (nights.run / "gate.html").read_text(encoding="utf-8")
    assert "model.pt2" in page
    assert "test/loss" in page


def test_a_killed_retrain_goes_on_with_the_stage_that_was_not_finished(nights: Nights) -> None:
    assert nights.results["killed"].code == -signal.SIGKILL
    assert begun(nights.run)[:7] == ["fit", "test", "test", "test", "export", "gate", "promote"]


def test_sigterm_is_passed_on_to_the_stage_and_ends_the_retrain_with_75(nights: Nights) -> None:
    assert nights.results["interrupted"].code == 75
    assert re.search(
        r"the same command goes on with (test|export)", nights.results["interrupted"].out
    )
    assert "nothing to resume" not in nights.results["interrupted"].err


def test_a_second_retrain_of_the_job_is_75_and_names_who_runs_it(nights: Nights) -> None:
    assert nights.results["beside"].code == 75
    assert re.search(r"process \d+", nights.results["beside"].err)


def test_a_promotion_of_a_retrain_is_logged_once_with_its_reason(nights: Nights) -> None:
    moves = [line for line in nights.results["history"].ok().out.splitlines() if "->" in line]
    assert len(moves) == 1
    assert moves[0].endswith("of November")


def test_retrain_reports_its_stages_on_the_screen_and_what_to_type_next(nights: Nights) -> None:
    lines = nights.results["finished"].out.splitlines()
    assert [line.split()[:2] for line in lines[-8:-3]] == [[stage, "done"] for stage in STAGES]
    assert lines[-1].split(maxsplit=1) == ["next", "lightkit history small"]


def test_the_log_of_a_retrain_has_one_closing_block(nights: Nights) -> None:
    words = [
        line.split(maxsplit=1)[0]
        for line in nights.results["finished"].out.splitlines()
        if line[:1].isalpha()
    ]
    assert [words.count(word) for word in ("run", "next", "end")] == [1, 1, 1]


def test_the_gate_of_a_retrain_takes_the_scores_of_its_test(nights: Nights) -> None:
    assert "those of its test" in nights.results["finished"].out
    decision = read_json(nights.run / "gate.json")
    assert (
        decision["scores"]["challenger"] == read_json(nights.run / "summary.json")["stages"]["test"]
    )
    assert decision["num_samples"] == 48


def test_the_gate_of_a_retrain_scores_again_where_the_data_has_changed_since_its_test(
    workspace: Workspace,
) -> None:
    workspace.write("my_project.py", COUNTED)
    words = ("--skip=export",)
    kill_in(workspace, "gate", *words)
    tested = read_json(workspace.only_run / "summary.json")["stages"]["test"]["test/loss"]
    workspace.write("count", "20")
    result = workspace.run(*RETRAIN, *JUDGED, *words, timeout_s=900)
    assert result.code in (0, 4), result.err
    assert "those of its test" not in result.out
    decision = read_json(workspace.only_run / "gate.json")
    again = json.loads(workspace.run("gate", "latest", *JUDGED, "--json").out)
    assert decision["num_samples"] == 20
    assert (
        decision["scores"]["challenger"]["test/loss"]
        == again["scores"]["challenger"]["test/loss"]
        != tested
    )


def test_retrain_writes_a_junit_case_and_a_row_of_the_step_summary_for_each_stage(
    nights: Nights,
) -> None:
    suites = ET.parse(nights.workspace.folder / "night.xml")
    assert [case.get("name") for case in suites.iter("testcase")] == STAGES
    assert [*suites.iter("failure")] == []
    step = (nights.workspace.folder / "step.md").read_text(encoding="utf-8")
    assert [stage for stage in STAGES if f"| {stage} | done |" in step] == STAGES


def test_a_dead_mans_switch_is_notified_of_a_retrain_as_a_whole(nights: Nights) -> None:
    signs = [request.path.removeprefix("/beat/*") for request in nights.receiver.of("beat")]
    assert signs == ["/start", "/start", "/start", ""] + ["/start", ""] * 4


def test_retrain_if_changed_ends_with_6_where_nothing_has_changed(nights: Nights) -> None:
    assert nights.results["unchanged"].code == 6
    assert len(nights.workspace.runs) == 1


def test_nothing_to_do_is_no_failure_in_junit(nights: Nights) -> None:
    assert nights.results["unchanged ok"].code == 0
    suites = ET.parse(nights.workspace.folder / "unchanged.xml")
    assert [*suites.iter("failure")] == []
    skipped = [str(each.get("message")) for each in suites.iter("skipped")]
    assert len(skipped) == 5
    assert skipped[0].startswith(f"nothing has changed since runs/small/{nights.run.name}")
    page = (nights.workspace.folder / "unchanged.md").read_text(encoding="utf-8")
    assert page.startswith("### lightkit retrain: nothing has changed since")


def test_a_retrain_judges_again_without_a_training_where_the_gate_alone_has_changed(
    nights: Nights,
) -> None:
    again = nights.results["gate changed"].ok()
    assert "only the gate has changed" in again.err
    assert begun(nights.run)[7:] == ["gate", "promote"]
    assert read_json(nights.run / "gate.json")["settings"]["max"] == 8
    assert nights.results["gate known"].code == 6
    assert len(nights.workspace.runs) == 1


@pytest.fixture(scope="module")
def messages() -> Iterator[Receiver]:
    """A server whose address is written in the config of `rejected`."""
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def rejected(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer, messages: Receiver
) -> Iterator[tuple[Workspace, Result]]:
    """A retrain of one epoch whose gate says no, with data that cannot be pickled; read only."""
    workspace = Workspace(tmp_path_factory.mktemp("rejected") / "work", fork_server)
    note = (
        "\nwith open('parents.txt', 'a') as file:\n    print(sys.argv[1], os.getppid(),"
        " file=file)\n"
    )
    note += "\ncollate = torch.utils.data.default_collate\n"
    note += "loader, DataLoader = DataLoader, lambda *args, **kwargs: loader(\n"
    note += (
        "    *args, **{**kwargs, 'num_workers': 1, 'collate_fn': lambda items: collate(items)}\n)\n"
    )
    workspace.write(
        "my_project.py", MY_PROJECT.replace("import os\n", "import os\nimport sys\n", 1) + note
    )
    hook = {"webhook_url": messages.url("hook"), "events": ["end", "failure", "gate"]}
    workspace.write(
        "small.yaml",
        {**SMALL, "callbacks": {"hook": {"class_path": "WebhookNotifier", "init_args": hook}}},
    )
    words = (
        "--gate.metric=test/loss",
        "--gate.mode=min",
        "--gate.max=0",
        "--skip=test",
        "--skip=export",
    )
    yield (
        workspace,
        workspace.run(*RETRAIN, *words, "--output=json", "--junit=no.xml", timeout_s=600),
    )
    workspace.close()


def test_a_gate_that_says_no_ends_the_retrain_with_4_and_nothing_is_promoted(
    rejected: tuple[Workspace, Result],
) -> None:
    workspace, result = rejected
    assert result.code == 4
    assert stages_of(workspace) == {
        "fit": "done", "test": "skipped", "export": "skipped", "gate": "failed",
        "promote": "skipped",
    }  # fmt: skip
    suites = ET.parse(workspace.folder / "no.xml")
    assert [
        case.get("name") for case in suites.iter("testcase") if case.find("failure") is not None
    ] == ["gate"]
    assert read_events(workspace.only_run, "promotion") == []


def test_all_stages_send_their_messages_to_an_address_that_is_written_in_the_config(
    rejected: tuple[Workspace, Result], messages: Receiver
) -> None:
    workspace, result = rejected
    sent = [
        (each.json["kind"], each.json["stage"], each.json["exit_code"])
        for each in messages.of("hook")
    ]
    assert sent == [("end", "fit", 0), ("gate", "gate", 4)]
    files = [
        path for path in workspace.folder.rglob("*") if path.is_file() and path.name != "small.yaml"
    ]
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []
    assert CANARY not in result.out + result.err


def test_a_command_by_itself_says_that_a_run_does_not_keep_an_address(
    rejected: tuple[Workspace, Result], workspace: Workspace
) -> None:
    copy_of(rejected[0].folder, workspace)
    alone = workspace.run("test", "--run=latest", "--quiet").ok()
    assert re.search(
        r"callbacks\.hook sends nothing: its webhook_url.*\$\{oc\.env:NAME\}", alone.err
    )


def test_retrain_prints_the_events_of_all_stages_as_one_stream(
    rejected: tuple[Workspace, Result],
) -> None:
    _, result = rejected
    ended = [(event["stage"], event["status"]) for event in result.json_lines
             if event["event"] == "stage" and event["status"] != "begun"]  # fmt: skip
    assert ended == [("fit", "done"), ("test", "skipped"), ("export", "skipped"),
                     ("gate", "failed"),
                     ("promote", "skipped")]  # fmt: skip
    assert {"start", "epoch", "checkpoint", "end", "gate"} <= {
        event["event"] for event in result.json_lines
    }


def test_the_stages_of_a_retrain_are_forked_from_one_process(
    rejected: tuple[Workspace, Result],
) -> None:
    workspace, _ = rejected
    lines = [
        line.split()
        for line in (workspace.folder / "parents.txt").read_text(encoding="utf-8").splitlines()
    ]
    parents = {stage: parent for stage, parent in lines if stage != "retrain"}
    assert parents.keys() == {"fit", "gate"}
    assert len(set(parents.values())) == 1


def test_a_retrain_loads_data_that_cannot_be_pickled_as_fit_does(
    rejected: tuple[Workspace, Result],
) -> None:
    workspace, _ = rejected
    assert stages_of(workspace)["fit"] == "done"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--run", "latest"], r"--run\b.*--run\.resume"),
        (["--skip", "gate", *JUDGED], r"--skip.*not judged"),
        (["--skip", "tests"], r"did you mean 'test'"),
        (["--reserve", "soon"], r"--reserve.*10m.*'soon'"),
        (["--deadline", "soon"], r"--deadline.*05:30"),
        (["--unchanged-ok"], r"--unchanged-ok.*--if-changed"),
        (["--reason", "why not"], r"--reason.*gate\.metric"),
        (["--gate.min=0.8"], r"gate\.min.*metric"),
        (["--gate.metric=test/loss"], r"gate: there is no rule.*--gate\.max=VALUE"),
        (
            ["--logger.mlflow.tags={api_key: can-ary}"],
            r"logger\.mlflow\.init_args\.tags\.api_key: \*\*\*.*oc\.env",
        ),
        (
            ["--logger.mlflow.tracking_uri=http://me:can-ary@127.0.0.1:9"],
            r"tracking_uri: .*\*\*\*.*oc\.env",
        ),
    ],
    ids=[
        "run",
        "gate",
        "stage",
        "reserve",
        "deadline",
        "unchanged-ok",
        "reason",
        "metric",
        "rule",
        "secret",
        "address",
    ],
)
def test_what_cannot_be_meant_is_reported_before_hours_of_training(
    workspace: Workspace, words: list[str], says: str
) -> None:
    result = workspace.run(*RETRAIN, *words)
    assert result.code == 2, result.err
    assert re.search(says, result.err)
    assert "can-ary" not in result.err
    assert workspace.runs == []


def test_no_training_is_begun_without_time_for_what_follows(workspace: Workspace) -> None:
    result = workspace.run(*RETRAIN, "--deadline=30s", "--reserve=40s")
    assert result.code == 2, "the same command has no more time"
    assert "--reserve" in result.err
    assert workspace.runs == []


@pytest.mark.long
@pytest.mark.parametrize("stage", ["fit", "export", "gate", "promote"])
def test_a_retrain_that_is_killed_in_any_stage_goes_on_with_it(
    workspace: Workspace, stage: str
) -> None:
    left_out = () if stage == "export" else ("--skip=export",)
    assert kill_in(workspace, stage, *left_out).code == -signal.SIGKILL
    workspace.run(*RETRAIN, *JUDGED, *left_out, timeout_s=900).ok()
    run = begun(workspace.only_run)
    expected = [name for name in STAGES if name != "export" or stage == "export"]
    assert sorted(run) == sorted([*expected, stage])
    assert read_json(workspace.only_run / "retrain.json")["outcome"] == "promoted"
    history = workspace.run("history", "small").ok().out
    assert len(re.findall(r"^\S+Z +promote +- -> 1", history, re.MULTILINE)) == 1


@pytest.mark.long
@pytest.mark.parametrize("stage", ["export", "gate", "promote"])
def test_a_retrain_that_gets_sigterm_in_any_stage_goes_on_with_it(
    workspace: Workspace, stage: str
) -> None:
    left_out = () if stage == "export" else ("--skip=export",)
    process = workspace.start(*RETRAIN, *JUDGED, *left_out)
    wait_for_stage(process, workspace, stage)
    process.signal(signal.SIGTERM)
    result = process.result()
    assert result.code == 75, result.out + result.err
    assert f"the same lightkit retrain goes on with {stage}" in result.out + result.err
    wait_until_gone(process.pid)
    workspace.run(*RETRAIN, *JUDGED, *left_out, timeout_s=900).ok()
    run = begun(workspace.only_run)
    expected = [name for name in STAGES if name != "export" or stage == "export"]
    assert sorted(run) == sorted([*expected, stage])
    assert read_json(workspace.only_run / "retrain.json")["outcome"] == "promoted"
    history = workspace.run("history", "small").ok().out
    assert len(re.findall(r"^\S+Z +promote +- -> 1", history, re.MULTILINE)) == 1


@pytest.mark.long
def test_a_stage_that_has_failed_three_times_is_given_up_and_the_next_start_trains_anew(
    workspace: Workspace,
) -> None:
    fails = (
        "import my_project\n\n\nclass Net(my_project.Net):\n    def test_step(self, batch,"
        " index):\n        raise ValueError('tests are out of stock')\n"
    )
    workspace.write("my_failing.py", fails)
    words = (*RETRAIN, "--model=my_failing.Net", "--skip=export")
    assert [workspace.run(*words, timeout_s=600).code for _ in range(3)] == [1, 1, 1]
    assert begun(workspace.only_run) == ["fit", "test", "test", "test"]
    assert workspace.run(*words, timeout_s=600).code == 1
    assert [begun(run) for run in workspace.runs][1] == ["fit", "test"]

"""`lightkit promote`, `rollback` and `history`.

An alias moves to what has passed, and the log tells the truth.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.contract.conftest import copy_of
from tests.contract.registry import read_registry
from tests.contract.workspace import (
    LIGHTKIT,
    ForkServer,
    Result,
    Workspace,
    read_events,
    read_json,
)

pytestmark = pytest.mark.timeout(900)  # on a busy machine

LOOSE = "--gate.max_drop=0.5"
"""With it the run of accuracy 0.8 passes its gate."""


def read_moves(result: Result) -> list[tuple[str, ...]]:
    """Read kind, version before and version after of the moves that `lightkit history` tells."""
    return re.findall(
        r"^\S+Z +(promote|rollback)(?: by force)? +(\S+) -> (\S+)", result.ok().out, re.MULTILINE
    )


def champion(workspace: Workspace) -> str:
    """Read the version that the alias points to."""
    version: str = read_registry(workspace)["net"]["aliases"]["champion"]
    return version


@dataclass(frozen=True)
class Night:
    """Commands that were run one after another, and the champion after each.

    Args:
        workspace: Where they were run.
        results: What they printed, by name.
        champions: Version that the alias `champion` pointed to, by name.
        registry: What MLflow holds at the end.
    """

    workspace: Workspace
    results: dict[str, Result]
    champions: dict[str, str]
    registry: dict[str, Any]


@pytest.fixture(scope="module")
def night(
    planted_original: Path, tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Night]:
    """Promotions, refusals and rollbacks of two runs; read only."""
    workspace = copy_of(
        planted_original, Workspace(tmp_path_factory.mktemp("night") / "work", fork_server)
    )
    better, worse = (str(run) for run in workspace.runs)
    commands = {
        "refused": ("promote", worse, "--junit=promote.xml"),
        "loosened": ("promote", worse, LOOSE, "--reason=a test"),
        "twice": ("promote", worse, LOOSE),
        "better again": ("promote", better),
        "back": ("rollback", "net", "--reason=it is worse"),
        "nowhere": ("rollback", "net", "--to=2"),
        "twice back": ("rollback", "net"),
        "too far back": ("rollback", "net"),
        "rejected": ("promote", worse, LOOSE),
        "marked": ("runs", "net", "--json"),
        "table": ("runs", "net"),
        "forced": ("promote", worse, "--force"),
        "history": ("history", "net"),
        "models": ("history",),
        "models as json": ("history", "--json"),
        "misspelt": ("history", "nett"),
    }
    results, champions = {}, {}
    for name, words in commands.items():
        results[name] = workspace.run(*words, environ={"GITHUB_ACTOR": None})
        if name in ("refused", "back", "twice back"):
            champions[name] = champion(workspace)
    yield Night(workspace, results, champions, read_registry(workspace))
    workspace.close()


def test_promote_registers_a_run_that_has_passed_and_moves_the_alias(
    night: Night, planted_original: Path
) -> None:
    better = night.workspace.runs[0]
    version = night.registry["net"]["versions"]["1"]
    assert version["tags"]["run"] == f"net/{better.name}"
    assert read_moves(night.results["history"])[0] == ("promote", "-", "1")
    events = read_events(planted_original / better.relative_to(night.workspace.folder))
    (moved,) = [event for event in events if event["event"] == "promotion"]
    assert (moved["alias"], moved["to"], moved["reason"]) == ("champion", "1", "the first")


@dataclass(frozen=True)
class Judged:
    """A run that has passed its gate on data of which a file is known.

    Args:
        workspace: Where it is.
        run: The run.
        words: Arguments of the gate, and of its promotion.
        decision: Content of its gate.json.
    """

    workspace: Workspace
    run: Path
    words: tuple[str, ...]
    decision: dict[str, Any]

    def promote(self) -> Result:
        return self.workspace.run("promote", str(self.run), *self.words)


@pytest.fixture
def judged(planted: Workspace) -> Judged:
    """The worse of two runs, which has passed a loose gate."""
    planted.write("samples.txt", "100 numbers")
    run = planted.runs[1]
    words = (LOOSE, "--data.init_args.note=samples.txt")
    planted.run("gate", str(run), *words).ok()
    return Judged(planted, run, words, read_json(run / "gate.json"))


def test_promote_goes_by_a_decision_that_still_holds(judged: Judged) -> None:
    promoted = judged.promote().ok()
    assert "gate  is asked" not in promoted.out
    assert read_json(judged.run / "gate.json") == judged.decision
    assert champion(judged.workspace) == "2"


def test_promote_judges_again_where_the_data_has_changed_since_the_gate(judged: Judged) -> None:
    judged.workspace.write("samples.txt", "101 numbers")
    promoted = judged.promote().ok()
    assert "of another checkpoint, champion, gate or data" in promoted.out
    assert (
        read_json(judged.run / "gate.json")["inputs"]["data"] != judged.decision["inputs"]["data"]
    )


def test_promote_judges_again_where_the_code_has_changed_since_the_gate(judged: Judged) -> None:
    code = judged.workspace.folder / "my_skilled.py"
    text = code.read_text(encoding="utf-8")
    assert ">= self.skill" in text
    code.write_text(text.replace(">= self.skill", ">= 10"), encoding="utf-8")
    refused = judged.promote()
    assert refused.code == 4, "the model is right on a tenth of the samples now"
    assert champion(judged.workspace) == "1"


def test_promote_judges_again_by_drift_where_another_model_was_promoted_since_the_gate(
    judged: Judged,
) -> None:
    """Without a baseline, of which another version would tell."""
    workspace = judged.workspace
    words = (
        *("--gate.baseline=null", "--gate.max_drop=null"),
        *("--gate.drift={window: 1, max_drop: 0.15}", "--data.init_args.note=samples.txt"),
    )
    better, worse = map(str, workspace.runs)
    for run in (better, worse):
        workspace.run("gate", run, *words).ok()
    assert "gate  is asked" not in workspace.run("promote", worse, *words).ok().out
    assert "gate  is asked" in workspace.run("promote", better, *words).ok().out
    drift = read_json(Path(better) / "gate.json")["drift"]
    assert (drift["version"], drift["best"]) == ("2", pytest.approx(0.8))


def test_promote_keeps_checkpoint_and_config_in_mlflow(night: Night) -> None:
    kept = [Path(path).name for path in night.registry["net"]["versions"]["1"]["artifacts"]]
    assert "best.ckpt" in kept
    assert "config.yaml" in kept


def test_promote_judges_again_a_run_that_has_passed_against_another_champion(night: Night) -> None:
    refused = night.results["refused"]
    assert refused.code == 4
    assert re.search(r"expected at most 0\.02 worse than net version 1", refused.err)
    assert ET.parse(night.workspace.folder / "promote.xml").getroot().get("failures") == "1"
    assert night.champions["refused"] == "1"


def test_promote_judges_again_under_other_settings(night: Night) -> None:
    assert "version 2" in night.results["loosened"].ok().out
    assert ("promote", "1", "2") in read_moves(night.results["history"])


def test_promoting_the_champion_again_changes_nothing(night: Night) -> None:
    assert "is version 2 already" in night.results["twice"].ok().out
    assert [move for move in read_moves(night.results["history"]) if move[2] == "2"].count(
        ("promote", "1", "2")
    ) == 2
    assert sorted(night.registry["net"]["versions"]) == ["1", "2"]


def test_rollback_goes_back_to_the_champion_before_and_twice_to_the_one_before_that(
    night: Night,
) -> None:
    assert [night.champions[name] for name in ("back", "twice back")] == ["2", "1"]
    assert re.search(r"version 1 back to version 2", night.results["back"].ok().out)


def test_rollback_refuses_where_there_was_no_champion_before(night: Night) -> None:
    refused = night.results["too far back"]
    assert refused.code == 2
    assert "--to" in refused.err


def test_rollback_to_the_champion_itself_is_refused(night: Night) -> None:
    refused = night.results["nowhere"]
    assert refused.code == 2
    assert "net@champion is version 2 already" in refused.err


def test_a_version_that_was_rolled_back_is_promoted_again_by_force_alone(night: Night) -> None:
    rejected = night.results["rejected"]
    assert rejected.code == 4
    assert re.search(r"version 2 was rolled back.*--force", rejected.err)
    assert night.results["forced"].code == 0


def test_lightkit_runs_marks_the_champion(night: Night) -> None:
    aliases = {run["id"]: run["aliases"] for run in json.loads(night.results["marked"].ok().out)}
    better, worse = (run.name for run in night.workspace.runs)
    assert aliases == {better: ["champion"], worse: []}
    marks = {
        line.split()[1]: line.split()[-1]
        for line in night.results["table"].ok().out.splitlines()[1:]
    }
    assert marks == {better: "champion", worse: "promoted"}


def test_of_two_promotions_of_a_run_at_once_one_wins_and_the_other_ends_with_75(
    planted: Workspace,
) -> None:
    run = str(planted.runs[1])
    processes = [planted.start("promote", run, "--force") for _ in range(2)]
    results = sorted((process.result() for process in processes), key=lambda result: result.code)
    assert [result.code for result in results] == [0, 75]
    assert "promote" in results[1].err
    assert sorted(read_registry(planted)["net"]["versions"]) == ["1", "2"]
    assert champion(planted) == "2"


def test_promote_force_passes_the_gate_over_and_history_reports_it(night: Night) -> None:
    assert night.results["forced"].code == 0
    assert re.search(r"promote by force +1 -> 2", night.results["history"].out)


def test_history_reports_who_promoted_what_when_and_why(night: Night) -> None:
    out = night.results["history"].ok().out
    assert read_moves(night.results["history"]) == [
        ("promote", "-", "1"), ("promote", "1", "2"), ("promote", "2", "1"), ("rollback", "1", "2"),
        ("rollback", "2", "1"), ("promote", "1", "2"),
    ]  # fmt: skip
    first, second = [line for line in out.splitlines() if "->" in line][:2]
    assert re.search(r"^20\d\d-\d\d-\d\dT\S+Z .* \S+@\S+ +0\.9000 test/accuracy +the first$", first)
    assert re.search(r"0\.8000 test/accuracy +0\.9000 +a test$", second)
    assert "it is worse" in out


def test_history_without_a_name_lists_the_models_with_their_champions(night: Night) -> None:
    assert (
        night.results["models"].ok().out
        == "model  champion  other aliases\nnet    2         challenger 2\n"
    )
    aliases = {"champion": "2", "challenger": "2"}
    assert json.loads(night.results["models as json"].ok().out) == {
        "name": "net",
        "aliases": aliases,
    }


def test_history_of_a_model_that_is_not_there_names_the_near_one(night: Night) -> None:
    assert night.results["misspelt"].code == 2
    assert re.search(r"'nett'.*did you mean 'net'", night.results["misspelt"].err)


@pytest.mark.parametrize(
    ("moment", "kept"),
    [("before", "1"), pytest.param("after", "2", marks=pytest.mark.long)],
    ids=["before", "after"],
)
def test_after_a_kill_around_the_alias_history_reports_what_the_alias_says(
    planted: Workspace, moment: str, kept: str
) -> None:
    words = ("promote", str(planted.runs[1]), LOOSE)
    assert planted.run(*words, environ={"KILL_AROUND_ALIAS": moment}).code == -signal.SIGKILL
    assert champion(planted) == kept
    history = planted.run("history", "net")
    assert read_moves(history) == [("promote", "-", "1")]
    outside = re.findall(r"outside +(\d) -> (\d) .*by a process that was killed", history.out)
    assert outside == ([("1", "2")] if moment == "after" else [])
    planted.run(*words).ok()
    moves = read_moves(planted.run("history", "net"))
    assert moves == [("promote", "-", "1"), ("promote", "1", "2")]
    assert champion(planted) == "2"


@pytest.mark.long
def test_of_two_promotions_at_once_history_and_alias_agree(planted: Workspace) -> None:
    processes = [planted.start("promote", str(run), "--force") for run in planted.runs[::-1] * 2]
    assert {process.wait() for process in processes} <= {0, 75}
    assert read_moves(planted.run("history", "net"))[-1][2] == champion(planted)


@pytest.mark.parametrize(
    "words",
    [("promote", "latest", "--gate.baseline=null", "--gate.max_drop=null"), ("history", "net")],
    ids=lambda words: str(words[0]),
)
def test_a_registry_that_does_not_answer_is_75_and_its_password_is_masked(
    planted: Workspace, words: tuple[str, ...]
) -> None:
    result = planted.run(*words, "--tracking-uri=http://me:sesame@127.0.0.1:9")
    assert result.code == 75
    assert "--tracking-uri" in result.err
    assert "sesame" not in result.out + result.err
    assert "Traceback" not in result.err


NOTED = "--data.init_args.note=net.yaml"
"""A file that the config names as data, so that the inputs of a training are known."""
RETRAIN = ("retrain", "-c", "net.yaml", NOTED, LOOSE, "--skip=test", "--skip=export")


@dataclass(frozen=True)
class Weeks:
    """Commands around a rollback and a hold, one after another.

    Args:
        workspace: Where they were run.
        results: What they printed, by name.
        num_runs: Number of runs after each.
        champions: Version that the alias `champion` pointed to at the end of each.
    """

    workspace: Workspace
    results: dict[str, Result]
    num_runs: dict[str, int]
    champions: dict[str, str]


@pytest.fixture(scope="module")
def weeks(
    planted_original: Path, tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Weeks]:
    """A worse model that is promoted, rolled back, trained again and held; read only."""
    workspace = copy_of(
        planted_original, Workspace(tmp_path_factory.mktemp("weeks") / "work", fork_server)
    )
    champion(workspace)  # its script is code of the working directory from now on
    weeks = Weeks(workspace, {}, {}, {})

    def run(name: str, *words: str) -> None:
        weeks.results[name] = workspace.run(*words, environ={"GITHUB_ACTOR": None}, timeout_s=600)
        weeks.num_runs[name] = len(workspace.runs)
        weeks.champions[name] = champion(workspace)

    fit = ("fit", "-c", "net.yaml", NOTED, "--model.init_args.skill=80", "--quiet")
    run("worse", *fit)
    run("worse promoted", "promote", "latest", "--name=net", LOOSE, "--quiet")
    run("back", "rollback", "net", "--reason=too bad")
    run("same inputs", *RETRAIN, "--model.init_args.skill=80")
    run("again", *fit, "--run.resume=never")
    run("same weights", "promote", "latest", "--name=net", LOOSE)
    run("other inputs", "fit", "-c", "net.yaml", "--model.init_args.skill=80", "--quiet")
    run("same weights of other inputs", "promote", "latest", "--name=net", LOOSE)
    run("held", "promote", "--hold", "net", "--reason=an audit")
    run("held again", "promote", "--hold", "net")
    run("promoted while held", "promote", str(workspace.runs[0]), "--force")
    run("retrained while held", *RETRAIN, "--model.init_args.skill=95")
    run("history while held", "history", "net")
    run("hold of no model", "promote", "--hold", "nett")
    run("hold and run", "promote", str(workspace.runs[0]), "--hold", "net")
    run("released", "promote", "--release", "net")
    run("forced", "promote", "latest", "--name=net", "--force")
    run("same weights as the champion", *fit, "--run.resume=never")
    run("wanted again", "promote", "latest", "--name=net", LOOSE)
    yield weeks
    workspace.close()


def test_a_worse_model_that_is_promoted_is_a_line_of_output_also_with_quiet(weeks: Weeks) -> None:
    promoted = weeks.results["worse promoted"]
    assert promoted.code == 0, promoted.err
    assert (
        "a worse model was promoted, within gate.max_drop 0.5: test/accuracy of version 2 is 0.8"
        in promoted.err
    )
    assert "0.1 worse than 0.9 of version 1" in promoted.err


@pytest.mark.parametrize("name", ["same weights", "same weights of other inputs"])
def test_what_was_rolled_back_is_not_promoted_again_from_another_training(
    weeks: Weeks, name: str
) -> None:
    refused = weeks.results[name]
    assert refused.code == 4
    says = (
        r"net version 2 was rolled back by \S+@\S+ at 20\S+ \(too bad\), and this model has the"
        r" same weights"
    )
    assert re.search(says, refused.err)
    assert "--force" in refused.err
    assert weeks.champions[name] == "1"


def test_what_was_rolled_back_is_not_trained_again_by_a_retrain(weeks: Weeks) -> None:
    refused = weeks.results["same inputs"]
    assert refused.code == 4
    assert re.search(
        r"net version 2 was rolled back by .* at 20\S+ \(too bad\).*Nothing was trained",
        refused.err,
    )
    assert weeks.num_runs["same inputs"] == weeks.num_runs["worse"]


def test_what_was_rolled_back_is_promoted_by_force_and_wanted_from_then_on(weeks: Weeks) -> None:
    weeks.results["forced"].ok()
    assert weeks.champions["forced"] != "1"
    weeks.results["wanted again"].ok()


@pytest.mark.parametrize("name", ["promoted while held", "retrained while held"])
def test_an_alias_that_is_held_stays_and_the_command_ends_with_4_and_names_who_holds_it(
    weeks: Weeks, name: str
) -> None:
    refused = weeks.results[name]
    assert refused.code == 4
    assert re.search(
        r"net@champion is held by \S+@\S+ since 20\S+ \(an audit\)\..*--release net", refused.err
    )
    assert weeks.champions[name] == "1"
    assert weeks.num_runs[name] == weeks.num_runs["held"]


def test_a_hold_ends_with_its_release(weeks: Weeks) -> None:
    held, again = weeks.results["held"].ok().out, weeks.results["held again"].ok().out
    assert held == again
    assert held.strip() in weeks.results["history while held"].ok().out
    assert "net@champion may move again" in weeks.results["released"].ok().out


def test_a_hold_takes_the_name_of_a_model(weeks: Weeks) -> None:
    assert weeks.results["hold of no model"].code == 2
    assert "did you mean 'net'" in weeks.results["hold of no model"].err
    assert weeks.results["hold and run"].code == 2


NO_PRIVILEGES = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""Root without the right to pass over the permissions of files."""


def run_as_user(workspace: Workspace, *words: str) -> Result:
    """Run a command to which the permissions of files apply."""
    prefix = NO_PRIVILEGES if os.geteuid() == 0 else ()
    ended = subprocess.run(
        [*prefix, LIGHTKIT, *words],
        cwd=workspace.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return Result(ended.returncode, ended.stdout, ended.stderr)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="root may write everything")
@pytest.mark.parametrize(
    "words",
    [("rollback", "net"), ("promote", "--hold", "net"), ("promote", "RUN", "--force"), RETRAIN],
    ids=["rollback", "hold", "promote", "retrain"],
)
def test_a_registry_that_can_only_be_read_is_refused_before_anything_is_judged(
    planted: Workspace, words: tuple[str, ...]
) -> None:
    database = planted.folder / "runs" / "mlflow.db"
    database.chmod(0o444)
    words = tuple(word.replace("RUN", str(planted.runs[1])) for word in words)
    num_runs = len(planted.runs)
    refused = run_as_user(planted, *words)
    assert refused.code == 2, refused.err
    assert "mlflow.db cannot be written: this user may only read " in refused.err
    assert "scores run" not in refused.out
    assert len(planted.runs) == num_runs
    history = run_as_user(planted, "history", "net")
    assert read_moves(history) == [("promote", "-", "1")]


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_lock_of_a_promotion_that_cannot_be_taken_is_reported_in_words(
    planted: Workspace, kind: str
) -> None:
    lock = planted.runs[0] / ".promote.lock"
    lock.unlink(missing_ok=True)
    if kind == "link":
        lock.symlink_to(planted.folder / "elsewhere")
    else:
        lock.mkdir()
    refused = planted.run("promote", str(planted.runs[0]))
    assert refused.code == 2
    assert ".promote.lock cannot be taken" in refused.err
    assert "Traceback" not in refused.err

"""JUnit and the page of the CI step: they tell of a failure where the exit code is one, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.contract.conftest import copy_of
from tests.contract.workspace import ForkServer, Result, Workspace

pytestmark = pytest.mark.timeout(1800)  # on a busy machine

BETTER, WORSE = "@better", "@worse"
IN_23_HOURS = f"{datetime.now() - timedelta(hours=1):%H:%M}"
AWAY = "--tracking-uri=http://127.0.0.1:9"
NOWHERE = ("--data=ImageFolder", "--data.root=nowhere")
JUDGED = ("--gate.baseline=null", "--gate.max_drop=null", "--gate.slices=null")
SMALL = ("-c", "small.yaml")


@dataclass(frozen=True)
class Ending:
    """A command, its exit code, and words of the reason on the page and in JUnit.

    Args:
        words: The command line.
        code: Exit code.
        says: Part of the reason; empty where all is well.
    """

    words: tuple[str, ...]
    code: int
    says: str = ""


ENDINGS = {
    "check 0": Ending(("check", *SMALL), 0),
    "check 2": Ending(("check", *SMALL, "--model.hiden=3"), 2, "hiden"),
    "check data": Ending(("check", *SMALL, *NOWHERE), 2, "nowhere"),
    "gate 0": Ending(("gate", BETTER, *JUDGED), 0),
    "gate nothing": Ending(("gate", BETTER, "--gate=null", "--allow-empty"), 0),
    "gate 2": Ending(("gate", BETTER, "--gate=null"), 2, "there is no rule"),
    "gate 3": Ending(("gate", BETTER, *NOWHERE, *JUDGED), 3, "nowhere"),
    "gate 4": Ending(("gate", WORSE), 4, "at most 0.02 worse"),
    "gate 75": Ending(("gate", WORSE, AWAY), 75, "--tracking-uri"),
    "promote 0": Ending(("promote", BETTER), 0),
    "promote 2": Ending(("promote", BETTER, "--alias=latest"), 2, "--alias"),
    "promote 4": Ending(("promote", WORSE), 4, "at most 0.02 worse"),
    "promote 75": Ending(("promote", WORSE, AWAY), 75, "--tracking-uri"),
    "fit 0": Ending(("fit", *SMALL, "--trainer.max_epochs=1"), 0),
    "fit 1": Ending(("fit", *SMALL, "--model=my_project.FailsInStep"), 1,
                    "batches are out of stock"),
    "fit 2": Ending(("fit", *SMALL, "--model.hiden=3"), 2, "hiden"),
    "fit 3": Ending(("fit", *SMALL, *NOWHERE), 3, "nowhere"),
    "retrain 1": Ending(("retrain", *SMALL, "--model=my_project.FailsInInit"), 1,
                        "hidden layers are out of stock"),
    "retrain 2": Ending(("retrain", *SMALL, "--model.hiden=3"), 2, "hiden"),
    "retrain 3": Ending(("retrain", *SMALL, *NOWHERE), 3, "nowhere"),
    "retrain 75": Ending(("retrain", *SMALL, f"--deadline={IN_23_HOURS}", "--reserve=23h30m"), 75,
                         "--reserve"),
}  # fmt: skip


@dataclass(frozen=True)
class Reported:
    """What a command has reported.

    Args:
        result: Its exit code, and what it printed.
        junit: Its file; None for none.
        page: What it added to the page of the step.
    """

    result: Result
    junit: ET.Element | None
    page: str


@pytest.fixture(scope="module")
def reported(
    planted_original: Path, tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[dict[str, Reported]]:
    """All endings, run one after another in one working directory; read only."""
    workspace = copy_of(
        planted_original, Workspace(tmp_path_factory.mktemp("endings") / "work", fork_server)
    )
    better, worse = (str(run) for run in workspace.runs)
    found = {}
    for name, ending in ENDINGS.items():
        words = [{BETTER: better, WORSE: worse}.get(word, word) for word in ending.words]
        junit, page = workspace.folder / f"{name}.xml", workspace.folder / f"{name}.md"
        with_junit = [] if words[0] == "fit" else [f"--junit={junit}"]
        result = workspace.run(
            *words, *with_junit, environ={"GITHUB_STEP_SUMMARY": str(page)}, timeout_s=400
        )
        found[name] = Reported(
            result,
            ET.parse(junit).getroot() if junit.exists() else None,
            page.read_text(encoding="utf-8") if page.exists() else "",
        )
    yield found
    workspace.close()


@pytest.mark.parametrize("name", ENDINGS)
def test_junit_and_the_page_tell_of_a_failure_where_the_exit_code_is_one(
    reported: dict[str, Reported], name: str
) -> None:
    ending, found = ENDINGS[name], reported[name]
    assert found.result.code == ending.code, found.result.err
    assert found.page.startswith("### ")
    assert ending.says in found.page
    if name.startswith("fit"):  # which has no --junit
        return
    assert found.junit is not None
    failures = [str(failure.get("message")) for failure in found.junit.iter("failure")]
    assert (len(failures) > 0) == (ending.code not in (0, 6))
    assert int(str(found.junit.get("failures"))) == len(failures)
    assert all(failures)
    assert not failures or ending.says in "".join(
        str(failure.text) for failure in found.junit.iter("failure")
    )
    assert all(str(skipped.get("message")).strip() for skipped in found.junit.iter("skipped"))

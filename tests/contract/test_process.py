"""A forked command is a process like any other: exit codes, streams, signals, sessions."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.contract.workspace import (
    Workspace,
    read_events,
    read_json,
    session_members,
    wait_until_gone,
)


def test_a_forked_command_does_what_a_cold_one_does(workspace: Workspace) -> None:
    check = [
        "check",
        "-c",
        "small.yaml",
        "--model=Regressor",
        "--data=Temperatures",
        "--trainer.max_epochs=ten",
    ]
    for words in (["--version"], ["nonsense"], check):
        assert workspace.run(*words) == workspace.run_cold(*words), words


def test_a_forked_fit_ends_on_sigterm_and_leaves_no_process(workspace: Workspace) -> None:
    (workspace.folder / "hold").write_text("8", encoding="utf-8")
    process = workspace.start(
        "fit", "-c", "small.yaml", "callbacks.hold.class_path=my_project.Hold"
    )
    process.wait_for((workspace.folder / "held").exists)
    assert process.pid in session_members(process.pid)
    process.signal(signal.SIGTERM)
    (workspace.folder / "hold").unlink()
    assert process.wait() == 75, process.err
    wait_until_gone(process.pid)
    (end,) = read_events(workspace.only_run, "end")
    assert end["status"] == "preempted"


def test_runs_that_are_made_once_end_as_their_names_say(
    finished: Workspace, interrupted_original: object, classifier_original: object
) -> None:
    assert read_json(finished.only_run / "summary.json")["status"] == "done"


STARTS = {
    "PYTHONPATH": "import runpy; runpy.run_module('lightkit', run_name='__main__')",
    "foreign_pth": (
        "import site; site.addsitedir('packages'); import runpy; "
        "runpy.run_module('lightkit', run_name='__main__')"
    ),
}
WITHOUT_SITE = (
    "import os, sys; os.execv(sys.executable, [sys.executable, '-S', '-c', START, *sys.argv[1:]])"
)


@pytest.mark.parametrize(
    "kind", ["PYTHONPATH", pytest.param("foreign_pth", marks=pytest.mark.long)]
)
def test_packages_outside_of_site_packages_train_as_others_do(
    kind: str, workspace: Workspace
) -> None:
    """As module systems, `pip --target` and `uv run --with` have them."""
    folders = [
        str(Path(__file__).parents[2]),
        *(path for path in sys.path if path.endswith("site-packages")),
    ]
    workspace.write("packages/foreign.pth", "\n".join(folders))
    workspace.write("start.py", f"START = {STARTS[kind]!r}\n{WITHOUT_SITE}\n")
    environ = {"PYTHONPATH": os.pathsep.join(folders) if kind == "PYTHONPATH" else None}
    workspace.run_cold("fit", "-c", "small.yaml", script="start.py", environ=environ).ok()
    assert read_json(workspace.only_run / "summary.json")["status"] == "done"

"""A forked command is a process like any other: exit codes, streams, signals, sessions."""

from __future__ import annotations

import signal

from tests.contract.workspace import Workspace, read_events, read_json, session_members, wait_until_gone


def test_a_forked_command_does_what_a_cold_one_does(workspace: Workspace) -> None:
    for words in (["--version"], ["nonsense"], ["check", "-c", "small.yaml", "--trainer.max_epochs=ten"]):
        assert workspace.run(*words) == workspace.run_cold(*words), words


def test_a_forked_fit_ends_on_sigterm_and_leaves_no_process(workspace: Workspace) -> None:
    (workspace.folder / "hold").write_text("8", encoding="utf-8")
    process = workspace.start("fit", "-c", "small.yaml", "callbacks.hold.class_path=my_project.Hold")
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

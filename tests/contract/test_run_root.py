"""The folder of all runs: a layer, `LIGHTKIT_RUN__ROOT` and the option mean the same anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import lightkit
from lightkit.main import COMMANDS
from tests.contract.batch import Answer, Command, run_batch
from tests.contract.examples import MY_PROJECT, SMALL, write_pictures
from tests.contract.workspace import ForkServer, Workspace

ROOT = "elsewhere"
"""A folder of runs in which there are none: each command ends with an error that names it."""

TAKES_LAYERS: Mapping[str, tuple[str, ...]] = {
    "fit": ("fit", "-c", "small.yaml"),
    "validate": ("validate", "--run", "latest"),
    "test": ("test", "--run", "latest"),
    "predict": ("predict", "--run", "latest"),
    "export": ("export", "--run", "latest"),
    "register": ("register", "--run", "latest", "--name", "n"),
    "retrain": ("retrain", "-c", "small.yaml"),
    "gate": ("gate", "latest"),
    "promote": ("promote", "latest"),
    "check": ("check", "-c", "small.yaml"),
    "submit": ("submit", "-c", "small.yaml", "--dry-run"),
    "tune": ("tune", "-c", "small.yaml"),
    "sweep": ("sweep", "-c", "small.yaml", "--seeds", "2"),
}
TAKES_NO_LAYERS: Mapping[str, tuple[str, ...]] = {
    "predict with a file": ("predict", "--model", "model.onnx", "--run", "latest", "pictures"),
    "export of a logged model": ("export", "--run", "models:/flowers@champion"),
    "promote --hold": ("promote", "--hold", "flowers"),
    "rollback": ("rollback", "flowers"),
    "history": ("history", "flowers"),
    "runs": ("runs",),
    "report": ("report", "latest"),
    "gc": ("gc", "--keep-last", "1"),
    "reproduce": ("reproduce", "latest"),
    "diff": ("diff", "latest", "latest"),
    "serve": ("serve", "--run", "latest"),
    "ui": ("ui",),
    "ui of a run": ("ui", "latest"),
}
ASKS_NO_RUN = {
    *("notify-test", "explain", "fetch", "convert", "devices", "configs", "init", "schema"),
    *("upgrade", "completion"),
}
BY: dict[str, dict[str, str]] = {
    "variable": {"LIGHTKIT_RUN__ROOT": ROOT},
    "option": {},
    "--root": {},
    "layer": {},
}
WORDS = {
    "variable": (),
    "option": (f"--run.root={ROOT}",),
    "--root": ("--root", ROOT),
    "layer": ("-c", "root.yaml"),
}


def test_each_command_is_in_the_table_of_those_that_read_runs_or_of_the_others() -> None:
    assert {*COMMANDS} == {
        words[0] for words in (*TAKES_LAYERS.values(), *TAKES_NO_LAYERS.values())
    } | ASKS_NO_RUN


ASKED = {
    **{
        f"{name}, {by}": (words, by)
        for name, words in TAKES_LAYERS.items()
        for by in ("variable", "option", "layer")
    },
    **{
        f"{name}, {by}": (words, by)
        for name, words in TAKES_NO_LAYERS.items()
        for by in ("variable", "option", "--root")
    },
}
"""Each command with each way to name the folder of the runs."""


@pytest.fixture(scope="module")
def asked(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[tuple[Workspace, dict[str, Answer]]]:
    """What each command says where the folder is a file."""
    workspace = Workspace(tmp_path_factory.mktemp("root") / "work", fork_server)
    workspace.write("my_project.py", MY_PROJECT)
    workspace.write("small.yaml", SMALL)
    write_pictures(workspace.folder / "pictures", count=1)
    workspace.write("root.yaml", {"run": {"root": ROOT}})
    workspace.write(ROOT, "a file, in which no run can be")
    commands = {
        name: Command((*words, *WORDS[by]), environ=BY[by]) for name, (words, by) in ASKED.items()
    }
    yield (
        workspace,
        run_batch(
            workspace, commands, warm_up=("check", "-c", str(workspace.folder / "root.yaml"))
        ),
    )
    workspace.close()


@pytest.mark.parametrize("name", ASKED)
def test_the_folder_of_the_runs_is_the_same_from_a_layer_the_variable_and_the_option(
    name: str, asked: tuple[Workspace, dict[str, Answer]]
) -> None:
    workspace, answers = asked
    answer = answers[name]
    assert answer.code == 2, answer.out + answer.err
    assert ROOT in answer.err
    assert not (workspace.folder / "runs").exists()
    for text in ("unexpected", "no effect", "Traceback"):
        assert text not in answer.err


def test_the_option_counts_more_than_the_variable_in_a_command_without_a_config(
    finished: Workspace,
) -> None:
    found = json.loads(
        finished.run(
            "runs", "--json", environ={"LIGHTKIT_RUN__ROOT": str(finished.folder / "runs")}
        ).out
    )
    assert [Path(each["folder"]) for each in found] == finished.runs
    failed = finished.run("runs", "--root", "nowhere", environ={"LIGHTKIT_RUN__ROOT": "runs"})
    assert failed.code == 2
    assert "there are no runs in nowhere: lightkit fit makes the first" in failed.err


def test_the_variable_may_refer_to_others_in_a_command_without_a_config(
    finished: Workspace,
) -> None:
    environ = {
        "LIGHTKIT_DATA": str(finished.folder),  # which sets no key
        "LIGHTKIT_RUN__ROOT": "${oc.env:LIGHTKIT_DATA}/runs",
    }
    found = json.loads(finished.run("runs", "--json", environ=environ).ok().out)
    assert [Path(each["folder"]) for each in found] == finished.runs


def test_the_python_functions_look_for_runs_where_the_variable_says(
    finished: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTKIT_RUN__ROOT", str(finished.folder / "runs"))
    assert lightkit.load_run().folder == finished.runs[-1]
    assert [Path(each["folder"]) for each in lightkit.list_runs()] == finished.runs

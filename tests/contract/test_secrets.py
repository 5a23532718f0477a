"""A secret is in nothing that a run leaves behind or prints, and its reference is in the config."""

from __future__ import annotations

import hashlib
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from tests.contract.batch import Answer, Command, run_batch
from tests.contract.conftest import Once, copy_of
from tests.contract.examples import MY_PROJECT
from tests.contract.tracked import (
    AGAIN,
    ENVIRON,
    NUMBER,
    REFERRED,
    SAID,
    TOKEN,
    UNTRACKED,
    fit_tracked,
    write_tracked,
)
from tests.contract.workspace import (
    ForkServer,
    Result,
    Workspace,
    load_checkpoint,
    read_events,
    read_json,
)

MISSPELT = "magpie-90c1"
"""A secret under a key with a slip, which is in no variable."""
FORMS = (
    *(
        b'can"ary',
        b'can\\"ary',
        b"can%22ary",
        b"can&quot;ary",
        b"ary/8d",
        b"ary%2F8d",
        b"8d+41",
        b"8d%2B41",
    ),
    *(str(NUMBER).encode(), REFERRED.encode(), MISSPELT.encode()),
    *(
        hashlib.sha256(str(secret).encode()).hexdigest().encode()
        for secret in (SAID, NUMBER, REFERRED)
    ),
)
SOURCES = ("tracked.yaml", "my_secrets.py", "broken.yaml", "misspelt.yaml")


@pytest.fixture(scope="session")
def tracked_original(made_once: Once) -> Path:
    """A finished run of `tracked.yaml`."""
    return made_once("tracked", fit_tracked)


@pytest.fixture
def tracked(tracked_original: Path, workspace: Workspace) -> Workspace:
    """A workspace of its own with that run, but without the trackers' files."""
    copy_of(tracked_original, workspace)
    for path in (
        *workspace.folder.glob("runs/mlflow*"),
        *workspace.folder.glob("runs/tracked/2*/mlflow.json"),
    ):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return workspace


@pytest.fixture
def guarded(workspace: Workspace) -> Workspace:
    """A workspace with `tracked.yaml`, in which nothing has run."""
    write_tracked(workspace)
    return workspace


@pytest.fixture(scope="session")
def later_stages(made_once: Once, tracked_original: Path) -> Path:
    """The working directory after test, predict and export of a run with secrets."""

    def go_on(workspace: Workspace) -> None:
        shutil.copytree(tracked_original, workspace.folder, symlinks=True, dirs_exist_ok=True)
        more = (*AGAIN, *UNTRACKED)
        workspace.run("test", "--run", "latest", *more, environ=ENVIRON).ok()
        workspace.run("predict", "--run", "latest", *more, environ=ENVIRON).ok()
        workspace.run(
            "export", "--run", "latest", "--format", "torch_export", *more, environ=ENVIRON
        ).ok()

    return made_once("secret-stages", go_on)


def holds(data: bytes) -> bool:
    return any(form in data for form in FORMS)


def leaks_in(folder: Path) -> list[str]:
    """List the files below a folder that hold a form of a secret.

    Also inside archives such as checkpoints.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name in SOURCES or "__pycache__" in path.parts:
            continue
        contents = {path.name: path.read_bytes()}
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                contents |= {name: archive.read(name) for name in archive.namelist()}
        found += [
            f"{path.relative_to(folder)}: {name}" for name, data in contents.items() if holds(data)
        ]
    return found


def leaks(result: Result) -> bool:
    return holds((result.out + result.err).encode())


def test_the_search_finds_a_secret_in_each_form_and_inside_archives(tmp_path: Path) -> None:
    for number, form in enumerate(FORMS):
        (tmp_path / f"{number}.bin").write_bytes(b"a" + form + b"b")
    with zipfile.ZipFile(tmp_path / "archive.ckpt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.pkl", SAID)
    assert len(leaks_in(tmp_path)) == len(FORMS) + 1


# -- what a run leaves -----------------------------------------------------------------------------


def test_a_fit_leaves_no_secret_in_its_folder_in_trackers_or_on_the_screen(
    tracked_original: Path,
) -> None:
    searched = {path.name for path in tracked_original.parent.rglob("*") if path.is_file()}
    assert {"config.yaml", "best.ckpt", "hparams.yaml", "mlflow.db", "0.out", "0.err"} <= searched
    assert any(name.startswith("events.out.tfevents") for name in searched)
    assert leaks_in(tracked_original.parent) == []


def test_test_predict_and_export_leave_no_secret_in_files_or_on_the_screen(
    later_stages: Path,
) -> None:
    assert {"export.json", "predictions.csv"} <= {path.name for path in later_stages.rglob("*")}
    assert leaks_in(later_stages.parent) == []


def test_config_yaml_has_a_reference_to_the_environment_and_stars_for_what_was_said(
    tracked_original: Path,
) -> None:
    (path,) = tracked_original.glob("runs/tracked/2*/config.yaml")
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert config["model"]["init_args"] == {
        "api_key": "***",
        "name": "${oc.env:TOKEN}",
        "tags": ["a-${oc.env:TOKEN}-z", "plain"],
        "fails": False,
    }
    assert config["data"]["init_args"] == {
        "token": "***",
        "password": "***",
        "at": "https://me:***@data.example.org/x",
        "note": "${oc.env:TOKEN}",
    }


def test_the_manifests_command_line_has_stars(tracked_original: Path) -> None:
    (path,) = tracked_original.glob("runs/tracked/2*/manifest.json")
    assert read_json(path)["command"] == [
        "lightkit",
        "fit",
        "-c",
        "tracked.yaml",
        "--data.token=***",
    ]


def test_a_checkpoints_hyper_parameters_have_references_and_stars(tracked_original: Path) -> None:
    (path,) = tracked_original.glob("runs/tracked/2*/checkpoints/last.ckpt")
    parameters = load_checkpoint(path)["hyper_parameters"]
    assert (parameters["name"], parameters["api_key"]) == ("${oc.env:TOKEN}", "***")


def test_a_warning_is_shown_and_recorded_without_its_secrets(tracked_original: Path) -> None:
    (run,) = tracked_original.glob("runs/tracked/2*")
    assert [event["message"] for event in read_events(run, "warning")] == [
        "odd ${oc.env:TOKEN} and ***"
    ]
    shown = (tracked_original.parent / f".home-{tracked_original.name}" / "0.err").read_text(
        encoding="utf-8"
    )
    assert "warning: odd ${oc.env:TOKEN} and ***" in shown


def test_a_crash_is_shown_and_recorded_without_its_secrets(guarded: Workspace) -> None:
    result = guarded.run(
        "fit", "-c", "tracked.yaml", TOKEN, *UNTRACKED, "--model.fails=true", environ=ENVIRON
    )
    assert result.code == 1
    assert "Traceback" in result.err
    assert "RuntimeError: refused ${oc.env:TOKEN} and *** " in result.err
    assert read_json(guarded.only_run / "summary.json")["error"].startswith(
        "RuntimeError: refused ${oc.env:TOKEN} and"
    )
    assert leaks_in(guarded.folder.parent) == []


# -- what commands print ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "shows"),
    [
        (("fit", "--print_config", "-c", "tracked.yaml", TOKEN), "***"),
        (("explain", "-c", "tracked.yaml", TOKEN), "***"),
        (("explain", "-c", "tracked.yaml", "model.name"), "${oc.env:TOKEN}"),
        (("diff", "tracked.yaml", "latest"), "data"),
        (("check", "-c", "tracked.yaml", TOKEN), ""),
    ],
    ids=["print_config", "explain", "explain a reference", "diff", "check"],
)
def test_commands_about_a_config_print_no_secret(
    words: tuple[str, ...], shows: str, tracked: Workspace
) -> None:
    result = tracked.run(*words, environ=ENVIRON).ok()
    assert shows in result.out
    assert not leaks(result)


MISTAKES: dict[str, tuple[str, ...]] = {
    "same value elsewhere": (TOKEN, f"--trainer.max_epochs={SAID}"),
    "no option": (f"-token={SAID}",),
    "a misspelt key": (f"--data.tokne={MISSPELT}",),
    "a misspelt key and a word": ("--data.tokne", MISSPELT),
    "a misspelt key of a class": (f"--data.init_args.pasword={MISSPELT}",),
    "a misspelt key of nothing": (f"--logger.mlflow.api_kye={MISSPELT}",),
    "a misspelt key in a file": ("-c", "misspelt.yaml"),
    "a misspelt key in a mapping": (
        f"--data={{class_path: my_secrets.Guarded, init_args: {{tokne: '{MISSPELT}'}}}}",
    ),
    "in a mapping": (
        f"--data={{class_path: my_secrets.Guarded, init_args: {{token: '{SAID}', cuont: x}}}}",
    ),
    "broken file": (TOKEN, "-c", "broken.yaml"),
    "number": ("--trainer.max_epochs=${oc.env:TOKEN}",),
    "class": ("--model=my_project.${oc.env:TOKEN}",),
    "checkpoint": ("--ckpt_path=${oc.env:TOKEN}",),
    "folder": ("--data=ImageFolder", "--data.root=${oc.env:TOKEN}"),
}


@pytest.fixture(scope="module")
def mistaken(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[tuple[Workspace, dict[str, Answer]]]:
    """A workspace in which fits with `MISTAKES` have ended, and how."""
    workspace = Workspace(tmp_path_factory.mktemp("mistaken") / "work", fork_server)
    workspace.write("my_project.py", MY_PROJECT)
    write_tracked(workspace)
    workspace.write("broken.yaml", f"data:\n  token: '{SAID}\n")
    workspace.write("misspelt.yaml", f"model:\n  init_args: {{api_kye: '{MISSPELT}', nmae: x}}\n")
    fit = ("fit", "-c", "tracked.yaml")
    commands = {name: Command((*fit, *words), environ=ENVIRON) for name, words in MISTAKES.items()}
    yield workspace, run_batch(workspace, commands)
    workspace.close()


@pytest.mark.parametrize("name", MISTAKES)
def test_an_error_is_reported_without_the_secret(
    name: str, mistaken: tuple[Workspace, dict[str, Answer]]
) -> None:
    workspace, answers = mistaken
    assert answers[name].code in (2, 3), answers[name].err
    assert "error: " in answers[name].err
    assert not leaks(answers[name])
    assert leaks_in(workspace.folder) == []


@pytest.mark.parametrize(
    ("uri", "variable"),
    [
        ("http://me:${oc.env:TOKEN}@127.0.0.1:9", {}),
        (None, {"MLFLOW_TRACKING_URI": f"http://me:{quote(SAID, safe='')}@127.0.0.1:9"}),
    ],
    ids=["config", "variable"],
)
def test_a_password_in_the_address_of_mlflow_is_in_no_message(
    uri: str | None, variable: dict[str, str], workspace: Workspace
) -> None:
    workspace.write(
        "mlflow.yaml",
        {"logger": {"mlflow": {"init_args": {"tracking_uri": uri}}}, "trainer": {"logger": None}},
    )
    environ = {**ENVIRON, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", **variable}
    result = workspace.run("fit", "-c", "small.yaml", "-c", "mlflow.yaml", environ=environ)
    assert result.code != 0
    assert re.search(r"MLflow at http://\S*@127\.0\.0\.1:9", result.err)
    assert leaks_in(workspace.folder.parent) == []


# -- what follows from not keeping them ------------------------------------------------------------


def test_a_run_without_its_secrets_says_which_to_say_again(tracked: Workspace) -> None:
    result = tracked.run("test", "--run", "latest", *AGAIN[1:3], *UNTRACKED, environ=ENVIRON)
    assert result.code == 2
    assert re.search(r"error: data\.init_args\.token: \*\*\* .*secret", result.err)
    assert "${oc.env:NAME}" in result.err
    assert "api_key" not in result.err


@pytest.fixture(scope="session")
def preempted_original(made_once: Once) -> Path:
    """A run of `tracked.yaml` that SIGTERM interrupted."""

    def preempt(workspace: Workspace) -> None:
        write_tracked(workspace)
        sender: dict[str, Any] = {
            "class_path": "my_project.SendSignal",
            "init_args": {"hook": "on_train_batch_start", "step": 9},
        }
        workspace.write(
            "signal.yaml", {"callbacks": {"sender": sender}, "run": {"name": "guarded"}}
        )
        words = ("fit", "-c", "tracked.yaml", "-c", "signal.yaml", *UNTRACKED, TOKEN)
        result = workspace.run(*words, environ=ENVIRON)
        assert result.code == 75, result.err

    return made_once("secret-preempted", preempt)


@pytest.mark.parametrize(
    ("word", "variable", "num_runs"),
    [
        (TOKEN, REFERRED, 1),
        ("--data.token=another-token", REFERRED, 2),
        (TOKEN, "another-reference", 2),
    ],
    ids=["same", "another by a flag", "another in the environment"],
)
def test_an_interrupted_run_is_resumed_with_the_same_secrets_and_begun_anew_with_others(
    word: str, variable: str, num_runs: int, preempted_original: Path, workspace: Workspace
) -> None:
    copy_of(preempted_original, workspace)
    words = ("fit", "-c", "tracked.yaml", "-c", "signal.yaml", *UNTRACKED, word)
    result = workspace.run(*words, environ={**ENVIRON, "TOKEN": variable}).ok()
    assert len(workspace.runs) == num_runs, result.err
    assert "another-" not in result.err

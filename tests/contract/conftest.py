"""Workspaces, and what is trained once for all tests of a session."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest
from filelock import FileLock

from tests.contract.examples import MY_PROJECT, PICTURES, SMALL, write_pictures
from tests.contract.registry import fit_skilled, write_skilled
from tests.contract.workspace import ForkServer, Workspace

Once = Callable[[str, Callable[[Workspace], None]], Path]


@pytest.fixture
def workspace(tmp_path: Path, fork_server: ForkServer) -> Iterator[Workspace]:
    """An empty working directory with `my_project.py` and `small.yaml`."""
    workspace = Workspace(tmp_path / "work", fork_server)
    workspace.write("my_project.py", MY_PROJECT)
    workspace.write("small.yaml", SMALL)
    yield workspace
    workspace.close()


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Once:
    """Make a working directory once for all pytest processes of the session.

    Tests must copy it (`copy_of`).
    """
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made-once"
    shared.mkdir(exist_ok=True)

    def make(name: str, fill: Callable[[Workspace], None]) -> Path:
        folder = shared / name / "work"
        with FileLock(shared / f"{name}.lock"):
            if not (shared / name / "done").exists():
                shutil.rmtree(shared / name, ignore_errors=True)
                workspace = Workspace(folder, fork_server)
                workspace.write("my_project.py", MY_PROJECT)
                workspace.write("small.yaml", SMALL)
                try:
                    fill(workspace)
                finally:
                    workspace.close()
                (shared / name / "done").touch()
        return folder

    return make


def copy_of(original: Path, workspace: Workspace) -> Workspace:
    """Copy all of a working directory that was made once into a test's own.

    Its versions are of runs in the copy.
    """
    shutil.copytree(original, workspace.folder, symlinks=True, dirs_exist_ok=True)
    if (database := workspace.folder / "runs" / "mlflow.db").exists():
        with closing(sqlite3.connect(database)) as connection, connection:
            folders = (str(original), str(workspace.folder))
            connection.execute(
                "UPDATE model_version_tags SET value = replace(value, ?, ?)", folders
            )
    return workspace


def _fit(workspace: Workspace) -> None:
    workspace.run("fit", "-c", "small.yaml").ok()


@pytest.fixture(scope="session")
def finished_original(made_once: Once) -> Path:
    """Original of `finished`."""
    return made_once("finished", _fit)


@pytest.fixture
def finished(finished_original: Path, workspace: Workspace) -> Workspace:
    """A workspace with a finished run of `small.yaml`: two epochs, no logger."""
    return copy_of(finished_original, workspace)


def _interrupt(workspace: Workspace) -> None:
    sender = {
        "class_path": "my_project.SendSignal",
        "init_args": {"hook": "on_train_batch_start", "step": 9},
    }
    workspace.write("signal.yaml", {"callbacks": {"sender": sender}, "run": {"name": "small"}})
    result = workspace.run("fit", "-c", "small.yaml", "-c", "signal.yaml")
    assert result.code == 75, result.err


@pytest.fixture(scope="session")
def interrupted_original(made_once: Once) -> Path:
    """Original of `interrupted`."""
    return made_once("interrupted", _interrupt)


@pytest.fixture
def interrupted(interrupted_original: Path, workspace: Workspace) -> Workspace:
    """A run that SIGTERM interrupted in step 9 of 12.

    `fit -c small.yaml -c signal.yaml` resumes it.
    """
    return copy_of(interrupted_original, workspace)


def _train_classifier(workspace: Workspace) -> None:
    write_pictures(workspace.folder / "pictures")
    workspace.write("pictures.yaml", PICTURES)
    workspace.run("fit", "-c", "pictures.yaml").ok()


@pytest.fixture(scope="session")
def classifier_original(made_once: Once) -> Path:
    """Original of `classifier`."""
    return made_once("classifier", _train_classifier)


@pytest.fixture
def classifier(classifier_original: Path, workspace: Workspace) -> Workspace:
    """A workspace with a finished run of `pictures.yaml`.

    ImageClassifier on two classes of 30 pictures, two epochs.
    """
    return copy_of(classifier_original, workspace)


@pytest.fixture(scope="session")
def tested_original(made_once: Once, classifier_original: Path) -> Path:
    """The workspace `classifier`, tested; what was printed is in `test.out`."""

    def test(workspace: Workspace) -> None:
        copy_of(classifier_original, workspace)
        workspace.write("test.out", workspace.run("test", "--run", "latest").ok().out)

    return made_once("tested", test)


def _promote_planted(workspace: Workspace) -> None:
    write_skilled(workspace)
    better, worse = fit_skilled(workspace, 90), fit_skilled(workspace, 80)
    workspace.run("gate", str(worse)).ok()
    judged = workspace.run(
        "gate", str(better), "--junit=gate.xml", environ={"GITHUB_STEP_SUMMARY": "step.md"}
    ).ok()
    workspace.write("gate.out", judged.out)
    shutil.copy(better / "gate.json", workspace.folder / "gate.json")
    workspace.run("promote", str(better), "--reason", "the first").ok()


@pytest.fixture(scope="session")
def planted_original(made_once: Once) -> Path:
    """Original of `planted`."""
    return made_once("planted", _promote_planted)


@pytest.fixture
def planted(planted_original: Path, workspace: Workspace) -> Workspace:
    """Two runs of accuracy 0.9 and 0.8, both judged before there was a champion.

    The first is promoted as `net`.
    """
    return copy_of(planted_original, workspace)


@pytest.fixture(scope="session")
def exported_original(made_once: Once, classifier_original: Path) -> Path:
    """Original of `exported`."""
    if find_spec("onnxruntime") is None or find_spec("onnxscript") is None:
        pytest.skip("needs the extra lightkit-train[onnx]")

    def export(workspace: Workspace) -> None:
        copy_of(classifier_original, workspace)
        formats = "torchscript,onnx,torch_export,safetensors"
        words = ("export", "--run", "latest", "--format", formats)
        workspace.run(*words, environ={"NO_SHORTCUTS": "1"}, timeout_s=280).ok()

    return made_once("exported", export)


@pytest.fixture
def exported(exported_original: Path, workspace: Workspace) -> Workspace:
    """The workspace `classifier` with its best checkpoint exported to all formats.

    In the run's `export` folder.
    """
    return copy_of(exported_original, workspace)


@pytest.fixture(scope="session")
def registered_original(made_once: Once, exported_original: Path) -> Path:
    """Original of `registered`."""

    def register(workspace: Workspace) -> None:
        copy_of(exported_original, workspace)
        registered = workspace.run(
            "register", "--run", "latest", "--name", "flowers", "--alias", "champion"
        ).ok()
        workspace.write("register.out", registered.out)
        workspace.run("fit", "-c", "small.yaml", "--trainer.logger=null", "--logger.mlflow={}").ok()
        words = (
            *("--run", "latest", "--name", "net", "--alias", "tried", "--alias", "kept"),
            *("--format", "torchscript"),
        )
        workspace.run("register", *words).ok()

    return made_once("registered", register)


@pytest.fixture
def registered(registered_original: Path, workspace: Workspace) -> Workspace:
    """The run of `exported` as version 1 of `flowers` (champion).

    Also one that MLflow tracked as version 1 of `net`.

    MLflow's artifacts are those of the original, so they are only read.
    """
    return copy_of(registered_original, workspace)

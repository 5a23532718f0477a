"""MLflow's local database of another MLflow.

An older one is migrated and copied before, a newer one is an error.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.contract.examples import SMALL
from tests.contract.workspace import Workspace

pytestmark = pytest.mark.timeout(900)  # on a busy machine

OLD = Path(__file__).with_name("mlflow_3_13.sql")
"""Dump of a database that MLflow 3.13.0 has made: a run, and a registered model with a version and
an alias."""
OLD_REVISION = "da6fb0208061"
NEWER_REVISION = "ffffffffffff"
COPY = f"mlflow.db.revision-{OLD_REVISION}"


def query(path: Path, words: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return list(database.execute(words))


def revision_of(path: Path) -> str:
    ((revision,),) = query(path, "SELECT version_num FROM alembic_version")
    return str(revision)


def runs_in(path: Path) -> list[str]:
    return [name for (name,) in query(path, "SELECT status FROM runs ORDER BY start_time")]


def write_job(workspace: Workspace) -> None:
    """Write `job.yaml`, which records in MLflow."""
    trainer = {**SMALL["trainer"], "max_epochs": 1}
    del trainer["logger"]
    logger = {"mlflow": {"class_path": "MLflow", "init_args": {"log_model": False}}}
    workspace.write("job.yaml", {**SMALL, "trainer": trainer, "logger": logger})


def write_database(workspace: Workspace, *, revision: str | None = None) -> Path:
    """Put the old database, with another revision if one is named, in the run root."""
    folder = workspace.folder / "runs"
    folder.mkdir(exist_ok=True)
    shutil.rmtree(folder / "mlflow-artifacts", ignore_errors=True)
    path = folder / "mlflow.db"
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(OLD.read_text(encoding="utf-8"))
        if revision is not None:
            database.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    return path


def assert_migrated(path: Path, err: str) -> None:
    """Assert that a command has migrated the database, has kept a copy of it, and has said so."""
    assert err.count("has migrated its database") == 1, err
    assert str(path) in err
    assert COPY in err
    assert version("mlflow") in err
    assert f"from revision {OLD_REVISION} to {revision_of(path)}" in err
    copy = path.with_name(COPY)
    assert revision_of(copy) == OLD_REVISION
    assert runs_in(copy) == ["FINISHED"]
    assert query(path, "PRAGMA integrity_check") == [("ok",)]
    assert not list(path.parent.glob(".*aside*"))


def test_a_fit_migrates_an_older_database_and_keeps_a_copy_from_before(
    workspace: Workspace,
) -> None:
    path = write_database(workspace)
    write_job(workspace)
    assert_migrated(path, workspace.run("fit", "-c", "job.yaml").ok().err)
    assert runs_in(path) == ["FINISHED", "FINISHED"]
    again = workspace.run("fit", "-c", "job.yaml").ok()
    assert "migrated" not in again.err
    assert runs_in(path) == ["FINISHED"] * 3
    assert len(list(path.parent.glob("mlflow.db*"))) == 2


def test_the_registry_goes_on_in_a_database_of_an_older_mlflow(planted: Workspace) -> None:
    path = write_database(planted)
    better = str(planted.runs[0])
    assert_migrated(path, planted.run("history", "flowers").ok().err)
    assert query(path, "SELECT name, alias, version FROM registered_model_aliases") == [
        ("flowers", "old", 1)
    ]
    planted.run("register", "--run", better, "--name", "net").ok()
    planted.run("promote", better, "--name", "net").ok()
    assert "promote" in planted.run("history", "net").ok().out


@pytest.mark.parametrize(
    "words",
    [
        ("check", "-c", "job.yaml"),
        ("fit", "-c", "job.yaml"),
        ("history", "flowers"),
        ("rollback", "flowers"),
    ],
    ids=lambda words: words[0],
)
def test_a_database_of_a_newer_mlflow_is_an_error_that_names_both_versions(
    words: tuple[str, ...], workspace: Workspace
) -> None:
    path = write_database(workspace, revision=NEWER_REVISION)
    content = path.read_bytes()
    write_job(workspace)
    result = workspace.run(*words)
    assert result.code == 2, result.err
    assert "Traceback" not in result.err
    assert NEWER_REVISION in result.err
    assert f"MLflow {version('mlflow')}" in result.err
    assert result.err.count("is of a newer MLflow") == 1, result.err
    assert path.read_bytes() == content
    assert not workspace.runs


def test_a_database_that_cannot_be_migrated_is_left_as_it_was(workspace: Workspace) -> None:
    path = write_database(workspace)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DROP TABLE trace_info")  # which a later migration changes
    content = path.read_bytes()
    result = workspace.run("history", "flowers")
    assert result.code == 2, result.err
    assert "cannot be migrated" in result.err
    assert "Traceback" not in result.err
    assert path.read_bytes() == content
    assert [each.name for each in path.parent.glob("*mlflow.db*")] == ["mlflow.db"]

"""The first start under a run root, ended at any moment, breaks no later one.

Nor do two first starts at once.
"""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.contract.examples import PICTURES, SMALL, write_pictures
from tests.contract.workspace import Process, Workspace, read_json, wait_until, wait_until_gone

pytestmark = pytest.mark.timeout(3600)

EXTRAS = {"wandb": "wandb", "comet": "comet_ml"}
LOGGERS: dict[str, Mapping[str, Any]] = {
    "mlflow": {"class_path": "MLflow"},
    "tensorboard": {"class_path": "TensorBoard"},
    "csv": {"class_path": "lightkit.loggers.CSV"},
    "wandb": {"class_path": "WandB", "init_args": {"offline": True}},
    "comet": {"class_path": "Comet", "init_args": {"online": False}},
}
MADE = (*LOGGERS, "decoded photos")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def write_job(workspace: Workspace, made: str) -> None:
    """Write `job.yaml`, which logs with one logger, or keeps decoded photos."""
    if made in EXTRAS and find_spec(EXTRAS[made]) is None:
        pytest.skip(f"needs the extra {made}")
    if made == "decoded photos":
        write_pictures(workspace.folder / "pictures")
        arguments = {**PICTURES["data"]["init_args"], "cache": "disk"}
        workspace.write(
            "job.yaml", {**PICTURES, "data": {**PICTURES["data"], "init_args": arguments}}
        )
        return
    trainer = {**SMALL["trainer"], "max_epochs": 1}
    del trainer["logger"]
    workspace.write("job.yaml", {**SMALL, "trainer": trainer, "logger": {made: LOGGERS[made]}})


def start(workspace: Workspace, root: str) -> Process:
    """Start a fit with a run root and a cache of its own, in which MLflow makes its tables."""
    environ = {"XDG_CACHE_HOME": str(workspace.folder / root / "cache"), "NO_SHORTCUTS": "1"}
    return workspace.start("fit", "-c", "job.yaml", f"--run.root={root}", environ=environ)


def has_begun(workspace: Workspace, root: str) -> bool:
    return any((workspace.folder / root / "job").glob("2*/config.yaml"))


def measure_window(workspace: Workspace) -> float:
    """Measure the seconds from the beginning of a run to its end."""
    process = start(workspace, "undisturbed")
    process.wait_for(lambda: has_begun(workspace, "undisturbed"))
    began_s = time.monotonic()
    assert process.wait() == 0, process.err
    return time.monotonic() - began_s


def end_after(workspace: Workspace, root: str, seconds: float, signum: int) -> int:
    """End a first start so long after its run has begun, with all that it has started.

    Return its code.
    """
    process = start(workspace, root)
    process.wait_for(lambda: has_begun(workspace, root))
    end_s = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end_s or process.poll() is not None)
    if process.poll() is None:
        process.signal_group(signum)
    code = process.wait()
    wait_until_gone(process.pid)
    return code


def assert_nothing_is_broken(workspace: Workspace, root: str, made: str) -> None:
    """Assert that a later start ends well, and that what was made is whole."""
    again = start(workspace, root).result()
    assert again.code == 0, again.err
    assert "unfinished" not in again.err
    newest = max((workspace.folder / root / "job").glob("2*"))
    assert read_json(newest / "summary.json")["status"] == "done"
    if made == "mlflow":
        with closing(sqlite3.connect(workspace.folder / root / "mlflow.db")) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            query = "SELECT status FROM runs WHERE run_uuid = ?"
            assert database.execute(
                query, (read_json(newest / "mlflow.json")["run_id"],)
            ).fetchone() == ("FINISHED",)
        assert not list((workspace.folder / root).glob(".*")), (
            "what the first start has left is removed"
        )


def try_moments(workspace: Workspace, made: str, number: int) -> None:
    """End so many first starts, at moments over the whole run, each followed by another start."""
    write_job(workspace, made)
    window_s = measure_window(workspace)
    codes = []
    for index in range(number):
        signum = SIGNALS[index % len(SIGNALS)]
        codes.append(
            end_after(workspace, f"root-{index}", window_s * (index + 0.5) / number, signum)
        )
        assert_nothing_is_broken(workspace, f"root-{index}", made)
    assert set(codes) != {0}, "all were done before the signal came"


@pytest.mark.parametrize("made", MADE)
def test_a_first_start_that_is_ended_breaks_no_later_one(made: str, workspace: Workspace) -> None:
    try_moments(workspace, made, 2)


@pytest.mark.long
@pytest.mark.parametrize("made", MADE)
def test_30_first_starts_that_are_ended_break_no_later_one(made: str, workspace: Workspace) -> None:
    try_moments(workspace, made, 30)


def start_pair(workspace: Workspace, root: str) -> None:
    """Start two jobs at once in a new root, and then a third one."""
    words = ("fit", "-c", "job.yaml", f"--run.root={root}")
    environ = {"NO_SHORTCUTS": "1"}
    pair = [
        workspace.start(*words, f"--run.name={name}", environ=environ) for name in ("one", "other")
    ]
    assert [process.wait() for process in pair] == [0, 0], "\n".join(
        process.err for process in pair
    )
    workspace.run(*words).ok()
    with closing(sqlite3.connect(workspace.folder / root / "mlflow.db")) as database:
        query = (
            "SELECT experiments.name, runs.status FROM runs JOIN experiments USING (experiment_id)"
        )
        names = database.execute(query).fetchall()
    assert sorted(names) == [("job", "FINISHED"), ("one", "FINISHED"), ("other", "FINISHED")]


def test_two_first_starts_at_once_both_end_well(workspace: Workspace) -> None:
    write_job(workspace, "mlflow")
    start_pair(workspace, "root")


@pytest.mark.long
def test_20_pairs_of_first_starts_end_well(workspace: Workspace) -> None:
    write_job(workspace, "mlflow")
    for index in range(20):
        start_pair(workspace, f"root-{index}")


@pytest.fixture
def unfinished(workspace: Workspace) -> Path:
    """A database as MLflow leaves it that was killed in a migration, made by an earlier version."""
    path = workspace.folder / "runs" / "mlflow.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO alembic_version VALUES ('451aebb31d03')")
        database.execute(
            "CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY, name VARCHAR(256))"
        )
        database.execute("CREATE TABLE runs (run_uuid VARCHAR(32) PRIMARY KEY)")
        database.execute("CREATE TABLE _alembic_tmp_experiments (experiment_id INTEGER)")
    return path


def test_an_unfinished_database_is_moved_aside_with_a_warning(
    unfinished: Path, workspace: Workspace
) -> None:
    content = unfinished.read_bytes()
    write_job(workspace, "mlflow")
    result = workspace.run("fit", "-c", "job.yaml").ok()
    assert "mlflow.db.unfinished-1" in result.err
    assert unfinished.with_name("mlflow.db.unfinished-1").read_bytes() == content
    again = workspace.run("fit", "-c", "job.yaml", "--run.name=other").ok()
    assert "unfinished" not in again.err


@pytest.mark.parametrize(
    "command", [("history", "net"), ("rollback", "net")], ids=lambda words: words[0]
)
def test_the_registry_moves_an_unfinished_database_aside_too(
    command: tuple[str, ...], unfinished: Path, workspace: Workspace
) -> None:
    result = workspace.run(*command)
    assert result.code == 2
    assert "unfinished" in result.err
    assert "There is no registered model 'net'" in result.err


@pytest.mark.parametrize("table", ["experiments", "runs"])
def test_a_database_with_a_record_is_left_as_it_is(
    table: str, unfinished: Path, workspace: Workspace
) -> None:
    column = {"experiments": "name", "runs": "run_uuid"}[table]
    with closing(sqlite3.connect(unfinished)) as database, database:
        database.execute(f"INSERT INTO {table} ({column}) VALUES ('precious')")
    assert workspace.run("history", "net").code == 2, "MLflow cannot use it"
    with closing(sqlite3.connect(unfinished)) as database:
        assert database.execute(f"SELECT {column} FROM {table}").fetchall() == [("precious",)]
    assert not list(unfinished.parent.glob("*unfinished*"))

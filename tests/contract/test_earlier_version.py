"""What an earlier version has left behind goes on working.

Runs, locks, a registry, a table's run, a crontab.

`scripts/earlier_runs.py` has made the archive with commit e78f42c, and says what is in it. A test
that fails because a record has a new form means that the new version must read the old form too:
the archive is never made again.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from tests.contract.registry import read_registry
from tests.contract.workspace import LIGHTKIT, Workspace, read_events, read_json, read_metrics

pytestmark = pytest.mark.timeout(900)

ARCHIVE = Path(__file__).with_name("earlier_runs.tar.xz")
WRITTEN_IN = "/srv/lightkit/project"
WRITTEN_BY = "/srv/lightkit/bin/lightkit"


def unpack(workspace: Workspace) -> None:
    """Unpack the archive, with the paths of this folder in the place of its own."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(workspace.folder, filter="data")
    replaced = {WRITTEN_IN: str(workspace.folder), WRITTEN_BY: str(LIGHTKIT)}
    for path in workspace.folder.rglob("*"):
        if path.suffix == ".db":
            move_database(path, replaced)
        elif path.is_file() and path.suffix not in (".ckpt", ".sha256", ".pt2", ".png", ".parquet"):
            content = path.read_bytes()
            for old, new in replaced.items():
                content = content.replace(old.encode(), new.encode())
            if content != path.read_bytes() and b"\0" not in content:
                moment = path.stat().st_mtime
                path.write_bytes(content)
                os.utime(path, (moment, moment))  # of a lock it is the last heartbeat


def move_database(path: Path, replaced: dict[str, str]) -> None:
    """Replace texts in all columns of a SQLite database."""
    with closing(sqlite3.connect(path)) as connection, connection:
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        for table in tables:
            columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
            for column in columns:
                for old, new in replaced.items():
                    connection.execute(
                        f'UPDATE "{table}" SET "{column}" = replace("{column}", ?, ?) WHERE'
                        f' instr("{column}", ?)',
                        (old, new, old),
                    )


@pytest.fixture
def earlier(workspace: Workspace) -> Workspace:
    """A workspace with the runs of the earlier version."""
    unpack(workspace)
    return workspace


def runs_of(workspace: Workspace, job: str) -> list[Path]:
    return sorted((workspace.folder / "runs" / job).glob("2*"))


def test_the_archive_names_no_machine_and_is_small() -> None:
    assert ARCHIVE.stat().st_size < 500_000
    with tarfile.open(ARCHIVE) as archive:
        assert {(member.uname, member.uid) for member in archive} == {("root", 0)}
        manifest = next(member for member in archive if member.name.endswith("manifest.json"))
        content = archive.extractfile(manifest)
        assert content is not None
        assert b'"host": "night"' in content.read()


@pytest.mark.parametrize("job", ["killed", "preempted", "tracked"])
def test_a_run_that_an_earlier_version_left_unfinished_goes_on_in_its_folder(
    job: str, earlier: Workspace
) -> None:
    (run,) = runs_of(earlier, job)
    earlier.run("fit", "-c", f"{job}.yaml").ok()
    assert runs_of(earlier, job) == [run]
    assert [row["epoch"] for row in read_metrics(run)] == ["0", "1", "2"]
    (resumed,) = read_events(run, "resume")
    assert resumed["step"] == 6
    assert read_json(run / "summary.json")["status"] == "done"
    assert not (run.parent / "lock.json").exists()


def test_the_tracker_of_an_earlier_versions_run_goes_on_in_the_same_mlflow_run(
    earlier: Workspace,
) -> None:
    (run,) = runs_of(earlier, "tracked")
    ids = read_json(run / "mlflow.json")
    earlier.run("fit", "-c", "tracked.yaml").ok()
    assert read_json(run / "mlflow.json")["run_id"] == ids["run_id"]
    with closing(sqlite3.connect(earlier.folder / "runs" / "mlflow.db")) as database:
        query = "SELECT step FROM metrics WHERE run_uuid = ? AND key = 'val/loss' ORDER BY step"
        steps = [step for (step,) in database.execute(query, (ids["run_id"],))]
        (status,) = database.execute(
            "SELECT status FROM runs WHERE run_uuid = ?", (ids["run_id"],)
        ).fetchone()
    assert len(steps) == 3
    assert status == "FINISHED"


def test_a_run_that_failed_in_an_earlier_version_goes_on(earlier: Workspace) -> None:
    (run,) = runs_of(earlier, "failed")
    result = earlier.run("fit", "-c", "failed.yaml")
    assert result.code == 1, "the ninth batch of a process is NaN, which is in the third epoch now"
    assert f"resumes {run}" in result.err
    assert [row["epoch"] for row in read_metrics(run)] == ["0", "1"]


def test_nothing_has_changed_since_an_earlier_version(earlier: Workspace) -> None:
    shutil.rmtree(earlier.folder / "nightly")  # code that came later
    assert earlier.run("fit", "-c", "small.yaml", "--if-changed").code == 6
    assert earlier.run("fit", "-c", "table.yaml", "--if-changed").code == 6


@pytest.mark.parametrize("job", ["small", "table"])
def test_a_run_of_an_earlier_version_is_tested_reported_and_predicts(
    job: str, earlier: Workspace
) -> None:
    (run,) = runs_of(earlier, job)
    if job == "small":
        before = read_json(run / "summary.json")["stages"]["test"]
        earlier.run("test", "--run", str(run)).ok()
        assert read_json(run / "summary.json")["stages"]["test"] == before
    (run / "report.html").unlink(missing_ok=True)
    earlier.run("report", str(run)).ok()
    assert "<svg" in (run / "report.html").read_text(encoding="utf-8")
    earlier.run("predict", "--run", str(run)).ok()
    lines = (run / "predictions.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) > 2


def test_runs_of_an_earlier_version_are_listed_and_kept_where_the_registry_needs_them(
    earlier: Workspace,
) -> None:
    found = {(each["name"], each["status"]) for each in _list(earlier)}
    assert found == {
        *((job, "done") for job in ("small", "table", "net", "night")),
        ("preempted", "preempted"), ("failed", "failed"), ("killed", "killed"),
        ("tracked", "killed"),
    }  # fmt: skip
    assert [each["promoted"] for each in _list(earlier)].count(True) == 2
    kept = earlier.run("gc", "--keep-last", "1", "--dry-run").ok().out
    assert kept.startswith("nothing to delete: 10 runs"), (
        "one run of a job is its newest, or is needed by the registry"
    )


def _list(workspace: Workspace) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(workspace.run("runs", "--json").ok().out)
    return found


def test_the_registry_of_an_earlier_version_is_read_and_moved(earlier: Workspace) -> None:
    history = earlier.run("history", "net").ok().out
    assert [line.split()[1] for line in history.splitlines() if "Z " in line] == [
        "promote",
        "promote",
        "rollback",
    ]
    newest = runs_of(earlier, "net")[2]
    earlier.run("gate", str(newest)).ok()
    earlier.run("promote", str(newest), "--reason", "of the new version").ok()
    assert read_registry(earlier)["net"]["aliases"]["champion"] == "3"
    earlier.run("rollback", "net").ok()
    assert read_registry(earlier)["net"]["aliases"]["champion"] == "1"


@pytest.mark.parametrize("way", ["moved", "copied"])
def test_a_run_root_that_was_moved_or_copied_has_its_champions(
    way: str, earlier: Workspace
) -> None:
    before = {run: read_json(run / "promoted.json") for run in runs_of(earlier, "net")[:2]}
    root = earlier.folder / way
    if way == "moved":
        (earlier.folder / "runs").rename(root)
    else:
        shutil.copytree(earlier.folder / "runs", root, symlinks=True)
    first, second, newest = sorted((root / "net").glob("2*"))
    earlier.run("rollback", "net", "--to", "2", "--root", way).ok()
    marks = json.loads(earlier.run("runs", "net", "--json", "--root", way).ok().out)
    assert {mark["id"]: mark["aliases"] for mark in marks} == {
        first.name: [],
        second.name: ["champion"],
        newest.name: [],
    }
    decision = earlier.run("gate", str(newest), "--root", way).ok().out
    assert "0.8000" in decision, "the accuracy of the second"
    if way == "copied":  # whose original is another registry's
        assert {run: read_json(run / "promoted.json") for run in before} == before


def test_a_champion_of_which_nothing_is_left_is_named_with_what_to_do(earlier: Workspace) -> None:
    champion, _, newest = runs_of(earlier, "net")
    shutil.rmtree(champion)
    shutil.rmtree(earlier.folder / "runs" / "mlflow-artifacts")
    refused = earlier.run("gate", str(newest))
    assert refused.code == 2
    assert "error: gate.baseline: net version 1 (champion) cannot be scored: " in refused.err
    assert "Name another with --gate.baseline, or give --gate.baseline=null" in refused.err


def test_a_gate_judges_against_the_champion_of_an_earlier_version(earlier: Workspace) -> None:
    champion, second, _ = runs_of(earlier, "net")
    decision = earlier.run("gate", str(second)).ok().out
    assert "0.7" in decision
    assert "0.8" in decision
    assert read_json(champion / "promoted.json")["aliases"] == ["champion"]


def test_a_retrain_that_an_earlier_version_began_goes_on_with_its_stage(earlier: Workspace) -> None:
    (run,) = runs_of(earlier, "night")
    result = earlier.run("retrain", "-c", "night.yaml", timeout_s=600).ok()
    assert "goes on with test" in result.err
    assert runs_of(earlier, "night") == [run]
    states = {
        state["stage"]: state["status"] for state in read_json(run / "retrain.json")["stages"]
    }
    assert set(states.values()) == {"done"}
    assert read_registry(earlier)["night"]["aliases"]["champion"] == "1"


def test_the_crontab_of_an_earlier_version_runs_the_next_night(earlier: Workspace) -> None:
    nightly = earlier.folder / "nightly"
    lines = (nightly / "crontab").read_text(encoding="utf-8").splitlines()
    (command,) = (line.split(maxsplit=5)[5] for line in lines if line.startswith("15 2 "))
    subprocess.run(["sh", "-c", command], env=earlier.environ(), check=True)  # as cron does
    first, second = sorted(nightly.glob("runs/train/2*"))
    assert read_json(second / "retrain.json")["outcome"] == "promoted"
    (before,), (now,) = (read_events(run, "gate") for run in (first, second))
    champion = pytest.approx(before["scores"]["challenger"], rel=1e-5)  # of another processor
    assert now["scores"]["baseline"] == champion, "it was judged against the champion of then"
    assert not (second.parent / "lock.json").exists()

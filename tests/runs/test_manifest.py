from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from lightkit import runs
from lightkit.hardware import describe_packages


def _git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    _git(tmp_path, "init", "-b", "main")
    (tmp_path / "net.py").write_text("a")
    _git(tmp_path, "add", "net.py")
    _git(tmp_path, "commit", "-m", "one")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_manifest_says_what_the_run_was_made_from(tmp_path: Path) -> None:
    manifest = runs.build_manifest(
        subcommand="fit", command=["lightkit", "fit"], run="flowers/7", seed=7, parent="runs/flowers/6"
    )
    assert manifest["command"] == ["lightkit", "fit"]
    assert manifest["python"] == platform.python_version()
    assert manifest["packages"]["torch"] == metadata.version("torch")
    assert manifest["hardware"]["cores"] >= 1
    assert manifest["hardware"]["memory_bytes"] > 2**28
    assert manifest["hardware"]["cpu"]
    assert (manifest["run"], manifest["seed"], manifest["parent"]) == ("flowers/7", 7, "runs/flowers/6")
    runs.write_json(tmp_path / "manifest.json", manifest)
    assert runs.read_json(tmp_path / "manifest.json") == manifest


def test_a_resumed_run_keeps_what_its_earlier_processes_were() -> None:
    first = runs.build_manifest(subcommand="fit", command=["first"], run="flowers/7") | {"data": {"source": "drawn"}}
    second = runs.build_manifest(subcommand="fit", command=["second"], run="flowers/7", previous=first)
    third = runs.build_manifest(subcommand="fit", command=["third"], run="flowers/7", previous=second)
    assert first["earlier"] == []
    assert [then["command"] for then in third["earlier"]] == [["first"], ["second"]]
    assert third["earlier"][0]["data"] == {"source": "drawn"}
    assert third["earlier"][0]["packages"] == first["packages"] != {}
    assert third["command"] == ["third"]


def test_a_package_that_is_not_installed_is_not_listed() -> None:
    assert describe_packages(["torch", "no-such-package"]) == {"torch": metadata.version("torch")}


def test_packages_are_described_without_importing_them() -> None:
    code = "import sys; from lightkit import hardware; hardware.describe_packages(); print('torch' in sys.modules)"
    here = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=here)
    assert done.stdout == "False\n"


@pytest.mark.usefixtures("repository")
def test_git_gives_commit_and_branch() -> None:
    described = runs.describe_git()
    assert described is not None
    assert len(described["commit"]) == 40
    assert (described["branch"], described["dirty"]) == ("main", False)


def test_a_changed_file_is_dirty_and_a_new_one_is_not(repository: Path) -> None:
    (repository / "runs").mkdir()
    (repository / "runs" / "out").write_text("made by training")
    assert (runs.describe_git() or {})["dirty"] is False
    (repository / "net.py").write_text("b")
    assert (runs.describe_git() or {})["dirty"] is True


def test_there_is_no_git_outside_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert runs.describe_git() is None


@pytest.mark.usefixtures("repository")
def test_there_is_no_git_without_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert runs.describe_git() is None


def test_json_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "summary.json"
    runs.write_json(path, {"a": float("nan"), "path": Path("b"), "ü": (1, 2)})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": None, "path": "b", "ü": [1, 2]}
    cycle: dict[str, object] = {}
    cycle["itself"] = cycle
    with pytest.raises(RecursionError):
        runs.write_json(path, cycle)
    assert list(path.parent.iterdir()) == [path]
    assert json.loads(path.read_text(encoding="utf-8"))["path"] == "b"

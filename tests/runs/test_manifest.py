from __future__ import annotations

import json
import os
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


def test_a_package_that_is_not_installed_is_not_listed() -> None:
    assert describe_packages(["torch", "no-such-package"]) == {"torch": metadata.version("torch")}


@pytest.mark.parametrize(
    ("data", "earlier", "expected"),
    [
        ({"fingerprint": "a"}, [], "a"),
        ({"fingerprint": 7}, [{"data": {"fingerprint": "a"}}], "7"),
        (None, [{"data": {"fingerprint": "a"}}, {"data": None}], "a"),
        ({"fingerprint": ""}, [], None),
        ({"fingerprint": ["a"]}, [], None),
        (None, [], None),
    ],
    ids=["text", "number", "resume that failed", "empty", "list", "none"],
)
def test_the_fingerprint_of_the_data_is_that_of_the_newest_start_that_had_them(
    tmp_path: Path, data: object, earlier: list[object], expected: str | None
) -> None:
    run = runs.create(tmp_path, "job")
    run.manifest_path.write_text(json.dumps({"data": data, "earlier": earlier}))
    assert runs.read_data_fingerprint(run) == expected


def test_packages_are_described_without_importing_them() -> None:
    code = (
        "import sys; from lightkit import hardware; hardware.describe_packages(); print('torch' in"
        " sys.modules)"
    )
    here = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=here
    )
    assert done.stdout == "False\n"


def test_a_changed_file_is_dirty_and_a_new_one_is_not(repository: Path) -> None:
    (repository / "runs").mkdir()
    (repository / "runs" / "out").write_text("made by training")
    assert (runs.describe_git() or {})["dirty"] is False
    (repository / "net.py").write_text("b")
    assert (runs.describe_git() or {})["dirty"] is True


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

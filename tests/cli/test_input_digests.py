"""Digests of a fit's inputs: which files of the code and of the data count."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from lightkit.cli.command_table import parse
from lightkit.cli.stage_config import StageConfig
from lightkit.cli.stage_runner import open_stage_config
from lightkit.cli.up_to_date import compute_code_digests, compute_inputs
from lightkit.images.flower_photos import CLASSES
from lightkit.runs import Inputs

MINE = "own.Mine"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.delenv("LIGHTKIT_DATA", raising=False)
    working_directory = tmp_path / "work"
    write(working_directory, "rows.csv", "photos/a.jpg", "data/FashionMNIST/raw/t10k")
    monkeypatch.chdir(working_directory)
    return working_directory


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def session_of(class_path: str, *words: str, **given: Any) -> StageConfig:
    data = [f"--data={class_path}", *(f"--data.init_args.{name}={value}" for name, value in given.items())]
    return open_stage_config(parse(["fit", "--model=ImageClassifier", *data, *words]))


def digests_of(session: StageConfig) -> Inputs:
    return compute_inputs(session, salt="", asked=True)


def test_outside_git_all_visible_python_files_count(folder: Path) -> None:
    write(
        folder,
        "own.py",
        "lib/net.py",
        ".hidden/a.py",
        "lib/__pycache__/a.py",
        "env/pyvenv.cfg",
        "env/a.py",
        "runs/a.py",
    )
    assert [*compute_code_digests(Path("runs"))] == ["own.py", "lib/net.py"]


def test_in_a_git_work_tree_the_files_count_that_git_knows_or_would_add(folder: Path) -> None:
    write(folder, "known.py", "gone.py", "lib/net.py", "ignored.py", "known.txt")
    (folder / ".gitignore").write_text("ignored.py")
    for words in ("init --quiet", "add known.py gone.py"):
        subprocess.run(["git", *words.split()], check=True)
    (folder / "gone.py").unlink()
    before = compute_code_digests(Path("runs"))
    (folder / "known.py").write_text("changed")
    after = compute_code_digests(Path("runs"))
    assert [*before] == [*after] == ["known.py", "lib/net.py"]
    assert before["known.py"] != after["known.py"]


@pytest.mark.parametrize(
    ("class_path", "given", "files", "unseen"),
    [
        ("ImageFolder", {"root": "photos"}, {"root": ["a.jpg"]}, ()),
        ("lightkit.data.Table", {"path": "rows.csv"}, {"path": ["rows.csv"]}, ()),
        ("Table", {"path": "s3://bucket/table"}, {}, ("path",)),
        ("FashionMNIST", {}, {"root": ["FashionMNIST/raw/t10k"]}, ()),
        ("Flowers", {"url": "https://mirror/flowers.tgz"}, {}, ()),
        ("Temperatures", {}, {}, ()),
        (MINE, {"table": "rows.csv"}, {"table": ["rows.csv"]}, ()),
        (MINE, {"deep": '{"list": ["file://photos"]}'}, {"deep.list.0": ["a.jpg"]}, ()),
        (MINE, {"table": "rows.csv", "more": "http://127.0.0.1/x"}, {"table": ["rows.csv"]}, ("more",)),
        (MINE, {"size": 3, "text": "x" * 5000, "name": "~nobody-of-this-name/x"}, {}, ()),
    ],
    ids=["folder", "file", "remote", "default", "download", "made", "own", "nested", "address", "nothing"],
)
def test_the_files_count_that_the_data_section_names(
    class_path: str, given: dict[str, Any], files: dict[str, list[str]], unseen: tuple[str, ...]
) -> None:
    session = session_of(class_path, **given)
    inputs = digests_of(session)
    found = {key.removeprefix("data.init_args."): [*names] for key, names in (inputs.data or {}).items()}
    assert found == files
    assert inputs.unseen == tuple(f"data.init_args.{name}" for name in unseen)


def test_the_photos_count_once_they_are_fetched(folder: Path) -> None:
    write(folder, *(f"data/flower_photos/{name}/1.jpg" for name in CLASSES))
    assert digests_of(session_of("Flowers")).num_files == len(CLASSES)


def test_of_a_delta_table_the_newest_commit_counts(folder: Path) -> None:
    commits = [f"table/_delta_log/{number:020}.json" for number in range(3)]
    write(folder, *commits[:2])
    before = digests_of(session_of("Table", path="table")).data
    write(folder, "table/_delta_log/00000000000000000001.checkpoint.parquet", "table/_delta_log/_last_checkpoint")
    assert digests_of(session_of("Table", path="table")).data == before
    write(folder, commits[2])
    assert digests_of(session_of("Table", path="table")).data != before


def test_links_in_a_circle_and_the_runs_themselves_are_left_out(folder: Path) -> None:
    (folder / "photos/again").symlink_to(folder / "photos")
    write(folder, "photos/runs/x.json")
    inputs = digests_of(session_of("ImageFolder", "--run.root=photos/runs", root="photos"))
    assert inputs.data is not None
    assert [*inputs.data["data.init_args.root"]] == ["a.jpg"]

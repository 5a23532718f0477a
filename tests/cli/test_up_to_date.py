"""Digests of a fit's inputs: which files of the code and of the data count."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lightkit.cli import up_to_date
from lightkit.cli.class_sources import find_own_files
from lightkit.cli.command_table import parse
from lightkit.cli.input_digests import compute_inputs
from lightkit.cli.input_files import compute_code_digests
from lightkit.cli.stage_config import StageConfig
from lightkit.cli.stage_runner import open_stage_config
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
    data = [
        f"--data={class_path}",
        *(f"--data.init_args.{name}={value}" for name, value in given.items()),
    ]
    return open_stage_config(parse(["fit", "--model=ImageClassifier", *data, *words]))


def digests_of(session: StageConfig) -> Inputs:
    return compute_inputs(session, salt="", asked=True)


OWN = """
from pathlib import Path

class Base:
    def __init__(
        self,
        path: str = "rows.csv",
        kind: str = "of no file",
        *,
        folder=Path("photos"),
        gone="gone.csv",
    ): ...

class Mine(Base):
    number = 3

class Own(Base):
    def __init__(self, path="missing.csv"): ...
"""


@pytest.mark.parametrize(
    ("class_path", "given", "keys"),
    [
        (MINE, {}, ["data.init_args.path", "data.init_args.folder"]),
        (
            MINE,
            {"path": "data", "kind": "rows.csv"},
            ["data.init_args.folder", "data.init_args.path", "data.init_args.kind"],
        ),
        (MINE, {"path": "gone.csv"}, ["data.init_args.folder"]),
        ("own.Own", {}, []),
        ("own.Absent", {}, []),
        ("absent.Mine", {}, []),
    ],
    ids=[
        "defaults",
        "set",
        "set to none that is there",
        "own constructor",
        "no class",
        "no module",
    ],
)
def test_files_that_defaults_of_an_own_data_module_name_count(
    class_path: str,
    given: dict[str, str],
    keys: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (folder / "own.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(folder))
    assert [*(digests_of(session_of(class_path, **given)).data or {})] == keys


def test_the_starter_project_names_its_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = Path(up_to_date.__file__).parents[1] / "templates" / "module"
    shutil.copytree(template, folder, dirs_exist_ok=True)
    monkeypatch.syspath_prepend(str(folder))
    session = open_stage_config(parse(["fit", "-c", "train.yaml"]))
    found = digests_of(session)
    assert {key: [*files] for key, files in (found.data or {}).items()} == {
        "data.init_args.path": ["points.csv"]
    }
    assert up_to_date._explain_unseen(session.resolved, found) is None


def test_own_classes_from_elsewhere_count_with_their_package(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path / "lib",
        "mine_pack/__init__.py",
        "mine_pack/deep/net.py",
        "mine_alone.py",
        "mine_beside.py",
    )
    write(tmp_path / "more", "mine_folder/net.py", "mine_folder/data.py")
    monkeypatch.syspath_prepend(str(tmp_path / "more"))
    write(folder, "here.py")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    words = (
        *("--callbacks.a=mine_pack.deep.net.Net", "--callbacks.b=mine_folder.net.Net"),
        "--trainer.callbacks=[mine_alone.Callback]",
    )
    found = digests_of(session_of("torch.utils.data.Dataset", *words)).code
    assert sorted(found) == [
        *("here.py", "mine_alone.py", "mine_beside.py", "mine_folder/net.py"),
        *("mine_pack/__init__.py", "mine_pack/deep/net.py"),
    ]
    (tmp_path / "lib" / "mine_pack" / "deep" / "net.py").write_text("changed")
    changed = digests_of(session_of("torch.utils.data.Dataset", *words)).code
    assert [name for name in found if found[name] != changed[name]] == ["mine_pack/deep/net.py"]


def test_an_own_class_that_git_ignores_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    write(folder, "own.py", "seen.py")
    (folder / ".gitignore").write_text("own.py\n")
    monkeypatch.syspath_prepend(str(folder))
    assert sorted(digests_of(session_of("ImageFolder", root="photos")).code) == ["seen.py"]
    assert sorted(digests_of(session_of(MINE)).code) == ["own.py", "seen.py"]


@pytest.mark.parametrize(
    "name", ["json.JSONDecoder", "sys.flags", "numpy.ndarray", "yaml.loader.Loader", "absent.Net"]
)
def test_installed_packages_have_no_own_files(name: str) -> None:
    assert find_own_files(name) == {}


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
        (
            MINE,
            {"table": "rows.csv", "more": "http://127.0.0.1/x"},
            {"table": ["rows.csv"]},
            ("more",),
        ),
        (MINE, {"size": 3, "text": "x" * 5000, "name": "~nobody-of-this-name/x"}, {}, ()),
    ],
    ids=[
        *("folder", "file", "remote", "default", "download", "made", "own", "nested"),
        *("address", "nothing"),
    ],
)
def test_the_files_count_that_the_data_section_names(
    class_path: str, given: dict[str, Any], files: dict[str, list[str]], unseen: tuple[str, ...]
) -> None:
    session = session_of(class_path, **given)
    inputs = digests_of(session)
    found = {
        key.removeprefix("data.init_args."): [*names] for key, names in (inputs.data or {}).items()
    }
    assert found == files
    assert inputs.unseen == tuple(f"data.init_args.{name}" for name in unseen)


def test_the_photos_count_once_they_are_fetched(folder: Path) -> None:
    write(folder, *(f"data/flower_photos/{name}/1.jpg" for name in CLASSES))
    assert digests_of(session_of("Flowers")).num_files == len(CLASSES)


def test_of_a_delta_table_the_newest_commit_counts(folder: Path) -> None:
    commits = [f"table/_delta_log/{number:020}.json" for number in range(3)]
    write(folder, *commits[:2])
    before = digests_of(session_of("Table", path="table")).data
    write(
        folder,
        "table/_delta_log/00000000000000000001.checkpoint.parquet",
        "table/_delta_log/_last_checkpoint",
    )
    assert digests_of(session_of("Table", path="table")).data == before
    write(folder, commits[2])
    assert digests_of(session_of("Table", path="table")).data != before


def test_links_in_a_circle_and_the_runs_themselves_are_left_out(folder: Path) -> None:
    (folder / "photos/again").symlink_to(folder / "photos")
    write(folder, "photos/runs/x.json")
    inputs = digests_of(session_of("ImageFolder", "--run.root=photos/runs", root="photos"))
    assert inputs.data is not None
    assert [*inputs.data["data.init_args.root"]] == ["a.jpg"]

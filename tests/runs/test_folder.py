from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lightkit import runs
from lightkit.errors import ConfigError


def _old(
    root: Path, name: str, run_id: str, *, subcommand: str | None = "fit", status: str | None = None
) -> runs.Run:
    folder = root / name / run_id
    folder.mkdir(parents=True)
    run = runs.open_run(folder)
    if subcommand:
        runs.write_json(run.manifest_path, {"subcommand": subcommand})
    if status:
        runs.write_summary(
            run.summary_path, {**runs.new_summary(f"{name}/{run_id}"), "status": status}
        )
    return run


A, B, C = "20261120-113859-3fa1", "20261120-113900-0b2c", "20261121-000000-9d9d"


def test_a_new_run_has_a_folder_of_its_own_named_by_the_time(tmp_path: Path) -> None:
    run = runs.create(tmp_path / "runs", "flowers")
    assert run.folder.is_dir()
    assert run.folder == tmp_path / "runs" / "flowers" / run.id
    assert (run.name, run.root, run.resumed) == ("flowers", tmp_path / "runs", False)
    assert runs.open_run(run.folder) == run


def test_many_runs_in_the_same_second_never_share_a_folder(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: runs.create(tmp_path, "flowers"), range(64)))
    assert len({run.folder for run in made}) == 64


@pytest.mark.parametrize("name", ["", "a/b", "a\\b", "a\nb", "..", "-x", " x", "x ", "latest"])
def test_a_name_that_is_no_folder_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.name: .* cannot name a folder of runs"):
        runs.create(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_cannot_be_written_is_an_error_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigError, match=r"run\.root: cannot write .*file/flowers: Not a directory"
    ):
        runs.create(tmp_path / "file", "flowers")


def test_a_file_with_the_name_of_the_job_is_an_error_and_no_endless_loop(tmp_path: Path) -> None:
    (tmp_path / "flowers").write_text("")
    with pytest.raises(ConfigError, match="File exists"):
        runs.create(tmp_path, "flowers")


def test_a_folder_in_the_place_of_latest_is_an_error(tmp_path: Path) -> None:
    run = _old(tmp_path, "flowers", A)
    (tmp_path / "flowers" / "latest").mkdir()
    with pytest.raises(ConfigError, match=r"cannot write .*latest"):
        runs.point_latest(run)


def test_latest_follows_the_run_that_was_pointed_to_and_is_relative(tmp_path: Path) -> None:
    first, second = _old(tmp_path, "flowers", A), _old(tmp_path, "flowers", B)
    runs.point_latest(first)
    runs.point_latest(second)
    assert (tmp_path / "flowers" / "latest").readlink() == Path(B)
    runs.point_latest(first)
    moved = tmp_path.rename(tmp_path.with_name(tmp_path.name + "-moved"))
    assert runs.find("latest", moved, "flowers").id == A
    assert sorted(path.name for path in (moved / "flowers").iterdir()) == [A, B, "latest"]


@pytest.mark.parametrize(
    ("reference", "name", "found"),
    [
        ("latest", "flowers", f"flowers/{B}"),
        ("latest", None, f"shoes/{C}"),
        ("shoes", None, f"shoes/{C}"),
        ("flowers/latest", None, f"flowers/{B}"),
        (f"flowers/{A}", None, f"flowers/{A}"),
        (f"flowers/{A}/", None, f"flowers/{A}"),
        (A, None, f"flowers/{A}"),
        (A, "flowers", f"flowers/{A}"),
        (f"runs/flowers/{A}", None, f"flowers/{A}"),
        ("runs/flowers/latest", None, f"flowers/{B}"),
        ("runs/flowers", None, f"flowers/{B}"),
        ("shoes", "flowers", f"shoes/{C}"),
    ],
)
def test_a_run_is_found_by(
    reference: str, name: str | None, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    _old(root, "flowers", A)
    runs.point_latest(_old(root, "flowers", B))
    _old(root, "shoes", C)  # never pointed to: killed before
    (tmp_path / "shoes").mkdir()  # people's data may have the name of a job
    monkeypatch.chdir(tmp_path)
    run = runs.find(reference, Path("runs"), name)
    assert f"{run.name}/{run.id}" == found
    assert run.folder == root / found


@pytest.mark.parametrize(
    "reference", ["flwers", "flowers/latst", "", "../flowers", "/nowhere", f"shoes/{A}"]
)
def test_a_run_that_is_not_there_is_an_error_that_lists_what_is(
    reference: str, tmp_path: Path
) -> None:
    _old(tmp_path, "flowers", A)
    with pytest.raises(ConfigError, match=rf"no run '{reference}'.*flowers/{A}"):
        runs.find(reference, tmp_path)


def test_a_near_name_is_offered(tmp_path: Path) -> None:
    _old(tmp_path, "flowers", A)
    with pytest.raises(ConfigError, match="did you mean 'flowers'"):
        runs.find("flwers", tmp_path)


def test_no_runs_at_all_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there are no runs in .*`lightkit fit` makes the first"):
        runs.find("latest", tmp_path / "runs")


def test_listing_passes_over_what_is_no_run(tmp_path: Path) -> None:
    _old(tmp_path, "flowers", A)
    (tmp_path / "mlflow.db").write_text("")
    (tmp_path / "flowers" / "lock.json").write_text("{")
    (tmp_path / "flowers" / "notes").mkdir()
    (tmp_path / "flowers" / "latest").symlink_to("gone")
    (tmp_path / ".cache" / B).mkdir(parents=True)
    assert [run.id for run in runs.list_runs(tmp_path)] == [A]
    assert runs.find("latest", tmp_path, "flowers").id == A


@pytest.mark.parametrize(
    ("status", "resumes"),
    [
        ("done", False),
        ("running", True),
        (None, True),
        ("preempted", True),
        ("interrupted", True),
        ("failed", True),
    ],
)
def test_a_fit_that_did_not_end_is_the_one_to_resume(
    status: str | None, resumes: bool, tmp_path: Path
) -> None:
    _old(tmp_path, "flowers", A, status=status)
    run = runs.newest_interrupted(tmp_path, "flowers")
    assert (run is not None) == resumes
    assert run is None or run.id == A


def test_a_fit_that_was_interrupted_before_one_that_ended_is_history(tmp_path: Path) -> None:
    _old(tmp_path, "flowers", A, status="preempted")
    _old(tmp_path, "flowers", B, status="done")
    assert runs.newest_interrupted(tmp_path, "flowers") is None


def test_only_a_fit_is_resumed(tmp_path: Path) -> None:
    _old(tmp_path, "flowers", A, status="preempted")
    _old(tmp_path, "flowers", B, subcommand="test")
    _old(tmp_path, "flowers", C, subcommand=None)  # killed between mkdir and manifest
    run = runs.newest_interrupted(tmp_path, "flowers")
    assert run is not None
    assert run.id == A


def test_a_half_written_summary_counts_as_killed(tmp_path: Path) -> None:
    _old(tmp_path, "flowers", A).summary_path.write_text('{"status": "do')
    assert runs.newest_interrupted(tmp_path, "flowers") is not None


def test_a_job_that_never_ran_has_nothing_to_resume(tmp_path: Path) -> None:
    assert runs.newest_interrupted(tmp_path, "flowers") is None


def test_runs_start_without_torch() -> None:
    code = (
        "import sys, lightkit.runs; print({'torch', 'pytorch_lightning', 'mlflow', 'yaml', 'rich'}"
        " & set(sys.modules))"
    )
    here = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=here
    )
    assert done.stdout == "set()\n"


def test_runs_of_the_same_second_are_in_order(tmp_path: Path) -> None:
    made = [runs.create(tmp_path, "job").id for _ in range(8)]
    assert made == sorted(made)


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        ("29991231-235959-3fa1", ["3fa2", "3fa3", "3fa4"]),
        ("29991231-235959-00ff", ["0100", "0101", "0102"]),
        ("29991231-235959-fffe", ["ffff", "ffff0", "ffff1"]),
    ],
)
def test_a_run_that_begins_after_the_clock_was_set_back_is_the_newest(
    newest: str, expected: list[str], tmp_path: Path
) -> None:
    (tmp_path / "job" / newest).mkdir(parents=True)
    made = [runs.create(tmp_path, "job").id for _ in range(3)]
    assert made == [f"29991231-235959-{fraction}" for fraction in expected]
    assert [run.id for run in runs.list_runs(tmp_path, "job")] == [*reversed(made), newest]
    assert runs.create(tmp_path, "other").id < newest

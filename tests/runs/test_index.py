"""What there is to say of each run on one line."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lightkit import runs
from lightkit.runs.index import find_metric, index_runs, infer_mode_of_runs
from tests.runs.trees import plant, run_id


def test_a_file_with_two_names_takes_its_space_once(tmp_path: Path) -> None:
    plant(tmp_path, day=1, value=0.7)
    (before,) = index_runs(tmp_path)
    checkpoints = before.run.folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    (checkpoints / "last.ckpt").write_bytes(bytes(1000))
    (checkpoints / "best.ckpt").unlink(missing_ok=True)
    (alone,) = index_runs(tmp_path)
    (checkpoints / "best.ckpt").hardlink_to(checkpoints / "last.ckpt")
    (linked,) = index_runs(tmp_path)
    assert linked.size_bytes == alone.size_bytes


def test_runs_are_listed_newest_first_with_what_they_came_to(tmp_path: Path) -> None:
    plant(tmp_path, day=1, value=0.7, size=1000)
    plant(tmp_path, day=2, status="failed", value=None)
    plant(tmp_path, "other", day=1.5, monitor="val/loss", value=0.1)
    newest, other, oldest = index_runs(tmp_path)
    assert [newest.run.id, other.run.id, oldest.run.id] == [run_id(2), run_id(1.5), run_id(1)]
    assert (oldest.status, oldest.metric, oldest.value) == ("done", "val/accuracy", 0.7)
    assert oldest.size_bytes == sum(
        path.stat().st_size for path in oldest.run.folder.rglob("*") if path.is_file()
    )
    assert (other.metric, other.value) == ("val/loss", 0.1)
    assert (newest.status, newest.value) == ("failed", None)
    assert [each.run.name for each in index_runs(tmp_path, "other")] == ["other"]


def test_a_metric_of_a_later_stage_can_be_asked_for(tmp_path: Path) -> None:
    folder = plant(tmp_path)
    summary = runs.read_json(folder / "summary.json") or {}
    runs.write_json(
        folder / "summary.json", {**summary, "stages": {"test": {"test/accuracy": 0.25}}}
    )
    (listed,) = index_runs(tmp_path, metric="test/accuracy")
    assert listed.value == 0.25
    assert index_runs(tmp_path, metric="test/f1")[0].value is None


@pytest.mark.parametrize("status", ["running", None], ids=["summary", "no-summary"])
def test_a_run_whose_process_is_gone_was_killed(status: str | None, tmp_path: Path) -> None:
    plant(tmp_path, status=status)
    assert index_runs(tmp_path)[0].status == "killed"


def test_the_run_that_a_process_works_on_is_locked(tmp_path: Path) -> None:
    folder, other = (
        plant(tmp_path, day=2, status="running"),
        plant(tmp_path, day=1, status="running"),
    )
    with runs.Lock(tmp_path, "job") as lock:
        lock.note_folder(folder)
        first, second = index_runs(tmp_path)
    assert (first.run.folder, first.status, first.is_locked) == (folder, "running", True)
    assert (second.run.folder, second.status, second.is_locked) == (other, "killed", False)


def test_while_a_process_chooses_its_run_none_counts_as_dead(tmp_path: Path) -> None:
    plant(tmp_path, status="running")
    with runs.Lock(tmp_path, "job"):
        assert [each.status for each in index_runs(tmp_path)] == ["running"]


def test_links_are_counted_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 10**6)
    folder = plant(tmp_path / "runs", checkpoint=None)
    (folder / "link").symlink_to(tmp_path / "big")
    (folder / "up").symlink_to(tmp_path, target_is_directory=True)
    assert 0 < index_runs(tmp_path / "runs")[0].size_bytes < 2000


def test_what_the_newest_run_recorded_comes_before_the_name(tmp_path: Path) -> None:
    plant(tmp_path, day=3)
    for day, mode in ((2, "min"), (1, "max")):
        folder = plant(tmp_path, day=day)
        summary = runs.read_json(folder / "summary.json") or {}
        runs.write_json(folder / "summary.json", {**summary, "modes": {"val/accuracy": mode}})
    assert infer_mode_of_runs("val/accuracy", index_runs(tmp_path)) == "min"
    assert infer_mode_of_runs("val/accuracy", index_runs(tmp_path), explicit="max") == "max"
    assert infer_mode_of_runs("val/loss", index_runs(tmp_path)) == "min"


def test_the_mode_of_a_callback_decides_where_the_name_does_not(tmp_path: Path) -> None:
    plant(tmp_path, day=2, monitor="val/accuracy", mode="min")
    plant(tmp_path, day=1, monitor="val/closeness", mode="max")
    assert infer_mode_of_runs("val/accuracy", index_runs(tmp_path)) == "max"
    assert infer_mode_of_runs("val/closeness", index_runs(tmp_path)) == "max"


@pytest.mark.parametrize(
    ("best", "last", "value"),
    [
        ({"val/auc": 0.5}, {"val/auc": 0.9}, 0.5),
        ({"val/auc": None}, {"val/auc": 0.9}, math.nan),
        ({"val/loss": 1.0}, {"val/auc": 0.9}, None),
        ({}, {"val/auc": 0.9}, 0.9),
        ({}, {"val/auc": None}, math.nan),
        ({}, {}, None),
    ],
    ids=["finite", "not finite", "not measured", "no best epoch", "nowhere finite", "never logged"],
)
def test_a_metric_is_that_of_the_best_epoch_alone(
    best: dict[str, Any], last: dict[str, Any], value: float | None
) -> None:
    found = find_metric("val/auc", {"metrics": {"best": best, "last": last}})
    assert found == (pytest.approx(value, nan_ok=True) if value is not None else None)


def test_paths_are_those_of_the_folder_that_the_training_began_in(tmp_path: Path) -> None:
    plant(tmp_path, ckpt_path="runs/base/last.ckpt", working_directory="/home/me")
    plant(tmp_path, day=1, ckpt_path="/elsewhere/last.ckpt", working_directory="/home/me")
    assert [each.needs for each in index_runs(tmp_path)] == [
        ("/elsewhere/last.ckpt",),
        ("/home/me/runs/base/last.ckpt",),
    ]


def test_a_record_of_a_run_is_opened_twice_at_most_however_many_runs_there_are(
    tmp_path: Path,
) -> None:
    for day in range(40):
        plant(tmp_path, f"job{day % 5}", day, checkpoint=None)
    opened = _list_opened(tmp_path)
    assert max(Counter(opened).values()) <= 2  # a manifest, for the kind of the run too
    assert len({Path(name).parent for name in opened if name.endswith("manifest.json")}) == 40


def _list_opened(root: Path) -> list[str]:
    """List the files below a folder that an index of its runs opens, as often as it is."""
    code = (
        "import sys; from pathlib import Path; from lightkit.runs.index import index_runs\nopened ="
        " []\nsys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == 'open'"
        " else None)\nindex_runs(Path(sys.argv[1]))\nprint('\\n'.join(name for name in opened if"
        " name.startswith(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(root)], check=True, capture_output=True, text=True
    )
    return done.stdout.split()

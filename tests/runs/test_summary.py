from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightkit import runs


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    summary = runs.Summary(run="flowers/1", status="done", exit_code=0, epochs=3, stages={"test": {"test/f1": 0.5}})
    summary.write(tmp_path / "summary.json")
    assert runs.Summary.read(tmp_path / "summary.json") == summary


def test_paths_are_relative_to_the_run_so_that_its_folder_can_move(tmp_path: Path) -> None:
    run = tmp_path / "run"
    paths = {"best_checkpoint": str(run / "checkpoints" / "best.ckpt"), "parent": str(tmp_path / "other")}
    summary = runs.Summary(run="flowers/1", paths=paths)
    summary.write(run / "summary.json")
    read = runs.Summary.read(run / "summary.json")
    assert read is not None
    assert read.paths == {"best_checkpoint": "checkpoints/best.ckpt", "parent": str(tmp_path / "other")}
    read.write(run / "summary.json")
    assert runs.Summary.read(run / "summary.json") == read


def test_the_file_opens_with_its_schema_and_has_every_documented_field(tmp_path: Path) -> None:
    from lightkit.runs import summary

    runs.Summary(run="flowers/1").write(tmp_path / "summary.json")
    record = json.loads((tmp_path / "summary.json").read_text())
    assert next(iter(record.items())) == ("schema", 1)
    assert record["status"] == "running"
    assert summary.__doc__ is not None
    assert [name for name in record if name not in summary.__doc__] == []


def test_a_status_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown status 'dead'; a run is running, done, failed"):
        runs.Summary(run="flowers/1", status="dead").write(tmp_path / "summary.json")
    assert not (tmp_path / "summary.json").exists()


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}"])
def test_there_is_no_summary_where_nothing_readable_is(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "summary.json").write_text(text)
    assert runs.Summary.read(tmp_path / "summary.json") is None


def test_fields_of_a_later_version_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"schema": 2, "run": "flowers/1", "status": "done", "carbon": 3}')
    read = runs.Summary.read(tmp_path / "summary.json")
    assert read is not None
    assert (read.status, read.schema) == ("done", 2)

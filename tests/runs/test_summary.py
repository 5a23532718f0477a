from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightkit import runs
from lightkit.runs import summary


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    written = runs.new_summary("flowers/1") | {
        "status": "done",
        "exit_code": 0,
        "stages": {"test": {"test/f1": 0.5}},
    }
    runs.write_summary(tmp_path / "summary.json", written)
    assert runs.read_summary(tmp_path / "summary.json") == written


def test_paths_are_relative_to_the_run_so_that_its_folder_can_move(tmp_path: Path) -> None:
    path = tmp_path / "run" / "summary.json"
    paths = {
        "best_checkpoint": str(path.parent / "checkpoints" / "best.ckpt"),
        "parent": str(tmp_path / "other"),
    }
    runs.write_summary(path, runs.new_summary("flowers/1") | {"paths": paths})
    read = runs.read_summary(path)
    assert read is not None
    assert read["paths"] == {
        "best_checkpoint": "checkpoints/best.ckpt",
        "parent": str(tmp_path / "other"),
    }
    runs.write_summary(path, read)
    assert runs.read_summary(path) == read


def test_the_file_opens_with_its_schema_and_has_every_documented_field(tmp_path: Path) -> None:
    runs.write_summary(tmp_path / "summary.json", runs.new_summary("flowers/1"))
    record = json.loads((tmp_path / "summary.json").read_text())
    assert next(iter(record.items())) == ("schema", 1)
    assert record["status"] == "running"
    assert summary.__doc__ is not None
    assert [name for name in record if name not in summary.__doc__] == []


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}"])
def test_there_is_no_summary_where_nothing_readable_is(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "summary.json").write_text(text)
    assert runs.read_summary(tmp_path / "summary.json") is None


def test_a_file_with_few_fields_has_the_others_as_at_the_beginning(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"schema": 2, "run": "flowers/1", "status": "done"}')
    assert runs.read_summary(tmp_path / "summary.json") == runs.new_summary("flowers/1") | {
        "schema": 2,
        "status": "done",
    }

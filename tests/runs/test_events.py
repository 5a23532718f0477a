from __future__ import annotations

import io
import json
import math
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lightkit import runs

EXAMPLES: dict[str, dict[str, Any]] = {
    "start": {"run": "flowers/1", "stage": "fit"},
    "resume": {"run": "flowers/1", "stage": "fit", "checkpoint": None, "epoch": 2, "step": 30},
    "epoch": {"epoch": 0, "step": 10, "metrics": {"val/loss": 0.5}, "seconds": 1.5},
    "checkpoint": {"path": "checkpoints/last.ckpt", "epoch": 0, "step": 10, "kind": "last"},
    "result": {"stage": "test", "metrics": {}},
    "bad_images": {
        "count": 2,
        "reasons": {"Truncated File Read": 2},
        "found": "scan",
        "path": "bad_images.csv",
    },
    "stall": {"phase": "train", "seconds": 300.5, "path": "stalls/1.txt", "at": None},
    "nonfinite": {"epoch": 0, "step": 10, "batch": 3, "indices": [4, 1], "action": "stop"},
    "fallback": {"path": "checkpoints/last.ckpt", "used": None, "reason": "it is empty"},
    "gate": {"passed": True, "scores": {}, "reasons": []},
    "promotion": {"name": "flowers", "alias": "champion", "from": None, "to": "2"},
    "stage": {"stage": "test", "status": "done"},
    "unchanged": {"run": "flowers/1", "data": {"files": 3670}},
    "warning": {"message": "m", "source": "UserWarning"},
    "end": {"status": "done", "exit_code": 0, "seconds": 3},
}


def test_every_event_has_an_example_here_and_a_line_in_the_documentation() -> None:
    from lightkit.runs import events

    row = r"^(\w+)  .*(?:\n +.*)*?\n +fields: (.*(?:\n +.*)*)"
    rows = re.findall(row, events.__doc__ or "", re.MULTILINE)
    assert {event: set(re.findall(r"(\w+)\s+\(", fields)) for event, fields in rows} == {
        event: set(fields) for event, fields in EXAMPLES.items()
    }


@pytest.mark.parametrize("event", EXAMPLES)
def test_an_event_is_one_line_with_its_time_and_fields(event: str, tmp_path: Path) -> None:
    stream = runs.EventStream(tmp_path / "new" / "events.jsonl")
    stream.write(event, **EXAMPLES[event])
    (line,) = stream.path.read_text().splitlines()
    record = json.loads(line)
    age = datetime.now(UTC) - datetime.fromisoformat(record.pop("time"))
    assert 0 <= age.total_seconds() < 60
    assert record == {"event": event, **EXAMPLES[event]}


def test_a_writer_may_add_fields_and_text_keeps_its_letters(tmp_path: Path) -> None:
    stream = runs.EventStream(tmp_path / "events.jsonl")
    stream.write("warning", message="größer\nals", source="x", path=Path("a/b"))
    assert "größer" in stream.path.read_text(encoding="utf-8")
    (record,) = runs.read_events(stream.path)
    assert (record["message"], record["path"]) == ("größer\nals", "a/b")


def test_a_number_that_is_not_finite_is_null_in_strict_json(tmp_path: Path) -> None:
    stream = runs.EventStream(tmp_path / "events.jsonl")
    stream.write(
        "epoch", epoch=0, step=1, seconds=1.0, metrics={"a": math.nan, "b": math.inf, "c": 1.0}
    )

    def refuse(name: str) -> float:
        raise AssertionError(name)

    record = json.loads(stream.path.read_text(), parse_constant=refuse)
    assert record["metrics"] == {"a": None, "b": None, "c": 1.0}


def test_a_line_that_a_kill_tore_is_skipped_and_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    runs.EventStream(path).write("start", **EXAMPLES["start"])
    with path.open("a") as file:
        file.write('{"time": "2026-11-20T11:38:59+00:00", "event": "epo')
    assert [record["event"] for record in runs.read_events(path)] == ["start"]
    stream = runs.EventStream(path)
    stream.write("resume", **EXAMPLES["resume"])
    stream.write("end", **EXAMPLES["end"])
    assert [record["event"] for record in runs.read_events(path)] == ["start", "resume", "end"]
    assert len(path.read_text().splitlines()) == 4


def test_there_are_no_events_without_a_file(tmp_path: Path) -> None:
    assert list(runs.read_events(tmp_path / "none")) == []


def test_the_mirror_gets_the_same_lines(tmp_path: Path) -> None:
    mirror = io.StringIO()
    stream = runs.EventStream(tmp_path / "events.jsonl", mirror=mirror)
    stream.write("start", **EXAMPLES["start"])
    stream.write("end", **EXAMPLES["end"])
    assert mirror.getvalue() == stream.path.read_text()

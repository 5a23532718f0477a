"""The table: what a proof found, for people."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from lightkit.export.record import Report
from lightkit.export.scoring import Score
from lightkit.export.table import show
from tests.export.test_record import artefact


def shown(report: Report) -> list[str]:
    file = io.StringIO()
    show(report, file)
    return file.getvalue().splitlines()


def test_in_a_pipe_the_table_is_plain_text(tmp_path: Path) -> None:
    lines = shown(Report(tmp_path, [artefact(tmp_path), artefact(tmp_path, "model.ts")]))

    assert all(line.isascii() and line.isprintable() and len(line) <= 110 for line in lines)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    rows = {first: others for first, *others in cells}
    assert rows["file"][:3] == ["size", "max gap", "val/accuracy"]
    assert rows["eager model"][2:5] == ["0.8125", "4.0 (3.0)", "64.0 (50.0)"]
    assert rows["model.onnx"][:6] == ["2.5 kB", "3.2e-06", "0.7500", "2.0 (3.0)", "32.0 (50.0)", "1000"]
    assert lines[-2:] == [
        "Proved in a fresh process on 64 samples at batch 1, 7 and 32. Latency: median (95th percentile), 2 threads.",
        "model.ts: by trace",
    ]


def test_what_was_not_scored_is_said(tmp_path: Path) -> None:
    lines = shown(Report(tmp_path, [artefact(tmp_path, score=Score({}, {}, reason="Net has no validation_step"))]))

    assert lines[-1] == "Not scored: Net has no validation_step."


@pytest.mark.parametrize(
    ("size_bytes", "says"), [(999, "999 B"), (14_000_000, "14.0 MB"), (2_100_000_000, "2.1 GB")], ids=["B", "MB", "GB"]
)
def test_sizes_have_a_unit(tmp_path: Path, size_bytes: int, says: str) -> None:
    made = artefact(tmp_path)
    with made.path.open("r+b") as file:
        file.truncate(size_bytes)  # a hole: it takes no room

    assert any(says in line for line in shown(Report(tmp_path, [made])))

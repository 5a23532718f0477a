"""The table: what a proof found, for people."""

from __future__ import annotations

import io
from dataclasses import replace
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


def cells_of(report: Report) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown(report) if "|" in line]
    return {first: others for first, *others in rows}


def test_a_file_that_takes_tensors_beside_one_of_images_has_an_eager_model_of_its_own(tmp_path: Path) -> None:
    weights, images = artefact(tmp_path, "model.safetensors"), artefact(tmp_path)
    eager = {size: {**figures, "median_s": figures["median_s"] * 3} for size, figures in weights.eager.items()}
    images = replace(images, metadata=replace(images.metadata, in_graph=True), eager=eager)

    rows = cells_of(Report(tmp_path, [images, weights]))

    assert list(rows) == ["file", "eager, from images", "eager, from tensors", "model.onnx", "model.safetensors"]
    assert [rows[name][3] for name in list(rows)[1:3]] == ["12.0 (3.0)", "4.0 (3.0)"]


def test_the_file_that_was_not_scored_is_named(tmp_path: Path) -> None:
    scored, not_scored = artefact(tmp_path), artefact(tmp_path, "model.pt2", score=Score({}, {}, reason="why"))

    report = Report(tmp_path, [not_scored, scored])

    assert shown(report)[-1] == "model.pt2: not scored: why."
    assert cells_of(report)["file"][2] == "val/accuracy"


def test_a_fast_model_has_figures_other_than_zero(tmp_path: Path) -> None:
    made = artefact(tmp_path)
    quick = {size: {**figures, "median_s": 1.23e-5, "p95_s": 4.56e-4} for size, figures in made.eager.items()}

    assert cells_of(Report(tmp_path, [replace(made, eager=quick)]))["eager model"][3] == "0.012 (0.46)"


@pytest.mark.parametrize(
    ("size_bytes", "says"), [(999, "999 B"), (14_000_000, "14.0 MB"), (2_100_000_000, "2.1 GB")], ids=["B", "MB", "GB"]
)
def test_sizes_have_a_unit(tmp_path: Path, size_bytes: int, says: str) -> None:
    made = artefact(tmp_path)
    with made.path.open("r+b") as file:
        file.truncate(size_bytes)  # a hole: it takes no room

    assert any(says in line for line in shown(Report(tmp_path, [made])))

"""Exporting: what is proved is published, and what is no match is gone, with words that say where."""

from __future__ import annotations

import errno
import json
import re
import resource
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightkit.artefacts.metadata import Metadata
from lightkit.errors import ConfigError, DataError, ExportError
from lightkit.export import exporting, writing
from lightkit.export.exporting import ExportsFailed, export, file_names
from lightkit.export.parity import Tolerance
from lightkit.export.subject import Subject, WriteOptions
from tests.export.planted import samples_of, subject_of, writer_of

pytestmark = pytest.mark.slow  # each starts processes


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Files as they are written by hand, with a fault."""

    def plant(fault: str = "none") -> None:
        monkeypatch.setattr(writing, "write", writer_of(fault))

    return plant


def fail(folder: Path, *, tolerance: Tolerance | None = None, options: WriteOptions | None = None) -> str:
    """Export to ONNX, which fails; give the words."""
    subject = subject_of()
    with pytest.raises(ExportError) as caught:
        export(subject, ["onnx"], folder, samples_of(subject.plain), tolerance=tolerance, options=options)
    assert caught.value.exit_code == 5
    return str(caught.value)


def test_a_match_is_published_with_its_record(planted: Any, tmp_path: Path) -> None:
    planted()
    subject, steps = subject_of(), list[str]()

    report = export(subject, ["onnx"], tmp_path / "export", samples_of(subject.plain), on_step=steps.append)

    assert sorted(file.name for file in (tmp_path / "export").iterdir()) == [
        ".export.lock",
        "export.json",
        "model.onnx",
    ]
    entry = json.loads((tmp_path / "export" / "export.json").read_text())["artefacts"]["model.onnx"]
    assert entry["parity"]["7"]["outputs"] == 3 * 7 * 3
    assert max(entry["parity"][size]["max_abs"] for size in ("1", "7", "32")) < 1e-4
    assert entry["metrics"]["exported"] == pytest.approx(entry["metrics"]["eager"], abs=1e-5)
    assert entry["metrics"]["eager"]["val/accuracy"] == 1.0
    assert entry["loaded"] == ["onnxruntime"]
    assert entry["source"] == {"checkpoint": "best.ckpt", "sha256": "ab12"}
    assert {"1", "32"} == set(entry["latency"]["exported"]) == set(entry["latency"]["eager"])
    assert 0 < entry["latency"]["exported"]["1"]["median_s"] <= entry["latency"]["exported"]["1"]["p95_s"]
    assert [artefact.path.name for artefact in report.artefacts] == ["model.onnx"]
    assert steps[0] == "model.onnx: writing"
    assert steps[-1] == "model.onnx: proved"


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("at_seven", r"63 of 63 outputs differ at batch size 7, by up to 1.00e\+00 .*first for photos/00.jpg: class"),
        ("nan", r"1 of 60 .* at batch size 1 .*first for photos/05.jpg: class 'rose' of 'logits' is nan, expected"),
        ("double", r"first 'logits' is float64 \(1, 3\), expected float32 \(1, 3\)"),
    ],
    ids=["wrong at batch 7 only", "nan in one class", "dtype"],
)
def test_a_planted_mismatch_is_found_and_removed(planted: Any, tmp_path: Path, fault: str, says: str) -> None:
    planted(fault)

    words = fail(tmp_path)

    assert re.search(says, words), words
    assert not (tmp_path / "model.onnx").exists()
    assert not list(tmp_path.glob(".*.aside"))
    assert not (tmp_path / "export.json").exists()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ExportError("model.onnx: Net cannot be exported: why"), "model.onnx: Net cannot be exported: why"),
        (OSError(errno.ENOSPC, "No space left on device"), "model.onnx: no space is left on the disk of"),
    ],
    ids=["not exportable", "full disk"],
)
def test_a_file_that_cannot_be_written_leaves_the_earlier_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, says: str
) -> None:
    def write(kind: str, subject: Subject, path: Path, options: WriteOptions) -> Metadata:
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(writing, "write", write)
    (tmp_path / "model.onnx").write_text("old")

    assert says in fail(tmp_path)
    assert (tmp_path / "model.onnx").read_text() == "old"
    assert not list(tmp_path.glob(".*.aside"))


@pytest.mark.parametrize(
    "kind", [pytest.param("onnx", marks=pytest.mark.long), "torch_export", "torchscript", "safetensors"]
)
def test_a_limit_on_the_size_of_files_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    written = writing.write

    def write(kind: str, subject: Subject, path: Path, options: WriteOptions) -> Metadata:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
        try:
            return written(kind, subject, path, options)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    monkeypatch.setattr(writing, "write", write)
    # what is imported under the limit would leave half a .pyc, which later processes fail on
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    subject = subject_of()

    with pytest.raises(ExportsFailed, match=r"the file is larger than files in .* may be. Look at `ulimit -f`"):
        export(subject, [kind], tmp_path, samples_of(subject.plain))
    assert [path.name for path in tmp_path.iterdir()] == [".export.lock"]


def test_a_file_whose_entry_cannot_be_written_is_not_left_alone(
    planted: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(folder: Path, artefact: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    planted()
    monkeypatch.setattr(exporting, "add_entry", full)

    assert "model.onnx: no space is left on the disk of" in fail(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".export.lock"]


def test_int8_without_samples_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    subject, options = subject_of(), WriteOptions(int8=True)

    for calibration in (None, lambda: iter(())):
        with pytest.raises(ConfigError, match=r"--int8: .* no .*samples to calibrate on"):
            export(
                subject,
                ["torch_export", "onnx"],
                tmp_path / "export",
                samples_of(subject.plain),
                options=replace(options, calibration=calibration),
            )
    assert not (tmp_path / "export").exists()


def test_a_file_that_is_damaged_on_its_way_is_told_with_the_runtimes_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def write(kind: str, subject: Subject, path: Path, options: WriteOptions) -> Metadata:
        metadata = writer_of()(kind, subject, path, options)
        path.write_bytes(path.read_bytes()[:200])
        return metadata

    monkeypatch.setattr(writing, "write", write)

    words = fail(tmp_path)

    assert "model.onnx cannot be run in a fresh process, which failed with code 1" in words
    assert "onnxruntime cannot read it" in words
    assert "\n" not in words
    assert not (tmp_path / "model.onnx").exists()


def unreadable(kind: str, subject: Subject, path: Path, options: WriteOptions) -> Metadata:
    raise DataError("photos/03.jpg cannot be read")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [(writer_of("swapped"), r"model.half.onnx does not match"), (unreadable, r"photos/03.jpg cannot be read")],
    ids=["no match", "unreadable sample"],
)
def test_what_failed_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: Any, says: str
) -> None:
    right = writer_of()

    def write(kind: str, subject: Subject, path: Path, options: WriteOptions) -> Metadata:
        metadata: Metadata = (wrong if options.half else right)(kind, subject, path, options)
        return metadata

    monkeypatch.setattr(writing, "write", write)
    subject = subject_of()
    options = WriteOptions(half=True, int8=True, calibration=lambda: iter([(np.zeros((1, 4), np.float32),)]))

    with pytest.raises(ExportsFailed, match=says) as caught:
        export(subject, ["onnx"], tmp_path, samples_of(subject.plain), options=options)

    assert caught.value.report is not None
    assert [item.path.name for item in caught.value.report.artefacts] == ["model.onnx", "model.int8.onnx"]
    assert sorted(file.name for file in tmp_path.glob("*.onnx")) == ["model.int8.onnx", "model.onnx"]


def test_names_of_files_follow_formats_and_options() -> None:
    assert file_names(["onnx", "torch_export", "onnx"], WriteOptions(half=True, int8=True)) == [
        "model.onnx",
        "model.half.onnx",
        "model.int8.onnx",
        "model.pt2",
    ]

"""Exporting: what is proved is published, and what is no match is gone, with words that say where."""

from __future__ import annotations

import errno
import json
import re
import resource
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightkit.artefacts.metadata import FILES, Metadata
from lightkit.errors import ConfigError, DataError, ExportError
from lightkit.export import exporting, writing
from lightkit.export.exporting import ExportsFailed, export, file_names
from lightkit.export.parity import Tolerance
from lightkit.export.subject import Subject, WriteOptions
from tests.export.planted import LineOfThree, samples_of, subject_of, writer_of

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
        (
            "swapped",
            r"model.onnx does not match its model: 40 of 60 outputs differ at batch size 1 \(at batch 7 and 32 too\), "
            r"by up to \S+ \(rtol=0.0001, atol=1e-05\); first for photos/00.jpg: class 'daisy' of 'logits' is \S+, "
            r"expected \S+\. It was removed\. .* --rtol and --atol",
        ),
        ("at_seven", r"63 of 63 outputs differ at batch size 7, by up to 1.00e\+00 .*first for photos/00.jpg: class"),
        ("nan", r"1 of 60 .* at batch size 1 .*first for photos/05.jpg: class 'rose' of 'logits' is nan, expected"),
        ("inf", r"1 of 60 .* at batch size 1 .*first for photos/05.jpg: class 'rose' of 'logits' is inf, expected"),
        ("double", r"first 'logits' is float64 \(1, 3\), expected float32 \(1, 3\)"),
        ("scaled", r"outputs differ at batch size 1"),
    ],
    ids=["order of classes", "wrong at batch 7 only", "nan in one class", "inf in one class", "dtype", "by a percent"],
)
def test_a_planted_mismatch_is_found_and_removed(planted: Any, tmp_path: Path, fault: str, says: str) -> None:
    planted(fault)

    words = fail(tmp_path)

    assert re.search(says, words), words
    assert not (tmp_path / "model.onnx").exists()
    assert not list(tmp_path.glob(".*.aside"))
    assert not (tmp_path / "export.json").exists()


def test_a_wide_tolerance_does_not_hide_a_metric_that_dropped(planted: Any, tmp_path: Path) -> None:
    planted("swapped")

    words = fail(tmp_path, tolerance=Tolerance(rtol=1e9, atol=1e9))

    assert "model.onnx does not score as its model does:" in words
    assert "val/accuracy is 0." in words
    assert ", eager 1 " in words
    assert "allow for it" not in words


def test_a_mismatch_takes_the_file_of_an_earlier_export_along(planted: Any, tmp_path: Path) -> None:
    subject = subject_of()
    planted()
    export(subject, ["onnx"], tmp_path, samples_of(subject.plain))
    planted("swapped")

    words = fail(tmp_path)

    assert "It was removed, and so was the one of an earlier export." in words
    assert not (tmp_path / "model.onnx").exists()
    assert json.loads((tmp_path / "export.json").read_text())["artefacts"] == {}


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


@pytest.mark.parametrize("kind", list(FILES))
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


def test_samples_that_fail_in_the_calibration_do_not_stop_the_other_formats(tmp_path: Path) -> None:
    def broken() -> Iterator[tuple[np.ndarray[Any, Any], ...]]:
        yield (np.zeros((2, 4), np.float32),)
        raise DataError("photos/03.jpg cannot be read")

    subject = subject_of()

    with pytest.raises(ExportsFailed, match=r"photos/03.jpg cannot be read") as caught:
        export(
            subject,
            ["onnx", "safetensors"],
            tmp_path,
            samples_of(subject.plain, 8),
            options=WriteOptions(int8=True, calibration=broken),
        )

    assert caught.value.report is not None
    assert [made.path.name for made in caught.value.report.artefacts] == ["model.onnx", "model.safetensors"]


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


def test_what_failed_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    right, wrong = writer_of(), writer_of("swapped")

    def write(kind: str, subject: Subject, path: Path, options: WriteOptions) -> Metadata:
        return (wrong if options.half else right)(kind, subject, path, options)

    monkeypatch.setattr(writing, "write", write)
    subject = subject_of()
    options = WriteOptions(half=True, int8=True, calibration=lambda: iter([(np.zeros((1, 4), np.float32),)]))

    with pytest.raises(ExportsFailed, match=r"model.half.onnx does not match") as caught:
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


class DoubleFaced(LineOfThree):
    """Adds one to a class when it is exported, as an op with a wrong translation does."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits + torch.tensor([0.0, 0.0, 1.0]) if torch.compiler.is_exporting() else logits


def test_a_module_whose_exported_form_differs_is_found_by_torchs_own_exporter(tmp_path: Path) -> None:
    subject = subject_of(DoubleFaced())

    with pytest.raises(
        ExportError, match=r"20 of 60 .*first for photos/00.jpg: class 'tulip' of 'logits' is"
    ) as caught:
        export(subject, ["torch_export"], tmp_path, samples_of(subject.plain))

    assert "by up to 1.00e+00" in str(caught.value)
    assert not (tmp_path / "model.pt2").exists()


def test_every_format_of_a_module_with_two_inputs_and_a_mapping_is_proved(tmp_path: Path) -> None:
    class TwoFacedPair(torch.nn.Module):  # here, it is pickled by value: the fresh process imports torch alone
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)
            self.bias = torch.nn.Parameter(torch.tensor([0.5, 0.25, 0.125]))

        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            hidden = self.layer(x + y)
            return {"scores": hidden + self.bias, "best": hidden.argmax(1)}

    torch.manual_seed(5)
    model = TwoFacedPair()
    subject, samples = subject_of(model), samples_of(model.layer)
    x, scores = subject.metadata.inputs[0], subject.metadata.outputs[0]
    metadata = replace(
        subject.metadata,
        inputs=(x, replace(x, name="y")),
        outputs=(replace(scores, name="scores"), replace(scores, name="best", dtype="int64", shape=(None,))),
        output_kind="other",
        class_names=None,
    )
    subject = replace(subject, example=(torch.zeros(2, 4), torch.ones(2, 4)), metadata=metadata)
    samples = replace(samples, inputs=(samples.inputs[0], torch.ones(20, 4)), batches=())

    report = export(subject, ["torch_export", "onnx", "torchscript", "safetensors"], tmp_path, samples)

    loaded = {artefact.path.name: list(artefact.proof.loaded) for artefact in report.artefacts}
    assert loaded["model.onnx"] == ["onnxruntime"]
    assert loaded["model.pt2"] == loaded["model.ts"] == ["torch"]
    assert loaded["model.safetensors"] == ["torch"]
    assert all(artefact.max_abs <= 1e-5 for artefact in report.artefacts)
    assert {artefact.proof.score.reason for artefact in report.artefacts} == {"TwoFacedPair is no LightningModule"}
    assert np.isfinite([artefact.eager[32]["median_s"] for artefact in report.artefacts]).all()

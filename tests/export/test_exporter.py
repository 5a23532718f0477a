"""Exporting: what is proved is published, and what differs is gone, with a message of where."""

from __future__ import annotations

import errno
import json
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightkit.errors import DataError, ExportError, RunLocked
from lightkit.export import exporter
from lightkit.export import onnx as onnx_format
from lightkit.export.exporter import export, lock_folder
from lightkit.export.metadata import Metadata
from lightkit.export.options import ExportOptions
from lightkit.export.target import ExportTarget
from lightkit.runs.checkpoints import digest
from tests.contract.workspace import ForkServer, Workspace
from tests.export.planted import subject_of, writer_of

ONNX = ExportOptions(formats=("onnx",))
pytestmark = pytest.mark.slow  # each starts processes


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Files as they are written by hand, with a fault."""
    return lambda fault="none": monkeypatch.setattr(onnx_format, "write", writer_of(fault))


def fail(folder: Path) -> str:
    """Export to ONNX, which fails; give the message."""
    artefacts, (failure,) = export(subject_of(), folder, ONNX)
    assert artefacts == []
    return failure


def test_a_match_is_published_with_its_record(planted: Any, tmp_path: Path) -> None:
    planted()
    steps = list[str]()

    artefacts, _ = export(subject_of(), tmp_path / "export", ONNX, on_step=steps.append)

    entry = json.loads((tmp_path / "export" / "export.json").read_text())["artefacts"]["model.onnx"]
    assert entry["parity"]["7"]["outputs"] == 3 * 7 * 3
    assert max(entry["parity"][size]["max_abs"] for size in ("1", "7", "32")) < 1e-4
    assert entry["metrics"]["exported"] == pytest.approx(entry["metrics"]["eager"], abs=1e-5)
    assert entry["loaded"] == ["onnxruntime"]
    assert (
        0
        < entry["latency"]["exported"]["1"]["median_s"]
        <= entry["latency"]["exported"]["1"]["p95_s"]
    )
    assert [artefact["file"] for artefact in artefacts] == ["model.onnx"]
    assert (steps[0], steps[-1]) == (
        "model.onnx: writing, then verifying in a fresh process",
        "model.onnx: proved",
    )
    documented = {
        word
        for line in str(exporter.__doc__).splitlines()
        for word in re.findall(r"\w+", line[:17])
    }
    assert entry.keys() <= documented


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record.write_bytes(record.read_bytes()[:1000]),
        lambda record: record.write_text('{"artefacts": {"model.onnx": {"file": ["a"]}}}'),
        lambda record: (record.unlink(), record.mkdir()),
    ],
    ids=["cut", "type", "folder"],
)
def test_an_export_replaces_a_damaged_record_and_keeps_it_aside(
    planted: Any, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    planted()
    record = tmp_path / "export.json"
    export(subject_of(), tmp_path, ONNX)
    whole = json.loads(record.read_text())
    damage(record)

    artefacts, failures = export(subject_of(), tmp_path, ONNX)

    assert failures == []
    assert [artefact["file"] for artefact in artefacts] == ["model.onnx"]
    again = json.loads(record.read_text())["artefacts"]
    assert again.keys() == whole["artefacts"].keys()
    assert again["model.onnx"]["sha256"] == digest(tmp_path / "model.onnx")
    assert (tmp_path / "export.json.damaged").exists()


def test_a_mismatch_is_removed_next_to_a_damaged_record_too(planted: Any, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("an earlier export")
    (tmp_path / "export.json").write_text("{")
    planted("swapped")
    assert "and so was that of an earlier export" in fail(tmp_path)
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "at_seven",
            (
                r"63 of 63 outputs differ at batch size 7, by up to 1.00e\+00 .*first for"
                r" photos/00.jpg: class"
            ),
        ),
        (
            "nan",
            (
                r"1 of 60 .* at batch size 1 .*first for photos/05.jpg: class 'rose' of 'logits' is"
                r" nan, expected"
            ),
        ),
        (
            "double",
            (
                r"its model: 'logits' is float64 \(20, 3\), expected"
                r" float32 \(20, 3\), in batches of 1"
            ),
        ),
    ],
    ids=["wrong at batch 7 only", "nan in one class", "dtype"],
)
def test_a_planted_mismatch_is_found_and_removed(
    planted: Any, tmp_path: Path, fault: str, message: str
) -> None:
    planted(fault)
    assert re.search(message, fail(tmp_path))
    assert [path.name for path in tmp_path.iterdir() if path.name != ".export.lock"] == []


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ExportError("model.onnx: Net cannot be exported: why"),
            "model.onnx: Net cannot be exported: why",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            r"cannot be written \(No space left on device\). Make room",
        ),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "data/table.npz"),
            (
                r"^model.onnx: it cannot be made: data/table.npz: No such file or directory"
                r" \(FileNotFoundError\)\.$"
            ),
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "/data/a.bin"),
            (
                r"^model.onnx: it cannot be made: /data/a.bin: Permission denied"
                r" \(PermissionError\)\.$"
            ),
        ),
        (
            OSError(errno.EMFILE, "Too many open files"),
            r"^model.onnx: it cannot be made: Too many open files \(OSError",
        ),
        (
            ConnectionError("reset by the store"),
            r"^model.onnx: it cannot be made: reset by the store \(Connection",
        ),
        (
            RuntimeError("no such kernel"),
            r"^model.onnx: .* cannot be exported: RuntimeError: no such kernel$",
        ),
    ],
    ids=[
        "not exportable",
        "full disk",
        "missing data",
        "unreadable data",
        "descriptors",
        "connection",
        "library",
    ],
)
def test_a_file_that_cannot_be_written_leaves_the_earlier_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, message: str
) -> None:
    def write(target: ExportTarget, metadata: Metadata, path: Path) -> Metadata:
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(onnx_format, "write", write)
    (tmp_path / "model.onnx").write_text("old")

    assert re.search(message, fail(tmp_path))
    assert (tmp_path / "model.onnx").read_text() == "old"
    assert not list(tmp_path.glob(".*.aside"))


def unreadable(target: ExportTarget, metadata: Metadata, path: Path) -> Metadata:
    raise DataError("photos/03.jpg cannot be read")


def damaged(target: ExportTarget, metadata: Metadata, path: Path) -> Metadata:
    metadata = writer_of()(target, metadata, path)
    path.write_bytes(path.read_bytes()[:200])
    return metadata


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (writer_of("swapped"), r"model.half.onnx does not match"),
        (unreadable, r"photos/03.jpg cannot be read"),
        (
            damaged,
            (
                r"model.half.onnx cannot be run in a fresh process, .* code"
                r" 1. .*onnxruntime cannot read it"
            ),
        ),
    ],
    ids=["no match", "unreadable sample", "damaged"],
)
def test_what_failed_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: Any, message: str
) -> None:
    def write(target: ExportTarget, metadata: Metadata, path: Path) -> Metadata:
        written: Metadata = (wrong if metadata.precision == "float16" else writer_of())(
            target, metadata, path
        )
        return written

    monkeypatch.setattr(onnx_format, "write", write)
    target = replace(subject_of(), calibration=lambda: iter([(np.zeros((1, 4), np.float32),)]))
    options = replace(ONNX, half=True, int8=True)

    artefacts, (failure,) = export(target, tmp_path, options)

    assert re.search(message, failure)
    assert [item["file"] for item in artefacts] == ["model.onnx", "model.int8.onnx"]
    assert sorted(file.name for file in tmp_path.glob("*.onnx")) == [
        "model.int8.onnx",
        "model.onnx",
    ]


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    refused = pytest.raises(RunLocked, match=r"Another export is writing to .*Try again")
    with lock_folder(tmp_path), refused, lock_folder(tmp_path):
        pass


_KILLED = """
import signal
import sys
from pathlib import Path
from lightkit.export import exporter

folder, moment = Path(sys.argv[1]), int(sys.argv[2])
num_calls = -1

def counted(function):
    def call(*args, **kwargs):
        global num_calls
        num_calls += 1
        if num_calls == moment:
            Path("now").touch()
            signal.pause()  # until it is killed
        return function(*args, **kwargs)
    return call

with exporter.lock_folder(folder):
    file = folder / ".model.onnx.aside" / "model.onnx"
    file.parent.mkdir()
    file.with_name("model.onnx.data").write_text("new weights")
    file.write_text("new")
    Path.replace, Path.unlink = counted(Path.replace), counted(Path.unlink)
    exporter.flush = counted(exporter.flush)
    exporter._publish(file, folder / "model.onnx", None, {})
"""


@pytest.mark.parametrize(
    "moment", range(7), ids=["flush", "flush data", "old", "old data", "data", "model", "folder"]
)
def test_a_kill_at_any_moment_leaves_no_model_with_the_weights_of_another(
    tmp_path: Path, moment: int, fork_server: ForkServer
) -> None:
    (tmp_path / "model.onnx").write_text("old")
    (tmp_path / "model.onnx.data").write_text("old weights")
    workspace = Workspace(tmp_path.with_name(f"{tmp_path.name}-exporter"), fork_server)
    workspace.write("killed.py", _KILLED)
    child = workspace.start(str(tmp_path), str(moment), script="killed.py")
    child.wait_for((workspace.folder / "now").exists)
    child.signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL

    path = tmp_path / "model.onnx"
    if path.exists():
        assert (tmp_path / "model.onnx.data").read_text() == f"{path.read_text()} weights"
    else:
        assert moment > 2  # after the old one was removed
    with lock_folder(tmp_path):
        assert not list(tmp_path.glob(".*.aside"))


def test_a_reader_of_the_steps_that_leaves_is_no_error_of_the_export(
    planted: Any, tmp_path: Path
) -> None:
    planted()

    def leave(_step: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        export(subject_of(), tmp_path, ONNX, on_step=leave)

"""An exported file that was altered is known by the record beside it, or by its own digest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from lightkit.artefacts.digests import SEAL, UNSEALED, fault_of_seal, refuse_altered, seal
from lightkit.errors import DataError
from lightkit.runs.integrity import digest


def recorded(file: Path, **more: Any) -> None:
    """Write the record of an export beside a file."""
    entry = {"sha256": digest(file), "data": None, **more}
    file.with_name("export.json").write_text(json.dumps({"schema": 1, "artefacts": {file.name: entry}}))


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """A safetensors file that names its own digest."""
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(300.0), SEAL: torch.ones(2)}, path, metadata={"names": '{"x": "é"}', SEAL: UNSEALED})
    seal(path)
    return path


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2", "model.ts", "model.safetensors"])
def test_a_file_that_is_not_what_its_record_says_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(b"the model")
    recorded(file)
    refuse_altered(file)
    file.write_bytes(b"the Model")
    with pytest.raises(DataError, match=rf"{name}: this is not what was exported: .* export.json. Export it again"):
        refuse_altered(file)


def test_so_is_one_whose_external_data_are_not_or_are_gone(tmp_path: Path) -> None:
    file, data = tmp_path / "model.onnx", tmp_path / "model.onnx.data"
    file.write_bytes(b"graph")
    data.write_bytes(b"weights")
    recorded(file, data={"file": data.name, "sha256": digest(data)})
    refuse_altered(file)
    data.write_bytes(b"Weights")
    with pytest.raises(DataError, match=r"model\.onnx\.data: this is not what was exported"):
        refuse_altered(file)
    data.unlink()
    with pytest.raises(DataError, match=r"model\.onnx\.data is missing"):
        refuse_altered(file)


@pytest.mark.parametrize(
    "text",
    [
        '{"artefacts": ["model.onnx"]}',
        '{"artefacts": {"model.onnx": 1}}',
        '{"artefacts": {"model.onnx": {"data": 1}}}',
        "[",
    ],
    ids=["list", "number", "data", "text"],
)
def test_a_damaged_record_is_told_in_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.onnx").write_bytes(b"graph")
    (tmp_path / "export.json").write_text(text)
    with pytest.raises(
        DataError, match=r"export.json: this record of an export is damaged; .* Export model.onnx again"
    ):
        refuse_altered(tmp_path / "model.onnx")


def test_a_record_of_other_files_says_nothing_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"graph")
    recorded(tmp_path / "model.onnx")
    (tmp_path / "mine.onnx").write_bytes(b"another")
    refuse_altered(tmp_path / "mine.onnx")


def test_a_sealed_file_is_read_as_ever_and_is_whole(sealed: Path) -> None:
    with safe_open(sealed, framework="pt") as file:
        assert torch.equal(file.get_tensor("a"), torch.arange(300.0))
        assert file.metadata()[SEAL] != UNSEALED
    assert fault_of_seal(sealed) is None
    refuse_altered(sealed)


@pytest.mark.parametrize("what", [b"\xc3\xa9", b"\x00\x00\x80?"], ids=["metadata", "tensor"])
def test_a_sealed_file_that_was_altered_is_refused_without_a_record(sealed: Path, what: bytes) -> None:
    content = bytearray(sealed.read_bytes())
    content[content.rindex(what) + 1] ^= 1
    sealed.write_bytes(content)
    with pytest.raises(DataError, match="its content has not the digest that its metadata name"):
        refuse_altered(sealed)


def test_another_safetensors_file_has_no_seal_that_could_be_broken(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "x.safetensors")
    (tmp_path / "short.safetensors").write_bytes(b"\x01")
    (tmp_path / "long.safetensors").write_bytes(b"\xff" * 30)
    assert [fault_of_seal(path) for path in tmp_path.iterdir()] == [None] * 3

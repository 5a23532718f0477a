"""An exported file that was altered is known by the record beside it, or by its own digest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from lightkit.errors import DataError
from lightkit.export.metadata import (
    DIGEST_KEY,
    NO_DIGEST,
    check_digest,
    embed_digest,
    find_digest_fault,
)
from lightkit.runs.checkpoints import digest


def recorded(file: Path, **more: Any) -> None:
    """Write the record of an export beside a file."""
    entry = {"sha256": digest(file), "data": None, **more}
    file.with_name("export.json").write_text(
        json.dumps({"schema": 1, "artefacts": {file.name: entry}})
    )


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """A safetensors file that names its own digest."""
    path = tmp_path / "model.safetensors"
    save_file(
        {"a": torch.arange(300.0), DIGEST_KEY: torch.ones(2)},
        path,
        metadata={"names": '{"x": "é"}', DIGEST_KEY: NO_DIGEST},
    )
    embed_digest(path)
    return path


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2", "model.ts", "model.safetensors"])
def test_a_file_that_is_not_what_its_record_says_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(b"the model")
    recorded(file)
    check_digest(file)
    file.write_bytes(b"the Model")
    with pytest.raises(
        DataError, match=rf"{name}: this is not what was exported: .* export.json. Export it again"
    ):
        check_digest(file)


def test_so_is_one_whose_external_data_are_not_or_are_gone(tmp_path: Path) -> None:
    file, data = tmp_path / "model.onnx", tmp_path / "model.onnx.data"
    file.write_bytes(b"graph")
    data.write_bytes(b"weights")
    recorded(file, data={"file": data.name, "sha256": digest(data)})
    check_digest(file)
    data.write_bytes(b"Weights")
    with pytest.raises(DataError, match=r"model\.onnx\.data: this is not what was exported"):
        check_digest(file)
    data.unlink()
    with pytest.raises(DataError, match=r"model\.onnx\.data: this is not what was exported"):
        check_digest(file)


@pytest.mark.parametrize(
    "text",
    ['{"artefacts": ["model.onnx"]}', '{"artefacts": {"model.onnx": 1}}', "["],
    ids=["list", "number", "text"],
)
def test_a_damaged_record_is_reported_in_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.onnx").write_bytes(b"graph")
    (tmp_path / "export.json").write_text(text)
    with pytest.raises(
        DataError, match=r"export.json: this record of an export is damaged; .* Export again"
    ):
        check_digest(tmp_path / "model.onnx")


def test_a_record_of_other_files_says_nothing_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"graph")
    recorded(tmp_path / "model.onnx")
    (tmp_path / "mine.onnx").write_bytes(b"another")
    check_digest(tmp_path / "mine.onnx")


def test_a_sealed_file_is_read_as_ever_and_is_whole(sealed: Path) -> None:
    with safe_open(sealed, framework="pt") as file:
        assert torch.equal(file.get_tensor("a"), torch.arange(300.0))
        assert file.metadata()[DIGEST_KEY] != NO_DIGEST
    assert find_digest_fault(sealed) is None
    check_digest(sealed)


@pytest.mark.parametrize("what", [b"\xc3\xa9", b"\x00\x00\x80?"], ids=["metadata", "tensor"])
def test_a_sealed_file_that_was_altered_is_refused_without_a_record(
    sealed: Path, what: bytes
) -> None:
    content = bytearray(sealed.read_bytes())
    content[content.rindex(what) + 1] ^= 1
    sealed.write_bytes(content)
    with pytest.raises(DataError, match="its content has not the digest that its metadata name"):
        check_digest(sealed)


def test_another_safetensors_file_has_no_seal_that_could_be_broken(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "x.safetensors")
    (tmp_path / "short.safetensors").write_bytes(b"\x01")
    (tmp_path / "long.safetensors").write_bytes(b"\xff" * 30)
    assert [find_digest_fault(path) for path in tmp_path.iterdir()] == [None] * 3

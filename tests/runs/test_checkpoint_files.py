from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from lightkit import runs


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "a.ckpt"
    torch.save({"state_dict": {"weight": torch.arange(1000.0)}}, path)
    return path


def test_a_whole_file_has_no_fault(whole: Path) -> None:
    assert runs.find_fault(whole) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"epoch: 3\n", b"\x89PNG\r\n\x1a\n", pickle.dumps({"a": 1}, protocol=0)],
    ids=["empty", "text", "picture", "old pickle"],
)
def test_another_kind_of_file_is_reported(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.ckpt").write_bytes(content)
    assert "expected an archive of torch.save" in str(runs.find_fault(tmp_path / "a.ckpt"))


def test_an_archive_of_torchscript_is_another(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.ckpt", "w") as archive:
        for name in ("data.pkl", "constants.pkl"):
            archive.writestr(f"model/{name}", b"")
    assert "another archive, such as one of torch.export or TorchScript" in str(runs.find_fault(tmp_path / "a.ckpt"))


def test_a_file_that_is_cut_short_is_reported(whole: Path) -> None:
    whole.write_bytes(whole.read_bytes()[:3000])
    assert "its archive cannot be read" in str(runs.find_fault(whole))


def test_a_byte_that_has_changed_is_reported(whole: Path) -> None:
    content = bytearray(whole.read_bytes())
    content[len(content) // 2] ^= 0xFF
    whole.write_bytes(content)
    assert str(runs.find_fault(whole)).endswith("data/0 in its archive is damaged")


def test_a_digest_next_to_it_that_does_not_agree_is_reported(whole: Path) -> None:
    runs.sidecar(whole).write_text("0" * 64)
    assert runs.find_fault(whole) == "its digest differs from that in a.ckpt.sha256"

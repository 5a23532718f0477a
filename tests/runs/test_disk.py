from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lightkit.errors import CheckpointError
from lightkit.runs import files


def test_what_is_free_is_what_this_user_may_write(tmp_path: Path) -> None:
    near = pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)  # others write meanwhile
    assert files.free_bytes(tmp_path) == near
    assert files.free_bytes(tmp_path / "not" / "yet" / "there.ckpt") == near


def test_the_memory_is_told_too(tmp_path: Path) -> None:
    free = files.free_space(tmp_path)
    assert free.keys() == {"disk_free_bytes", "memory_free_bytes"}
    assert all(isinstance(value, int) and value > 0 for value in free.values())


def test_nobody_knows_what_is_free_where_the_system_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "statvfs", refuse)
    assert files.free_bytes(tmp_path) is None
    files.check_room(tmp_path / "last.ckpt", 1 << 60)


def test_what_does_not_fit_is_told_with_both_numbers(tmp_path: Path) -> None:
    files.check_room(tmp_path / "last.ckpt", 1)
    with pytest.raises(CheckpointError, match=r"last\.ckpt needs 1e\+03 TB, but .* are free on its disk.*was not wr"):
        files.check_room(tmp_path / "last.ckpt", 10**15)

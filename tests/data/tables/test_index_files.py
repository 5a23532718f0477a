from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest

from lightkit.data.tables.index_files import index_folder, load_index, locked, save_index

CODES = np.array([0, 1, 4], np.uint8)


def kept(key: str = "a") -> Path:
    folder = index_folder(key)
    assert folder is not None
    with locked(folder):
        save_index(folder, {"shapes": [[2]]}, CODES)
    return folder


def test_what_is_kept_is_read_back() -> None:
    found = load_index(kept())
    assert found is not None
    assert found[0]["shapes"] == [[2]]
    assert found[1].tolist() == CODES.tolist()


@pytest.mark.parametrize("file", ["index.json", "codes.npy"])
@pytest.mark.parametrize("damage", ["missing", "cut short", "other"])
def test_what_is_damaged_counts_as_missing(file: str, damage: str) -> None:
    path = kept() / file
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(content[:-1] if damage == "cut short" else b"{}")
    assert load_index(path.parent) is None


def test_what_nobody_has_used_for_months_is_removed() -> None:
    old, used = kept("old"), kept("used")
    for folder in (old, used):
        os.utime(folder, (0, 0))
    load_index(used)
    kept("new")
    assert not old.exists()
    assert used.exists()


def test_what_cannot_be_kept_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        save_index(tmp_path / "missing" / "key", {}, CODES)
    assert "the table's index cannot be kept" in caplog.text

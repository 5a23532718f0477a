"""Keeping what a look at all rows of a table has found, so that the next run need not look again."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightkit.hardware.cache_folder import cache_folder

__all__ = ["Kept", "index_folder", "load_index", "locked", "save_index"]

log = logging.getLogger("lightkit.data")

Kept = tuple[dict[str, Any], npt.NDArray[np.uint8]]

_UNFINISHED = ".writing-"
_STALE_AFTER_S = 3600.0
_UNUSED_AFTER_S = 60 * 24 * 3600.0


def index_folder(key: str) -> Path | None:
    """Give the folder for the findings of a key; None where nothing can be kept."""
    home = cache_folder()
    return None if home is None else home / "tables" / key


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time look at a table, such as one rank of a machine."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def load_index(folder: Path) -> Kept | None:
    """Read what was kept: the findings, and each row's code, mapped into memory; None where it is missing or broken."""
    try:
        said = json.loads((folder / "index.json").read_text())
        codes = np.load(folder / "codes.npy", mmap_mode="r", allow_pickle=False)
        if codes.dtype != np.uint8 or len(codes) != said["num_codes"]:
            return None
        os.utime(folder)  # in use, so not to be removed
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return said, codes


def save_index(folder: Path, said: dict[str, Any], codes: npt.NDArray[np.uint8]) -> None:
    """Keep findings; a folder is there as a whole or not at all. What cannot be written is looked at again."""
    try:
        _remove_unused(folder.parent)
        aside = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder.parent))
        try:
            np.save(aside / "codes.npy", codes)
            (aside / "index.json").write_text(json.dumps({**said, "num_codes": len(codes)}))
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        log.warning("%s: the table's index cannot be kept (%s); the next run makes it again", folder, error.strerror)


def _remove_unused(home: Path) -> None:
    """Remove what killed processes have left, and what no run has asked for in two months."""
    for entry in home.iterdir():
        limit = _STALE_AFTER_S if entry.name.startswith(_UNFINISHED) else _UNUSED_AFTER_S
        try:
            is_old = time.time() - entry.stat().st_mtime > limit
        except FileNotFoundError:
            continue
        if is_old and entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)

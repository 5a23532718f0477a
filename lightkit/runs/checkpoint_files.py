"""What is wrong with a file that is said to be a checkpoint, as far as that shows without torch and loading it."""

from __future__ import annotations

import zipfile
from pathlib import Path

from lightkit.runs.integrity import fault_of

__all__ = ["fault_of_checkpoint"]

_ARCHIVE = b"PK\x03\x04"
_PICKLE = b"\x80"
"""How a file that torch.save writes begins: a zip archive, before torch 1.6 a pickle."""


def fault_of_checkpoint(path: Path) -> str | None:
    """Say what is wrong with a file: another kind of file, cut short, or altered; None where nothing is.

    Raises:
        OSError: If it cannot be read.
    """
    with path.open("rb") as stream:
        begins = stream.read(4)
    if not begins:
        return "is empty"
    if not begins.startswith((_ARCHIVE, _PICKLE)):
        return "is not a checkpoint: it is no file that torch.save has written"
    if begins.startswith(_ARCHIVE) and zipfile.is_zipfile(path) and (other := _other_archive(path)):
        return f"is not a checkpoint: it is {other}"
    return fault_of(path, is_archive=begins.startswith(_ARCHIVE))


def _other_archive(path: Path) -> str | None:
    """Say what a zip archive is where it is none of torch.save."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError):
        return None  # damaged, which is told elsewhere
    inside = {name.partition("/")[2] for name in names}
    if "archive_format" in inside or any(name.startswith("models/") for name in inside):
        return "a model that torch.export has written"
    if "constants.pkl" in inside:
        return "a TorchScript model"
    return None if "data.pkl" in inside else "a zip archive that torch.save has not written"

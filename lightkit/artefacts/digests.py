"""Whether an exported file is still what was exported: by the record beside it, and by its own word. No torch."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightkit.errors import DataError
from lightkit.runs.files import read_json
from lightkit.runs.integrity import digest

__all__ = ["RECORD", "SEAL", "UNSEALED", "fault_of_seal", "is_recorded", "refuse_altered", "seal"]

RECORD = "export.json"
SEAL = "lightkit_sha256"
"""Name, in the metadata of a safetensors file, of the digest of that file, taken with `UNSEALED` in its place."""
UNSEALED = "0" * 64
_SEALED = re.compile(rb'("' + SEAL.encode() + rb'"\s*:\s*")([0-9a-f]{64})"')
_LENGTH = struct.Struct("<Q")  # of the header, which comes next; then the tensors
_LONGEST_HEADER = 100_000_000  # bytes; safetensors refuses longer ones itself
_BLOCK = 1 << 20


def refuse_altered(path: Path) -> None:
    """Compare an exported file with the digests that its export has left, as far as there are some.

    Those are in `export.json` beside it, for each format and for ONNX's external data; and in a safetensors file.

    Args:
        path: An exported file, which is there.

    Raises:
        DataError: If it is not what was exported, or `export.json` cannot be read.
    """
    for name, promised in _promised(path).items():
        part = path.with_name(name)
        if not part.is_file():
            raise DataError(f"{path}: {part} is missing, which {RECORD} says is a part of it. Export it again.")
        if digest(part) != promised:
            raise DataError(
                f"{part}: this is not what was exported: its digest is not that in {RECORD}. Export it again."
            )
    if path.suffix.lower() == ".safetensors" and (fault := fault_of_seal(path)):
        raise DataError(f"{path}: {fault}. Export it again.")


def is_recorded(path: Path, folder: Path) -> bool:
    """Tell whether the `export.json` in a folder holds the digest of a file, under any name."""
    entries = (read_json(folder / RECORD) or {}).get("artefacts")
    known = entries.values() if isinstance(entries, Mapping) else ()
    return digest(path) in [entry.get("sha256") for entry in known if isinstance(entry, Mapping)]


def _promised(path: Path) -> dict[str, str]:
    """Give the digests of a file and its external data, by name."""
    beside = path.with_name(RECORD)
    if not beside.is_file():
        return {}
    record = read_json(beside)
    entries = None if record is None else record.get("artefacts", {})
    entry = entries.get(path.name, {}) if isinstance(entries, Mapping) else None
    data = (entry.get("data") or {}) if isinstance(entry, Mapping) else None
    if not isinstance(entry, Mapping) or not isinstance(data, Mapping):
        raise DataError(
            f"{beside}: this record of an export is damaged; expected `artefacts`, by file name, each with its "
            f"`sha256`. Export {path.name} again, or take the record away."
        )
    found: dict[Any, Any] = {path.name: entry.get("sha256"), data.get("file"): data.get("sha256")}
    return {name: promised for name, promised in found.items() if isinstance(name, str) and isinstance(promised, str)}


def seal(path: Path) -> None:
    """Write into a safetensors file its own digest.

    Args:
        path: The file. Its metadata have `UNSEALED` under the name `SEAL`.

    Raises:
        ValueError: If they have not.
    """
    found = _SEALED.search(_header(path))
    if found is None:
        raise ValueError(f"{path}: its metadata have no {SEAL}")
    own = _digest_but(path, found.start(2))
    with path.open("r+b") as file:
        file.seek(found.start(2))
        file.write(own.encode())


def fault_of_seal(path: Path) -> str | None:
    """Say that a safetensors file is not what was exported; None where it is, or where it does not tell.

    Raises:
        OSError: If it cannot be read.
    """
    found = _SEALED.search(_header(path))
    if found is None or _digest_but(path, found.start(2)) == found[2].decode():
        return None
    return "this is not what was exported: its content has not the digest that its metadata name"


def _header(path: Path) -> bytes:
    """Give the header with its length before it; nothing of a file that cannot have one."""
    with path.open("rb") as file:
        length = file.read(_LENGTH.size)
        if len(length) < _LENGTH.size or _LENGTH.unpack(length)[0] > _LONGEST_HEADER:
            return b""
        return length + file.read(_LENGTH.unpack(length)[0])


def _digest_but(path: Path, at: int) -> str:
    """Give the digest of a file with `UNSEALED` at a place."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        hasher.update(file.read(at) + UNSEALED.encode())
        file.seek(len(UNSEALED), 1)
        while block := file.read(_BLOCK):
            hasher.update(block)
    return hasher.hexdigest()

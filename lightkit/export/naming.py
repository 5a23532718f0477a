"""The names that exported files get in the end."""

from __future__ import annotations

from pathlib import Path

from lightkit.artefacts.metadata import FILES, Metadata

__all__ = ["file_name"]

_PARTS = {"float16": ".half", "int8": ".int8"}


def file_name(metadata: Metadata) -> str:
    """Give the name of the file, such as ``model.pt2`` or ``model.half.onnx``."""
    name = Path(FILES[metadata.format])
    return f"{name.stem}{_PARTS.get(metadata.precision, '')}{name.suffix}"

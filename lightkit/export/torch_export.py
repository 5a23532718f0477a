"""``model.pt2``: the graph of `torch.export` with its weights."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import torch

from lightkit.artefacts.metadata import Metadata
from lightkit.export.capture import captured
from lightkit.export.naming import file_name
from lightkit.export.reasons import quiet
from lightkit.export.subject import Subject, WriteOptions

__all__ = ["write"]


def write(subject: Subject, metadata: Metadata, path: Path, _: WriteOptions) -> Metadata:
    """Write the file.

    Args:
        subject: What is exported.
        metadata: What the file is to say of itself.
        path: The file.

    Returns:
        What it says of itself.

    Raises:
        ExportError: If the model cannot be captured.
    """
    program = captured(subject, file_name(metadata))
    metadata = replace(metadata, how="torch.export")
    with quiet():
        # Into memory first: where torch 2.15 cannot write to a file, its writer ends the process by abort().
        torch.export.save(program, content := io.BytesIO(), extra_files={"lightkit.json": metadata.dumps()})
    path.write_bytes(content.getbuffer())
    return metadata

"""``model.pt2``: the graph of `torch.export` with its weights."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import torch

from lightkit.export.capture import capture_graph
from lightkit.export.export_errors import silence_exporters
from lightkit.export.formats import METADATA_FILE
from lightkit.export.metadata import Metadata
from lightkit.export.target import ExportTarget, WriteOptions


def write(target: ExportTarget, metadata: Metadata, path: Path, _: WriteOptions) -> Metadata:
    """Write the file, and return its metadata.

    Args:
        target: Model to export.
        metadata: To be embedded in the file.
        path: The file.

    Raises:
        ExportError: If the graph cannot be captured.
    """
    program = capture_graph(target, metadata.file_name)
    metadata = replace(metadata, how="torch.export")
    with silence_exporters():
        # Into memory first: if torch 2.15 cannot write to a file, its writer ends the process by abort().
        torch.export.save(program, content := io.BytesIO(), extra_files={METADATA_FILE: metadata.dumps()})
    path.write_bytes(content.getbuffer())
    return metadata

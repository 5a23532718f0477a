"""``model.safetensors``: the weights, with class names and preprocessing in the file's metadata."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_model
from torch import Tensor

from lightkit.export.export_errors import export_error
from lightkit.export.formats import METADATA_KEY
from lightkit.export.metadata import DIGEST_KEY, NO_DIGEST, Metadata, embed_digest
from lightkit.export.target import ExportTarget


def write(target: ExportTarget, metadata: Metadata, path: Path) -> Metadata:
    """Write the file, and return its metadata.

    Of weights that share memory one is written; the file's metadata name it for each other one.

    Args:
        target: Model to export, without preprocessing.
        metadata: To be embedded in the file.
        path: The file.

    Raises:
        ExportError: If the state dict holds more than tensors.
    """
    others = [name for name, value in target.model.state_dict().items() if not isinstance(value, Tensor)]
    if others:
        reason = f"safetensors files hold tensors only, and its state dict has {', '.join(others)}"
        raise export_error(metadata.file_name, target.model, reason)
    metadata = replace(metadata, how="state dict")
    try:
        save_model(target.model, str(path), metadata={METADATA_KEY: metadata.dumps(), DIGEST_KEY: NO_DIGEST})
    except SafetensorError as error:  # of the disk: all values are tensors
        raise OSError(str(error)) from error
    embed_digest(path)
    return metadata

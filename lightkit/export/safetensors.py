"""``model.safetensors``: the weights, with class names and preprocessing in the file's metadata."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_model
from torch import Tensor

from lightkit.export.export_errors import export_error
from lightkit.export.formats import METADATA_KEY
from lightkit.export.image_transform import ImageToProbabilities
from lightkit.export.metadata import DIGEST_KEY, NO_DIGEST, Metadata, TensorSpec, embed_digest
from lightkit.export.target import ExportTarget


def write(target: ExportTarget, metadata: Metadata, path: Path) -> Metadata:
    """Write the file, and return its metadata.

    Of weights that share memory one is written; the file's metadata name it for each other one.

    Args:
        target: Model to export; preprocessing in its graph is no part of the weights, and stays in the metadata.
        metadata: To be embedded in the file.
        path: The file.

    Raises:
        ExportError: If the state dict holds more than tensors.
    """
    others = [name for name, value in target.plain.state_dict().items() if not isinstance(value, Tensor)]
    if others:
        reason = f"safetensors files hold tensors only, and its state dict has {', '.join(others)}"
        raise export_error(metadata.file_name, target.plain, reason)
    metadata = replace(metadata, in_graph=False, how="state dict")
    preprocessing = metadata.preprocessing
    if isinstance(target.model, ImageToProbabilities) and preprocessing is not None:  # inputs of the plain model
        inputs = (TensorSpec("images", "float32", (None, len(preprocessing.mean), *preprocessing.crop)),)
        kind = "logits" if target.model.is_logits else metadata.output_kind
        metadata = replace(metadata, inputs=inputs, output_kind=kind)
    try:
        save_model(target.plain, str(path), metadata={METADATA_KEY: metadata.dumps(), DIGEST_KEY: NO_DIGEST})
    except SafetensorError as error:  # of the disk: all values are tensors
        raise OSError(str(error)) from error
    embed_digest(path)
    return metadata

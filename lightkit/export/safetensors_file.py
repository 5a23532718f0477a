"""``model.safetensors``: the weights, with class names and preprocessing in the file's metadata."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_model
from torch import Tensor

from lightkit.artefacts.digests import SEAL, UNSEALED, seal
from lightkit.artefacts.metadata import KEY, Metadata, TensorSpec
from lightkit.export.in_graph import Prepared
from lightkit.export.naming import file_name
from lightkit.export.reasons import refused
from lightkit.export.subject import Subject, WriteOptions

__all__ = ["write"]


def write(subject: Subject, metadata: Metadata, path: Path, _: WriteOptions) -> Metadata:
    """Write the file. Of weights that share memory one is written; the metadata tell which one each other is.

    Args:
        subject: What is exported; its preprocessing is never a part of weights, and stays in the metadata.
        metadata: What the file is to say of itself.
        path: The file.

    Returns:
        What it says of itself.

    Raises:
        ExportError: If the state dict holds more than tensors.
    """
    others = [name for name, value in subject.plain.state_dict().items() if not isinstance(value, Tensor)]
    if others:
        reason = f"safetensors files hold tensors only, and its state dict has {', '.join(others)}"
        raise refused(file_name(metadata), subject.plain, reason)
    metadata = replace(_of_plain(subject, metadata), how="state dict")
    try:
        save_model(subject.plain, str(path), metadata={KEY: metadata.dumps(), SEAL: UNSEALED})
    except SafetensorError as error:
        if (found := re.search(r"\(os error (\d+)\)", str(error))) is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1]))) from error
    seal(path)
    return metadata


def _of_plain(subject: Subject, metadata: Metadata) -> Metadata:
    """Say what the plain model takes and gives, where the subject has the preprocessing in its graph."""
    said = metadata.preprocessing
    if not isinstance(subject.model, Prepared) or said is None:
        return replace(metadata, in_graph=False)
    inputs = (TensorSpec("images", "float32", (None, len(said.mean), *said.crop)),)
    kind = "logits" if subject.model.is_logits else metadata.output_kind
    return replace(metadata, in_graph=False, inputs=inputs, output_kind=kind)

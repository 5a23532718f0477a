"""``model.safetensors``: the weights, with class names and preprocessing in the file's metadata."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
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
        ExportError: If the state dict holds more than tensors, or parts of a tensor that is not in
            it as a whole.
    """
    state = target.model.state_dict()
    others = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if others:
        reason = f"safetensors files hold tensors only, and its state dict has {', '.join(others)}"
        raise export_error(metadata.file_name, target.model, reason)
    metadata = replace(metadata, how="state dict")
    try:
        save_model(
            target.model,
            str(path),
            metadata={METADATA_KEY: metadata.dumps(), DIGEST_KEY: NO_DIGEST},
        )
    except SafetensorError as error:  # of the disk: all values are tensors
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise OSError(str(error)) from error
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    except RuntimeError as error:  # of `save_model` on the names, before it writes
        shared = _find_shared(state)
        if not shared:
            raise
        names = " and ".join(shared)
        reason = (
            f"{names} share memory that none of them has as a whole, and safetensors neither writes"
            " nor loads such tensors. Register clones of them (tensor.clone()), or leave this"
            " --format out"
        )
        raise export_error(metadata.file_name, target.model, reason) from error
    embed_digest(path)
    return metadata


def _find_shared(state: Mapping[str, Tensor]) -> list[str]:
    """List the names of the first tensors that share memory without one that has all of it."""
    groups: dict[int, list[str]] = {}
    for name, value in state.items():
        groups.setdefault(value.untyped_storage().data_ptr(), []).append(name)
    for names in groups.values():
        sizes = [state[name].numel() * state[name].element_size() for name in names]
        if len(names) > 1 and max(sizes) < state[names[0]].untyped_storage().nbytes():
            return names
    return []

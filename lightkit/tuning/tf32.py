"""Whether float32 is rounded to TensorFloat-32 on CUDA, in this process.

By torch's older names for it, because Lightning reads them when it sets up a GPU, and torch refuses to tell by the old
names what the new ones (`torch.backends.cuda.matmul.fp32_precision`) have set.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["set_tf32", "tf32_of_process"]


def tf32_of_process() -> tuple[bool, bool]:
    """Tell it of matrix products, and of cuDNN's convolutions."""
    try:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    except RuntimeError:  # set by the new names
        return _by_new_names("cuda"), _by_new_names("cudnn")


def set_tf32(in_products: bool, in_convolutions: bool) -> None:
    """Set it for matrix products, and for cuDNN's convolutions."""
    torch.backends.cuda.matmul.allow_tf32 = in_products
    torch.backends.cudnn.allow_tf32 = in_convolutions


def _by_new_names(library: str) -> bool:
    backends: Any = torch.backends
    backend = backends.cuda.matmul if library == "cuda" else backends.cudnn.conv
    return bool(backend.fp32_precision == "tf32")

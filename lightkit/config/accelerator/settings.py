"""The section `accelerator` once devices, `auto` and numbers have gone to their own keys: how steps are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["AcceleratorSettings"]


@dataclass(frozen=True)
class AcceleratorSettings:
    """How steps are computed. `auto` takes the value of a table by hardware; `lightkit tune` measures.

    Args:
        memory_format: Of weights and images in memory: `channels_last` is faster for convolutions in mixed precision.
        compile: Whether torch.compile compiles, for training, the layers that are attributes of the model and have
            parameters, each by itself; the code of the steps around them is not compiled.
        tf32: Whether matrix products on CUDA round float32 to TensorFloat-32. `null`: as torch has it.
        fused: Whether the optimizer updates all parameters in one kernel. `null`: as the optimizer has it.
    """

    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    compile: bool = False
    tf32: bool | None = None
    fused: bool | None = None

"""What is exported, and the real samples that prove it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from lightkit.artefacts.metadata import Metadata

__all__ = ["Samples", "Subject", "WriteOptions", "own"]


@dataclass(frozen=True)
class Subject:
    """A model that is to be exported.

    Args:
        model: In eval mode, on the CPU, in float32 (or float64, where its class chose that). Its ``forward`` takes the
            inputs by position, and gives a tensor, a tuple or list of tensors, or a mapping of tensors. Where the
            preprocessing is in the graph, this is the model with it.
        example: Inputs of a batch of at least two, as ``forward`` takes them.
        metadata: What the file will say, but for its format, its precision and the versions.
        plain: The model without preprocessing; `model` itself where there is none in the graph.
    """

    model: nn.Module
    example: tuple[Tensor, ...]
    metadata: Metadata
    plain: nn.Module


@dataclass(frozen=True)
class Samples:
    """Real samples of the validation split.

    Args:
        inputs: What ``forward`` of the plain model takes, each ``(num, ...)``.
        names: Of each sample, for errors; such as the path of its file.
        batches: The same samples in the same order, as the data's loader gives them, for the model's own validation;
            empty where there are none, so that no metric can be told.
        images: The same samples as uint8 ``(height, width, 3)``, each of its own size, where the data has images.
    """

    inputs: tuple[Tensor, ...]
    names: Sequence[str]
    batches: Sequence[Any] = ()
    images: Sequence[np.ndarray[Any, np.dtype[np.uint8]]] | None = None


@dataclass(frozen=True)
class WriteOptions:
    """How files are written.

    Args:
        opset: Of ONNX; the newest that is tested if None.
        half: Write ONNX with weights in float16.
        int8: Write ONNX quantised to int8.
        calibration: Gives inputs of training samples, each a tuple of arrays with a batch, for int8.
    """

    opset: int | None = None
    half: bool = False
    int8: bool = False
    calibration: Callable[[], Iterable[tuple[np.ndarray[Any, Any], ...]]] | None = None


def own(inputs: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Give copies of a batch's inputs, for a forward may change in place what it is given."""
    return tuple(value.clone() for value in inputs)

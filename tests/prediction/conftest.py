"""Exported models that are made by hand, without torch, and images for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lightkit.export.metadata import Metadata, TensorSpec
from lightkit.images.preprocessing import Preprocessing

PREPROCESSING = Preprocessing(resize=8, crop=(8, 8), mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.5))
COLOURS = ("red", "green", "blue")


def metadata_of(*, in_graph: bool = False, **changes: Any) -> Metadata:
    """Of a model that takes the mean of each colour as the logit of its name."""
    images = TensorSpec("images", "uint8", (None, None, None, 3)) if in_graph else None
    plain = TensorSpec("x", "float32", (None, 3, 8, 8))
    fields: dict[str, Any] = {
        "format": "onnx",
        "model": "by_hand.Colours",
        "inputs": (images or plain,),
        "outputs": (TensorSpec("output", "float32", (None, 3)),),
        "output_kind": "probabilities" if in_graph else "logits",
        "class_names": COLOURS,
        "preprocessing": PREPROCESSING,
        "in_graph": in_graph,
    }
    return Metadata(**{**fields, **changes})


def expected_of(path: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What the model by hand says of an image."""
    with Image.open(path) as image:
        means = PREPROCESSING(image.convert("RGB")).mean(axis=(1, 2))
    powers = np.exp(means - means.max())
    shares: np.ndarray[Any, np.dtype[np.float32]] = powers / powers.sum()
    return shares


def environment() -> dict[str, str]:
    """For processes that a test starts."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

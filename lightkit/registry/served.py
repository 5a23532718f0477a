"""An image classifier as it is served: images in, class probabilities out."""

from __future__ import annotations

from dataclasses import replace

import torch

from lightkit.export.describing import graph_subject
from lightkit.export.subject import Subject

__all__ = ["as_served"]

_HEIGHT, _WIDTH = 48, 64  # pixels of the example: MLflow keeps it as JSON, twice; the model resizes


def as_served(subject: Subject) -> Subject:
    """Put the preprocessing of an image classifier into its graph, so that clients send images as they are.

    Args:
        subject: The model.

    Returns:
        The same where it does that already, is no classifier, or its data module names no preprocessing. Else one
        that takes uint8 ``(batch, height, width, 3)`` in RGB, of any size, and gives float32 ``(batch, classes)``.
    """
    metadata = subject.metadata
    if metadata.in_graph or metadata.preprocessing is None or metadata.output_kind == "other":
        return subject
    pixels = torch.Generator().manual_seed(0)
    example = torch.randint(256, (2, _HEIGHT, _WIDTH, 3), dtype=torch.uint8, generator=pixels)
    return replace(graph_subject(subject), example=(example,))

"""Predictions of image files by an exported model. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import Any

import numpy as np
from PIL import Image

from lightkit.errors import DataError
from lightkit.export.metadata import Metadata
from lightkit.images.image_file import PreparedImage, count_threads, prepare_images
from lightkit.prediction.table import Prediction

Array = np.ndarray[Any, Any]
Run = Callable[[list[Array]], list[Array]]
_BATCH_SIZE = 32
_DTYPES = ("uint8", "float16", "float32", "float64")
_MAX_PIXELS = 4_000_000  # of a batch whose images are resized in the graph, which keeps 8 bytes a value


def check_image_model(metadata: Metadata, name: str) -> int:
    """Refuse a model that cannot predict an image file, and return the number of values that it gives for each.

    Args:
        metadata: Of the exported file.
        name: The file, for the error.

    Raises:
        DataError: If it takes several inputs or one of another type, its preprocessing is unknown, or the first output
            has no row of fixed length for each image.
    """
    takes = ", ".join(f"{spec.name} ({spec.dtype})" for spec in metadata.inputs)
    batch, *sizes = metadata.outputs[0].shape or (0,)
    is_prepared = metadata.in_graph or metadata.preprocessing is not None
    takes_images = len(metadata.inputs) == 1 and metadata.inputs[0].dtype in _DTYPES and is_prepared
    if not takes_images or batch is not None or None in sizes:
        known = "" if is_prepared else "; what is done to an image before is not known"
        raise DataError(
            f"{name}: this model takes {takes or 'nothing'} and gives the shape {(batch, *sizes)}{known}. Expected "
            f"images alone, as one of {', '.join(_DTYPES)}, prepared as the `preprocessing` of the data module of its "
            "export says, and an output with a row for each image."
        )
    return math.prod(size for size in sizes if size is not None)


def select_class_names(output_kind: object, names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the class names if the output is known to be a probability for each class, or to become one.

    This one rule holds for checkpoints and exported files: numbers of unknown meaning are no probabilities.

    Args:
        output_kind: Kind of the model's first output.
        names: Those of the model or its data.
    """
    return tuple(map(str, names)) if names is not None and output_kind in ("logits", "probabilities") else None


def predict_images(run: Run, metadata: Metadata, paths: Iterable[str], *, name: str) -> Iterator[Prediction]:
    """Run a model on images, in their order.

    Images are read in threads ahead of the model, and no more than two batches are in memory.

    Args:
        run: Returns the outputs for inputs with a batch.
        metadata: Of the exported file; see `check_image_model`.
        paths: The image files.
        name: The model's file, for errors.

    Raises:
        DataError: If the model returns something else than a row for each image, or as many values as it has classes.
    """
    ahead = 2 * count_threads() if metadata.in_graph else max(2 * count_threads(), _BATCH_SIZE)
    images = prepare_images(paths, partial(_prepare, metadata), ahead=ahead)
    index = 0
    for batch in _split_batches(images, max_pixels=_MAX_PIXELS if metadata.in_graph else None):
        arrays = [item.image for item in batch if item.image is not None]
        values = _run_batch(run, metadata, name, np.stack(arrays)) if arrays else [None] * len(batch)
        for item, value in zip(batch, values, strict=True):
            yield Prediction(index, item.path, value, item.defect)
            index += 1


def _split_batches(
    images: Iterable[PreparedImage[Array]], *, max_pixels: int | None
) -> Iterator[list[PreparedImage[Array]]]:
    """Split images into batches of consecutive ones of one shape; those without a shape are the bad ones."""
    for shape, group in groupby(images, key=lambda item: None if item.image is None else item.image.shape):
        num = _BATCH_SIZE
        if shape is not None and max_pixels is not None:
            num = min(num, max(1, max_pixels // (shape[0] * shape[1])))
        while batch := list(islice(group, num)):
            yield batch


def _prepare(metadata: Metadata, image: Image.Image) -> Array:
    dtype = np.dtype(metadata.inputs[0].dtype)
    if metadata.in_graph:
        return np.asarray(image, dtype=np.uint8).astype(dtype, copy=False)
    assert metadata.preprocessing is not None
    return metadata.preprocessing(image).astype(dtype, copy=False)


def _run_batch(run: Run, metadata: Metadata, name: str, inputs: Array) -> Array:
    """Return float32 ``(batch, values)``: probabilities if the output is of classes."""
    output = np.asarray(run([inputs])[0])
    if output.shape[:1] != (len(inputs),):
        raise DataError(
            f"{name}: the model gives an output of shape {output.shape} for {len(inputs)} images; expected a row for "
            "each. Export it again."
        )
    rows = output.reshape(len(output), -1).astype(np.float32)
    if metadata.output_kind != "logits":
        return rows
    exponentials = np.exp(rows - rows.max(axis=1, keepdims=True))
    probabilities: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
    return probabilities

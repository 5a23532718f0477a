"""Predictions of image files by an exported model, whatever runs it. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from PIL import Image

from lightkit.errors import DataError
from lightkit.export.metadata import Metadata
from lightkit.images.decoding import Prepared, num_threads, prepared
from lightkit.prediction.rows import Prediction

__all__ = ["check_takes_images", "class_names_of", "num_values_of", "predictions"]

Array = np.ndarray[Any, Any]
Run = Callable[[list[Array]], list[Array]]
_BATCH_SIZE = 32
_MOST_PIXELS = 4_000_000  # of a batch whose images are resized in the graph, which keeps 8 bytes a value


def check_takes_images(metadata: Metadata, name: str) -> None:
    """Refuse a model that cannot be asked about an image file.

    Args:
        metadata: What it says of itself.
        name: Its file, for the error.

    Raises:
        DataError: If it takes several inputs or one of an unknown type, or does not say what is done to an image.
    """
    if len(metadata.inputs) != 1:
        told = ", ".join(spec.name for spec in metadata.inputs) or "none"
        raise DataError(
            f"{name}: this model takes {len(metadata.inputs)} inputs ({told}); predict gives it images only."
        )
    try:
        np.dtype(metadata.inputs[0].dtype)
    except TypeError as error:
        raise DataError(
            f"{name}: its input has the type {metadata.inputs[0].dtype!r}, which images cannot be given in. Export it "
            "again, in float32."
        ) from error
    if metadata.preprocessing is None and not metadata.in_graph:
        raise DataError(
            f"{name}: this model does not say what is done to an image before it gets it: the data that it was "
            "exported with have no `preprocessing`. Export it from a run whose data module has."
        )


def class_names_of(output_kind: object, names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Give the classes' names where the output is known to have a probability for each, or to become that.

    It is the one rule for checkpoints and exported files: of numbers of unknown meaning, none is a probability.

    Args:
        output_kind: What the model says of its first output.
        names: Those that the model or its data have.
    """
    return tuple(map(str, names)) if names is not None and output_kind in ("logits", "probabilities") else None


def num_values_of(metadata: Metadata) -> int | None:
    """Give the number of values that a model has for an image; None where its file does not tell."""
    sizes = metadata.outputs[0].shape[1:] if metadata.outputs else (None,)
    known = [size for size in sizes if size is not None]
    return math.prod(known) if len(known) == len(sizes) else None


def predictions(
    run: Run, metadata: Metadata, paths: Iterable[str], *, name: str = "the exported file"
) -> Iterator[Prediction]:
    """Ask a model about images, in their order.

    Images are read in threads ahead of the model, and no more than two batches are in memory.

    Args:
        run: Gives the outputs for inputs with a batch.
        metadata: What the model says of itself; see `check_takes_images`.
        paths: The image files.
        name: The model's file, for errors.

    Raises:
        DataError: If the model gives something else than a row for each image, or as many values as it has classes.
    """
    ahead = 2 * num_threads() if metadata.in_graph else max(2 * num_threads(), _BATCH_SIZE)
    images = prepared(paths, partial(_input, metadata), ahead=ahead)
    index = 0
    while batch := list(islice(images, _BATCH_SIZE)):
        yield from _predicted(partial(_rows, run, metadata, name), batch, index)
        index += len(batch)


def _input(metadata: Metadata, image: Image.Image) -> Array:
    dtype = np.dtype(metadata.inputs[0].dtype)
    if metadata.in_graph:
        return np.asarray(image, dtype=np.uint8).astype(dtype, copy=False)
    assert metadata.preprocessing is not None
    return metadata.preprocessing(image).astype(dtype, copy=False)


def _predicted(rows: Callable[[Array], Array], batch: Sequence[Prepared[Array]], first: int) -> Iterator[Prediction]:
    values: dict[int, Array] = {}
    for places in _of_one_size(batch):
        inputs = np.stack([image for place in places if (image := batch[place].image) is not None])
        values.update(zip(places, rows(inputs), strict=True))
    for place, item in enumerate(batch):
        yield Prediction(first + place, item.path, values.get(place), item.defect)


def _of_one_size(batch: Sequence[Prepared[Array]]) -> Iterator[list[int]]:
    """Give the places in a batch of images that go through the model together."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for place, item in enumerate(batch):
        if item.image is not None:
            groups.setdefault(item.image.shape, []).append(place)
    for shape, places in groups.items():
        channels_last = shape[-1] == 3
        most = max(1, _MOST_PIXELS // (shape[0] * shape[1])) if channels_last else len(places)
        yield from (places[at : at + most] for at in range(0, len(places), most))


def _rows(run: Run, metadata: Metadata, name: str, inputs: Array) -> Array:
    """Give float32 ``(batch, values)``: probabilities where the output is of classes."""
    output = np.asarray(run([inputs])[0])
    if output.shape[:1] != (len(inputs),):
        raise DataError(
            f"{name}: the model gives an output of shape {output.shape} for {len(inputs)} images; expected a row for "
            "each. Export it again."
        )
    rows = output.reshape(len(output), -1).astype(np.float32)
    classes = class_names_of(metadata.output_kind, metadata.class_names)
    if classes is not None and rows.shape[1] != len(classes):
        raise DataError(
            f"{name}: the model gives {rows.shape[1]} values an image, and its metadata name {len(classes)} classes. "
            "Export it again."
        )
    if metadata.output_kind != "logits":
        return rows
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    shares: Array = powers / powers.sum(axis=1, keepdims=True)
    return shares

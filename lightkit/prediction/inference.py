"""Predictions of image files by an exported model, whatever runs it. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from PIL import Image

from lightkit.artefacts.metadata import Metadata
from lightkit.errors import DataError
from lightkit.images.decoding import Prepared, num_threads, prepared
from lightkit.prediction.rows import Prediction

__all__ = ["check_takes_images", "class_names_of", "predictions"]

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
        DataError: If it takes several inputs, or does not say what is done to an image.
    """
    if len(metadata.inputs) != 1:
        told = ", ".join(spec.name for spec in metadata.inputs) or "none"
        raise DataError(
            f"{name}: this model takes {len(metadata.inputs)} inputs ({told}); predict gives it images only."
        )
    if metadata.preprocessing is None and not metadata.in_graph:
        raise DataError(
            f"{name}: this model does not say what is done to an image before it gets it: the data that it was "
            "exported with have no `preprocessing`. Export it from a run whose data module has."
        )


def class_names_of(metadata: Metadata) -> tuple[str, ...] | None:
    """Give the classes' names, where the output has a number for each."""
    return None if metadata.output_kind == "other" else metadata.class_names


def predictions(run: Run, metadata: Metadata, paths: Iterable[str]) -> Iterator[Prediction]:
    """Ask a model about images, in their order.

    Images are read in threads ahead of the model, and no more than two batches are in memory.

    Args:
        run: Gives the outputs for inputs with a batch.
        metadata: What the model says of itself; see `check_takes_images`.
        paths: The image files.
    """
    ahead = 2 * num_threads() if metadata.in_graph else max(2 * num_threads(), _BATCH_SIZE)
    images = prepared(paths, partial(_input, metadata), ahead=ahead)
    index = 0
    while batch := list(islice(images, _BATCH_SIZE)):
        yield from _predicted(run, metadata, batch, index)
        index += len(batch)


def _input(metadata: Metadata, image: Image.Image) -> Array:
    dtype = np.dtype(metadata.inputs[0].dtype)
    if metadata.in_graph:
        return np.asarray(image, dtype=np.uint8).astype(dtype, copy=False)
    assert metadata.preprocessing is not None
    return metadata.preprocessing(image).astype(dtype, copy=False)


def _predicted(run: Run, metadata: Metadata, batch: Sequence[Prepared[Array]], first: int) -> Iterator[Prediction]:
    values: dict[int, Array] = {}
    for places in _of_one_size(batch):
        inputs = np.stack([image for place in places if (image := batch[place].image) is not None])
        values.update(zip(places, _values(run([inputs])[0], metadata), strict=True))
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


def _values(output: Array, metadata: Metadata) -> Array:
    """Give float32 ``(batch, values)``: probabilities where the output is of classes."""
    rows = output.reshape(len(output), -1).astype(np.float32)
    if metadata.output_kind != "logits":
        return rows
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    shares: Array = powers / powers.sum(axis=1, keepdims=True)
    return shares

"""Predictions of images by an exported file.

The same code for `lightkit predict --model` and the server. No torch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lightkit.errors import DataError
from lightkit.export.formats import Runner, first_line
from lightkit.export.metadata import Metadata
from lightkit.images.image_file import count_threads, prepare_images
from lightkit.prediction.table import Prediction

_BATCH_SIZE = 32
_DTYPES = ("uint8", "float16", "float32", "float64")
# of a batch whose images are resized in the graph, which keeps 8 bytes a value
_MAX_PIXELS = 4_000_000
Array = np.ndarray[Any, Any]


@contextmanager
def explain_failure(file: Path, samples: str = "images") -> Iterator[None]:
    """Turn any exception of a file's runtime into a `DataError`.

    Args:
        file: The file.
        samples: Name of what the model is run on.
    """
    try:
        yield
    except Exception as error:  # onnxruntime's have no common base class, and torch raises anything
        raise DataError(
            f"{file}: its model cannot be loaded, or run on these {samples} ({first_line(error)})."
            " Export it again."
        ) from error


def check_image_model(metadata: Metadata, file: Path) -> int:
    """Refuse a model that cannot predict an image file.

    Return the number of values that it gives for each.

    Raises:
        DataError: If it takes several inputs or one of another type, its preprocessing is unknown,
            or the first output has no row of fixed length for each image.
    """
    takes = ", ".join(f"{spec.name} ({spec.dtype})" for spec in metadata.inputs)
    batch, *sizes = metadata.outputs[0].shape or (0,)
    is_prepared = metadata.in_graph or metadata.preprocessing is not None
    takes_images = len(metadata.inputs) == 1 and metadata.inputs[0].dtype in _DTYPES and is_prepared
    if not takes_images or batch is not None or None in sizes:
        known = "" if is_prepared else "; what is done to an image before is not known"
        raise DataError(
            f"{file}: this model takes {takes or 'nothing'} and gives the shape"
            f" {(batch, *sizes)}{known}. Expected images alone, as one of {', '.join(_DTYPES)},"
            " prepared as the `preprocessing` of the data module of its export says, and an output"
            " with a row for each image."
        )
    return math.prod(size for size in sizes if size is not None)


def predict_images(
    run: Runner, metadata: Metadata, paths: Iterable[str], *, file: Path
) -> Iterator[Prediction]:
    """Run a model on images, in their order.

    Images are read in threads ahead of the model, and no more than two batches are in memory.

    Args:
        run: The model.
        metadata: Of its file; see `check_image_model`.
        paths: The image files.
        file: Its file, for errors.

    Raises:
        DataError: If the model returns something else than a row for each image, or as many values
            as it has classes.
    """
    ahead = 2 * count_threads() if metadata.in_graph else max(2 * count_threads(), _BATCH_SIZE)
    images = prepare_images(paths, partial(prepare_image, metadata), ahead=ahead)
    index = 0
    while batch := list(islice(images, _BATCH_SIZE)):
        good = {at: item.image for at, item in enumerate(batch) if item.image is not None}
        values = dict(
            zip(good, predict_arrays(run, metadata, list(good.values()), file=file), strict=True)
        )
        for at, item in enumerate(batch):
            yield Prediction(index + at, item.path, values.get(at), item.defect)
        index += len(batch)


def predict_arrays(
    run: Runner, metadata: Metadata, arrays: Sequence[Array], *, file: Path
) -> list[Array]:
    """Run a model on prepared images of one size or several; return the values of each, in order.

    Args:
        run: The model.
        metadata: Of its file; see `check_image_model`.
        arrays: As `prepare_image` makes them.
        file: Its file, for errors.

    Raises:
        DataError: If the model returns something else than a row for each image, or as many values
            as it has classes.
    """
    by_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for at, array in enumerate(arrays):
        by_shape[array.shape].append(at)
    values: dict[int, Array] = {}
    for shape, places in by_shape.items():
        num = max(1, _MAX_PIXELS // (shape[0] * shape[1])) if metadata.in_graph else len(places)
        for start in range(0, len(places), num):
            chosen = places[start : start + num]
            batch = np.stack([arrays[at] for at in chosen])
            values.update(zip(chosen, run_batch(run, metadata, file, batch), strict=True))
    return [values[at] for at in range(len(arrays))]


def prepare_image(metadata: Metadata, image: Image.Image) -> Array:
    """Prepare an image in RGB as the model's own preprocessing says.

    Where that is in the graph, its pixels.
    """
    dtype = np.dtype(metadata.inputs[0].dtype)
    if metadata.in_graph:
        return np.asarray(image, dtype=np.uint8).astype(dtype, copy=False)
    assert metadata.preprocessing is not None
    return metadata.preprocessing(image).astype(dtype, copy=False)


def run_batch(run: Runner, metadata: Metadata, file: Path, inputs: Array) -> Array:
    """Return ``(batch, values)``, float32 or float64.

    Probabilities if the output is of classes or labels; or masks.
    """
    with explain_failure(file):
        output = np.asarray(run([inputs])[0])
    if output.shape[:1] != (len(inputs),):
        raise DataError(
            f"{file}: the model gives an output of shape {output.shape} for {len(inputs)} images;"
            " expected a row for each. Export it again."
        )
    values = metadata.task.probabilities(output, num_classes=len(metadata.class_names or ()))
    return metadata.task.form.to_rows(values)

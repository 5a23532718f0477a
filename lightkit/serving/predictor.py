"""The model of the server.

Samples of many requests in, one answer for each, by the code of `lightkit predict`.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lightkit.errors import DataError, visible
from lightkit.export.formats import open_model
from lightkit.export.metadata import Metadata
from lightkit.images.image_file import (
    UnreadableImageError,
    count_threads,
    decode_rgb,
    pillow_warnings,
)
from lightkit.images.mask_file import write_mask
from lightkit.prediction.exported import check_image_model, predict_arrays, prepare_image
from lightkit.prediction.masks import decide_mask
from lightkit.prediction.rows import check_row_model, run_rows
from lightkit.prediction.table import PredictionColumns
from lightkit.rows.preprocessing import RowPreprocessing
from lightkit.serving.requests import Item

_NUMBERS = ("float16", "float32", "float64", "int32", "int64")
Array = np.ndarray[Any, Any]
Samples = list[Array] | list[tuple[Array, ...]]
"""Inputs of samples: of pictures and numbers one array each, of rows of a table one of each
input."""


@dataclass(frozen=True)
class Refusal:
    """A request that has no answer.

    Args:
        status: Of HTTP, from 400 to 499.
        reason: What is wrong with which sample.
    """

    status: int
    reason: str


def find_row_length(metadata: Metadata, file: Path) -> int | None:
    """Return how many numbers a row of the model's input has.

    None for a model of pictures or of rows of a table.

    Raises:
        DataError: If it takes neither pictures nor rows.
    """
    if metadata.rows is not None:
        check_row_model(metadata, file)
        return None
    is_of_pictures = metadata.in_graph or metadata.preprocessing is not None
    shape = metadata.inputs[0].shape
    is_row = len(metadata.inputs) == 1 and len(shape) == 2 and metadata.inputs[0].dtype in _NUMBERS
    if is_row and not is_of_pictures:
        batch, length = shape
        output = metadata.outputs[0].shape
        if (
            batch is None
            and length is not None
            and output[:1] == (None,)
            and None not in output[1:]
        ):
            return length
    check_image_model(metadata, file)
    return None


class Predictor:
    """An exported model that answers requests.

    Args:
        file: The exported file.
        metadata: Of the file.
        top_k: Classes of an answer, the likeliest; all if None.
        threads: Of the runtime; its default if None.
    """

    def __init__(
        self,
        file: Path,
        metadata: Metadata,
        *,
        top_k: int | None = None,
        threads: int | None = None,
    ) -> None:
        self._file = file
        self._metadata = metadata
        self._rows = metadata.row_preprocessing
        self._row_length = find_row_length(metadata, file) if self._rows is None else None
        self._run = open_model(file, threads=threads)
        names = metadata.task.choose_names(metadata.outputs[0].shape, metadata.class_names)
        num_values = int(np.prod([size or 1 for size in metadata.outputs[0].shape[1:]]))
        every = num_values if names is None else len(names)
        self._columns = PredictionColumns(names, top_k or every, num_values, task=metadata.task)
        self._pool = ThreadPoolExecutor(count_threads(), thread_name_prefix="lightkit-images")

    def decode(self, items: Sequence[Item]) -> Samples | Refusal:
        """Turn the samples of a request into the model's inputs."""
        if self._rows is not None:
            return self._encode(items, self._rows)
        if self._row_length is not None:
            return _convert_rows(items, np.dtype(self._metadata.inputs[0].dtype))
        decode: Callable[[Item], Array | Refusal] = partial(_decode_picture, self._metadata)
        arrays = []
        # the filters of warnings are the process's, so that they are set around the threads
        with pillow_warnings():
            for decoded in map(decode, items) if len(items) == 1 else self._pool.map(decode, items):
                if isinstance(decoded, Refusal):
                    return decoded
                arrays.append(decoded)
        return arrays

    @staticmethod
    def _encode(items: Sequence[Item], preprocessing: RowPreprocessing) -> Samples | Refusal:
        """Prepare rows of a table by the code of `lightkit predict`."""
        # here: pyarrow, which models of images need not load
        from lightkit.rows.values import table_of_records

        records = [item.content for item in items if isinstance(item.content, dict)]
        rows, defects = preprocessing.read(table_of_records(records, list(preprocessing.columns)))
        if defects:
            return Refusal(422, f"rows[{defects[0].row}]: {defects[0].reason}")
        return list(zip(*preprocessing.encode(rows), strict=True))

    def predict(self, requests: Sequence[Samples | Refusal]) -> list[list[Array] | Refusal]:
        """Predict the samples of all requests at once; a refused request stays refused."""
        samples: list[Any] = [
            sample for request in requests if isinstance(request, list) for sample in request
        ]
        if self._rows is None or not samples:
            values = iter(predict_arrays(self._run, self._metadata, samples, file=self._file))
        else:
            inputs = self._rows.stack(samples)
            values = iter(run_rows(self._run, self._metadata, inputs, file=self._file))
        answers: list[list[Array] | Refusal] = []
        for request in requests:
            if isinstance(request, Refusal):
                answers.append(request)
            else:
                answers.append([next(values) for _ in request])
        return answers

    def describe(self, name: str, values: Array) -> dict[str, Any]:
        """Describe the prediction of a sample for JSON.

        Raises:
            DataError: If the model's output is no probability, though it is declared to be.
        """
        if self._columns.task.form.has_masks and self._columns.class_names is not None:
            return {"name": name, **self._describe_mask(name, values)}
        if defect := self._columns.find_defect(values):
            raise DataError(f"{name}: {defect}")
        if self._columns.task.has_classes:
            ranked = self._columns.rank(values.clip(0, 1))
            classes = [{"label": label, "probability": float(value)} for label, value in ranked]
            return {"name": name, **classes[0], "classes": classes}
        if self._columns.class_names is not None:
            names = self._columns.class_names
            pairs = zip(names, values.clip(0, 1), strict=True)
            predicted = self._columns.task.form.list_predicted(values, names)
            labels = [{"label": label, "probability": float(value)} for label, value in pairs]
            decided = {} if predicted is None else {"predicted": predicted}
            return {"name": name, **decided, "labels": labels}
        return {
            "name": name,
            "values": [float(value) if np.isfinite(value) else None for value in values],
        }

    def _describe_mask(self, name: str, values: Array) -> dict[str, Any]:
        """Describe a mask.

        A PNG in base64, in the size of the model's input, and the share of each class.

        Raises:
            DataError: If the model's output is not finite.
        """
        names = self._columns.class_names or ()
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise DataError(f"{name}: the model's output has values that are not finite")
        mask = decide_mask(values, values.shape[-2:])
        write_mask(content := io.BytesIO(), mask, len(names))
        counts = np.bincount(mask.ravel(), minlength=len(names))
        classes = [
            {"label": label, "share": float(count / mask.size)}
            for label, count in zip(names, counts, strict=False)
        ]
        return {"mask": base64.b64encode(content.getvalue()).decode(), "classes": classes}


def _convert_rows(items: Sequence[Item], dtype: np.dtype[Any]) -> Samples | Refusal:
    """Convert rows of numbers to the type of the model's input, which holds each of them.

    NumPy cuts 1.5 to 1 where whole numbers are taken, and makes 1e39 infinite in float32.
    """
    is_whole = dtype.kind == "i"
    most = int(np.iinfo(dtype).max) if is_whole else float(np.finfo(dtype).max)
    kind = "whole number" if is_whole else "number"
    rows = []
    for at, item in enumerate(items):
        assert isinstance(item.content, list)
        for column, value in enumerate(item.content):
            if abs(value) > most or (is_whole and value != int(value)):
                return Refusal(
                    422,
                    f"rows[{at}][{column}]: expected a {kind} from {-most:g} to {most:g}, got"
                    f" {json.dumps(value)[:40]}",
                )
        rows.append(np.array(item.content, dtype))
    return rows


def _decode_picture(metadata: Metadata, item: Item) -> Array | Refusal:
    assert isinstance(item.content, bytes)
    name = visible(item.name, in_line=True)
    try:
        image = decode_rgb(io.BytesIO(item.content), name=name)
    except UnreadableImageError as error:
        return Refusal(422, f"{name}: this picture cannot be decoded ({error.reason})")
    try:
        return prepare_image(metadata, image)
    except (MemoryError, OverflowError, ValueError) as error:
        # of one that is a thousand times as long as wide
        reason = str(error) or "too much memory"
        return Refusal(
            422, f"{name}: {image.width} x {image.height} pixels cannot be prepared ({reason})"
        )

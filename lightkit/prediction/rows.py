"""Predictions of the rows of a table by an exported file.

Of `lightkit predict --model` and of the server. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lightkit.errors import DataError
from lightkit.export.formats import Runner
from lightkit.export.metadata import Metadata
from lightkit.prediction.exported import explain_failure
from lightkit.prediction.table import Prediction
from lightkit.rows.preprocessing import RowPreprocessing

Array = np.ndarray[Any, Any]


class EncodedRows(NamedTuple):
    """Rows of a table as a model takes them.

    Args:
        entries: Of each row in order, without values; with the reason where it has no prediction.
        inputs: Those of the rows without a defect, in order; None where there are none.
    """

    entries: list[Prediction]
    inputs: tuple[Array, ...] | None


def encode_rows(
    words: Sequence[str], preprocessing: RowPreprocessing, *, batch_rows: int | None = None
) -> Iterator[EncodedRows]:
    """Read the rows of tables and prepare them, one batch after another.

    Args:
        words: Tables, or ``-`` for standard input, see `open_rows`.
        preprocessing: Of the model.
        batch_rows: Most rows of a batch; None for as many as the preprocessing says.

    Raises:
        DataError: If a table cannot be read, or has not all columns.
    """
    index = 0
    batch_rows = batch_rows or preprocessing.batch_rows
    for table in [preprocessing.open(word) for word in words]:
        for batch in table.read(
            list(preprocessing.columns), batch_rows=batch_rows, with_lines=True
        ):
            rows, defects = preprocessing.read(batch.rows)
            reasons: dict[int, str] = {}
            for defect in defects:
                reasons.setdefault(defect.row, defect.reason)
            names = batch.name_rows()
            entries = [
                Prediction(index + at, name, None, reasons.get(at)) for at, name in enumerate(names)
            ]
            index += len(entries)
            good = [at for at in range(len(entries)) if at not in reasons]
            if reasons and good:
                rows = rows.take(good)
            yield EncodedRows(entries, preprocessing.encode(rows) if good else None)


def check_row_model(metadata: Metadata, file: Path) -> int:
    """Return the number of values of each row in the output of a model of rows.

    Raises:
        DataError: If its first output has no row of fixed length for each row.
    """
    batch, *sizes = metadata.outputs[0].shape or (0,)
    if batch is not None or None in sizes:
        raise DataError(
            f"{file}: the output of this model has the shape {(batch, *sizes)}; expected an output"
            " with a row for each row of a table."
        )
    return math.prod(size for size in sizes if size is not None)


def predict_rows(
    run: Runner,
    metadata: Metadata,
    words: Sequence[str],
    preprocessing: RowPreprocessing,
    *,
    file: Path,
) -> Iterator[Prediction]:
    """Run a model on the rows of tables, in their order.

    Args:
        run: The model.
        metadata: Of its file; see `check_row_model`.
        words: The tables.
        preprocessing: Of the file.
        file: Its file, for errors.

    Raises:
        DataError: If a table cannot be read, or the output has no row for each row.
    """
    for entries, inputs in encode_rows(words, preprocessing):
        values = iter(() if inputs is None else run_rows(run, metadata, inputs, file=file))
        for entry in entries:
            yield entry if entry.defect is not None else replace(entry, values=next(values))


def run_rows(run: Runner, metadata: Metadata, inputs: Sequence[Array], *, file: Path) -> Array:
    """Return ``(rows, values)``, float32 or float64: probabilities if the output is of classes.

    Raises:
        DataError: If the model fails, or its output has no row for each row.
    """
    with explain_failure(file, "rows"):
        arrays = [
            array.astype(spec.dtype, copy=False)
            for array, spec in zip(inputs, metadata.inputs, strict=True)
        ]
        output = np.asarray(run(arrays)[0])
    if output.shape[:1] != (len(inputs[0]),):
        raise DataError(
            f"{file}: the output of the model has the shape {output.shape} for {len(inputs[0])}"
            " rows; expected a row for each. Export it again."
        )
    values = metadata.task.probabilities(output, num_classes=len(metadata.class_names or ()))
    return values.reshape(len(values), -1)

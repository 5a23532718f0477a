"""The preparation of rows for a model, which the model has as its attribute ``row_preprocessing``.

No torch.

It is kept in checkpoints and in the metadata of exported files, so that new rows are prepared as
those of the training were, wherever the model is used.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from lightkit.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from lightkit.rows.reader import RowTable
    from lightkit.rows.values import ColumnType, Defect

Array = np.ndarray[Any, np.dtype[Any]]

KINDS = {
    "table": "lightkit.rows.table.TablePreprocessing",
    "text": "lightkit.rows.text.TextPreprocessing",
}
"""Class of each kind; they are imported where they are used."""
BATCH_ROWS = 1024
KIND = "kind"
"""Key of the kind in the JSON form."""
CHECKPOINT_KEY = "row_preprocessing"
"""Key of a checkpoint under which a model keeps the JSON form."""


class RowPreprocessing(ABC):
    """From rows of a table to the inputs of a model."""

    kind: ClassVar[str]
    """Key of `KINDS`."""

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, ColumnType]:
        """Name and type of the columns that `encode` reads."""

    @abstractmethod
    def encode(self, rows: pa.Table) -> tuple[Array, ...]:
        """Prepare rows.

        Args:
            rows: The `columns`, of the types of `lightkit.rows.values.read_columns`.

        Returns:
            An array ``(rows, ...)`` for each positional input of the model's ``forward``.
        """

    @property
    def open_axes(self) -> Mapping[int, int | None]:
        """Axes of the inputs, besides the batch, that have any length, each with the longest one.

        They are the same for all inputs.
        """
        return {}

    @property
    def batch_rows(self) -> int:
        """Rows of a batch of predictions."""
        return BATCH_ROWS

    def stack(self, samples: Sequence[tuple[Array, ...]]) -> list[Array]:
        """Join rows encoded in several batches: an array ``(rows, ...)`` for each input."""
        return [np.stack(parts) for parts in zip(*samples, strict=True)]

    def open(self, word: str) -> RowTable:
        """Open what a word of a command line names.

        Raises:
            DataError: If it is missing, empty or of another kind.
        """
        # here: pyarrow, which models of images need not load
        from lightkit.rows.reader import open_rows

        return open_rows(word, setting="FILE of lightkit predict")

    @abstractmethod
    def make_example(self) -> pa.Table:
        """Return made-up rows in the columns that `encode` reads, as an example of them.

        Dates are texts.

        None of them is of the training: an example is written into files that others see.
        """

    def list_files(self) -> Mapping[str, str]:
        """Return files by name that stand beside an exported file.

        For programs that run it without lightkit.
        """
        return {}

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Convert to plain values of JSON, without the kind; see `dump_preprocessing`."""

    @classmethod
    @abstractmethod
    def from_dict(cls, record: Mapping[str, Any]) -> RowPreprocessing:
        """Convert from plain values.

        Raises:
            KeyError: If one is missing.
            TypeError, ValueError: If one has another type.
        """

    def read(self, batch: pa.RecordBatch) -> tuple[pa.Table, list[Defect]]:
        """Convert the columns of a batch to their types; see `lightkit.rows.values.read_columns`.

        Raises:
            DataError: If a column is not there.
        """
        # here: pyarrow, which models of images need not load
        from lightkit.rows.values import read_columns

        return read_columns(batch, self.columns)


def dump_preprocessing(preprocessing: RowPreprocessing | None) -> dict[str, Any] | None:
    """Convert to plain values of JSON, with the kind; None where there is none."""
    return None if preprocessing is None else {KIND: preprocessing.kind, **preprocessing.as_dict()}


def load_preprocessing(record: Mapping[str, Any] | None) -> RowPreprocessing | None:
    """Convert from the result of `dump_preprocessing`.

    Raises:
        DataError: If it is damaged, or of a kind that this version does not know.
    """
    if record is None:
        return None
    kind = record.get(KIND)
    if kind not in KINDS:
        raise DataError(
            f"row_preprocessing: expected one of the kinds {', '.join(KINDS)}, got {kind!r}."
        )
    module, _, name = KINDS[str(kind)].rpartition(".")
    own: type[RowPreprocessing] = getattr(import_module(module), name)
    try:
        return own.from_dict(record)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"row_preprocessing: this record of kind {kind!r} is damaged ({error!r})."
        ) from error


def find_preprocessing(model: object) -> RowPreprocessing | None:
    """Return the attribute ``row_preprocessing`` of a model, or of a data module.

    None where it has none.
    """
    found = getattr(model, "row_preprocessing", None)
    return found if isinstance(found, RowPreprocessing) else None


def are_finite(values: Any) -> bool:
    """Return whether a list of JSON has finite numbers alone."""
    return all(type(value) in (int, float) and math.isfinite(value) for value in values)

"""Rows of tables that a command line names, for predictions in place of the config's data."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from torch import Tensor

from lightkit.errors import ConfigError, DataError
from lightkit.prediction.rows import EncodedRows, encode_rows
from lightkit.prediction.table import Prediction
from lightkit.rows.preprocessing import RowPreprocessing, find_preprocessing

RowInputs = tuple[tuple[Tensor, ...]]
"""A batch without targets: the inputs of ``forward``."""


class ListedRows(LightningDataModule):
    """Batches of rows for `predict_step`, prepared as the model's ``row_preprocessing`` does it.

    Rows are read as a stream by each process, which predicts its share of the batches. A row with a
    cell that is none of its column's type is among the entries of its batch, and not in the batch.
    All processes have equally many batches, so that a collective finds all of them; where one has
    no rows for a batch, it gets a row of an earlier one that counts for nothing.

    Args:
        words: Tables, as on the command line.
        batch_rows: Rows of one batch on one process; None for as many as the model's preprocessing
            says.
        trained_names: Names of the classes that the weights were trained for; None where they are
            unknown.

    Attributes:
        entries: Of each batch that was given and not predicted yet, its rows without values. Those
            without a defect are the batch's rows, in their order.
    """

    unit = "rows"
    paths: Sequence[str] | None = None
    """Their number is known at the end alone."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        batch_rows: int | None = None,
        trained_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.words = list(words)
        self.batch_size = batch_rows
        self.trained_names = trained_names
        self.names_of_data: Callable[[], Sequence[str] | None] = lambda: None
        self.entries: deque[list[Prediction]] = deque()

    @staticmethod
    def count_samples(batch: RowInputs) -> int:
        """Return the number of rows of a batch."""
        return len(batch[0][0])

    def describe(self) -> dict[str, Any]:
        """Describe the data for a run's manifest."""
        return {"source": "rows", "words": self.words}

    def predict_dataloader(self) -> _Batches:
        """Return the batches of this process, in the order of the rows.

        Raises:
            ConfigError: If the model has no ``row_preprocessing``.
        """
        trainer = self.trainer
        module: LightningModule | None = None if trainer is None else trainer.lightning_module
        preprocessing = find_preprocessing(module)
        if trainer is None or preprocessing is None:
            raise ConfigError(
                f"model: {type(module).__name__} has no `row_preprocessing`, which says how rows of"
                " a table are prepared for it. Train it on TableData, or set it: a"
                " lightkit.rows.preprocessing.RowPreprocessing."
            )
        return _Batches(self, preprocessing, trainer.global_rank, trainer.world_size)


class _Batches:
    """One process's batches. No `DataLoader`: Lightning would give it another sampler."""

    def __init__(
        self, rows: ListedRows, preprocessing: RowPreprocessing, rank: int, num_ranks: int
    ) -> None:
        self._rows = rows
        self._preprocessing = preprocessing
        self._rank = rank
        self._num_ranks = num_ranks
        self.batch_size = rows.batch_size or preprocessing.batch_rows

    def __iter__(self) -> Iterator[RowInputs]:
        encoded = encode_rows(self._rows.words, self._preprocessing, batch_rows=self.batch_size)
        filler: tuple[Tensor, ...] | None = None
        has_rows = False
        while share := list(islice(encoded, self._num_ranks)):
            has_rows = True
            filler = filler or next(
                (_to_tensors(each, 1) for each in share if each.inputs is not None), None
            )
            own = share[self._rank] if self._rank < len(share) else EncodedRows([], None)
            inputs = filler if own.inputs is None else _to_tensors(own)
            if inputs is None:  # no row so far can be encoded
                inputs = self._blank()
            self._rows.entries.append(own.entries)
            yield (inputs,)
        if not has_rows:
            raise DataError(f"{' '.join(self._rows.words)}: there is no row.")

    def _blank(self) -> tuple[Tensor, ...]:
        """Return the inputs of a row whose cells are all missing."""
        # here: pyarrow, which models of images need not load
        from lightkit.rows.values import missing_rows

        encoded = self._preprocessing.encode(missing_rows(self._preprocessing.columns))
        return tuple(map(torch.from_numpy, encoded))


def _to_tensors(encoded: EncodedRows, num: int | None = None) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(array[:num]) for array in encoded.inputs or ())

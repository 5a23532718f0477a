"""The data module of rows of a table; a subclass says how rows are prepared."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from pytorch_lightning import LightningDataModule
from pytorch_lightning.trainer.states import TrainerFn
from torch.utils.data import DataLoader, Dataset

from lightkit.config.bounds import NonNegativeInt, Part, PositiveInt
from lightkit.data.image_module import SPLIT_OF_STAGE, SplitModule, check_arguments, seed_of
from lightkit.data.loader import eval_loader, predict_loader, train_loader
from lightkit.errors import ConfigError, DataError
from lightkit.images.splits import SPLITS, Split, check_fractions, name_tables
from lightkit.rows.plan import RowPlan, RowRules, RowSettings, TargetType
from lightkit.rows.planned import Arrays, PlannedRows
from lightkit.rows.preprocessing import RowPreprocessing, find_preprocessing
from lightkit.rows.values import read_columns

log = logging.getLogger("lightkit.data")

Batch = tuple[Any, ...]


class EncodedRows(Dataset[Any]):
    """Rows of a split, encoded for the model that gets them.

    That may be another one in each pass, as where a gate compares two on the same loader.

    Args:
        data: The data module.
        split: The split.
    """

    has_epochs = False
    """Whether a sample differs from epoch to epoch."""

    def __init__(self, data: RowData, split: Split) -> None:
        self.numbers = data.rows.find_numbers(split)
        self._data = data
        self._preprocessing: RowPreprocessing | None = None
        self._arrays: Arrays | None = None

    @property
    def arrays(self) -> Arrays:
        """All rows as the model takes them.

        Without inputs where neither model nor data has a preparation.
        """
        preprocessing = self._data.find_preprocessing()
        if self._arrays is None or preprocessing is not self._preprocessing:
            self._arrays = self._data.rows.encode(preprocessing)
            self._preprocessing = preprocessing
        return self._arrays

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def sample_bytes(self) -> int:
        """Size of a row in a batch."""
        arrays = [*self.arrays.inputs, self.arrays.target]
        return sum(array.itemsize * int(np.prod(array.shape[1:])) for array in arrays)

    def __getitem__(self, key: int) -> Batch:
        """Return one row, without a batch dimension."""
        inputs, *others = self.__getitems__([key])
        return (tuple(each[0] for each in inputs), *(each[0] for each in others))

    def __getitems__(self, keys: Sequence[int]) -> Batch:
        """Return a batch; torch's loader calls this method if there is one."""
        rows = self.numbers[np.asarray(keys, np.int64)]
        arrays = self.arrays
        inputs = tuple(torch.from_numpy(each[rows]) for each in arrays.inputs)
        target = torch.from_numpy(arrays.target[rows])
        if arrays.weights is None:
            return inputs, target
        return inputs, target, torch.from_numpy(arrays.weights[rows])

    @staticmethod
    def collate(batch: Batch) -> Batch:
        """Return a batch as it is: for a loader's ``collate_fn``."""
        return batch


class RowData(SplitModule, LightningDataModule):
    """Rows of a table with a target, prepared for a model.

    A batch is ``(inputs, target)`` or ``(inputs, target, weights)``: a tuple of the inputs of the
    model's ``forward``, then int64 classes ``(batch,)`` or float32 values ``(batch, 1)``, then
    float32 weights ``(batch,)``. Rows are prepared by the ``row_preprocessing`` of the model where
    it has one, which a checkpoint brings, else by that of this table's training split. They are
    encoded once, and kept in the cache.

    Args:
        path: A file of CSV, JSON lines or Parquet, a Delta table, a folder of files of one kind, or
            an address of them.
        train: A table for training alone, in place of ``path``; likewise ``val`` and ``test``.
        val: Table for validation.
        test: Table for testing.
        target: Column of what is to be predicted.
        target_type: Whether the target is a class or a value; `auto` takes text, booleans and at
            most 20 different whole numbers for classes.
        weight: Column of numbers of 0 or more by which the loss of a row is multiplied, over their
            mean in training.
        split: Column that says train, val or test; `auto` takes a column `split` where there is
            one.
        key: Column by whose hash the split is decided, such as a customer; by default all columns
            of the model.
        time: Column of dates or numbers by which the split is decided: the latest rows are tested,
            those before validated.
        val_fraction: Share of the rows used for validation, where nothing says the splits.
        test_fraction: Share of the rows kept for testing, where nothing says the splits.
        batch_size: Rows of one batch on one process.
        num_workers: Processes that load; 0, as rows are encoded before the training.
        seed: Decides the order; default is the run's seed_everything.
        version: Number of a Delta table's state to read; default is the newest.
        storage_options: For an object store, as deltalake takes them.
    """

    source = "rows"
    row_kind: ClassVar[str] = ""
    """Kind of its `RowPreprocessing`."""
    input_paths = ("path", "train", "val", "test")
    sample_arguments = (
        *("path", "train", "val", "test", "target", "target_type", "split", "key", "time"),
        *("weight", "val_fraction", "test_fraction", "version", "storage_options"),
    )

    def __init__(
        self,
        path: str | None = None,
        train: str | None = None,
        val: str | None = None,
        test: str | None = None,
        target: str = "target",
        target_type: TargetType = "auto",
        weight: str | None = None,
        split: str | None = "auto",
        key: str | None = None,
        time: str | None = None,
        val_fraction: Part = 0.2,
        test_fraction: Part = 0.1,
        batch_size: PositiveInt = 256,
        num_workers: NonNegativeInt = 0,
        seed: int | None = None,
        version: NonNegativeInt | None = None,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_arguments(self, batch_size=batch_size, num_workers=num_workers)
        check_fractions(val_fraction=val_fraction, test_fraction=test_fraction)
        self.places = name_tables(path, train=train, val=val, test=test)
        """Address of the table, under None, or of each split's."""
        named = [name for name in self.places if name is not None]
        _check_deciders(
            named, {"split": None if split == "auto" else split, "key": key, "time": time}
        )
        self.row_settings = RowSettings(
            self.places,
            target,
            target_type,
            weight,
            split,
            key,
            time,
            val_fraction,
            test_fraction,
            {"version": version, "storage_options": storage_options},
        )
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.seed = seed
        self._classes: list[str] | None = None  # of a checkpoint
        self._rows: PlannedRows | None = None

    @property
    def rules(self) -> RowRules:
        """Rules by which columns are chosen and prepared."""
        raise NotImplementedError

    def setup(self, stage: str | None = None) -> None:
        """Read the table once, and find splits and targets, unless that was done before.

        Raises:
            DataError: If the table cannot be used, or ``stage`` needs a split that is empty.
        """
        if self._rows is None:
            self._rows = PlannedRows(self.row_settings, self.rules, self._classes)
            if stage == "fit" and (self.trainer is None or self.trainer.is_global_zero):
                for note in self._rows.plan.notes:
                    log.warning("data: %s", note)
        if stage == "fit" and self.mean_weight == 0:
            raise DataError(
                f"{self.row_settings.name}: each row of the training split has the weight 0 in"
                f" column {self.row_settings.weight!r}, so that nothing is trained on. Set"
                " data.init_args.weight to another column, or leave it out."
            )
        split = SPLIT_OF_STAGE.get(stage)
        if split is not None and not self.counts[split]:
            raise DataError(
                f"{self.row_settings.name}: no row is in the {split} split. Set"
                f" data.init_args.{split} to a table of its own, name the split in a column"
                f" (data.init_args.split), or set data.init_args.{split}_fraction above 0."
            )

    # -- known after setup -------------------------------------------------------------------------

    @property
    def rows(self) -> PlannedRows:
        """The rows; known after `setup`."""
        if self._rows is None:
            self.setup()
        assert self._rows is not None
        return self._rows

    @property
    def plan(self) -> RowPlan:
        """Types, splits and targets of the rows."""
        return self.rows.plan

    @property
    def counts(self) -> dict[Split, int]:
        """Number of rows of each split."""
        return {split: self.plan.counts[split] for split in SPLITS}

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, in the order of their numbers; empty for values."""
        return list(self.plan.class_names)

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 for values."""
        return len(self.plan.class_names)

    @property
    def label_counts(self) -> list[int]:
        """Number of training rows of each class, for factors of the loss."""
        return list(self.plan.class_counts)

    @property
    def mean_weight(self) -> float | None:
        """Mean weight of the training rows, over which weights are taken; None without."""
        return self.plan.mean_weight

    @property
    def target_scale(self) -> tuple[float, float]:
        """Mean and standard deviation of the values of the training rows."""
        return self.plan.target_mean, self.plan.target_std

    @property
    def row_preprocessing(self) -> RowPreprocessing:
        """Preparation of rows: that of the model if it has one, else that of the training split.

        Raises:
            DataError: If there is neither.
        """
        found = self.find_preprocessing()
        if found is None:
            raise DataError(
                f"{self.row_settings.name}: there are no training rows, by which rows are prepared,"
                " and no checkpoint that brings its preparation."
            )
        return found

    def find_preprocessing(self) -> RowPreprocessing | None:
        """Return the preparation of the model, else that of this training split.

        None where there is neither.
        """
        module = None if self.trainer is None else self.trainer.lightning_module
        return find_preprocessing(module) or self.rows.preprocessing

    def list_cells(self, split: Split, column: str) -> list[str | None]:
        """Return the cells of a column of a split's rows, as the names of categories.

        None where one is missing.

        Raises:
            DataError: If the table has no such column.
        """
        rows, _ = self.rows.read_rows(split, [column], with_names=False)
        found, _ = read_columns(rows, {column: "category"})
        cells: list[str | None] = found[column].to_pylist()
        return cells

    def describe(self) -> dict[str, Any]:
        """Describe the data for a run's manifest."""
        return {
            "source": self.source,
            "row_kind": self.row_kind,
            "root": (
                self.places[None]
                if None in self.places
                else {str(k): place for k, place in self.places.items()}
            ),
            "fingerprint": self.rows.source.fingerprint,
            "counts": self.counts,
            "target": self.row_settings.target,
            "class_names": self.class_names,
            "columns": dict(self.plan.types),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the classes of the model, and the fingerprint of the table."""
        return {"class_names": self.class_names, "fingerprint": self.rows.source.fingerprint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Count labels into the classes of the checkpoint.

        Warn if a training goes on with other rows.

        Raises:
            DataError: If the table has others.
        """
        names = list(state["class_names"])
        if names != self.class_names:
            self._classes = names
            # a few whole numbers in this table may be values in that of the training
            settings = replace(self.row_settings, target_type="class" if names else "value")
            self._rows = PlannedRows(settings, self.rules, names)
        trainer = self.trainer
        is_training = (
            trainer is not None and trainer.is_global_zero and trainer.state.fn == TrainerFn.FITTING
        )
        if is_training and state.get("fingerprint") not in (None, self.rows.source.fingerprint):
            log.warning(
                "data: the table is not the one that the checkpoint was trained on. The training"
                " goes on with other rows, also in the rest of its epoch."
            )

    def encoded(self, split: Split) -> EncodedRows:
        """Return the rows of a split."""
        return EncodedRows(self, split)

    def read_rows(self, split: Split, indices: Sequence[int]) -> tuple[pa.RecordBatch, list[str]]:
        """Read the model's columns of rows of a split as they are in the table, and their names.

        Args:
            split: The split.
            indices: Of the rows in it, ascending.
        """
        return self.rows.read_rows(split, list(self.row_preprocessing.columns), indices)

    @property
    def predict_paths(self) -> list[str]:
        """File and line of the rows of `predict_dataloader`, in its order."""
        return self.rows.read_rows(self._predict_split, self.rows.source.names[:1])[1]

    # -- loaders -----------------------------------------------------------------------------------

    def _load(self, split: Split) -> DataLoader[Any]:
        make_loader = train_loader if split == "train" else eval_loader
        return make_loader(self.encoded(split), **self._loading)

    def predict_dataloader(self) -> DataLoader[Any]:
        """Return the test split if there is one, else the validation split."""
        return predict_loader(self.encoded(self._predict_split), **self._loading)

    @property
    def _loading(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "seed": seed_of(self),
            "trainer": self.trainer,
        }


def _check_deciders(named: Sequence[str], given: dict[str, str | None]) -> None:
    """Check that one thing decides the splits.

    Raises:
        ConfigError: If several do.
    """
    deciders = [*named[:1], *(name for name, value in given.items() if value is not None)]
    if len(deciders) > 1:
        raise ConfigError(
            f"data.init_args.{deciders[1]}: data.init_args.{deciders[0]} decides the splits"
            " already. Leave out one of them."
        )

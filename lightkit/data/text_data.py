"""Texts and their labels as a Lightning data module."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightkit.config.bounds import NonNegativeInt, Part, PositiveInt
from lightkit.data.image_module import (
    SPLIT_OF_STAGE,
    IndexedSplits,
    SplitModule,
    check_arguments,
    warn_idle_fractions,
)
from lightkit.data.loader import Pinning, eval_loader, predict_loader, train_loader
from lightkit.data.sampler import SampleKey
from lightkit.errors import ConfigError, DataError
from lightkit.images.splits import Split, check_fractions, name_label
from lightkit.rows.parquet_table import is_remote
from lightkit.rows.reader import open_rows
from lightkit.rows.text import TextPreprocessing
from lightkit.rows.text_table import FOLDER_COLUMN, TextColumns, TextSettings
from lightkit.rows.values import plain
from lightkit.texts.ngrams import Bag, NgramHashing, join_bags
from lightkit.texts.text_files import is_text_folder
from lightkit.texts.text_rows import TextIndex, require_classes

_KEPT_BYTES = 256_000_000
"""Of the n-grams of a split that a process keeps."""


class TextNames:
    """Names of the texts of a split, for predictions.

    Args:
        index: All texts.
        split: The split.
    """

    def __init__(self, index: TextIndex, split: Split) -> None:
        self._index = index
        self._split = split

    def __len__(self) -> int:
        return len(self._index.splits[self._split])

    def name(self, number: int) -> str:
        """Return where a text is from, such as its file, or its table and row."""
        return str(self._index.places[int(self._index.splits[self._split][number])].as_py())


class TextSamples(Dataset[Any]):
    """The texts of a split, read in whole batches.

    Args:
        index: All texts.
        split: The split.
        preprocessing: Converts texts to the inputs of a model; None leaves them as they are.
    """

    def __init__(
        self, index: TextIndex, split: Split, preprocessing: TextPreprocessing | None
    ) -> None:
        self._index = index
        self._numbers = index.splits[split]
        self._preprocessing = preprocessing
        self.source = TextNames(index, split)
        self._kept: dict[int, Bag] = {}
        self._room_bytes = _KEPT_BYTES
        self.lengths = index.lengths[self._numbers]

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, key: SampleKey | int) -> Any:
        return self.__getitems__([key])

    def __getitems__(self, keys: Sequence[SampleKey | int]) -> Any:
        """Return a batch: inputs, labels, and weights where there are some."""
        chosen = self._numbers[[key.index if isinstance(key, SampleKey) else key for key in keys]]
        inputs: Any
        if self._preprocessing is None:
            inputs = self._index.texts.take(chosen).to_pylist()
        if self._preprocessing is not None:
            inputs = self._encode(chosen, self._preprocessing)
        targets = torch.from_numpy(self._index.targets[chosen])
        if self._index.is_multilabel:
            targets = targets.long()
        if self._index.weights is None:
            return inputs, targets
        return inputs, targets, torch.from_numpy(self._index.weights[chosen])

    def _encode(
        self, chosen: NDArray[np.int64], preprocessing: TextPreprocessing
    ) -> tuple[Tensor, ...]:
        """Encode texts; n-grams of a text are kept for later epochs while there is room."""
        hashing = preprocessing.encoder
        if not isinstance(hashing, NgramHashing):
            return _encode(self._index.texts.take(chosen).to_pylist(), preprocessing)
        missing = np.array(
            [number for number in chosen.tolist() if number not in self._kept], np.int64
        )
        bags = hashing.hash_texts(self._index.texts.take(missing).to_pylist())
        found = dict(zip(missing.tolist(), bags.split(), strict=True))
        for number, bag in found.items():
            size = bag[0].nbytes + bag[1].nbytes
            if size <= self._room_bytes:
                self._room_bytes -= size
                self._kept[number] = bag[0].copy(), bag[1].copy()
        every = [found.get(number) or self._kept[number] for number in chosen.tolist()]
        return tuple(map(torch.from_numpy, hashing.pad(join_bags(every))))

    @staticmethod
    def collate(batch: Any) -> Any:
        """Return the batch, which is whole."""
        return batch


def _encode(texts: Sequence[str], preprocessing: TextPreprocessing) -> tuple[Tensor, ...]:
    return tuple(map(torch.from_numpy, preprocessing.encode_texts(texts)))


class TextData(IndexedSplits, SplitModule, LightningDataModule):
    """Texts with one label or several: a column of a table, or text files in one folder a class.

    A table is a file of CSV, JSON lines or Parquet, a folder of such files, or a Delta table. A
    folder of text files has one folder a class, or train/, val/ and test/ with one folder a class
    each. Where no splits are named, a text's split is decided by a hash of it, in which white space
    counts as one space: it is the same on every machine, stays when texts are added, and equal
    texts always go the same way. All texts are kept in memory.

    Batches are ``((ids, counts), labels)``, or with a column of weights
    ``((ids, counts), labels, weights)``, where the model's `row_preprocessing` makes ids and counts
    of the texts, which the longest text of a batch pads. A model without `row_preprocessing` gets a
    list of the texts in their place. Labels are int64 ``(batch,)``, several labels 0 or 1, int64
    ``(batch, labels)``.

    Args:
        path: The table or the folder.
        text: Column of the texts; `auto` takes the first that is named text, texts, content, body,
            sentence, document, message, review, comment, title or description, or the only other
            column of text.
        label: Column of the labels, or several columns of 0 and 1, each a label; `auto` takes the
            first that is named label, labels, class, target, category or tags.
        separator: Character between several labels in one cell, such as "|"; an empty cell is a
            text without a label. Without it a cell is one label.
        split: Column that says train, val or test; `auto` takes a column `split` where there is
            one, null none.
        key: Column by whose hash the split is decided in place of the text, such as an author, so
            that rows with the same go the same way.
        weight: Column of numbers by which the loss of a text is multiplied, over their mean in the
            training split.
        classes: Names of the classes or labels in their order; another label is an error with its
            place. Default are those of the training texts, sorted.
        val_fraction: Share of the texts used for validation, where no validation split is named.
        test_fraction: Share of the texts kept for testing, where no splits are named.
        copies: What to do about equal texts: `keep` warns where they are in several splits or have
            different labels, `drop` leaves out all but one, that of the test split before that of
            validation before that of training.
        encoding: Of text files; `auto` is UTF-8, or what a byte order mark says, or else
            Windows-1252 with a warning.
        batch_size: Texts of one batch on one process.
        length_buckets: Whether training batches are of texts of like length, in random order, which
            saves padding.
        num_workers: Processes that load; 0 loads in the training process, `auto` chooses by cores
            and device.
        seed: Decides the order; default is the run's seed_everything.
        prefetch_factor: Batches that each worker prepares ahead.
        persistent_workers: Keep the workers from epoch to epoch.
        pin_memory: Hand batches to a GPU from memory that it can read by itself; `auto` does so
            where there is one.
    """

    source = "texts"
    input_paths = ("path",)
    sample_arguments = (
        *("path", "text", "label", "separator", "weight", "split", "key", "classes"),
        *("val_fraction", "test_fraction", "copies", "encoding"),
    )

    def __init__(
        self,
        path: str,
        text: str = "auto",
        label: str | list[str] = "auto",
        separator: str | None = None,
        split: str | None = "auto",
        key: str | None = None,
        weight: str | None = None,
        classes: list[str] | None = None,
        val_fraction: Part = 0.2,
        test_fraction: Part = 0.1,
        copies: Literal["keep", "drop"] = "keep",
        encoding: str = "auto",
        batch_size: PositiveInt = 32,
        length_buckets: bool = True,
        num_workers: NonNegativeInt | Literal["auto"] = "auto",
        seed: int | None = None,
        prefetch_factor: PositiveInt = 2,
        persistent_workers: bool = True,
        pin_memory: Pinning = "auto",
    ) -> None:
        super().__init__()
        check_fractions(val_fraction=val_fraction, test_fraction=test_fraction)
        check_arguments(
            self, batch_size=batch_size, num_workers=num_workers, prefetch_factor=prefetch_factor
        )
        if separator is not None and not separator:
            raise ConfigError(
                "data.init_args.separator: expected a character between"
                " labels, got ''; null is none."
            )
        if separator is not None and not isinstance(label, str):
            raise ConfigError(
                "data.init_args.separator: it is of one column of labels, and label names several."
            )
        self.path = path if is_remote(path) else str(Path(path).expanduser())
        self.text = text
        self.label = label
        self.separator = separator
        self.split = split
        self.key = key
        self.weight = weight
        self.classes = classes
        self.val_fraction = val_fraction
        self.test_fraction = test_fraction
        self.copies: Literal["keep", "drop"] = copies
        self.encoding = encoding
        self.batch_size = batch_size
        self.length_buckets = length_buckets
        self.num_workers = num_workers
        self.seed = seed
        self.prefetch_factor = prefetch_factor
        self.persistent_workers = persistent_workers
        self.pin_memory = pin_memory
        self.text_column = FOLDER_COLUMN
        """Name of the column of texts; that of rows of which a model predicts the classes."""
        self._index: TextIndex | None = None
        self._encoded_for: TextPreprocessing | None = None  # by the loaders

    # -- data --------------------------------------------------------------------------------------

    def setup(self, stage: str | None = None) -> None:
        """Read the texts, once.

        Raises:
            DataError: If the data cannot be used, or ``stage`` needs a split that is empty.
        """
        index = self.index
        if stage == "fit":
            require_classes(index, self.path)
            warn_idle_fractions(self, index.given, f"named in {self.path}")
        if stage == "fit" and self.mean_weight == 0:
            raise DataError(
                f"{self.path}: each text of the training split has the weight 0 in column"
                f" {self.weight!r}, so that nothing is trained on. Set data.init_args.weight to"
                " another column, or leave it out."
            )
        if stage in ("validate", "test"):
            self._refuse_missing(SPLIT_OF_STAGE[stage])

    @property
    def index(self) -> TextIndex:
        """All texts by split; read when it is first asked for."""
        if self._index is None:
            self._index = self._read()
        return self._index

    def _read(self) -> TextIndex:
        columns = TextColumns(
            text=self.text, label=self.label, split=self.split, key=self.key, weight=self.weight
        )
        settings = TextSettings(
            self.path, columns, self.separator, self.classes, self.val_fraction, self.test_fraction,
            self.copies,
            self.encoding,
        )  # fmt: skip
        self.text_column, index = settings.read()
        return index

    @property
    def is_multilabel(self) -> bool:
        """Return whether a text has any number of labels."""
        return self.index.is_multilabel

    @property
    def label_counts(self) -> list[int]:
        """Number of training texts of each class or label, for factors of the loss."""
        targets = self.index.targets[self.index.splits["train"]]
        if self.is_multilabel:
            return [int(each) for each in targets.sum(axis=0, dtype=np.int64)]
        return [int(each) for each in np.bincount(targets, minlength=self.num_classes)]

    @property
    def mean_weight(self) -> float | None:
        """Mean weight of the training texts, over which `lightkit.models` takes weights.

        None without.
        """
        weights = self.index.weights
        return (
            None
            if weights is None
            else float(weights[self.index.splits["train"]].mean(dtype=np.float64))
        )

    def describe(self) -> dict[str, Any]:
        """Return the data's entry in a run's manifest."""
        return {
            "source": self.source,
            "root": self.path,
            "row_kind": TextPreprocessing.kind,
            "fingerprint": self.index.fingerprint,
            "counts": self.index.counts,
            "copies_left_out": self.index.num_dropped,
            "class_names": self.class_names,
        }

    def _refuse_missing(self, split: Split) -> None:
        if not self.counts[split]:
            raise DataError(
                f"{self.path}: there is no {split} split. Name it in a column"
                " (data.init_args.split) or as a folder, or set"
                f" data.init_args.{split}_fraction above 0."
            )

    def read_rows(self, split: Split, numbers: Sequence[int]) -> tuple[pa.RecordBatch, list[str]]:
        """Return texts of a split before any preparation, as table rows, and their sources."""
        chosen = self.index.splits[split][list(numbers)]
        rows = pa.RecordBatch.from_arrays([self.index.texts.take(chosen)], names=[self.text_column])
        return rows, self.index.places.take(chosen).to_pylist()

    def list_cells(self, split: Split, column: str) -> list[str]:
        """Return the cells of a column of a split, by which a gate slices it.

        Raises:
            DataError: If there is no such column.
        """
        if is_text_folder(self.path):
            raise DataError(
                f"{self.path}: text files have no column {column!r}, by which gate.slices could"
                " slice them."
            )
        batches = open_rows(self.path).read([column])
        cells = [
            name_label(cell)
            for batch in batches
            for cell in plain(batch.rows.column(0)).to_pylist()
        ]
        return [cells[number] for number in self.index.splits[split].tolist()]

    # -- loading -----------------------------------------------------------------------------------

    def _load(self, split: Split) -> DataLoader[Any]:
        samples = self._samples(split)
        if split != "train":
            return eval_loader(samples, **self._loading)
        return train_loader(
            samples, lengths=samples.lengths if self.length_buckets else None, **self._loading
        )

    def predict_dataloader(self) -> DataLoader[Any]:
        """Return the test split if there is one, else the validation split."""
        return predict_loader(self._samples(self._predict_split), **self._loading)

    @property
    def predict_paths(self) -> Sequence[str]:
        """Where the texts of `predict_dataloader` are from, in its order."""
        names = TextNames(self.index, self._predict_split)
        return [names.name(number) for number in range(self.counts[self._predict_split])]

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Encode the texts of a batch that was loaded before there was a model.

        Then the model's hook has its turn.

        Raises:
            ConfigError: If they were encoded for another model.
        """
        preprocessing = self._find_preprocessing()
        if preprocessing is not None:
            texts, *rest = batch
            if isinstance(texts, list):
                batch = (_encode(texts, preprocessing), *rest)
            elif self._encoded_for not in (None, preprocessing):
                raise ConfigError(
                    "data: the texts were encoded for another model. Build"
                    " a data module for each model."
                )
        module = None if self.trainer is None else self.trainer.lightning_module
        if module is not None and is_overridden(
            "on_before_batch_transfer", module, parent=LightningModule
        ):
            return module.on_before_batch_transfer(batch, dataloader_idx)
        return batch

    def _find_preprocessing(self) -> TextPreprocessing | None:
        """Return how the model of the trainer takes texts.

        None where there is no model, or it takes them as they are.

        Raises:
            ConfigError: If it takes other rows.
        """
        module = None if self.trainer is None else self.trainer.lightning_module
        preprocessing = getattr(module, "row_preprocessing", None)
        if preprocessing is not None and not isinstance(preprocessing, TextPreprocessing):
            raise ConfigError(
                f"data: {type(module).__name__} takes no texts. Expected"
                " lightkit.models.TextClassifier, or a module of your"
                " own that takes a list of texts."
            )
        return preprocessing

    def _samples(self, split: Split) -> TextSamples:
        preprocessing = self._find_preprocessing()
        self._encoded_for = preprocessing
        return TextSamples(self.index, split, preprocessing)

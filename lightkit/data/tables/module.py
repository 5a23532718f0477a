"""A Delta table or a folder of Parquet as a Lightning data module."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import combinations
from typing import Any, ClassVar, Literal, cast

from pytorch_lightning.trainer.states import TrainerFn
from torch.utils.data import DataLoader

from lightkit.config.bounds import Fraction, NonNegativeInt, Part, PositiveInt
from lightkit.data.bad_samples import Defects, check_bad_samples
from lightkit.data.image_dataset import Encoded, View
from lightkit.data.image_module import (
    SPLIT_OF_STAGE,
    IndexedSplits,
    LoadingModule,
    check_arguments,
    seed_of,
)
from lightkit.data.loader import LabelledSource, ResumableLoader, predict_loader
from lightkit.data.tables.columns import find_columns
from lightkit.data.tables.index import SPLITS, Index, Row, index_table
from lightkit.data.tables.loader import (
    BatchMaker,
    BatchOrder,
    BatchRows,
    RowNames,
    TableBatches,
    TableImages,
    TableRows,
    table_loader,
)
from lightkit.errors import ConfigError, DataError
from lightkit.images.image_file import (
    UnreadableImageError,
    count_threads,
    map_in_order,
    pillow_warnings,
)
from lightkit.images.image_index import Defect, check_defects
from lightkit.images.preprocessing import Preprocessing, preprocessing_of
from lightkit.images.splits import Split, check_fractions, name_tables
from lightkit.rank_zero import make_on_rank_zero
from lightkit.rows.parquet_table import Format, Snapshot, open_table

log = logging.getLogger("lightkit.data")

_NUM_SHOWN = 20
_NUM_DECODED = 64  # rows at once


class Table(IndexedSplits, LoadingModule):
    """Images or numbers from a Delta table or a folder of Parquet, read as a stream.

    The table is read by row group; in training the row groups come in another order in each epoch,
    and ``shuffle_buffer`` rows are kept in memory and mixed. Each row is in one batch of one
    process; only with a batch size of 1, or fewer rows than processes, some are in two. A resumed
    training goes on at the right row, also with another number of workers; with another number of
    processes or another ``batch_size`` it says that the rest of the epoch differs.

    A batch is uint8 images ``(batch, 3, image_size, image_size)``, normalised on the device, or
    float32 features ``(batch, numbers)``, or of the shape that a single tensor column has; then
    int64 labels ``(batch,)``, or float32 values ``(batch, 1)``; then, where there is a column of
    weights, float32 weights ``(batch,)``.

    Args:
        path: Folder of a Delta table, a folder or file of Parquet, or an address such as
            s3://bucket/table.
        train: A table for training alone, in place of ``path``; likewise ``val`` and ``test``.
        val: Table for validation.
        test: Table for testing.
        format: `auto` takes for Delta what has a folder `_delta_log`.
        version: Number of the Delta table's state to read; default is the newest.
        timestamp: Moment (ISO 8601) whose state of the Delta table is read.
        storage_options: For an object store, as deltalake takes them.
        filter: Rows to take: a list of [column, operator, value] that must all hold, such as
            [[height, ">=", 100]], or a list of such lists of which one must.
        image: Column of encoded images; default is `image`, where no ``features`` are given.
        features: Column of numbers, lists or tensors, or several, which are joined into one vector.
        label: Column of what is to be predicted; null where there is none.
        weight: Column of numbers by which the loss of a row is multiplied, over their mean in the
            training split.
        split: Column that says train, val or test; `auto` takes a column `split` where there is one
            and ``path`` is given. Without one, a hash of the image, the features or the ``key``
            decides.
        key: Column by whose hash the split is decided, such as a patient, so that rows with the
            same go the same way.
        val_fraction: Share of the rows used for validation, where nothing says the splits.
        test_fraction: Share of the rows kept for testing, where nothing says the splits.
        target: Whether labels are classes or numbers to tell; `auto` takes floating point for
            numbers.
        shuffle_buffer: Rows that each process keeps in memory and mixes; its workers share them.
        on_bad_image: What to do about rows that cannot be used: `skip` leaves them out and lists
            them in the run folder, `error` decodes every image before training and ends the command
            with the list.
        max_bad_fraction: Share of such rows from which on it is an error in either case: of the
            table before training, and of those of an epoch at its end.
        kwargs: Sizes, loading and augmentation, as for LoadingModule.
    """

    source = "table"
    input_tables: ClassVar[tuple[str, ...]] = ("path", "train", "val", "test")
    """Arguments that must be tables which are there already, unless they are addresses."""
    sample_arguments = (
        *("path", "train", "val", "test", "format", "version", "timestamp", "storage_options"),
        *("filter", "weight", "split", "key", "val_fraction", "test_fraction"),
        *("on_bad_image", "max_bad_fraction"),
    )

    excluded_inputs: ClassVar[tuple[tuple[str, str, str], ...]] = (
        ("weight", "mixup", "augment"),
        ("weight", "cutmix", "augment"),
    )
    """Pairs of arguments that exclude each other, unless the third one is false."""

    def __init__(
        self,
        path: str | None = None,
        train: str | None = None,
        val: str | None = None,
        test: str | None = None,
        format: Format = "auto",  # noqa: A002  # the user's word for it, in their YAML
        version: NonNegativeInt | None = None,
        timestamp: str | None = None,
        storage_options: dict[str, Any] | None = None,
        filter: list[Any] | None = None,  # noqa: A002
        image: str | None = None,
        features: str | list[str] | None = None,
        label: str | None = "label",
        weight: str | None = None,
        split: str | None = "auto",
        key: str | None = None,
        val_fraction: Part = 0.2,
        test_fraction: Part = 0.1,
        target: Literal["auto", "class", "value"] = "auto",
        shuffle_buffer: PositiveInt = 2048,
        on_bad_image: Literal["skip", "error"] = "skip",
        max_bad_fraction: Fraction = 0.05,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_arguments(self, shuffle_buffer=shuffle_buffer, max_bad_fraction=max_bad_fraction)
        self.shuffle_buffer = shuffle_buffer
        self.on_bad_image = on_bad_image
        self.max_bad_fraction = max_bad_fraction
        check_fractions(val_fraction=val_fraction, test_fraction=test_fraction)
        self.places = name_tables(path, train=train, val=val, test=test)
        """Address of the table, under None, or of each split's."""
        if weight and self.augment and (self.mixup or self.cutmix):
            name = "mixup" if self.mixup else "cutmix"
            raise ConfigError(
                f"data.init_args.weight ({weight}) and data.init_args.{name}"
                f" ({getattr(self, name)}) exclude each other: samples with weights are not mixed."
                " Leave one of them out."
            )
        if not path and version is not None:
            raise ConfigError(
                f"data.init_args.version: {version} is a state of one table, but train, val and"
                " test may be several. Leave it out, or set data.init_args.timestamp, which"
                " chooses a state of each."
            )
        self._state: dict[str, Any] = {
            "format": format, "version": version, "timestamp": timestamp,
            "storage_options": storage_options
        }  # fmt: skip
        self._columns: dict[str, Any] = {
            "image": image, "features": features, "label": label, "weight": weight, "split": split,
            "key": key,
            "target": target,
        }  # fmt: skip
        self._rows: dict[str, Any] = {
            "filter": filter,
            "val_fraction": val_fraction,
            "test_fraction": test_fraction,
        }
        self._tables: dict[Split | None, Snapshot] = {}
        self._index: Index | None = None
        self._classes: list[str] | None = None  # of a checkpoint
        self._training: ResumableLoader | None = None

    def setup(self, stage: str | None = None) -> None:
        """Open the table and look at labels and splits, once.

        With ``on_bad_image: error`` decode every image.

        Raises:
            ConfigError: If arguments exclude each other or fit no column.
            DataError: If the table cannot be used, or ``stage`` needs a split that is empty.
        """
        if self._index is None:
            self._index = index = self._open()
            if self.trainer is None or self.trainer.is_global_zero:
                self._warn_of_shares()
                self._warn_of_columns(index)
            self.defects = Defects(index.defects)
            self._check_defects(index.defects, index.num_bad)
        super().setup(stage)
        if stage == "fit" and self.on_bad_image == "error" and self.index.columns.image:
            make_on_rank_zero(self._check_images, self.trainer)
        if stage == "fit" and self.mean_weight == 0:
            raise DataError(
                f"{' and '.join(dict.fromkeys(self.places.values()))}: each row of the training"
                f" split has the weight 0 in column {self.index.columns.weight!r}, so that nothing"
                " is trained on. Set data.init_args.weight to another column, or leave it out."
            )
        if stage in SPLIT_OF_STAGE:
            self._refuse_missing(SPLIT_OF_STAGE[stage])

    def _open(self) -> Index:
        """Open the tables on rank 0 for all ranks, and find the split of each row."""
        trainer = self.trainer
        self._tables = make_on_rank_zero(
            lambda: {
                split: open_table(place, **self._state) for split, place in self.places.items()
            },
            trainer,
        )
        first = next(iter(self._tables.values()))
        named = dict(self._columns)
        if named["split"] == "auto":
            named["split"] = (
                "split" if None in self._tables and "split" in first.schema.names else None
            )
        columns = find_columns(first.schema, **named)
        build = cache(
            partial(index_table, self._tables, columns, classes=self._classes, **self._rows)
        )
        make_on_rank_zero(lambda: bool(build()), trainer)  # the others load what it has kept
        return build()

    def _warn_of_shares(self) -> None:
        """Warn of tables of splits that have files in common."""
        files = {
            split: {
                os.path.realpath(group.file.path) if table.is_local else group.file.path
                for group in table.groups
            }
            for split, table in self._tables.items()
        }
        for first, second in combinations(files, 2):
            if files[first] & files[second]:
                log.warning(
                    "data: data.init_args.%s and data.init_args.%s read the same rows: what is "
                    "measured there says little of other rows. Set data.init_args.path to the "
                    "table in their place, and its rows are shared out.",
                    first, second,
                )  # fmt: skip

    def _warn_of_columns(self, index: Index) -> None:
        """Warn of numbers that float32 does not tell apart, and of keys that are missing."""
        for name, (before, after) in index.rounded.items():
            log.warning(
                "data: the numbers of column %r lose their differences in float32, in which a "
                "model gets them: of %d different values %d are left. Subtract an offset from the "
                "column, such as its least value, or write it in a larger unit.",
                name, before, after,
            )  # fmt: skip
        if index.num_null_keys:
            log.warning(
                "data: %d rows have no key (null in column %r), by which the split is decided: all "
                "of them are one group, and in the same split. Fill the column, or leave them out "
                "with data.init_args.filter.",
                index.num_null_keys, index.columns.key,
            )  # fmt: skip

    def _refuse_missing(self, split: Split) -> None:
        if not self.index.counts[split]:
            raise DataError(
                f"{' and '.join(dict.fromkeys(self.places.values()))}: no row is in the {split}"
                f" split. Set data.init_args.{split} to a table of its own, name the split in the"
                " column that data.init_args.split says, or set"
                f" data.init_args.{split}_fraction above 0."
            )

    @property
    def index(self) -> Index:
        """The table's classes, and which rows are in which split; known after `setup`."""
        if self._index is None:
            self.setup()
        assert self._index is not None
        return self._index

    @property
    def are_decoded(self) -> bool:
        """Return whether the table has no images."""
        return not self.index.columns.image

    @property
    def mean_weight(self) -> float | None:
        """Mean weight of the training split's rows, over which `lightkit.models` takes weights.

        None without.
        """
        return self.index.mean_weight

    @property
    def label_counts(self) -> list[int]:
        """Number of training rows of each class, for factors of the loss."""
        return [self.index.class_counts.get(name, 0) for name in self.class_names]

    @property
    def predict_paths(self) -> Sequence[str]:
        """File and row of what `predict_dataloader` gives, in its order."""
        return RowNames(self.index, self._predict_split)

    @property
    def preprocessing(self) -> Preprocessing | None:
        """Transform of an image outside training; None for features."""
        return preprocessing_of(self.image_size) if self.index.columns.image else None

    def untransformed(self, split: Split) -> LabelledSource:
        """Return a split's images as they are, in RGB, with their labels; known after `setup`.

        Raises:
            DataError: If the table has features in place of images.
        """
        if not self.index.columns.image:
            raise DataError("The table has features, no images.")
        return TableImages(self.index, split)

    def describe(self) -> dict[str, Any]:
        """Describe the data for a run's manifest."""
        index = self.index
        tables = self._tables
        versions = {str(split): table.version for split, table in tables.items()}
        return {
            "source": self.source,
            "root": (
                self.places[None]
                if None in tables
                else {str(name): place for name, place in self.places.items()}
            ),
            "format": next(iter(tables.values())).kind,
            "version": tables[None].version if None in tables else versions,
            "fingerprint": index.fingerprint,
            "counts": index.counts,
            "left_out": index.num_bad,
            "class_names": index.class_names,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the classes that the model tells apart, and the state of the table."""
        described = self.describe()
        return {name: described[name] for name in ("class_names", "version", "fingerprint")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Count labels into the classes of the checkpoint.

        Warn if a training goes on with other rows.

        Raises:
            DataError: If the table has others.
        """
        self._classes = list(state["class_names"])
        if self._index is not None and self._index.class_names != self._classes:
            self._index = self._open()
        now = self.describe()
        trainer = self.trainer
        is_training = (
            trainer is not None and trainer.is_global_zero and trainer.state.fn == TrainerFn.FITTING
        )
        if not is_training or state.get("fingerprint") in (None, now["fingerprint"]):
            return
        log.warning(
            "data: the table is not the one that the checkpoint was trained on: it was version %s, "
            "is version %s, or what decides on its splits has changed. The training goes on with "
            "other rows, also in the rest of its epoch. data.init_args.version chooses the version "
            "of a Delta table.",
            state.get("version"), now["version"],
        )  # fmt: skip

    def predict_dataloader(self) -> DataLoader[Any]:
        """The test split if there is one, else the validation split, in stored order.

        Each row must be readable.

        Lightning divides it among the processes.
        """
        split = self._predict_split
        stored = BatchRows(
            self.index.rows(split), partial(self.index.read, split), batch_size=self.batch_size
        )
        return predict_loader(
            TableRows(stored, self._batch_maker(self._view("test"), None)), **self._loading
        )

    def _load(self, split: Split) -> ResumableLoader:
        """Make the loader of a split, of which each row is on one rank.

        That of training is shuffled.
        """
        trainer = self.trainer
        index = self.index
        is_training = split == "train"
        rank, world_size = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        loading = self._loading
        batch_size = loading.pop("batch_size")
        rows = BatchRows(
            index.rows(split), partial(index.read, split), batch_size=batch_size,
            num_replicas=world_size, rank=rank,
            seed=loading["seed"] if is_training else None,
        )  # fmt: skip
        batches = TableBatches(
            rows, self._batch_maker(self._view(split), self.defects),
            source=TableImages(index, split),
            buffer_rows=self.shuffle_buffer if is_training else batch_size,
        )  # fmt: skip
        loader = table_loader(batches, **loading)
        if is_training and self._training is None and (trainer is None or trainer.is_global_zero):
            self._warn_of_order(cast(BatchOrder, loader.sampler))
        self._training = loader if is_training else self._training
        return loader

    def _batch_maker(self, view: View, defects: Defects | None) -> BatchMaker:
        columns = self.index.columns
        are_values = columns.target == "value"
        if columns.image:
            num_bytes = 3 * math.prod(view.size)
            return BatchMaker(
                view,
                row_bytes=num_bytes,
                seed=seed_of(self),
                defects=defects,
                are_values=are_values,
            )
        return BatchMaker(
            None, row_bytes=4 * math.prod(self.index.feature_shape), are_values=are_values
        )

    @property
    def _loading(self) -> dict[str, Any]:
        # the threads of a library that reads from an object store do not live on in a fork
        is_local = all(table.is_local for table in self._tables.values())
        return {**super()._loading, "start_method": None if is_local else "spawn"}

    def _warn_of_order(self, order: BatchOrder) -> None:
        """Warn if a row group is too large to be mixed as a whole."""
        num_lanes, buffer = order.own_cut
        largest = max(num for _, num in self.index.rows("train"))
        mixed = max(1, buffer // num_lanes)
        if largest > mixed:
            shared = f", of {buffer:,} that {num_lanes} workers share" if num_lanes > 1 else ""
            log.warning(
                "data: the largest row group has %s rows to train on, and %s of them are mixed at "
                "a time%s: where rows are sorted, such as by label, so is training. Set "
                "data.init_args.shuffle_buffer to %d, which takes memory, or write the table with "
                "smaller row groups.",
                f"{largest:,}", f"{mixed:,}", shared, largest * num_lanes,
            )  # fmt: skip

    def _check_defects(self, defects: Sequence[Defect], num_bad: int) -> None:
        check_defects(
            defects, self.index.num_bad + sum(self.counts.values()), what="rows of the table",
            on_bad=self.on_bad_image, max_fraction=self.max_bad_fraction, num_bad=num_bad,
            repair="Replace or remove them, or leave them out with data.init_args.filter",
            most_shown=_NUM_SHOWN,
        )  # fmt: skip

    def _check_images(self) -> None:
        """Decode every image of every split, in threads."""

        def find_defect(row: Row) -> Defect | None:
            try:
                Encoded(row.image or b"", name=row.name).whole()
            except UnreadableImageError as error:
                return Defect(row.name, error.reason)
            return None

        index = self.index
        rows = (
            row
            for split in SPLITS
            for group, _ in index.rows(split)
            for row in index.read(split, group)
        )
        with pillow_warnings(), ThreadPoolExecutor(count_threads()) as pool:
            found = [
                defect
                for defect in map_in_order(pool, find_defect, rows, ahead=_NUM_DECODED)
                if defect
            ]
        self._check_defects(found, len(found))

    def _check_bad(self) -> None:
        if self._training is not None:
            num_rows = self.index.counts["train"]
            max_fraction = self.max_bad_fraction
            check_bad_samples(
                self.defects, num_rows, what="rows", max_fraction=max_fraction, trainer=self.trainer
            )

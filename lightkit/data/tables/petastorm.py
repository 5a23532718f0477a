"""Petastorm datasets as a Lightning data module, where petastorm works."""

from __future__ import annotations

import logging
from importlib import metadata
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from torch.utils.data import DataLoader

from lightkit.data.image_settings import seed_of, training_view_of
from lightkit.data.sampler import Position, position_of
from lightkit.data.splits import Split
from lightkit.data.tables.batches import Assembling, FeatureBatches, ImageBatches
from lightkit.data.tables.parquet import local_path
from lightkit.data.tables.snapshot import Snapshot
from lightkit.data.tables.stores import is_remote
from lightkit.data.tables.table import Table
from lightkit.data.transforms import View, preprocessing_of
from lightkit.errors import ConfigError

__all__ = ["PetastormTable"]

log = logging.getLogger("lightkit.data")

_LAST_PYARROW, _LAST_NUMPY = 14, 1
_UNEVEN = 0.1  # share of the rows that a process lacks, from which on it is said


class PetastormTable(Table):
    """Images or numbers from Petastorm datasets or other folders of Parquet, read by petastorm itself.

    It needs petastorm, whose last version (0.13.1) works with pyarrow 14 and numpy 1 at most, and so not beside a torch
    of today. `Table` reads the same files beside any, gives the same rows, shares out single rows in place of row
    groups, and has a bound on its memory: take this one only where petastorm itself is wanted.

    Rows are read with ``make_batch_reader`` and its ``BatchedDataLoader``, and come as the batches of `Table`. Row
    groups are shared out among the processes by their number, the same ones each epoch. Where a process has fewer rows
    than another, it gets blank batches of weight 0 at the end of the epoch, which count for nothing: no row is lost,
    and all have equally many batches. A training that is resumed within an epoch reads it from the start, and passes
    over what it has had. ``lightkit predict`` and the proof of an export read as `Table` does.

    Args:
        train: Folder or file of Parquet, or an address such as s3://bucket/table, to train on.
        val: Likewise, for validation.
        test: Likewise, for testing.
        storage_options: For an object store, as the classes of pyarrow.fs take them.
        image: Column of encoded images; default is `image`, where no ``features`` are given.
        features: Column of numbers or lists of them, or several, which are joined into one vector.
        label: Column of what is to be predicted; null where there is none.
        weight: Column of numbers by which the loss of a row is multiplied.
        target: Whether labels are classes or numbers to tell; `auto` takes floating point for numbers.
        image_size: Side of the square images that the model gets, in pixels.
        batch_size: Rows of one batch on one process.
        workers_count: Threads that read and decode row groups, of which up to four for each thread are in memory. With
            more than one, petastorm hands row groups over as they come, so that no run can be repeated exactly, and a
            training that is resumed within an epoch may meet rows of it twice or not at all.
        reader_pool_type: `thread`, or `dummy` to read and decode in the training process's own.
        shuffling_queue_capacity: Rows, decoded, that each process keeps in memory and mixes; 0 mixes within row groups
            only.
        shuffle_row_groups: Read the row groups in another order each epoch.
        augment: Change training images at random; false shows training what evaluation sees.
        crop_scale: Least and greatest share of an image's area that a random training crop keeps.
        color_jitter: Strength of random changes of brightness, contrast, saturation and hue in training; 0 for none.
        rand_augment: Apply RandAugment in training.
        seed: Decides order and augmentation; default is the run's seed_everything.
        on_bad_image: What to do about rows that cannot be used: `skip` leaves them out and lists them in the run
            folder, `error` decodes every image before training and ends the command with the list.
        max_bad_fraction: Share of such rows from which on it is an error in either case: of the table before training,
            and of those of an epoch at its end.
    """

    source = "petastorm"

    def __init__(
        self,
        train: str,
        val: str | None = None,
        test: str | None = None,
        storage_options: dict[str, Any] | None = None,
        image: str | None = None,
        features: str | list[str] | None = None,
        label: str | None = "label",
        weight: str | None = None,
        target: Literal["auto", "class", "value"] = "auto",
        image_size: int = 224,
        batch_size: int = 32,
        workers_count: int = 1,
        reader_pool_type: Literal["thread", "dummy"] = "thread",
        shuffling_queue_capacity: int = 1024,
        shuffle_row_groups: bool = True,
        augment: bool = True,
        crop_scale: tuple[float, float] = (0.35, 1.0),
        color_jitter: float = 0.0,
        rand_augment: bool = False,
        seed: int | None = None,
        on_bad_image: Literal["skip", "error"] = "skip",
        max_bad_fraction: float = 0.05,
    ) -> None:
        self.check_installed()
        super().__init__(
            train=train, val=val, test=test, storage_options=storage_options, image=image, features=features,
            label=label, weight=weight, split=None, val_fraction=0, test_fraction=0, target=target,
            image_size=image_size, batch_size=batch_size, num_workers=0, augment=augment, crop_scale=crop_scale,
            color_jitter=color_jitter, rand_augment=rand_augment, seed=seed, on_bad_image=on_bad_image,
            max_bad_fraction=max_bad_fraction,
        )  # fmt: skip
        _refuse_below(workers_count=(workers_count, 1), shuffling_queue_capacity=(shuffling_queue_capacity, 0))
        for split, place in self.asked.places.items():
            if not is_remote(place) and (local_path(place) / "_delta_log").is_dir():
                raise _is_delta(split, place)
        self.workers_count = workers_count
        self.reader_pool_type = reader_pool_type
        self.shuffling_queue_capacity = shuffling_queue_capacity
        self.shuffle_row_groups = shuffle_row_groups
        self._loaders: list[Any] = []

    @classmethod
    def check_installed(cls) -> None:
        """Refuse at once where petastorm does not work; `lightkit check` asks as well.

        Raises:
            ConfigError: If it is not installed, or another package is too new for it.
        """
        versions = {"petastorm": _installed_version("petastorm"), "pyarrow": pa.__version__, "numpy": np.__version__}
        fits = versions["petastorm"] and _major(pa.__version__) <= _LAST_PYARROW
        if fits and _major(np.__version__) <= _LAST_NUMPY:
            return
        found = ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items())
        raise ConfigError(
            f"data.class_path: PetastormTable needs petastorm, whose last version, 0.13.1, works with pyarrow "
            f"{_LAST_PYARROW} and numpy {_LAST_NUMPY} at most; found {found}. Take lightkit.data.Table, which reads "
            f"the same Parquet files, or an environment of its own: "
            f"pip install --constraint constraints-tpu.txt 'lightkit[petastorm]'."
        )

    def setup(self, stage: str | None = None) -> None:
        """Open the tables and look at their labels, once, as `Table` does.

        Raises:
            ConfigError: If one is a Delta table.
            DataError: If one cannot be used, or ``stage`` needs one that is not given.
        """
        super().setup(stage)
        for split, table in self._known.tables.items():
            if table.kind == "delta":
                raise _is_delta(split, table.place)

    def train_dataloader(self) -> Any:
        """Shuffled batches, augmented unless asked not to; after a restored checkpoint, the rest of its epoch first."""
        view = training_view_of(self, preprocessing_of(self.image_size))
        loader = self._petastorm_loader("train", view, for_training=True)
        loader.before_epoch = self._refuse_bad_epoch
        self._training = loader
        return loader

    def teardown(self, stage: str) -> None:
        """End the readers' threads; refuse a fit whose last epoch lacked too many rows.

        Raises:
            DataError: If they are more than ``max_bad_fraction``.
        """
        for loader in self._loaders:
            loader.close()
        self._loaders = []
        super().teardown(stage)

    def _evaluation(self, split: Split) -> DataLoader[Any]:
        loader: DataLoader[Any] = self._petastorm_loader(split, self._centre, for_training=False)
        return loader

    def _petastorm_loader(self, split: Split, view: View, *, for_training: bool) -> Any:
        # petastorm is an extra
        from lightkit.data.tables.petastorm_loader import PetastormLoader
        from lightkit.data.tables.petastorm_reading import ShardedReading, shares_of

        trainer = self.trainer
        rank, num_ranks = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        table: Snapshot = self._known.tables[split]
        reading = ShardedReading(
            table, self.index, self._assembling(view), rank, num_ranks,
            pool=self.reader_pool_type, num_threads=self.workers_count,
            seed=seed_of(self) if for_training else None, shuffle_row_groups=self.shuffle_row_groups,
        )  # fmt: skip
        shares = shares_of(table, self.index, split, num_ranks=num_ranks)
        if for_training:
            self._warn_of_uneven_shares([sum(share) for share in shares])
        loader = PetastormLoader(
            reading, shares, batch_size=self.batch_size,
            capacity=self.shuffling_queue_capacity if for_training else 0,
            start=position_of(trainer) if for_training else Position(0, 0),
        )  # fmt: skip
        self._loaders.append(loader)
        return loader

    def _warn_of_uneven_shares(self, shares: list[int]) -> None:
        if self.trainer is None or not self.trainer.is_global_zero or min(shares) >= (1 - _UNEVEN) * max(shares):
            return
        log.warning(
            "data: petastorm shares out whole row groups: the processes have from %d to %d rows. Those with fewer get "
            "blank batches of weight 0 for the rest of each epoch. lightkit.data.Table shares out rows.",
            min(shares), max(shares),
        )  # fmt: skip

    def _assembling(self, view: View) -> Assembling:
        are_values = self.index.columns.target == "value"
        if self.index.columns.image:
            return ImageBatches(view, seed=seed_of(self), defects=self.defects, are_values=are_values)
        return FeatureBatches(self.index.feature_shape, are_values=are_values)


def _installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def _refuse_below(**given: tuple[int, int]) -> None:
    for name, (value, least) in given.items():
        if value < least:
            raise ConfigError(f"data.init_args.{name}: expected {least} or more, got {value}.")


def _is_delta(split: str | None, place: str) -> ConfigError:
    return ConfigError(
        f"data.init_args.{split}: {place} is a Delta table, of which petastorm would read deleted and replaced files "
        "as well. Set data.class_path to lightkit.data.Table, which reads its log."
    )

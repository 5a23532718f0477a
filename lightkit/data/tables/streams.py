"""The loaders over an opened table."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from pytorch_lightning import Trainer
from torch.utils.data import DataLoader

from lightkit.data.loader import Pinning, eval_loader, predict_loader
from lightkit.data.skipped_samples import Defects
from lightkit.data.splits import Split
from lightkit.data.tables.batches import Assembling, FeatureBatches, ImageBatches, TableBatches, TableRows
from lightkit.data.tables.blocks import BatchRows
from lightkit.data.tables.index import Index
from lightkit.data.tables.loader import TableLoader, table_loader
from lightkit.data.tables.rows import Row
from lightkit.data.tables.snapshot import RowGroup
from lightkit.data.tables.split_rows import SplitReader
from lightkit.data.transforms import View

__all__ = ["Streams"]

log = logging.getLogger("lightkit.data")


@dataclass(frozen=True)
class Streams:
    """Makes loaders over a table.

    Args:
        index: Which rows are in which split.
        is_local: Whether processes that were forked may read it.
        batch_size: Rows of one batch on one rank.
        num_workers: Processes that load.
        prefetch_factor: Batches that each of them prepares ahead.
        seed: Of order and augmentation.
        trainer: Knows the ranks and the position; without one there is only this process.
        persistent_workers: Keep the workers from epoch to epoch.
        pin_memory: See `pins`.
    """

    index: Index
    is_local: bool
    batch_size: int
    num_workers: int
    prefetch_factor: int
    seed: int
    trainer: Trainer | None
    persistent_workers: bool = True
    pin_memory: Pinning = "auto"

    @property
    def _start_method(self) -> str | None:
        # the threads of a library that reads from an object store do not live on in a fork
        return None if self.is_local or not self.num_workers else "spawn"

    def training(self, view: View, *, shuffle_buffer: int, defects: Defects) -> TableLoader:
        """Give the training split in another order in each epoch, from the trainer's position on."""
        rows = self._share("train", seed=self.seed)
        return self._table_loader(rows, self._assembling(view, defects), shuffle_buffer, for_training=True)

    def evaluation(self, split: Split, view: View, *, defects: Defects) -> DataLoader[Any]:
        """Give a split in stored order; among several ranks each row is on one of them."""
        assemble = self._assembling(view, defects)
        if self.trainer is not None and self.trainer.world_size > 1:
            return self._table_loader(self._share(split, seed=None), assemble, self.batch_size, for_training=False)
        return self._started_alike(eval_loader(TableRows(self.stored(split), assemble), **self._loading))

    def prediction(self, split: Split, view: View) -> DataLoader[Any]:
        """Give a split in stored order, all of it: Lightning shares it out. A row that cannot be read is an error."""
        rows = TableRows(self.stored(split), self._assembling(view, None))
        return self._started_alike(predict_loader(rows, **self._loading))

    def stored(self, split: Split) -> BatchRows[RowGroup, Row]:
        """Give what reads any row of a split."""
        return BatchRows(self.index.rows(split), SplitReader(self.index, split), batch_size=self.batch_size)

    def _share(self, split: Split, *, seed: int | None) -> BatchRows[RowGroup, Row]:
        """Give what reads this rank's rows."""
        rank, world_size = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        return BatchRows(
            self.index.rows(split),
            SplitReader(self.index, split),
            batch_size=self.batch_size,
            num_replicas=world_size,
            rank=rank,
            seed=seed,
        )

    def _table_loader(
        self, rows: BatchRows[RowGroup, Row], assemble: Assembling, buffer_rows: int, *, for_training: bool
    ) -> TableLoader:
        return table_loader(
            TableBatches(rows, assemble, buffer_rows=buffer_rows),
            seed=self.seed,
            shuffle_buffer=buffer_rows,
            for_training=for_training,
            trainer=self.trainer,
            num_workers=self.num_workers,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers,
            pin_memory=self.pin_memory,
            start_method=self._start_method,
        )

    def _assembling(self, view: View, defects: Defects | None) -> Assembling:
        are_values = self.index.columns.target == "value"
        if self.index.columns.image:
            return ImageBatches(view, seed=self.seed, defects=defects, are_values=are_values)
        return FeatureBatches(self.index.feature_shape, are_values=are_values)

    @property
    def _loading(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "seed": self.seed,
            "trainer": self.trainer,
            "num_workers": self.num_workers,
            "prefetch_factor": self.prefetch_factor,
            "persistent_workers": self.persistent_workers,
            "pin_memory": self.pin_memory,
        }

    def _started_alike(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        if loader.num_workers and self._start_method:
            loader.multiprocessing_context = self._start_method
        return loader

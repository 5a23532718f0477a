"""What is told where a table is shared out otherwise than people may expect; by one process, once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pytorch_lightning import Trainer
from pytorch_lightning.trainer.states import TrainerFn

from lightkit.data.tables.index import Index
from lightkit.data.tables.loader import BatchOrder
from lightkit.data.tables.opened import Opened

__all__ = ["warn_of_order", "warn_of_other_rows", "warn_of_shares"]

log = logging.getLogger("lightkit.data")


def warn_of_order(index: Index, order: BatchOrder, *, trainer: Trainer | None) -> None:
    """Say so where the row groups of the training split are too few to be shared out, or too large to be mixed."""
    _warn_of_few_row_groups(index, trainer=trainer)
    _warn_of_neighbours(index, order, trainer=trainer)


def _warn_of_few_row_groups(index: Index, *, trainer: Trainer | None) -> None:
    """Say so where several processes read the same row group."""
    num, ranks = len(index.rows("train")), trainer.world_size if trainer else 1
    if trainer is None or num >= ranks or not trainer.is_global_zero:
        return
    log.warning(
        "data: the training split has %d row group%s for %d processes, so that several read the same one, each "
        "its part. Write the table with %d or more, such as by `lightkit convert --partitions %d`.",
        num, "s" if num > 1 else "", ranks, ranks, ranks,
    )  # fmt: skip


def _warn_of_neighbours(index: Index, order: BatchOrder, *, trainer: Trainer | None) -> None:
    """Say so where less is mixed than a row group holds, so that rows that are stored together stay so in training."""
    largest, mixed = max(num for _, num in index.rows("train")), order.mixed_rows
    if largest <= mixed or (trainer is not None and not trainer.is_global_zero):
        return
    shared = f", of {order.buffer_rows:,} that {order.num_lanes} workers share" if order.num_lanes > 1 else ""
    log.warning(
        "data: the largest row group has %s rows to train on, and %s of them are mixed at a time%s: where rows are "
        "sorted, such as by label, so is training. Set data.init_args.shuffle_buffer to %d, which takes memory, or "
        "write the table with smaller row groups.",
        f"{largest:,}", f"{mixed:,}", shared, largest * order.num_lanes,
    )  # fmt: skip


def warn_of_shares(opened: Opened, *, trainer: Trainer | None) -> None:
    """Say so where tables that are given for several splits have rows in common, and where a hash shared out oddly."""
    if trainer is not None and not trainer.is_global_zero:
        return
    for first, second in opened.shared_splits:
        log.warning(
            "data: data.init_args.%s and data.init_args.%s read the same rows: what is measured there says little of "
            "other rows. Set data.init_args.path to the table in their place, and its rows are shared out.",
            first, second,
        )  # fmt: skip
    for note in opened.index.notes:
        log.warning("data: %s", note)


def warn_of_other_rows(before: Mapping[str, Any], now: Mapping[str, Any], *, trainer: Trainer | None) -> None:
    """Say so where a training goes on with other rows than those of its checkpoint.

    Args:
        before: Version and fingerprint of the checkpoint's table.
        now: Those of this one.
        trainer: Whether it trains, and knows the ranks; other data may well be measured on, or predicted.
    """
    is_training = trainer is not None and trainer.is_global_zero and trainer.state.fn == TrainerFn.FITTING
    if not is_training or before.get("fingerprint") in (None, now["fingerprint"]):
        return
    versions = before.get("version"), now["version"]
    what, remedy = "its rows, or what decides on their splits, have changed", "Train on the rows of before"
    if versions[0] != versions[1]:
        what = f"it was version {versions[0]}, and is version {versions[1]}"
        if isinstance(versions[0], int):
            remedy = f"Set data.init_args.version={versions[0]}"
    log.warning(
        "data: the table is not the one that the checkpoint was trained on: %s. The training goes on with other rows, "
        "also in the rest of its epoch. %s to go on as it would have.",
        what, remedy,
    )  # fmt: skip

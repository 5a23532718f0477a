"""Rows that cannot be used where that is an error: decoded before training, or counted in its epochs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from pytorch_lightning import Trainer

from lightkit.data.image_sources import Encoded
from lightkit.data.loader import refuse_left_out
from lightkit.data.skipped_samples import Defect
from lightkit.data.tables.index import Index
from lightkit.data.tables.loader import TableLoader
from lightkit.data.tables.rows import Row
from lightkit.data.tables.scan import SPLITS
from lightkit.errors import DataError
from lightkit.hardware.processor import num_cores
from lightkit.images.reading import UnreadableImageError, pillow_warnings

__all__ = ["refuse_bad_epoch", "refuse_undecodable"]

_NUM_SHOWN = 20
_IN_FLIGHT = 64  # rows that are decoded at once at most


def refuse_bad_epoch(loader: TableLoader, *, max_fraction: float, trainer: Trainer | None) -> None:
    """Refuse to go on after an epoch that lacked too many rows, all ranks together, and count from 0 again.

    Args:
        loader: Has counted.
        max_fraction: Share of the rows that may be lacking.
        trainer: Knows the ranks.

    Raises:
        DataError: If more are.
    """
    refuse_left_out([loader], what="rows", max_fraction=max_fraction, trainer=trainer)


def refuse_undecodable(index: Index, *, trainer: Trainer | None) -> None:
    """Decode every image of every split; the ranks share the row groups out.

    Raises:
        DataError: If there are images that cannot be decoded; it lists them.
    """
    rank, world_size = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
    found: list[Defect] = []
    failure: DataError | None = None
    try:
        found = list(_undecodable(index, rank=rank, world_size=world_size))
    except DataError as error:  # the other ranks wait to hear of it
        failure = error
    if trainer is not None and world_size > 1:
        mine = (found, failure)
        of_ranks = [trainer.strategy.broadcast(mine, src=other) for other in range(world_size)]
        found = [defect for theirs, _ in of_ranks for defect in theirs]
        failure = next((error for _, error in of_ranks if error is not None), None)
    if failure is not None:
        raise failure
    if found:
        shown = [f"  {defect.name}: {defect.reason}" for defect in found[:_NUM_SHOWN]]
        more = [f"  and {len(found) - _NUM_SHOWN} more"] if len(found) > _NUM_SHOWN else []
        raise DataError(
            f"{len(found)} rows of the table have an image that cannot be decoded, and data.init_args.on_bad_image is "
            "error. Replace or remove them:\n" + "\n".join(shown + more)
        )


def _undecodable(index: Index, *, rank: int, world_size: int) -> Iterator[Defect]:
    rows = (
        row
        for split in SPLITS
        for group, _ in index.rows(split)[rank::world_size]
        for row in index.select(group, split)
    )
    # decoding lets other threads run meanwhile
    with pillow_warnings(), ThreadPoolExecutor(max_workers=num_cores() or 1) as pool:
        while some := list(islice(rows, _IN_FLIGHT)):
            yield from (defect for defect in pool.map(_defect_of, some) if defect is not None)


def _defect_of(row: Row) -> Defect | None:
    try:
        Encoded(row.image or b"", name=row.place).whole()
    except UnreadableImageError as error:
        return Defect(row.place, error.reason)
    return None

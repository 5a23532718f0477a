"""Ranks that do not have equally many batches: training ends its epoch together, evaluation counts every sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning_fabric.utilities.data import has_iterable_dataset, sized_len
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightkit.distributed.collectives import Collectives
from lightkit.errors import DataError

_KNOWN = ("torch.", "pytorch_lightning.", "lightning_fabric.", "lightkit.")
_END = object()


class AgreedLoader:
    """Gives a batch only where every rank has one, so that no rank waits for gradients that never come.

    Args:
        loader: This rank's own loader; its attributes are this one's too.
        collectives: For the agreement before each batch.
        length: Number of batches that all ranks have, where all know it.
    """

    def __init__(self, loader: Any, collectives: Collectives, *, length: int | None) -> None:
        self._loader, self._collectives, self._length = loader, collectives, length

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError(f"{type(self._loader).__name__} has no length on each rank")
        return self._length

    def __iter__(self) -> Iterator[Any]:
        batches, num_batches = iter(self._loader), 0
        while True:
            batch = next(batches, _END)
            if not self._collectives.agree(batch is not _END, what="agreement that all ranks have a batch"):
                self._warn_of_a_rest(batch is not _END, num_batches)
                return
            num_batches += 1
            yield batch

    def _warn_of_a_rest(self, has_batch: bool, num_batches: int) -> None:
        if self._collectives.agree(has_batch, everyone=False, what="agreement that no rank has a batch left"):
            rank_zero_warn(
                f"a rank has run out of batches after {num_batches}: the epoch ends there for all, and the further "
                "batches of the others are left out. Give all ranks equally many samples."
            )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":  # copying asks before there is a loader
            raise AttributeError(name)
        return getattr(self._loader, name)


def even_training(loader: Any, collectives: Collectives) -> Any:
    """Give the loader itself where its length is known to be that of all ranks, else one that ends for all at once.

    Raises:
        DataError: If a rank has no batches at all.
    """
    lengths, are_fixed = _lengths(loader, collectives, what="training")
    if are_fixed and len(set(lengths)) == 1:
        return loader
    known = [length for length in lengths if length is not None]
    length = min(known) if len(known) == len(lengths) else None
    if length is not None and len(set(known)) > 1:
        rank_zero_warn(f"the ranks have {lengths} training batches: an epoch ends for all of them after {length}.")
    return AgreedLoader(loader, collectives, length=length)


def is_uneven(loader: Any, collectives: Collectives) -> bool:
    """Say whether ranks may have unlike numbers of batches to evaluate, so that each sample counts but no rank waits.

    Raises:
        DataError: If a rank has no batches at all: Lightning would not even begin to evaluate there.
    """
    lengths, are_fixed = _lengths(loader, collectives, what="evaluation")
    return not are_fixed or len(set(lengths)) > 1


def _lengths(loader: Any, collectives: Collectives, *, what: str) -> tuple[list[int | None], bool]:
    """Give each rank's number of batches where it is known, and whether those are what each epoch will have."""
    own = None if has_iterable_dataset(loader) else sized_len(loader)
    facts = collectives.gather_objects((own, own is not None and _has_fixed_length(loader)))
    lengths = [length for length, _ in facts]
    empty = [rank for rank, length in enumerate(lengths) if length == 0]
    if empty and len(empty) < len(lengths):
        raise DataError(
            f"of {lengths} {what} batches by rank, rank {', '.join(map(str, empty))} has none. Use fewer ranks, "
            "smaller batches or more samples."
        )
    return lengths, all(is_fixed for _, is_fixed in facts)


def _has_fixed_length(loader: Any) -> bool:
    """Say whether the loader's length is what it gives in every epoch; somebody's own sampler may vary it."""
    samplers = (getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    return all(sampler is None or type(sampler).__module__.startswith(_KNOWN) for sampler in samplers)

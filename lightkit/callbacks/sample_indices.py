"""Which samples of the training split a batch is made of, as far as anybody can tell."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import DataLoader, IterableDataset

__all__ = ["BatchIndices", "KnownOrder", "NamedSource"]

_NUM_KEPT = 1024  # batches: more than any loader prepares ahead


@runtime_checkable
class KnownOrder(Protocol):
    """A sampler that can tell at any time which samples a batch has."""

    def indices_of(self, *, epoch: int, batch: int) -> list[int]:
        """Give the indices, in the split, of the samples of a batch of this process."""


@runtime_checkable
class NamedSource(Protocol):
    """Samples that people know by a name."""

    def name(self, index: int, /) -> str:
        """Give the name of a sample."""


class BatchIndices:
    """Keeps, for anybody's loader, the indices that its batch sampler has given for the newest batches."""

    def __init__(self) -> None:
        self._loader: object = None
        self._kept: deque[tuple[int, list[int]]] = deque(maxlen=_NUM_KEPT)

    def watch(self, loader: object) -> object:
        """Give the loader back, noting what its batch sampler will give from now on."""
        self._loader = loader
        self._kept.clear()
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            return loader
        if loader.batch_sampler is not None and not isinstance(loader.sampler, KnownOrder):
            # torch lets nobody exchange the batch sampler of a loader, because it would not take back what it derived
            # from it; this one gives the same batches.
            vars(loader)["batch_sampler"] = _Noted(loader.batch_sampler, self._kept)
        return loader

    def of(self, *, epoch: int, batch: int) -> list[int] | None:
        """Give the indices of a batch's samples in the split; None where nobody knows them.

        Args:
            epoch: From 0.
            batch: Its number in the epoch, from 0.
        """
        sampler = getattr(self._loader, "sampler", None)
        if isinstance(sampler, KnownOrder):
            return sampler.indices_of(epoch=epoch, batch=batch)
        found = (indices for number, indices in reversed(self._kept) if number == batch)  # the newest is this epoch's
        indices = next(found, None)
        return indices if indices is not None and all(isinstance(index, int) for index in indices) else None

    def names(self, indices: list[int] | None) -> list[str] | None:
        """Give what people know the samples by, such as paths of files; None where the data does not tell."""
        source = getattr(getattr(self._loader, "dataset", None), "source", None)
        if indices is None or not isinstance(source, NamedSource):
            return None
        return [source.name(index) for index in indices]


class _Noted:
    """A batch sampler that writes down what it gives; in all else it is the one that it stands for."""

    def __init__(self, sampler: Any, kept: deque[tuple[int, list[int]]]) -> None:
        self._sampler, self._kept_here = sampler, kept

    def __iter__(self) -> Iterator[Any]:
        for number, indices in enumerate(self._sampler):
            if isinstance(indices, list):
                self._kept_here.append((number, indices))
            yield indices

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of a copy or a pickle under way
            raise AttributeError(name)
        return getattr(self._sampler, name)

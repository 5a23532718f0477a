"""How long the eager model takes, measured as the fresh process measures a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from lightkit.export.fresh.run import measure
from lightkit.export.parity import Batch
from lightkit.export.process import TIMED
from lightkit.export.reference import Reference

__all__ = ["eager_latency", "num_threads"]


def num_threads() -> int:
    """Number of threads that eager and exported model are given alike."""
    return torch.get_num_threads()


def eager_latency(reference: Reference, *, threads: int) -> dict[int, Mapping[str, float]]:
    """Time the eager model at batch 1 and 32, while no other process of the export runs.

    Returns:
        By batch size: ``median_s``, ``p95_s``, ``repetitions``; see `measure`.
    """
    with _limited(threads):
        return {size: measure(partial(reference.timed, _copied(reference.batches[size][0]))) for size in TIMED}


def _copied(batch: Batch) -> Batch:
    """Give one whose inputs a forward may change; a copy at each call would be timed too."""
    return replace(batch, inputs=[array.copy() for array in batch.inputs])


@contextmanager
def _limited(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)

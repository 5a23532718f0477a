"""Metrics of torchmetrics that ask Horovod for the other ranks, whether in a module, in a list or in a callback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchmetrics import Metric
from torchmetrics.metric import jit_distributed_available
from torchmetrics.utilities.distributed import gather_all_tensors

from lightkit.distributed.collectives import Collectives

__all__ = ["begin_syncing", "end_syncing"]

_sync = Metric.sync
_living: list[Collectives] = []


def begin_syncing(collectives: Collectives) -> None:
    """Make metrics that would ask torch.distributed ask these collectives, until `end_syncing`.

    The method of the class is replaced, because a metric holds on to torchmetrics' question from the moment it is made.
    Metrics with a ``distributed_available_fn`` or a ``dist_sync_fn`` of their own keep theirs.
    """
    if collectives not in _living:
        _living.append(collectives)
    Metric.sync = _sync_over_horovod  # type: ignore[assignment, method-assign]


def end_syncing(collectives: Collectives) -> None:
    """Give the metrics back to torch.distributed."""
    if collectives in _living:
        _living.remove(collectives)
    if not _living:
        Metric.sync = _sync  # type: ignore[method-assign]


def _sync_over_horovod(
    metric: Metric,
    dist_sync_fn: Callable[..., Any] | None = None,
    process_group: Any = None,
    should_sync: bool = True,
    distributed_available: Callable[[], bool] | None = None,
) -> None:
    available = distributed_available or metric.distributed_available_fn
    if available is jit_distributed_available and not jit_distributed_available():
        available = _living[-1].available
        if dist_sync_fn in (None, gather_all_tensors):
            dist_sync_fn = _living[-1].gather_states
    _sync(metric, dist_sync_fn, process_group, should_sync, available)

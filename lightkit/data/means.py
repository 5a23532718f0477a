"""Means that Lightning takes over ranks, exact where the ranks have unlike numbers of samples."""

from __future__ import annotations

from functools import wraps

from pytorch_lightning.trainer.connectors.logger_connector.result import _ResultMetric
from torch import Tensor

__all__ = ["count_in_fractions"]


def count_in_fractions() -> None:
    """Let ``self.log(..., sync_dist=True)`` divide by the mean number of samples a rank, not by its whole part.

    Lightning (2.6.6, its issue 21859) counts in integers, so that of 27 samples on two ranks it divides the mean of the
    sums by 13 instead of by 13.5. It holds for metrics made from now on, in this process.
    """
    before = _ResultMetric.compute
    if getattr(before, "counts_in_fractions", False):
        return

    @wraps(before)
    def compute(metric: _ResultMetric) -> Tensor:
        if metric.is_tensor and metric.meta.is_mean_reduction:
            metric.cumulated_batch_size = metric.cumulated_batch_size.float()
        return before(metric)

    compute.counts_in_fractions = True  # type: ignore[attr-defined]
    _ResultMetric.compute = compute  # type: ignore[assignment, method-assign]

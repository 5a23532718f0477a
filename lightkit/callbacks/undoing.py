"""What a batch that is left out has changed beside the gradients, and how it is taken back."""

from __future__ import annotations

import copy
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from torch import Tensor
from torchmetrics import Metric

__all__ = ["Snapshot"]


class Snapshot:
    """Statistics of layers and counts of metrics before a batch: a NaN in them would stay for ever.

    Layers such as BatchNorm keep running statistics in buffers; metrics keep sums.

    Args:
        trainer: Its running means of what was logged are kept.
        module: Its buffers and its metrics are kept.
    """

    def __init__(self, trainer: Trainer, module: LightningModule) -> None:
        self._metrics = [metric for metric in module.modules() if isinstance(metric, Metric)]
        self._buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
        self._before = [torch.empty_like(buffer) for buffer in self._buffers]
        self._trainer = trainer
        self._states: list[dict[str, Any] | None] = []
        self._logged: dict[str, dict[str, Any]] = {}

    @torch.no_grad()
    def take(self) -> None:
        """Keep what is there now."""
        if self._buffers:
            torch._foreach_copy_(self._before, self._buffers)
        self._states = [_state(metric) if metric.update_called else None for metric in self._metrics]
        # Lightning 2.6 replaces these tensors with each value that is logged, and never changes one
        self._logged = {key: dict(vars(result)) for key, result in _results(self._trainer).items()}

    @torch.no_grad()
    def restore(self) -> None:
        """Put it back."""
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._before)
        for metric, state in zip(self._metrics, self._states, strict=True):
            if state is None:
                metric.reset()
            else:
                _put_back(metric, state)
        results = _results(self._trainer)
        for key in list(results):
            if key not in self._logged:
                del results[key]
            else:
                vars(results[key]).update(self._logged[key])


def _results(trainer: Trainer) -> Any:
    return trainer.fit_loop.epoch_loop._results


def _state(metric: Metric) -> dict[str, Any]:
    """Give the tensors of a metric's state, and of those that are lists the length: entries are added, not changed."""
    state: dict[str, Any] = {"": (metric._update_count, metric._computed)}
    for name in metric._defaults:
        value = getattr(metric, name)
        state[name] = value.clone() if isinstance(value, Tensor) else len(value)
    return state


def _put_back(metric: Metric, state: dict[str, Any]) -> None:
    metric._update_count, metric._computed = state[""]
    for name in metric._defaults:
        kept, value = state[name], getattr(metric, name)
        setattr(metric, name, kept if isinstance(kept, Tensor) else copy.copy(value)[:kept])

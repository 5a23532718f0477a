"""The private ways of Lightning 2.6 that `LeanSteps` makes shorter; apart, so that another version is never asked.

Of the process only two functions change, once and for good, and they do what Lightning's do for each trainer that has
no `_NoProfiler`. All else belongs to one trainer and is put back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytorch_lightning
import torch
from lightning_fabric.utilities.apply_func import convert_tensors_to_scalars
from pytorch_lightning import Callback, LightningModule
from pytorch_lightning.core.hooks import DataHooks
from pytorch_lightning.profilers import PassThroughProfiler
from pytorch_lightning.strategies import Strategy
from pytorch_lightning.trainer import call
from pytorch_lightning.trainer.connectors.logger_connector.logger_connector import _LoggerConnector
from pytorch_lightning.trainer.connectors.logger_connector.result import _METRICS, _ResultCollection, _ResultMetric
from torch import Tensor

__all__ = ["Lean"]

_OF_TRAINING = (
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
)
_OF_OTHERS = tuple(f"on_{stage}_batch_{end}" for stage in ("validation", "test", "predict") for end in ("start", "end"))
_OF_TRANSFER = ("transfer_batch_to_device", "on_after_batch_transfer")
_NOTHING: AbstractContextManager[None] = nullcontext()
_to_callbacks, _to_module = call._call_callback_hooks, call._call_lightning_module_hook


def _lightnings(owner: Any, names: Sequence[str]) -> dict[str, Any]:
    """Give those functions of a class that are still Lightning's own."""
    folder = str(Path(pytorch_lightning.__file__).parent)
    found = {name: getattr(owner, name) for name in names}
    return {name: each for name, each in found.items() if each.__code__.co_filename.startswith(folder)}


_EMPTY = _lightnings(Callback, _OF_TRAINING + _OF_OTHERS)
_EMPTY_OF_MODEL = _lightnings(LightningModule, _OF_TRAINING + _OF_OTHERS)
_TRANSFER = _lightnings(DataHooks, _OF_TRANSFER)
_HANDLER = _lightnings(LightningModule, ["_apply_batch_transfer_handler"])
_MOVE = _lightnings(Strategy, ["batch_to_device"])


class Lean:
    """What is changed of one trainer, until it is put back.

    Args:
        trainer: The trainer, in its setup.
    """

    def __init__(self, trainer: Any) -> None:
        _take_the_place_of_dispatch()
        self._trainer, self._connector, self._strategy = trainer, trainer._logger_connector, trainer.strategy
        self._profiler = trainer.profiler
        if type(self._profiler) is PassThroughProfiler:
            trainer.profiler = _NoProfiler(self.restore)
        self._batch_to_device: Callable[..., Any] | None = None
        if _is_own(self._strategy, _MOVE):
            self._batch_to_device = self._strategy.batch_to_device = _kept_on_cpu(self._strategy, trainer)
        epochs = trainer.fit_loop.epoch_loop
        loops = (epochs, epochs.val_loop, trainer.validate_loop, trainer.test_loop)
        self._results = [loop._results for loop in loops if type(loop._results) is _ResultCollection]
        if type(self._connector) is not _LoggerConnector:
            self._results = []
            return
        self._connector.__class__ = _LazyConnector
        for results in self._results:
            _change(results, _LazyResults, _LazyMetric)

    def restore(self) -> None:
        """Put all back that is still as it was made here."""
        if type(self._trainer.profiler) is _NoProfiler:
            self._trainer.profiler = self._profiler
        if self._batch_to_device is not None and vars(self._strategy).get("batch_to_device") is self._batch_to_device:
            del self._strategy.batch_to_device
        for results in self._results:
            _change(results, _ResultCollection, _ResultMetric)
        if type(self._connector) is _LazyConnector:
            setattr(self._connector, "__class__", _LoggerConnector)  # noqa: B010 (mypy takes it for the lazy one)
            _read_for_bars_if_possible(self._connector)


class _NoProfiler(PassThroughProfiler):
    """Measures nothing, without a generator for each of the actions of a step; marks a trainer whose steps are lean."""

    def __init__(self, restore: Callable[[], None]) -> None:
        super().__init__()
        self.restore = restore

    def profile(self, action_name: str) -> AbstractContextManager[Any]:  # type: ignore[override]
        """Give a context that does nothing."""
        return _NOTHING


@cache
def _take_the_place_of_dispatch() -> None:
    call._call_callback_hooks = _call_callback_hooks
    call._call_lightning_module_hook = _call_lightning_module_hook


def _call_callback_hooks(trainer: Any, hook_name: str, *args: Any, **kwargs: Any) -> None:
    """Call a hook of all callbacks that do not have Lightning's empty one."""
    profiler = trainer.profiler
    if type(profiler) is not _NoProfiler:
        return _to_callbacks(trainer, hook_name, *args, **kwargs)
    if hook_name == "on_exception":
        profiler.restore()  # here, since the hook of another callback may raise
    empty, module = _EMPTY.get(hook_name), trainer.lightning_module
    if empty is None or module is None or "monitoring_callbacks" in kwargs or call.log.isEnabledFor(logging.DEBUG):
        return _to_callbacks(trainer, hook_name, *args, **kwargs)
    held = vars(module)  # torch's way to set an attribute of a module takes as long as a hook
    before, held["_current_fx_name"] = held["_current_fx_name"], hook_name
    for callback in trainer.callbacks:
        hook = getattr(callback, hook_name)
        if getattr(hook, "__func__", None) is not empty and callable(hook):
            hook(trainer, trainer.lightning_module, *args, **kwargs)
    held["_current_fx_name"] = before
    return None


def _call_lightning_module_hook(
    trainer: Any, hook_name: str, *args: Any, pl_module: LightningModule | None = None, **kwargs: Any
) -> Any:
    """Call a hook of the model that is not Lightning's empty one."""
    empty = _EMPTY_OF_MODEL.get(hook_name)
    if empty is not None and type(trainer.profiler) is _NoProfiler and not call.log.isEnabledFor(logging.DEBUG):
        module = trainer.lightning_module if pl_module is None else pl_module
        if getattr(getattr(module, hook_name, None), "__func__", None) is empty:
            return None
    return _to_module(trainer, hook_name, *args, pl_module=pl_module, **kwargs)


def _is_own(owner: Any, functions: dict[str, Any]) -> bool:
    """Whether these methods of an object are Lightning's at this moment."""
    own = [getattr(getattr(owner, name), "__func__", None) is each for name, each in functions.items()]
    return bool(own) and all(own)


def _kept_on_cpu(strategy: Any, trainer: Any) -> Callable[..., Any]:
    """Give a way to the device that leaves a batch which nobody changes on its way where it is: on the CPU."""

    def is_plain() -> bool:  # asked with each batch: hooks can be given to a model at any time
        module, data = strategy.lightning_module, trainer.datamodule
        is_of_model = module is not None and _is_own(module, _TRANSFER) and _is_own(module, _HANDLER)
        return is_of_model and (data is None or _is_own(data, _TRANSFER))

    def batch_to_device(batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        is_there = device is None and strategy.root_device.type == "cpu" and _is_of_cpu_tensors(batch)
        if is_there and is_plain():
            return type(batch)(batch)  # a model may put something else into its list
        return type(strategy).batch_to_device(strategy, batch, device, dataloader_idx)

    return batch_to_device


def _is_of_cpu_tensors(batch: Any) -> bool:
    return type(batch) in (list, tuple) and all(type(part) is Tensor and part.device.type == "cpu" for part in batch)


class _LazyMetric(_ResultMetric):
    """Moves to another device only, and is not copied where it is there."""

    def to(self, *args: Any, **kwargs: Any) -> _ResultMetric:  # type: ignore[override]
        """Move what is elsewhere."""
        if len(args) == 1 and not kwargs and self.is_tensor and self.value.device == args[0]:
            return self
        return super().to(*args, **kwargs)


class _LazyResults(_ResultCollection):
    """Gives values for bars as tensors."""

    def __setitem__(self, key: str, metric: Any) -> None:
        """Keep a metric that is not copied each time."""
        if type(metric) is _ResultMetric:
            metric.__class__ = _LazyMetric
        super().__setitem__(key, metric)

    def metrics(self, on_step: bool) -> _METRICS:
        """Do what Lightning's does but for the last line."""
        metrics = _METRICS(callback={}, log={}, pbar={})
        for _, each in self.valid_items():
            value = self._get_cache(each, on_step)
            if not isinstance(value, Tensor):
                continue
            name, forked_name = self._forked_name(each, on_step)
            if each.meta.logger:
                metrics["log"][forked_name] = value
            if self.training or (each.meta.on_epoch and not on_step):
                metrics["callback"][name] = metrics["callback"][forked_name] = value
            if each.meta.prog_bar:
                bars: dict[str, Any] = metrics["pbar"]
                kept = value if each.is_tensor else value.clone()  # a metric may give its state, and change it
                bars[forked_name] = kept if value.numel() == 1 else convert_tensors_to_scalars(value)
        return metrics


class _LazyConnector(_LoggerConnector):
    """Reads the values for bars when they are asked for."""

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """Give the values as numbers."""
        super().progress_bar_metrics  # noqa: B018 (takes what is new)
        return _read_for_bars(self)


def _read_for_bars(connector: _LoggerConnector) -> dict[str, float]:
    kept: dict[str, Any] = connector._progress_bar_metrics
    kept.update({name: value.item() for name, value in kept.items() if isinstance(value, Tensor)})
    return kept


def _read_for_bars_if_possible(connector: _LoggerConnector) -> None:
    try:
        _read_for_bars(connector)
    except RuntimeError:  # the device has failed, which is told already; its values are lost
        kept: dict[str, Any] = connector._progress_bar_metrics
        connector._progress_bar_metrics = {name: value for name, value in kept.items() if not isinstance(value, Tensor)}


def _change(results: Any, collection: type[Any], metric: type[Any]) -> None:
    """Let results, and what is in them, be of other classes, which have the same content."""
    results.__class__ = collection
    for each in results.values():
        if isinstance(each, _ResultMetric):
            each.__class__ = metric

"""Short fits of the real model that leave nothing behind: what the searches for a batch size and a rate are made of."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.utilities.data import sized_len
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.loggers.logger import DummyLogger
from pytorch_lightning.plugins.precision import Precision
from pytorch_lightning.utilities.combined_loader import _SUPPORTED_MODES
from pytorch_lightning.utilities.seed import isolate_rng

from lightkit.launch import heartbeat

__all__ = [
    "MEASURING",
    "OF_A_STEP",
    "PREPARING",
    "by_itself",
    "num_batches_of",
    "precision_plugin",
    "short_trainer",
    "synchronized",
    "without_trace",
]

OF_A_STEP = (
    "accelerator",
    "accumulate_grad_batches",
    "benchmark",
    "detect_anomaly",
    "deterministic",
    "gradient_clip_algorithm",
    "gradient_clip_val",
    "inference_mode",
    "precision",
)
"""What of a config's trainer changes a step."""
_OF_A_RUN = ("limit_train_batches", "max_epochs", "max_steps", "overfit_batches")  # for which schedules are made
MEASURING = "measure"
"""Phase of this process's heartbeat in which a short fit computes steps."""
PREPARING = "prepare"
"""Phase in which data is prepared and set up, a model built: nobody knows how long that takes."""
_LOUD = ("pytorch_lightning", "lightning_fabric", "lightkit")


def short_trainer(values: Mapping[str, Any], callbacks: Sequence[Callback], *, folder: Path) -> Trainer:
    """Give a trainer of one device that computes steps as the config's does, and validates, logs and shows nothing.

    Args:
        values: The config's `trainer` section; its callbacks, loggers and plugins are left out, but for a plugin
            that decides the precision. A model that writes to its logger by itself writes to none.
        callbacks: In their place.
        folder: For what Lightning writes.
    """
    kept = {key: values[key] for key in (*OF_A_STEP, *_OF_A_RUN) if values.get(key) is not None}
    if (precision := precision_plugin(values)) is not None:
        kept.pop("precision", None)
    trainer = Trainer(
        **kept,
        devices=_one_of(values.get("devices")),
        callbacks=[_SignsOfLife(), *callbacks],
        logger=_NoLogger(folder),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        # alone, whatever has launched this process
        plugins=[LightningEnvironment(), *([] if precision is None else [precision])],
        default_root_dir=str(folder),
    )
    trainer.limit_val_batches = 0  # here: overfit_batches limits both
    return trainer


def num_batches_of(trainer: Trainer) -> int | None:
    """Count the batches of an epoch's data, whatever limits the training; None where nobody knows.

    As of 2.6.6 Lightning counts those that its limits leave, and combines several loaders in a private mode.

    Args:
        trainer: Has set up its data.
    """
    loader = trainer.fit_loop._combined_loader
    return None if loader is None else sized_len(_SUPPORTED_MODES[loader._mode]["iterator"](loader.flattened))


def by_itself(module: LightningModule) -> LightningModule:
    """Give the module without the callbacks that it brings, which may write into folders of the user's."""
    module.configure_callbacks = list  # type: ignore[method-assign]
    return module


def precision_plugin(values: Mapping[str, Any]) -> Precision | None:
    """Give the plugin that decides the precision of a config's trainer; None where none does.

    Args:
        values: The config's `trainer` section, whose plugins may not be built yet.
    """
    plugins = values.get("plugins")
    for plugin in plugins if isinstance(plugins, (list, tuple)) else [plugins]:
        if isinstance(plugin, Precision):
            return plugin
        module, _, name = str(getattr(plugin, "class_path", "")).rpartition(".")
        kind = getattr(importlib.import_module(module), name, None) if module else None
        if isinstance(kind, type) and issubclass(kind, Precision):
            return kind(**dict(vars(getattr(plugin, "init_args", None) or SimpleNamespace())))
    return None


def synchronized(device: torch.device) -> None:
    """Wait until a device has computed what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


class _SignsOfLife(Callback):
    """Tells the watchdog of this process that a short fit goes on, once its data are there."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        heartbeat().enter(MEASURING)

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        heartbeat().step(MEASURING)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        heartbeat().enter(PREPARING)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        heartbeat().enter(PREPARING)


class _NoLogger(DummyLogger):
    """Takes whatever a model's own code gives to its logger, and keeps nothing."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = str(folder)

    @property
    def save_dir(self) -> str:
        """A folder that is removed afterwards."""
        return self._folder

    @property
    def log_dir(self) -> str:
        """Likewise."""
        return self._folder


def _one_of(devices: Any) -> Any:
    """Give the first device that is named, else any one."""
    if isinstance(devices, str) and "," in devices:
        devices = [int(word) for word in devices.split(",") if word.strip()]
    return [devices[0]] if isinstance(devices, (list, tuple)) and devices else 1


@contextmanager
def without_trace() -> Iterator[Path]:
    """Give a folder for what is written, and put back at the end what the process had; also after a signal.

    Random numbers, environment variables, torch's flags of determinism and cuDNN's of benchmarks are put back. What
    Lightning and the code of the model warn of is left to the training that follows, which warns of it again.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lightkit-tuning-", ignore_cleanup_errors=True))
        stack.enter_context(isolate_rng())
        stack.enter_context(patch.dict(os.environ))
        stack.enter_context(_flags_as_before())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(_only_new_garbage())
        for name in _LOUD:
            stack.enter_context(_hushed(logging.getLogger(name)))
        yield Path(folder)


@contextmanager
def _only_new_garbage() -> Iterator[None]:
    """Leave out of garbage collections what is there now: torch and its kin, which take longer than a short fit."""
    is_first = gc.get_freeze_count() == 0
    if is_first:
        gc.freeze()
    try:
        yield
    finally:
        if is_first:
            gc.unfreeze()


@contextmanager
def _flags_as_before() -> Iterator[None]:
    cudnn = torch.backends.cudnn
    benchmark, deterministic = cudnn.benchmark, cudnn.deterministic
    is_strict, only_warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = benchmark, deterministic
        torch.use_deterministic_algorithms(is_strict, warn_only=only_warns)


@contextmanager
def _hushed(log: logging.Logger) -> Iterator[None]:
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)

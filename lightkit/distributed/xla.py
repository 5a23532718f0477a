"""Test for XLA devices, before a trainer is built; and the notice that those print."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.accelerators import XLAAccelerator
from pytorch_lightning.strategies.single_xla import SingleDeviceXLAStrategy
from pytorch_lightning.strategies.xla import XLAStrategy


def trains_on_xla(accelerator: Any, strategy: Any) -> bool:
    """Return whether a trainer with these arguments will train on XLA devices.

    Args:
        accelerator: The trainer's `accelerator`: a name or an object. `auto` is a TPU where there
            is one.
        strategy: Its `strategy`: a name or an object.
    """
    if isinstance(strategy, (SingleDeviceXLAStrategy, XLAStrategy)) or isinstance(
        accelerator, XLAAccelerator
    ):
        return True
    if accelerator in (None, "auto"):
        return XLAAccelerator.is_available()
    return bool(accelerator == "tpu")


class HushXLA(Callback):
    """Keep a notice off standard output, where programs read events.

    torch-xla 2.9 prints it from C++, with the first tensor that it is to hold in bfloat16.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Make the first tensor."""
        device = trainer.strategy.root_device
        if device.type == "xla":
            with _without_stdout():
                torch.zeros(1, device=device)


@contextmanager
def _without_stdout() -> Iterator[None]:
    """Send to nowhere what this process writes to its standard output, also past Python.

    C has a buffer of its own where standard output is no terminal.
    """
    c = ctypes.CDLL(None)
    sys.stdout.flush()
    c.fflush(None)
    stdout = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        c.fflush(None)
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(nowhere)

"""The memory that one batch took on the CPU, beside what there is."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from pytorch_lightning import LightningModule, Trainer
from torch import Tensor

from lightkit.hardware.processor import available_memory_bytes

__all__ = ["Memory", "memory_to_take", "peak_bytes", "state_bytes", "workers_bytes"]

_TIGHT = 0.8


@dataclass(frozen=True)
class Memory:
    """An estimate.

    Args:
        peak_bytes: Most that this process has taken, with its loaders' processes.
        num_processes: Processes that a run has on this machine.
        available_bytes: What all of them can take.
        state_bytes: Parameters, gradients and the optimizer's state; what a GPU needs before activations.
    """

    peak_bytes: int
    num_processes: int
    available_bytes: int
    state_bytes: int

    @property
    def needed_bytes(self) -> int:
        """What a run takes, if each process takes what this one did."""
        return self.peak_bytes * self.num_processes

    @property
    def is_tight(self) -> bool:
        """Whether little would be left."""
        return self.needed_bytes > _TIGHT * self.available_bytes


def memory_to_take() -> int:
    """Give the memory that is free, with what this process has of it."""
    return available_memory_bytes() + int(psutil.Process().memory_info().rss)


def peak_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Give the most memory that this process has had."""
    try:  # what Python knows counts the process that started this one, too
        line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):  # not Linux
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def workers_bytes() -> int:
    """Give the memory that the processes which this one has started, to load data, have for themselves."""
    total = 0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            total += int(child.memory_full_info().uss)  # without what a fork shares with this process
    return total


def state_bytes(trainer: Trainer, module: LightningModule) -> int:
    """Add up parameters, buffers, gradients and the optimizers' state."""
    held: list[Tensor] = [*module.parameters(), *module.buffers()]
    held += [parameter.grad if parameter.grad is not None else parameter
             for parameter in module.parameters() if parameter.requires_grad]  # fmt: skip
    held += [
        value
        for optimizer in trainer.optimizers
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]
    return sum(tensor.numel() * tensor.element_size() for tensor in held)

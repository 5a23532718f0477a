"""Where the memory ends that a batch may take: on CUDA by the allocator's own limit, on the CPU by foresight."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch
from pytorch_lightning.utilities.memory import is_oom_error

from lightkit.hardware.processor import available_memory_bytes

__all__ = [
    "HEADROOM",
    "ResidentPeak",
    "cuda_limited",
    "is_out_of_memory",
    "memory_to_take_bytes",
    "resident_bytes",
    "room_bytes",
]

HEADROOM = 0.1
"""Share of a GPU's memory, and of what a machine has free, that stays free: for validation, fragments and others."""
_INTERVAL_S = 0.01


@contextmanager
def cuda_limited(device: torch.device) -> Iterator[int | None]:
    """Have torch's allocator refuse what would leave less of a GPU than the headroom; give the limit in bytes.

    What other processes and this one's CUDA context hold counts as taken. On other devices nothing is done.

    Args:
        device: Where the training takes place.
    """
    if device.type != "cuda":
        yield None
        return
    limit_bytes, total_bytes = _cuda_bytes(device)
    torch.cuda.set_per_process_memory_fraction(limit_bytes / total_bytes, device)
    try:
        yield limit_bytes
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        torch.cuda.empty_cache()


def _cuda_bytes(device: torch.device) -> tuple[int, int]:
    """Give what torch may allocate of a GPU, and all of its memory."""
    torch.cuda.empty_cache()
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    others_bytes = total_bytes - free_bytes - torch.cuda.memory_reserved(device)
    return max(0, int(total_bytes * (1 - HEADROOM)) - others_bytes), total_bytes


def room_bytes(device: torch.device, *, ranks: int = 1) -> int:
    """Give what a training may hold on a device in all: on CUDA by torch's allocator, else in this process.

    Args:
        device: Where it takes place.
        ranks: Processes that will train on this machine, which share what it has free, but not a GPU.
    """
    if device.type == "cuda":
        return _cuda_bytes(device)[0]
    held_bytes = resident_bytes()
    return held_bytes + (memory_to_take_bytes() - held_bytes) // max(1, ranks)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that a GPU, or this machine, has no memory left."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or is_oom_error(error)


def memory_to_take_bytes() -> int:
    """Give what this process may hold in all: what it has, and the free memory but for the headroom."""
    return resident_bytes() + int(available_memory_bytes() * (1 - HEADROOM))


def resident_bytes() -> int:
    """Give the memory that this process holds."""
    return int(psutil.Process().memory_info().rss)


class ResidentPeak:
    """The most memory that this process holds within a block, looked at a hundred times a second."""

    def __init__(self) -> None:
        self.bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lightkit-resident-peak", daemon=True)

    def __enter__(self) -> ResidentPeak:
        """Begin to look."""
        self.bytes = resident_bytes()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Look for the last time."""
        self._ended.set()
        self._thread.join()
        self.bytes = max(self.bytes, resident_bytes())

    def _watch(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            self.bytes = max(self.bytes, resident_bytes())

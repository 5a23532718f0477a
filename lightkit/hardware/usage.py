"""Use of cores, memory and GPUs by a process and all that it has started, measured from outside.

No torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from lightkit.hardware.gpus import select_visible


@dataclass(frozen=True)
class Usage:
    """Use at a moment.

    Args:
        cpu_cores: Cores that were busy since the last measurement: 1.5 is one and a half.
        memory_bytes: Of all processes; pages that several share count once.
        gpu_percent: Share of the time in which the GPUs computed, their mean; None without GPUs.
        gpu_memory_bytes: Memory of the GPUs that is in use, by others too; None without GPUs.
    """

    cpu_cores: float
    memory_bytes: int
    gpu_percent: float | None = None
    gpu_memory_bytes: int | None = None


class UsageMeter:
    """Measures a process, its children and the GPUs that it sees.

    Args:
        pid: The process; this one if None.
        environ: Its environment variables.
        nvml: What stands in for the module `pynvml`.
    """

    def __init__(
        self, pid: int | None = None, environ: Mapping[str, str] = os.environ, nvml: Any = None
    ) -> None:
        self._process = psutil.Process(pid)
        self._seconds: dict[int, float] = {}
        self._measured_at_s: float | None = None
        self._nvml: Any = None
        self._gpus: list[Any] = []
        self._open_gpus(environ, nvml)

    def measure(self) -> Usage:
        """Measure now. The first measurement has no time to compare with, and no busy cores."""
        now_s = time.monotonic()
        seconds: dict[int, float] = {}
        memory_bytes = 0
        with suppress(psutil.Error):
            processes = [self._process, *self._process.children(recursive=True)]
            for process in processes:
                with suppress(psutil.Error):  # one that has ended meanwhile
                    seconds[process.pid] = _read_cpu_seconds(process)
                    memory_bytes += _read_memory(process, is_alone=len(processes) == 1)

        # a process that was not there before has computed all of its time since
        busy_s = sum(
            max(0.0, value - self._seconds.get(pid, 0.0)) for pid, value in seconds.items()
        )
        cores = 0.0
        if self._measured_at_s is not None and now_s > self._measured_at_s:
            cores = busy_s / (now_s - self._measured_at_s)
        self._seconds = seconds
        self._measured_at_s = now_s
        return Usage(cores, memory_bytes, *self._measure_gpus())

    def _open_gpus(self, environ: Mapping[str, str], nvml: Any) -> None:
        """Find the GPUs that CUDA would show; none where NVML cannot be asked."""
        if nvml is None:
            import pynvml  # here, because its tables take longer than most commands

            nvml = pynvml
        with suppress(nvml.NVMLError):
            nvml.nvmlInit()
            self._nvml = nvml
            handles = [
                nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())
            ]
            self._gpus = select_visible(handles, environ.get("CUDA_VISIBLE_DEVICES"), nvml)

    def _measure_gpus(self) -> tuple[float | None, int | None]:
        if not self._gpus:
            return None, None
        try:
            rates = [self._nvml.nvmlDeviceGetUtilizationRates(gpu).gpu for gpu in self._gpus]
            used = sum(int(self._nvml.nvmlDeviceGetMemoryInfo(gpu).used) for gpu in self._gpus)
        except self._nvml.NVMLError:  # a MIG slice has no rate
            return None, None
        return sum(rates) / len(rates), used


def _read_cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _read_memory(process: psutil.Process, *, is_alone: bool) -> int:
    """Return the memory of a process.

    Of pages that it shares with others its part, where the system says it. For that the kernel goes
    over each page, 15 ms a gigabyte; of a process without children the count of its pages is as
    good, and at hand.
    """
    if is_alone:
        return int(process.memory_info().rss)
    full = process.memory_full_info()
    return int(getattr(full, "pss", full.rss))

"""NVIDIA's GPUs, as many as CUDA would show to this process, without the CUDA context that a fork breaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Gpu", "Gpus", "visible_gpus"]

_DRIVERS = ("/proc/driver/nvidia", "/dev/nvidia0", "/dev/nvhost-gpu", "/dev/dxg")
"""Places that show that there is a GPU of NVIDIA's although NVML cannot be asked: Jetson, or WSL without it."""


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one MIG slice of one.

    Args:
        index: Its number for this process, as in ``gpus: [0]``.
        name: Its model.
        memory_bytes: All of its memory.
        uuid: Its name that does not depend on the order.
        capability: CUDA's compute capability, such as ``(8, 0)``.
    """

    index: int
    name: str
    memory_bytes: int
    uuid: str
    capability: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Gpus:
    """What CUDA would find.

    Args:
        visible: GPUs that this process may use; None where there are some that cannot be counted without CUDA.
        driver: Version of NVIDIA's driver.
    """

    visible: tuple[Gpu, ...] | None
    driver: str | None = None


def visible_gpus(environ: Mapping[str, str], nvml: Any = None, drivers: Sequence[str] = _DRIVERS) -> Gpus:
    """Ask NVML which GPUs there are, and ``CUDA_VISIBLE_DEVICES`` which of them count.

    Args:
        environ: Environment variables.
        nvml: What stands in for the module `pynvml`.
        drivers: Places that show a driver.
    """
    if nvml is None:
        import pynvml  # here, because its tables take longer than most commands

        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return Gpus(None if any(Path(place).exists() for place in drivers) else ())
    try:
        handles = [handle for index in range(nvml.nvmlDeviceGetCount()) for handle in _opened(index, nvml)]
        shown = _shown(handles, environ.get("CUDA_VISIBLE_DEVICES"), nvml)
        gpus = tuple(_gpu(index, handle, nvml) for index, handle in enumerate(shown))
        return Gpus(gpus, _text(nvml.nvmlSystemGetDriverVersion()))
    except nvml.NVMLError:
        return Gpus(None)
    finally:
        nvml.nvmlShutdown()


def _opened(index: int, nvml: Any) -> list[Any]:
    """Give the GPU, or nothing where a control group keeps this process from it, as Slurm's ConstrainDevices does.

    NVML counts such GPUs too, and CUDA passes them over and numbers the others from 0.
    """
    try:
        return [nvml.nvmlDeviceGetHandleByIndex(index)]
    except nvml.NVMLError_NoPermission:
        return []


def _shown(handles: list[Any], variable: str | None, nvml: Any) -> list[Any]:
    """Choose as CUDA does: the first entry that names no GPU ends the list, and one that stands twice empties it.

    The rules are those of the CUDA C++ Programming Guide, "CUDA Environment Variables", and of
    `torch.cuda._parse_visible_devices`.
    """
    if variable is None:
        return handles
    uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    found: list[Any] = []
    seen: set[Any] = set()
    for word in variable.split(","):
        handle, key = _named(word.strip(), handles, uuids, nvml)
        if handle is None:
            break
        if key in seen:
            return []
        seen.add(key)
        found.append(handle)
        if word.strip().startswith("MIG-"):  # CUDA shows one slice to a process
            break
    return found


def _named(word: str, handles: list[Any], uuids: list[str], nvml: Any) -> tuple[Any, Any]:
    """Find what an entry names: an index, the beginning of one UUID, or a MIG slice."""
    if word.startswith("MIG-"):
        try:
            return nvml.nvmlDeviceGetHandleByUUID(word), word
        except nvml.NVMLError:
            return None, None
    if word.startswith("GPU-"):
        matches = [index for index, uuid in enumerate(uuids) if uuid.startswith(word)]
        index = matches[0] if len(matches) == 1 else -1
    else:
        index = int(word) if word.isascii() and word.isdigit() else -1
    return (handles[index], index) if 0 <= index < len(handles) else (None, None)


def _gpu(index: int, handle: Any, nvml: Any) -> Gpu:
    return Gpu(
        index,
        _text(nvml.nvmlDeviceGetName(handle)),
        int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        _text(nvml.nvmlDeviceGetUUID(handle)),
        _capability(handle, nvml),
    )


def _capability(handle: Any, nvml: Any) -> tuple[int, int]:
    """Give the compute capability; NVML may not tell that of a MIG slice, which is 8.0 at least."""
    try:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    except nvml.NVMLError:
        return 8, 0
    return major, minor


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

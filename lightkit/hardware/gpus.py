"""GPUs as CUDA would show them to this process, and TPUs as torch-xla would, unimported.

A CUDA context would break a later fork.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DRIVERS = ("/proc/driver/nvidia", "/dev/nvidia0", "/dev/nvhost-gpu", "/dev/dxg")
"""Places that show that there is a GPU of NVIDIA's although NVML cannot be asked: Jetson, or WSL
without it."""


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


def visible_gpus(
    environ: Mapping[str, str], nvml: Any = None, drivers: Sequence[str] = _DRIVERS
) -> tuple[tuple[Gpu, ...] | None, str | None]:
    """Ask NVML which GPUs there are, and ``CUDA_VISIBLE_DEVICES`` which of them count.

    Args:
        environ: Environment variables.
        nvml: What stands in for the module `pynvml`.
        drivers: Places that show a driver.

    Returns:
        GPUs that this process may use, None where there are some that cannot be counted without
        CUDA; and the version of NVIDIA's driver.
    """
    if nvml is None:
        import pynvml  # here, because its tables take longer than most commands

        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None if any(Path(place).exists() for place in drivers) else (), None
    try:
        handles = []
        for index in range(nvml.nvmlDeviceGetCount()):
            # NVML counts GPUs too that a control group keeps from this process, as Slurm's
            # ConstrainDevices does; CUDA passes them over, and numbers the others from 0.
            with suppress(nvml.NVMLError_NoPermission):
                handles.append(nvml.nvmlDeviceGetHandleByIndex(index))
        visible = select_visible(handles, environ.get("CUDA_VISIBLE_DEVICES"), nvml)
        gpus = tuple(_describe_gpu(index, handle, nvml) for index, handle in enumerate(visible))
        return gpus, nvml.nvmlSystemGetDriverVersion()
    except nvml.NVMLError:
        return None, None
    finally:
        nvml.nvmlShutdown()


def select_visible(handles: list[Any], variable: str | None, nvml: Any) -> list[Any]:
    """Choose by index, beginning of a UUID, or MIG slice.

    One that is unknown ends the list, a repeated one empties it.

    The rules are those of the CUDA C++ Programming Guide, "CUDA Environment Variables", and of
    `torch.cuda._parse_visible_devices`.
    """
    if variable is None:
        return handles
    uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
    found: list[Any] = []
    for word in map(str.strip, variable.split(",")):
        named = [
            handles[at]
            for at, uuid in enumerate(uuids)
            if word == str(at) or uuid.startswith(word or "none")
        ]
        if is_slice := word.startswith("MIG-"):
            with suppress(nvml.NVMLError):
                named = [nvml.nvmlDeviceGetHandleByUUID(word)]
        if len(named) != 1:
            break
        if named[0] in found:
            return []
        found += named
        if is_slice:  # CUDA shows one to a process
            break
    return found


def _describe_gpu(index: int, handle: Any, nvml: Any) -> Gpu:
    try:
        capability = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    except nvml.NVMLError:
        capability = 8, 0  # NVML may not tell that of a MIG slice, which is 8.0 at least
    return Gpu(
        index,
        nvml.nvmlDeviceGetName(handle),
        int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        nvml.nvmlDeviceGetUUID(handle),
        tuple(capability),
    )


_GOOGLE = "0x1ae0"
_CORES_PER_CHIP = {
    "0x0027": 2,  # v2, v3
    "0x005e": 1,  # v4
    "0x0063": 1,  # v5e
    "0x006f": 1,  # v6e
    "0x0056": 1,
    "0x0062": 1,
    "0x0076": 1,  # 7x
}
"""PCI ids of TPUs, from `torch_xla._internal.tpu` (2.9), and `num_logical_cores_per_chip` there:
two up to v3."""


@dataclass(frozen=True)
class Xla:
    """XLA's side of a machine.

    Args:
        version: Version of torch-xla; None where it is not installed.
        device: What ``PJRT_DEVICE`` says that XLA runs on: ``TPU``, ``CPU``; None where it says
            nothing.
        tpu_chips: TPU chips on this host's PCI bus.
        tpu_cores: Their cores, each a device for Lightning.
    """

    version: str | None = None
    device: str | None = None
    tpu_chips: int = 0
    tpu_cores: int = 0


def find_xla(
    environ: Mapping[str, str], version: str | None, pci: Path = Path("/sys/bus/pci/devices")
) -> Xla:
    """Count TPUs as torch-xla itself does, on the PCI bus.

    Args:
        environ: Environment variables.
        version: Version of torch-xla, if it is installed.
        pci: Folder with an entry for each device on the bus.
    """
    cores = [
        _CORES_PER_CHIP[device]
        for place in (sorted(pci.iterdir()) if pci.is_dir() else ())
        if _read(place / "vendor") == _GOOGLE
        and (device := _read(place / "device")) in _CORES_PER_CHIP
    ]
    return Xla(version, environ.get("PJRT_DEVICE") or None, len(cores), sum(cores))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:  # a device that was just taken away
        return ""

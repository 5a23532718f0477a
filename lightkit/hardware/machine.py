"""The machine as a whole."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field

from lightkit.hardware import processor
from lightkit.hardware.gpus import Gpu, Xla, find_xla, visible_gpus
from lightkit.hardware.packages import describe_packages


@dataclass(frozen=True)
class Machine:
    """Devices of this machine that can train.

    Args:
        host: The machine's name.
        platform: Its operating system, and version.
        python: Version of Python.
        cpu: The CPU's model.
        cpu_vendor: Its maker where it is an x86 one, such as ``GenuineIntel``.
        cores: Cores that this process may use, by its affinity and its control group.
        instruction_sets: Those of the CPU that matter to torch, such as ``avx2``, ``avx512f``,
            ``amx_bf16``, ``neon``.
        memory_bytes: Memory of the machine, or what the control group allows of it.
        memory_available_bytes: What of it can be taken now.
        gpus: NVIDIA's GPUs that this process may use; None where there are some that only CUDA
            itself could count.
        gpu_driver: Version of NVIDIA's driver.
        mps: Whether it is a Mac with Apple's GPU.
        xla: What torch-xla would find.
        versions: Version of each package that matters and is installed, by its name on PyPI.
    """

    host: str = ""
    platform: str = ""
    python: str = ""
    cpu: str | None = None
    cpu_vendor: str | None = None
    cores: int | None = None
    instruction_sets: tuple[str, ...] = ()
    memory_bytes: int | None = None
    memory_available_bytes: int | None = None
    gpus: tuple[Gpu, ...] | None = ()
    gpu_driver: str | None = None
    mps: bool = False
    xla: Xla = field(default_factory=Xla)
    versions: Mapping[str, str] = field(default_factory=dict)


def this_machine(environ: Mapping[str, str] | None = None) -> Machine:
    """Look at the machine that this process runs on.

    Args:
        environ: Environment variables; those of this process if None. ``CUDA_VISIBLE_DEVICES``
            hides GPUs.
    """
    environ = os.environ if environ is None else environ
    versions = describe_packages()
    gpus, driver = visible_gpus(environ)
    rocm = "rocm" in versions.get("torch", "")  # AMD's GPUs, which NVML does not know
    return Machine(
        host=platform.node(),
        platform=platform.platform(),
        python=platform.python_version(),
        cpu=processor.cpu_model(),
        cpu_vendor=processor.cpu_vendor(),
        cores=processor.num_cores(),
        instruction_sets=processor.instruction_sets(),
        memory_bytes=processor.memory_bytes(),
        memory_available_bytes=processor.available_memory_bytes(),
        gpus=None if rocm else gpus,
        gpu_driver=driver,
        mps=platform.system() == "Darwin" and platform.machine() == "arm64",
        xla=find_xla(environ, versions.get("torch-xla")),
        versions=versions,
    )

"""Description of this machine: cores, memory, GPUs, XLA devices, versions. It loads no torch.

::

    machine = this_machine()
    machine.cores, machine.memory_bytes, machine.gpus, machine.versions["torch"]
"""

from lightkit.hardware.gpus import Gpu, Xla
from lightkit.hardware.machine import Machine, this_machine
from lightkit.hardware.packages import PACKAGES, Horovod, describe_packages, find_horovod

__all__ = [
    "PACKAGES",
    "Gpu",
    "Horovod",
    "Machine",
    "Xla",
    "describe_packages",
    "find_horovod",
    "this_machine",
]

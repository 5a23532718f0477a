"""What this machine has: cores, memory, GPUs, XLA devices, versions. Apart, and without torch, so that asking is quick.

::

    machine = this_machine()
    machine.cores, machine.memory_bytes, machine.gpus, machine.versions["torch"]
"""

from lightkit.machine.gpus import Gpu
from lightkit.machine.horovod import Horovod, find_horovod
from lightkit.machine.machine import Machine, this_machine
from lightkit.machine.packages import PACKAGES, describe_packages
from lightkit.machine.xla import Xla

__all__ = ["PACKAGES", "Gpu", "Horovod", "Machine", "Xla", "describe_packages", "find_horovod", "this_machine"]

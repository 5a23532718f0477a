"""The command where XLA's devices on the CPU stand for ``NUM_TPU_CORES`` (1) cores of a TPU.

Only the number of devices is changed, nothing else of lightkit, Lightning or torch-xla. Apart,
because each training needs a process of its own.
"""

from __future__ import annotations

import os
import sys


def count_cores() -> int:
    """Let torch-xla count as many cores as ``NUM_TPU_CORES`` says.

    Before Lightning asks and remembers the answer.
    """
    given, count = os.environ.get("PJRT_DEVICE"), int(os.environ.get("NUM_TPU_CORES", "1"))
    # not before the variables are read: it sets PJRT_DEVICE by itself
    from torch_xla._internal import tpu

    if given is None:
        os.environ.pop("PJRT_DEVICE", None)
    tpu.num_available_devices = lambda: count
    return count


def main() -> int:
    """Run the command."""
    count_cores()
    from lightkit.main import main as lightkit  # late as above

    return lightkit()


if __name__ == "__main__":
    sys.exit(main())

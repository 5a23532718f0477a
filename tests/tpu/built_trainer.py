"""The command up to its trainer, on a machine with ``NUM_TPU_CORES`` cores.

Prints what was built, as JSON.

XLA on the CPU has no collectives that work, so that training on several cores cannot be shown
without a TPU.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

from tests.tpu.one_device import count_cores

_BEGINNING = "pytorch_lightning.trainer.call._call_and_handle_interrupt"
"""What `Trainer.fit` begins with; its own signature is what the command line is made of."""


def _print_settings(trainer: Any, *_args: Any, **_kwargs: Any) -> None:
    settings = {
        "accelerator": type(trainer.accelerator).__name__,
        "strategy": type(trainer.strategy).__name__,
        "launcher": type(trainer.strategy.launcher).__name__,
        "precision": trainer.precision,
        "checkpoint_io": type(trainer.strategy.checkpoint_io).__name__,
        "devices": trainer.num_devices,
        "PJRT_DEVICE": os.environ.get("PJRT_DEVICE"),
    }
    print("built", json.dumps(settings), flush=True)
    os._exit(0)


def main() -> int:
    """Run the command until it would train."""
    count = count_cores()
    # late as in one_device.py
    from lightkit.hardware.gpus import Xla
    from lightkit.main import main as lightkit

    def find_xla(environ: Mapping[str, str], version: str | None) -> Xla:
        return Xla(version, environ.get("PJRT_DEVICE") or None, count, count)

    with patch("lightkit.hardware.machine.find_xla", find_xla), patch(_BEGINNING, _print_settings):
        return lightkit()


if __name__ == "__main__":
    sys.exit(main())

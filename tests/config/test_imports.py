"""The room starts fast."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "pytorch_lightning", "torchvision", "torchmetrics", "mlflow", "jsonargparse", "numpy")


def test_the_room_loads_nothing_heavy() -> None:
    program = f"import sys, lightkit.config; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_importing_the_loggers_loads_no_tracker() -> None:
    heavy = ["mlflow", "comet_ml", "tensorboard", "torch.utils.tensorboard"]
    code = f"import sys, lightkit.loggers; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"

"""Which packages are installed, without importing any, and how Horovod was built."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

PACKAGES = (
    *("torch", "torchvision", "pytorch-lightning", "lightning", "torchmetrics", "jsonargparse"),
    *("omegaconf", "PyYAML", "numpy", "pillow", "rich", "tensorboard", "mlflow", "mlflow-skinny"),
    *("timm", "comet-ml", "horovod", "torch-xla", "pyspark", "ray"),
)
"""Distributions whose version can change what a run gives."""
_PROGRAM = """\
import json
import horovod.torch
names = ("gloo", "mpi", "nccl", "cuda", "rocm", "ccl", "ddl")
print(json.dumps({name: bool(getattr(horovod.torch, f"{name}_built")()) for name in names}))
"""
_TIMEOUT_S = 120.0


def describe_packages(names: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Return the version of each package that is installed."""
    from importlib import metadata  # here, because it loads the standard library's reader of mail

    versions = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


@dataclass(frozen=True)
class Horovod:
    """Horovod's build.

    Args:
        version: Its version; None where it is not installed.
        built_with: Whether it has each of gloo, MPI, NCCL and so on; None where it could not be
            asked.
        problem: What came of asking, where that failed.
    """

    version: str | None = None
    built_with: dict[str, bool] | None = None
    problem: str | None = None


def find_horovod() -> Horovod:
    """Look for Horovod, and ask in a process of its own how it was built for torch."""
    if (version := describe_packages(["horovod"]).get("horovod")) is None:
        return Horovod()
    command = [sys.executable, "-c", _PROGRAM]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Horovod(version, problem=f"its library did not load within {_TIMEOUT_S:.0f} s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Horovod(version, problem=f"its library does not load: {last}")
    return Horovod(version, json.loads(done.stdout.splitlines()[-1]))

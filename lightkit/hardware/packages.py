"""Which packages are installed, without importing any, and how Horovod was built."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import util
from pathlib import Path

PACKAGES = (
    *("torch", "torchvision", "pytorch-lightning", "lightning", "torchmetrics", "jsonargparse", "omegaconf", "PyYAML"),
    *("numpy", "pillow", "rich", "tensorboard", "mlflow", "mlflow-skinny", "timm", "comet-ml", "horovod"),
    *("torch-xla", "pyspark", "ray"),
)
"""Distributions whose version can change what a run gives."""
_FLAGS = ("gloo", "mpi", "nccl", "cuda", "rocm", "ccl", "ddl")
# torch is imported only where its libraries are not found beside it: that takes seconds.
_PROGRAM = """\
import ctypes, json, sys
try:
    library = ctypes.CDLL(sys.argv[1])
except OSError:
    import torch
    library = ctypes.CDLL(sys.argv[1])
print(json.dumps({name: bool(getattr(library, f"horovod_{name}_built")()) for name in sys.argv[2:]}))
"""
_TIMEOUT_S = 120.0


def describe_packages(names: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Give the version of each package that is installed."""
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
        built_with: Whether it has each of gloo, MPI, NCCL and so on; None where it could not be asked.
        problem: What came of asking, where that failed.
    """

    version: str | None = None
    built_with: dict[str, bool] | None = None
    problem: str | None = None


def find_horovod() -> Horovod:
    """Look for Horovod for torch, and ask its library in a process of its own."""
    from importlib import metadata  # here, because it loads the standard library's reader of mail

    spec = util.find_spec("horovod")
    if spec is None or not spec.submodule_search_locations:
        return Horovod()
    try:
        version = metadata.version("horovod")
    except metadata.PackageNotFoundError:  # a folder of that name
        return Horovod()
    libraries = sorted(Path(spec.submodule_search_locations[0]).glob("torch/mpi_lib_v2*.so"))
    if not libraries:
        return Horovod(version, problem="it was built without PyTorch")
    torch = util.find_spec("torch")
    places = [str(Path(place) / "lib") for place in (torch.submodule_search_locations or ())] if torch else []
    paths = os.pathsep.join([*places, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(libraries[0]), *_FLAGS],
            env={**os.environ, "LD_LIBRARY_PATH": paths},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Horovod(version, problem=f"its library did not load within {_TIMEOUT_S:.0f} s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Horovod(version, problem=f"its library does not load: {last}")
    return Horovod(version, json.loads(done.stdout.splitlines()[-1]))

"""Which packages are installed, without importing any."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib import metadata

__all__ = ["PACKAGES", "describe_packages"]

PACKAGES = (
    "torch",
    "torchvision",
    "pytorch-lightning",
    "lightning",
    "torchmetrics",
    "jsonargparse",
    "omegaconf",
    "PyYAML",
    "numpy",
    "pillow",
    "rich",
    "tensorboard",
    "mlflow",
    "mlflow-skinny",
    "timm",
    "comet-ml",
    "horovod",
    "torch-xla",
    "pyspark",
    "ray",
)
"""Distributions whose version can change what a run gives."""


def describe_packages(names: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Give the version of each package that is installed."""
    return {name: found.version for name in names for found in _installed(name)}


def _installed(name: str) -> list[metadata.Distribution]:
    from importlib import metadata  # here, because it loads the standard library's reader of mail

    try:
        return [metadata.distribution(name)]
    except metadata.PackageNotFoundError:
        return []

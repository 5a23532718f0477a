"""Classes with arguments of many types, of somebody's own."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pytorch_lightning import LightningModule

WIDTH = 3


class Head:
    """The last layer.

    Args:
        width: Its number of outputs.
    """

    def __init__(self, width: int = 3) -> None:
        self.width = width


class Stack(LightningModule):
    """Layers upon layers.

    Args:
        mode: How they are joined.
        width: Number of features, or a word for it.
        widths: That of each layer.
        height: Number of layers.
        named: Further numbers.
        weights: File of weights.
        head: The last layer.
        heads: The last layers.
    """

    def __init__(
        self,
        mode: Literal["serial", "parallel"] = "serial",
        width: int | str | None = None,
        widths: list[int] | None = None,
        height: int = 2,
        named: dict[str, float] | None = None,
        weights: Path | None = None,
        head: Head | None = None,
        heads: list[Head] | None = None,
    ) -> None:
        super().__init__()


def make_head(width: int) -> Head:
    """Give the last layer."""
    return Head(width)

"""Mean and spread of a column, without having it in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Moments"]


@dataclass
class Moments:
    """Mean and spread of numbers that come in parts (Chan et al. 1979, equation 2.1)."""

    num: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, other: Moments) -> None:
        """Take in another part."""
        num = self.num + other.num
        if num:
            gap = other.mean - self.mean
            self.squares += other.squares + gap * gap * self.num * other.num / num
            self.mean += gap * other.num / num
            self.num = num

    @classmethod
    def of(cls, numbers: npt.NDArray[Any]) -> Moments:
        """Those of an array."""
        wide = numbers.astype(np.float64).ravel()
        return cls(len(wide), float(wide.mean()), float(((wide - wide.mean()) ** 2).sum())) if len(wide) else cls()

    @property
    def scaling(self) -> tuple[float, float]:
        """Mean and standard deviation."""
        return self.mean, math.sqrt(self.squares / self.num) if self.num else 0.0

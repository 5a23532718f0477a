"""What `lightkit tune` is to measure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

__all__ = ["TuneSettings"]


@dataclass(frozen=True)
class TuneSettings:
    """What is to be measured."""

    precision: Literal["auto"] | None = None
    memory_format: Literal["auto", "contiguous", "channels_last"] = "contiguous"
    compile: bool | Literal["auto"] = False
    tf32: bool | Literal["auto"] | None = None
    fused: bool | Literal["auto"] | None = None
    threads: int | Literal["auto"] | None = None
    num_workers: Literal["auto"] | None = None
    batch_size: Literal["auto"] | None = None
    learning_rate: Literal["auto"] | None = None

    def autos(self) -> tuple[str, ...]:
        """Name the keys that are to be chosen by measuring."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) == "auto")

"""The section `accelerator` once devices and fixed values have gone to their own keys: how steps are computed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

__all__ = ["AcceleratorSettings"]


@dataclass(frozen=True)
class AcceleratorSettings:
    """How steps are computed, and what is chosen by measuring.

    `auto` measures a few steps of the real model on real batches before it trains, for at most 5 % of the time that
    training is expected to take or 30 seconds, and takes the fastest setting whose first losses stay within a stated
    tolerance of float32's. The choice is told, kept for this model, machine and versions below `run.root`, and written
    into the run's config, so that a replay measures nothing. With `trainer.deterministic` only what is deterministic
    is tried.

    Args:
        precision: `auto`, which starts from `trainer.precision`; any other one goes there.
        memory_format: Of the weights and images in memory: `channels_last` is faster for most convolutions.
        compile: Whether the model goes through torch.compile.
        tf32: Whether matrix products on CUDA round float32 to TensorFloat-32. `null`: as torch has it.
        fused: Whether the optimizer updates all parameters in one kernel. `null`: as the optimizer has it.
        threads: Threads of each process for one operation; `auto` chooses them together with `num_workers` and the
            processes, so that they fit the cores. A number from 1 goes to `launch.threads`.
        num_workers: `auto`; a number from 0 goes to the argument of that name of the data.
        batch_size: `auto`: the largest that fits into memory; a number from 1 goes to the argument of the data.
        learning_rate: `auto`: Lightning's learning rate finder; a number above 0 goes to the optimizer's `lr` where the
            config names an optimizer, else to the model's `learning_rate` or `lr`.
    """

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

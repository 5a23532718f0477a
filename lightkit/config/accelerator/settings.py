"""The section `accelerator` once devices and fixed values have gone to their own keys: how steps are computed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

__all__ = ["AcceleratorSettings"]


@dataclass(frozen=True)
class AcceleratorSettings:
    """How steps are computed, and what is chosen by measuring.

    `auto` measures a few steps of the real model on real batches before it trains, and takes the fastest setting whose
    first losses stay within a stated tolerance of float32's. After 30 seconds in all, or 5 % of the time that training
    is expected to take, it begins no other measurement. The choice is told, kept for this model, data, machine and
    versions below `run.root`, in `.tuning`, and written into the run's config, so that neither a replay nor the same
    fit measures again: to have it measured again, delete the files there, or say `lightkit tune`. With
    `trainer.deterministic` all is tried with torch's deterministic algorithms, and the fastest is taken whose first
    losses are the same to the last bit when it is tried again.

    Args:
        precision: `auto`, which tries float32, `trainer.precision` and what the device computes quickest; any other
            one goes there.
        memory_format: Of the weights and images in memory: `channels_last` is faster for most convolutions.
        compile: Whether torch.compile compiles, for training, the layers that are attributes of the model and have
            parameters, each by itself; the code of the steps around them is not compiled.
        tf32: Whether matrix products on CUDA round float32 to TensorFloat-32. `null`: as torch has it.
        fused: Whether the optimizer updates all parameters in one kernel. `null`: as the optimizer has it.
        threads: Threads of each process for one operation; `auto` chooses them together with `num_workers` and the
            processes, so that they fit the cores. A number from 1 goes to `launch.threads`.
        num_workers: `auto`; a number from 0 goes to the argument of that name of the data.
        batch_size: `auto`: of the sizes that memory holds, the least that gives within 5 % of the most samples a
            second; a number from 1 goes to the argument of the data.
        learning_rate: `auto`: a tenth of the rate at which the loss of Lightning's range test is least, if it falls
            clearly and there is time for 40 steps; a number above 0 goes to the optimizer's `lr` where the config names
            an optimizer, else to the model's `learning_rate` or `lr`.
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

"""The rule for `auto` in the section `accelerator`: values from the hardware. Nothing is measured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from lightkit.hardware import Machine
from lightkit.hardware.cores import find_user_threads, workers_by_rule

__all__ = ["choose_settings"]

_CPU_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}  # the last one is ARM's


def choose_settings(
    kind: str | None, machine: Machine, *, processes: int, environ: Mapping[str, str] = os.environ
) -> tuple[str, dict[str, Any]]:
    """Choose what `auto` stands for on this hardware.

    Whether the model has convolutions decides when it is built: channels_last lays out weights of convolutions only.
    `torch.compile` costs tens of seconds before the first step, and TF32 and fused optimizers round differently:
    `lightkit tune` measures whether these pay, and no rule takes them.

    Sources:
        Precision: Lightning, "N-Bit Precision": bf16-mixed from Ampere (compute capability 8.0) on, 16-mixed before;
            XLA multiplies float32 in bfloat16 on TPUs by itself. CPUs: oneDNN's bf16 kernels need the instructions.
        Memory format: PyTorch's tutorial "Channels Last Memory Format" (tensor cores). On the CPU our own benches in
            README.md: with bf16 it is up to 1.25 times as fast (ResNet-18), in float32 no faster.
        Threads, processes: PyTorch's "Performance Tuning Guide", and `lightkit.hardware.cores`.

    Args:
        kind: Kind of device: `cpu`, `gpu`, `mps`, `tpu`; None where it cannot be known before torch is loaded.
        machine: The machine that trains.
        processes: Processes that train on it.
        environ: Environment variables: a user's `OMP_NUM_THREADS` is kept.

    Returns:
        The hardware in words, and the values by key; None, or no value, leaves a key to torch or Lightning.
    """
    share = max(1, (machine.cores or 1) // processes)
    threads = None
    if kind == "cpu":
        has_bf16 = bool(_CPU_BF16.intersection(machine.instruction_sets))
        words = f"CPU with{'' if has_bf16 else 'out'} bf16 instructions, {share} core{'s' if share > 1 else ''}"
        precision, memory_format = ("bf16-mixed", "channels_last") if has_bf16 else ("32-true", "contiguous")
        threads = None if find_user_threads(environ) else share
    elif kind == "gpu":
        has_bf16 = bool(machine.gpus) and all(gpu.capability >= (8, 0) for gpu in machine.gpus or ())
        words = f"CUDA with{'' if has_bf16 else 'out'} bf16"
        precision, memory_format = "bf16-mixed" if has_bf16 else "16-mixed", "channels_last"
    else:
        words = {"mps": "Apple's GPU", "tpu": "XLA"}.get(str(kind), "a device that only torch can name")
        precision, memory_format = "32-true", "contiguous"
    return words, {
        "precision": precision,
        "memory_format": memory_format,
        "compile": False,
        "threads": threads,
        "num_workers": workers_by_rule(share, device=str(kind), is_cached=False),
    }

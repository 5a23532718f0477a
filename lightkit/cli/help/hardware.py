"""The keys of the `accelerator` block, which lightkit reads itself and no class takes."""

from __future__ import annotations

__all__ = ["ACCELERATOR", "TITLE"]

TITLE = "What to train on. `accelerator: cpu` is short for `accelerator: {kind: cpu}`."
ACCELERATOR = {
    "kind": "auto, cpu, gpu, mps or tpu; default: auto, the best that the machine has",
    "gpus": "2: that many; [0, 3]: those; -1 or all: every visible one; 0 or null: the CPU",
    "tpu_cores": "1 or 8: that many cores; [5]: that core; auto: all",
    "num_processes": "that many processes on the CPU, with ddp unless a strategy is given",
    "strategy": "how devices train together: ddp, fsdp, deepspeed, horovod, ...; default: auto",
    "precision": "32-true, 16-mixed, bf16-mixed, bf16-true, 64-true, ...; default: 32-true",
    "num_nodes": "number of machines, for launchers that Lightning knows itself; default: 1",
    "scale_lr": "true: multiply the learning rate by the number of ranks; default: false",
    "warmup_epochs": "epochs in which the rate grows to that; default: 0",
    "ipus": "refused unless 0: Lightning dropped IPUs",
    "hpus": "refused unless 0: Lightning dropped HPUs",
}
"""What each key takes, in the words of the README."""

"""The keys of the `accelerator` block, which lightkit reads itself and no class takes."""

from __future__ import annotations

__all__ = ["ACCELERATOR", "AUTO", "TITLE"]

TITLE = "What to train on. `accelerator: cpu` is short for `accelerator: {kind: cpu}`."
ACCELERATOR = {
    "kind": "auto, cpu, gpu, mps or tpu; default: auto, the best that the machine has",
    "gpus": "2: that many; [0, 3]: those; -1 or all: every visible one; 0 or null: the CPU",
    "tpu_cores": "1 or 8: that many cores; [5]: that core; auto: all",
    "num_processes": "that many processes on the CPU, with ddp unless a strategy is given",
    "strategy": "how devices train together: ddp, fsdp, deepspeed, horovod, ...; default: auto",
    "num_nodes": "number of machines, for launchers that Lightning knows itself; default: 1",
    "precision": "32-true, 16-mixed, bf16-mixed, bf16-true, 64-true, ..., or auto; default: 32-true",
    "memory_format": "contiguous, channels_last or auto: of images in memory; default: contiguous",
    "compile": "true, false or auto: the model goes through torch.compile; default: false",
    "tf32": "true or false: TensorFloat-32 on CUDA; default: null, as torch has it",
    "fused": "true or false: the optimizer in one kernel; default: null, as it has it",
    "threads": "number of each process, which is launch.threads, or auto; default: null, shared out",
    "num_workers": "processes that load, or auto; the data's argument; default: the data's",
    "batch_size": "samples of a batch; the data's argument; default: the data's",
    "learning_rate": "a number; the optimizer's argument, else the model's; default: theirs",
    "scale_lr": "true: multiply the learning rate by the number of ranks; default: false",
    "warmup_epochs": "epochs in which the rate grows to that; default: 0",
    "ipus": "refused unless 0: Lightning dropped IPUs",
    "hpus": "refused unless 0: Lightning dropped HPUs",
}
"""What each key takes, in the words of the README."""
AUTO = """\
auto takes the value of a table by hardware (README, "How to compute"): nothing is measured. The
run's header and lightkit explain say what it came to. lightkit tune measures what is fastest on
this machine, and finds a batch_size and a learning_rate.
"""

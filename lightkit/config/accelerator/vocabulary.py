"""The vocabulary of hardware: what names mean today, what they were before, what is gone."""

from __future__ import annotations

HOROVOD = "lightkit.distributed.HorovodStrategy"
ALL = -1
"""Number of devices that stands for every visible one."""

KINDS = {"auto": None, "cpu": "cpu", "gpu": "gpu", "cuda": "gpu", "mps": "mps", "tpu": "tpu"}
"""Lightning's words for ``trainer.accelerator``, each with the kind of device that it means."""
ACCELERATOR_CLASSES = {
    "CPUAccelerator": "cpu",
    "CUDAAccelerator": "gpu",
    "MPSAccelerator": "mps",
    "XLAAccelerator": "tpu",
}
STRATEGY_CLASSES = {
    "DDPStrategy": "ddp",
    "DeepSpeedStrategy": "deepspeed",
    "FSDPStrategy": "fsdp",
    "HorovodStrategy": "horovod",
    "ModelParallelStrategy": "model_parallel",
    "SingleDeviceStrategy": "single_device",
    "SingleDeviceXLAStrategy": "single_xla",
    "XLAStrategy": "xla",
}
XLA_STRATEGIES = ("xla", "xla_debug", "single_xla", "single_tpu")

OLD_TRAINER_KEYS = ("gpus", "tpu_cores", "ipus", "hpus", "num_processes")
"""Arguments of Lightning 1.x's trainer that today's has not."""
TRAINER_DEFAULTS = {
    "accelerator": "auto",
    "devices": "auto",
    "strategy": "auto",
    "num_nodes": 1,
    "precision": "32-true",
}
"""Today's keys of the trainer for hardware, with their defaults."""
KEY_HELP = {
    "kind": "auto, cpu, gpu, mps or tpu; default: auto, the best that the machine has",
    "gpus": "2: that many; [0, 3]: those; -1 or all: every visible one; 0 or null: the CPU",
    "tpu_cores": "1 or 8: that many cores; [5]: that core; auto: all",
    "num_processes": "that many processes on the CPU, with ddp unless a strategy is given",
    "strategy": "how devices train together: ddp, fsdp, deepspeed, horovod, ...; default: auto",
    "num_nodes": "number of machines, for launchers that Lightning knows itself; default: 1",
    "precision": (
        "32-true, 16-mixed, bf16-mixed, bf16-true, 64-true, ..., or auto; default: 32-true"
    ),
    "memory_format": "contiguous, channels_last or auto: of images in memory; default: contiguous",
    "compile": "true, false or auto: the model goes through torch.compile; default: false",
    "tf32": "true or false: TensorFloat-32 on CUDA; default: null, as torch has it",
    "fused": "true or false: the optimizer in one kernel; default: null, as it has it",
    "threads": (
        "number of each process, which is launch.threads, or auto; default: null, shared out"
    ),
    "num_workers": "processes that load, or auto; the data's argument; default: the data's",
    "batch_size": "samples of a batch; the data's argument; default: the data's",
    "learning_rate": "a number; the optimizer's argument, else the model's; default: theirs",
    "ipus": "refused unless 0: Lightning dropped IPUs",
    "hpus": "refused unless 0: Lightning dropped HPUs",
}
"""Help of each key of the block ``accelerator``, which no class takes."""
BLOCK_KEYS = tuple(KEY_HELP)

OLD_STRATEGIES: dict[str, tuple[str, str | None]] = {
    "ddp_cpu": ("ddp", "cpu"),
    "fsdp_native": ("fsdp", None),
    "fsdp_native_full_shard_offload": ("fsdp_cpu_offload", None),
    "tpu_spawn": ("xla", "tpu"),
    "tpu_spawn_debug": ("xla_debug", "tpu"),
}
"""Strategies of Lightning 1.x that are called otherwise today, with the kind of device that the old
name implied."""
STRATEGIES_AS_ACCELERATORS = (
    "ddp",
    "ddp_spawn",
    "ddp_fork",
    "deepspeed",
    "horovod",
    *OLD_STRATEGIES,
)
"""Strategies that Lightning up to 1.5 took under ``trainer.accelerator``; those in
`GONE_STRATEGIES` too."""

_SHARDED = "Lightning 2.0 dropped FairScale; use fsdp or deepspeed_stage_2, on GPUs"
_HIVEMIND = (
    "Lightning 2.0 dropped Hivemind; use ddp, or launch.engine: torchrun where machines come and go"
)
_FULLY_SHARDED = "use fsdp or deepspeed_stage_3, on GPUs"
_NO_HPU = (
    "Lightning 2.1 moved HPUs out, to a package that does not work with"
    " Lightning 2.6; use gpus or cpu"
)
_NO_IPU = "Lightning 2.1 dropped IPUs; use gpus, tpu_cores or cpu"
GONE_DEVICES = {"hpu": _NO_HPU, "ipu": _NO_IPU}
"""Kinds of device that Lightning no longer knows, each with what to do."""
GONE_STRATEGIES = {
    "bagua": "Lightning 2.0 dropped Bagua; use ddp",
    "collaborative": _HIVEMIND,
    "colossalai": f"Lightning 2.0 dropped Colossal-AI; {_FULLY_SHARDED}",
    "ddp2": "Lightning 1.8 dropped it; use ddp, with one process a GPU",
    "ddp_fully_sharded": f"Lightning 2.0 dropped FairScale; {_FULLY_SHARDED}",
    "ddp_sharded": _SHARDED,
    "ddp_sharded_find_unused_parameters_false": _SHARDED,
    "ddp_sharded_spawn": _SHARDED,
    "ddp_sharded_spawn_find_unused_parameters_false": _SHARDED,
    "dp": (
        "Lightning 2.0 dropped it; use ddp, whose batch size counts for each GPU and not for all of"
        " them together"
    ),
    "hivemind": _HIVEMIND,
    "hpu_parallel": _NO_HPU,
    "hpu_single": _NO_HPU,
    "ipu_strategy": _NO_IPU,
}
"""Strategies of Lightning 1.x that have no equivalent, each with what to do."""

PRECISIONS = {
    "16": "16-mixed",
    "32": "32-true",
    "64": "64-true",
    "bf16": "bf16-mixed",
    **{
        word: word
        for word in ("16-mixed", "16-true", "32-true", "64-true", "bf16-mixed", "bf16-true")
    },
    **{word: word for word in ("transformer-engine", "transformer-engine-float16")},
}
"""Every precision that Lightning takes, with its name today."""
XLA_PRECISIONS = {
    "32": "32-true",
    "32-true": "32-true",
    "bf16": "bf16-true",
    "bf16-true": "bf16-true",
}
"""Those that mean something on XLA: Lightning refuses the mixed ones, and ``16-true`` computes in
float32 there."""

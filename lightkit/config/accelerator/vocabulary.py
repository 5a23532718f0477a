"""The vocabulary of hardware: what names mean today, what they were before, what is gone."""

from __future__ import annotations

HOROVOD = "lightkit.distributed.HorovodStrategy"
ALL = -1
"""Number of devices that stands for every visible one."""

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
TRAINER_KEYS = (*OLD_TRAINER_KEYS, *TRAINER_DEFAULTS)

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

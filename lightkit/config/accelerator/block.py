"""The keys of the block ``accelerator``, with the types of their values.

`AcceleratorBlock` is what a layer may set, `AcceleratorSettings` what is left in the block of a
config whose hardware keys are resolved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args

from lightkit.config.bounds import MAX_FLOAT, Bounds, NonNegativeInt, PositiveInt

_Auto = Literal["auto"]
_Switch = _Auto | bool | None
_MemoryFormat = Literal["contiguous", "channels_last"]
_Rate = Annotated[float, Bounds(gt=0, le=MAX_FLOAT, expected="a number above 0")]
_Kind = Literal["auto", "cpu", "gpu", "cuda", "mps", "tpu"]

KINDS: Mapping[str, str | None] = {
    **{kind: kind for kind in get_args(_Kind)},
    "auto": None,
    "cuda": "gpu",
}
"""Lightning's words for ``trainer.accelerator``, each with the kind of device that it means."""


@dataclass(frozen=True)
class AcceleratorBlock:
    """How steps are computed. `auto` takes a table's value by hardware; `lightkit tune` measures.

    The values of a hardware key, which may be in the words of several Lightning versions, are
    translated to keys of the trainer; what has no translation is refused there. Without one, null,
    the trainer's key decides.

    Args:
        kind: auto, cpu, gpu, mps or tpu; default: auto, the best that the machine has
        gpus: 2: that many; [0, 3]: those; -1 or all: every visible one; 0 or null: the CPU
        tpu_cores: 1 or 8: that many cores; [5]: that core; auto: all
        num_processes: that many processes on the CPU, with ddp unless a strategy is given
        strategy: how devices train together: ddp, fsdp, deepspeed, horovod, ...; default: auto
        num_nodes: number of machines, for launchers that Lightning knows itself; default: 1
        precision: 32-true, 16-mixed, bf16-mixed, bf16-true, 64-true, ..., or auto; default: 32-true
        memory_format: contiguous, channels_last or auto: of images in memory; default: contiguous
        compile: true, false or auto: the model goes through torch.compile; default: false
        tf32: true or false: TensorFloat-32 on CUDA; default: null, as torch has it
        fused: true or false: the optimizer in one kernel; default: null, as it has it
        threads: number of each process, which is launch.threads, or auto; default: null, shared out
        num_workers: processes that load, or auto; the data's argument; default: the data's
        batch_size: samples of a batch; the data's argument; default: the data's
        learning_rate: a number; the optimizer's argument, else the model's; default: theirs
        ipus: refused unless 0: Lightning dropped IPUs
        hpus: refused unless 0: Lightning dropped HPUs
    """

    kind: _Kind | None = None
    gpus: Any = None
    tpu_cores: Any = None
    num_processes: Any = None
    strategy: Any = None
    num_nodes: Any = None
    precision: Any = None
    memory_format: _Auto | _MemoryFormat = "contiguous"
    compile: _Switch = False
    tf32: _Switch = None
    fused: _Switch = None
    threads: _Auto | PositiveInt | None = None
    num_workers: _Auto | NonNegativeInt | None = None
    batch_size: PositiveInt | None = None
    learning_rate: _Rate | None = None
    ipus: Any = None
    hpus: Any = None


BLOCK_KEYS = tuple(field.name for field in fields(AcceleratorBlock))


@dataclass(frozen=True)
class AcceleratorSettings:
    """How steps are computed. `auto` takes a table's value by hardware; `lightkit tune` measures.

    Args:
        memory_format: Of weights and images in memory: `channels_last` is faster for convolutions
            in mixed precision.
        compile: Whether torch.compile compiles, for training, the layers that are attributes of the
            model and have parameters, each by itself; the code of the steps around them is not
            compiled.
        tf32: Whether matrix products on CUDA round float32 to TensorFloat-32. `null`: as torch has
            it.
        fused: Whether the optimizer updates all parameters in one kernel. `null`: as the optimizer
            has it.
    """

    memory_format: _MemoryFormat = "contiguous"
    compile: bool = False
    tf32: bool | None = None
    fused: bool | None = None

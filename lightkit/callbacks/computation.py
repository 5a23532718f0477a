"""The callback that has a run computed in a certain way.

Memory format, compiled layers, TF32, a fused optimizer.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer
from torchmetrics import Metric

from lightkit.errors import ConfigError
from lightkit.hardware import processor

_log = logging.getLogger("lightkit")
_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
# without compilation where no compiled code is valid
_EAGER: Literal["eager_on_recompile"] = "eager_on_recompile"
_COMPILERS = ("g++", "clang++", "c++")


class Computation(Callback):
    """Compute in another way what the model says; checkpoints and exports stay what they are.

    Args:
        memory_format: `channels_last` lays the weights of convolutions out with the channels of a
            pixel side by side, as the fastest kernels read them; images take that format in the
            first layer.
        compile: Have `torch.compile` make one kernel of several, in training, for the model's
            attributes that are layers and have parameters, each by itself. They are compiled in the
            first batch of an epoch; what differs from it, as a smaller last batch does, is computed
            without.
        tf32: Round float32 to TensorFloat-32 in matrix products and convolutions on CUDA; null
            leaves it as torch has it, which is in convolutions only.
        fused: Update all parameters in one kernel, where the optimizer can; null leaves it to the
            optimizer.

    Raises:
        ConfigError: If the optimizer has no fused kernel, or nothing on this machine can compile.
    """

    def __init__(
        self,
        memory_format: Literal["contiguous", "channels_last"] = "contiguous",
        compile: bool = False,  # noqa: A002 (as the config calls it)
        tf32: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        self.memory_format = memory_format
        self.compile = compile
        self.tf32 = tf32
        self.fused = fused
        self._is_first_batch = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Prepare the model once it is whole: before it is moved, wrapped and given optimizers.

        `configure_model` and the weights of a checkpoint come after this hook, and no hook comes
        between them and the strategy's setup, in which DDP lays out its buckets and Horovod
        broadcasts (Lightning 2.6, `Trainer._run`).
        """
        device = trainer.strategy.root_device
        if self.compile and (missing := missing_for_compiling(device.type)):
            raise ConfigError(
                f"accelerator.compile: true, but torch.compile needs {missing}. Install it, or set "
                "accelerator.compile: false."
            )
        if self.tf32 is not None and device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.tf32
        strategy: Any = trainer.strategy
        set_up = strategy.setup

        def prepare_and_set_up(trainer: Trainer) -> None:
            del strategy.setup  # the class's is there again
            self._prepare(trainer, pl_module)
            set_up(trainer)

        strategy.setup = prepare_and_set_up

    def _prepare(self, trainer: Trainer, module: LightningModule) -> None:
        if self.memory_format == "channels_last":
            for weight in _weights_of_convolutions(module):
                weight.data = weight.data.contiguous(memory_format=_CHANNELS_LAST[weight.dim()])
        if not self.compile or trainer.state.fn != TrainerFn.FITTING:
            return
        # not the model, whose steps log and count, which would break it into many pieces
        parts = [*_parts(module)]
        for part in parts:
            part.compile(dynamic=False)
        torch.compiler.set_stance(_EAGER)
        if not parts:
            _log.warning(
                "accelerator.compile: true compiles nothing: no attribute of"
                " %s is a layer with parameters",
                type(module).__name__,
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse an optimizer without a fused kernel before anything is computed."""
        for optimizer in trainer.optimizers if self.fused else ():
            if not _can_be_fused(optimizer):
                raise ConfigError(
                    f"accelerator.fused: true, but {type(optimizer).__name__} has no fused kernel"
                    " for all its parameters. Adam, AdamW, SGD and Adagrad have one for parameters"
                    " of real numbers, unless differentiable is set. Set accelerator.fused: false,"
                    " or choose another optimizer."
                )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set up the optimizers, whose state a checkpoint has filled by now."""
        for optimizer in trainer.optimizers:
            if self.fused is not None and _can_be_fused(optimizer):
                _fuse(optimizer, fused=self.fused)
            _lay_out_state(optimizer)
        # which is left out where an epoch is resumed in its middle
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Allow compilation for the first batch of the epoch.

        Again where layers were frozen or unfrozen.
        """
        if self.compile:
            torch.compiler.set_stance("default")
            self._is_first_batch = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Forbid compilation for all other batches.

        Of a smaller one, or an evaluation, it saves too little.
        """
        if self._is_first_batch:
            torch.compiler.set_stance(_EAGER)
            self._is_first_batch = False

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the model as it was, and torch to compile as it does."""
        vars(trainer.strategy).pop("setup", None)
        if self.compile:
            torch.compiler.set_stance("default")
            for part in _parts(pl_module):
                part._compiled_call_impl = None
        if self.memory_format == "channels_last":
            for weight in _weights_of_convolutions(pl_module):
                weight.data = weight.data.contiguous()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave the model as it was."""
        self.teardown(trainer, pl_module, "fit")


def _can_be_fused(optimizer: Optimizer) -> bool:
    """Return whether an optimizer has a kernel for all parameters, and may use it for these."""
    return "fused" in getattr(optimizer, "defaults", {}) and all(  # DeepSpeed's has none
        torch.is_floating_point(parameter) and not group.get("differentiable")
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def _weights_of_convolutions(module: nn.Module) -> Iterator[nn.Parameter]:
    for layer in module.modules():
        if isinstance(layer, _CONVOLUTIONS):
            for weight in layer.parameters():  # those of a parametrization too
                if (
                    not isinstance(weight, UninitializedParameter)
                    and weight.dim() in _CHANNELS_LAST
                ):
                    yield weight


def _fuse(optimizer: Optimizer, *, fused: bool) -> None:
    """Set what groups hold, those to come too.

    Put the count of steps where that kind of kernel wants it.

    What fusing afterwards does not set is `_step_supports_amp_scaling`, by which the gradient
    scaler leaves unscaling to the kernel: Lightning then unscales gradients itself, before it clips
    them. An optimizer that was built fused has it, and its plain kernel would take scaled gradients
    for true ones.
    """
    optimizer.defaults["fused"] = fused
    if not fused:
        vars(optimizer).pop("_step_supports_amp_scaling", None)
    for group in optimizer.param_groups:
        group["fused"] = fused
        if fused and group.get("foreach"):
            group["foreach"] = None
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if isinstance(step := state.get("step"), Tensor):
                on_device = fused or group.get("capturable", False)
                state["step"] = step.to(parameter.device if on_device else "cpu", torch.float32)


def _lay_out_state(optimizer: Optimizer) -> None:
    """Lay out what the optimizer keeps of each weight as the weight is.

    So its fast kernels take both.
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if (
                isinstance(value, Tensor)
                and value.shape == parameter.shape
                and value.stride() != parameter.stride()
            ):
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def name_device(device: torch.device) -> str:
    """Return the kind of a device; on two of one kind, lower precisions compute alike.

    Returns:
        ``cpu``, ``cpu with bf16``, the name of a GPU, or another type of torch's.
    """
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    if device.type == "cpu" and processor.has_bf16(processor.instruction_sets()):
        return "cpu with bf16"
    return device.type


def missing_for_compiling(device: str) -> str | None:
    """Say what `torch.compile` lacks on this machine; None where it has all that it needs.

    Args:
        device: Type of the device that trains.
    """
    if device == "cuda":
        return None if importlib.util.find_spec("triton") else "triton, which is not installed"
    compiler = os.environ.get("CXX") or next(filter(shutil.which, _COMPILERS), None)
    if device == "cpu" and (compiler is None or shutil.which(compiler) is None):
        return f"a C++ compiler ({compiler or ', '.join(_COMPILERS)} is not on the PATH)"
    return None


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):  # these are never called themselves
            yield from _parts(child)
        elif not isinstance(child, Metric) and any(True for _ in child.parameters()):
            yield child


def build_computation(section: Mapping[str, Any], *, trains: bool = True) -> list[Callback]:
    """Build the callback that applies the section `accelerator`.

    None where it leaves torch's defaults.

    Args:
        section: The section.
        trains: Whether the model is trained: only then it is compiled, and has an optimizer.
    """
    keys = ("memory_format", "tf32", "compile", "fused") if trains else ("memory_format", "tf32")
    given = {
        key: section[key] for key in keys if section.get(key) not in (None, False, "contiguous")
    }
    given |= {key: False for key in ("tf32", "fused") if key in keys and section.get(key) is False}
    return [Computation(**given)] if given else []

"""The callback that has a run computed in a certain way: memory format, compiled layers, TF32, a fused optimizer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from lightkit.errors import ConfigError
from lightkit.tuning.compiling import compile_parts, refuse_without_compiler, uncompile
from lightkit.tuning.tf32 import set_tf32, tf32_of_process
from lightkit.tuning.variant import MemoryFormat

__all__ = ["Computation", "can_be_fused", "has_convolutions"]

_log = logging.getLogger("lightkit")
_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class Computation(Callback):
    """Compute in another way what the model says; checkpoints, exports and predictions stay what they are.

    Args:
        memory_format: `channels_last` lays the weights of convolutions out with the channels of a pixel side by side,
            as the fastest kernels read them; images take that format in the first layer.
        compile: Have `torch.compile` make one kernel of several, in training, for the model's attributes that are
            layers and have parameters, each by itself. A batch that is smaller than those before, as the last of an
            epoch is, is computed without.
        tf32: Round float32 to TensorFloat-32 in matrix products and convolutions on CUDA; null leaves it as torch has
            it, which is in convolutions only.
        fused: Update all parameters in one kernel, where the optimizer can; null leaves it to the optimizer.

    Raises:
        ConfigError: If the optimizer has no fused kernel, or nothing on this machine can compile.
    """

    def __init__(
        self,
        memory_format: MemoryFormat = "contiguous",
        compile: bool = False,  # noqa: A002 (as the config calls it)
        tf32: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        self.memory_format = memory_format
        self.compile = compile
        self.tf32 = tf32
        self.fused = fused
        self._tf32_before: tuple[bool, bool] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Prepare the model as soon as it is whole: before it is moved, wrapped and given optimizers.

        `configure_model` and the weights of a checkpoint come after this hook, and no hook comes between them and the
        strategy's setup, in which DDP lays out its buckets and Horovod broadcasts (Lightning 2.6,
        `Trainer._run`).
        """
        device = trainer.strategy.root_device
        if self.compile:
            refuse_without_compiler(device.type)
        if self.tf32 is not None and device.type == "cuda":
            self._tf32_before = tf32_of_process()
            set_tf32(self.tf32, self.tf32)
        strategy: Any = trainer.strategy
        set_up = strategy.setup

        def prepare_and_set_up(trainer: Trainer) -> None:
            del strategy.setup  # the class's is there again
            self._prepare(trainer, pl_module)
            set_up(trainer)

        strategy.setup = prepare_and_set_up
        if self.memory_format == "channels_last":
            _save_contiguous(strategy)

    def _prepare(self, trainer: Trainer, module: LightningModule) -> None:
        if self.memory_format == "channels_last":
            for weight in _weights_of_convolutions(module):
                weight.data = weight.data.contiguous(memory_format=_CHANNELS_LAST[weight.dim()])
        is_compiling = self.compile and trainer.state.fn == TrainerFn.FITTING
        if is_compiling and not compile_parts(module, when=lambda: trainer.training):
            _log.warning(
                "accelerator.compile: true compiles nothing: no attribute of %s is a layer with parameters",
                type(module).__name__,
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse an optimizer without a fused kernel before anything is computed."""
        for optimizer in trainer.optimizers if self.fused else ():
            if not can_be_fused(optimizer):
                raise ConfigError(
                    f"accelerator.fused: true, but {type(optimizer).__name__} has no fused kernel for all its "
                    "parameters. Adam, AdamW, SGD and Adagrad have one for parameters of real numbers, unless "
                    "differentiable is set. Set accelerator.fused: false, or choose another optimizer."
                )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set up the optimizers, whose state a checkpoint has filled by now."""
        for optimizer in trainer.optimizers:
            if self.fused is not None and can_be_fused(optimizer):
                _fuse(optimizer, fused=self.fused)
            _lay_out_state(optimizer)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the model and the process as they were."""
        self._restore(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the model and the process as they were."""
        self._restore(trainer, pl_module)

    def _restore(self, trainer: Trainer, module: LightningModule) -> None:
        for name in ("setup", "lightning_module_state_dict", "optimizer_state"):
            vars(trainer.strategy).pop(name, None)
        if self._tf32_before is not None:
            set_tf32(*self._tf32_before)
            self._tf32_before = None
        if self.compile:
            uncompile(module)
        if self.memory_format == "channels_last":
            for weight in _weights_of_convolutions(module):
                weight.data = weight.data.contiguous()


def has_convolutions(module: nn.Module) -> bool:
    """Tell whether a memory format other than torch's own could change anything."""
    return next(_weights_of_convolutions(module), None) is not None


def can_be_fused(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer has a kernel for all parameters, and may use it for these."""
    return "fused" in getattr(optimizer, "defaults", {}) and all(  # DeepSpeed's has none
        torch.is_floating_point(parameter) and not group.get("differentiable")
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def _weights_of_convolutions(module: nn.Module) -> Iterator[nn.Parameter]:
    for layer in module.modules():
        if isinstance(layer, _CONVOLUTIONS):
            for weight in layer.parameters():  # those of a parametrization too
                if not isinstance(weight, UninitializedParameter) and weight.dim() in _CHANNELS_LAST:
                    yield weight


def _fuse(optimizer: Optimizer, *, fused: bool) -> None:
    """Set what groups hold, those to come too, and put the count of steps where that kind of kernel wants it.

    What fusing afterwards does not set is `_step_supports_amp_scaling`, by which the gradient scaler leaves unscaling
    to the kernel: Lightning then unscales gradients itself, before it clips them. An optimizer that was built fused
    has it, and its plain kernel would take scaled gradients for true ones.
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


def _save_contiguous(strategy: Any) -> None:
    """Have checkpoints, those of weights alone too, hold tensors as any program expects them."""
    of_module, of_optimizer = strategy.lightning_module_state_dict, strategy.optimizer_state

    def module_state() -> dict[str, Any]:
        state: dict[str, Any] = of_module()
        state.update({name: _contiguous(value) for name, value in state.items()})  # in place: it has more attributes
        return state

    def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
        saved: dict[str, Any] = of_optimizer(optimizer)
        states = saved.get("state")
        if not isinstance(states, dict):
            return saved
        return {**saved, "state": {key: _contiguous_values(value) for key, value in states.items()}}

    strategy.lightning_module_state_dict, strategy.optimizer_state = module_state, optimizer_state


def _contiguous_values(state: Any) -> Any:
    if not isinstance(state, dict):
        return state
    return {name: _contiguous(value) for name, value in state.items()}  # the optimizer's own stays as it is


def _contiguous(value: Any) -> Any:
    return value.contiguous() if isinstance(value, Tensor) and value.layout == torch.strided else value


def _lay_out_state(optimizer: Optimizer) -> None:
    """Lay out what the optimizer keeps of each weight as the weight is, so that its fast kernels take both."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)

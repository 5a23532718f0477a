"""The callback that has a run computed in a certain way: memory format, compiled layers, TF32, a fused optimizer."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer
from torchmetrics import Metric

from lightkit.errors import ConfigError

_log = logging.getLogger("lightkit")
_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_COMPILERS = ("g++", "clang++", "c++")


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
        memory_format: Literal["contiguous", "channels_last"] = "contiguous",
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
            _refuse_without_compiler(device.type)
        if self.tf32 is not None and device.type == "cuda":
            self._tf32_before = _get_tf32()
            _set_tf32(self.tf32, self.tf32)
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
        if is_compiling and not _compile_parts(module, when=lambda: trainer.training):
            _log.warning(
                "accelerator.compile: true compiles nothing: no attribute of %s is a layer with parameters",
                type(module).__name__,
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse an optimizer without a fused kernel before anything is computed."""
        for optimizer in trainer.optimizers if self.fused else ():
            if not _can_be_fused(optimizer):
                raise ConfigError(
                    f"accelerator.fused: true, but {type(optimizer).__name__} has no fused kernel for all its "
                    "parameters. Adam, AdamW, SGD and Adagrad have one for parameters of real numbers, unless "
                    "differentiable is set. Set accelerator.fused: false, or choose another optimizer."
                )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set up the optimizers, whose state a checkpoint has filled by now."""
        for optimizer in trainer.optimizers:
            if self.fused is not None and _can_be_fused(optimizer):
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
            _set_tf32(*self._tf32_before)
            self._tf32_before = None
        if self.compile:
            _uncompile(module)
        if self.memory_format == "channels_last":
            for weight in _weights_of_convolutions(module):
                weight.data = weight.data.contiguous()


def has_convolutions(module: nn.Module) -> bool:
    """Tell whether a memory format other than torch's own could change anything."""
    return next(_weights_of_convolutions(module), None) is not None


def _can_be_fused(optimizer: Optimizer) -> bool:
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


def missing_for_compiling(device: str) -> str | None:
    """Say what `torch.compile` lacks on this machine; None where it has all that it needs.

    Args:
        device: Type of the device that trains.
    """
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if device == "cpu":
        compiler = os.environ.get("CXX") or next(filter(shutil.which, _COMPILERS), None)
        if compiler is None or shutil.which(compiler) is None:
            return f"a C++ compiler ({compiler or ', '.join(_COMPILERS)} is not on the PATH)"
        return None if header.is_file() else f"Python's headers ({header} is not there)"
    if device == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "triton, which is not installed"
        compiler = os.environ.get("CC") or next(filter(shutil.which, ("gcc", "clang", "cc")), None)
        return None if compiler and shutil.which(compiler) else "a C compiler, which triton builds its launcher with"
    return None


def _refuse_without_compiler(device: str) -> None:
    """Refuse to compile where that would fail in the first step.

    Raises:
        ConfigError: If something is missing.
    """
    if missing := missing_for_compiling(device):
        raise ConfigError(
            f"accelerator.compile: true, but torch.compile needs {missing}. Install it, or set accelerator.compile: "
            "false."
        )


def _compile_parts(module: nn.Module, *, when: Callable[[], bool]) -> int:
    """Have the first-level children of a model that have parameters compiled when they are first called.

    The parts, not the model: what its steps log and count would break into pieces that cost more than they give.

    Args:
        module: The model.
        when: Tells whether a call is to be compiled.

    Returns:
        Number of these parts.
    """
    parts = [*_parts(module)]
    for part in parts:
        part.compile()
        compiled = part._compiled_call_impl
        assert callable(compiled)
        part._compiled_call_impl = _SteadyBatches(compiled, part._call_impl, when)
    return len(parts)


def _uncompile(module: nn.Module) -> None:
    """Undo `_compile_parts`."""
    for part in module.modules():
        if isinstance(vars(part).get("_compiled_call_impl"), _SteadyBatches):
            part._compiled_call_impl = None


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):  # these are never called themselves
            yield from _parts(child)
        elif not isinstance(child, Metric) and any(True for _ in child.parameters()):
            yield child


class _SteadyBatches:
    """A compiled call for the usual size of batch, and the plain one for what is smaller.

    The last batch of an epoch would be compiled once more, for tens of seconds, or have all batches use a slower
    program for any size.
    """

    def __init__(self, compiled: Callable[..., Any], plain: Callable[..., Any], when: Callable[[], bool]) -> None:
        self._compiled, self._plain, self._when = compiled, plain, when
        self._largest = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._when():
            return self._plain(*args, **kwargs)
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.dim()]
        size = tensors[0].shape[0] if tensors else self._largest
        if size < self._largest:
            return self._plain(*args, **kwargs)
        self._largest = size
        return self._compiled(*args, **kwargs)


def _get_tf32() -> tuple[bool, bool]:
    """Tell it of matrix products, and of cuDNN's convolutions."""
    try:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    except RuntimeError:  # set by the new names
        return _by_new_names("cuda"), _by_new_names("cudnn")


def _set_tf32(in_products: bool, in_convolutions: bool) -> None:
    """Set it for matrix products, and for cuDNN's convolutions."""
    torch.backends.cuda.matmul.allow_tf32 = in_products
    torch.backends.cudnn.allow_tf32 = in_convolutions


def _by_new_names(library: str) -> bool:
    backends: Any = torch.backends
    backend = backends.cuda.matmul if library == "cuda" else backends.cudnn.conv
    return bool(backend.fp32_precision == "tf32")

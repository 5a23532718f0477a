"""The gradient of convolutions in bf16 whose input is narrower than their stride, on a CPU.

torch 2.15 leaves a part of such a weight's gradient as it finds it in memory: oneDNN's kernels with
AVX-512 do not write the columns of the kernel that read nothing but padding. What stands there may
be NaN, which ends the training, or a number, which changes the norm by which gradients are clipped.
It goes where torch writes zeros there; tests/callbacks/test_strided_gradients.py has the shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor, is_grad_enabled, nn
from torch.nn.parameter import UninitializedParameter

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class StridedGradients(Callback):
    """Write zeros to the gradient of those columns of a kernel that have read only padding.

    It changes trainings on a CPU in bf16 alone, and there layers with a stride that see inputs of
    fewer columns than it. A layer with a parametrized weight is left as it is.
    """

    def __init__(self) -> None:
        self._unread: dict[nn.Module, set[int]] = {}
        self._hooks: list[Any] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch the inputs and the gradients of convolutions with a stride."""
        on_cpu = trainer.strategy.root_device.type == "cpu"
        if not on_cpu or not str(trainer.precision).startswith("bf16"):
            return
        hook = self._build_hook()
        for layer in pl_module.modules():
            if _is_concerned(layer):
                weight: Any = layer.weight
                self._hooks.append(layer.register_forward_pre_hook(hook))
                self._hooks.append(weight.register_hook(partial(self._clear, layer)))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the model as it was."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._unread.clear()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave the model as it was."""
        self.on_train_end(trainer, pl_module)

    def _build_hook(self) -> Callable[[nn.Module, tuple[Tensor]], tuple[Tensor]]:
        """Build a hook that notes inputs, and that ``torch.jit.script`` can compile."""

        def note(layer: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
            if not torch.jit.is_scripting():  # type: ignore[attr-defined]
                self._note_input(layer, inputs)
            return inputs

        return note

    def _note_input(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Note the columns of the kernel that no input of this step has reached."""
        if not is_grad_enabled() or not inputs:
            return
        unread = find_unread_columns(layer, inputs[0].shape[-1])
        self._unread[layer] = self._unread.get(layer, unread) & unread

    def _clear(self, layer: nn.Module, gradient: Tensor) -> Tensor | None:
        unread = self._unread.pop(layer, None)
        if not unread:
            return None
        gradient = gradient.clone()
        gradient[..., sorted(unread)] = 0
        return gradient


def _is_concerned(layer: nn.Module) -> bool:
    """Return whether a layer is a convolution with a stride that pads with zeros."""
    if not isinstance(layer, _CONVOLUTIONS) or layer.padding_mode != "zeros":
        return False
    weight = layer._parameters.get("weight")
    if weight is None or isinstance(weight, UninitializedParameter) or not weight.requires_grad:
        return False
    return layer.stride[-1] > 1 and layer.kernel_size[-1] > 1


def find_unread_columns(layer: Any, width: int) -> set[int]:
    """Find the columns of a kernel that read only padding, whose gradient is zero.

    Args:
        layer: A convolution that pads with zeros.
        width: Number of columns of its input.
    """
    kernel = layer.kernel_size[-1]
    stride = layer.stride[-1]
    if width >= stride:
        return set()
    dilation = layer.dilation[-1]
    padding = 0 if isinstance(layer.padding, str) else layer.padding[-1]  # "valid" has none
    num_outputs = (width + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    starts = [at * stride - padding for at in range(num_outputs)]
    return {
        column
        for column in range(kernel)
        if not any(0 <= start + column * dilation < width for start in starts)
    }

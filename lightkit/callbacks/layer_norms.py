"""The gradient of layer norms in bf16 on a CPU.

torch 2.15 sums the gradients of a layer norm's weight and bias in the type of its input, row after
row: in bf16 a sum of ones ends at 256 for each thread, and with the gradients of a network it is
off by several percent. On a GPU autocast computes layer norms in float32; it does not on a CPU. The
callback can go where torch sums in float32; tests/callbacks/test_layer_norms.py says so.
"""

from __future__ import annotations

from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor, is_grad_enabled, nn


class LayerNorms(Callback):
    """Compute layer norms in float32, as autocast does on a GPU.

    It changes trainings on a CPU in bf16-mixed alone, and there layers whose input is in bf16, such
    as the output of a linear layer. Evaluations compute layer norms in bf16 as ever. The hooks are
    on the layers there, too: torch evaluates an `nn.TransformerEncoderLayer` without hooks by a
    kernel of its own, with other numbers than a validation of the training has, and which fails in
    bf16 where texts are padded. Calls of `torch.nn.functional.layer_norm` are left as they are.
    """

    def __init__(self) -> None:
        self._hooks: list[Any] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Convert the inputs of layer norms."""
        on_cpu = trainer.strategy.root_device.type == "cpu"
        if on_cpu and str(trainer.precision) == "bf16-mixed" and not self._hooks:
            norms = [each for each in pl_module.modules() if isinstance(each, nn.LayerNorm)]
            self._hooks.extend(each.register_forward_pre_hook(_convert) for each in norms)

    on_validation_start = on_test_start = on_predict_start = on_fit_start

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the model as it was, before loggers take it."""
        self._remove()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the model as it was."""
        self._remove()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave the model as it was."""
        self._remove()

    def _remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


def _convert(_layer: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """Return the inputs of a layer in float32, or as they are.

    ``torch.jit.script`` compiles the hooks of a model, too, with the types of a layer norm.
    """
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        inputs = _convert_bfloat16(inputs)
    return inputs


def _convert_bfloat16(inputs: tuple[Any, ...]) -> Any:
    """Return inputs of which the first is in float32 where it is in bf16 and has a gradient."""
    if not is_grad_enabled() or not inputs:
        return inputs
    first = inputs[0]
    if not isinstance(first, Tensor) or first.dtype != torch.bfloat16:
        return inputs
    return (first.float(), *inputs[1:])

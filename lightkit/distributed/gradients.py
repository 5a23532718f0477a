"""Gradients averaged over the ranks while the backward pass still computes others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from lightkit.distributed.collectives import hvd, plain
from lightkit.distributed.lr_scaling import before_update
from lightkit.errors import LightkitError
from lightkit.launch import waiting


class AveragedGradients:
    """Average gradients over the ranks, each as soon as this rank has it.

    A parameter that had no gradient on any rank keeps none, so that its optimizer leaves it alone, as it does in one
    process. One that had a gradient on some ranks only counts as zero on the others.

    Args:
        module: Its parameters are watched.
        compression: ``fp16`` halves what is sent.
    """

    def __init__(self, module: Module, *, compression: Literal["fp16"] | None = None) -> None:
        self._module, self._compression = module, compression
        self._hooks: dict[Parameter, RemovableHandle] = {}
        self._names: dict[Parameter, str] = {}
        self._fresh: set[Parameter] = set()  # with a gradient that the other ranks have not seen yet
        self._sent: dict[Parameter, tuple[int, Tensor]] = {}
        self._blocked, self._sending = False, False
        self._guards: dict[Optimizer, RemovableHandle] = {}

    def watch(self, optimizers: list[Optimizer]) -> None:
        """Hook every parameter that asks for a gradient; call it before each backward, as more may ask by then.

        A gradient of a backward that nobody announced, as `loss.backward()` is one, stays on this rank; an optimizer
        that is about to use it raises `LightkitError`.

        Raises:
            LightkitError: If an optimizer moves a parameter that is not in the module, which would part the ranks.
        """
        self._names = {parameter: name for name, parameter in self._module.named_parameters()}
        for parameter in self._names:
            if parameter.requires_grad and parameter not in self._hooks:
                hook = parameter.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
                self._hooks[parameter] = hook
        for optimizer in optimizers:
            if optimizer not in self._guards:
                self._guards[optimizer] = optimizer.register_step_pre_hook(before_update(self._check_step))
            for group in optimizer.param_groups:
                if any(parameter not in self._names for parameter in group["params"]):
                    raise LightkitError(
                        f"{type(optimizer).__name__} moves a parameter that is not part of the LightningModule, so "
                        "Horovod cannot average its gradient. Make it an attribute of the module."
                    )

    @contextmanager
    def averaging(self) -> Iterator[None]:
        """Send the gradients of the backward within, and wait for the averages."""
        self._sending = not self._blocked
        try:
            yield
        finally:
            self._sending = False
        self._finish()

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Gather gradients on this rank only: for all batches of an accumulation but the last."""
        before, self._blocked = self._blocked, True
        try:
            yield
        finally:
            self._blocked = before

    def _finish(self) -> None:
        """Wait until every gradient of this backward, and of the blocked ones before it, is the average."""
        if self._blocked:
            return
        parameters = list(self._names)
        for parameter in parameters:  # from a blocked backward, and not used in this one
            if parameter in self._fresh and parameter not in self._sent and parameter.grad is not None:
                self._send(parameter)
        for parameter, used in zip(parameters, self._used_anywhere(parameters), strict=True):
            if used and parameter not in self._sent:
                self._send(parameter)
        with plain(), waiting("all-reduce of the gradients"):
            for parameter, (handle, wire) in self._sent.items():
                hvd.synchronize(handle)
                if parameter.grad is not None and wire.data_ptr() != parameter.grad.data_ptr():
                    parameter.grad.detach().copy_(wire)
        self._sent.clear()
        self._fresh.clear()

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks.values():
            hook.remove()
        for guard in self._guards.values():
            guard.remove()
        self._hooks.clear()
        self._guards.clear()
        self._sent.clear()

    def _check_step(self, optimizer: Optimizer) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        own = [p for p in parameters if p.grad is not None and (p in self._fresh or p not in self._hooks)]
        unseen = next((parameter for parameter in own if bool(parameter.grad.any())), None)
        if unseen is not None:
            raise LightkitError(
                f"{type(optimizer).__name__} is about to use a gradient of {self._names.get(unseen, 'a parameter')} "
                "that was not averaged over the ranks, which would part them. In manual optimization call "
                "self.manual_backward(loss) instead of loss.backward(), and step after a backward that synchronizes."
            )

    def _on_gradient(self, parameter: Tensor) -> None:
        assert isinstance(parameter, Parameter)
        if parameter in self._sent:
            raise LightkitError(
                f"{self._names[parameter]} got its gradient twice in one backward, and the first is on its way to the "
                "other ranks. Checkpoint activations with use_reentrant=False."
            )
        self._fresh.add(parameter)
        if self._sending:
            self._send(parameter)

    def _used_anywhere(self, parameters: list[Parameter]) -> list[bool]:
        """Say of each parameter whether any rank has sent it."""
        mine = torch.tensor([parameter in self._sent for parameter in parameters], dtype=torch.int32)
        with plain(), waiting("all-reduce of the gradients"):
            used = hvd.allreduce(mine, op=hvd.Max, name="lightkit.gradients")
        return [bool(value) for value in used.tolist()]

    def _send(self, parameter: Parameter) -> None:
        name = self._names[parameter]
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.layout != torch.strided:
            raise LightkitError(f"the gradient of {name} is sparse, which Horovod does not average here: sparse=False.")
        with plain():
            wire, op = self._staged(parameter.grad.detach())
            self._sent[parameter] = hvd.allreduce_async_(wire, name=f"lightkit.gradient.{name}", op=op), wire

    def _staged(self, gradient: Tensor) -> tuple[Tensor, int]:
        """Give what is sent for a gradient, and how it is reduced. Horovod 0.28 has no bfloat16."""
        if self._compression == "fp16" and gradient.dtype != torch.float16:
            return (gradient / hvd.size()).half().contiguous(), hvd.Sum  # divided first, so that the sum fits
        if gradient.dtype == torch.bfloat16:
            return gradient.float().contiguous(), hvd.Average
        return gradient.contiguous(), hvd.Average

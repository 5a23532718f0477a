"""The features of a frozen backbone.

They are the same in every epoch, so that they need be computed only once.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse
from torch.nn.modules.batchnorm import _BatchNorm

log = logging.getLogger("lightkit.models")

_NUM_AXES = 4
_NUM_CHANNELS = 3
_SHARDED = (FSDPStrategy, DeepSpeedStrategy, ModelParallelStrategy)
_ON_THE_WAY = (
    "__call__", "forward", "train", "training_step", "validation_step",
    "on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer",
    "on_train_batch_start", "on_train_batch_end", "on_validation_batch_start",
    "on_validation_batch_end",
)  # fmt: skip


class FrozenFeatures:
    """Computes the input of a model's head, where all else is frozen.

    Args:
        module: The model, on the device and with the trainer that it has when features are asked
            for.
        network: Its network, in which all but the head is frozen.
        head_names: Of the layers that make the logits, by `subnetworks_of_head`.
        is_wanted: The user has asked for it; why it cannot be is then a warning.
    """

    def __init__(
        self,
        module: LightningModule,
        network: nn.Module,
        head_names: Sequence[str],
        *,
        is_wanted: bool,
    ) -> None:
        self._module = module
        self._network = network
        self._head_names = tuple(head_names)
        self._is_wanted = is_wanted
        heads = tuple(f"{name}." for name in head_names)
        self._frozen = [
            parameter
            for name, parameter in network.named_parameters()
            if not name.startswith(heads)
        ]
        self._example: tuple[Tensor, Tensor] | None = None

    def example(self, size: tuple[int, int]) -> Tensor | None:
        """Compute the features ``(1, ...)`` of one image of noise.

        None, with the reason logged, where there are none.

        With it `_try` checks that the head alone makes the same logits as the whole model.

        Args:
            size: Height and width of the images.
        """
        features, reason = self._try(size)
        if reason and self._module.trainer.is_global_zero:
            level = logging.WARNING if self._is_wanted else logging.INFO
            log.log(level, "features of the frozen backbone are computed at each step: %s", reason)
        return features

    def _try(self, size: tuple[int, int]) -> tuple[Tensor | None, str]:
        if not self.is_frozen():
            return None, "not all of it is frozen"
        if isinstance(self._module.trainer.strategy, _SHARDED):
            return (
                None,
                f"{type(self._module.trainer.strategy).__name__} parts the backbone's weights",
            )
        if len(self._head_names) != 1:
            return None, f"its head has {len(self._head_names)} parts"
        device = self._module.device
        noise = torch.randn(1, _NUM_CHANNELS, *size, generator=torch.Generator().manual_seed(0))
        images = self._module.trainer.precision_plugin.convert_input(noise.to(device))
        with self._keeping_rng():
            features, logits = self._trace(images)
            again, _ = self._trace(images)
            batched, _ = self._trace(torch.cat([images, -images]))
            if features is None or again is None or batched is None:
                return None, "its head's input is not one tensor"
            if not _are_close(again, features) or not _are_alike(
                batched[:1], features, within=0.05
            ):
                return None, "it is another each time, or with other images in its batch"
            with torch.no_grad(), self._precision():
                alone = compute_logits(self._network, self._head_names[0], features)
            if are_images(features) or alone.shape != logits.shape or not _are_close(alone, logits):
                return None, "its logits are not made of its head's input alone"
            self._example = (images, features)
        return features, ""

    @cached_property
    def _fused(self) -> nn.Module | None:
        """The network with its batch norms folded into the layers before them.

        None where that is not faster, or not the same. It is made once features are computed: a fit
        that finds all of them on disk needs no copy.

        A batch norm of known statistics is one factor and one summand a channel, which convolutions
        and linear layers have as well (Jacob et al., "Quantization and Training of Neural Networks
        for Efficient Integer-Arithmetic-Only Inference", 2018, section 3.2).
        """
        assert self._example is not None
        images, features = self._example
        if not self._has_foldable_norms():
            return None
        rounding = 1e-9 if features.dtype == torch.float64 else 0.05  # on a GPU float32 may be TF32
        if features.dtype == torch.float32 and features.device.type == "cpu":
            rounding = 1e-4
        try:
            with self._keeping_rng(), _in_eval(self._module), _uncompiled(self._module):
                fused = fuse(self._network).requires_grad_(requires_grad=False)
                same, _ = self._trace(images, fused)
        except Exception as error:  # noqa: BLE001 (a forward in Python may do anything with what stands for a tensor)
            log.debug(
                "%s is computed as it is, since it cannot be traced: %s",
                type(self._network).__name__,
                error,
            )
            return None
        return fused if same is not None and _are_alike(same, features, within=rounding) else None

    def _has_foldable_norms(self) -> bool:
        """Return whether the network has batch norms, is exact enough to fold, and has no hooks."""
        layers = [self._module, *self._network.modules()]
        has_hooks = any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)
        are_exact = all(
            parameter.dtype in (torch.float32, torch.float64) for parameter in self._frozen
        )
        has_norms = any(isinstance(layer, _BatchNorm) for layer in layers)
        return has_norms and are_exact and not has_hooks

    def digest(self) -> str:
        """Compute a digest of all that decides the features of an image.

        Network, weights, precision and device.
        """
        heads = tuple(f"{name}." for name in self._head_names)
        precision = self._module.trainer.precision_plugin
        decided_by = (
            self._network,
            precision.precision,
            self._module.device.type,
            torch.get_float32_matmul_precision(),
        )
        digest = hashlib.sha256("\0".join(map(str, decided_by)).encode())
        for name, tensor in self._network.state_dict().items():
            if not name.startswith(heads):
                plain = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
                digest.update(
                    f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
                    + plain.numpy().tobytes()
                )
        return digest.hexdigest()

    def is_frozen(self) -> bool:
        """Check whether the backbone is still not trained."""
        return not any(parameter.requires_grad for parameter in self._frozen)

    def compute(self, images: Tensor) -> Tensor:
        """Compute the features of normalised images, in the dtype of the trainer's precision."""
        features, _ = self._trace(images, self._fused)
        assert features is not None
        return features

    def _trace(self, images: Tensor, copy: nn.Module | None = None) -> tuple[Tensor | None, Tensor]:
        """Compute the input of the head, and the logits, of the model or of a copy.

        Nothing learns from it.
        """
        given: list[Any] = []
        head = (copy or self._network).get_submodule(self._head_names[0])
        hook = head.register_forward_pre_hook(lambda _, inputs: given.append(inputs))
        try:
            with (
                torch.no_grad(),
                self._precision(),
                _in_eval(self._module),
                _uncompiled(self._module),
            ):
                logits = (copy or self._module)(images)
        finally:
            hook.remove()
        is_one = len(given) == 1 and len(given[0]) == 1 and isinstance(given[0][0], Tensor)
        return (
            given[0][0].detach() if is_one and len(given[0][0]) == len(images) else None
        ), logits

    def _keeping_rng(self) -> AbstractContextManager[None]:
        """Within it nothing is drawn from the generators with which the model is trained."""
        device = self._module.device
        return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])

    def _precision(self) -> AbstractContextManager[Any]:
        return self._module.trainer.precision_plugin.val_step_context()


def are_images(inputs: Tensor) -> bool:
    """Distinguish images ``(batch, 3, height, width)`` from features."""
    return inputs.ndim == _NUM_AXES and inputs.shape[1] == _NUM_CHANNELS


def compute_logits(network: nn.Module, head_name: str, features: Tensor) -> Tensor:
    """Compute the logits ``(batch, num_classes)`` of the head's input.

    What follows the head in an `nn.Sequential` is applied as well, such as SqueezeNet's mean over
    all places.
    """
    parent_name, _, own_name = head_name.rpartition(".")
    parent = network.get_submodule(parent_name)
    logits: Tensor = network.get_submodule(head_name)(features)
    if isinstance(parent, nn.Sequential):
        names = [name for name, _ in parent.named_children()]
        for name in names[names.index(own_name) + 1 :]:
            logits = parent.get_submodule(name)(logits)
    return logits.flatten(1)


def list_own_methods(
    module: LightningModule, base: type[LightningModule], *steps: str
) -> list[str]:
    """Name the methods that get a batch.

    Name those that change what is made of it, too; all are others than those of ``base``.

    They expect images, or may make something else of one at each step.

    Args:
        module: Of a class made of ``base``, or of ``base`` itself with methods of its own.
        base: Has those that are known.
        steps: Other methods than Lightning's that are looked at.
    """
    # by its function, for a strategy may put the same one, bound, on the instance (Lightning 2.6,
    # _ForwardRedirection)
    return [
        name
        for name in (*_ON_THE_WAY, *steps)
        if getattr(getattr(module, name), "__func__", None) is not getattr(base, name)
    ]


def _are_close(one: Tensor, other: Tensor) -> bool:
    # the same kernels on the same numbers; another layout in memory may round otherwise
    atol = 1e-4 if other.dtype == torch.float32 else 1e-2
    return torch.allclose(
        one.float(), other.float(), rtol=atol, atol=atol * float(other.abs().max().clamp_min(1))
    )


def _are_alike(one: Tensor, other: Tensor, *, within: float) -> bool:
    # other kernels may compute a larger batch, of bfloat16 or TF32 in each layer; a batch's own
    # statistics do far more
    return one.shape == other.shape and float(
        (one.float() - other.float()).norm()
    ) <= within * float(other.float().norm())


@contextmanager
def _in_eval(model: nn.Module) -> Iterator[None]:
    """Within it all of a model is in eval mode.

    Features may be asked for before a training sets the modes.
    """
    learning = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in learning:
            module.training = True


def _uncompiled(module: nn.Module) -> AbstractContextManager[Any]:
    """Within it a compiled model is computed layer by layer.

    The hook on its head would compile it once more.
    """
    is_compiled = any(
        getattr(part, "_compiled_call_impl", None) is not None for part in module.modules()
    )
    stance: AbstractContextManager[Any] = (
        torch.compiler.set_stance("force_eager") if is_compiled else nullcontext()
    )
    return stance

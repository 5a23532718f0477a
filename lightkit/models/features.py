"""What a frozen backbone makes of an image, which is the same in every epoch, so that it need be computed only once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["FrozenFeatures", "are_images", "fuse_batch_norms", "logits_of", "own_methods"]

log = logging.getLogger("lightkit.models")

_NUM_AXES, _NUM_CHANNELS = 4, 3
_SHARDED = (FSDPStrategy, DeepSpeedStrategy, ModelParallelStrategy)
_ON_THE_WAY = (
    "__call__", "forward", "train", "training_step", "validation_step",
    "on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer",
    "on_train_batch_start", "on_train_batch_end", "on_validation_batch_start", "on_validation_batch_end",
)  # fmt: skip


class FrozenFeatures:
    """Computes what the head of a model is given, where all else is frozen.

    Args:
        module: The model, on the device and with the trainer that it has when features are asked for.
        network: Its network, in which all but the head is frozen.
        head_names: Of the layers that make the logits, by `subnetworks_of_head`.
        is_wanted: The user has asked for it; why it cannot be is then a warning.
        seen: Takes the images of each batch whose features are computed.
    """

    def __init__(
        self,
        module: LightningModule,
        network: nn.Module,
        head_names: Sequence[str],
        *,
        is_wanted: bool,
        seen: Callable[[Tensor], None],
    ) -> None:
        self._module, self._network, self._head_names = module, network, tuple(head_names)
        self._is_wanted, self._seen = is_wanted, seen
        self._frozen: list[nn.Parameter] = []
        self._key: bytes | None = None
        self._fused: nn.Module | None = None
        self._has_looked = self._is_computing = False

    def example(self, size: tuple[int, int]) -> Tensor | None:
        """Give the features ``(1, ...)`` of one image of noise, or None, and say why, where there are none to be had.

        Its numbers tell whether the head alone makes the same logits of them as the whole model does of the image.

        Args:
            size: Height and width of the images.
        """
        features, why = self._tried(size)
        if why and self._module.trainer.is_global_zero:
            tell = log.warning if self._is_wanted else log.info
            tell("what the frozen backbone makes of an image is computed at each step: %s", why)
        return features

    def _tried(self, size: tuple[int, int]) -> tuple[Tensor | None, str]:
        if isinstance(self._module.trainer.strategy, _SHARDED):
            return None, f"{type(self._module.trainer.strategy).__name__} parts the backbone's weights"
        if len(self._head_names) != 1:
            return None, f"its head has {len(self._head_names)} parts"
        images = self._module.trainer.precision_plugin.convert_input(_noise(size).to(self._module.device))
        with _same_randomness(self._module.device):
            features, logits = self._traced(images)
            again, _ = self._traced(images)
            beside, _ = self._traced(torch.cat([images, -images]))
        if features is None or again is None or beside is None:
            return None, "its head's input is not one tensor"
        if not _are_close(again, features) or not _are_alike(beside[:1], features):
            return None, "it is another each time, or with other images beside it"
        with torch.no_grad(), self._precision():
            alone = logits_of(self._network, self._head_names[0], features)
        if are_images(features) or alone.shape != logits.shape or not _are_close(alone, logits):
            return None, "its logits are not made of its head's input alone"
        return features, ""

    def key(self) -> bytes | None:
        """Give what is another where features would be others: of all frozen weights; None where not all are frozen."""
        heads = tuple(f"{name}." for name in self._head_names)
        frozen = [named for named in self._network.named_parameters() if not named[0].startswith(heads)]
        self._frozen = [parameter for _, parameter in frozen]
        before, was_computing = self._key, self._is_computing
        self._key = self._sums_of([parameter for _, parameter in frozen]) if self.is_frozen() else None
        self._is_computing = False
        if self._key != before or not was_computing:
            self._fused, self._has_looked = None, False  # and the memory of its weights
        return self._key

    def _sums_of(self, frozen: Sequence[nn.Parameter]) -> bytes:
        weights = [tensor.detach() for tensor in (*frozen, *self._network.buffers())]
        sums = [tensor.sum(dtype=torch.float64) for tensor in weights if tensor.numel()]
        # one copy from the device for all of them
        return torch.stack(sums).cpu().numpy().tobytes() if sums else b""

    def is_frozen(self) -> bool:
        """Tell whether the weights that `key` has last looked at are not trained."""
        return not any(parameter.requires_grad for parameter in self._frozen)

    def of(self, images: Tensor) -> Tensor:
        """Give the features of normalised images, in the dtype of the trainer's precision.

        Where there is a copy without batch norms it computes them, which takes less time and rounds otherwise.
        """
        self._seen(images)
        self._is_computing = True
        if not self._has_looked:
            self._fused, self._has_looked = self._copy_for(_noise(images.shape[2:]).to(images)), True
        features, _ = self._traced(images, self._fused)
        assert features is not None
        return features

    def _copy_for(self, images: Tensor) -> nn.Module | None:
        """Give a faster copy of the network whose features of some images differ in their rounding alone."""
        if _has_hooks(self._module):
            return None
        with _in_eval(self._module), _uncompiled(self._module):
            copy = fuse_batch_norms(self._network)
        if copy is None or self._head_names[0] not in dict(copy.named_modules()):
            return None
        features, _ = self._traced(images)
        try:
            by_copy, _ = self._traced(images, copy)
        except Exception as error:  # noqa: BLE001 (what was traced of a forward in Python may be another way through it)
            log.debug("a copy without batch norms cannot be computed: %s", error)
            return None
        if features is None or by_copy is None or by_copy.shape != features.shape:
            return None
        return copy if _are_alike(by_copy, features, within=_rounding(features)) else None

    def _traced(self, images: Tensor, copy: nn.Module | None = None) -> tuple[Tensor | None, Tensor]:
        """Give what the head is given, and the logits, of the model or of a copy; nothing learns from it."""
        given: list[Any] = []
        head = (copy or self._network).get_submodule(self._head_names[0])
        hook = head.register_forward_pre_hook(lambda _, inputs: given.append(inputs))
        try:
            with torch.no_grad(), self._precision(), _in_eval(self._module), _uncompiled(self._module):
                logits = (copy or self._module)(images)
        finally:
            hook.remove()
        is_one = len(given) == 1 and len(given[0]) == 1 and isinstance(given[0][0], Tensor)
        return (given[0][0].detach() if is_one and len(given[0][0]) == len(images) else None), logits

    def _precision(self) -> AbstractContextManager[Any]:
        return self._module.trainer.precision_plugin.val_step_context()


def fuse_batch_norms(network: nn.Module) -> nn.Module | None:
    """Copy a network for evaluation, with its batch norms folded into the layers before them by torch.fx.

    A batch norm of known statistics is one factor and one summand a channel, which convolutions and linear layers have
    as well (Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
    Inference", 2018, section 3.2). The caller compares the numbers: a layer that is used twice would take two norms.

    Args:
        network: In eval mode. It is not changed.

    Returns:
        The copy; None where there are no batch norms, where the order of the layers depends on the numbers, where
        weights would be rounded to less than float32, and where hooks look at layers.
    """
    layers = [*network.modules()]
    are_exact = all(parameter.dtype in (torch.float32, torch.float64) for parameter in network.parameters())
    if not any(isinstance(layer, _BatchNorm) for layer in layers) or any(map(_has_hooks, layers)) or not are_exact:
        return None
    try:
        return fuse(network).requires_grad_(requires_grad=False)
    except Exception as error:  # noqa: BLE001 (a forward in Python may do anything with what stands for a tensor)
        log.debug("%s is computed as it is, since it cannot be traced: %s", type(network).__name__, error)
        return None


def _has_hooks(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks)


def are_images(inputs: Tensor) -> bool:
    """Tell images ``(batch, 3, height, width)`` from features."""
    return inputs.ndim == _NUM_AXES and inputs.shape[1] == _NUM_CHANNELS


def logits_of(network: nn.Module, head_name: str, features: Tensor) -> Tensor:
    """Give the logits ``(batch, num_classes)`` for what the head is given.

    What follows the head in an `nn.Sequential` is applied as well, such as SqueezeNet's mean over all places.
    """
    parent_name, _, own_name = head_name.rpartition(".")
    parent = network.get_submodule(parent_name)
    logits: Tensor = network.get_submodule(head_name)(features)
    if isinstance(parent, nn.Sequential):
        names = [name for name, _ in parent.named_children()]
        for name in names[names.index(own_name) + 1 :]:
            logits = parent.get_submodule(name)(logits)
    return logits.flatten(1)


def own_methods(module: LightningModule, base: type[LightningModule], *steps: str) -> list[str]:
    """Name the methods that get a batch, or change what is made of it, and are others than those of ``base``.

    They expect images, or may make something else of one at each step.

    Args:
        module: Of a class made of ``base``, or of ``base`` itself with methods of its own.
        base: Has those that are known.
        steps: Other methods than Lightning's that are looked at.
    """
    return [name for name in (*_ON_THE_WAY, *steps) if not _is_of(base, module, name)]


def _is_of(base: type[LightningModule], module: LightningModule, name: str) -> bool:
    # by its function, for a strategy may put the same one, bound, on the instance (Lightning 2.6, _ForwardRedirection)
    return getattr(getattr(module, name), "__func__", None) is getattr(base, name)


def _are_close(one: Tensor, other: Tensor) -> bool:
    # the same kernels on the same numbers; another layout in memory may round otherwise
    atol = 1e-4 if other.dtype == torch.float32 else 1e-2
    return torch.allclose(one.float(), other.float(), rtol=atol, atol=atol * float(other.abs().max().clamp_min(1)))


def _are_alike(one: Tensor, other: Tensor, *, within: float = 0.05) -> bool:
    # other kernels may compute a larger batch, of bfloat16 or TF32 in each layer; a batch's own statistics do far more
    return float((one.float() - other.float()).norm()) <= within * float(other.float().norm())


def _rounding(features: Tensor) -> float:
    """Give how far features of the same weights in another order may be apart; on a GPU float32 may be TF32."""
    if features.dtype == torch.float64:
        return 1e-9
    return 1e-4 if features.dtype == torch.float32 and features.device.type == "cpu" else 0.05


def _noise(size: Sequence[int]) -> Tensor:
    return torch.randn(1, _NUM_CHANNELS, *size, generator=torch.Generator().manual_seed(0))


@contextmanager
def _in_eval(model: nn.Module) -> Iterator[None]:
    """Within it all of a model is in eval mode: features may be asked for before a training sets the modes."""
    learning = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in learning:
            module.training = True


def _same_randomness(device: torch.device) -> AbstractContextManager[None]:
    """Leave the random states as they were, whatever is drawn within."""
    devices = [device] if device.type == "cuda" else []
    return torch.random.fork_rng(devices=devices)


def _uncompiled(module: nn.Module) -> AbstractContextManager[Any]:
    """Within it a compiled model is computed layer by layer: the hook on its head would compile it once more."""
    is_compiled = any(getattr(part, "_compiled_call_impl", None) is not None for part in module.modules())
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager") if is_compiled else nullcontext()
    return stance

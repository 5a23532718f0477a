"""The network of a classifier: built for the data's classes, filled from weights or a checkpoint, partly frozen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.trainer.states import TrainerFn
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from lightkit.errors import ConfigError, join_names
from lightkit.models import pretrained
from lightkit.models.backbones import BACKBONES, build, check_name, image_size_of, subnetworks_of_head

_Self = TypeVar("_Self", bound="ClassNetwork")
if TYPE_CHECKING:
    _Module = LightningModule
else:
    _Module = object  # it is no LightningModule by itself, so that no config can name it


class ClassNetwork(_Module):
    """What a `LightningModule` inherits whose network is built when the classes are known.

    Args:
        backbone: Name of the network.
        weights: Where training starts, as in `ImageClassifier`.
        freeze: ``backbone`` keeps all but the head as it is.
        num_classes: Number of classes, where the data does not tell.
        class_names: Names in the order of the labels, where the data does not tell.
    """

    input_choices: ClassVar[Mapping[str, Sequence[str]]] = {"backbone": BACKBONES, "weights": ("default",)}
    input_files: ClassVar[tuple[str, ...]] = ("weights",)

    def __init__(
        self,
        backbone: str,
        weights: str | None,
        freeze: Literal["none", "backbone"],
        num_classes: int | None,
        class_names: list[str] | None,
    ) -> None:
        super().__init__()
        check_name(backbone)
        self.backbone = backbone
        self.weights = weights
        self.frozen = freeze == "backbone"
        self.num_classes = num_classes
        self.class_names = check_class_names(class_names, num_classes) if class_names else None
        self.network: nn.Module | None = None
        self._head_names: tuple[str, ...] = ()
        self._has_weights = weights is None
        self._is_starting = False

    def prepare_for(self, num_classes: int) -> None:
        """Create further parts that depend on the number of classes; called when the network has been built."""
        raise NotImplementedError

    def configure_model(self) -> None:
        """Build the network for the data's classes. Weights follow when it is known whether a checkpoint has them.

        Raises:
            ConfigError: If the classes are unknown or contradict each other, or the images have the wrong size.
        """
        found = read_class_names(self._trainer.datamodule) if self._trainer is not None else None  # type: ignore[attr-defined]
        if self.class_names is not None and found is not None:
            check_same_classes(self.class_names, found, by="the model")
        names = self.class_names or found or (number_classes(self.num_classes) if self.num_classes else None)
        if names is None and self._trainer is not None and self._trainer.state.fn == TrainerFn.FITTING:
            raise ConfigError(_UNKNOWN_CLASSES)
        if names is not None and self.network is None:
            self._build(check_class_names(names, self.num_classes))
        self._set_example()

    def build_for(self, class_names: Sequence[str]) -> None:
        """Build the network for weights that come from elsewhere than ``weights`` and a checkpoint.

        Args:
            class_names: The classes that those weights know.

        Raises:
            ConfigError: If the model was told others.
        """
        names = list(class_names)
        if self.class_names is not None:
            names = check_same_classes(names, self.class_names, by="the weights")
        self._build(check_class_names(names, self.num_classes))
        self._has_weights = True

    def _build(self, class_names: list[str]) -> None:
        self.class_names = class_names
        self.network = build(self.backbone, len(class_names), weights=self.weights)
        self._head_names = subnetworks_of_head(self.network, len(class_names))
        self.prepare_for(len(class_names))
        if self.frozen:
            self.network.requires_grad_(requires_grad=False)
            for head in self._heads():
                head.requires_grad_(requires_grad=True)
        self.train(self.training)

    def _heads(self) -> list[nn.Module]:
        return [self._network.get_submodule(name) for name in self._head_names]

    @property
    def _network(self) -> nn.Module:
        if self.network is None:
            raise ConfigError(_UNKNOWN_CLASSES)
        return self.network

    def _set_example(self) -> None:
        """Set the example input with which loggers trace the network."""
        data = getattr(self._trainer, "datamodule", None)
        size = getattr(data, "image_size", None)
        fixed = image_size_of(self.network) if self.network is not None else None
        height, width = (size, size) if isinstance(size, int) else size or (fixed or 224,) * 2
        if fixed is not None and (height, width) != (fixed, fixed):
            raise ConfigError(
                f"data.init_args.image_size: {self.backbone} takes images of {fixed} x {fixed} pixels, and the data "
                f"gives {height} x {width}. Set image_size to {fixed}, or choose another model.init_args.backbone."
            )
        self.example_input_array = torch.zeros(1, 3, height, width)

    def load_weights(self) -> None:
        """Load the weights that ``weights`` names, unless that was done or a checkpoint has brought its own.

        Lightning's hooks call this when a stage starts; with a model built by hand, call it after
        ``configure_model``.

        Raises:
            ConfigError: If they cannot be read or do not fit.
            DataError: If they cannot be downloaded.
        """
        network = self._network
        if self._has_weights or self.weights is None:
            return
        if self._trainer is not None and self.weights == "default":  # one process of a machine downloads
            if self._trainer.local_rank == 0:
                pretrained.read(self.weights, backbone=self.backbone)
            self._trainer.strategy.barrier("weights")
        state = pretrained.read(self.weights, backbone=self.backbone)
        source = f"the default weights of {self.backbone}" if self.weights == "default" else self.weights
        pretrained.load_into(network, state, heads=self._head_names, source=source)
        self._has_weights = True

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the class names."""
        checkpoint["class_names"] = self.class_names

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check the classes, and build the network where they were unknown.

        Raises:
            ConfigError: If the checkpoint is of another model or of other classes.
        """
        names = checkpoint.get("class_names")
        if not names:
            raise ConfigError("ckpt_path: the checkpoint names no classes, so it was not saved by an ImageClassifier.")
        if self.class_names is not None:
            names = check_same_classes(names, self.class_names, by="the checkpoint")
        if self.network is None:
            self._build(names)
            self._set_example()
        self.class_names = names
        is_strict = self._trainer is not None and self.strict_loading
        if is_strict and (found := pretrained.differences(self.state_dict(), checkpoint.get("state_dict", {}))):
            raise ConfigError(
                f"ckpt_path: the checkpoint is not of backbone {self.backbone} (model.init_args.backbone). {found}"
            )
        self._has_weights = True

    # Modes: what is frozen stays in eval mode.

    def train(self: _Self, mode: bool = True) -> _Self:
        """Set the mode of all but the frozen part, which stays in eval mode."""
        super().train(mode)
        if self.frozen and self.network is not None and not self._is_starting:
            self.network.eval()
            for head in self._heads():
                head.train(mode)
        return self

    def on_fit_start(self) -> None:
        """Load the weights."""
        self.load_weights()
        # Lightning 2.6 warns of modules in eval mode between this hook and the next; here they are meant to be.
        self._is_starting = True
        self.train()

    def on_train_start(self) -> None:
        """Put the frozen part into eval mode."""
        self._is_starting = False
        self.train()

    on_validation_start = on_test_start = on_predict_start = load_weights


@contextmanager
def spare_single_pixels(network: nn.Module, batch_size: int) -> Iterator[None]:
    """Within it a BatchNorm takes the statistics that it has for features of a single pixel of a single sample.

    They have no spread of their own, which is an error in torch; the last batch of an epoch may be of one sample. A
    SyncBatchNorm is left alone: the other processes wait for it.
    """

    def spare(norm: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs[0].numel() == inputs[0].shape[1]:
            norm.eval()

    norms = [
        module
        for module in (network.modules() if batch_size == 1 else ())
        if isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm) and module.training
    ]
    hooks = [norm.register_forward_pre_hook(spare) for norm in norms]
    try:
        yield
    finally:
        for norm, hook in zip(norms, hooks, strict=True):
            hook.remove()
            norm.train()


_UNKNOWN_CLASSES = (
    "model.init_args.class_names: the classes are unknown: the data module has neither class_names nor num_classes. "
    "Expected one of them there, or class_names or num_classes of the model."
)


def number_classes(num_classes: int) -> list[str]:
    """Name classes by their labels, for data without class names."""
    return [str(label) for label in range(num_classes)]


def read_class_names(data: object) -> list[str] | None:
    """Take the class names of a data module, or number them where it has a count alone; None where it has neither."""
    if names := getattr(data, "class_names", None):
        return [str(name) for name in names]
    count = getattr(data, "num_classes", None)
    return number_classes(count) if isinstance(count, int) and count > 0 else None


def check_class_names(names: Sequence[str], num_classes: int | None) -> list[str]:
    """Refuse names that cannot be the classes of a classifier.

    Raises:
        ConfigError: If there are fewer than two, some are equal, or the model was told another count.
    """
    names = list(names)
    if len(names) < 2:
        raise ConfigError(f"A classifier needs at least two classes; found {len(names)}: {', '.join(names)}.")
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ConfigError(f"Class names must differ; found more than once: {', '.join(twice)}.")
    if num_classes not in (None, len(names)):
        raise ConfigError(
            f"model.init_args.num_classes is {num_classes}, and there are {len(names)} classes: "
            f"{join_names(names, most=10)}. Leave num_classes out to take the data's."
        )
    return names


def check_same_classes(names: Sequence[str], current: Sequence[str], *, by: str) -> list[str]:
    """Check that two lists name the same classes in the same order; numbers agree with any names of their count.

    Args:
        names: As stored or set.
        current: As the data or the model has them.
        by: Who says ``names``, for the error.

    Returns:
        The one of the two that has names.

    Raises:
        ConfigError: If they do not agree.
    """
    names, current = list(names), list(current)
    if len(names) == len(current) and number_classes(len(names)) in (names, current):
        return current if names == number_classes(len(names)) else names
    if names == current:
        return names
    same = sorted(names) == sorted(current)
    raise ConfigError(
        f"The classes of {by} are not those of the data{', but in another order' if same else ''}: "
        f"{by} has {len(names)} ({join_names(names, most=10)}), the data {len(current)} "
        f"({join_names(current, most=10)}). Use the data that it was made for, or train a new model."
    )

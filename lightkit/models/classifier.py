"""The image classifier that configs name."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.utilities.types import STEP_OUTPUT
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.utils import make_grid

from lightkit.config.bounds import NonNegativeFloat, Part, PositiveInt
from lightkit.errors import ConfigError
from lightkit.images.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from lightkit.images.table_format import RECIPES
from lightkit.models.backbones import (
    BACKBONES,
    build,
    check_name,
    image_size_of,
    load_into,
    read_pretrained,
    subnetworks_of_head,
)
from lightkit.models.classes import (
    UNKNOWN_CLASSES,
    ClassifyingModule,
    find_picture_loggers,
    log_picture,
)
from lightkit.models.features import FrozenFeatures, are_images, compute_logits, list_own_methods

log = logging.getLogger("lightkit.models")

_MOST_IMAGES = 16  # of a batch, in a picture for the loggers


class ImageClassifier(ClassifyingModule, LightningModule):
    """A network that predicts the class of an image.

    It is built when the data is known, so that class count and names come from there; a checkpoint
    holds the names. Logs ``loss``, ``accuracy``, ``f1``, ``precision`` and ``recall`` (the last
    three as means over classes) of each epoch as ``train/loss``, ``val/accuracy``, ``test/f1`` and
    so on; with ``multilabel`` the loss, ``map`` (mean average precision), ``f1`` and
    ``subset_accuracy`` (all labels of an image right), of training the loss alone. Batches are
    ``(images, labels)``, or ``(images, labels, weights)``: training multiplies the loss of a sample
    by its weight over the ``mean_weight`` of the data module (1 if it has none), so that batch size
    and processes change nothing; in validation and test the loss is a weighted mean. Samples of
    weight 0 are in no metric.

    Args:
        backbone: ``small_cnn`` (100,000 parameters, for quick runs on a CPU), any classification
            model of torchvision, or ``timm/NAME`` with the timm extra.
        weights: Where training starts: null for random weights, ``default`` for torchvision's
            (downloaded once), or the path of a state dict, by torch.save or as safetensors. A head
            for other classes is dropped; anything else must fit.
        freeze: ``backbone`` trains the head alone; all else keeps its weights and its BatchNorm
            statistics, and drops nothing out.
        features: How often a frozen backbone computes the input of the head. `auto` does it once an
            image, before training, and keeps it on disk for later trainings, where that is the same
            in each epoch: where the data module can do so and augments nothing
            (``augment: false``), and where the model's class has no steps, ``forward`` or hooks of
            its own that get a batch. A copy of the network without batch norms, which rounds
            otherwise, may compute it. Batches of training and validation then hold features in
            place of images, which callbacks see. `once` warns where it cannot be; `each_step`
            computes them at each step.
        num_classes: Number of classes, where the data does not have it.
        class_names: Names in the order of the labels, where the data has none.
        label_smoothing: Part of each training target that is spread over all classes, from 0 to
            below 1. The losses of validation and test are without it, so that they compare between
            runs.
        learning_rate: At the first step, where the config names no optimizer: AdamW along a cosine
            to zero.
        weight_decay: Of that optimizer, for all but biases and normalisation.
        multilabel: Each image has any number of labels, independently of each other: the targets of
            a batch are 0 or 1, ``(batch, labels)``, and the loss is the binary cross-entropy. Each
            validation of a training chooses the threshold by which a label is predicted, so that
            its F1 is largest; the checkpoint keeps it.
        pos_weight: Factor of the training loss where a label is there, of each label; `auto` takes
            the training images without the label over those with it. Validation and test are
            without it.
        class_weight: Factor of the training loss of each class; `auto` takes all training images
            over those of the class and the number of classes, so that the mean is 1. Validation and
            test are without it.
    """

    sample_noun: ClassVar[str] = "image"
    input_choices: ClassVar[Mapping[str, Sequence[str]]] = {
        "backbone": BACKBONES,
        "weights": ("default",),
    }
    input_files: ClassVar[tuple[str, ...]] = ("weights",)

    def __init__(
        self,
        backbone: str = "small_cnn",
        weights: str | None = None,
        freeze: Literal["none", "backbone"] = "none",
        features: Literal["auto", "once", "each_step"] = "auto",
        num_classes: PositiveInt | None = None,
        class_names: list[str] | None = None,
        label_smoothing: Part = 0.0,
        learning_rate: NonNegativeFloat = 1e-3,
        weight_decay: NonNegativeFloat = 0.01,
        multilabel: bool = False,
        pos_weight: Literal["auto"] | list[float] | None = None,
        class_weight: Literal["auto"] | list[float] | None = None,
    ) -> None:
        super().__init__()
        check_name(backbone)
        self.set_labels(
            multilabel=multilabel, num_classes=num_classes, class_names=class_names,
            label_smoothing=label_smoothing,
            class_weight=class_weight, pos_weight=pos_weight,
        )  # fmt: skip
        self.save_hyperparameters()
        self.backbone = backbone
        self.weights = weights
        self.frozen = freeze == "backbone"
        self.features = features
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self._show_images = False
        self._has_offered = False
        self.network: nn.Module | None = None
        self._head_names: tuple[str, ...] = ()
        self._has_weights = weights is None

    def configure_model(self) -> None:
        """Build the network for the data's classes.

        Weights follow when it is known whether a checkpoint has them.

        Raises:
            ConfigError: If the classes are unknown or contradict each other, or the images have the
                wrong size.
        """
        names = self.find_classes()
        if names is not None and self.network is None:
            self._build(names)
        self._set_example()

    def _build(self, class_names: list[str]) -> None:
        self.network = build(self.backbone, len(class_names), weights=self.weights)
        self._head_names = subnetworks_of_head(self.network, len(class_names))
        self.build_scores(class_names)
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
            raise ConfigError(UNKNOWN_CLASSES)
        return self.network

    def _set_example(self) -> None:
        """Set the example input with which loggers trace the network."""
        data = getattr(self._trainer, "datamodule", None)
        size = getattr(data, "image_size", None)
        fixed = image_size_of(self.network) if self.network is not None else None
        height, width = (size, size) if isinstance(size, int) else size or (fixed or 224,) * 2
        if fixed is not None and (height, width) != (fixed, fixed):
            raise ConfigError(
                f"data.init_args.image_size: {self.backbone} takes images of {fixed} x {fixed}"
                f" pixels, and the data gives {height} x {width}. Set image_size to {fixed}, or"
                " choose another model.init_args.backbone."
            )
        self.example_input_array = torch.zeros(1, 3, height, width)

    def load_weights(self) -> None:
        """Load the weights that ``weights`` names.

        Unless that was done or a checkpoint has brought its own.

        Lightning's hooks call this when a stage starts; with a model built by hand, call it after
        ``configure_model``.

        Raises:
            ConfigError: If they cannot be read or do not fit.
            DataError: If they cannot be downloaded.
        """
        network = self._network
        if self._has_weights or self.weights is None:
            return
        state, source = read_pretrained(self.weights, backbone=self.backbone, trainer=self._trainer)
        load_into(network, state, heads=self._head_names, source=source)
        self._has_weights = True

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check the classes, and build the network where they were unknown.

        Raises:
            ConfigError: If the checkpoint is of another model or of other classes.
        """
        names = self._read_classes(checkpoint, "an ImageClassifier")
        if self.network is None:
            self._build(names)
            self._set_example()
        self._take_checkpoint(
            checkpoint, names, of=f"backbone {self.backbone} (model.init_args.backbone)"
        )

    def _keep_frozen(self, *, mode: bool) -> None:
        if self.frozen and self.network is not None:
            self.network.eval()
            for head in self._heads():
                head.train(mode)

    def on_fit_start(self) -> None:
        """Load the weights."""
        super().on_fit_start()
        self._show_images = True

    def on_train_start(self) -> None:
        """Put the frozen part into eval mode."""
        super().on_train_start()
        if self.features == "once" and not self._has_offered and self.trainer.is_global_zero:
            log.warning("model.init_args.features: once has no effect %s", self._why_no_features())

    on_validation_start = on_test_start = on_predict_start = load_weights

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits.

        Args:
            images: float32 ``(batch, 3, height, width)``, normalised with ImageNet's mean and
                standard deviation.

        Returns:
            ``(batch, num_classes)``.
        """
        logits: Tensor = self._network(images)
        return logits

    # Data modules that augment nothing ask for this, and then put features in place of images.

    def frozen_features(self) -> FrozenFeatures | None:
        """Return the function that computes the head's input.

        None where that may differ between steps.
        """
        if not self.may_keep_features:
            return None
        self._has_offered = True
        return FrozenFeatures(
            self, self._network, self._head_names, is_wanted=self.features == "once"
        )

    @property
    def may_keep_features(self) -> bool:
        """Return whether `frozen_features` may give something.

        Known before the network is built.
        """
        return self.frozen and self.features != "each_step" and not self._own_methods()

    def _own_methods(self) -> list[str]:
        return list_own_methods(self, ImageClassifier, "_step")

    def _why_no_features(self) -> str:
        if not self.frozen:
            return _UNFROZEN
        own = self._own_methods()
        return (
            f"with {', '.join(own)} of {type(self).__name__}'s own: they get images."
            if own
            else _WITHOUT_DATA
        )

    def on_train_batch_end(
        self, outputs: STEP_OUTPUT, batch: Sequence[Tensor], batch_idx: int
    ) -> None:
        """Send the loggers a picture of the first batch of a run.

        After its step, for encoding it takes a while.
        """
        if self._show_images and self.trainer.is_global_zero and find_picture_loggers(self.trainer):
            images = batch[0]
            if not are_images(images):  # features, whose dataset has the images
                samples = getattr(
                    getattr(self.trainer.train_dataloader, "dataset", None), "samples", None
                )
                images = (
                    images
                    if samples is None
                    else samples.__getitems__(range(min(len(samples), len(images))))[0]
                )
            if are_images(images):
                log_picture(self.trainer, "train/images", draw_grid(images))
        self._show_images = False

    def predict_step(self, batch: Tensor | list[Tensor] | tuple[Tensor, ...]) -> Tensor:
        """Return the probabilities ``(batch, num_classes)`` of a batch of images.

        With or without labels.
        """
        images = batch if isinstance(batch, Tensor) else batch[0]
        self._refuse_numbers(images)
        return self._compute_probabilities(self(images))

    def _compute_logits(self, inputs: Tensor) -> Tensor:
        if self._has_offered and not are_images(inputs):
            return compute_logits(self._network, self._head_names[0], inputs)
        self._refuse_numbers(inputs)
        with spare_single_pixels(self._network, len(inputs)):
            logits: Tensor = self(inputs)
        return logits

    def _refuse_numbers(self, inputs: Tensor) -> None:
        """Refuse rows of numbers in the place of images.

        Raises:
            ConfigError: If the inputs are rows of numbers.
        """
        if inputs.ndim == 2:
            raise ConfigError(
                f"model: {type(self).__name__} classifies images (batch, 3, height, width), and a"
                " batch of the data "
                f"has inputs of shape {tuple(inputs.shape)}: rows of numbers. A net for numbers is"
                " a module of your "
                f'own: {RECIPES}, "Numbers in a table", has a complete one;'
                " lightkit.models.Regressor predicts numbers."
            )


def draw_grid(images: Tensor) -> Tensor:
    """Lay out the first images of a batch in a grid.

    Args:
        images: ``(batch, channels, height, width)``, uint8, or normalised with ImageNet's mean and
            standard deviation.

    Returns:
        uint8 ``(3, height, width)``.
    """
    shown = images[:_MOST_IMAGES].detach().float().cpu()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    shown = shown / 255 if images.dtype == torch.uint8 else shown * std + mean
    grid = make_grid(shown, nrow=max(1, round(len(shown) ** 0.5)), padding=2, pad_value=1.0)
    pixels: Tensor = (grid.clamp(0, 1) * 255).round().to(torch.uint8)
    return pixels


@contextmanager
def spare_single_pixels(network: nn.Module, batch_size: int) -> Iterator[None]:
    """Within it a BatchNorm takes its statistics for a single pixel of a single sample.

    It takes those that it has.

    They have no spread of their own, which is an error in torch; the last batch of an epoch may be
    of one sample. A SyncBatchNorm is left alone: the other processes wait for it.
    """

    def spare(norm: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs[0].numel() == inputs[0].shape[1]:
            norm.eval()

    norms = [
        module
        for module in (network.modules() if batch_size == 1 else ())
        if isinstance(module, _BatchNorm)
        and not isinstance(module, nn.SyncBatchNorm)
        and module.training
    ]
    hooks = [norm.register_forward_pre_hook(spare) for norm in norms]
    try:
        yield
    finally:
        for norm, hook in zip(norms, hooks, strict=True):
            hook.remove()
            norm.train()


_UNFROZEN = "without model.init_args.freeze: backbone: what is trained changes what it computes."
_WITHOUT_DATA = (
    "with this data module. Expected ImageFolder, Flowers or FashionMNIST, without transfer hooks"
    " or loaders of its own, with data.init_args.augment: false."
)

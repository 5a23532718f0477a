"""The image classifier that configs name."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn
from pytorch_lightning.utilities.types import STEP_OUTPUT
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassConfusionMatrix
from torchvision.utils import make_grid

from lightkit.config.bounds import NonNegativeFloat, Part, PositiveInt
from lightkit.errors import ConfigError, join_names
from lightkit.images.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from lightkit.images.table_format import RECIPES
from lightkit.models.backbones import (
    BACKBONES,
    build,
    check_name,
    differences,
    image_size_of,
    load_into,
    read_weights,
    subnetworks_of_head,
)
from lightkit.models.features import FrozenFeatures, are_images, compute_logits, list_own_methods
from lightkit.models.label_scores import LabelScores
from lightkit.models.module import MeanLoss, ScoredModule, Scores, Stage, build_metrics, split_batch
from lightkit.reports import figures
from lightkit.task import CLASSIFICATION, MULTILABEL, OutputKind, Task
from lightkit.task.multilabel import DEFAULT_THRESHOLD

if TYPE_CHECKING:
    from typing import Self  # typing has it from Python 3.11 on

log = logging.getLogger("lightkit.models")

_MOST_IMAGES = 16  # of a batch, in a picture for the loggers


class ImageClassifier(ScoredModule, LightningModule):
    """A network that predicts the class of an image.

    It is built when the data is known, so that class count and names come from there; a checkpoint holds the names.
    Logs ``loss``, ``accuracy``, ``f1``, ``precision`` and ``recall`` (the last three as means over classes) of each
    epoch as ``train/loss``, ``val/accuracy``, ``test/f1`` and so on; with ``multilabel`` the loss, ``map`` (mean
    average precision), ``f1`` and ``subset_accuracy`` (all labels of an image right), of training the loss alone.
    Batches are ``(images, labels)``, or ``(images, labels, weights)``: training multiplies the loss of a sample by its
    weight over the ``mean_weight`` of the data module (1 if it has none), so that batch size and processes change
    nothing; in validation and test the loss is a weighted mean. Samples of weight 0 are in no metric.

    Args:
        backbone: ``small_cnn`` (100,000 parameters, for quick runs on a CPU), any classification model of
            torchvision, or ``timm/NAME`` with the timm extra.
        weights: Where training starts: null for random weights, ``default`` for torchvision's (downloaded once), or
            the path of a state dict, by torch.save or as safetensors. A head for other classes is dropped; anything
            else must fit.
        freeze: ``backbone`` trains the head alone; all else keeps its weights and its BatchNorm statistics, and
            drops nothing out.
        features: How often a frozen backbone computes the input of the head. `auto` does it once an image, before
            training, and keeps it on disk for later trainings, where that is the same in each epoch: where the data
            module can do so and augments nothing (``augment: false``), and where the model's class has no steps,
            ``forward`` or hooks of its own that get a batch. A copy of the network without batch norms, which rounds
            otherwise, may compute it. Batches of training and validation then hold features in place of images, which
            callbacks see. `once` warns where it cannot be; `each_step` computes them at each step.
        num_classes: Number of classes, where the data does not have it.
        class_names: Names in the order of the labels, where the data has none.
        label_smoothing: Part of each training target that is spread over all classes, from 0 to below 1. The losses
            of validation and test are without it, so that they compare between runs.
        learning_rate: At the first step, where the config names no optimizer: AdamW along a cosine to zero.
        weight_decay: Of that optimizer, for all but biases and normalisation.
        multilabel: Each image has any number of labels, independently of each other: the targets of a batch are 0 or
            1, ``(batch, labels)``, and the loss is the binary cross-entropy. Each validation of a training chooses the
            threshold by which a label is predicted, so that its F1 is largest; the checkpoint keeps it.
        pos_weight: Factor of the training loss where a label is there, of each label; `auto` takes the training images
            without the label over those with it. Validation and test are without it.
        class_weight: Factor of the training loss of each class; `auto` takes all training images over those of the
            class and the number of classes, so that the mean is 1. Validation and test are without it.
    """

    task: Task = CLASSIFICATION
    output_kind: OutputKind = CLASSIFICATION.output_kind
    """Kind of the output of ``forward``; a subclass whose ``forward`` gives something else sets its own."""
    input_choices: ClassVar[Mapping[str, Sequence[str]]] = {"backbone": BACKBONES, "weights": ("default",)}
    input_files: ClassVar[tuple[str, ...]] = ("weights",)
    _in_bar = frozenset({"val/loss", "val/accuracy", "val/map"})

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
        if not 0 <= label_smoothing < 1:
            raise ConfigError(
                f"model.init_args.label_smoothing: expected at least 0 and below 1, got {label_smoothing}."
            )
        if pos_weight is not None and not multilabel:
            raise ConfigError(
                "model.init_args.pos_weight: without multilabel: true it is model.init_args.class_weight."
            )
        if class_weight is not None and multilabel:
            raise ConfigError("model.init_args.class_weight: with multilabel: true it is model.init_args.pos_weight.")
        self.save_hyperparameters()
        if multilabel:
            self.task = MULTILABEL
            self.output_kind = MULTILABEL.output_kind
        self.multilabel = multilabel
        self.thresholds: tuple[float, ...] | None = None
        """Probability from which on each label is predicted; None before a validation of the training."""
        self.pos_weight = pos_weight
        self.class_weight = class_weight
        self._label_weights: Tensor | None = None  # of the training loss
        self._has_warned_of_labels = False
        self.backbone = backbone
        self.weights = weights
        self.frozen = freeze == "backbone"
        self.num_classes = num_classes
        self.class_names = check_class_names(class_names, num_classes) if class_names else None
        self.features = features
        self.label_smoothing = label_smoothing
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self._show_images = False
        self._has_offered = False
        self.network: nn.Module | None = None
        self._head_names: tuple[str, ...] = ()
        self._has_weights = weights is None
        self._is_starting = False

    def configure_model(self) -> None:
        """Build the network for the data's classes. Weights follow when it is known whether a checkpoint has them.

        Raises:
            ConfigError: If the classes are unknown or contradict each other, or the images have the wrong size.
        """
        self._check_data()
        found = read_class_names(self._trainer.datamodule) if self._trainer is not None else None  # type: ignore[attr-defined]
        if self.class_names is not None and found is not None:
            check_same_classes(self.class_names, found, by="the model")
        names = self.class_names or found or (number_classes(self.num_classes) if self.num_classes else None)
        if names is None and self._trainer is not None and self._trainer.state.fn == TrainerFn.FITTING:
            raise ConfigError(_UNKNOWN_CLASSES)
        if names is not None and self.network is None:
            self._build(check_class_names(names, self.num_classes, least=1 if self.multilabel else 2))
        self._set_example()

    def _check_data(self) -> None:
        """Check whether model and data agree on the labels of an image.

        Raises:
            ConfigError: If the data has several labels an image and the model one, or the other way round.
        """
        has_several = getattr(getattr(self._trainer, "datamodule", None), "is_multilabel", None)
        if has_several is None or has_several == self.multilabel:
            return
        has = "several labels an image" if has_several else "one label an image"
        raise ConfigError(
            f"model.init_args.multilabel: it is {str(self.multilabel).lower()}, and the data has {has}. Set it to "
            f"{str(has_several).lower()}."
        )

    def build_for(self, class_names: Sequence[str]) -> None:
        """Build the network for weights that come from elsewhere than ``weights`` and a checkpoint.

        Args:
            class_names: The classes that those weights know.

        Raises:
            ConfigError: If the model has others.
        """
        names = list(class_names)
        if self.class_names is not None:
            names = check_same_classes(names, self.class_names, by="the weights")
        self._build(check_class_names(names, self.num_classes, least=1 if self.multilabel else 2))
        self._has_weights = True

    def _build(self, class_names: list[str]) -> None:
        self.class_names = class_names
        self.network = build(self.backbone, len(class_names), weights=self.weights)
        self._head_names = subnetworks_of_head(self.network, len(class_names))
        metrics = build_metrics(self.task, len(class_names))
        self.scores = Scores(metrics, train=MetricCollection({"loss": MeanLoss()}) if self.multilabel else None)
        if not self.multilabel:
            self.confusion = MulticlassConfusionMatrix(len(class_names), validate_args=False)
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
                read_weights(self.weights, backbone=self.backbone)
            self._trainer.strategy.barrier("weights")
        state = read_weights(self.weights, backbone=self.backbone)
        source = f"the default weights of {self.backbone}" if self.weights == "default" else self.weights
        load_into(network, state, heads=self._head_names, source=source)
        self._has_weights = True

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the class names."""
        checkpoint["class_names"] = self.class_names
        if self.thresholds is not None:
            checkpoint["thresholds"] = list(self.thresholds)

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
        if self.multilabel and checkpoint.get("thresholds") is not None:
            self.set_thresholds(checkpoint["thresholds"])
        is_strict = self._trainer is not None and self.strict_loading
        if is_strict and (found := differences(self.state_dict(), checkpoint.get("state_dict", {}))):
            raise ConfigError(
                f"ckpt_path: the checkpoint is not of backbone {self.backbone} (model.init_args.backbone). {found}"
            )
        self._has_weights = True

    def set_thresholds(self, thresholds: Sequence[float]) -> None:
        """Set the probability from which on each label is predicted."""
        self.thresholds = tuple(map(float, thresholds))
        self.task = MULTILABEL.decide_by(self.thresholds)

    # Modes: what is frozen stays in eval mode.

    def train(self, mode: bool = True) -> Self:
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
        self._label_weights = self._find_label_weights()
        self._show_images = True
        # Lightning 2.6 warns of modules in eval mode between this hook and the next; here they are meant to be.
        self._is_starting = True
        self.train()

    def on_train_start(self) -> None:
        """Put the frozen part into eval mode."""
        self._is_starting = False
        self.train()
        if self.features == "once" and not self._has_offered and self.trainer.is_global_zero:
            log.warning("model.init_args.features: once has no effect %s", self._why_no_features())

    on_validation_start = on_test_start = on_predict_start = load_weights

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits.

        Args:
            images: float32 ``(batch, 3, height, width)``, normalised with ImageNet's mean and standard deviation.

        Returns:
            ``(batch, num_classes)``.
        """
        logits: Tensor = self._network(images)
        return logits

    # Data modules that augment nothing ask for this, and then put features in place of images.

    def frozen_features(self) -> FrozenFeatures | None:
        """Return the function that computes the head's input; None where that may differ between steps."""
        if not self.may_keep_features:
            return None
        self._has_offered = True
        return FrozenFeatures(self, self._network, self._head_names, is_wanted=self.features == "once")

    @property
    def may_keep_features(self) -> bool:
        """Return whether `frozen_features` may give something; known before the network is built."""
        return self.frozen and self.features != "each_step" and not self._own_methods()

    def _own_methods(self) -> list[str]:
        return list_own_methods(self, ImageClassifier, "_step")

    def _why_no_features(self) -> str:
        if not self.frozen:
            return _UNFROZEN
        own = self._own_methods()
        return f"with {', '.join(own)} of {type(self).__name__}'s own: they get images." if own else _WITHOUT_DATA

    def on_train_batch_end(self, outputs: STEP_OUTPUT, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Send the loggers a picture of the first batch of a run; after its step, for encoding it takes a while."""
        if self._show_images and self.trainer.is_global_zero and _find_picture_loggers(self.trainer):
            images = batch[0]
            if not are_images(images):  # features, whose dataset has the images
                samples = getattr(getattr(self.trainer.train_dataloader, "dataset", None), "samples", None)
                images = images if samples is None else samples.__getitems__(range(min(len(samples), len(images))))[0]
            if are_images(images):
                _log_picture(self.trainer, "train/images", draw_grid(images))
        self._show_images = False

    def training_step(self, batch: Sequence[Tensor]) -> Tensor:
        """Return the loss of a batch."""
        return self._step("train", batch, label_smoothing=self.label_smoothing)["loss"]

    def predict_step(self, batch: Tensor | list[Tensor] | tuple[Tensor, ...]) -> Tensor:
        """Return the probabilities ``(batch, num_classes)`` of a batch of images, with or without labels."""
        images = batch if isinstance(batch, Tensor) else batch[0]
        self._refuse_numbers(images)
        logits: Tensor = self(images)
        return logits.sigmoid() if self.multilabel else logits.softmax(dim=1)

    def _step(self, stage: Stage, batch: Sequence[Tensor], *, label_smoothing: float = 0.0) -> dict[str, Tensor]:
        inputs, targets, weights = split_batch(batch)
        if are_images(inputs) or not self._has_offered:
            self._refuse_numbers(inputs)
            with spare_single_pixels(self._network, len(inputs)):
                logits = self(inputs)
        else:
            logits = compute_logits(self._network, self._head_names[0], inputs)
        self._check_targets(logits, targets)
        loss, mean = self._compute_own_loss(stage, logits, targets, weights, label_smoothing)
        if not self.multilabel and targets.ndim == logits.ndim:  # mixed images: their larger part counts
            targets = targets.argmax(dim=1)
        self.scores.update(stage, preds=logits, target=targets, loss=mean, weights=weights)
        if self.multilabel:
            pass
        elif stage == "val" and not self.trainer.sanity_checking and _find_picture_loggers(self.trainer):
            counted = slice(None) if weights is None else weights > 0
            self.confusion.update(logits.detach()[counted], targets[counted])
        given = {} if weights is None else {"weights": weights}
        return {"loss": loss, "logits": logits.detach(), "target": targets, **given}

    def _compute_own_loss(
        self, stage: Stage, logits: Tensor, targets: Tensor, weights: Tensor | None, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss to minimise and the mean that metrics count, with the factors of classes or labels."""
        options: dict[str, Any] = {} if self.multilabel else {"label_smoothing": label_smoothing}
        if self.multilabel:
            targets = targets.to(logits.dtype)
            if label_smoothing:
                targets = targets * (1 - label_smoothing) + label_smoothing / 2
        if stage != "train" or self._label_weights is None:
            return self._compute_loss(stage, logits, targets, weights, **options)
        options["pos_weight" if self.multilabel else "weight"] = self._label_weights.to(logits.dtype)
        losses = self.task.compute_losses(logits, targets, reduction="none", **options)
        # a mean over the samples: that of torch divides by the factors of a batch, and batches would not count alike
        return self._weigh_losses(stage, losses.mean(dim=1) if losses.ndim > 1 else losses, weights)

    def _find_label_weights(self) -> Tensor | None:
        """Return the factors of the training loss of classes or labels, float32 ``(classes,)``; None without.

        Raises:
            ConfigError: If there are not as many as classes, or the data does not count its labels.
        """
        name = "pos_weight" if self.multilabel else "class_weight"
        given = self.pos_weight if self.multilabel else self.class_weight
        names = self.class_names or []
        if given is None:
            return None
        if given != "auto":
            if len(given) != len(names) or not all(0 <= factor < math.inf for factor in given):
                raise ConfigError(
                    f"model.init_args.{name}: expected {len(names)} factors of 0 or more, one for each of "
                    f"{join_names(names, most=10)}; got {given}."
                )
            return torch.tensor(given, dtype=torch.float32, device=self.device)
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        counts = getattr(data, "label_counts", None)
        if counts is None:
            raise ConfigError(
                f"model.init_args.{name}: auto needs the number of training images of each class, and "
                f"{type(data).__name__} has no label_counts. Give {len(names)} factors."
            )
        return torch.tensor(self._balance(counts, data.counts["train"]), dtype=torch.float32, device=self.device)

    def _balance(self, counts: Sequence[int], num_images: int) -> list[float]:
        """Compute the factors of classes or labels with so many training images."""
        names = self.class_names or []
        missing = [name for name, count in zip(names, counts, strict=True) if not count]
        if missing and self.trainer.is_global_zero:
            log.warning("model: no training image has %s, so that its factor is 1", join_names(missing))
        if self.multilabel:
            return [(num_images - count) / count if count else 1.0 for count in counts]
        return [num_images / (len(counts) * count) if count else 1.0 for count in counts]

    def _refuse_numbers(self, inputs: Tensor) -> None:
        """Refuse rows of numbers in the place of images.

        Raises:
            ConfigError: If the inputs are rows of numbers.
        """
        if inputs.ndim == 2:
            raise ConfigError(
                f"model: {type(self).__name__} classifies images (batch, 3, height, width), and a batch of the data "
                f"has inputs of shape {tuple(inputs.shape)}: rows of numbers. A net for numbers is a module of your "
                f'own: {RECIPES}, "Numbers in a table", has a complete one; lightkit.models.Regressor predicts numbers.'
            )

    def on_validation_epoch_end(self) -> None:
        """Log the validation metrics, and draw the confusion matrix; choose the thresholds of labels in a training."""
        if self.multilabel:
            self._log_labels("val", chooses=self.trainer.state.fn == TrainerFn.FITTING)
            return
        super().on_validation_epoch_end()
        if not self.confusion.update_called:
            return
        counts = self.confusion.compute()  # by every process, because it sums over them
        self.confusion.reset()
        if self.trainer.is_global_zero:
            names = self.class_names or list(map(str, range(len(counts))))
            pixels = figures.to_pixels(figures.draw_confusion_matrix(counts.cpu().numpy(), names))
            _log_picture(self.trainer, "val/confusion_matrix", torch.from_numpy(pixels).permute(2, 0, 1))

    def on_test_epoch_end(self) -> None:
        """Log the test metrics."""
        if self.multilabel:
            self._log_labels("test", chooses=False)
        else:
            super().on_test_epoch_end()

    def _log_labels(self, stage: Stage, *, chooses: bool) -> None:
        """Log the metrics of several labels, with the thresholds of the model or with new ones."""
        metric = cast(LabelScores, self.scores.of(stage)["labels"])
        own = self.thresholds or [DEFAULT_THRESHOLD] * metric.num_labels
        metric.thresholds = None if chooses else own
        has_counted = metric.update_called
        self._log_scores(stage)
        if not has_counted:
            return
        if chooses and not self.trainer.sanity_checking and metric.thresholds is not None:
            self.set_thresholds(metric.thresholds)
        is_told = self._has_warned_of_labels or self.trainer.sanity_checking
        if metric.left_out and self.trainer.is_global_zero and not is_told:
            self._has_warned_of_labels = True
            names = [(self.class_names or [])[at] for at in metric.left_out]
            log.warning(
                "%s/map leaves out %d of %d labels, which no sample has: %s",
                stage, len(names), metric.num_labels, join_names(names),
            )  # fmt: skip


def _find_picture_loggers(trainer: Trainer) -> list[Any]:
    """List the loggers that have ``add_picture``; the same in every process of a run."""
    return [logger for logger in trainer.loggers if hasattr(logger, "add_picture")]


def _log_picture(trainer: Trainer, name: str, image: Tensor) -> None:
    """Hand a picture to every logger that takes one; to be called by the first process alone."""
    for logger in _find_picture_loggers(trainer):
        logger.add_picture(name, image, trainer.global_step)


def draw_grid(images: Tensor) -> Tensor:
    """Lay out the first images of a batch in a grid.

    Args:
        images: ``(batch, channels, height, width)``, uint8, or normalised with ImageNet's mean and standard deviation.

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


def check_class_names(names: Sequence[str], num_classes: int | None, *, least: int = 2) -> list[str]:
    """Refuse names that cannot be the classes of a classifier.

    Raises:
        ConfigError: If there are fewer than two, some are equal, or the model has another count.
    """
    names = list(names)
    if len(names) < least:
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
        by: Origin of ``names``, for the error.

    Returns:
        The one of the two that has names.

    Raises:
        ConfigError: If they do not agree.
    """
    names = list(names)
    current = list(current)
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


_UNFROZEN = "without model.init_args.freeze: backbone: what is trained changes what it computes."
_WITHOUT_DATA = (
    "with this data module. Expected ImageFolder, Flowers or FashionMNIST, without transfer hooks or loaders of its "
    "own, with data.init_args.augment: false."
)

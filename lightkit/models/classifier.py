"""The image classifier that configs name."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.utilities.types import STEP_OUTPUT, OptimizerLRScheduler
from torch import Tensor
from torch.nn import functional
from torchmetrics.classification import MulticlassConfusionMatrix

from lightkit.errors import ConfigError
from lightkit.export.metadata import OutputKind
from lightkit.models import pictures
from lightkit.models.features import FrozenFeatures, are_images, compute_logits, list_own_methods
from lightkit.models.metrics import Scores, Stage, classification_metrics, split_batch, weighted_mean
from lightkit.models.network import ClassNetwork, spare_single_pixels
from lightkit.models.optimization import adamw_with_cosine
from lightkit.reports import figures

log = logging.getLogger("lightkit.models")


class ImageClassifier(ClassNetwork, LightningModule):
    """A network that tells which class an image shows.

    It is built when the data is known, so that class count and names come from there; a checkpoint holds the names.
    Logs ``loss``, ``accuracy``, ``f1``, ``precision`` and ``recall`` (the last three as means over classes) of each
    epoch as ``train/loss``, ``val/accuracy``, ``test/f1`` and so on. Batches are ``(images, labels)``, or ``(images,
    labels, weights)``: the loss is a weighted mean, and samples of weight 0 are in no metric.

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
        num_classes: Number of classes, where the data does not tell.
        class_names: Names in the order of the labels, where the data does not tell.
        label_smoothing: Part of each training target that is spread over all classes, from 0 to below 1. The losses
            of validation and test are without it, so that they compare between runs.
        learning_rate: At the first step, where the config names no optimizer: AdamW along a cosine to zero.
        weight_decay: Of that optimizer, for all but biases and normalisation.
    """

    output_kind: ClassVar[OutputKind] = "logits"
    """What ``forward`` gives."""

    def __init__(
        self,
        backbone: str = "small_cnn",
        weights: str | None = None,
        freeze: Literal["none", "backbone"] = "none",
        features: Literal["auto", "once", "each_step"] = "auto",
        num_classes: int | None = None,
        class_names: list[str] | None = None,
        label_smoothing: float = 0.0,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(backbone, weights, freeze, num_classes, class_names)
        if not 0 <= label_smoothing < 1:
            raise ConfigError(
                f"model.init_args.label_smoothing: expected at least 0 and below 1, got {label_smoothing}."
            )
        self.save_hyperparameters()
        self.features = features
        self.label_smoothing = label_smoothing
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self._show_images = False
        self._has_offered = False

    def prepare_for(self, num_classes: int) -> None:
        """Make the metrics."""
        self.scores = Scores(classification_metrics(num_classes))
        self.confusion = MulticlassConfusionMatrix(num_classes, validate_args=False)

    def on_fit_start(self) -> None:
        """Load the weights."""
        super().on_fit_start()
        self._show_images = True

    def on_train_start(self) -> None:
        """Put the frozen part into eval mode."""
        super().on_train_start()
        if self.features == "once" and not self._has_offered and self.trainer.is_global_zero:
            log.warning("model.init_args.features: once has no effect %s", self._why_no_features())

    def forward(self, images: Tensor) -> Tensor:
        """Give the logits.

        Args:
            images: float32 ``(batch, 3, height, width)``, normalised with ImageNet's mean and standard deviation.

        Returns:
            ``(batch, num_classes)``.
        """
        logits: Tensor = self._network(images)
        return logits

    # Data modules that augment nothing ask for this, and then put features in place of images.

    def frozen_features(self) -> FrozenFeatures | None:
        """Give what computes, once an image, what the head is given; None where that may differ between steps."""
        if not self.may_keep_features:
            return None
        self._has_offered = True
        return FrozenFeatures(self, self._network, self._head_names, is_wanted=self.features == "once")

    @property
    def may_keep_features(self) -> bool:
        """Whether `frozen_features` may give something; known before the network is built."""
        return self.frozen and self.features != "each_step" and not self._own_methods()

    def _own_methods(self) -> list[str]:
        return list_own_methods(self, ImageClassifier, "_step")

    def _why_no_features(self) -> str:
        if not self.frozen:
            return _UNFROZEN
        own = self._own_methods()
        return f"with {', '.join(own)} of {type(self).__name__}'s own: they get images." if own else _WITHOUT_DATA

    def on_train_batch_start(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Start a new epoch's metrics."""
        if batch_idx == 0:  # also after a resume that Lightning starts without the end of the epoch before
            self.scores.of("train").reset()

    def on_train_batch_end(self, outputs: STEP_OUTPUT, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Give the loggers a picture of the first batch of a run; after its step, for encoding it takes a while."""
        if self._show_images and self.trainer.is_global_zero and pictures.takers(self.trainer):
            images = batch[0]
            if not are_images(images):  # features, whose dataset has the images
                samples = getattr(getattr(self.trainer.train_dataloader, "dataset", None), "samples", None)
                images = images if samples is None else samples.__getitems__(range(min(len(samples), len(images))))[0]
            if are_images(images):
                pictures.send(self.trainer, "train/images", pictures.grid_of(images))
        self._show_images = False

    def training_step(self, batch: Sequence[Tensor]) -> Tensor:
        """Give the loss of a batch."""
        return self._step("train", batch, label_smoothing=self.label_smoothing)["loss"]

    def validation_step(self, batch: Sequence[Tensor]) -> STEP_OUTPUT:
        """Count a batch, and give its logits ``(batch, num_classes)``, targets and weights, for reports."""
        return self._step("val", batch)

    def test_step(self, batch: Sequence[Tensor]) -> STEP_OUTPUT:
        """Count a batch, and give its logits ``(batch, num_classes)``, targets and weights, for reports."""
        return self._step("test", batch)

    def predict_step(self, batch: Tensor | list[Tensor] | tuple[Tensor, ...]) -> Tensor:
        """Give the probabilities ``(batch, num_classes)`` of a batch of images, with or without labels."""
        images = batch if isinstance(batch, Tensor) else batch[0]
        probabilities: Tensor = self(images).softmax(dim=1)
        return probabilities

    def _step(self, stage: Stage, batch: Sequence[Tensor], *, label_smoothing: float = 0.0) -> dict[str, Tensor]:
        inputs, targets, weights = split_batch(batch)
        if are_images(inputs) or not self._has_offered:
            with spare_single_pixels(self._network, len(inputs)):
                logits = self(inputs)
        else:
            logits = compute_logits(self._network, self._head_names[0], inputs)
        if weights is None:
            loss = functional.cross_entropy(logits, targets, label_smoothing=label_smoothing)
        else:
            losses = functional.cross_entropy(logits, targets, label_smoothing=label_smoothing, reduction="none")
            loss = weighted_mean(losses, weights)
        self.scores.update(stage, preds=logits, target=targets, loss=loss, weights=weights)
        if stage == "val" and self._draws_confusion():
            counted = slice(None) if weights is None else weights > 0
            self.confusion.update(logits.detach()[counted], targets[counted])
        given = {} if weights is None else {"weights": weights}
        return {"loss": loss, "logits": logits.detach(), "target": targets, **given}

    def _draws_confusion(self) -> bool:
        return not self.trainer.sanity_checking and bool(pictures.takers(self.trainer))

    def on_train_epoch_end(self) -> None:
        """Log the training metrics."""
        self._log_scores("train")

    def on_validation_epoch_end(self) -> None:
        """Log the validation metrics, and draw the confusion matrix."""
        self._log_scores("val")
        if not self.confusion.update_called:
            return
        counts = self.confusion.compute()  # by every process, because it sums over them
        self.confusion.reset()
        if self.trainer.is_global_zero:
            names = self.class_names or list(map(str, range(len(counts))))
            pixels = figures.to_pixels(figures.draw_confusion_matrix(counts.cpu().numpy(), names))
            pictures.send(self.trainer, "val/confusion_matrix", torch.from_numpy(pixels).permute(2, 0, 1))

    def on_test_epoch_end(self) -> None:
        """Log the test metrics."""
        self._log_scores("test")

    def _log_scores(self, stage: Stage) -> None:
        for name, value in self.scores.finish(stage).items():
            # the value is that of all processes already; sync_dist only keeps Lightning from warning
            self.log(name, value, prog_bar=name in {"val/loss", "val/accuracy"}, sync_dist=True)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Give the default optimizer and schedule."""
        return adamw_with_cosine(self, learning_rate=self.learning_rate, weight_decay=self.weight_decay)


_UNFROZEN = "without model.init_args.freeze: backbone: what is trained changes what it computes."
_WITHOUT_DATA = (
    "with this data module. Expected ImageFolder, Flowers or FashionMNIST, without transfer hooks or loaders of its "
    "own, with data.init_args.augment: false."
)

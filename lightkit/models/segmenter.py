"""The model of masks that configs name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

import torch
from pytorch_lightning import LightningModule
from torch import Tensor
from torch.nn.functional import one_hot
from torchmetrics import MetricCollection

from lightkit.config.bounds import NonNegativeFloat, PositiveInt
from lightkit.errors import ConfigError
from lightkit.images.mask_file import IGNORED
from lightkit.models.backbones import (
    BACKBONES,
    SMALL_CNN,
    TIMM_PREFIX,
    build,
    check_name,
    load_into,
    read_pretrained,
    subnetworks_of_head,
)
from lightkit.models.classes import UNKNOWN_CLASSES, PretrainedModule, check_class_names
from lightkit.models.classifier import spare_single_pixels
from lightkit.models.mask_scores import MaskScores
from lightkit.models.module import MeanLoss, Scores, Stage, build_metrics, split_batch, widen
from lightkit.models.unet import Encoder, UNet
from lightkit.task import SEGMENTATION, OutputKind, Task


class Segmenter(PretrainedModule, LightningModule):
    """A network that predicts the class of each pixel of an image: a U-Net on a backbone.

    It is built when the data is known, so that class count and names come from there; a checkpoint
    holds the names. Batches are ``(images, masks)``, masks int64 ``(batch, height, width)``, where
    -100 is a pixel that counts for nothing; or ``(images, masks, weights)``, as for
    ImageClassifier. The loss of an image is the sum of the mean cross-entropy of its pixels and of
    the Dice loss, the mean of ``1 - Dice`` over the classes of its mask. Logs ``loss``, ``iou``
    (the mean over the classes of their IoU, of the pixels of all images together), ``image_iou``
    (the mean over the images) and ``pixel_accuracy``; of training the loss alone.

    Args:
        backbone: ``small_cnn`` (100,000 parameters, for quick runs on a CPU), or a convolutional
            network of torchvision such as ``resnet18``, ``mobilenet_v2`` or ``efficientnet_b0``.
        weights: Where training of the backbone starts: null for random weights, ``default`` for
            torchvision's (downloaded once), or the path of a state dict, by torch.save or as
            safetensors. The decoder starts at random.
        freeze: ``backbone`` trains the decoder alone; all else keeps its weights and its BatchNorm
            statistics.
        num_classes: Number of classes, where the data does not have it.
        class_names: Names in the order of the classes, where the data has none.
        width: Channels of the decoder at the size of the image; each coarser map has twice as many,
            up to 16 times.
        dice: Share of the Dice loss; 0 leaves the cross-entropy alone.
        learning_rate: At the first step, where the config names no optimizer: AdamW along a cosine
            to zero.
        weight_decay: Of that optimizer, for all but biases and normalisation.
    """

    task: Task = SEGMENTATION
    output_kind: OutputKind = SEGMENTATION.output_kind
    """Kind of the output of ``forward``; a subclass whose ``forward`` gives something else sets its
    own."""
    input_choices: ClassVar[Mapping[str, Sequence[str]]] = {
        "backbone": tuple(each for each in BACKBONES if not each.startswith(TIMM_PREFIX)),
        "weights": ("default",),
    }
    input_files: ClassVar[tuple[str, ...]] = ("weights",)
    _in_bar = frozenset({"val/loss", "val/iou"})

    def __init__(
        self,
        backbone: str = SMALL_CNN,
        weights: str | None = None,
        freeze: Literal["none", "backbone"] = "none",
        num_classes: PositiveInt | None = None,
        class_names: list[str] | None = None,
        width: PositiveInt = 16,
        dice: NonNegativeFloat = 1.0,
        learning_rate: NonNegativeFloat = 1e-3,
        weight_decay: NonNegativeFloat = 0.01,
    ) -> None:
        super().__init__()
        check_name(backbone)
        for name, value in (("width", width), ("dice", dice + 1)):
            if value < 1:
                expected = "at least 1" if name == "width" else "at least 0"
                raise ConfigError(f"model.init_args.{name}: expected {expected}, got {value}.")
        self.save_hyperparameters()
        self.backbone = backbone
        self.weights = weights
        self.frozen = freeze == "backbone"
        self.num_classes = num_classes
        self.class_names = check_class_names(class_names, num_classes) if class_names else None
        self.width = width
        self.dice = dice
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.network: UNet | None = None
        self._has_weights = weights is None

    # -- building ----------------------------------------------------------------------------------

    def configure_model(self) -> None:
        """Build the network for the data's classes.

        Weights follow when it is known whether a checkpoint has them.

        Raises:
            ConfigError: If the classes are unknown or contradict each other, or the data has no
                masks.
        """
        data = getattr(self._trainer, "datamodule", None)
        if getattr(data, "is_multilabel", None) is not None:  # a data module of labelled images
            raise ConfigError(
                f"model: Segmenter predicts masks, and {type(data).__name__} has labels of whole"
                " images. The data of masks is MaskFolder; the model of labels is ImageClassifier."
            )
        names = self.find_classes()
        if names is not None and self.network is None:
            self._build(names)
        size = getattr(data, "image_size", None)
        height, width = (size, size) if isinstance(size, int) else size or (224, 224)
        self.example_input_array = torch.zeros(1, 3, height, width)

    def _build(self, class_names: list[str]) -> None:
        self.class_names = self.check_classes(class_names)
        self.network = UNet(self.backbone, len(self.class_names), width=self.width)
        metrics = build_metrics(self.task, len(self.class_names))
        self.scores = Scores(metrics, train=MetricCollection({"loss": MeanLoss()}))
        if self.frozen:
            self.network.encoder.requires_grad_(requires_grad=False)
        self.train(self.training)

    @property
    def _network(self) -> UNet:
        if self.network is None:
            raise ConfigError(UNKNOWN_CLASSES)
        return self.network

    def load_weights(self) -> None:
        """Load the weights of the backbone that ``weights`` names.

        Unless that was done or a checkpoint has its own.

        Raises:
            ConfigError: If they cannot be read or do not fit.
            DataError: If they cannot be downloaded.
        """
        network = self._network
        if self._has_weights or self.weights is None:
            return
        state, source = read_pretrained(self.weights, backbone=self.backbone, trainer=self._trainer)
        classifier = build(self.backbone, 2, weights=self.weights)
        load_into(classifier, state, heads=subnetworks_of_head(classifier, 2), source=source)
        network.encoder.load_state_dict(Encoder(self.backbone, classifier).state_dict())
        self._has_weights = True

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check the classes, and build the network where they were unknown.

        Raises:
            ConfigError: If the checkpoint is of another model or of other classes.
        """
        names = self._read_classes(checkpoint, "a Segmenter")
        if self.network is None:
            self._build(names)
        kind = f"a Segmenter with backbone {self.backbone} and width {self.width} (model.init_args)"
        self._take_checkpoint(checkpoint, names, of=kind)

    def _keep_frozen(self, *, mode: bool) -> None:
        if self.frozen and self.network is not None:
            self.network.encoder.eval()

    on_validation_start = on_test_start = on_predict_start = load_weights

    # -- steps -------------------------------------------------------------------------------------

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits.

        Args:
            images: float32 ``(batch, 3, height, width)``, normalised with ImageNet's mean and
                standard deviation.

        Returns:
            ``(batch, num_classes, height, width)``.
        """
        logits: Tensor = self._network(images)
        return logits

    def predict_step(self, batch: Tensor | list[Tensor] | tuple[Tensor, ...]) -> Tensor:
        """Return the probabilities ``(batch, num_classes, height, width)`` of images.

        With or without masks.
        """
        logits: Tensor = self(batch if isinstance(batch, Tensor) else batch[0])
        return widen(logits).softmax(dim=1)

    def _step(self, stage: Stage, batch: Sequence[Tensor]) -> dict[str, Tensor]:
        images, masks, weights = split_batch(batch)
        with spare_single_pixels(self._network, len(images)):
            logits = self(images)
        self._check_targets(logits, masks)
        losses = compute_mask_losses(logits, masks, dice=self.dice)
        return self._count_outputs(
            stage, "logits", logits, masks, weights, self._weigh_losses(stage, losses, weights)
        )

    def on_validation_epoch_end(self) -> None:
        """Log the validation metrics."""
        self._log_masks("val")

    def on_test_epoch_end(self) -> None:
        """Log the test metrics."""
        self._log_masks("test")

    def _log_masks(self, stage: Stage) -> None:
        """Log the metrics, and warn of classes that occur nowhere."""
        metric = cast(MaskScores, self.scores.of(stage)["masks"])
        has_counted = metric.update_called
        self._log_scores(stage)
        if has_counted:
            self._warn_of_left_out(
                f"{stage}/iou", metric.left_out, "classes, which no mask and no prediction has"
            )


def compute_mask_losses(logits: Tensor, masks: Tensor, *, dice: float) -> Tensor:
    """Compute the loss of each image: the mean cross-entropy of its pixels, and the Dice loss.

    The Dice loss is the mean of ``1 - 2 * sum(p * t) / (sum(p) + sum(t))`` over the classes of the
    image's mask, with the probabilities p and the mask t of a class (arXiv:1606.04797, with sums in
    place of sums of squares). A loss of each image, unlike one of a batch, has the same mean
    however images are cut into batches.

    Args:
        logits: ``(batch, classes, height, width)``.
        masks: Classes ``(batch, height, width)``; `IGNORED` for a pixel that counts for nothing.
        dice: Factor of the Dice loss.

    Returns:
        ``(batch,)``; 0 for an image without a pixel that counts.
    """
    is_counted = masks != IGNORED
    num_pixels = is_counted.flatten(1).sum(dim=1)
    classes = masks.where(is_counted, masks.new_zeros(()))
    logs = logits.float().log_softmax(dim=1)
    # not torch's `cross_entropy`, which on a GPU adds up pixels in another order each time
    entropies = -logs.gather(1, classes[:, None])[:, 0] * is_counted
    losses = entropies.flatten(1).sum(dim=1) / num_pixels.clamp(min=1)
    if not dice:
        return losses
    wanted = (
        (one_hot(classes, logits.shape[1]).movedim(-1, 1) * is_counted[:, None])
        .to(logs.dtype)
        .flatten(2)
    )
    given = (logs.exp() * is_counted[:, None]).flatten(2)
    size = wanted.sum(dim=2)
    overlap = 2 * (wanted * given).sum(dim=2)
    missed = 1 - overlap / (size + given.sum(dim=2)).clamp(min=1e-7)
    occurs = size > 0
    of_classes = missed.where(occurs, missed.new_zeros(())).sum(dim=1) / occurs.sum(dim=1).clamp(
        min=1
    )
    return losses + dice * of_classes

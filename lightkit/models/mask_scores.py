"""Metrics of masks from counts of pixels over all samples of an epoch."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from lightkit.task.segmentation import count_pixels

_BITS = 30
"""An IoU is kept as a whole number of 2 ** -30, so that their sum is the same in every order."""


class MaskScores(Metric):
    """Mean IoU of all pixels, mean IoU of an image, and share of the right pixels.

    Exact over all processes.

    ``iou`` is the mean over the classes of pixels of both mask and prediction over pixels of
    either, where the pixels of all images count together; that of torchmetrics (1.9,
    `segmentation.MeanIoU`) is a mean over pairs of an image and a class. ``image_iou`` is the mean
    over the images of the mean over the classes that occur in each. A class that occurs in no mask
    and no prediction is in no mean.

    Args:
        num_classes: Number of classes. Other numbers in a mask are pixels that count for nothing.

    Attributes:
        left_out: Numbers of the classes that occur nowhere in the last epoch.
    """

    full_state_update = False
    counts: Tensor
    image_ious: Tensor
    num_images: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.add_state(
            "counts", default=torch.zeros(3, num_classes, dtype=torch.int64), dist_reduce_fx="sum"
        )
        self.add_state(
            "image_ious", default=torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum"
        )
        self.add_state(
            "num_images", default=torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum"
        )
        self.left_out: list[int] = []

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch.

        Args:
            preds: Logits ``(batch, classes, height, width)``.
            target: Classes ``(batch, height, width)``.
        """
        counts = count_pixels(preds.argmax(dim=1), target, self.num_classes)
        self.counts += counts.sum(dim=0)
        union = counts[:, 0] + counts[:, 1] - counts[:, 2]
        occurs = union > 0
        num = occurs.sum(dim=1)
        # whole numbers, for a device may have no float64
        ious = torch.where(
            occurs, (counts[:, 2] << _BITS) // union.clamp(min=1), torch.zeros_like(union)
        )
        means = torch.where(
            num > 0, ious.sum(dim=1) // num.clamp(min=1), torch.full_like(num, 1 << _BITS)
        )
        self.image_ious += means.sum()
        self.num_images += len(target)

    def compute(self) -> dict[str, Tensor]:
        """Compute ``iou``, ``image_iou`` and ``pixel_accuracy``; NaN where no pixel counts."""
        target, predicted, both = self.counts.cpu().double()
        union = target + predicted - both
        occurs = union > 0
        self.left_out = torch.nonzero(~occurs).flatten().tolist()
        image_iou = float(self.image_ious.cpu()) / float(1 << _BITS) / float(self.num_images.cpu())
        values = {
            "iou": (both[occurs] / union[occurs]).mean(),
            "image_iou": torch.tensor(image_iou, dtype=torch.float64),
            "pixel_accuracy": both.sum() / target.sum(),
        }
        return {name: value.float().to(self.device) for name, value in values.items()}

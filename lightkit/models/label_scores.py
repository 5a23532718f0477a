"""Metrics of several labels over all samples of an epoch.

Also the thresholds by which labels are predicted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from lightkit.task.multilabel import (
    DEFAULT_THRESHOLD,
    LabelForm,
    average_precision,
    choose_threshold,
    mean_average_precision,
    mean_f1,
)


class LabelScores(Metric):
    """mAP, F1 and the share of the samples with all labels right, exact over all processes.

    The probabilities of all samples are kept until the end of the epoch, 5 bytes for each label of
    a sample. A label that no sample has is in no mean: torchmetrics (1.9) counts its average
    precision as -0.0.

    Args:
        num_labels: Number of labels.

    Attributes:
        thresholds: By which labels are predicted; None to choose those of the largest F1 on these
            samples.
        left_out: Numbers of the labels that no sample of the last epoch has.
    """

    full_state_update = False
    preds: list[Tensor]
    target: list[Tensor]

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.num_labels = num_labels
        self.add_state("preds", default=[], dist_reduce_fx="cat")
        self.add_state("target", default=[], dist_reduce_fx="cat")
        self.thresholds: Sequence[float] | None = None
        self.left_out: list[int] = []

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch.

        Args:
            preds: Logits ``(batch, labels)``.
            target: 0 or 1, of the same shape.
        """
        self.preds.append(preds.detach().float().sigmoid())
        # not bool, which gloo does not gather
        self.target.append((target > DEFAULT_THRESHOLD).to(torch.uint8))

    def skip(self) -> None:
        """Add a batch without samples, so that all processes have tensors of one form to gather."""
        empty = torch.empty(0, self.num_labels, device=self.device)
        self.update(empty, empty)

    def compute(self) -> dict[str, Tensor]:
        """Compute ``map``, ``f1`` and ``subset_accuracy``, and missing thresholds."""
        probability = dim_zero_cat(self.preds).cpu().numpy()
        target = dim_zero_cat(self.target).cpu().numpy().astype(int)
        each = range(probability.shape[1])
        self.left_out = [
            at for at in each if average_precision(target[:, at], probability[:, at]) is None
        ]
        if self.thresholds is None:
            self.thresholds = [choose_threshold(target[:, at], probability[:, at]) for at in each]
        predicted = LabelForm(self.thresholds).predict(probability).astype(int)
        values = {
            "map": mean_average_precision(target, probability),
            "f1": mean_f1(target, predicted),
            "subset_accuracy": float((predicted == target).all(axis=1).mean()),
        }
        return {name: torch.tensor(value, device=self.device) for name, value in values.items()}

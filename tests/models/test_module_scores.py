from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_f1_score,
    multiclass_precision,
    multiclass_recall,
)

from lightkit.models.module import MeanLoss, Scores, classification_metrics, regression_metrics

SIZES = [8, 8, 3]  # the last batch is smaller


def batches() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(sum(SIZES), 4, generator=generator), torch.randint(
        4, (sum(SIZES),), generator=generator
    )


def count(scores: Scores, logits: Tensor, labels: Tensor, sizes: list[int]) -> None:
    for part, truth in zip(torch.split(logits, sizes), torch.split(labels, sizes), strict=True):
        scores.update("val", preds=part, target=truth, loss=functional.cross_entropy(part, truth))


def of_all(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    return {
        "val/loss": functional.cross_entropy(logits, labels),
        "val/accuracy": multiclass_accuracy(logits, labels, 4, average="micro"),
        "val/f1": multiclass_f1_score(logits, labels, 4),
        "val/precision": multiclass_precision(logits, labels, 4),
        "val/recall": multiclass_recall(logits, labels, 4),
    }


def test_an_epoch_over_uneven_batches_is_that_of_all_examples_at_once() -> None:
    scores = Scores(classification_metrics(4))
    logits, labels = batches()
    for _ in range(2):  # the second epoch starts from nothing
        count(scores, logits, labels, SIZES)
        torch.testing.assert_close(scores.finish("val"), of_all(logits, labels), rtol=0, atol=1e-6)


def test_an_epoch_without_batches_has_no_values() -> None:
    scores = Scores(classification_metrics(4))
    assert scores.finish("val") == {}
    count(scores, *batches(), SIZES)
    scores.finish("val")
    assert scores.finish("val") == {}


def test_stages_do_not_mix() -> None:
    scores = Scores(classification_metrics(4))
    count(scores, *batches(), SIZES)
    assert scores.finish("train") == scores.finish("test") == {}


def test_a_loss_that_is_not_a_number_is_seen() -> None:
    scores = Scores(classification_metrics(4))
    logits, labels = batches()
    scores.update("val", preds=logits, target=labels, loss=torch.tensor(torch.nan))
    count(scores, logits, labels, SIZES)
    assert scores.finish("val")["val/loss"].isnan()


def test_regression_errors_are_exact_over_uneven_batches() -> None:
    scores = Scores(regression_metrics())
    preds, target = torch.arange(10.0)[:, None], torch.zeros(10, 1)
    for part, truth in zip(torch.split(preds, [6, 4]), torch.split(target, [6, 4]), strict=True):
        scores.update("test", preds=part, target=truth, loss=functional.mse_loss(part, truth))
    values = {name: float(value) for name, value in scores.finish("test").items()}
    assert values == pytest.approx({"test/loss": 28.5, "test/mae": 4.5, "test/mse": 28.5}, abs=1e-6)


def test_the_mean_loss_of_a_long_epoch_is_exact() -> None:
    """Sums of 20 million examples, one after another in float32.

    They lose 3,172 of them and 0.035 % of the mean.
    """
    mean = MeanLoss()
    for _ in range(20_000):
        mean.update(torch.tensor(0.1), 997)
    assert float(mean.num_examples + mean.block_examples) == 20_000 * 997
    assert float(mean.compute()) == pytest.approx(0.1, rel=2e-5)


def test_the_mean_loss_is_reset_between_epochs() -> None:
    mean = MeanLoss()
    for loss in (3.0, 5.0):
        for _ in range(1500):
            mean.update(torch.tensor(loss), 2)
        assert float(mean.compute()) == loss
        mean.reset()

"""Batches with weights: what weighs nothing changes no loss, gradient, scale or metric."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader

from lightkit.models.classifier import ImageClassifier
from lightkit.models.module import (
    Scores,
    classification_metrics,
    regression_metrics,
    split_batch,
    weighted_loss,
    weighted_mean,
)
from lightkit.models.regressor import Regressor

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    # 2026-11: pytorch-lightning 2.6.6 builds LeafSpec itself
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),
]


def classifier() -> ImageClassifier:
    torch.manual_seed(0)
    model = ImageClassifier(num_classes=3)
    model.configure_model()
    return model


def images(num: int, *, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num, 3, 16, 16, generator=generator), torch.arange(num) % 3


def numbers(num: int, *, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num, 1, generator=generator), torch.randn(num, 1, generator=generator)


def with_blank(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The batch with one more sample, of weight 0."""
    inputs, targets = (torch.cat([part, torch.zeros_like(part[:1])]) for part in batch)
    return inputs, targets, torch.tensor([1.0] * len(batch[0]) + [0.0])


def only_blank(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    return torch.zeros_like(batch[0][:1]), torch.zeros_like(batch[1][:1]), torch.zeros(1)


def trained(model: LightningModule, batches: list[tuple[Tensor, ...]]) -> dict[str, float]:
    """Metrics of an epoch of training and validation on ready batches."""
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    loader: DataLoader[tuple[Tensor, ...]] = DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
    trainer.fit(model, loader, loader)
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def test_a_weighted_mean_is_over_the_weights() -> None:
    losses = torch.tensor([1.0, 2.0, 6.0])
    assert float(weighted_mean(losses, torch.tensor([1.0, 3.0, 0.0]))) == pytest.approx(7 / 4)
    assert float(weighted_mean(losses, torch.full((3,), 0.5))) == pytest.approx(3)


@pytest.mark.parametrize("batch_size", [1, 3, 8, 40])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_mean_of_the_losses_of_all_batches_is_that_over_all_weights(
    batch_size: int, num_ranks: int
) -> None:
    random = np.random.default_rng(4)
    losses, weights = random.normal(size=240) ** 2, random.integers(0, 20, 240).astype(float)
    order = random.permutation(240)
    of_steps = []
    for step in order.reshape(-1, num_ranks, batch_size):
        of_ranks = [
            weighted_loss(
                torch.tensor(losses[rows]), torch.tensor(weights[rows]), mean_weight=weights.mean()
            )
            for rows in step
        ]
        of_steps.append(sum(map(float, of_ranks)) / num_ranks)  # as DDP takes the mean of gradients
    assert np.mean(of_steps) == pytest.approx((losses * weights).sum() / weights.sum(), rel=1e-9)


@pytest.mark.parametrize("batch_size", [1, 8, 100])
def test_weights_move_the_optimum_alike_whatever_the_batch_size(batch_size: int) -> None:
    rare = np.arange(100) % 20 == 0
    targets = torch.tensor(rare, dtype=torch.float32)[:, None]
    weights = torch.tensor(np.where(rare, 20.0, 1.0), dtype=torch.float32)
    slope = 0.0
    model = Regressor()
    model._trainer = SimpleNamespace(datamodule=SimpleNamespace(mean_weight=float(weights.mean())))  # type: ignore[assignment]
    constant = torch.full((1,), 0.5, requires_grad=True)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    for rows in torch.split(order, batch_size):
        outputs = constant.expand(len(rows), 1)
        loss, _ = model._compute_loss("train", outputs, targets[rows], weights[rows])
        (gradient,) = torch.autograd.grad(loss, constant)
        slope += float(gradient) * len(rows) / 100
    best = float((weights * targets[:, 0]).sum() / weights.sum())  # 100 / 195
    assert slope == pytest.approx(2 * (0.5 - best), rel=1e-4)


def test_nothing_that_weighs_gives_a_loss_of_0_with_gradients_of_0() -> None:
    losses = torch.tensor([1.0, torch.inf], requires_grad=True)
    loss = weighted_mean(losses * 2, torch.zeros(2))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0
    assert losses.grad is not None
    assert losses.grad[0] == 0


def test_a_batch_without_weights_counts_all_its_rows() -> None:
    _, targets, weights = split_batch(images(4))
    assert weights is None
    assert len(targets) == 4


@pytest.mark.parametrize(
    ("model", "batch"),
    [(classifier, images), (Regressor, numbers)],
    ids=["classifier", "regressor"],
)
def test_a_sample_of_weight_0_changes_neither_loss_nor_gradients(
    model: Callable[[], Any], batch: Callable[..., Any]
) -> None:
    gradients = []
    # of a split that is this batch
    for given, mean_weight in ((batch(4), None), (with_blank(batch(4)), 4 / 5)):
        torch.manual_seed(0)
        module = model().eval()  # in training mode a batch's statistics are of all its samples
        module._trainer = SimpleNamespace(datamodule=SimpleNamespace(mean_weight=mean_weight))
        loss = module._step("train", given)["loss"]
        loss.backward()
        gradients.append([loss.detach(), *(parameter.grad for parameter in module.parameters())])
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize(
    ("model", "batch"),
    [(classifier, images), (Regressor, numbers)],
    ids=["classifier", "regressor"],
)
def test_batches_of_nothing_leave_an_epochs_metrics_alone(
    model: type[LightningModule], batch: type
) -> None:
    first, second = batch(4, seed=1), batch(3, seed=2)
    torch.manual_seed(0)
    plain = {
        name: value
        for name, value in trained(model(), [first, second]).items()
        if name.startswith("train/")
    }
    torch.manual_seed(0)
    padded = trained(model(), [first, second, only_blank(first)])
    assert {name: padded[name] for name in plain} == pytest.approx(plain)
    assert all(math.isfinite(value) for value in padded.values())


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_metrics_leave_out_what_weighs_nothing(kind: str) -> None:
    metrics = classification_metrics(3) if kind == "classification" else regression_metrics()
    generator = torch.Generator().manual_seed(3)
    shape = (5, 3) if kind == "classification" else (5, 1)
    preds = torch.randn(shape, generator=generator)
    target = (
        torch.tensor([0, 1, 2, 0, 1])
        if kind == "classification"
        else torch.randn(shape, generator=generator)
    )
    weights = torch.tensor([1.0, 0.0, 2.0, 1.0, 0.0])
    loss = torch.tensor(0.5)
    with_weights, without = Scores(metrics), Scores(metrics)
    with_weights.update("val", preds=preds, target=target, loss=loss, weights=weights)
    without.update("val", preds=preds[[0, 2, 3]], target=target[[0, 2, 3]], loss=loss)
    expected = without.finish("val")
    found = with_weights.finish("val")
    assert found.keys() == expected.keys()
    torch.testing.assert_close(found, expected)


def test_the_logged_loss_of_an_epoch_is_over_all_weights() -> None:
    scores = Scores(regression_metrics())
    for loss, weights in ((1.0, [1.0, 2.0]), (5.0, [1.0])):
        rows = torch.zeros(len(weights), 1)
        scores.update(
            "val", preds=rows, target=rows, loss=torch.tensor(loss), weights=torch.tensor(weights)
        )
    assert scores.finish("val")["val/loss"] == pytest.approx((3 * 1 + 1 * 5) / 4)


def test_a_process_that_had_nothing_still_has_metrics_to_compute() -> None:
    scores = Scores(classification_metrics(3))
    scores.update(
        "val", preds=torch.zeros(1, 3), target=torch.zeros(1, dtype=torch.long),
        loss=torch.tensor(0.0),
        weights=torch.zeros(1),
    )  # fmt: skip
    assert scores.of("val")["loss"].compute().isnan()  # of no example
    assert "val/accuracy" in scores.finish("val")


def test_the_scales_of_a_regressor_are_of_the_rows_that_count() -> None:
    inputs, targets = numbers(6)
    models = []
    for batch in ((inputs, targets), with_blank((inputs + 0, targets + 0))):
        model = Regressor()
        trained(model, [batch])
        models.append(model)
    torch.testing.assert_close(models[0].input_mean, models[1].input_mean)
    torch.testing.assert_close(models[0].output_std, models[1].output_std)


def test_a_batch_of_one_image_trains_where_its_features_are_a_single_pixel() -> None:
    module = classifier().train()
    tiny, label = torch.rand(1, 3, 8, 8), torch.tensor([1])
    network = module.network
    assert network is not None
    norms = [norm for norm in network.modules() if isinstance(norm, torch.nn.BatchNorm2d)]
    before = [norm.running_mean.clone() for norm in norms if norm.running_mean is not None]
    torch.autograd.backward(module._step("train", (tiny, label))["loss"])
    after = [norm.running_mean for norm in norms if norm.running_mean is not None]
    learnt = [not torch.equal(*pair) for pair in zip(before, after, strict=True)]
    assert learnt[0]
    assert not learnt[-1]
    assert all(norm.training for norm in norms)
    assert all(weight.grad is not None for weight in network.parameters())

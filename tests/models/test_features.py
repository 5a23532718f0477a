"""What the head of a frozen network is given: the same logits come of it, or it is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_lightning import Trainer
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse

from lightkit.models import ImageClassifier
from lightkit.models.features import FrozenFeatures, compute_logits


class OwnForward(ImageClassifier):
    """Does more than its network."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * 2


class OwnStep(ImageClassifier):
    """Expects images in its batches."""

    def training_step(self, batch: Any) -> Tensor:
        return super().training_step(batch)


class OwnHook(ImageClassifier):
    """Expects images in its batches."""

    def on_validation_batch_end(
        self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        assert batch[0].ndim == 4


class Trembling(nn.Module):
    """Adds noise, also in eval mode."""

    def forward(self, images: Tensor) -> Tensor:
        return images + torch.randn_like(images)


class ByItsNeighbours(nn.Module):
    """Subtracts what the batch has in common."""

    def forward(self, images: Tensor) -> Tensor:
        return images - images.mean(0)


@pytest.fixture
def model_of(make_trainer: Callable[..., Trainer]) -> Callable[..., ImageClassifier]:
    def make(kind: type[ImageClassifier] = ImageClassifier, **settings: Any) -> ImageClassifier:
        model = kind(**{"freeze": "backbone", "num_classes": 3, **settings})
        model.trainer = make_trainer()
        model.configure_model()
        return model

    return make


def features_of(model: ImageClassifier) -> FrozenFeatures:
    features = model.frozen_features()
    assert features is not None
    return features


@pytest.mark.parametrize("backbone", ["small_cnn", "mobilenet_v3_small", "squeezenet1_1"])
def test_the_head_makes_the_same_logits(
    model_of: Callable[..., ImageClassifier], backbone: str
) -> None:
    model = model_of(backbone=backbone).eval()
    features, images = features_of(model), torch.randn(4, 3, 64, 64)
    assert features.example((64, 64)) is not None
    (head,) = model._head_names
    with torch.no_grad():
        torch.testing.assert_close(
            compute_logits(model._network, head, features.compute(images)), model(images)
        )


def test_asking_changes_nothing(model_of: Callable[..., ImageClassifier]) -> None:
    model = model_of().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    features = features_of(model)
    features.example((32, 32))
    features.compute(torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)


def test_a_network_is_copied_once_features_are_computed_and_not_before(
    model_of: Callable[..., ImageClassifier], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[nn.Module] = []

    def count(network: nn.Module) -> nn.Module:
        copied.append(network)
        return fuse(network)

    monkeypatch.setattr("lightkit.models.features.fuse", count)
    model = model_of().eval()
    features, images = features_of(model), torch.randn(4, 3, 32, 32)
    assert features.example((32, 32)) is not None
    assert not copied
    one, other = features.compute(images), features.compute(images)
    assert copied == [model._network]
    assert torch.equal(one, other)


@pytest.mark.parametrize("layer", [Trembling, ByItsNeighbours])
def test_what_is_another_each_time_is_not_kept(
    model_of: Callable[..., ImageClassifier],
    layer: type[nn.Module],
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = model_of(features="once")
    first: Any = next(
        module for module in model._network.modules() if isinstance(module, nn.Conv2d)
    )
    first.register_forward_pre_hook(lambda _, inputs: (layer()(inputs[0]),))
    state = torch.get_rng_state()
    assert features_of(model).example((32, 32)) is None
    assert (
        "computed at each step: it is another each time, or with other images in its batch"
        in caplog.text
    )
    assert torch.equal(torch.get_rng_state(), state)


def test_a_method_that_is_put_on_the_instance_counts_and_the_same_one_does_not(
    model_of: Callable[..., ImageClassifier],
) -> None:
    model = model_of()
    model.forward = model.forward  # type: ignore[method-assign]  # as Lightning does under a strategy
    assert model.frozen_features() is not None
    model.forward = lambda images: 2 * model._network(images)  # type: ignore[method-assign]
    assert model.frozen_features() is None


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (ImageClassifier, {"freeze": "none"}),
        (ImageClassifier, {"features": "each_step"}),
        (OwnForward, {}),
        (OwnStep, {}),
        (OwnHook, {}),
    ],
    ids=["not frozen", "not wanted", "own forward", "own step", "own hook"],
)
def test_others_have_none(
    model_of: Callable[..., ImageClassifier], kind: type[ImageClassifier], settings: dict[str, Any]
) -> None:
    assert model_of(kind, **settings).frozen_features() is None


class Twice(nn.Module):
    """Uses a convolution twice, before norms of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.one, self.other = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.head = nn.Linear(3, 3)
        for norm in (self.one, self.other):
            assert norm.running_var is not None
            norm.running_var.fill_(4)

    def forward(self, images: Tensor) -> Tensor:
        one = self.one(self.conv(images))
        logits: Tensor = self.head(self.other(self.conv(one)).mean((2, 3)))
        return logits


class ByDefault(nn.Module):
    """Takes another way through its layers where it is given a scale, as tracing does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, images: Tensor, scale: Tensor | None = None) -> Tensor:
        features = self.norm(self.conv(images)).mean((2, 3))
        logits: Tensor = self.head(features if scale is None else features * scale)
        return logits


def test_the_digest_is_another_for_other_weights_and_there_are_none_where_some_are_trained(
    model_of: Callable[..., ImageClassifier],
) -> None:
    model = model_of()
    features = features_of(model)
    digest = features.digest()
    with torch.no_grad():
        model._heads()[0].bias.add_(1)  # type: ignore[operator]
        assert features.digest() == digest
        next(model._network.parameters()).add_(1)
    assert features.digest() != digest
    next(model._network.parameters()).requires_grad = True
    assert not features.is_frozen()
    assert features.example((32, 32)) is None


@pytest.mark.parametrize("network", [Twice, ByDefault])
def test_a_copy_without_batch_norms_that_gives_other_numbers_is_not_used(
    model_of: Callable[..., ImageClassifier], network: type[nn.Module]
) -> None:
    model = model_of()
    model.network, model._head_names = (
        network().eval().requires_grad_(requires_grad=False),
        ("head",),
    )
    features, images = features_of(model), torch.randn(4, 3, 8, 8)
    assert features.example((8, 8)) is not None
    assert features._fused is None
    with torch.no_grad():
        torch.testing.assert_close(
            compute_logits(model.network, "head", features.compute(images)), model(images)
        )

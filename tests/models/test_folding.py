"""Batch norms become part of the layers before them: the same numbers of fewer operations, or no copy at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision import models

from lightkit.models.features import fuse_batch_norms


class Norms(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the batch norms that are computed within it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num += "batch_norm" in func.name()
        return func(*args, **(kwargs or {}))


class ByItsNumbers(nn.Module):
    """Has layers that are computed for some images only."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = small()

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images) if images.mean() > 0 else images


def small() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())


def with_statistics(network: nn.Module) -> nn.Module:
    """Give the network as a training leaves it: norms of statistics, factors and summands that do something."""
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            for values, low, high in (
                (layer.running_mean, -0.5, 0.5), (layer.running_var, 0.5, 2.0),
                (layer.weight.data, 0.5, 1.5), (layer.bias.data, -0.5, 0.5),
            ):  # fmt: skip
                values.uniform_(low, high)
    return network.eval()


@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet18", "googlenet", "densenet121"])
def test_the_same_numbers_come_of_fewer_batch_norms(name: str) -> None:
    torch.manual_seed(0)
    options = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    network = with_statistics(models.get_model(name, num_classes=5, **options))
    before = {key: value.clone() for key, value in network.state_dict().items()}
    images = torch.randn(2, 3, 64, 64)
    copy = fuse_batch_norms(network)
    assert copy is not None
    with torch.no_grad():
        with Norms() as own:
            expected = network(images)
        with Norms() as of_copy:
            logits = copy(images)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert of_copy.num <= 0.55 * own.num  # DenseNet has some before their convolutions
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert {key for key, _ in copy.named_modules()} <= {key for key, _ in network.named_modules()}


def test_a_transformer_has_nothing_to_fold() -> None:
    assert fuse_batch_norms(models.get_model("vit_b_16", image_size=32).eval()) is None


def test_a_network_whose_layers_depend_on_the_numbers_is_computed_as_it_is() -> None:
    assert fuse_batch_norms(ByItsNumbers().eval()) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weights_of_low_precision_are_not_rounded_again(dtype: torch.dtype) -> None:
    assert fuse_batch_norms(small().eval().to(dtype)) is None


def test_who_looks_at_a_layer_goes_on_seeing_it() -> None:
    network = small().eval()
    network[1].register_forward_hook(lambda *_: None)
    assert fuse_batch_norms(network) is None

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from torch import nn
from torchvision import models

from lightkit.errors import ConfigError
from lightkit.models.backbones import (
    build,
    check_name,
    image_size_of,
    small_cnn,
    subnetworks_of_head,
)

NAMES = models.list_models(module=models)
# RegNet computes its widths with tensors, which the meta device cannot do; the smallest of each
# kind are built for real
REGNETS = [name for name in NAMES if name.startswith("regnet_")]
FIRST_OF_ITS_MODULE = {
    models.get_model_builder(name).__module__: name for name in reversed(NAMES)
}.values()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FIRST_OF_ITS_MODULE else pytest.mark.long)
        for name in NAMES
        if name not in REGNETS
    ],
)
def test_every_torchvision_backbone_has_one_head_for_the_classes(name: str) -> None:
    with torch.device("meta"):
        network = build(name, 7)
    (head,) = subnetworks_of_head(network, 7)
    layer = network.get_submodule(head)
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    assert len(layer.weight) == 7
    assert not [other for other in network.state_dict() if other.startswith(("aux", "Aux"))]


@pytest.mark.parametrize("name", ["regnet_x_400mf", "regnet_y_400mf"])
def test_regnets_have_one_head_for_the_classes(name: str) -> None:
    network = build(name, 7)
    assert subnetworks_of_head(network, 7) == ("fc",)
    assert len(network.state_dict()["fc.weight"]) == 7


def test_the_head_is_the_last_layer_even_where_others_have_as_many_outputs() -> None:
    with torch.device("meta"):
        network = build("vgg11", 4096)
    assert subnetworks_of_head(network, 4096) == ("classifier.6",)


@pytest.mark.parametrize(
    "name",
    [
        "small_cnn",
        "alexnet",
        "mobilenet_v3_small",
        "squeezenet1_1",
        "shufflenet_v2_x0_5",
        "googlenet",
    ],
)
def test_a_backbone_in_train_mode_answers_with_logits(name: str) -> None:
    torch.manual_seed(0)
    assert build(name, 7)(torch.randn(2, 3, 96, 96)).shape == (2, 7)


@pytest.mark.parametrize("size", [32, 64, 160, 224])
def test_the_small_network_takes_any_size(size: int) -> None:
    assert small_cnn(5).eval()(torch.zeros(1, 3, size, size + 8)).shape == (1, 5)


def test_the_small_network_is_small() -> None:
    assert 80_000 < sum(parameter.numel() for parameter in small_cnn(5).parameters()) < 120_000


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("resnet51", r"backbone: there is no backbone 'resnet51'; did you mean .*resnet50"),
        ("smal_cnn", r"did you mean small_cnn"),
        ("zzzz", r"some that exist: small_cnn, alexnet"),
        ("fcn_resnet50", r"there is no backbone 'fcn_resnet50'"),
        (None, r"there is no backbone null"),
    ],
    ids=["near", "own", "far", "not a classifier", "null"],
)
def test_an_unknown_name_is_refused_with_near_ones(name: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_name(name)


def test_timm_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=r"pip install 'lightkit-train\[timm\]'"):
        check_name("timm/resnet18")


@pytest.mark.skipif(
    importlib.util.find_spec("timm") is None, reason="timm, an extra, is not installed"
)
@pytest.mark.parametrize(
    "name", ["timm/resnet18", "timm/vit_tiny_patch16_224", "timm/deit_tiny_distilled_patch16_224"]
)
def test_timm_backbones_say_which_layers_are_the_head(name: str) -> None:
    check_name(name)
    network = build(name, 7)
    heads = [network.get_submodule(head) for head in subnetworks_of_head(network, 7)]
    assert [head.out_features for head in heads if isinstance(head, nn.Linear)] == [7] * len(heads)
    assert len(heads) == 1 + ("distilled" in name)


@pytest.mark.skipif(
    importlib.util.find_spec("timm") is None, reason="timm, an extra, is not installed"
)
def test_an_unknown_timm_name_is_refused_with_near_ones() -> None:
    with pytest.raises(ConfigError, match=r"did you mean .*timm/resnet18"):
        check_name("timm/resnet19")


def test_vision_transformers_know_their_image_size_and_others_take_any() -> None:
    with torch.device("meta"):
        assert image_size_of(build("vit_b_16", 5)) == 224
        assert image_size_of(build("vit_h_14", 5, weights="default")) == 518
        assert image_size_of(build("resnet18", 5)) is None


@pytest.mark.parametrize(
    ("weights", "transforms"), [(None, False), ("default", True), ("file.pth", True)]
)
def test_pretrained_googlenets_scale_their_input_as_torchvisions_do(
    weights: str | None, transforms: bool
) -> None:
    with torch.device("meta"):
        assert vars(build("googlenet", 5, weights=weights))["transform_input"] is transforms

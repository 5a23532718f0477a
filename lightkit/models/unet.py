"""A U-Net.

The layers of a backbone, whose maps of several sizes a decoder joins to one of the picture's size.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from lightkit.errors import ConfigError
from lightkit.models.backbones import SMALL_CNN, TIMM_PREFIX, build

_PROBED_SIDE = 128
"""Side in pixels of the picture that shows which layers of a backbone make maps of another size."""
_CHAINS = (
    # ResNet and its kin
    ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4"),
    ("conv1", "maxpool", "stage2", "stage3", "stage4", "conv5"),  # ShuffleNet
    ("stem", "trunk_output"),  # RegNet
    ("layers",),  # MNASNet
    ("features",),  # VGG, DenseNet, MobileNet, EfficientNet, ConvNeXt, SqueezeNet
)
"""Names of the layers of torchvision's networks that compute the maps, one after another."""
_MOST_WIDTH = 16
"""The decoder is at most so many times as wide at coarse sizes as at that of the picture."""


class Encoder(nn.Module):
    """The layers of a backbone without its head: the maps of all sizes, the finest first.

    Args:
        name: Of the backbone, as for `lightkit.models.backbones.build`.

    Attributes:
        channels: Of the maps.

    Raises:
        ConfigError: If the backbone has no maps of several sizes.
    """

    def __init__(self, name: str, network: nn.Module | None = None) -> None:
        super().__init__()
        layers = list(_iterate_layers(name, build(name, 2) if network is None else network))
        stages, self.channels = _divide(name, layers)
        self.stages = nn.ModuleList(stages)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Compute maps ``(batch, channels, rows, columns)`` of ``(batch, 3, height, width)``."""
        maps = []
        for stage in self.stages:
            images = stage(images)
            maps.append(images)
        return maps


def _iterate_layers(name: str, network: nn.Module) -> Iterator[nn.Module]:
    """Iterate over the layers of a network that compute the maps, in their order.

    Raises:
        ConfigError: If they are unknown.
    """
    if name == SMALL_CNN:
        yield from [layer for layer in network.children() if isinstance(layer, nn.Sequential)]
        return
    chain = next((each for each in _CHAINS if all(hasattr(network, part) for part in each)), None)
    is_plain = not name.startswith(
        (TIMM_PREFIX, "swin", "vit_", "maxvit", "inception", "googlenet")
    )
    if chain is None or not is_plain:
        raise _refuse(name)
    for part in chain:
        layer = getattr(network, part)
        yield from layer if isinstance(layer, nn.Sequential) else [layer]


def _refuse(name: str) -> ConfigError:
    return ConfigError(
        f"model.init_args.backbone: Segmenter has no decoder for {name}. Expected {SMALL_CNN}, or"
        " one of torchvision's convnext, densenet, efficientnet, mnasnet, mobilenet, regnet,"
        " resnet, resnext, shufflenet, squeezenet, vgg or wide_resnet, such as resnet18."
    )


def _divide(name: str, layers: list[nn.Module]) -> tuple[list[nn.Sequential], list[int]]:
    """Divide layers into stages, each of which ends with the last map of its size.

    Return their channels, too.

    Raises:
        ConfigError: If there are fewer than two sizes.
    """
    stages: list[list[nn.Module]] = []
    channels: list[int] = []
    side = _PROBED_SIDE
    value = torch.zeros(2, 3, side, side)
    with torch.no_grad():
        for layer in layers:
            was_training = layer.training
            value = layer.eval()(value)
            layer.train(was_training)
            if not stages or value.shape[-1] != side:
                stages.append([])
                channels.append(0)
            side = value.shape[-1]
            stages[-1].append(layer)
            channels[-1] = value.shape[1]
    if len(stages) < 2:
        raise _refuse(name)
    return [nn.Sequential(*stage) for stage in stages], channels


class _Join(nn.Module):
    """Enlarge a map to the size of a finer one, and join the two."""

    def __init__(self, coarse: int, fine: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(_convolve(coarse + fine, width), _convolve(width, width))

    def forward(self, coarse: Tensor, fine: Tensor) -> Tensor:
        enlarged = interpolate(coarse, size=fine.shape[-2:], mode="nearest")
        joined: Tensor = self.layers(torch.cat([enlarged, fine], dim=1))
        return joined


def _convolve(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """A U-Net (arXiv:1505.04597) on the maps of a backbone.

    Its finest map is of the picture itself, so that borders are as fine as pixels, with each
    backbone.

    Args:
        backbone: Name, as for `Encoder`.
        num_classes: Number of logits of a pixel.
        width: Channels at the size of the picture; each coarser map has twice as many, up to 16
            times.
    """

    def __init__(self, backbone: str, num_classes: int, *, width: int) -> None:
        super().__init__()
        self.encoder = Encoder(backbone)
        self.stem = _convolve(3, width)
        joins: list[nn.Module] = []
        coarse = self.encoder.channels[-1]
        fine_maps = [width, *self.encoder.channels[:-1]]
        for level in reversed(range(len(fine_maps))):
            own = width * min(2**level, _MOST_WIDTH)
            joins.append(_Join(coarse, fine_maps[level], own))
            coarse = own
        self.joins = nn.ModuleList(joins)
        self.head = nn.Conv2d(coarse, num_classes, 1)
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits ``(batch, classes, height, width)`` of ``(batch, 3, height, width)``."""
        maps = self.encoder(images)
        value = maps[-1]
        fine_maps = [self.stem(images), *maps[:-1]]
        for at, join in enumerate(self.joins):
            value = join(value, fine_maps[len(fine_maps) - 1 - at])
        logits: Tensor = self.head(value)
        return logits

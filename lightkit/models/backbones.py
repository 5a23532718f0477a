"""The networks that ImageClassifier can be built on, each by its name in a config."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models

from lightkit.errors import ConfigError

SMALL_CNN = "small_cnn"
TIMM_PREFIX = "timm/"
BACKBONES = (SMALL_CNN, *models.list_models(module=models), f"{TIMM_PREFIX}*")
"""Names of all backbones; ``*`` stands for any."""

# Both build auxiliary classifiers that only serve training from scratch; without them they answer with one tensor.
_WITH_AUXILIARY_HEADS = frozenset({"googlenet", "inception_v3"})


def small_cnn(num_classes: int) -> nn.Sequential:
    """Build a network of about 100,000 parameters for quick runs on a CPU.

    The stem halves the image twice at once, so that most of the work is done on 56 x 56 of 224 x 224 pixels.

    Args:
        num_classes: Number of logits.

    Returns:
        A network from ``(batch, 3, height, width)`` to logits ``(batch, num_classes)``, for any size from 32 pixels.
    """
    return nn.Sequential(
        _block(3, 24, kernel_size=5, stride=4),
        _block(24, 32),
        _block(32, 64),
        _block(64, 120),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(120, num_classes),
    )


def _block(in_channels: int, out_channels: int, *, kernel_size: int = 3, stride: int = 2) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=kernel_size // 2, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


def check_name(name: str) -> None:
    """Refuse a backbone that does not exist, before anything is built.

    Raises:
        ConfigError: With the near names, or with the extra to install for timm's.
    """
    if name.startswith(TIMM_PREFIX):
        known = [TIMM_PREFIX + known for known in _timm(name).list_models()]
    else:
        known = [SMALL_CNN, *models.list_models(module=models)]
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"some that exist: {', '.join(known[:8])}."
    raise ConfigError(
        f"model.init_args.backbone: there is no backbone {name!r}; {hint} "
        f"Expected {SMALL_CNN}, a classification model of torchvision, or timm/NAME."
    )


def build(name: str, num_classes: int, *, weights: str | None = None) -> nn.Module:
    """Build a backbone with a fresh head. Nothing is downloaded or read.

    Args:
        name: A name that ``check_name`` accepts.
        num_classes: Number of logits.
        weights: What will be loaded afterwards, because it decides two details of the architecture, as in
            torchvision's own builders: GoogLeNet and Inception re-scale their input for pretrained weights, and
            vision transformers take the image size that their default weights were trained with.

    Returns:
        A network from ``(batch, 3, height, width)`` to logits ``(batch, num_classes)``.
    """
    network: nn.Module
    if name == SMALL_CNN:
        network = small_cnn(num_classes)
    elif name.startswith(TIMM_PREFIX):
        network = _timm(name).create_model(name.removeprefix(TIMM_PREFIX), num_classes=num_classes)
    else:
        network = models.get_model(name, weights=None, num_classes=num_classes, **_options(name, weights))
    # On two cores a frozen MobileNetV2 trains 1.7 times as fast so, and nothing was seen to be slower.
    return network.to(memory_format=torch.channels_last)


def _options(name: str, weights: str | None) -> dict[str, Any]:
    if name in _WITH_AUXILIARY_HEADS:
        # without init_weights, torchvision warns that its default will change
        return {"aux_logits": False, "transform_input": weights is not None, "init_weights": weights is None}
    if name.startswith("vit_") and weights == "default":
        return {"image_size": models.get_model_weights(name).DEFAULT.meta["min_size"][0]}
    return {}


def subnetworks_of_head(network: nn.Module, num_classes: int) -> tuple[str, ...]:
    """Name the layers that make the logits.

    timm names them. torchvision does not, but in each of its classification models it is the last linear
    or convolutional layer with one output a class.

    Args:
        network: What ``build`` returned.
        num_classes: Its number of logits.

    Returns:
        Dotted names, such as ``("classifier.1",)``.
    """
    get_classifier: Callable[[], Any] | None = getattr(network, "get_classifier", None)  # timm's
    of_timm = get_classifier() if get_classifier else ()
    sized = [layer for layer in network.modules() if _num_outputs(layer) == num_classes][-1:]
    # several in distilled transformers
    heads = {id(head) for head in (of_timm if isinstance(of_timm, tuple) else (of_timm,)) or sized}
    names = tuple(name for name, layer in network.named_modules() if id(layer) in heads)
    if not names:
        raise ConfigError(
            f"model.init_args.backbone: no layer of {type(network).__name__} has {num_classes} outputs, so its head "
            f"cannot be told from the rest. Choose another backbone."
        )
    return names


def _num_outputs(layer: nn.Module) -> int | None:
    if isinstance(layer, nn.Linear):
        return layer.out_features
    return layer.out_channels if isinstance(layer, nn.Conv2d) else None


def _timm(name: str) -> Any:
    try:
        import timm  # an extra: thousands of models that most runs do not need
    except ImportError as error:
        raise ConfigError(
            f"model.init_args.backbone: {name!r} needs timm, which is not installed: pip install 'lightkit[timm]'"
        ) from error
    return timm


def image_size_of(network: nn.Module) -> int | None:
    """Return the only image size in pixels that a network takes, or None where it takes any."""
    size = getattr(network, "image_size", None)
    return size if isinstance(size, int) else None


def timm_pretrained(name: str) -> dict[str, Tensor]:
    """Download timm's own weights of a backbone, or take them from its cache."""
    network: nn.Module = _timm(name).create_model(name.removeprefix(TIMM_PREFIX), pretrained=True)
    return network.state_dict()

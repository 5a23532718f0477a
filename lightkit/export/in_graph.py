"""A model with its preprocessing in the graph: images as they come out of a file in, class probabilities out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import PIL
import torch
from torch import Tensor, nn

from lightkit.artefacts.metadata import OutputKind
from lightkit.images.preprocessing import Preprocessing

__all__ = ["Prepare", "Prepared", "with_preprocessing"]

_BITS = 22  # of Pillow's weights after the binary point: PRECISION_BITS in src/libImaging/Resample.c


class Prepare(nn.Module):
    """Resize, crop and normalise a batch of images, to the last bit as `Preprocessing` does it with Pillow.

    Each pass of the resize is a product with Pillow's own weights, whole numbers below 2 ** 23. In float64 such sums
    are exact in any order, so that every runtime gives the same pixels. It exports and scripts with dynamic sizes;
    TorchScript takes comments after ``type: ignore`` for types, and reads no annotations of buffers.

    Args:
        preprocessing: What to do.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.resize = preprocessing.resize
        self.crop_height, self.crop_width = preprocessing.crop
        self.unit = float(1 << _BITS)
        # Pillow 13 began to (pull request 9549). Which images are so tall is unknown to the graph, so it has both.
        self.is_tall_down_first = int(PIL.__version__.partition(".")[0]) >= 13
        self.register_buffer("mean", torch.tensor(preprocessing.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(preprocessing.std).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Give the model's input.

        Args:
            images: uint8 ``(batch, height, width, 3)`` in RGB, of any height and width.

        Returns:
            float32 ``(batch, 3, crop height, crop width)``.
        """
        height, width = images.shape[1], images.shape[2]
        shorter = self.shorter(height, width)
        pixels = images.permute(0, 3, 1, 2).to(torch.float64)
        across = self.weights(width, shorter, self.crop_width).transpose(0, 1)
        down = self.weights(height, shorter, self.crop_height)
        across_first = self.rounded(torch.matmul(down, self.rounded(torch.matmul(pixels, across))))
        if self.is_tall_down_first:
            down_first = self.rounded(torch.matmul(self.rounded(torch.matmul(down, pixels)), across))
            pixels = torch.where(self.is_tall(height, width, shorter), down_first, across_first)
        else:
            pixels = across_first
        scaled = pixels.to(torch.float32) * (1.0 / 255.0)  # the order of torchvision's v2.ToDtype and v2.Normalize
        return (scaled - self.mean) / self.std  # type: ignore[operator]

    def shorter(self, height: int, width: int) -> int:
        """Give the shorter side, without fixing which one that is."""
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return min(height, width)
        return torch.sym_min(height, width)  # type: ignore[return-value]

    def weights(self, length: int, shorter: int, crop: int) -> Tensor:
        """Give what each pixel along an axis adds to each one of the crop, as Pillow's ``precompute_coeffs`` does.

        Args:
            length: Of the axis, in pixels.
            shorter: Length of the image's shorter side.
            crop: Number of pixels that are wanted, from the middle.

        Returns:
            float64 ``(crop, length)`` of whole numbers; a row of zeros, which is black, beyond the image.
        """
        one = torch.ones(1, dtype=torch.float64)  # sizes are unknown to the exporters, but floats times tensors are not
        resized = self.resize * length // shorter
        scale = one * length / resized
        reach = scale.clamp(min=1.0)
        places = torch.arange(crop, dtype=torch.float64) + self.start(one * resized, crop)
        centres = (places + 0.5) * scale
        first = torch.floor(centres - reach + 0.5).clamp(min=0.0)
        last = torch.minimum(torch.floor(centres + reach + 0.5), one * length)
        at = torch.arange(length, dtype=torch.float64)
        heights = (1.0 - ((at[None, :] - centres[:, None] + 0.5) * (1.0 / reach)).abs()).clamp(min=0.0)
        seen = (at[None, :] >= first[:, None]) & (at[None, :] < last[:, None])
        seen = seen & ((places >= 0.0) & (places < one * resized))[:, None]
        heights = torch.where(seen, heights, torch.zeros_like(heights))
        sums = heights.sum(1, keepdim=True)
        shares = heights / torch.where(sums > 0.0, sums, torch.ones_like(sums))
        return torch.floor(shares * self.unit + 0.5)

    def is_tall(self, height: int, width: int, shorter: int) -> Tensor:
        """Tell whether Pillow's vertical pass comes first: where that shrinks the image by more than twice as much."""
        one = torch.ones(1, dtype=torch.float64)
        shrunk = one * height - self.resize * height // shorter
        return (shrunk > 0.0) & (shrunk > 2.0 * (one * width - self.resize * width // shorter))

    def start(self, resized: Tensor, crop: int) -> Tensor:
        """Give where the crop starts, as torchvision's ``CenterCrop`` does; below zero where it pads."""
        spare = resized - crop
        return torch.where(spare < 0.0, -torch.floor(-spare / 2.0), torch.round(spare / 2.0))

    def rounded(self, sums: Tensor) -> Tensor:
        """Give whole pixels, as Pillow does after each of the two passes."""
        return torch.floor((sums + self.unit / 2.0) / self.unit).clamp(0.0, 255.0)


class Prepared(nn.Module):
    """A classifier that takes images and gives probabilities.

    Args:
        network: Takes what `Prepare` gives.
        preprocessing: What the network expects.
        output_kind: What the network gives; logits go through a softmax.
    """

    def __init__(self, network: nn.Module, preprocessing: Preprocessing, output_kind: OutputKind) -> None:
        super().__init__()
        self.prepare: nn.Module = Prepare(preprocessing)
        self.network = network
        self.is_logits = output_kind == "logits"

    def forward(self, images: Tensor) -> Tensor:
        """Give the class probabilities, ``(batch, classes)``, of uint8 images ``(batch, height, width, 3)`` in RGB."""
        scores = self.network(self.prepare(images))
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            scores = _first(scores)
        return torch.softmax(scores, dim=1) if self.is_logits else scores


def _first(outputs: Any) -> Any:
    if isinstance(outputs, Mapping):
        return next(iter(outputs.values()))
    return outputs[0] if isinstance(outputs, (tuple, list)) else outputs


def with_preprocessing(model: nn.Module, preprocessing: Preprocessing, output_kind: OutputKind) -> nn.Module:
    """Put the preprocessing before a classifier and, where it gives logits, a softmax after it.

    Args:
        model: In eval mode; of several outputs, the first one is taken.
        preprocessing: What the model expects.
        output_kind: What the model gives.

    Returns:
        A module in eval mode from uint8 ``(batch, height, width, 3)`` in RGB to float32 ``(batch, classes)``.
    """
    return Prepared(model, preprocessing, output_kind).eval()

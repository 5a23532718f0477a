"""A model with its preprocessing in the graph.

Images as they come out of a file in, probabilities or masks out.
"""

from __future__ import annotations

from collections.abc import Mapping

import PIL
import torch
from torch import Tensor, nn

from lightkit.export.metadata import Metadata
from lightkit.images.preprocessing import Preprocessing
from lightkit.task import Activation

# of Pillow's weights after the binary point: PRECISION_BITS in src/libImaging/Resample.c
_BITS = 22


class ImageTransform(nn.Module):
    """Resize, crop and normalise a batch of images.

    To the last bit as `Preprocessing` does it with Pillow.

    Each pass of the resize is a product with Pillow's own weights, whole numbers below 2 ** 23. In
    float64 such sums are exact in any order, so that every runtime computes the same pixels. It
    exports and scripts with dynamic sizes; TorchScript takes comments after ``type: ignore`` for
    types, and reads no annotations of buffers.

    Args:
        preprocessing: Resize, crop, mean and standard deviation.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.resize = preprocessing.resize
        self.crop_height, self.crop_width = preprocessing.crop
        self.is_whole = preprocessing.is_whole
        self.unit = float(1 << _BITS)
        # Since Pillow 13 (pull request 9549). Which images are so tall is unknown to the graph, so
        # it has both orders.
        self.resizes_tall_down_first = int(PIL.__version__.partition(".")[0]) >= 13
        self.register_buffer(
            "mean", torch.tensor(preprocessing.mean).view(-1, 1, 1), persistent=False
        )
        self.register_buffer(
            "std", torch.tensor(preprocessing.std).view(-1, 1, 1), persistent=False
        )

    def forward(self, images: Tensor) -> Tensor:
        """Prepare images.

        Args:
            images: uint8 ``(batch, height, width, 3)`` in RGB, of any height and width.

        Returns:
            float32 ``(batch, 3, crop height, crop width)``.
        """
        height = images.shape[1]
        width = images.shape[2]
        shorter = self.shorter_side(height, width)
        pixels = images.permute(0, 3, 1, 2).to(torch.float64)
        across = self.resize_weights(width, shorter, self.crop_width).transpose(0, 1)
        down = self.resize_weights(height, shorter, self.crop_height)
        across_first = self.round_pixels(
            torch.matmul(down, self.round_pixels(torch.matmul(pixels, across)))
        )
        if self.resizes_tall_down_first:
            down_first = self.round_pixels(
                torch.matmul(self.round_pixels(torch.matmul(down, pixels)), across)
            )
            pixels = torch.where(self.is_tall(height, width, shorter), down_first, across_first)
        else:
            pixels = across_first
        # the order of torchvision's v2.ToDtype and v2.Normalize
        scaled = pixels.to(torch.float32) * (1.0 / 255.0)
        return (scaled - self.mean) / self.std  # type: ignore[operator]

    def shorter_side(self, height: int, width: int) -> int:
        """Return the shorter side, without fixing in the graph which one that is."""
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return min(height, width)
        return torch.sym_min(height, width)  # type: ignore[return-value]

    def resize_weights(self, length: int, shorter: int, crop: int) -> Tensor:
        """Compute each input pixel's weight in each pixel of the crop.

        As Pillow's ``precompute_coeffs`` does.

        Args:
            length: Of the axis, in pixels.
            shorter: Length of the image's shorter side.
            crop: Length of the centre crop, in pixels.

        Returns:
            float64 ``(crop, length)`` of whole numbers; a row of zeros, which is black, beyond the
            image.
        """
        # sizes are unknown to the exporters, but floats times tensors are not
        one = torch.ones(1, dtype=torch.float64)
        resized = self.resized_length(length, shorter, crop)
        scale = one * length / resized
        support = scale.clamp(min=1.0)
        # The start of torchvision's CenterCrop; below zero where it pads.
        spare = one * resized - crop
        start = torch.where(spare < 0.0, -torch.floor(-spare / 2.0), torch.round(spare / 2.0))
        positions = torch.arange(crop, dtype=torch.float64) + start
        centres = (positions + 0.5) * scale
        first = torch.floor(centres - support + 0.5).clamp(min=0.0)
        last = torch.minimum(torch.floor(centres + support + 0.5), one * length)
        pixel = torch.arange(length, dtype=torch.float64)
        weights = (1.0 - ((pixel[None, :] - centres[:, None] + 0.5) * (1.0 / support)).abs()).clamp(
            min=0.0
        )
        is_inside = (pixel[None, :] >= first[:, None]) & (pixel[None, :] < last[:, None])
        is_inside = is_inside & ((positions >= 0.0) & (positions < one * resized))[:, None]
        weights = torch.where(is_inside, weights, torch.zeros_like(weights))
        sums = weights.sum(1, keepdim=True)
        weights = weights / torch.where(sums > 0.0, sums, torch.ones_like(sums))
        return torch.floor(weights * self.unit + 0.5)

    def is_tall(self, height: int, width: int, shorter: int) -> Tensor:
        """Check whether Pillow's vertical pass comes first.

        Where it shrinks the image by more than twice as much.
        """
        one = torch.ones(1, dtype=torch.float64)
        shrunk = one * height - self.resized_length(height, shorter, self.crop_height)
        return (shrunk > 0.0) & (
            shrunk > 2.0 * (one * width - self.resized_length(width, shorter, self.crop_width))
        )

    def resized_length(self, length: int, shorter: int, crop: int) -> int:
        """Return the length of an axis once the image is resized, before it is cropped."""
        if self.is_whole:
            return crop
        return self.resize * length // shorter

    def round_pixels(self, sums: Tensor) -> Tensor:
        """Round to whole pixels, as Pillow does after each of the two passes."""
        return torch.floor((sums + self.unit / 2.0) / self.unit).clamp(0.0, 255.0)


def activation_of(metadata: Metadata) -> Activation:
    """Return the function that turns the first output of a model into probabilities."""
    return metadata.task.activation(metadata.outputs[0].shape)


def is_pair(metadata: Metadata) -> bool:
    """Return whether the first output is of the second of two classes alone."""
    return metadata.task.is_pair(metadata.outputs[0].shape, len(metadata.class_names or ()))


def compute_probabilities(outputs: Tensor, activation: Activation, *, is_pair: bool) -> Tensor:
    """Compute the probabilities ``(batch, classes, ...)`` of a model's first output.

    As `Task.probabilities` does.
    """
    if activation == "softmax":
        outputs = outputs.softmax(dim=1)
    elif activation == "sigmoid":
        outputs = outputs.sigmoid()
    elif activation == "argmax":
        outputs = outputs.argmax(dim=1).to(torch.uint8)
    if is_pair:
        outputs = outputs.reshape(-1, 1)
        outputs = torch.cat([1 - outputs, outputs], dim=1)
    return outputs


def invert_probabilities(
    probabilities: Tensor, activation: Activation, *, is_pair: bool, num_classes: int | None = None
) -> Tensor:
    """Compute outputs that have these probabilities, as ``(batch, ...)``.

    Of a mask, of so many classes.
    """
    if activation == "argmax":
        classes = torch.nn.functional.one_hot(probabilities.long(), num_classes or -1)
        return classes.movedim(-1, 1).float()
    if is_pair:
        probabilities = probabilities[:, 1:]
    if activation == "softmax":
        return probabilities.clamp_min(torch.finfo(torch.float32).tiny).log()
    if activation == "sigmoid":
        return probabilities.double().logit(eps=1e-12).to(probabilities.dtype)
    return probabilities


class ImageToProbabilities(nn.Module):
    """A classifier from uint8 images to probabilities of classes or labels.

    It may be a segmenter from these to masks.

    Args:
        network: Takes prepared images; of several outputs, the first one is used.
        preprocessing: Of the network's images.
        activation: Applied to the network's output.
        is_pair: The network's output is of the second of two classes alone; that of both comes out.
    """

    def __init__(
        self,
        network: nn.Module,
        preprocessing: Preprocessing,
        activation: Activation,
        *,
        is_pair: bool = False,
    ) -> None:
        super().__init__()
        self.prepare: nn.Module = ImageTransform(preprocessing)
        self.network = network
        self.has_softmax = activation == "softmax"
        self.has_sigmoid = activation == "sigmoid"
        self.has_argmax = activation == "argmax"
        self.is_pair = is_pair
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Compute probabilities ``(batch, classes)``, or masks, of uint8 images.

        Images are ``(batch, height, width, 3)`` in RGB.
        """
        scores = self.network(self.prepare(images))
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            if isinstance(scores, Mapping):
                scores = next(iter(scores.values()))
            elif isinstance(scores, (tuple, list)):
                scores = scores[0]
        probabilities: Tensor = scores
        if self.has_softmax:
            probabilities = torch.softmax(scores, dim=1)
        if self.has_sigmoid:
            probabilities = torch.sigmoid(scores)
        if self.has_argmax:
            probabilities = torch.argmax(scores, dim=1).to(torch.uint8)
        if self.is_pair:
            second = probabilities.reshape(-1, 1)
            probabilities = torch.cat([1 - second, second], dim=1)
        return probabilities

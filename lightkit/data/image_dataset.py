"""The dataset of images: random crops in training, the centre in evaluation, and normalisation on the device."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Trainer
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

from lightkit.data.bad_samples import Defects, read_samples
from lightkit.data.image_sources import Box, ImageSource, Pixels
from lightkit.data.sampler import SampleKey, epoch_order, sample_randomness, stable_seed
from lightkit.images.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing

Batch = tuple[Tensor, ...]
"""Images and labels; tables may have weights after them."""
_RESIZE_RATIO = 256 / 224  # torchvision's references/classification: resize to 256, then crop 224 from the centre
_RATIOS = (3 / 4, 4 / 3)  # width to height: torchvision's RandomResizedCrop, after Szegedy et al. 2014
_NUM_TRIES = 10
_NUM_AXES = 4


def preprocessing_of(image_size: int) -> Preprocessing:
    """Resize the shorter side to 256/224 of ``image_size``, crop the centre, normalise as ImageNet's weights expect."""
    return Preprocessing(
        resize=round(image_size * _RESIZE_RATIO),
        crop=(image_size, image_size),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )


class TrainView:
    """Random resized crop and flip, then what is asked for; the randomness is from (seed, epoch, index) alone.

    Args:
        image_size: Side of the square result, in pixels.
        crop_scale: Least and greatest share of the image's area that a crop keeps.
        color_jitter: Strength of the change of brightness, contrast and saturation; the hue changes by a quarter of it,
            at most by 0.5. 0 leaves it out.
        rand_augment: Apply RandAugment (Cubuk et al. 2019) with torchvision's defaults.

    Attributes:
        size: Height and width of what it gives.
        for_training: Whether a model learns from it, so that what cannot be read is replaced, and not left out.
    """

    for_training = True

    def __init__(
        self,
        image_size: int,
        *,
        crop_scale: tuple[float, float] = (0.35, 1.0),
        color_jitter: float = 0.0,
        rand_augment: bool = False,
    ) -> None:
        self.size = (image_size, image_size)
        self.crop_scale = crop_scale
        steps: list[Any] = [v2.RandAugment()] if rand_augment else []
        if color_jitter > 0:
            strength = color_jitter
            steps.append(v2.ColorJitter(strength, strength, strength, hue=min(strength / 4, 0.5)))
        self._further = v2.Compose(steps) if steps else None

    def __call__(self, pixels: Pixels, seed: int, key: SampleKey) -> Tensor:
        """Give one crop, uint8 ``(3, height, width)``.

        Raises:
            UnreadableImageError: If the image cannot be read or decoded.
        """
        draw = random.Random(stable_seed(seed, key.epoch, key.index))  # noqa: S311
        image = pixels.cropped(_random_box(draw, pixels.size, self.crop_scale), self.size)
        if draw.random() < 0.5:
            image = image.flip(2)
        if self._further is None:
            return image
        with sample_randomness(seed, key):
            augmented: Tensor = self._further(image)
        return augmented


class EvalView:
    """The resized centre.

    Args:
        preprocessing: Says the sizes.
        for_training: It is for a training without augmentation.
    """

    def __init__(self, preprocessing: Preprocessing, *, for_training: bool = False) -> None:
        self.size, self.for_training = preprocessing.crop, for_training
        self._preprocessing = preprocessing

    def __call__(self, pixels: Pixels, seed: int, key: SampleKey) -> Tensor:
        """Give the centre, to the last bit what the preprocessing makes of the whole image."""
        return torch.from_numpy(np.array(self._preprocessing.cropped(pixels.whole()))).permute(2, 0, 1)


View = TrainView | EvalView


def _random_box(draw: random.Random, size: tuple[int, int], scale: tuple[float, float]) -> Box:
    """Choose as torchvision's RandomResizedCrop (0.29) does."""
    height, width = size
    low, high = map(math.log, _RATIOS)
    for _ in range(_NUM_TRIES):
        area = height * width * draw.uniform(*scale)
        ratio = math.exp(draw.uniform(low, high))
        box_width, box_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            top, left = draw.randint(0, height - box_height), draw.randint(0, width - box_width)
            return Box(top, left, box_height, box_width)
    # the largest in the middle whose sides are not too unlike, of an image that is very wide or very high
    box_width = min(width, max(1, round(height * _RATIOS[1])))
    box_height = min(height, max(1, round(width / _RATIOS[0])))
    return Box((height - box_height) // 2, (width - box_width) // 2, box_height, box_width)


class ImageSamples(Dataset[tuple[Tensor, int]]):
    """The images of a split as a model sees them, read in whole batches.

    Args:
        source: Images and labels.
        view: Transform of an image.
        seed: Of the epoch's order and of the view's randomness, which is from (seed, epoch, index) alone.
        defects: Notes samples that cannot be read; see `lightkit.data.bad_samples` for what stands in their place. None
            where one is an error.
    """

    def __init__(self, source: ImageSource, view: View, *, seed: int, defects: Defects | None) -> None:
        self.source, self.view, self.seed, self.defects = source, view, seed, defects

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: SampleKey | int) -> tuple[Tensor, int]:
        """Read one sample.

        Raises:
            UnreadableImageError: If it cannot be read.
        """
        key = key if isinstance(key, SampleKey) else SampleKey(key, epoch=0)
        return self.read(key), self.source.label(key.index)

    def __getitems__(self, keys: Sequence[SampleKey | int]) -> Batch:
        """Read a batch; torch's loader calls this method where a dataset has it.

        Returns:
            Images uint8 ``(batch, 3, height, width)``, with the channels last in memory, and labels int64 ``(batch,)``.

        Raises:
            UnreadableImageError: If a sample cannot be read and ``defects`` is None, or no sample can be read.
        """
        images, num_read = torch.empty(0), 0

        def read(key: SampleKey) -> None:
            nonlocal images, num_read
            image = self.read(key)
            if not num_read:  # channels last in memory
                images = torch.empty(len(keys), *image.movedim(0, -1).shape, dtype=image.dtype).movedim(-1, 1)
            images[num_read] = image  # at once, while it is in the processor's cache
            num_read += 1

        found = read_samples(
            [key if isinstance(key, SampleKey) else SampleKey(key, epoch=0) for key in keys],
            read,
            name=lambda key: self.source.name(key.index),
            defects=self.defects,
            replacements=self._iter_next if self.view.for_training else None,
        )
        return images[:num_read], torch.tensor([self.source.label(key.index) for key, _ in found])

    def read(self, key: SampleKey) -> Tensor:
        """Read and transform one image, uint8 ``(3, height, width)``.

        Raises:
            UnreadableImageError: If it cannot be read.
        """
        return self.view(self.source.pixels(key.index), self.seed, key)

    def _iter_next(self, key: SampleKey) -> Iterator[SampleKey]:
        """Iterate over the samples after one in its epoch's order, and from the start on to that one."""
        order = epoch_order(len(self), seed=self.seed, epoch=key.epoch)
        at = order.index(key.index)
        yield from (SampleKey(index, key.epoch) for index in order[at + 1 :] + order[:at])

    @property
    def sample_bytes(self) -> int:
        """Size of a sample in a batch."""
        return 3 * math.prod(self.view.size)

    @staticmethod
    def collate(batch: Batch) -> Batch:
        """Return a batch as it is: for a loader's ``collate_fn``."""
        return batch


def stack_images(images: Sequence[Tensor]) -> Tensor:
    """Stack images whose channels are first in their shape and last in memory; they stay there."""
    return torch.stack([image.movedim(0, -1) for image in images]).movedim(-1, 1)


def normalised(batch: Any, preprocessing: Preprocessing, trainer: Trainer | None) -> Any:
    """Give a batch with its images as the model takes them; equal to the last bit to what `Preprocessing` makes.

    Args:
        batch: A tuple or list whose first tensor is uint8 images ``(batch, channels, height, width)``, or such a tensor
            alone. Any other is given back as it is.
        preprocessing: Tells mean and standard deviation.
        trainer: Its precision decides the dtype. Lightning converts a batch's floats before the transfer, when these
            are none yet, so it is done here as it does it. Without a trainer: float32.
    """
    if isinstance(batch, Tensor):
        return _floats(batch, preprocessing, trainer) if _are_images(batch) else batch
    if type(batch) in (tuple, list) and batch and _are_images(batch[0]):
        return type(batch)([_floats(batch[0], preprocessing, trainer), *batch[1:]])
    return batch


def _are_images(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.uint8 and value.ndim == _NUM_AXES


def _floats(images: Tensor, preprocessing: Preprocessing, trainer: Trainer | None) -> Tensor:
    mean, std = _constants(preprocessing.mean, preprocessing.std, images.device)
    floats = torch.empty(images.shape, dtype=torch.float32, device=images.device)
    # One image at a time stays in a core's cache, which saves a quarter of the time (32 images of 224 pixels, channels
    # last). A GPU gets the whole batch, as starting each step would cost it more than the step.
    parts = zip(floats, images, strict=True) if images.device.type == "cpu" else [(floats, images)]
    for part, pixels in parts:
        part.copy_(pixels).mul_(1 / 255).sub_(mean).div_(std)  # in this order, not divided by 255: see `Preprocessing`
    if trainer is None:
        return floats
    converted: Tensor = trainer.precision_plugin.convert_input(floats)
    return converted


@lru_cache(maxsize=8)  # a copy to a GPU waits for all that it has to do; once, not each batch
def _constants(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(mode=False):  # the sanity check comes first, and training could not take its tensors
        first, second = (
            torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1) for values in (mean, std)
        )
    return first, second

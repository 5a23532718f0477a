"""From an image's file to a batch.

Sources of pixels, views of them, the dataset, and normalisation on the device.

Of an encoded file no more is decoded than a crop needs.
"""

from __future__ import annotations

import hashlib
import io
import math
import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from pytorch_lightning import Trainer
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import Dataset
from torchvision.transforms import v2

from lightkit.data.bad_samples import Defects, read_samples
from lightkit.data.sampler import SampleKey, epoch_order, sample_randomness, stable_seed
from lightkit.images.image_file import (
    UnreadableImageError,
    decode_rgb,
    pillow_warnings,
    read_orientation,
)
from lightkit.images.image_index import Label, Photo
from lightkit.images.preprocessing import Preprocessing

_START = b"\xff\xd8\xff"
# By EXIF orientation: whether rows become columns, and then whether that is turned upside down, and
# left to right.
_TURNS = {
    1: (False, False, False),
    2: (False, False, True),
    3: (False, True, True),
    4: (False, True, False),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}


class Box(NamedTuple):
    """A part of an image, in whole pixels."""

    top: int
    left: int
    height: int
    width: int


_RGB = 3
"""``torchvision.io.ImageReadMode.RGB``; the operator is called itself, for `decode_jpeg` logs each
call."""


def resized(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize uint8 pixels ``(height, width, 3)``, bilinear and antialiased.

    Returns:
        uint8 ``(3, *size)``; in memory the channels come last, which torch's vectorised kernel
        wants.
    """
    batch = pixels[None].permute(0, 3, 1, 2)
    if batch.shape[2:] == size:
        return batch[0]
    batch = batch.contiguous(memory_format=torch.channels_last)
    return interpolate(batch, size, mode="bilinear", antialias=True)[0]


class Pixels(Protocol):
    """One image, upright and in RGB, of which no more is decoded than is asked for."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, in pixels; the coordinates of boxes count in them."""

    def cropped(self, box: Box, size: tuple[int, int]) -> Tensor:
        """Return a part of it, resized (bilinear, antialiased) to a height and width.

        As uint8 ``(3, height, width)``.
        """

    def whole(self) -> Image.Image:
        """Return all of it, as `lightkit.images.image_file.read_rgb` does."""

    def shrunk(self, long_side: int) -> Tensor:
        """Return all of it, uint8 ``(3, height, width)``.

        The larger of both is ``long_side`` at most.
        """
        height, width = self.size
        scale = min(1.0, long_side / max(height, width))
        return self.cropped(
            Box(0, 0, height, width), (max(1, round(height * scale)), max(1, round(width * scale)))
        )


class ImageSource(Protocol):
    """A split's images and labels; as a sequence, decoded images with their labels."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Image.Image, Label]:
        return self.pixels(index).whole(), self.label(index)

    def pixels(self, index: int) -> Pixels:
        """Return an image.

        Raises:
            UnreadableImageError: If it cannot be read or decoded, here or when its pixels are asked
                for.
        """

    def label(self, index: int) -> Label:
        """Return its label, or 0 or 1 for each of several labels."""

    def name(self, index: int) -> str:
        """Return what people know it by, such as its path."""

    def digest(self) -> str:
        """Compute a digest of all images in their order."""


class Decoded(Pixels):
    """An image whose pixels are in memory, or mapped to it.

    Args:
        pixels: uint8 ``(height, width, 3)``. It may be read-only; what is given from it never
            shares its memory.
    """

    def __init__(self, pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self._pixels = pixels

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, in pixels."""
        return self._pixels.shape[0], self._pixels.shape[1]

    def cropped(self, box: Box, size: tuple[int, int]) -> Tensor:
        """Return a part of it, resized: uint8 ``(3, height, width)``."""
        top, left, height, width = box
        return resized(
            torch.from_numpy(self._pixels[top : top + height, left : left + width].copy()), size
        )

    def whole(self) -> Image.Image:
        """Return all of it."""
        return Image.fromarray(self._pixels)


class Encoded(Pixels):
    """An image file, or its bytes, that is read and decoded when it is asked for.

    Of a plain JPEG, grey or of three channels with 8 bits each, only the part and the detail is
    decoded that is needed.

    Args:
        content: The file, or all of its bytes.
        name: What errors call it; a file's is its path.
    """

    def __init__(self, content: Path | bytes, *, name: str = "") -> None:
        self._content = content
        self._name = name or str(content)
        self._jpeg: Image.Image | None = None
        self._orientation = 1
        self._rgb: Image.Image | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, upright.

        Raises:
            UnreadableImageError: If it cannot be read.
        """
        if jpeg := self._open_jpeg():
            return (
                (jpeg.width, jpeg.height)
                if _TURNS[self._orientation][0]
                else (jpeg.height, jpeg.width)
            )
        image = self.whole()
        return image.height, image.width

    def cropped(self, box: Box, size: tuple[int, int]) -> Tensor:
        """Return a part of it, resized: uint8 ``(3, height, width)``.

        Where the part of a JPEG is at least twice as large as the result, the JPEG library decodes
        at a half, a quarter or an eighth of the size (`scale_denom`), and the part is cut there to
        the nearest pixel.

        Raises:
            UnreadableImageError: If it cannot be decoded.
        """
        if jpeg := self._open_jpeg():
            try:
                return self._crop_jpeg(jpeg, box, size)
            except Exception:  # noqa: BLE001 (`whole`, for images of all kinds, decides and words the error)
                self._rgb = self.whole()
        return Decoded(np.asarray(self.whole())).cropped(box, size)

    def whole(self) -> Image.Image:
        """Return all of it, as `lightkit.images.image_file.read_rgb` does.

        Raises:
            UnreadableImageError: If it cannot be decoded.
        """
        if self._rgb is None:
            self._rgb = decode_rgb(io.BytesIO(self._read()), name=self._name)
        return self._rgb

    def _read(self) -> bytes:
        if isinstance(self._content, Path):
            path = self._content
            try:
                if not path.is_file():  # a pipe in its place might never end
                    path.stat()
                    raise UnreadableImageError(
                        f"{path}: this is no file any more.", reason="no file any more"
                    )
                self._content = path.read_bytes()
            except OSError as error:
                raise UnreadableImageError.of(path, error) from error
        return self._content

    def _open_jpeg(self) -> Image.Image | None:
        """Read the head, once.

        None for other kinds of images, and where the whole image was decoded.
        """
        if self._jpeg is None and self._rgb is None:
            data = self._read()
            try:
                if data[:3] == _START:
                    with pillow_warnings():
                        image = Image.open(io.BytesIO(data))
                        self._orientation = read_orientation(image)
                        self._jpeg = image if image.mode in ("L", "RGB") else None
            except MemoryError as error:
                raise UnreadableImageError.of(self._name, error) from error
            except Exception:  # noqa: BLE001 (as above)
                self._jpeg = None
            if self._jpeg is None:
                self.whole()
        return None if self._rgb else self._jpeg

    def _crop_jpeg(self, jpeg: Image.Image, box: Box, size: tuple[int, int]) -> Tensor:
        is_transposed, is_upside_down, is_mirrored = _TURNS[self._orientation]
        height, width = self.size
        if is_upside_down:
            box = box._replace(top=height - box.top - box.height)
        if is_mirrored:
            box = box._replace(left=width - box.left - box.width)
        if is_transposed:
            box = Box(box.left, box.top, box.width, box.height)
            size = (size[1], size[0])
        finer = min(box.height / size[0], box.width / size[1])
        denominator = next((number for number in (8, 4, 2) if finer >= number), 1)
        if denominator > 1:
            self._jpeg = None  # it can be decoded once; the next part opens it again
            pixels = _decode_coarsely(jpeg, box, denominator)
        else:
            # writable, or torch warns
            data = torch.frombuffer(bytearray(self._read()), dtype=torch.uint8)
            whole: Tensor = torch.ops.image.decode_jpeg(data, _RGB, False)
            pixels = whole.permute(1, 2, 0)[
                box.top : box.top + box.height, box.left : box.left + box.width
            ]
        part = resized(pixels, size)
        part = part.transpose(1, 2) if is_transposed else part
        turned = [dim for dim, is_turned in ((1, is_upside_down), (2, is_mirrored)) if is_turned]
        return part.flip(turned) if turned else part


def _decode_coarsely(image: Image.Image, box: Box, denominator: int) -> Tensor:
    """Decode a box of the stored image at a share of its size, uint8 ``(height, width, 3)``."""
    width, height = image.size
    image.draft(None, (width // denominator, height // denominator))
    factor_y = -(-height // image.height)
    factor_x = -(-width // image.width)
    with pillow_warnings():
        rgb = image.convert("RGB")
    top = round(box.top / factor_y)
    left = round(box.left / factor_x)
    bottom = max(top + 1, round((box.top + box.height) / factor_y))
    right = max(left + 1, round((box.left + box.width) / factor_x))
    return torch.from_numpy(np.array(rgb))[top:bottom, left:right]


class PhotoPixels(ImageSource):
    """A split's photos, from their files.

    Args:
        photos: The split.
    """

    def __init__(self, photos: Sequence[Photo]) -> None:
        self.photos = photos

    def __len__(self) -> int:
        return len(self.photos)

    def pixels(self, index: int) -> Pixels:
        """Return a photo, which is not read yet."""
        return Encoded(self.photos[index].path)

    def label(self, index: int) -> Label:
        """Return its label."""
        return self.photos[index].label

    def name(self, index: int) -> str:
        """Return its path."""
        return str(self.photos[index].path)

    def digest(self) -> str:
        """Compute a digest of all photos in their order."""
        return hashlib.sha256("".join(photo.digest for photo in self.photos).encode()).hexdigest()


Batch = tuple[Tensor, ...]
"""Images and labels; tables may have weights after them."""
# width to height: torchvision's RandomResizedCrop, after Szegedy et al. 2014
_RATIOS = (3 / 4, 4 / 3)
_NUM_TRIES = 10
_NUM_AXES = 4


class TrainView:
    """Random resized crop and flip, then what is asked for.

    The randomness is from (seed, epoch, index) alone.

    Args:
        image_size: Side of the square result, in pixels.
        crop_scale: Least and greatest share of the image's area that a crop keeps.
        color_jitter: Strength of the change of brightness, contrast and saturation; the hue changes
            by a quarter of it, at most by 0.5. 0 leaves it out.
        rand_augment: Apply RandAugment (Cubuk et al. 2019) with torchvision's defaults.

    Attributes:
        size: Height and width of what it gives.
        for_training: Whether a model learns from it, so that what cannot be read is replaced, and
            not left out.
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
        """Return one crop, uint8 ``(3, height, width)``.

        Raises:
            UnreadableImageError: If the image cannot be read or decoded.
        """
        draw = random.Random(stable_seed(seed, key.epoch, key.index))  # noqa: S311
        image = pixels.cropped(random_box(draw, pixels.size, self.crop_scale), self.size)
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
        self.size = preprocessing.crop
        self.for_training = for_training
        self._preprocessing = preprocessing

    def __call__(self, pixels: Pixels, seed: int, key: SampleKey) -> Tensor:
        """Return the centre, to the last bit what the preprocessing makes of the whole image."""
        return torch.from_numpy(np.array(self._preprocessing.cropped(pixels.whole()))).permute(
            2, 0, 1
        )


View = TrainView | EvalView


def random_box(draw: random.Random, size: tuple[int, int], scale: tuple[float, float]) -> Box:
    """Choose as torchvision's RandomResizedCrop (0.29) does."""
    height, width = size
    low, high = map(math.log, _RATIOS)
    for _ in range(_NUM_TRIES):
        area = height * width * draw.uniform(*scale)
        ratio = math.exp(draw.uniform(low, high))
        box_width = round(math.sqrt(area * ratio))
        box_height = round(math.sqrt(area / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            top = draw.randint(0, height - box_height)
            left = draw.randint(0, width - box_width)
            return Box(top, left, box_height, box_width)
    # the largest in the middle whose sides are not too unlike, of an image that is very wide or
    # very high
    box_width = min(width, max(1, round(height * _RATIOS[1])))
    box_height = min(height, max(1, round(width / _RATIOS[0])))
    return Box((height - box_height) // 2, (width - box_width) // 2, box_height, box_width)


class ImageSamples(Dataset[tuple[Tensor, Label]]):
    """The images of a split as a model sees them, read in whole batches.

    Args:
        source: Images and labels.
        view: Transform of an image.
        seed: Of the epoch's order and of the view's randomness, which is from (seed, epoch, index)
            alone.
        defects: Notes samples that cannot be read; see `lightkit.data.bad_samples` for what stands
            in their place. None where one is an error.
    """

    def __init__(
        self, source: ImageSource, view: View, *, seed: int, defects: Defects | None
    ) -> None:
        self.source = source
        self.view = view
        self.seed = seed
        self.defects = defects

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: SampleKey | int) -> tuple[Tensor, Label]:
        """Read one sample.

        Raises:
            UnreadableImageError: If it cannot be read.
        """
        key = key if isinstance(key, SampleKey) else SampleKey(key, epoch=0)
        return self.read(key), self.source.label(key.index)

    def __getitems__(self, keys: Sequence[SampleKey | int]) -> Batch:
        """Read a batch; torch's loader calls this method where a dataset has it.

        Returns:
            Images uint8 ``(batch, 3, height, width)``, with the channels last in memory, and labels
            int64 ``(batch,)``.

        Raises:
            UnreadableImageError: If a sample cannot be read and ``defects`` is None, or no sample
                can be read.
        """
        images = torch.empty(0)
        num_read = 0

        def read(key: SampleKey) -> None:
            nonlocal images, num_read
            image = self.read(key)
            if not num_read:  # channels last in memory
                images = torch.empty(
                    len(keys), *image.movedim(0, -1).shape, dtype=image.dtype
                ).movedim(-1, 1)
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
        """Iterate over the samples after one in its epoch's order, then from the start to it."""
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
    """Return a batch with its images as the model takes them.

    Equal to the last bit to what `Preprocessing` makes.

    Args:
        batch: A tuple or list whose first tensor is uint8 images
            ``(batch, channels, height, width)``, or such a tensor alone. Any other is given back as
            it is.
        preprocessing: Tells mean and standard deviation.
        trainer: Its precision decides the dtype. Lightning converts a batch's floats before the
            transfer, when these are none yet, so it is done here as it does it. Without a trainer:
            float32.
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
    # One image at a time stays in a core's cache, which saves a quarter of the time (32 images of
    # 224 pixels, channels last). A GPU gets the whole batch, as starting each step would cost it
    # more than the step.
    parts = zip(floats, images, strict=True) if images.device.type == "cpu" else [(floats, images)]
    for part, pixels in parts:
        # in this order, not divided by 255: see `Preprocessing`
        part.copy_(pixels).mul_(1 / 255).sub_(mean).div_(std)
    if trainer is None:
        return floats
    converted: Tensor = trainer.precision_plugin.convert_input(floats)
    return converted


@lru_cache(maxsize=8)  # a copy to a GPU waits for all that it has to do; once, not each batch
def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    # the sanity check comes first, and training could not take its tensors
    with torch.inference_mode(mode=False):
        first, second = (
            torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)
            for values in (mean, std)
        )
    return first, second

"""A folder of images and their masks as a Lightning data module."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.transforms import InterpolationMode, v2

from lightkit.config.bounds import Bounds, Fraction, NonNegativeInt, Part
from lightkit.data.bad_samples import Defects, read_samples
from lightkit.data.checked_images import CheckedImages
from lightkit.data.image_dataset import (
    Batch,
    EvalView,
    ImageSamples,
    PhotoPixels,
    Pixels,
    random_box,
)
from lightkit.data.image_module import ImageModule, check_arguments, seed_of, warn_idle
from lightkit.data.loader import predict_loader
from lightkit.data.sampler import SampleKey, sample_randomness, stable_seed
from lightkit.errors import ConfigError, DataError
from lightkit.images.image_file import UnreadableImageError
from lightkit.images.image_index import Photo
from lightkit.images.mask_file import IGNORED, UNKNOWN, MaskClasses, parse_classes, resize_mask
from lightkit.images.mask_index import MaskIndex, index_masks
from lightkit.images.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from lightkit.images.splits import Split, check_fractions

_Mask = NDArray[np.int64]


class MaskPixels(PhotoPixels):
    """A split's images with their masks, from their files.

    As a sequence, pairs of an image and a mask.

    Args:
        photos: The images.
        index: Knows their masks and the classes.
    """

    def __init__(self, photos: Sequence[Photo], index: MaskIndex) -> None:
        super().__init__(photos)
        self._masks = [index.masks[photo.path] for photo in photos]
        self._digests = [index.digests[photo.path] for photo in photos]
        self.classes: MaskClasses = index.classes

    def __getitem__(self, index: int) -> tuple[Image.Image, Any]:
        return self.pixels(index).whole(), self.mask(index)

    def mask(self, index: int) -> _Mask:
        """Read the class of each pixel, int64 ``(height, width)``, `IGNORED` where uncounted.

        Raises:
            UnreadableImageError: If it cannot be read any more, or was changed since all were
                checked.
        """
        path = self._masks[index]
        mask = self.classes.read(path)
        photo = self.photos[index]
        if mask.shape != (photo.height, photo.width) or (mask == UNKNOWN).any():
            reason = "changed since it was checked: another size, or a value that is no class"
            raise UnreadableImageError(f"{path}: this mask was {reason}.", reason=reason)
        return mask

    def digest(self) -> str:
        """Compute a digest of all images and masks in their order."""
        joined = "".join(
            map("".join, zip((photo.digest for photo in self.photos), self._digests, strict=True))
        )
        return hashlib.sha256(
            f"{self.classes.codes}{self.classes.ignored}{joined}".encode()
        ).hexdigest()


class MaskTrainView:
    """The same random crop, flip and turn of an image and its mask, and other colours of the image.

    Args:
        image_size: Side of the square result, in pixels.
        crop_scale: Least and greatest share of the image's area that a crop keeps.
        color_jitter: Strength of the change of colours, as for
            `lightkit.data.image_dataset.TrainView`.
        rotate: Most degrees that both are turned to either side.
    """

    for_training = True

    def __init__(
        self,
        image_size: int,
        *,
        crop_scale: tuple[float, float],
        color_jitter: float,
        rotate: float,
    ) -> None:
        self.size = (image_size, image_size)
        self.crop_scale = crop_scale
        self.rotate = rotate
        strength = color_jitter
        self._further: Any = None
        if strength > 0:
            self._further = v2.ColorJitter(strength, strength, strength, hue=min(strength / 4, 0.5))

    def __call__(
        self, pixels: Pixels, mask: _Mask, seed: int, key: SampleKey
    ) -> tuple[Tensor, Tensor]:
        """Return one crop of both: uint8 ``(3, height, width)``, int64 ``(height, width)``."""
        draw = random.Random(stable_seed(seed, key.epoch, key.index))  # noqa: S311
        box = random_box(draw, pixels.size, self.crop_scale)
        image = pixels.cropped(box, self.size)
        part = mask[box.top : box.top + box.height, box.left : box.left + box.width]
        classes = torch.from_numpy(resize_mask(part, self.size))
        if draw.random() < 0.5:
            image = image.flip(2)
            classes = classes.flip(1)
        if self.rotate:
            angle = draw.uniform(-self.rotate, self.rotate)
            color = [round(255 * value) for value in IMAGENET_MEAN]
            image = v2.functional.rotate_image(image, angle, InterpolationMode.BILINEAR, fill=color)
            classes = v2.functional.rotate_mask(classes[None], angle, fill=IGNORED)[0]
        if self._further is not None:
            with sample_randomness(seed, key):
                image = self._further(image)
        return image, classes


class MaskEvalView(EvalView):
    """The whole image and its mask, resized to a square."""

    def __call__(  # type: ignore[override]
        self, pixels: Pixels, mask: _Mask, seed: int, key: SampleKey
    ) -> tuple[Tensor, Tensor]:
        """Return both: uint8 ``(3, height, width)`` and int64 ``(height, width)``.

        The image is to the last bit as the preprocessing makes it.
        """
        return super().__call__(pixels, seed, key), torch.from_numpy(resize_mask(mask, self.size))


class MaskSamples(ImageSamples):
    """The images and masks of a split as a model sees them, read in whole batches.

    Args:
        source: The pairs.
        view: Transform of a pair.
        seed: As for ImageSamples.
        defects: Likewise.
    """

    source: MaskPixels
    view: Any

    def __init__(
        self,
        source: MaskPixels,
        view: MaskTrainView | MaskEvalView,
        *,
        seed: int,
        defects: Defects | None,
    ) -> None:
        super().__init__(source, view, seed=seed, defects=defects)  # type: ignore[arg-type]

    def __getitem__(self, key: SampleKey | int) -> tuple[Tensor, Any]:
        """Read one sample.

        Raises:
            UnreadableImageError: If it cannot be read.
        """
        return self.read_pair(key if isinstance(key, SampleKey) else SampleKey(key, epoch=0))

    def read_pair(self, key: SampleKey) -> tuple[Tensor, Tensor]:
        """Read and transform an image and its mask."""
        mask = self.source.mask(key.index)
        image, classes = self.view(self.source.pixels(key.index), mask, self.seed, key)
        return image, classes

    def __getitems__(self, keys: Sequence[SampleKey | int]) -> Batch:
        """Read a batch.

        Returns:
            Images uint8 ``(batch, 3, height, width)``, with the channels last in memory, and masks
            int64 ``(batch, height, width)``.

        Raises:
            UnreadableImageError: If a sample cannot be read and ``defects`` is None, or no sample
                can be read.
        """
        found = read_samples(
            [key if isinstance(key, SampleKey) else SampleKey(key, epoch=0) for key in keys],
            self.read_pair,
            name=lambda key: self.source.name(key.index),
            defects=self.defects,
            replacements=self._iter_next if self.view.for_training else None,
        )
        pairs = [pair for _, pair in found]
        images = torch.stack([image.movedim(0, -1) for image, _ in pairs]).movedim(-1, 1)
        return images, torch.stack([classes for _, classes in pairs])

    @property
    def sample_bytes(self) -> int:
        """Size of a sample in a batch."""
        height, width = self.view.size
        return int((3 + 8) * height * width)


class MaskFolder(CheckedImages[MaskIndex], ImageModule):
    """Images in one folder and their masks, with equal names, in another.

    Such as images/1.jpg and masks/1.png.

    A mask has the size of its image. Its pixels are numbers of classes, in grey or in a palette, or
    colours of a table. Splits stand above the two folders (train/images, train/masks) or in them
    (images/train, masks/train); where there are none, a hash of an image's content decides, as for
    ImageFolder. A missing mask, another size and a value that is no class are errors with the file
    before anything is trained.

    Batches are uint8 images ``(batch, 3, height, width)``, normalised on the device as those of
    ImageFolder, and int64 masks ``(batch, height, width)``, -100 where a pixel counts for nothing.
    Evaluation sees the whole image, resized to a square; training sees the same crop, flip and turn
    of image and mask. Images are resized with antialiasing, masks by the pixel at the centre
    ("nearest-exact").

    Args:
        root: Folder that holds both folders, or the splits.
        images: Name of the folder of images.
        masks: Name of the folder of masks.
        classes: Names in the order of their numbers from 0; or by name the number in the files, or
            the colour, as ``[128, 64, 128]`` or ``"#804080"``. Without it the numbers that occur
            are the classes, if they are 0, 1, 2 and so on.
        ignore_index: Number, or colour, of pixels that count for nothing; `auto` is 255 where no
            class has it, null none.
        val_fraction: Share of the images used for validation, where no validation folder is given.
        test_fraction: Share of the images kept for testing, where no splits are given.
        on_bad_image: What to do about images and masks that cannot be decoded: `skip` leaves the
            pair out and lists it in the run folder, `error` ends the command with the list.
        max_bad_fraction: Share of all files above which bad ones are an error in either case; also
            at the end of each epoch, of those that broke since.
        rotate: Most degrees by which training turns image and mask to either side.
        kwargs: Sizes, loading and augmentation, as for LoadingModule; `mixup`, `cutmix` and
            `rand_augment` would change the image alone, and are refused.
    """

    source = "masks"
    input_folders: ClassVar[tuple[str, ...]] = ("root",)
    sample_arguments: ClassVar[tuple[str, ...]] = (
        *("root", "images", "masks", "classes", "ignore_index"),
        *("val_fraction", "test_fraction", "on_bad_image", "max_bad_fraction"),
    )

    def __init__(
        self,
        root: str,
        images: str = "images",
        masks: str = "masks",
        classes: list[str] | dict[str, int | str | list[int]] | None = None,
        ignore_index: NonNegativeInt | Literal["auto"] | list[int] | None = "auto",
        val_fraction: Part = 0.2,
        test_fraction: Part = 0.1,
        on_bad_image: Literal["skip", "error"] = "skip",
        max_bad_fraction: Fraction = 0.05,
        rotate: Annotated[float, Bounds(ge=0, le=180)] = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_fractions(val_fraction=val_fraction, test_fraction=test_fraction)
        check_arguments(self, max_bad_fraction=max_bad_fraction, rotate=rotate)
        parse_classes(classes, ignore_index)
        for name in ("mixup", "cutmix", "rand_augment"):
            if getattr(self, name):
                raise ConfigError(
                    f"data.init_args.{name}: it would change an image without its mask. Leave it"
                    " out; crop_scale, rotate and color_jitter change"
                    " both alike, or colours alone."
                )
        self.root = Path(root).expanduser()
        self.images = images
        self.masks = masks
        self.classes = classes
        self.ignore_index = ignore_index
        self.val_fraction = val_fraction
        self.test_fraction = test_fraction
        self.on_bad_image = on_bad_image
        self.max_bad_fraction = max_bad_fraction
        self.rotate = rotate

    def setup(self, stage: str | None = None) -> None:
        """Find and check all images and masks, once.

        Raises:
            ConfigError: If the classes are unknown.
            DataError: If the folder or a file in it is unusable, or ``stage`` needs a split that
                there is none of.
        """
        super().setup(stage)
        if stage == "fit" and not self.augment:
            warn_idle(self, "rotate", why="data.init_args.augment: false")

    def _find_images(self) -> MaskIndex:
        return index_masks(
            self.root,
            images=self.images,
            masks=self.masks,
            classes=self.classes,
            ignore_index=self.ignore_index,
            val_fraction=self.val_fraction,
            test_fraction=self.test_fraction,
            on_bad_image=self.on_bad_image,
            max_bad_fraction=self.max_bad_fraction,
        )

    @property
    def are_decoded(self) -> bool:
        """Return whether images are kept decoded: never."""
        return False

    @property
    def preprocessing(self) -> Preprocessing:
        """Preparation of an image for the model, outside training: all of it, as a square."""
        size = self.image_size
        return Preprocessing(size, (size, size), IMAGENET_MEAN, IMAGENET_STD, is_whole=True)

    def read_split(self, split: Split, *, decoded: bool) -> MaskPixels:
        """Return the images and masks of a split."""
        return MaskPixels(self.index.splits[split], self.index)

    def predict_dataloader(self) -> DataLoader[Any]:
        """Return the test split if there is one, else the validation split.

        Each image must be readable.
        """
        source = self.read_split(self._predict_split, decoded=False)
        samples = MaskSamples(
            source, MaskEvalView(self.preprocessing), seed=seed_of(self), defects=None
        )
        return predict_loader(samples, **self._loading)

    def _samples(self, split: Split, *, decoded: bool) -> MaskSamples:
        view: MaskTrainView | MaskEvalView = MaskEvalView(
            self.preprocessing, for_training=split == "train"
        )
        if split == "train" and self.augment:
            view = MaskTrainView(
                self.image_size,
                crop_scale=self.crop_scale,
                color_jitter=self.color_jitter,
                rotate=self.rotate,
            )
        return MaskSamples(
            self.read_split(split, decoded=decoded), view, seed=seed_of(self), defects=self.defects
        )

    def _refuse_missing(self, split: Split) -> None:
        if not self.index.splits[split]:
            raise DataError(
                f"{self.root}: there is no {split} split. Add a folder {self.root}/{split} with"
                f" {self.images}/ and {self.masks}/, or, without folders of splits, set"
                f" data.init_args.{split}_fraction above 0."
            )

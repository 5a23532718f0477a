"""A folder of images as a Lightning data module."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, Literal

from pytorch_lightning.trainer.states import TrainerFn

from lightkit.config.bounds import Fraction, Part, PositiveFloat, PositiveInt
from lightkit.data.checked_images import CheckedImages
from lightkit.data.image_cache import open_sources
from lightkit.data.image_dataset import ImageSource, PhotoPixels
from lightkit.data.image_module import ImageModule, check_arguments, warn_idle
from lightkit.errors import ConfigError, DataError
from lightkit.images.image_index import ImageIndex, index_images
from lightkit.images.splits import Split, check_fractions


class ImageFolder(CheckedImages[ImageIndex], ImageModule):
    """Images in one folder a class, or in train/, val/ and test/ with one folder a class each.

    Where no splits are given, an image's split is decided by a hash of its content: it is the same
    on every machine, stays when images are added, and byte-identical copies always go the same way.

    A batch leaves the loaders as uint8 images ``(batch, 3, height, width)`` and int64 labels. Its
    images are scaled and normalised on the device that takes it, by `on_after_batch_transfer`; who
    goes through a loader by hand calls that with each batch. A model's own
    `on_after_batch_transfer` gets the normalised batch, though Lightning warns that it is left out.

    An image that cannot be read any more in the middle of a training is replaced by the next one of
    the epoch's order that can be read, which then counts twice in the means of the epoch; in
    validation and test it is left out of its batch. It is listed with those that the scan has
    found, and too many of them end the training after an epoch, with its checkpoint written. For
    predictions, whose rows stand beside the names of the files, one is an error.

    Args:
        root: Folder that holds the class folders, or train/, val/ and test/, also by their other
            usual names (Training, train_set, valid, validation, eval, Testing and the like).
            Classes are those of train/; val/ and test/ may lack some.
        val_fraction: Share of the images used for validation, where no validation folder is given.
        test_fraction: Share of the images kept for testing, where no splits are given.
        on_bad_image: What to do about files that cannot be decoded: `skip` leaves them out and
            lists them in the run folder, `error` ends the command with the list.
        max_bad_fraction: Share of all files above which bad ones are an error in either case; also
            at the end of each epoch, of those that broke since.
        cache: Where images that are decoded once are kept for later epochs: `memory` (shared by all
            processes of the machine, gone with the run), `disk` (kept for later runs); `auto` takes
            memory or disk by what fits, or neither. With each of these a training crop is cut from
            the image resized to ``cache_size``, kept or not, so that the numbers are the same on
            every machine; with `none` it is cut from the file's own pixels.
        cache_size: Shorter side of the resized images, in pixels, at least ``image_size``; default
            is what evaluation resizes to.
        cache_limit_gb: Most that the cache may take, in GB (1e9 bytes); default is a share of what
            is free.
        kwargs: Sizes, loading and augmentation, as for LoadingModule.
    """

    source = "photos"
    input_folders: ClassVar[tuple[str, ...]] = ("root",)
    class_folders: ClassVar[tuple[str, ...]] = ("root",)
    sample_arguments: ClassVar[tuple[str, ...]] = (
        *("root", "val_fraction", "test_fraction", "on_bad_image", "max_bad_fraction"),
    )

    def __init__(
        self,
        root: str,
        val_fraction: Part = 0.2,
        test_fraction: Part = 0.1,
        on_bad_image: Literal["skip", "error"] = "skip",
        max_bad_fraction: Fraction = 0.05,
        cache: Literal["auto", "none", "memory", "disk"] = "auto",
        cache_size: PositiveInt | None = None,
        cache_limit_gb: PositiveFloat | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_fractions(val_fraction=val_fraction, test_fraction=test_fraction)
        check_arguments(
            self,
            max_bad_fraction=max_bad_fraction,
            cache_size=cache_size,
            cache_limit_gb=cache_limit_gb,
        )
        if cache_size is not None and cache_size < self.image_size:
            raise ConfigError(
                "data.init_args.cache_size: expected at least data.init_args.image_size"
                f" ({self.image_size} pixels), got {cache_size}; every crop would be enlarged."
                " Leave it out, or lower image_size."
            )
        self.root = Path(root).expanduser()
        self.val_fraction = val_fraction
        self.test_fraction = test_fraction
        self.on_bad_image = on_bad_image
        self.max_bad_fraction = max_bad_fraction
        self.cache = cache
        self.cache_size = cache_size
        self.cache_limit_gb = cache_limit_gb
        self._sources: dict[Split, ImageSource] | None = None
        self._decoded: dict[str, Any] = {"kept": "nowhere", "size": None}

    def setup(self, stage: str | None = None) -> None:
        """Find and check all images, once; for a fit, decode those that are kept decoded.

        Raises:
            DataError: If the folder or a file in it is unusable, or ``stage`` needs a split that
                there is none of.
        """
        super().setup(stage)
        if stage != "fit":
            return
        self._sources = None
        if not self.augment:
            warn_idle(self, "cache_size", why="data.init_args.augment: false")
        if self.cache == "none":
            warn_idle(self, "cache_size", "cache_limit_gb", why="data.init_args.cache: none")
        module = None if self.trainer is None else self.trainer.lightning_module
        if self.augment or not getattr(module, "may_keep_features", False):
            # decodes; else it may be that features are enough
            self.read_split("train", decoded=True)

    def _find_images(self) -> ImageIndex:
        """Find and check all images."""
        return index_images(
            self.root,
            val_fraction=self.val_fraction,
            test_fraction=self.test_fraction,
            on_bad_image=self.on_bad_image,
            max_bad_fraction=self.max_bad_fraction,
        )

    def read_split(self, split: Split, *, decoded: bool) -> ImageSource:
        """Return the images of a split.

        Those of a fit from where they are kept decoded if ``decoded``.
        """
        photos = self.index.splits
        if not decoded or self._stage != "fit" or split == "test":
            return PhotoPixels(photos[split])
        if self._sources is None:
            # an export looks at some images of a fit: the same pixels, of which none is decoded
            # beforehand
            trains = self.trainer is None or self.trainer.state.fn == TrainerFn.FITTING
            self._sources, self._decoded = open_sources(
                {"train": photos["train"], "val": photos["val"]},
                cache=self.cache if trains or self.cache == "none" else "auto",
                cache_size=self.cache_size if self.augment else None,
                cache_limit_gb=self.cache_limit_gb,
                preprocessing=self.preprocessing,
                batch_size=self.batch_size,
                trainer=self.trainer if trains else None,
            )
        return self._sources[split]

    @property
    def are_decoded(self) -> bool:
        """Return whether images are kept decoded."""
        return bool(self._decoded["kept"] != "nowhere")

    @property
    def is_multilabel(self) -> bool:
        """Return whether an image has any number of labels."""
        return False

    @property
    def label_counts(self) -> list[int]:
        """Number of training images of each class or label, for factors of the loss."""
        counts = Counter(number for photo in self.index.splits["train"] for number in photo.classes)
        return [counts[number] for number in range(self.num_classes)]

    def describe(self) -> dict[str, Any]:
        """Return the data's entry in a run's manifest."""
        cache = {"cache": self._decoded} if self._stage == "fit" else {}
        return super().describe() | cache

    def _refuse_missing(self, split: Split) -> None:
        if not self.index.splits[split]:
            raise DataError(
                f"{self.root}: there is no {split} split. Add a folder {self.root}/{split} with the"
                f" same class folders as {self.root}/train, or, for one folder a class, set"
                f" data.init_args.{split}_fraction above 0."
            )

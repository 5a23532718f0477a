"""A folder of images as a Lightning data module."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader

from lightkit.data.decoded_cache import CacheChoice, choose_sources
from lightkit.data.frozen_features import Features, may_be_kept
from lightkit.data.image_dataset import ImageSamples
from lightkit.data.image_index import ImageIndex, Photo, PhotoFiles, index_images
from lightkit.data.image_settings import check_arguments, loading_of, seed_of, training_view_of, warn_unaugmented
from lightkit.data.image_sources import PhotoPixels, PixelSource
from lightkit.data.loader import (
    CountingLoader,
    LabelledSource,
    ResumableLoader,
    eval_loader,
    predict_loader,
    refuse_left_out,
    train_loader,
)
from lightkit.data.skipped_samples import Defects
from lightkit.data.splits import Split, check_fractions
from lightkit.data.transforms import EvalView, after_transfer, preprocessing_of
from lightkit.errors import DataError
from lightkit.images.preprocessing import Preprocessing

__all__ = ["ImageFolder", "PhotoSources"]


class ImageFolder(LightningDataModule):
    """Images in one folder a class, or in train/, val/ and test/ with one folder a class each.

    Where no splits are given, an image's split is decided by a hash of its content: it is the same on every machine,
    stays when images are added, and byte-identical copies always go the same way.

    A batch leaves the loaders as uint8 images ``(batch, 3, height, width)`` and int64 labels. Its images are scaled and
    normalised on the device that takes it, by `on_after_batch_transfer`; who goes through a loader by hand calls that
    with each batch. A model's own `on_after_batch_transfer` gets the normalised batch, though Lightning warns that it
    is left out.

    An image that cannot be read any more in the middle of a training or an evaluation is left out of its batch, and
    listed with those that the scan has found. In place of a batch of which nothing is left another image stands, whose
    loss weighs 0 in models that take weights as the third element of a batch (``takes_weights = True`` in their class).
    An epoch that lacked too many ends the training, with its checkpoint written. For predictions, whose rows stand
    beside the names of the files, one is an error.

    Args:
        root: Folder that holds the class folders, or train/, val/ (also valid/, validation/) and test/.
        image_size: Side of the square images that the model gets, in pixels.
        batch_size: Images of one batch on one process.
        num_workers: Processes that load images; 0 loads in the training process, `auto` chooses by cores, device and
            cache, and says what it chose.
        val_fraction: Share of the images used for validation, where no validation folder is given.
        test_fraction: Share of the images kept for testing, where no splits are given.
        augment: Show training random crops, flipped or not, and what else is asked for; false shows it what evaluation
            sees. ImageClassifier then computes the features of a frozen backbone only once.
        crop_scale: Least and greatest share of an image's area that a random training crop keeps. torchvision's
            default starts at 0.08, for trainings of hundreds of epochs; a short one learns faster from larger crops.
        color_jitter: Strength of random changes of brightness, contrast, saturation and hue in training, from 0 (none)
            to 1.
        rand_augment: Apply RandAugment in training.
        seed: Decides order and augmentation; default is the run's seed_everything.
        on_bad_image: What to do about files that cannot be decoded: `skip` leaves them out and lists them in the run
            folder, `error` ends the command with the list.
        max_bad_fraction: Share of all files above which bad ones are an error in either case; also of the images of an
            epoch, at its end.
        cache: Where images that are decoded once are kept for later epochs: `memory` (shared by all processes of the
            machine, gone with the run), `disk` (kept for later runs); `auto` takes memory or disk by what fits, or
            neither. With each of these a training crop is cut from the image resized to ``cache_size``, kept or not, so
            that the numbers are the same on every machine; with `none` it is cut from the file's own pixels.
        cache_size: Shorter side of the resized images, in pixels, at least ``image_size``; default is what evaluation
            resizes to.
        cache_limit_gb: Most that the cache may take, in GB (1e9 bytes); default is a share of what is free.
        prefetch_factor: Batches that each worker prepares ahead.
        persistent_workers: Keep the workers from epoch to epoch.
        pin_memory: Hand batches to a GPU from memory that it can read by itself; `auto` does so where there is one.
    """

    source = "photos"
    input_folders: ClassVar[tuple[str, ...]] = ("root",)
    """Arguments that must be folders which are there already."""

    def __init__(
        self,
        root: str,
        image_size: int = 224,
        batch_size: int = 32,
        num_workers: int | Literal["auto"] = "auto",
        val_fraction: float = 0.2,
        test_fraction: float = 0.1,
        augment: bool = True,
        crop_scale: tuple[float, float] = (0.35, 1.0),
        color_jitter: float = 0.0,
        rand_augment: bool = False,
        seed: int | None = None,
        on_bad_image: Literal["skip", "error"] = "skip",
        max_bad_fraction: float = 0.05,
        cache: Literal["auto", "none", "memory", "disk"] = "auto",
        cache_size: int | None = None,
        cache_limit_gb: float | None = None,
        prefetch_factor: int = 2,
        persistent_workers: bool = True,
        pin_memory: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__()
        check_fractions(val_fraction=val_fraction, test_fraction=test_fraction)
        check_arguments(
            image_size=image_size,
            batch_size=batch_size,
            num_workers=num_workers,
            crop_scale=crop_scale,
            color_jitter=color_jitter,
            max_bad_fraction=max_bad_fraction,
            cache_size=cache_size,
            cache_limit_gb=cache_limit_gb,
            prefetch_factor=prefetch_factor,
        )
        self.root = Path(root).expanduser()
        self.image_size, self.batch_size, self.num_workers = image_size, batch_size, num_workers
        self.val_fraction, self.test_fraction = val_fraction, test_fraction
        self.augment, self.crop_scale = augment, crop_scale
        self.color_jitter, self.rand_augment = color_jitter, rand_augment
        self.seed, self.on_bad_image, self.max_bad_fraction = seed, on_bad_image, max_bad_fraction
        self.cache, self.cache_size, self.cache_limit_gb = cache, cache_size, cache_limit_gb
        self.prefetch_factor = prefetch_factor
        self.persistent_workers, self.pin_memory = persistent_workers, pin_memory
        self.defects = Defects()
        self._catalogue: ImageIndex | None = None
        self._counted: dict[Split, CountingLoader] = {}
        self._features = Features()
        self._sources = PhotoSources(self._features)

    def prepare_data(self) -> None:
        """Check all images on one process of each machine; the others then find what it found, and need not decode."""
        with suppress(DataError):  # which every process is to meet in `setup`
            self.setup()

    def setup(self, stage: str | None = None) -> None:
        """Find and check all images, once; for a fit, decode them where they are cached.

        Raises:
            DataError: If the folder or a file in it is unusable, or ``stage`` needs a split that there is none of.
        """
        if self._catalogue is None:
            self._catalogue = index_images(
                self.root,
                val_fraction=self.val_fraction,
                test_fraction=self.test_fraction,
                on_bad_image=self.on_bad_image,
                max_bad_fraction=self.max_bad_fraction,
            )
            self.defects = Defects(self._catalogue.defects)
        if stage == "fit" and not self._sources.are_final:
            self._sources.begin(self)
            if not self.augment:
                warn_unaugmented(self, "crop_scale", "color_jitter", "rand_augment", "cache_size")
        needed: dict[str | None, Split] = {"test": "test", "validate": "val"}
        if stage in needed and not self._catalogue.splits[needed[stage]]:
            self._refuse_missing(needed[stage])

    @property
    def catalogue(self) -> ImageIndex:
        """All photos by split; known after `setup`."""
        if self._catalogue is None:
            self.setup()
        assert self._catalogue is not None
        return self._catalogue

    @property
    def class_names(self) -> list[str]:
        """Names of the classes; a label counts into this list."""
        return self.catalogue.class_names

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def predict_paths(self) -> list[str]:
        """The files behind `predict_dataloader`, in its order."""
        return [str(photo.path) for photo in self.catalogue.splits[self._predict_split]]

    @property
    def preprocessing(self) -> Preprocessing:
        """What is done to an image before the model sees it, outside training."""
        return preprocessing_of(self.image_size)

    def untransformed(self, split: Split) -> LabelledSource:
        """Give a split's images as they are, in RGB, with their labels; known after `setup`."""
        return PhotoFiles(self.catalogue.splits[split])

    def describe(self) -> dict[str, Any]:
        """What a run's manifest says of the data."""
        return {
            "source": self.source,
            "root": str(self.root),
            "fingerprint": self.catalogue.fingerprint,
            "counts": self.catalogue.counts,
            "bad_images": len(self.catalogue.defects),
            "class_names": self.class_names,
            **self._sources.described,
        }

    def train_dataloader(self) -> ResumableLoader:
        """Shuffled batches, augmented unless asked not to; after a restored checkpoint, the rest of its epoch first."""
        self._sources.settle(self)
        view = training_view_of(self, self.preprocessing)
        samples = ImageSamples(self._source("train"), view, seed=seed_of(self), defects=self.defects)
        shown, loading = self._shown(samples, "train")
        loader = train_loader(shown, **loading)
        sampler: Any = loader.sampler
        sampler.before_epoch = self._refuse_bad_epoch
        self._counted["train"] = loader
        return loader

    def val_dataloader(self) -> DataLoader[Any] | list[DataLoader[Any]]:
        """The validation split; no loader where ``val_fraction`` is 0."""
        if not self.catalogue.splits["val"]:
            return []
        return self._evaluation("val")

    def test_dataloader(self) -> DataLoader[Any]:
        """The test split."""
        if not self.catalogue.splits["test"]:
            self._refuse_missing("test")
        return self._evaluation("test")

    def predict_dataloader(self) -> DataLoader[Any]:
        """The test split if there is one, else the validation split; each image must be readable."""
        return predict_loader(self._centres(self._predict_split, None), **self._loading)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Scale and normalise a batch's uint8 images where it is; then the model's hook of this name has its turn."""
        return after_transfer(self, batch, dataloader_idx, self.preprocessing)

    def teardown(self, stage: str) -> None:
        """Refuse a stage whose last epoch lacked too many images; a fit's checkpoints are written.

        Raises:
            DataError: If they are more than ``max_bad_fraction``.
        """
        if stage == "fit":
            self._features.forget()
        self._refuse_bad_epoch()

    def _refuse_bad_epoch(self) -> None:
        if self._counted:
            counted = [self._counted[split] for split in sorted(self._counted)]
            refuse_left_out(counted, what="images", max_fraction=self.max_bad_fraction, trainer=self.trainer)

    def _evaluation(self, split: Split) -> DataLoader[Any]:
        self._sources.settle(self)
        shown, loading = self._shown(self._centres(split, self.defects), split)
        loader = eval_loader(shown, **loading)
        self._counted[split] = loader
        return loader

    def _shown(self, samples: ImageSamples, split: Split) -> tuple[Sized, dict[str, Any]]:
        """Give images, or the model's features of them where these are the same each time; and how they are loaded."""
        if self.augment:
            return samples, self._loading
        return self._features.instead_of(
            samples, self._loading, split=split, preprocessing=self.preprocessing, data=self,
            num_images=self.catalogue.num_in_fit,
        )  # fmt: skip

    @property
    def _predict_split(self) -> Split:
        return "test" if self.catalogue.splits["test"] else "val"

    @property
    def _loading(self) -> dict[str, Any]:
        return loading_of(self, num_samples=max(self.catalogue.counts.values()), is_cached=self._sources.are_cached)

    def _source(self, split: Split) -> PixelSource:
        return self._sources.of(split, self.catalogue.splits[split])

    def _centres(self, split: Split, defects: Defects | None) -> ImageSamples:
        return ImageSamples(self._source(split), EvalView(self.preprocessing), seed=seed_of(self), defects=defects)

    def _refuse_missing(self, split: Split) -> None:
        raise DataError(
            f"{self.root}: there is no {split} split. Add a folder {self.root}/{split} with the same class folders as "
            f"{self.root}/train, or, for one folder a class, set data.init_args.{split}_fraction above 0."
        )


class PhotoSources:
    """What a data module knows of where its photos come from. In a fit the choice may have to wait for the model.

    Args:
        features: The data module's; they tell whether the model gives features, for which each image is needed once.
    """

    def __init__(self, features: Features) -> None:
        self._features = features
        self._choice: CacheChoice | None = None

    def begin(self, data: ImageFolder) -> None:
        """Decode the images where they are cached, at the start of a fit; later where the model has a say in it."""
        self._choice = None if _waits_for_model(data) else _chosen(data, is_read_once=False)

    def settle(self, data: ImageFolder) -> None:
        """Decode the images where they are cached, now that the model can tell whether it gives features instead."""
        if self._choice is None and _waits_for_model(data):
            size, num_images = data.preprocessing.crop, data.catalogue.num_in_fit
            is_read_once = self._features.are_there(data, size, num_images=num_images)
            self._choice = _chosen(data, is_read_once=is_read_once)

    def of(self, split: Split, photos: Sequence[Photo]) -> PixelSource:
        """Give what reads a split's images.

        Args:
            split: The split.
            photos: Its photos.
        """
        chosen = {} if self._choice is None else self._choice.sources
        return chosen.get(split) or PhotoPixels(photos)

    @property
    def are_final(self) -> bool:
        """Whether a later fit has them from there too."""
        return self._choice is not None and self._choice.is_final

    @property
    def are_cached(self) -> bool:
        """Whether images are kept decoded."""
        return self._choice is not None and self._choice.kept != "nowhere"

    @property
    def described(self) -> dict[str, Any]:
        """What a manifest says of them; nothing where nothing is chosen."""
        return {} if self._choice is None else {"cache": self._choice.describe()}


def _waits_for_model(data: ImageFolder) -> bool:
    return not data.augment and data.cache == "auto" and may_be_kept(data)


def _chosen(data: ImageFolder, *, is_read_once: bool) -> CacheChoice:
    photos = data.catalogue.of_fit
    return choose_sources(
        photos,
        {split: PhotoPixels(listed) for split, listed in photos.items()},
        cache=data.cache,
        cache_size=data.cache_size if data.augment else None,
        cache_limit_gb=data.cache_limit_gb,
        preprocessing=data.preprocessing,
        batch_size=data.batch_size,
        trainer=data.trainer,
        is_read_once=is_read_once,
    )

"""A folder of images as a Lightning data module."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader

from lightkit.data.loaders import (
    LabelledSource,
    ResumableLoader,
    Transformed,
    eval_loader,
    predict_loader,
    train_loader,
)
from lightkit.data.photos import Catalogue, PhotoFiles, catalogue_of
from lightkit.data.sampling import global_seed
from lightkit.data.splits import Split, check_fractions
from lightkit.data.transforms import eval_transform, preprocessing_of, train_transform
from lightkit.errors import DataError
from lightkit.images.preprocessing import Preprocessing

__all__ = ["ImageFolder"]


class ImageFolder(LightningDataModule):
    """Images in one folder a class, or in train/, val/ and test/ with one folder a class each.

    Where no splits are given, an image's split is decided by a hash of its content: it is the same on every machine,
    stays when images are added, and byte-identical copies always go the same way.

    Args:
        root: Folder that holds the class folders, or train/, val/ (also valid/, validation/) and test/.
        image_size: Side of the square images that the model gets, in pixels.
        batch_size: Images of one batch on one process.
        num_workers: Processes that load images; 0 loads in the training process.
        val_fraction: Share of the images used for validation, where no validation folder is given.
        test_fraction: Share of the images kept for testing, where no splits are given.
        crop_scale: Least and greatest share of an image's area that a random training crop keeps. torchvision's
            default starts at 0.08, for trainings of hundreds of epochs; a short one learns faster from larger crops.
        color_jitter: Strength of random changes of brightness, contrast, saturation and hue in training; 0 for none.
        rand_augment: Apply RandAugment in training.
        seed: Decides order and augmentation; default is the run's seed_everything.
    """

    source = "photos"
    input_folders: ClassVar[tuple[str, ...]] = ("root",)
    """Arguments that must be folders which are there already."""

    def __init__(
        self,
        root: str,
        image_size: int = 224,
        batch_size: int = 32,
        num_workers: int = 0,
        val_fraction: float = 0.2,
        test_fraction: float = 0.1,
        crop_scale: tuple[float, float] = (0.35, 1.0),
        color_jitter: float = 0.0,
        rand_augment: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        check_fractions(val_fraction=val_fraction, test_fraction=test_fraction)
        self.root = Path(root).expanduser()
        self.image_size = image_size
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.val_fraction = val_fraction
        self.test_fraction = test_fraction
        self.crop_scale = crop_scale
        self.color_jitter = color_jitter
        self.rand_augment = rand_augment
        self.seed = seed
        self._catalogue: Catalogue | None = None

    def setup(self, stage: str | None = None) -> None:
        """Find and check all images, once.

        Raises:
            DataError: If the folder or a file in it is unusable, or ``stage`` needs a split that there is none of.
        """
        if self._catalogue is None:
            self._catalogue = catalogue_of(self.root, val_fraction=self.val_fraction, test_fraction=self.test_fraction)
        needed: dict[str | None, Split] = {"test": "test", "validate": "val"}
        if stage in needed and not self._catalogue.splits[needed[stage]]:
            self._refuse_missing(needed[stage])

    @property
    def catalogue(self) -> Catalogue:
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
            "class_names": self.class_names,
        }

    def train_dataloader(self) -> ResumableLoader:
        """Shuffled, augmented batches; after a restored checkpoint, the rest of its epoch first."""
        transform = train_transform(
            self.image_size,
            crop_scale=self.crop_scale,
            color_jitter=self.color_jitter,
            rand_augment=self.rand_augment,
        )
        return train_loader(self._images("train", transform), **self._loading)

    def val_dataloader(self) -> DataLoader[Any] | list[DataLoader[Any]]:
        """The validation split; no loader where ``val_fraction`` is 0."""
        return self._eval_loader("val") if self.catalogue.splits["val"] else []

    def test_dataloader(self) -> DataLoader[Any]:
        """The test split."""
        if not self.catalogue.splits["test"]:
            self._refuse_missing("test")
        return self._eval_loader("test")

    def predict_dataloader(self) -> DataLoader[Any]:
        """The test split if there is one, else the validation split."""
        return predict_loader(self._images(self._predict_split, eval_transform(self.image_size)), **self._loading)

    @property
    def _predict_split(self) -> Split:
        return "test" if self.catalogue.splits["test"] else "val"

    @property
    def _seed(self) -> int:
        return global_seed() if self.seed is None else self.seed

    @property
    def _loading(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "seed": self._seed,
            "trainer": self.trainer,
        }

    def _eval_loader(self, split: Split) -> DataLoader[Any]:
        return eval_loader(self._images(split, eval_transform(self.image_size)), **self._loading)

    def _images(self, split: Split, transform: Any) -> Transformed:
        return Transformed(PhotoFiles(self.catalogue.splits[split]), transform, seed=self._seed)

    def _refuse_missing(self, split: Split) -> None:
        raise DataError(
            f"{self.root}: there is no {split} split. Add a folder {self.root}/{split} with the same class folders as "
            f"{self.root}/train, or, for one folder a class, set data.init_args.{split}_fraction above 0."
        )

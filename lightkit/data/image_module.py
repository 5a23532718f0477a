"""The data module of images, and the settings that it shares with tables."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch.utils.data import DataLoader

from lightkit.data.bad_samples import Defects
from lightkit.data.frozen_features import ComputesFeatures, FeatureSamples, compute_features, find_frozen_backbone
from lightkit.data.image_dataset import ImageSamples
from lightkit.data.image_sources import PixelSource
from lightkit.data.loader import (
    Pinning,
    choose_num_workers,
    eval_loader,
    predict_loader,
    train_loader,
)
from lightkit.data.sampler import global_seed
from lightkit.data.splits import Split
from lightkit.data.transforms import EvalView, TrainView, View, normalised, preprocessing_of
from lightkit.errors import ConfigError
from lightkit.images.preprocessing import Preprocessing

log = logging.getLogger("lightkit.data")


class LoadingModule(LightningDataModule):
    """The settings of loading and augmentation, as attributes by their names; see `lightkit.data.ImageFolder`."""

    image_size: int
    batch_size: int
    num_workers: int | Literal["auto"]
    augment: bool
    crop_scale: tuple[float, float]
    color_jitter: float
    rand_augment: bool
    seed: int | None
    prefetch_factor: int
    persistent_workers: bool
    pin_memory: Pinning

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        check_arguments(**{name: value for name, value in settings.items() if name in _RANGES})
        for name, value in settings.items():
            setattr(self, name, value)
        self.defects = Defects()
        self._stage: str | None = None

    def setup(self, stage: str | None = None) -> None:
        """Begin a stage."""
        self._stage = stage
        if stage == "fit" and not self.augment:
            warn_idle(self, "crop_scale", "color_jitter", "rand_augment", why="data.init_args.augment: false")

    @property
    def counts(self) -> dict[Split, int]:
        """Number of samples of each split."""
        raise NotImplementedError

    @property
    def are_decoded(self) -> bool:
        """Whether samples need no decoding."""
        raise NotImplementedError

    def _load(self, split: Split, view: View) -> Any:
        """Make the loader of a split that is not empty."""
        raise NotImplementedError

    def _refuse_missing(self, split: Split) -> None:
        """Refuse a split that is empty."""

    def _check_bad(self) -> None:
        """Refuse to go on where too many samples could not be read."""

    def train_dataloader(self) -> Any:
        """Return shuffled batches, augmented if asked; after a restored checkpoint, the rest of its epoch first."""
        loader = self._load("train", self.training_view)
        loader.sampler.before_epoch = self._check_bad
        return loader

    def val_dataloader(self) -> Any:
        """Return the validation split in stored order; no loader where it is empty."""
        return self._load("val", EvalView(preprocessing_of(self.image_size))) if self.counts["val"] else []

    def test_dataloader(self) -> Any:
        """Return the test split, in stored order."""
        self._refuse_missing("test")
        return self._load("test", EvalView(preprocessing_of(self.image_size)))

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Scale and normalise a batch's uint8 images where it is; then the model's hook of this name has its turn.

        Lightning calls one of the two hooks alone, the data module's, and warns that the model's is left out; it is
        not.
        """
        batch = normalised(batch, preprocessing_of(self.image_size), self.trainer)
        module = None if self.trainer is None else self.trainer.lightning_module
        if module is not None and is_overridden("on_after_batch_transfer", module, parent=LightningModule):
            return module.on_after_batch_transfer(batch, dataloader_idx)
        return batch

    @property
    def training_view(self) -> TrainView | EvalView:
        """View of training: random parts of images, or without augmentation what evaluation sees."""
        if not self.augment:
            return EvalView(preprocessing_of(self.image_size), for_training=True)
        return TrainView(
            self.image_size, crop_scale=self.crop_scale, color_jitter=self.color_jitter,
            rand_augment=self.rand_augment,
        )  # fmt: skip

    @property
    def _loading(self) -> dict[str, Any]:
        """Arguments of `train_loader` and its like."""
        num_workers = choose_num_workers(
            self.num_workers, trainer=self.trainer, is_cached=self.are_decoded, num_samples=max(self.counts.values()),
            batch_size=self.batch_size,
        )  # fmt: skip
        own = ("batch_size", "prefetch_factor", "persistent_workers", "pin_memory", "trainer")
        return {name: getattr(self, name) for name in own} | {"num_workers": num_workers, "seed": seed_of(self)}

    def teardown(self, stage: str) -> None:
        """Refuse a stage in which too many samples could not be read; a fit's checkpoints are written.

        Raises:
            DataError: If they are more than ``max_bad_fraction``.
        """
        self._check_bad()


class ImageModule(LoadingModule):
    """Loaders of images, and of the model's features where a frozen backbone computes the same ones in each epoch.

    A subclass has the splits: it defines `counts`, `are_decoded` and `read_split`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._backbone: tuple[Any, Any] | Literal["unknown"] | None = "unknown"
        self._features: dict[Split, FeatureSamples | None] = {}

    def setup(self, stage: str | None = None) -> None:
        """Begin a stage."""
        super().setup(stage)
        if stage == "fit":
            self._backbone, self._features = "unknown", {}

    def read_split(self, split: Split, *, decoded: bool) -> PixelSource:
        """Return the images of a split, those of a fit from where they are kept decoded if ``decoded``."""
        raise NotImplementedError

    @property
    def preprocessing(self) -> Preprocessing:
        """Preparation of an image for the model, outside training."""
        return preprocessing_of(self.image_size)

    def predict_dataloader(self) -> DataLoader[Any]:
        """Return the test split if there is one, else the validation split; each image must be readable."""
        source = self.read_split("test" if self.counts["test"] else "val", decoded=False)
        samples = ImageSamples(source, EvalView(self.preprocessing), seed=seed_of(self), defects=None)
        return predict_loader(samples, **self._loading)

    def _load(self, split: Split, view: View) -> Any:
        make_loader = train_loader if split == "train" else eval_loader
        if features := self._find_features(split, view):
            return make_loader(features, **{**self._loading, "num_workers": 0})
        source = self.read_split(split, decoded=True)
        samples = ImageSamples(source, view, seed=seed_of(self), defects=self.defects)
        return make_loader(samples, **self._loading)

    def _find_features(self, split: Split, view: View) -> FeatureSamples | None:
        """Return the features of a fit's split, computed the first time; None where the model needs images."""
        if self.augment or self._stage != "fit" or self.trainer is None or split == "test":
            return None
        if self._backbone == "unknown":
            self._backbone = find_frozen_backbone(
                self, self.preprocessing.crop, num_images=self.counts["train"], batch_size=self.batch_size
            )
        if self._backbone is not None and split not in self._features:
            backbone: ComputesFeatures
            backbone, example = self._backbone
            samples = ImageSamples(
                self.read_split(split, decoded=False), view, seed=seed_of(self), defects=self.defects
            )
            loading = self._loading
            self._features[split] = compute_features(
                samples, backbone, example, preprocessing=self.preprocessing, trainer=self.trainer,
                num_workers=loading["num_workers"], prefetch_factor=self.prefetch_factor,
            )  # fmt: skip
        return self._features.get(split)


def seed_of(data: Any) -> int:
    """Return the seed of order and augmentation: the data module's own, else the run's."""
    return global_seed() if data.seed is None else data.seed


def check_arguments(**given: Any) -> None:
    """Refuse arguments of a data module that are out of their range.

    Args:
        given: Some of the arguments by name.

    Raises:
        ConfigError: For the first.
    """
    for name, value in given.items():
        is_right, expected = _RANGES[name]
        if not is_right(value):
            raise ConfigError(f"data.init_args.{name}: expected {expected}, got {value}.")


def warn_idle(data: object, *names: str, why: str) -> None:
    """Warn of settings that differ from their defaults and have no effect.

    Args:
        data: The data module; its attributes bear the names of its arguments.
        names: Of the settings.
        why: The setting, or the data, with which they have no effect.
    """
    constructors = [vars(kind)["__init__"] for kind in reversed(type(data).__mro__) if "__init__" in vars(kind)]
    defaults = {
        parameter.name: parameter.default
        for constructor in constructors
        for parameter in inspect.signature(constructor).parameters.values()
    }
    values = {name: getattr(data, name) for name in names}
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    idle = [f"data.init_args.{name}" for name, value in plain.items() if value != defaults[name]]
    if idle:
        log.warning("%s: no effect with %s", " and ".join(idle), why)


def _is_share_of_area(value: Sequence[float]) -> bool:
    return len(value) == 2 and 0 < value[0] <= value[1] <= 1


_COUNT: tuple[Callable[[Any], bool], str] = (lambda value: value >= 1, "1 or more")
_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "image_size": _COUNT,
    "batch_size": _COUNT,
    "shuffle_buffer": _COUNT,
    "workers_count": _COUNT,
    "shuffling_queue_capacity": (lambda value: value >= 0, "0 or more"),
    "num_workers": (lambda value: value == "auto" or value >= 0, "0 or more, or auto"),
    "prefetch_factor": _COUNT,
    "crop_scale": (_is_share_of_area, "two shares of the area, above 0 up to 1, the lower one first"),
    "color_jitter": (lambda value: 0 <= value <= 1, "a number from 0 to 1"),
    "max_bad_fraction": (lambda value: 0 <= value <= 1, "a number from 0 to 1"),
    "cache_size": (lambda value: value is None or value >= 1, "a length of 1 or more, in pixels"),
    "cache_limit_gb": (lambda value: value is None or value > 0, "more than 0"),
}

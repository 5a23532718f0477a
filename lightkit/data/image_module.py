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
from lightkit.data.frozen_features import FeatureSamples, FrozenBackbone, compute_features, find_frozen_backbone
from lightkit.data.image_dataset import EvalView, ImageSamples, TrainView, View, normalised, preprocessing_of
from lightkit.data.image_sources import ImageSource
from lightkit.data.loader import Pinning, choose_num_workers, eval_loader, predict_loader, train_loader
from lightkit.data.sampler import global_seed
from lightkit.errors import ConfigError
from lightkit.images.preprocessing import Preprocessing
from lightkit.images.splits import Split

log = logging.getLogger("lightkit.data")


class LoadingModule(LightningDataModule):
    """Data that is loaded in batches, and whose images are augmented in training.

    Args:
        image_size: Side of the square images that the model gets, in pixels.
        batch_size: Samples of one batch on one process.
        num_workers: Processes that load; 0 loads in the training process, `auto` chooses by cores, device and cache,
            and says what it chose.
        augment: Show training random crops, flipped or not, and what else is asked for; false shows it what evaluation
            sees. ImageClassifier then computes the features of a frozen backbone only once.
        crop_scale: Least and greatest share of an image's area that a random training crop keeps. torchvision's
            default starts at 0.08, for trainings of hundreds of epochs; a short one learns faster from larger crops.
        color_jitter: Strength of random changes of brightness, contrast, saturation and hue in training, from 0 (none)
            to 1.
        rand_augment: Apply RandAugment in training.
        seed: Decides order and augmentation; default is the run's seed_everything.
        prefetch_factor: Batches that each worker prepares ahead.
        persistent_workers: Keep the workers from epoch to epoch.
        pin_memory: Hand batches to a GPU from memory that it can read by itself; `auto` does so where there is one.
    """

    def __init__(
        self,
        image_size: int = 224,
        batch_size: int = 32,
        num_workers: int | Literal["auto"] = "auto",
        augment: bool = True,
        crop_scale: tuple[float, float] = (0.35, 1.0),
        color_jitter: float = 0.0,
        rand_augment: bool = False,
        seed: int | None = None,
        prefetch_factor: int = 2,
        persistent_workers: bool = True,
        pin_memory: Pinning = "auto",
    ) -> None:
        super().__init__()
        check_arguments(
            image_size=image_size, batch_size=batch_size, num_workers=num_workers, crop_scale=crop_scale,
            color_jitter=color_jitter, prefetch_factor=prefetch_factor,
        )  # fmt: skip
        self.image_size, self.batch_size, self.num_workers, self.seed = image_size, batch_size, num_workers, seed
        self.augment, self.crop_scale, self.color_jitter = augment, crop_scale, color_jitter
        self.rand_augment, self.prefetch_factor = rand_augment, prefetch_factor
        self.persistent_workers, self.pin_memory = persistent_workers, pin_memory
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

    def _load(self, split: Split) -> Any:
        """Make the loader of a split that is not empty."""
        raise NotImplementedError

    def _refuse_missing(self, split: Split) -> None:
        """Refuse a split that is empty."""

    def _check_bad(self) -> None:
        """Refuse to go on where too many samples could not be read."""

    def train_dataloader(self) -> Any:
        """Return shuffled batches, augmented if asked; after a restored checkpoint, the rest of its epoch first."""
        loader = self._load("train")
        loader.sampler.before_epoch = self._check_bad
        return loader

    def val_dataloader(self) -> Any:
        """Return the validation split in stored order; no loader where it is empty."""
        return self._load("val") if self.counts["val"] else []

    def test_dataloader(self) -> Any:
        """Return the test split, in stored order."""
        self._refuse_missing("test")
        return self._load("test")

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

    def _view(self, split: Split) -> View:
        """Return the view of a split: of training random parts of images, else, or without augmentation, the centre."""
        if split == "train" and self.augment:
            return TrainView(
                self.image_size, crop_scale=self.crop_scale, color_jitter=self.color_jitter,
                rand_augment=self.rand_augment,
            )  # fmt: skip
        return EvalView(preprocessing_of(self.image_size), for_training=split == "train")

    @property
    def _predict_split(self) -> Split:
        return "test" if self.counts["test"] else "val"

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

    Args:
        kwargs: As for LoadingModule.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._backbone: FrozenBackbone | Literal["unknown"] | None = "unknown"
        self._features: dict[Split, FeatureSamples | None] = {}

    def setup(self, stage: str | None = None) -> None:
        """Begin a stage."""
        super().setup(stage)
        if stage == "fit":
            self._backbone, self._features = "unknown", {}

    def read_split(self, split: Split, *, decoded: bool) -> ImageSource:
        """Return the images of a split, those of a fit from where they are kept decoded if ``decoded``."""
        raise NotImplementedError

    def untransformed(self, split: Split) -> ImageSource:
        """Return a split's images as they are, in RGB, with their labels; known after `setup`."""
        return self.read_split(split, decoded=False)

    @property
    def preprocessing(self) -> Preprocessing:
        """Preparation of an image for the model, outside training."""
        return preprocessing_of(self.image_size)

    @property
    def predict_paths(self) -> list[str]:
        """Names of the images behind `predict_dataloader`, in its order."""
        source = self.read_split(self._predict_split, decoded=False)
        return [source.name(index) for index in range(len(source))]

    def predict_dataloader(self) -> DataLoader[Any]:
        """Return the test split if there is one, else the validation split; each image must be readable."""
        source = self.read_split(self._predict_split, decoded=False)
        return predict_loader(
            ImageSamples(source, self._view("test"), seed=seed_of(self), defects=None), **self._loading
        )

    def _load(self, split: Split) -> Any:
        make_loader = train_loader if split == "train" else eval_loader
        if features := self._find_features(split):
            return make_loader(features, **{**self._loading, "num_workers": 0})
        return make_loader(self._samples(split, decoded=True), **self._loading)

    def _samples(self, split: Split, *, decoded: bool) -> ImageSamples:
        source = self.read_split(split, decoded=decoded)
        return ImageSamples(source, self._view(split), seed=seed_of(self), defects=self.defects)

    def _find_features(self, split: Split) -> FeatureSamples | None:
        """Return the features of a fit's split, computed the first time; None where the model needs images."""
        if self.augment or self._stage != "fit" or self.trainer is None or split == "test":
            return None
        if self._backbone == "unknown":
            self._backbone = find_frozen_backbone(
                self, self.preprocessing.crop, num_images=self.counts["train"], batch_size=self.batch_size
            )
        if self._backbone is not None and split not in self._features:
            self._features[split] = compute_features(
                self._samples(split, decoded=False), self._backbone, preprocessing=self.preprocessing,
                trainer=self.trainer, num_workers=self._loading["num_workers"], prefetch_factor=self.prefetch_factor,
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
        is_fine = name in _OPTIONAL if value is None else is_right(value)  # jsonargparse lets any value be null
        if not is_fine:
            raise ConfigError(f"data.init_args.{name}: expected {expected}, got {'null' if value is None else value}.")


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
    "cache_size": (lambda value: value >= 1, "a length of 1 or more, in pixels"),
    "cache_limit_gb": (lambda value: value > 0, "more than 0"),
}
_OPTIONAL = ("cache_size", "cache_limit_gb")

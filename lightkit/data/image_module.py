"""The data module of images, and the settings that it shares with tables.

Features of a frozen backbone stand in place of images where they are the same in each epoch: they
are computed once before training, and kept on disk.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from pytorch_lightning import LightningDataModule, LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from lightkit.config.bounds import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    describe_bounds,
    find_hints,
    is_within,
    read_bounds,
)
from lightkit.data.bad_samples import Defects
from lightkit.data.image_cache import RowCache, count_planned_reads, open_rows
from lightkit.data.image_dataset import (
    Batch,
    EvalView,
    ImageSamples,
    ImageSource,
    TrainView,
    View,
    normalised,
)
from lightkit.data.loader import (
    Pinning,
    choose_num_workers,
    eval_loader,
    local_ranks,
    predict_loader,
    train_loader,
    worker_options,
)
from lightkit.data.sampler import SampleKey, global_seed
from lightkit.errors import ConfigError
from lightkit.images.image_file import UnreadableImageError
from lightkit.images.preprocessing import Preprocessing, preprocessing_of
from lightkit.images.progress import show_progress
from lightkit.images.splits import Split
from lightkit.runs.files import in_bytes

log = logging.getLogger("lightkit.data")

SPLIT_OF_STAGE: dict[str | None, Split] = {"fit": "train", "validate": "val", "test": "test"}
"""The split without which a stage has nothing to do."""
_BLOCK = 32
"""Images whose features are computed at a time; always as many, so that the same kernels compute
them exactly."""
_BATCH_HOOKS = (
    "train_dataloader", "val_dataloader",
    "on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer",
)  # fmt: skip


if TYPE_CHECKING:
    _Module = LightningDataModule
else:
    _Module = object  # it is no LightningDataModule by itself, so that no config can name it


class SplitModule(_Module):
    """Data in splits; a subclass counts their samples, and makes the loader of each."""

    input_folders: ClassVar[tuple[str, ...]]
    """Arguments that must be folders which are there already."""
    class_folders: ClassVar[tuple[str, ...]]
    """Those of them that hold class folders, or splits with class folders."""
    input_paths: ClassVar[tuple[str, ...]]
    """Arguments that must be files or folders which are there already."""
    sample_arguments: ClassVar[tuple[str, ...]]
    """Arguments that choose the samples of a split: in a gate the same for both models. The others
    prepare them."""
    num_workers: int | Literal["auto"]
    batch_size: int
    seed: int | None

    @property
    def counts(self) -> dict[Split, int]:
        """Number of samples of each split."""
        raise NotImplementedError

    @property
    def are_decoded(self) -> bool:
        """Return whether samples need no decoding."""
        return True

    def _load(self, split: Split) -> Any:
        """Make the loader of a split that is not empty."""
        raise NotImplementedError

    def _refuse_missing(self, split: Split) -> None:
        """Refuse a split that is empty."""

    def train_dataloader(self) -> Any:
        """Return shuffled batches, augmented if asked.

        After a restored checkpoint, the rest of its epoch first.
        """
        return self._load("train")

    def val_dataloader(self) -> Any:
        """Return the validation split in stored order; no loader where it is empty."""
        return self._load("val") if self.counts["val"] else []

    def test_dataloader(self) -> Any:
        """Return the test split, in stored order."""
        self._refuse_missing("test")
        return self._load("test")

    @property
    def _predict_split(self) -> Split:
        return "test" if self.counts["test"] else "val"

    @property
    def _loading(self) -> dict[str, Any]:
        """Arguments of `train_loader` and its like."""
        num_workers = choose_num_workers(
            self.num_workers, trainer=self.trainer, is_cached=self.are_decoded,
            num_samples=max(self.counts.values()),
            batch_size=self.batch_size,
        )  # fmt: skip
        own = ("batch_size", "prefetch_factor", "persistent_workers", "pin_memory", "trainer")
        return {name: getattr(self, name) for name in own} | {
            "num_workers": num_workers,
            "seed": seed_of(self),
        }


class SplitIndex(Protocol):
    """Samples by split, with the classes of their labels."""

    @property
    def counts(self) -> dict[Split, int]:
        """Number of samples of each split."""

    @property
    def class_names(self) -> list[str]:
        """Names of the classes."""


class IndexedSplits:
    """Counts and classes of data that has an index; a subclass builds it."""

    @property
    def index(self) -> SplitIndex:
        """All samples by split."""
        raise NotImplementedError

    @property
    def counts(self) -> dict[Split, int]:
        """Number of samples of each split."""
        return self.index.counts

    @property
    def class_names(self) -> list[str]:
        """Names of the classes or labels, into which a label counts; empty for values."""
        return self.index.class_names

    @property
    def num_classes(self) -> int:
        """Number of classes or labels; 0 for values."""
        return len(self.class_names)


class LoadingModule(SplitModule, LightningDataModule):
    """Data that is loaded in batches, and whose images are augmented in training.

    Args:
        image_size: Side of the square images that the model gets, in pixels.
        batch_size: Samples of one batch on one process.
        num_workers: Processes that load; 0 loads in the training process, `auto` chooses by cores,
            device and cache, and says what it chose.
        augment: Show training random crops, flipped or not, and what else is asked for; false shows
            it what evaluation sees. ImageClassifier then computes the features of a frozen backbone
            only once.
        crop_scale: Least and greatest share of an image's area that a random training crop keeps.
            torchvision's default starts at 0.08, for trainings of hundreds of epochs; a short one
            learns faster from larger crops.
        color_jitter: Strength of random changes of brightness, contrast, saturation and hue in
            training, from 0 (none) to 1.
        rand_augment: Apply RandAugment in training.
        seed: Decides order and augmentation; default is the run's seed_everything.
        prefetch_factor: Batches that each worker prepares ahead.
        persistent_workers: Keep the workers from epoch to epoch.
        pin_memory: Hand batches to a GPU from memory that it can read by itself; `auto` does so
            where there is one.
        mixup: Strength of mixup (arXiv:1710.09412) in training, the alpha of its Beta distribution,
            such as 0.2: images of a batch and their targets are mixed in pairs, after the
            conversion to floating point. 0 leaves it out.
        cutmix: Likewise of CutMix (arXiv:1905.04899), such as 1.0; with both, one of them is drawn
            for each batch. Loss and metrics of the training are those of the mixed images, whose
            class is the one of the larger part.
    """

    def __init__(
        self,
        image_size: PositiveInt = 224,
        batch_size: PositiveInt = 32,
        num_workers: NonNegativeInt | Literal["auto"] = "auto",
        augment: bool = True,
        crop_scale: tuple[float, float] = (0.35, 1.0),
        color_jitter: Fraction = 0.0,
        rand_augment: bool = False,
        seed: int | None = None,
        prefetch_factor: PositiveInt = 2,
        persistent_workers: bool = True,
        pin_memory: Pinning = "auto",
        mixup: NonNegativeFloat = 0.0,
        cutmix: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__()
        check_arguments(
            self, image_size=image_size, batch_size=batch_size, num_workers=num_workers,
            crop_scale=crop_scale, color_jitter=color_jitter, prefetch_factor=prefetch_factor,
            mixup=mixup, cutmix=cutmix,
        )  # fmt: skip
        self.image_size = image_size
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.seed = seed
        self.augment = augment
        self.crop_scale = crop_scale
        self.color_jitter = color_jitter
        self.rand_augment = rand_augment
        self.mixup = mixup
        self.cutmix = cutmix
        self.prefetch_factor = prefetch_factor
        self.persistent_workers = persistent_workers
        self.pin_memory = pin_memory
        self.defects = Defects()
        self._stage: str | None = None

    def setup(self, stage: str | None = None) -> None:
        """Begin a stage."""
        self._stage = stage
        if stage == "fit" and not self.augment:
            warn_idle(
                self,
                "crop_scale",
                "color_jitter",
                "rand_augment",
                "mixup",
                "cutmix",
                why="data.init_args.augment: false",
            )

    def _check_bad(self) -> None:
        """Refuse to go on where too many samples could not be read."""

    def train_dataloader(self) -> Any:
        """Return shuffled batches, augmented if asked.

        After a restored checkpoint, the rest of its epoch first.
        """
        loader = super().train_dataloader()
        loader.sampler.before_epoch = self._check_bad
        return loader

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Scale and normalise a batch's uint8 images where it is.

        Then the model's hook of this name has its turn.

        Lightning calls one of the two hooks alone, the data module's, and warns that the model's is
        left out; it is not.
        """
        batch = self._mix(normalised(batch, preprocessing_of(self.image_size), self.trainer))
        module = None if self.trainer is None else self.trainer.lightning_module
        if module is not None and is_overridden(
            "on_after_batch_transfer", module, parent=LightningModule
        ):
            return module.on_after_batch_transfer(batch, dataloader_idx)
        return batch

    def _mix(self, batch: Any) -> Any:
        """Mix the images of a training batch in pairs, where that is asked for.

        Random numbers are torch's own.

        Raises:
            ConfigError: If samples have weights, which are not mixed.
        """
        strengths = ((v2.MixUp, self.mixup), (v2.CutMix, self.cutmix))
        chosen = [(kind, alpha) for kind, alpha in strengths if alpha > 0]
        if not chosen or not self.augment or self.trainer is None or not self.trainer.training:
            return batch
        images, targets, *weights = batch
        if weights:
            raise ConfigError(
                "data.init_args.mixup and cutmix mix no samples with weights. Leave"
                " data.init_args.weight out, or both."
            )
        num_classes = None if targets.ndim > 1 else getattr(self, "num_classes", None)
        steps = [kind(alpha=alpha, num_classes=num_classes) for kind, alpha in chosen]
        step = steps[0] if len(steps) == 1 else v2.RandomChoice(steps)
        return type(batch)(step(images, targets))

    def _view(self, split: Split) -> View:
        """Return the view of a split.

        Of training random parts of images, else, or without augmentation, the centre.
        """
        if split == "train" and self.augment:
            return TrainView(
                self.image_size, crop_scale=self.crop_scale, color_jitter=self.color_jitter,
                rand_augment=self.rand_augment,
            )  # fmt: skip
        return EvalView(preprocessing_of(self.image_size), for_training=split == "train")

    def teardown(self, stage: str) -> None:
        """Refuse a stage in which too many samples could not be read.

        A fit's checkpoints are written.

        Raises:
            DataError: If they are more than ``max_bad_fraction``.
        """
        self._check_bad()


class ComputesFeatures(Protocol):
    """Result of a model's ``frozen_features`` if an image's features are the same in each epoch."""

    def example(self, size: tuple[int, int], /) -> Tensor | None:
        """Return the features ``(1, ...)`` of one image of this height and width.

        None where there are none.
        """

    def digest(self) -> str:
        """Return a digest of all that decides the features of an image, but the image."""

    def is_frozen(self) -> bool:
        """Return, quickly, whether the backbone is still not trained."""

    def compute(self, images: Tensor, /) -> Tensor:
        """Compute the features of normalised images."""


FrozenBackbone = tuple[ComputesFeatures, Tensor]
"""What computes features, and those of an example, ``(1, ...)``."""


class FeatureSamples(ImageSamples):
    """The features of a split, read in whole batches as `ImageSamples` reads images.

    `unit` is what a rate counts: these samples are no images.

    Args:
        samples: The images; read in place of features once the backbone is trained.
        backbone: Has computed the features.
        rows: Bytes of the features of each image; an image that could not be read has none.
    """

    unit = "features"

    def __init__(self, samples: ImageSamples, backbone: FrozenBackbone, rows: RowCache) -> None:
        super().__init__(samples.source, samples.view, seed=samples.seed, defects=samples.defects)
        self.samples = samples
        self._rows = rows
        self._backbone, self._example = backbone
        self._is_off = False

    def __getitems__(self, keys: Sequence[SampleKey | int]) -> Batch:
        """Read a batch of features and labels.

        Of images, in this process, once the backbone is trained.
        """
        if not self._is_off and not self._backbone.is_frozen():
            self._is_off = True
            if self.view.for_training:
                log.warning(
                    "data: not all of the backbone is frozen any more; its features are computed at"
                    " each step, and this process loads the images. With model.init_args.features:"
                    " each_step, workers load them."
                )
        return self.samples.__getitems__(keys) if self._is_off else super().__getitems__(keys)

    def read(self, key: SampleKey) -> Tensor:
        """Read the features of one image.

        Raises:
            UnreadableImageError: If the image could not be read.
        """
        row = self._rows[key.index]
        if row is None:
            self.samples.read(key)  # raises the reason
            raise UnreadableImageError(
                f"{self.source.name(key.index)}: this image could not be read before training."
            )
        return torch.from_numpy(row).view(self._example.dtype).view(self._example.shape[1:])


class _Blocks(Dataset[Any]):
    """Blocks of images by their indices, and which of them could be read; these come first."""

    def __init__(self, samples: ImageSamples) -> None:
        self.samples = samples

    def __getitem__(self, indices: Sequence[int]) -> tuple[Sequence[int], list[int], Tensor]:
        read = list[int]()
        images = torch.zeros(_BLOCK, *self.samples.view.size, 3, dtype=torch.uint8).permute(
            0, 3, 1, 2
        )
        for index in indices:
            with suppress(UnreadableImageError):
                images[len(read)] = self.samples.read(SampleKey(index, epoch=0))
                read.append(index)
        return indices, read, images


class ImageModule(LoadingModule):
    """Loaders of images, and of the features of a frozen backbone.

    It computes the same ones in each epoch.

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
            self._backbone = "unknown"
            self._features = {}

    def read_split(self, split: Split, *, decoded: bool) -> ImageSource:
        """Return the images of a split.

        Those of a fit from where they are kept decoded if ``decoded``.
        """
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
        """Return the test split if there is one, else the validation split.

        Each image must be readable.
        """
        source = self.read_split(self._predict_split, decoded=False)
        return predict_loader(
            ImageSamples(source, self._view("test"), seed=seed_of(self), defects=None),
            **self._loading,
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
        """Return the features of a fit's split, computed the first time.

        None where the model needs images.
        """
        if self.augment or self._stage != "fit" or self.trainer is None or split == "test":
            return None
        if self._backbone == "unknown":
            self._backbone = self._find_backbone(self.trainer)
        if self._backbone is not None and split not in self._features:
            samples = self._samples(split, decoded=False)
            self._features[split] = self._compute_features(samples, self._backbone, self.trainer)
        return self._features.get(split)

    def _find_backbone(self, trainer: Trainer) -> FrozenBackbone | None:
        """Find what computes the features of a fit's model, and those of an example.

        None where there are none.
        """
        if trainer.state.fn != TrainerFn.FITTING:
            return None
        module = trainer.lightning_module
        num_images = self.counts["train"]
        if own := [name for name in _BATCH_HOOKS if not _is_ours(getattr(self, name))]:
            reason = f"{', '.join(own)} of {type(self).__name__}'s own may get images"
        elif count_planned_reads(trainer, num_images, self.batch_size) < num_images:
            reason = "this training does not read each image"
        else:
            backbone: ComputesFeatures | None = getattr(module, "frozen_features", lambda: None)()
            if backbone is None:
                return None
            example = backbone.example(self.preprocessing.crop)
            return None if example is None else (backbone, example)
        if trainer.is_global_zero and getattr(module, "may_keep_features", False):
            log.info("data: features of the frozen backbone are computed at each step: %s", reason)
        return None

    def _compute_features(
        self, samples: ImageSamples, frozen: FrozenBackbone, trainer: Trainer
    ) -> FeatureSamples | None:
        """Find the features of a split on disk, and compute what is missing.

        Called by all ranks together.

        There is one file a split, see `lightkit.data.image_cache`, named by the digests of the
        frozen weights, the preprocessing and the images: another training with the same backbone
        begins with it, and computing goes on where a killed process has stopped. The ranks of this
        machine divide the work.

        Returns:
            The features; None, with a warning, where the disk has no room for them on one of the
            ranks.
        """
        backbone, example = frozen
        strategy = trainer.strategy
        ranks = local_ranks(trainer)
        num = len(samples)
        decided_by = "\0".join(
            (backbone.digest(), str(self.preprocessing), samples.source.digest())
        )
        key = hashlib.sha256(decided_by.encode()).hexdigest()
        rows: RowCache | None = None
        try:
            rows = open_rows(
                "features", key, np.full(num, example.numel() * example.element_size())
            )
        except OSError as error:
            log.warning(
                "data: features of the frozen backbone are computed at each step, as they cannot "
                "be kept on disk: %s",
                error.strerror or error,
            )  # fmt: skip
        has_room = torch.tensor(float(rows is not None), device=strategy.root_device)
        if strategy.reduce(has_room, reduce_op="sum") < trainer.world_size or rows is None:
            return None
        began_s = time.monotonic()
        missing = rows.find_missing()
        strategy.barrier("features")  # before another rank computes
        # by numbers of images: what each rank finds missing differs while another training computes
        # the same
        own = [index for index in missing if index // _BLOCK % ranks == trainer.local_rank % ranks]
        blocks = [own[at : at + _BLOCK] for at in range(0, len(own), _BLOCK)]
        workers = worker_options(
            min(self._loading["num_workers"], len(blocks)), self.prefetch_factor, keep=False,
            batch_bytes=_BLOCK * samples.sample_bytes, trainer=trainer,
        )  # fmt: skip
        loader: DataLoader[Any] = DataLoader(
            _Blocks(samples),
            batch_size=None,
            sampler=blocks,
            collate_fn=ImageSamples.collate,  # type: ignore[arg-type]
            generator=torch.Generator().manual_seed(samples.seed),
            **workers,
        )
        shown = show_progress(
            loader, len(own), "features computed", size=lambda block: len(block[0])
        )
        for indices, read, images in shown:
            found: dict[int, Any] = {}
            if read:
                computed = backbone.compute(
                    normalised(images.to(strategy.root_device), self.preprocessing, trainer)
                )
                computed = computed[: len(read)].to("cpu", example.dtype).reshape(len(read), -1)
                found = dict(zip(read, computed.view(torch.uint8).numpy(), strict=True))
            for index in indices:
                rows[index] = found.get(index)
        strategy.barrier("features")
        if trainer.is_global_zero:
            log.info(
                "data: features of the frozen backbone: %d images, %d found,"
                " %d computed (%.1f s), %s in %s",
                num, num - len(missing), len(missing), time.monotonic() - began_s,
                in_bytes(int(rows.sizes.sum())),
                rows.path.parent,
            )  # fmt: skip
        return FeatureSamples(samples, frozen, rows)


def _is_ours(method: Any) -> bool:
    function = getattr(method, "__func__", None)
    return function is not None and function.__module__.partition(".")[0] in (
        "lightkit",
        "pytorch_lightning",
    )


def seed_of(data: Any) -> int:
    """Return the seed of order and augmentation: the data module's own, else the run's."""
    return global_seed() if data.seed is None else data.seed


def check_arguments(owner: object, **given: Any) -> None:
    """Refuse arguments of a data module that are out of the bounds of its signature.

    Args:
        owner: The data module.
        given: Some of its arguments by name.

    Raises:
        ConfigError: For the first.
    """
    kind: Any = type(owner)
    hints = find_hints(kind)
    for name, value in given.items():
        if name == "crop_scale":
            is_fine = value is not None and _is_share_of_area(value)
            expected = "two shares of the area, above 0 up to 1, the lower one first"
        else:
            bounds = read_bounds(hints[name])
            # jsonargparse lets any value be null
            is_fine = (
                name in _OPTIONAL if value is None else value == "auto" or is_within(bounds, value)
            )
            expected = describe_bounds(bounds)
        if not is_fine:
            raise ConfigError(
                f"data.init_args.{name}: expected {expected}, got"
                f" {'null' if value is None else value}."
            )


def warn_idle_fractions(data: object, given: Collection[str], how: str) -> None:
    """Warn of shares of a split that is given.

    Args:
        data: The data module.
        given: Splits that are given.
        how: How they are.
    """
    if given:
        idle = ["val_fraction"] if "val" in given else []
        warn_idle(data, *idle, "test_fraction", why=f"splits that are {how}: {', '.join(given)}")


def warn_idle(data: object, *names: str, why: str) -> None:
    """Warn of settings that differ from their defaults and have no effect.

    Args:
        data: The data module; its attributes bear the names of its arguments.
        names: Of the settings.
        why: The setting, or the data, with which they have no effect.
    """
    defaults: dict[str, Any] = {}
    for kind in reversed(type(data).__mro__):
        constructor = vars(kind).get("__init__")
        parameters = inspect.signature(constructor).parameters if constructor else {}
        defaults |= {name: parameter.default for name, parameter in parameters.items()}
    idle = []
    for name in names:
        value = getattr(data, name)
        value = tuple(value) if isinstance(value, list) else value
        if value != defaults[name]:
            idle.append(f"data.init_args.{name}")
    if idle:
        log.warning("%s: no effect with %s", " and ".join(idle), why)


def _is_share_of_area(value: Sequence[float]) -> bool:
    return len(value) == 2 and 0 < value[0] <= value[1] <= 1


_OPTIONAL = ("cache_size", "cache_limit_gb")

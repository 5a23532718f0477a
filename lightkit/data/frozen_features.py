"""Features of a frozen backbone in place of images: computed when they are first needed, and kept in memory."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from pytorch_lightning import LightningDataModule, LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightkit.data.image_dataset import Batch, ImageSamples, Sample, make_batch, stand_ins
from lightkit.data.loader import Ahead, ahead_that_fits, local_ranks, worker_options
from lightkit.data.sampler import SampleKey
from lightkit.data.transforms import normalised
from lightkit.hardware.processor import available_memory_bytes
from lightkit.images.preprocessing import Preprocessing
from lightkit.images.reading import UnreadableImageError
from lightkit.runs.files import in_bytes

__all__ = [
    "BatchesAhead",
    "ComputesFeatures",
    "FeatureRows",
    "FeatureSamples",
    "Features",
    "ImagesAhead",
    "Keys",
    "Loaded",
    "RowPosition",
    "RowView",
    "may_be_kept",
]


class RowPosition(NamedTuple):
    """Stands for an image where rows of a table are put together."""

    at: int


class RowView:
    """Gives a sample's features where other views make an image, for `make_batch`.

    Args:
        rows: The features.
        have: Computes what is missing of some.
        for_training: As of the view of the images.
    """

    size = (1, 1)

    def __init__(self, rows: FeatureRows, have: Callable[[Sequence[int]], None], *, for_training: bool) -> None:
        self._rows, self._have, self.for_training = rows, have, for_training

    def empty(self, num: int) -> Tensor:
        """Give a tensor for ``num`` rows."""
        return self._rows.empty(num)

    def __call__(self, pixels: Any, seed: int, key: SampleKey) -> Tensor:
        """Give the features of a `RowPosition`.

        Raises:
            UnreadableImageError: If its image could not be read.
        """
        self._have([pixels.at])
        return self._rows.row(pixels.at)


class FeatureRows:
    """Features by index, those that are known.

    Args:
        num: Of samples.
        like: Features ``(1, ...)`` of any image.
    """

    def __init__(self, num: int, like: Tensor) -> None:
        self._shape, self._dtype = (num, *like.shape[1:]), like.dtype
        self._key: bytes | None = None
        self.clear()

    def clear(self) -> None:
        """Forget all, and give the memory back."""
        with torch.inference_mode(mode=False):  # training could not take a tensor that is made within a validation
            self._rows = torch.empty(self._shape, dtype=self._dtype)  # memory is taken as it is filled
        self._missing = set(range(len(self._rows)))
        self._reasons: dict[int, str] = {}
        self.unreadable: set[int] = set()

    def keep_for(self, key: bytes) -> None:
        """Forget all that was computed for another key."""
        if self._key not in (None, key):
            self.clear()
        self._key = key

    def missing(self, indices: Iterable[int]) -> list[int]:
        """Give those of which nothing is known yet."""
        return [index for index in indices if index in self._missing] if self._missing else []

    def put(self, indices: Sequence[int], features: Tensor) -> None:
        """Keep features ``(len(indices), ...)``."""
        self._rows[list(indices)] = features.to(self._rows)
        self._missing.difference_update(indices)

    def put_unreadable(self, index: int, reason: str) -> None:
        """Keep why there are no features."""
        self.unreadable.add(index)
        self._reasons[index] = reason
        self._missing.discard(index)

    def empty(self, num: int) -> Tensor:
        """Give a tensor for ``num`` rows, not filled yet."""
        return torch.empty(num, *self._rows.shape[1:], dtype=self._rows.dtype)

    def rows(self, indices: Sequence[int]) -> Tensor:
        """Give some of them."""
        return self._rows[list(indices)]

    def row(self, index: int) -> Tensor:
        """Give one of them.

        Raises:
            UnreadableImageError: If its image could not be read.
        """
        if index in self._reasons:
            reason = self._reasons[index]
            raise UnreadableImageError(f"sample {index}: this image cannot be decoded ({reason}).", reason=reason)
        return self._rows[index]


Keys = Sequence[SampleKey | int]
_Key = TypeVar("_Key")
_Made = TypeVar("_Made")


class Loaded(NamedTuple):
    """Images that were loaded: those that could be, and why the others could not."""

    indices: list[int]
    images: Tensor
    unreadable: dict[int, str]


class _Ahead(Generic[_Key, _Made]):
    """Batches that are planned, made ahead of time where there are processes for it, and given one by one.

    Args:
        samples: The images.
        ahead: Processes that load, and how far.
        ranks: Processes of this machine that do the same.
    """

    def __init__(self, samples: ImageSamples, ahead: Ahead, ranks: int) -> None:
        self._samples, self._ahead, self._ranks = samples, ahead, ranks
        self.end()

    def end(self) -> None:
        """Forget what was to come, and end the processes that load it."""
        self._batches: Iterator[_Made] = iter(())
        self._planned: list[list[_Key]] = []

    def _begin(self, dataset: Any, planned: list[list[_Key]]) -> None:
        """Let ``dataset`` make these batches, in place of what was planned before."""
        self._planned = planned
        self._batches = _loading(dataset, planned, self._samples, self._ahead, self._ranks)

    def _next(self) -> _Made:
        """Give the next batch that was planned."""
        self._planned.pop(0)
        batch = next(self._batches, None)
        assert batch is not None  # a StopIteration would look like the end of an epoch
        if not self._planned:
            self.end()
        return batch

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_batches": iter(()), "_planned": []}


class ImagesAhead(_Ahead[int, Loaded], Dataset[Loaded]):
    """Loads batches of images, ahead of time where there are processes for it."""

    def next_of(self, missing: Sequence[int], plan: Callable[[], list[list[int]]]) -> Loaded:
        """Give the next batch that was planned; some of ``missing`` is in it or in a later one.

        Args:
            missing: Of a batch that is asked for now.
            plan: Gives batches, the first of which has some of ``missing``; asked where none that was planned has.
        """
        wanted = set(missing)
        if all(wanted.isdisjoint(batch) for batch in self._planned):  # one was loaded by itself: the first has none
            self._begin(self, plan())
        return self._next()

    def alone(self, index: int) -> Loaded:
        """Load one in this process; what was planned goes on as it was."""
        return self.__getitems__([index])

    def __getitem__(self, index: int) -> Loaded:
        return self.__getitems__([index])

    def __getitems__(self, indices: list[int]) -> Loaded:
        """Load some; torch's loader asks for this one."""
        view, read, unreadable = self._samples.view, list[int](), dict[int, str]()
        images = view.empty(len(indices))
        for index in indices:
            try:
                pixels = self._samples.source.pixels(index)
                images[len(read)] = view(pixels, self._samples.seed, SampleKey(index, epoch=0))
            except UnreadableImageError as error:
                unreadable[index] = error.reason
                continue
            read.append(index)
        return Loaded(read, images[: len(read)], unreadable)


class BatchesAhead(_Ahead[SampleKey | int, Batch]):
    """Loads a loader's own batches, ahead of time where there are processes for it."""

    def of(self, keys: Keys, coming: Callable[[], Sequence[Keys]]) -> Batch:
        """Give a batch.

        Args:
            keys: Of its samples.
            coming: Gives those of it and of all that follow; asked where another was planned.
        """
        if not self._planned or self._planned[0] != [*keys]:
            self._begin(self._samples, [[*batch] for batch in coming()])
        return self._next()


def _loading(
    dataset: Any, batches: Sequence[list[Any]], samples: ImageSamples, asked: Ahead, ranks: int
) -> Iterator[Any]:
    """Give what ``dataset`` makes of each of these batches, by as many processes as are asked for and fit."""
    ahead, batches = asked._replace(num_workers=min(asked.num_workers, len(batches))), [*batches]
    if len(batches) == 1 or not ahead.num_workers:
        return map(dataset.__getitems__, batches)
    size = max(map(len, batches)) * samples.sample_bytes
    ahead = ahead_that_fits(ahead, batch_bytes=size, ranks=ranks)
    of_its_own = torch.Generator().manual_seed(samples.seed)
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_sampler=batches, collate_fn=_as_it_is, generator=of_its_own, **worker_options(ahead, keep=False)
    )
    return iter(loader)


def _as_it_is(loaded: Any) -> Any:
    return loaded


log = logging.getLogger("lightkit.data")


class ComputesFeatures(Protocol):
    """What a model gives that has the same features of an image in each epoch."""

    def example(self, size: tuple[int, int], /) -> Tensor | None:
        """Give the features ``(1, ...)`` of one image of this height and width; None where there are none."""

    def key(self) -> bytes | None:
        """Give what is another where features would be others; None where they may change at any step."""

    def is_frozen(self) -> bool:
        """Tell, quickly, whether what `key` has last looked at is still not trained."""

    def of(self, images: Tensor, /) -> Tensor:
        """Give the features of normalised images."""


class FeatureSamples(Dataset[tuple[Tensor, int]]):
    """A split's features, given in whole batches as `ImageSamples` gives images.

    Args:
        samples: The images.
        computes: Computes features.
        table: Keeps them.
        images: Loads the images whose features are missing.
        batches: Loads batches of images, once features are no longer the same at each step.
        on_device: From uint8 images to normalised ones where the model is.
        batch_size: Images whose features are computed at a time.
        num_batches: Gives the number of batches after which an epoch ends, counted from its first, also where a
            training goes on later.
    """

    def __init__(
        self,
        samples: ImageSamples,
        computes: ComputesFeatures,
        table: FeatureRows,
        *,
        images: ImagesAhead,
        batches: BatchesAhead,
        on_device: Callable[[Tensor], Tensor],
        batch_size: int,
        num_batches: Callable[[], float],
    ) -> None:
        self.samples, self.source, self.defects = samples, samples.source, samples.defects
        self._computes, self._table, self._images = computes, table, images
        self._batches, self._num_batches = batches, num_batches
        self._on_device, self._batch_size = on_device, batch_size
        self._coming: Iterable[Keys] = ()
        self._is_new_epoch, self._is_off = True, False
        self._labels = _column([samples.source.label(index) for index in range(len(samples))])

    def begin(self, batches: Iterable[Keys]) -> None:
        """Take the keys of an epoch's batches; a loader says so before it gives the first."""
        self._coming, self._is_new_epoch = batches, True
        self._end()

    def forget(self) -> None:
        """Give the memory of all features back, and end the processes that load."""
        self._table.clear()
        self._end()

    def _end(self) -> None:
        self._images.end()
        self._batches.end()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, key: SampleKey | int) -> tuple[Tensor, int]:
        """Give one sample.

        Raises:
            UnreadableImageError: If its image cannot be read.
        """
        index = _index(key)
        with torch.inference_mode(mode=False):
            self._have_alone([index])
            return self._table.row(index), self.source.label(index)

    def __getitems__(self, keys: Keys) -> Batch:
        """Give a batch: features, labels, and weights where `make_batch` gives them."""
        self._check_key()
        if self._is_off:
            return self._batches.of(keys, lambda: self._from(keys))
        indices = [_index(key) for key in keys]
        with torch.inference_mode(mode=False):  # training could not take what validation has made
            self._have(indices)
            if self._table.unreadable.isdisjoint(indices):
                return self._table.rows(indices), self._labels[indices]
            return self._without_unreadable(keys)

    @staticmethod
    def collate(batch: Batch) -> Batch:
        """Give a batch as it is."""
        return batch

    def _check_key(self) -> None:
        """See whether the backbone is still what it was; whether it is trained by now, before each batch."""
        if self._is_new_epoch:
            key, self._is_new_epoch = self._computes.key(), False
            if key is not None:
                self._is_off = False
                self._table.keep_for(key)
                return
        elif self._is_off or self._computes.is_frozen():
            return
        if not self._is_off and self.samples.view.for_training:
            log.warning(
                "data: not all of the backbone is frozen any more; its features are computed at each step. With "
                "model.init_args.features: each_step, decoded images could be kept instead."
            )
        self._is_off = True
        self._end()

    def _have(self, indices: Sequence[int]) -> None:
        """Compute what is missing of these, and what else comes with it."""
        while missing := self._table.missing(indices):
            self._keep(self._images.next_of(missing, lambda: self._plan(indices)))

    def _have_alone(self, indices: Sequence[int]) -> None:
        """Compute what is missing of these, which nobody has planned."""
        for index in self._table.missing(indices):
            self._keep(self._images.alone(index))

    def _plan(self, indices: Sequence[int]) -> list[list[int]]:
        """Give what is missing, in batches, in the order in which it will be asked for."""
        asked = dict.fromkeys(_index(key) for batch in self._from(indices) for key in batch)
        missing = self._table.missing(asked)
        return [missing[at : at + self._batch_size] for at in range(0, len(missing), self._batch_size)]

    def _from(self, keys: Keys) -> list[Keys]:
        """Give a batch, and those of the epoch that will be asked for after it."""
        sampler = getattr(self._coming, "sampler", None)
        num, indices = self._num_batches() - getattr(sampler, "first_batch", 0), [_index(key) for key in keys]
        coming = list(self._coming if num == math.inf else islice(self._coming, max(0, int(num))))
        start = next(
            (number for number, batch in enumerate(coming) if [_index(key) for key in batch] == indices), len(coming)
        )
        return [keys, *coming[start + 1 :]]

    def _keep(self, loaded: Loaded) -> None:
        for index, reason in loaded.unreadable.items():
            self._table.put_unreadable(index, reason)
        if loaded.indices:
            # Always as many at a time, so that the same kernels compute them: a training that goes on later, and has
            # others left to compute, gets the same numbers to the last bit.
            num, lacking = len(loaded.indices), self._batch_size - len(loaded.indices)
            images = torch.cat([loaded.images, loaded.images[-1:].expand(lacking, -1, -1, -1)])
            self._table.put(loaded.indices, self._computes.of(self._on_device(images))[:num])

    def _without_unreadable(self, keys: Keys) -> Batch:
        whole = [key if isinstance(key, SampleKey) else SampleKey(key, epoch=0) for key in keys]
        others = (
            self._sample(index) for key in whole[:1] for index in stand_ins(len(self), key, seed=self.samples.seed)
        )  # lazily, as in `ImageSamples`
        samples = [self._sample(key.index) for key in whole]
        view = RowView(self._table, self._have_alone, for_training=self.samples.view.for_training)
        return make_batch(samples, view, whole, seed=self.samples.seed, defects=self.defects, others=others)

    def _sample(self, index: int) -> Sample:
        place: Any = RowPosition(index)
        return Sample(place, self.source.label(index), self.source.name(index))


def _index(key: SampleKey | int) -> int:
    return key.index if isinstance(key, SampleKey) else key


def _column(labels: Sequence[float]) -> Tensor:
    return torch.tensor(labels, dtype=torch.int64 if all(isinstance(one, int) for one in labels) else torch.float32)


_SHARE_OF_MEMORY = 0.25
_ON_THE_WAY = (
    "train_dataloader", "val_dataloader",
    "on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer",
)  # fmt: skip
_OURS = ("lightkit", "pytorch_lightning")


_Found = tuple[ComputesFeatures, Tensor]
"""What computes features, and those of an example."""


def may_be_kept(data: LightningDataModule) -> bool:
    """Tell whether features may be kept in place of the images of a data module; known before its model is built."""
    trainer = data.trainer
    if trainer is None or trainer.state.fn != TrainerFn.FITTING or _own_methods(data):
        return False
    return bool(getattr(trainer.lightning_module, "may_keep_features", False))


class Features:
    """What a data module knows of its model's features in a fit.

    The model is whatever the trainer has; it gives a `ComputesFeatures` where it has a method ``frozen_features`` that
    does not give None.
    """

    def __init__(self) -> None:
        self._kept: dict[str, FeatureSamples] = {}
        self.forget()

    def forget(self) -> None:
        """Give the memory of all features back, and look anew in the next fit."""
        for kept in self._kept.values():
            kept.forget()
        self._kept = {}
        self._asked: tuple[weakref.ref[Trainer], weakref.ref[LightningModule]] | None = None
        self._found: _Found | None = None
        self._rows: dict[str, FeatureRows] = {}

    def instead_of(
        self,
        samples: ImageSamples,
        loading: Mapping[str, Any],
        *,
        split: str,
        preprocessing: Preprocessing,
        data: LightningDataModule,
        num_images: int,
    ) -> tuple[ImageSamples | FeatureSamples, dict[str, Any]]:
        """Give the features of a split, and how they are loaded; the samples themselves where there are none.

        Args:
            samples: The split's images, without randomness.
            loading: What their loader is told; the images are loaded by as many processes.
            split: Name of the split.
            preprocessing: Of all images.
            data: Whose images these are; its trainer has the model.
            num_images: Of all splits of which features are kept.
        """
        if not self.are_there(data, preprocessing.crop, num_images=num_images):
            return samples, dict(loading)
        assert self._found is not None
        (computes, example), trainer = self._found, data.trainer
        assert trainer is not None
        if split not in self._rows:
            self._rows[split] = FeatureRows(len(samples), example)
        ahead, ranks = Ahead(loading["num_workers"], loading["prefetch_factor"]), local_ranks(trainer)
        kept = FeatureSamples(
            samples, computes, self._rows[split],
            images=ImagesAhead(samples, ahead, ranks), batches=BatchesAhead(samples, ahead, ranks),
            on_device=lambda images: normalised(images.to(trainer.lightning_module.device), preprocessing, trainer),
            batch_size=loading["batch_size"], num_batches=lambda: _num_batches(trainer, split),
        )  # fmt: skip
        self._kept[split] = kept
        return kept, {**loading, "num_workers": 0}

    def are_there(self, data: LightningDataModule, size: tuple[int, int], *, num_images: int) -> bool:
        """Tell whether a fit's model gives features of images of this size, and there is room for so many."""
        trainer = data.trainer
        if trainer is None or trainer.state.fn != TrainerFn.FITTING:
            return False
        module = trainer.lightning_module
        if self._asked is None or self._asked[0]() is not trainer or self._asked[1]() is not module:
            self.forget()
            self._asked = (weakref.ref(trainer), weakref.ref(module))
            self._found = _looked_for(data, trainer, size, num_images=num_images)
        return self._found is not None


def _looked_for(
    data: LightningDataModule, trainer: Trainer, size: tuple[int, int], *, num_images: int
) -> _Found | None:
    """Ask the trainer's model for what computes features, and those of an example."""
    module = trainer.lightning_module
    if own := _own_methods(data):
        if trainer.is_global_zero and getattr(module, "may_keep_features", False):
            log.info(
                "data: what the frozen backbone makes of an image is computed at each step: %s of %s's own may get "
                "images", ", ".join(own), type(data).__name__,
            )  # fmt: skip
        return None
    computes: ComputesFeatures | None = getattr(module, "frozen_features", lambda: None)()
    example = None if computes is None else computes.example(size)
    if computes is None or example is None:
        return None
    needed = example.numel() * example.element_size() * num_images
    room = int(available_memory_bytes() * _SHARE_OF_MEMORY / local_ranks(trainer))
    if needed > room:
        log.warning(
            "data: what the frozen backbone makes of the %d images would take %s, and there are %s for it; it is "
            "computed at each step", num_images, in_bytes(needed), in_bytes(room),
        )  # fmt: skip
        return None
    if trainer.is_global_zero:
        each = " x ".join(f"{number:,}" for number in example.shape[1:])
        log.info(
            "data: what the frozen backbone makes of the %d images is computed once and kept (%s numbers each, %s)",
            num_images, each, in_bytes(needed),
        )  # fmt: skip
    return computes, example


def _num_batches(trainer: Trainer, split: str) -> float:
    """Give the number of batches after which a fit's loop asks an epoch for no more."""
    loop = trainer.fit_loop
    if split != "train":
        return max(loop.epoch_loop.val_loop.max_batches, default=math.inf)
    if trainer.max_steps == -1:
        return loop.max_batches
    num_left = max(1, trainer.max_steps - trainer.global_step) * trainer.accumulate_grad_batches
    return min(loop.max_batches, loop.epoch_loop.batch_progress.current.ready + num_left)


def _own_methods(data: LightningDataModule) -> list[str]:
    """Name the methods on a batch's way to the model that are neither lightkit's nor Lightning's."""
    return [name for name in _ON_THE_WAY if not _is_ours(getattr(data, name))]


def _is_ours(method: Any) -> bool:
    function = getattr(method, "__func__", None)
    return function is not None and function.__module__.partition(".")[0] in _OURS

"""Features of a frozen backbone in place of images: computed when a sample is first asked for, and kept in memory."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor
from torch.utils.data import Dataset

from lightkit.data.feature_rows import FeatureRows, Place, RowView
from lightkit.data.images_ahead import ImagesAhead, Loaded
from lightkit.data.on_device import normalised
from lightkit.data.samples import Batch, ImageSamples, Sample, make_batch, stand_ins
from lightkit.data.sampling import SampleKey
from lightkit.data.workers import Ahead, local_ranks
from lightkit.images.preprocessing import Preprocessing
from lightkit.machine.processor import available_memory_bytes
from lightkit.runs.disk import in_bytes

__all__ = ["ComputesFeatures", "FeatureSamples", "Features", "may_be_kept"]

log = logging.getLogger("lightkit.data")

_SHARE_OF_MEMORY = 0.25


class ComputesFeatures(Protocol):
    """What a model gives that has the same features of an image in each epoch."""

    def example(self, size: tuple[int, int], /) -> Tensor | None:
        """Give the features ``(1, ...)`` of one image of this height and width; None where there are none."""

    def key(self) -> bytes | None:
        """Give what is another where features would be others; None where they may change at any step."""

    def of(self, images: Tensor, /) -> Tensor:
        """Give the features of normalised images."""


_Found = tuple[ComputesFeatures, Tensor]
"""What computes features, and those of an example."""


def may_be_kept(trainer: Trainer | None) -> bool:
    """Tell whether a trainer's model may give features to keep; known before it is built."""
    return trainer is not None and _is_fit(trainer) and getattr(trainer.lightning_module, "may_keep_features", False)


class Features:
    """What a data module knows of its model's features in a fit.

    The model is whatever the trainer has; it gives a `ComputesFeatures` where it has a method ``frozen_features`` that
    does not give None.
    """

    def __init__(self) -> None:
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
        trainer: Trainer | None,
        num_images: int,
    ) -> tuple[ImageSamples | FeatureSamples, dict[str, Any]]:
        """Give the features of a split, and how they are loaded; the samples themselves where there are none.

        Args:
            samples: The split's images, without randomness.
            loading: What their loader is told; the images are loaded by as many processes.
            split: Name of the split.
            preprocessing: Of all images.
            trainer: Has the model.
            num_images: Of all splits of which features are kept.
        """
        if trainer is None or not _is_fit(trainer):
            return samples, dict(loading)
        found = self._looked_for(trainer, preprocessing.crop, num_images=num_images)
        if found is None:
            return samples, dict(loading)
        computes, example = found
        if split not in self._rows:
            self._rows[split] = FeatureRows(len(samples), example)
        ahead = Ahead(loading["num_workers"], loading["prefetch_factor"])
        kept = FeatureSamples(
            samples, computes, self._rows[split], images=ImagesAhead(samples, ahead, local_ranks(trainer)),
            on_device=lambda images: normalised(images.to(trainer.lightning_module.device), preprocessing, trainer),
            batch_size=loading["batch_size"],
        )  # fmt: skip
        return kept, {**loading, "num_workers": 0}

    def _looked_for(self, trainer: Trainer, size: tuple[int, int], *, num_images: int) -> _Found | None:
        """Ask the trainer's model, once, for what computes features, and those of an example."""
        module = trainer.lightning_module
        if self._asked is not None and self._asked[0]() is trainer and self._asked[1]() is module:
            return self._found
        self._asked, self._found, self._rows = (weakref.ref(trainer), weakref.ref(module)), None, {}
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
        self._found = (computes, example)
        return self._found


class FeatureSamples(Dataset[tuple[Tensor, int]]):
    """A split's features, given in whole batches as `ImageSamples` gives images.

    Args:
        samples: The images.
        computes: Computes features.
        table: Keeps them.
        images: Loads images.
        on_device: From uint8 images to normalised ones where the model is.
        batch_size: Images whose features are computed at a time.
    """

    def __init__(
        self,
        samples: ImageSamples,
        computes: ComputesFeatures,
        table: FeatureRows,
        *,
        images: ImagesAhead,
        on_device: Callable[[Tensor], Tensor],
        batch_size: int,
    ) -> None:
        self.samples, self.source, self.defects = samples, samples.source, samples.defects
        self._computes, self._table, self._images = computes, table, images
        self._on_device, self._batch_size = on_device, batch_size
        self._coming: Iterable[Sequence[SampleKey | int]] = ()
        self._is_new_epoch, self._is_off = True, False
        self._labels = _column([samples.source.label(index) for index in range(len(samples))])

    def begin(self, batches: Iterable[Sequence[SampleKey | int]]) -> None:
        """Take the keys of an epoch's batches; a loader says so before it gives the first."""
        self._coming, self._is_new_epoch = batches, True

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, key: SampleKey | int) -> tuple[Tensor, int]:
        """Give one sample.

        Raises:
            UnreadableImageError: If its image cannot be read.
        """
        index = _index(key)
        with torch.inference_mode(mode=False):
            self._have([index])
            return self._table.row(index), self.source.label(index)

    def __getitems__(self, keys: Sequence[SampleKey | int]) -> Batch:
        """Give a batch: features, labels, and weights where `make_batch` gives them."""
        if self._is_new_epoch:
            self._check_key()
        if self._is_off:
            return self.samples.__getitems__(keys)
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
        """See at the start of an epoch whether the backbone is still what it was, as a callback may unfreeze it."""
        key, self._is_new_epoch = self._computes.key(), False
        if key is None and not self._is_off:
            log.warning("data: not all of the backbone is frozen any more; its features are computed at each step.")
        self._is_off = key is None
        if key is not None:
            self._table.keep_for(key)

    def _have(self, indices: Sequence[int]) -> None:
        """Compute what is missing of these."""
        while missing := self._table.missing(indices):
            self._keep(self._images.next_of(missing, self._plan(indices)))

    def _plan(self, indices: Sequence[int]) -> Callable[[], list[list[int]]]:
        def plan() -> list[list[int]]:
            """Give what is missing, in batches, in the order in which it will be asked for."""
            batches = [[_index(key) for key in batch] for batch in self._coming]
            start = next((number for number, batch in enumerate(batches) if batch == list(indices)), len(batches))
            asked = dict.fromkeys(index for batch in [indices, *batches[start:]] for index in batch)
            missing = self._table.missing(asked)
            return [missing[at : at + self._batch_size] for at in range(0, len(missing), self._batch_size)]

        return plan

    def _keep(self, loaded: Loaded) -> None:
        for index, reason in loaded.unreadable.items():
            self._table.put_unreadable(index, reason)
        if loaded.indices:
            # Always as many at a time, so that the same kernels compute them: a training that goes on later, and has
            # others left to compute, gets the same numbers to the last bit.
            num, lacking = len(loaded.indices), self._batch_size - len(loaded.indices)
            images = torch.cat([loaded.images, loaded.images[-1:].expand(lacking, -1, -1, -1)])
            self._table.put(loaded.indices, self._computes.of(self._on_device(images))[:num])

    def _without_unreadable(self, keys: Sequence[SampleKey | int]) -> Batch:
        whole = [key if isinstance(key, SampleKey) else SampleKey(key, epoch=0) for key in keys]
        others = (
            self._sample(index) for key in whole[:1] for index in stand_ins(len(self), key, seed=self.samples.seed)
        )  # lazily, as in `ImageSamples`
        samples = [self._sample(key.index) for key in whole]
        view = RowView(self._table, self._have, for_training=self.samples.view.for_training)
        return make_batch(samples, view, whole, seed=self.samples.seed, defects=self.defects, others=others)

    def _sample(self, index: int) -> Sample:
        place: Any = Place(index)
        return Sample(place, self.source.label(index), self.source.name(index))


def _index(key: SampleKey | int) -> int:
    return key.index if isinstance(key, SampleKey) else key


def _column(labels: Sequence[float]) -> Tensor:
    return torch.tensor(labels, dtype=torch.int64 if all(isinstance(one, int) for one in labels) else torch.float32)


def _is_fit(trainer: Trainer) -> bool:
    return trainer.state.fn == TrainerFn.FITTING

"""Images that a command line names, for predictions.

Files, folders or tables in place of the config's data.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from PIL import Image
from pytorch_lightning import LightningDataModule
from torch import Tensor

from lightkit.errors import ConfigError, DataError
from lightkit.images.early import EarlyImages
from lightkit.images.image_file import PreparedImage, prepare_images
from lightkit.images.inputs import find_images
from lightkit.prediction.table import Prediction
from lightkit.rank_zero import make_on_rank_zero

Prepare = Callable[[Image.Image], Any]


class ListedImages(LightningDataModule):
    """Batches of images for `predict_step`, and which image is which.

    Each image is read once, by one process. One that cannot be read is among the entries of its
    batch, and not in the batch. All processes have equally many batches, so that a collective finds
    all of them; where one has no image for a batch, it gets a blank one that counts for nothing.

    Args:
        words: Files, folders, patterns and tables, as on the command line.
        preprocessing: From a PIL image in RGB to an array ``(channels, height, width)``, as
            `Preprocessing` does it.
        batch_size: Images of one batch on one process.
        num_threads: Images that are read at a time; `count_threads` if None.
        class_names: In the order of the labels, where a model must learn them from the data before
            it is built.
        trained_names: Names of the classes that the weights were trained for, in the order of the
            labels; None where they are unknown.
        names_of_data: Returns the names of the classes, where neither the weights nor the model has
            any; None where there are none.
        image_size: Height and width of the images that the model gets.
        early: Images that are read already; None where none are. It counts if its preprocessing is
            this one.

    Attributes:
        paths: Of all images; known after `setup`.
        entries: Of each batch that was given and not predicted yet, its images without values.
            Those without a defect are the batch's rows, in their order.
    """

    def __init__(
        self,
        words: Sequence[str],
        preprocessing: Prepare,
        *,
        batch_size: int = 32,
        num_threads: int | None = None,
        class_names: Sequence[str] | None = None,
        trained_names: Sequence[str] | None = None,
        names_of_data: Callable[[], Sequence[str] | None] = lambda: None,
        image_size: tuple[int, int] | int | None = None,
        early: EarlyImages | None = None,
    ) -> None:
        super().__init__()
        self.words = list(words)
        self.preprocessing = preprocessing
        self.batch_size = batch_size
        self.num_threads = num_threads
        self.class_names = class_names
        self.trained_names = trained_names
        self.names_of_data = names_of_data
        self.image_size = image_size
        self.early = early if early is not None and early.preprocessing == preprocessing else None
        self.paths: list[str] = []
        self.entries: deque[list[Prediction]] = deque()

    unit = "images"

    @staticmethod
    def count_samples(batch: Tensor) -> int:
        """Return the number of images of a batch."""
        return len(batch)

    def setup(self, stage: str | None = None) -> None:
        """List the images, once for all processes.

        So they mean the same even if some come or go meanwhile.

        Raises:
            DataError: If a file or folder is not there, or there is no image.
        """
        if not self.paths:
            list_paths = (
                (lambda: list(find_images(self.words)))
                if self.early is None
                else self.early.list_paths
            )
            self.paths = make_on_rank_zero(list_paths, self.trainer)
        if not self.paths:
            raise DataError(f"{' '.join(self.words)}: there is no image.")

    def describe(self) -> dict[str, Any]:
        """Describe the data for a run's manifest."""
        return {"source": "images", "words": self.words, "counts": {"predict": len(self.paths)}}

    def predict_dataloader(self) -> _Batches:
        """Return the batches of this process, in the order of the images."""
        trainer = self.trainer
        return _Batches(
            self, *((0, 1) if trainer is None else (trainer.global_rank, trainer.world_size))
        )


class _Batches:
    """One process's batches. No `DataLoader`: Lightning would give it another sampler."""

    def __init__(self, images: ListedImages, rank: int, num_ranks: int) -> None:
        self._images = images
        self._rank = rank
        self._num_ranks = num_ranks
        self.batch_size = images.batch_size

    def __len__(self) -> int:
        return math.ceil(len(self._images.paths) / self._num_ranks / self.batch_size)

    def __iter__(self) -> Iterator[Tensor]:
        images = self._images
        own = range(self._rank, len(self._images.paths), self._num_ranks)
        paths = map(images.paths.__getitem__, own)
        read = prepare_images(
            paths,
            self._prepare,
            ahead=2 * self.batch_size,
            threads=images.num_threads,
            find_ready=self._find_ready,
        )
        items = zip(own, read, strict=True)
        for _ in range(len(self)):
            yield self._batch(list(islice(items, self.batch_size)))

    def _find_ready(self, path: str) -> Tensor | None:
        early = self._images.early
        crop = None if early is None else early.take(path)
        return (
            None
            if early is None or crop is None
            else torch.as_tensor(early.preprocessing.normalised(crop))
        )

    def _prepare(self, image: Image.Image) -> Tensor:
        return torch.as_tensor(np.asarray(self._images.preprocessing(image)))

    def _batch(self, items: Sequence[tuple[int, PreparedImage[Tensor]]]) -> Tensor:
        self._images.entries.append(
            [Prediction(index, item.path, None, item.defect) for index, item in items]
        )
        tensors = [item.image for _, item in items if item.image is not None]
        tensors = tensors or [self._prepare(Image.new("RGB", (64, 64)))]
        shapes = list(dict.fromkeys(tuple(tensor.shape) for tensor in tensors))
        if len(shapes) > 1:
            raise ConfigError(
                f"data: its `preprocessing` gives arrays of different shapes ({shapes[0]} and"
                f" {shapes[1]}); expected the same for each image."
            )
        return torch.stack(tensors)

"""Images that somebody names, for predictions: files, folders or tables in place of the data that a config names."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pytorch_lightning import LightningDataModule
from torch import Tensor

from lightkit.data.loader import make_on_rank_zero
from lightkit.errors import ConfigError, DataError
from lightkit.images.image_file import PreparedImage, prepare_images
from lightkit.images.inputs import find_images
from lightkit.prediction.table import Prediction

Prepare = Callable[[Image.Image], Any]
_PREFIX, _LIST = ".predictions-", "images.jsonl"
_OLD_S = 86_400.0  # what a predict that was killed has left; one that still runs writes more often


class ListedImages(LightningDataModule):
    """Give batches of images for `predict_step`, and tell which image is which.

    Each image is read once, by one process. One that cannot be read is told among the entries of its batch, and is
    not in the batch. All processes have equally many batches, so that a model's collectives in a step find all of them;
    where one has no image for a batch, it gets a blank one that counts for nothing.

    Args:
        words: What was said: files, folders, patterns, tables.
        preprocessing: From a PIL image in RGB to an array ``(channels, height, width)``, as `Preprocessing` does it.
        folder: Where the list of images and the processes' shares are kept meanwhile; all processes must see it.
        batch_size: Images of one batch on one process.
        num_threads: Images that are read at a time; as many as is usual if None.
        class_names: In the order of the labels, where a model must learn them from the data before it is built.
        names_of_data: Gives the names of the classes, where a model that is built has none; None where there are none.
        image_size: Height and width of the images that the model gets.

    Attributes:
        scratch: Folder for the processes' shares; known after `setup`.
        num: Number of images; known after `setup`.
    """

    def __init__(
        self,
        words: Sequence[str],
        preprocessing: Prepare,
        *,
        folder: Path,
        batch_size: int = 32,
        num_threads: int | None = None,
        class_names: Sequence[str] | None = None,
        names_of_data: Callable[[], Sequence[str] | None] = lambda: None,
        image_size: tuple[int, int] | int | None = None,
    ) -> None:
        super().__init__()
        self.words = list(words)
        self.preprocessing = preprocessing
        self.folder = folder
        self.batch_size = batch_size
        self.num_threads = num_threads
        self.class_names = class_names
        self.names_of_data = names_of_data
        self.image_size = image_size
        self.scratch: Path | None = None
        self.num = 0
        self._taken: deque[list[Prediction]] = deque()

    def setup(self, stage: str | None = None) -> None:
        """List the images, once for all processes, so that they mean the same even if some come or go meanwhile.

        Raises:
            DataError: If what was said is not there, or has no image.
        """
        if self.scratch is not None:
            return
        scratch, self.num = make_on_rank_zero(self._list, self.trainer)
        self.scratch = Path(scratch)

    def _list(self) -> tuple[str, int]:
        """Write the list of images; give its folder and their number."""
        try:
            for left in self.folder.glob(f"{_PREFIX}*"):
                with suppress(OSError):  # gone meanwhile
                    if time.time() - max(path.stat().st_mtime for path in (left, *left.iterdir())) > _OLD_S:
                        shutil.rmtree(left)
            scratch, num = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self.folder)).absolute(), 0
            try:
                with (scratch / _LIST).open("w", encoding="ascii") as stream:
                    for path in find_images(self.words):
                        num += 1
                        stream.write(f"{json.dumps(str(path))}\n")  # as ASCII, which keeps names that are no text
                if not num:
                    raise DataError(f"{' '.join(self.words)}: there is no image.")  # noqa: TRY301
            except BaseException:
                shutil.rmtree(scratch, ignore_errors=True)
                raise
        except OSError as error:
            raise ConfigError(f"run.root: cannot write {self.folder}: {error.strerror or error}") from error
        return str(scratch), num

    def describe(self) -> dict[str, Any]:
        """What a run's manifest says of the data."""
        return {"source": "images", "words": self.words, "counts": {"predict": self.num}}

    def predict_dataloader(self) -> _Batches:
        """Batches in the order of the images."""
        assert self.scratch is not None
        ranks = 1 if self.trainer is None else self.trainer.world_size
        return _Batches(self, self.scratch / _LIST, rank=self._rank, num_ranks=ranks)

    def take_entries(self) -> list[Prediction]:
        """Give the images of the next batch, without values, in the order in which batches were given.

        Those without a defect are the batch's rows, in their order; the batch has a row that counts for nothing where
        there is none.
        """
        return self._taken.popleft()

    def note(self, entries: list[Prediction]) -> None:
        """Keep the images of a batch for `take_entries`."""
        self._taken.append(entries)

    def remove_scratch(self) -> None:
        """Remove the list and the shares."""
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)

    @property
    def _rank(self) -> int:
        return 0 if self.trainer is None else self.trainer.global_rank


class _Batches:
    """One process's batches. No `DataLoader`: Lightning would give it another sampler.

    Args:
        images: Takes what each batch holds.
        file: The list of all images.
        rank: Number of this process.
        num_ranks: Number of processes.
    """

    def __init__(self, images: ListedImages, file: Path, *, rank: int, num_ranks: int) -> None:
        self._images = images
        self._file = file
        self._rank, self._num_ranks = rank, num_ranks
        self.batch_size = images.batch_size

    def __len__(self) -> int:
        return math.ceil(math.ceil(self._images.num / self._num_ranks) / self.batch_size)

    def __iter__(self) -> Iterator[Tensor]:
        own = range(self._rank, self._images.num, self._num_ranks)
        with self._file.open(encoding="ascii") as stream:
            paths = map(json.loads, islice(stream, self._rank, None, self._num_ranks))
            read = prepare_images(paths, self._prepare, ahead=2 * self.batch_size, threads=self._images.num_threads)
            items = zip(own, read, strict=True)
            for _ in range(len(self)):
                yield self._batch(list(islice(items, self.batch_size)))

    def _prepare(self, image: Image.Image) -> Tensor:
        return torch.as_tensor(np.asarray(self._images.preprocessing(image)))

    def _batch(self, items: Sequence[tuple[int, PreparedImage[Tensor]]]) -> Tensor:
        self._images.note([Prediction(index, item.path, None, item.defect) for index, item in items])
        tensors = [item.image for _, item in items if item.image is not None]
        tensors = tensors or [self._prepare(Image.new("RGB", (64, 64)))]
        shapes = list(dict.fromkeys(tuple(tensor.shape) for tensor in tensors))
        if len(shapes) > 1:
            raise ConfigError(
                f"data: its `preprocessing` gives arrays of different shapes ({shapes[0]} and {shapes[1]}); expected "
                "the same for each image."
            )
        return torch.stack(tensors)

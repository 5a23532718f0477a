"""Predictions as a table in the run folder."""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from lightning_fabric.utilities import move_data_to_device
from numpy.typing import NDArray
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import BasePredictionWriter
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor

from lightkit.callbacks.resume import gather
from lightkit.errors import ConfigError, DataError
from lightkit.images.progress import ProgressLines
from lightkit.prediction.inference import select_class_names
from lightkit.prediction.table import Prediction
from lightkit.prediction.writer import PredictionWriter, write_predictions
from lightkit.runs.files import atomic_write


class PredictionTable(BasePredictionWriter):
    """Write what `predict_step` returns, one row a sample.

    A classifier's row has `path` where the data knows it, `label` and `probability`; any other tensor's row has its
    elements. If a batch has no tensor with a row for each sample, all go to `predictions.pt`, a list with one item a
    batch, for `torch.load`. Several processes make one table together, in the order of the data, each sample once;
    where a loader does not give its samples' indices, their shares come one batch after another. The table is written
    when it is complete: until then the one before it stays, and memory holds about 50 bytes a row, and 4 for
    each number of a row that is no classifier's.

    Args:
        folder: Where `predictions.csv` is written.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(write_interval="batch")
        self.folder = folder
        self.path = folder / "predictions.csv"
        # of each batch: loader, least index (-1 if unknown), number and rank, by which they are sorted; indices; rows
        self._batches: list[tuple[int, int, int, int, NDArray[np.int64], Any]] = []
        self._names: Sequence[str] | None = None
        self._is_table = self._has_classes = True

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin with an empty table."""
        self._batches, self._is_table, self._has_classes = [], True, True
        self._names = getattr(trainer.datamodule, "class_names", None)  # type: ignore[attr-defined]

    def write_on_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Keep the predictions of a batch."""
        indices = np.array(batch_indices or (), np.int64)
        if isinstance(prediction, Tensor) and prediction.ndim and len(indices) in (0, len(prediction)):
            values = prediction.detach().float().cpu().reshape(len(prediction), -1)
            self._has_classes = self._names is not None and values.shape[1] == len(self._names)
            # copies: a view would keep all of what it is a part of
            rows = torch.stack([values.argmax(1), values.amax(1)], dim=1) if self._has_classes else values.clone()
        else:
            self._is_table, rows = False, move_data_to_device(prediction, "cpu")
        first = int(indices.min()) if len(indices) else -1
        self._batches.append((dataloader_idx, first, batch_idx, trainer.global_rank, indices, rows))

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the table of all ranks on rank 0, or what fits into none."""
        shares, self._batches = gather(trainer, (self._is_table, self._batches)), []
        if trainer.global_rank != 0:
            return
        is_table = all(is_table for is_table, _ in shares)
        batches = sorted((each for _, share in shares for each in share), key=lambda each: each[:4])
        self.path = self.folder / ("predictions.csv" if is_table else "predictions.pt")
        with atomic_write(self.path, durable=False) as aside:
            if is_table:
                with aside.open("w", newline="", encoding="utf-8") as file:
                    csv.writer(file).writerows(self._format_rows(batches, trainer) if batches else ())
            else:
                torch.save([each[-1] for each in batches], aside)
                (self.folder / "predictions.csv").unlink(missing_ok=True)  # it is not of these predictions

    def _format_rows(self, batches: Sequence[tuple[Any, ...]], trainer: Trainer) -> Iterator[list[Any]]:
        """Yield the header and the row of each sample, in the order of the data."""
        values = torch.cat([each[-1] for each in batches]).numpy()
        indices = np.concatenate([each[4] if len(each[4]) else np.full(len(each[-1]), -1) for each in batches])
        if trainer.world_size == 1:
            indices = np.where(indices < 0, np.arange(len(indices)), indices)
        order: Iterable[int] = range(len(indices))
        if (indices >= 0).all():  # each once: a share may have been filled up
            loaders = np.repeat([each[0] for each in batches], [len(each[-1]) for each in batches])
            order = np.unique(np.stack([loaders, indices]), axis=1, return_index=True)[1]
        paths = getattr(trainer.datamodule, "predict_paths", None)  # type: ignore[attr-defined]
        columns = [f"prediction_{number}" for number in range(values.shape[1])]
        yield [*(["path"] if paths else []), *(["label", "probability"] if self._has_classes else columns)]
        for at in order:
            row = values[at].tolist()
            if self._has_classes and self._names is not None:
                row = [self._names[int(row[0])], f"{row[1]:.6f}"]
            yield [*([paths[indices[at]] if indices[at] >= 0 else ""] if paths else []), *row]


_log = logging.getLogger("lightkit")
_ROUNDING = 0.01  # of half precision


class ListedPredictions(Callback):
    """Write what `predict_step` returns for each image of a `ListedImages`, in their order.

    Of several processes, rank 0 writes; all have equally many batches. The files appear once they are complete.

    Args:
        output: The table, in the format that its name ends in.
        top_k: Number of classes of each image; None for the default.
        contact_sheet: An HTML page to write as well.
        on_written: Called by rank 0 once the files are there.
        progress_stream: Rank 0 prints the number of images there now and then; None for no output.
    """

    def __init__(
        self,
        output: Path,
        *,
        top_k: int | None = None,
        contact_sheet: Path | None = None,
        on_written: Callable[[PredictionWriter], None] = lambda _: None,
        progress_stream: TextIO | None = None,
    ) -> None:
        self._new_writer = partial(write_predictions, output, top_k=top_k, contact_sheet=contact_sheet)
        self._on_written = on_written
        self._progress_stream = progress_stream
        self._lines: ProgressLines | None = None
        self._writer: PredictionWriter | None = None
        self._writer_open = ExitStack()

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the clock."""
        if self._progress_stream is not None and trainer.is_global_zero:
            print_line = partial(print, "predict ", file=self._progress_stream, flush=True)
            self._lines = ProgressLines("images", len(_images(trainer).paths), print_line)

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Append a row for each image of the batches of all processes.

        Raises:
            ConfigError: If what `predict_step` gives is not one row of numbers for each image.
            DataError: If the model gives more or fewer numbers than it names classes.
        """
        values = _values(outputs, pl_module, num_images=len(batch))
        rows = iter(values.numpy())
        entries: list[Prediction] = _images(trainer).entries.popleft()
        own = [each if each.defect is not None else replace(each, values=next(rows)) for each in entries]
        shares = gather(trainer, own)
        if not trainer.is_global_zero:
            return
        if self._writer is None:
            self._begin(trainer, pl_module, values)
        assert self._writer is not None
        for prediction in sorted(chain.from_iterable(shares), key=attrgetter("index")):
            self._writer.add(prediction)
        if self._lines is not None:
            self._lines.add(sum(map(len, shares)))

    def _begin(self, trainer: Trainer, module: LightningModule, values: Tensor) -> None:
        """Begin the files once the number of classes is known: if they cannot be written, little was done in vain."""
        width, kind = values.shape[1], getattr(module, "output_kind", None)
        names = select_class_names(kind, getattr(module, "class_names", None))
        if names is None:  # those of the data mean nothing where the model's output is something else
            names = select_class_names(kind, _images(trainer).names_of_data()) if kind is not None else None
            names = names if names is not None and len(names) == width else None
        elif len(names) != width:
            raise DataError(
                f"model: {type(module).__name__} gives {width} values an image, and its class_names are {len(names)}; "
                "expected one for each value."
            )
        if names is not None and not _are_probabilities(values):
            _log.warning(
                "%s.predict_step gives numbers that are no probabilities; they are written without classes",
                type(module).__name__,
            )
            names = None
        self._writer = self._writer_open.enter_context(self._new_writer(class_names=names, num_values=width))

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Complete the files."""
        if self._writer is not None:
            self._writer_open.close()
            self._on_written(self._writer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remove what was written so far: half a table looks like a whole one."""
        self._writer_open.__exit__(type(exception), exception, exception.__traceback__)


def _images(trainer: Trainer) -> Any:
    """Return the `ListedImages`, which callbacks do not import."""
    return trainer.datamodule  # type: ignore[attr-defined]


def _are_probabilities(values: Tensor) -> bool:
    """Check whether numbers can be; those that are not finite are an error of their image."""
    finite = values[values.isfinite()]
    return bool(((finite >= -_ROUNDING) & (finite <= 1 + _ROUNDING)).all())


def _values(outputs: Any, module: LightningModule, *, num_images: int) -> Tensor:
    """Give float32 ``(num_images, num_values)``: probabilities, where the module declares its output.

    Raises:
        ConfigError: If the module gives something else.
    """
    if not isinstance(outputs, Tensor) or outputs.ndim == 0 or len(outputs) != num_images:
        shape = f" of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else ""
        raise ConfigError(
            f"model: {type(module).__name__}.predict_step gives a {type(outputs).__name__}{shape} for a batch of "
            f"{num_images} images; expected a tensor ({num_images}, classes). It is given the images alone, "
            "(batch, channels, height, width)."
        )
    values = outputs.detach().float().cpu().reshape(num_images, -1)
    is_forward = not is_overridden("predict_step", module, LightningModule)  # then Lightning's gives what forward does
    return values.softmax(dim=1) if is_forward and getattr(module, "output_kind", None) == "logits" else values

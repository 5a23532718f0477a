"""Predictions as a table: those of the data's prediction split in the run folder, or those of images that are named."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from lightning_fabric.utilities import move_data_to_device
from numpy.typing import NDArray
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import BasePredictionWriter
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor

from lightkit.callbacks.class_names import names_of_outputs
from lightkit.callbacks.resume import gather
from lightkit.errors import ConfigError
from lightkit.images.progress import ProgressLines
from lightkit.prediction.table import TABLES, Prediction, PredictionWriter, select_class_names
from lightkit.runs.files import atomic_write

_log = logging.getLogger("lightkit")
_ROUNDING = 0.01  # of half precision


class _Batch(NamedTuple):
    """Predictions of a batch; batches are sorted by the first three fields."""

    loader: int
    number: int
    rank: int
    indices: NDArray[np.int64]
    kind: Literal["classes", "numbers", "other"]
    rows: Any


class PredictionTable(BasePredictionWriter):
    """Write what `predict_step` returns, one row a sample.

    A classifier's row has `path` where the data knows it and has one loader, `label` and `probability`; any other
    tensor's row has its elements; where loaders give unlike rows, the columns of the others are empty. If a batch has
    no tensor with a row for each sample, all go to `predictions.pt`, a list with one item a batch, for `torch.load`.
    Several processes make one table together, in the order of the data, each sample once; where a loader does not give
    its samples' indices, their shares come one batch after another. The table is written when it is complete: until
    then the one before it stays, and memory holds about 50 bytes a row, and 4 for each number of a row that is no
    classifier's.

    Args:
        folder: Where `predictions.csv` is written.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(write_interval="batch")
        self.folder = folder
        self.path = folder / "predictions.csv"
        self._batches: list[_Batch] = []
        self._names: Sequence[str] = ()

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin with an empty table."""
        self._batches = []
        self._names = names_of_outputs(trainer) or ()

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
        kind: Literal["classes", "numbers", "other"] = "other"
        if isinstance(prediction, Tensor) and prediction.ndim and len(indices) in (0, len(prediction)):
            values = prediction.detach().float().cpu().reshape(len(prediction), -1)
            kind = "classes" if values.shape[1] == len(self._names) > 0 else "numbers"
            # copies: a view would keep all of what it is a part of
            rows = values.clone() if kind == "numbers" else torch.stack([values.argmax(1), values.amax(1)], dim=1)
        else:
            rows = move_data_to_device(prediction, "cpu")
        self._batches.append(_Batch(dataloader_idx, batch_idx, trainer.global_rank, indices, kind, rows))

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the table of all ranks on rank 0, or what fits into none."""
        shares, self._batches = gather(trainer, self._batches), []
        if trainer.global_rank != 0:
            return
        batches = sorted(chain.from_iterable(shares), key=lambda batch: batch[:3])
        is_table = all(batch.kind != "other" for batch in batches)
        self.path = self.folder / ("predictions.csv" if is_table else "predictions.pt")
        with atomic_write(self.path, durable=False) as aside:
            if is_table:
                self._write_table(aside, batches, trainer)
            else:
                torch.save([batch.rows for batch in batches], aside)
                (self.folder / "predictions.csv").unlink(missing_ok=True)  # it is not of these predictions

    def _write_table(self, path: Path, batches: Sequence[_Batch], trainer: Trainer) -> None:
        """Write the row of each sample, in the order of the data; of batches of several kinds, with all columns."""
        num_numbers = max((batch.rows.shape[1] for batch in batches if batch.kind == "numbers"), default=0)
        columns = {"classes": ["label", "probability"], "numbers": [f"prediction_{at}" for at in range(num_numbers)]}
        paths = getattr(trainer.datamodule, "predict_paths", None)  # type: ignore[attr-defined]
        if any(batch.loader for batch in batches):  # it is not known which loader's they are
            paths = None
        names = ["path"] if paths else []
        for kind, own in columns.items():
            names += own if any(batch.kind == kind for batch in batches) else []
        table = TABLES[".csv"](path, names)
        rows = [batch.rows.numpy() for batch in batches]
        lengths = [len(each) for each in rows]
        # of each sample its batch, its place in the batch, and its index
        owners = np.repeat(np.arange(len(batches)), lengths)
        places = np.concatenate([np.arange(length) for length in lengths] or [owners])
        indices = np.concatenate(
            [batch.indices if len(batch.indices) else np.full(len(batch.rows), -1) for batch in batches] or [owners]
        )
        if trainer.world_size == 1:
            indices = np.where(indices < 0, np.arange(len(indices)), indices)
        order: Iterable[int] = range(len(indices))
        if (indices >= 0).all():  # each once: a share may have been filled up
            loaders = np.array([batch.loader for batch in batches], np.int64)[owners]
            order = np.unique(np.stack([loaders, indices]), axis=1, return_index=True)[1]
        for at in order:
            kind, row = batches[owners[at]].kind, list(rows[owners[at]][places[at]])
            if kind == "classes":
                row[0] = self._names[int(row[0])]
            cells = dict(zip(columns[kind], row, strict=False))  # fewer numbers than other batches have
            if paths and indices[at] >= 0:
                cells["path"] = str(paths[indices[at]])
            table.add([cells.get(name) for name in names])
        table.close()


class ListedPredictions(Callback):
    """Write what `predict_step` returns for each image of a `ListedImages`, in their order.

    Of several processes, rank 0 writes; all have equally many batches. The files appear once they are complete.

    Args:
        open_writer: `write_predictions`, to which `class_names` and `num_values` are still to be given.
        on_written: Called by rank 0 once the files are there.
        print_progress: Called by rank 0 with the number of images now and then, if given.
    """

    def __init__(
        self,
        open_writer: Callable[..., AbstractContextManager[PredictionWriter]],
        on_written: Callable[[PredictionWriter], None],
        print_progress: Callable[[str], object] | None = None,
    ) -> None:
        self._open_writer, self._on_written, self._print_progress = open_writer, on_written, print_progress
        self._progress: ProgressLines | None = None
        self._writer: PredictionWriter | None = None
        self._files = ExitStack()

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
        """
        values = _values(outputs, pl_module, num_images=len(batch))
        rows = iter(values.numpy())
        images: Any = trainer.datamodule  # type: ignore[attr-defined]  # a `ListedImages`, which callbacks do not import
        entries: list[Prediction] = images.entries.popleft()
        own = [each if each.defect is not None else replace(each, values=next(rows)) for each in entries]
        shares = gather(trainer, own)
        if not trainer.is_global_zero:
            return
        if self._writer is None:  # now the classes are known; if the files cannot be written, little was done in vain
            names = _choose_class_names(pl_module, images, values)
            self._writer = self._files.enter_context(self._open_writer(class_names=names, num_values=values.shape[1]))
            if self._print_progress is not None:
                self._progress = ProgressLines("images", len(images.paths), self._print_progress)
        for prediction in sorted(chain.from_iterable(shares), key=attrgetter("index")):
            self._writer.add(prediction)
        if self._progress is not None:
            self._progress.add(sum(map(len, shares)))

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Complete the files."""
        if self._writer is not None:
            self._files.close()
            self._on_written(self._writer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remove what was written so far: half a table looks like a whole one."""
        self._files.__exit__(type(exception), exception, exception.__traceback__)


def _choose_class_names(module: LightningModule, images: Any, values: Tensor) -> tuple[str, ...] | None:
    """Return the class names of the weights, else the module's or the data's, if the values can be probabilities.

    Args:
        module: The model.
        images: A `ListedImages`, which knows the names of weights and data.
        values: ``(images, classes)``.
    """
    kind = getattr(module, "output_kind", None)
    names = getattr(module, "class_names", None)
    if names is not None or kind is not None:  # others mean nothing where the model's output is something else
        names = images.trained_names or names
    if names is None and kind is not None:
        names = images.names_of_data()
    if (chosen := select_class_names(kind, names)) is None:
        return None
    finite = values[values.isfinite()]  # any other is an error of its image
    if len(chosen) == values.shape[1] and bool(((finite >= -_ROUNDING) & (finite <= 1 + _ROUNDING)).all()):
        return chosen
    _log.warning(
        "%s.predict_step gives %d numbers an image that are no probabilities of %d classes; they are written without "
        "classes",
        type(module).__name__,
        values.shape[1],
        len(chosen),
    )
    return None


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

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
from lightkit.errors import ConfigError, DataError
from lightkit.images.progress import ProgressLines
from lightkit.prediction.table import TABLES, Prediction, PredictionWriter
from lightkit.runs.files import atomic_write
from lightkit.task import TOLERANCE, UNDECLARED, Task, as_floats, find_improbable, task_of

_log = logging.getLogger("lightkit")
_DEFECT = "the model's output has values that are not finite"


class _Batch(NamedTuple):
    """Predictions of a batch; batches are sorted by the first three fields."""

    loader: int
    number: int
    rank: int
    indices: NDArray[np.int64]
    kind: Literal["classes", "labels", "numbers", "other"]
    rows: Any


class PredictionTable(BasePredictionWriter):
    """Write what `predict_step` returns, one row a sample.

    A row has `path` where the data knows it and has one loader. That of a model that declares logits or probabilities
    of classes has `label` and `probability`, of labels `probability_NAME` of each, see `lightkit.task`; any other
    tensor's row has its elements. A row of probabilities that are no finite numbers has the reason in `error` alone.
    Where batches are unlike, the columns of the others are empty. If a batch has no tensor with a row for each sample,
    all go to `predictions.pt`, a list with one item a batch, for `torch.load`.
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
        self._names: tuple[str, ...] = ()
        self._task: Task = UNDECLARED

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin with an empty table."""
        self._batches = []
        self._task = task_of(pl_module)
        self._names = _find_names(pl_module, names_of_outputs(trainer))

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
        kind: Literal["classes", "labels", "numbers", "other"] = "other"
        rows: Any
        if isinstance(prediction, Tensor) and prediction.ndim and len(indices) in (0, len(prediction)):
            read = _read_rows(prediction, pl_module, self._names or None)
            if read.names is None:
                kind, rows = "numbers", read.values.copy()  # a view would keep all of what it is a part of
            elif read.task.has_labels:
                kind, rows = "labels", read.values.copy()
            else:
                is_finite = np.isfinite(read.values).all(axis=1)
                best = np.where(is_finite, read.values.max(axis=1), np.nan)
                kind, rows = "classes", np.stack([read.values.argmax(axis=1), best], axis=1)
        else:
            rows = move_data_to_device(prediction, "cpu")
        self._batches.append(_Batch(dataloader_idx, batch_idx, trainer.global_rank, indices, kind, rows))

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the table of all ranks on rank 0, or what fits into none.

        Raises:
            DataError: If the table has rows, and none of them a prediction.
        """
        shares, self._batches = gather(trainer, self._batches), []
        if trainer.global_rank != 0:
            return
        batches = sorted(chain.from_iterable(shares), key=lambda batch: batch[:3])
        is_table = all(batch.kind != "other" for batch in batches)
        self.path = self.folder / ("predictions.csv" if is_table else "predictions.pt")
        are_all_bad = False
        with atomic_write(self.path, durable=False) as aside:
            if is_table:
                are_all_bad = self._write_table(aside, batches, trainer)
            else:
                torch.save([batch.rows for batch in batches], aside)
                (self.folder / "predictions.csv").unlink(missing_ok=True)  # it is not of these predictions
        if are_all_bad:
            raise DataError(f"no row has a prediction: {_DEFECT}; {self.path} has the rows.")

    def _write_table(self, path: Path, batches: Sequence[_Batch], trainer: Trainer) -> bool:
        """Write the row of each sample, in the order of the data; of batches of several kinds, with all columns.

        Returns:
            Whether there are rows, and none of them has a prediction.
        """
        num_numbers = max((batch.rows.shape[1] for batch in batches if batch.kind == "numbers"), default=0)
        columns = {
            "classes": ["label", "probability"],
            "labels": self._task.name_columns(self._names, num_values=len(self._names), top_k=1),
            "numbers": [f"prediction_{at}" for at in range(num_numbers)],
        }
        paths = getattr(trainer.datamodule, "predict_paths", None)  # type: ignore[attr-defined]
        if any(batch.loader for batch in batches):  # it is not known which loader's they are
            paths = None
        kinds = {batch.kind for batch in batches}
        names = ["path"] if paths else []
        names += [name for kind, own in columns.items() if kind in kinds for name in own]
        rows = [batch.rows for batch in batches]
        is_bad = [
            ~np.isfinite(each).all(axis=1) if batch.kind != "numbers" else np.zeros(len(each), np.bool_)
            for batch, each in zip(batches, rows, strict=True)
        ]
        num_bad = sum(int(np.count_nonzero(each)) for each in is_bad)
        if num_bad:
            names.append("error")
            _log.warning("%d rows have no prediction: %s", num_bad, _DEFECT)
        table = TABLES[".csv"](path, names)
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
            if kind in ("classes", "labels"):
                row = [np.float32(min(max(value, 0), 1)) for value in row[-len(columns[kind]) :]]
            if kind == "classes":
                row = [self._names[int(rows[owners[at]][places[at]][0])], row[-1]]
            cells = dict(zip(columns[kind], row, strict=False))  # fewer numbers than other batches have
            if is_bad[owners[at]][places[at]]:
                cells = {"error": _DEFECT}
            if paths and indices[at] >= 0:
                cells["path"] = str(paths[indices[at]])
            table.add([cells.get(name) for name in names])
        table.close()
        return 0 < num_bad == sum(lengths)


class ListedPredictions(Callback):
    """Write what `predict_step` returns for each image of a `ListedImages`, in their order.

    Of several processes, rank 0 writes; all have equally many batches. The files appear once they are complete.

    Args:
        open_writer: `write_predictions`, to which `class_names`, `num_values` and `task` are still to be given.
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
        self._decided: _Rows | None = None
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
        images: Any = trainer.datamodule  # type: ignore[attr-defined]  # a `ListedImages`, which callbacks do not import
        tensor = _check_rows(outputs, pl_module, num_images=len(batch))
        if self._decided is None:
            trained = images.trained_names or getattr(pl_module, "class_names", None)
            names = _find_names(pl_module, trained or images.names_of_data())
            read = self._decided = _read_rows(tensor, pl_module, names or None)
        else:  # the columns are those of the first batch
            read = _read_rows(tensor, pl_module, self._decided.names, is_checked=True)
        rows = iter(read.values)
        entries: list[Prediction] = images.entries.popleft()
        own = [each if each.defect is not None else replace(each, values=next(rows)) for each in entries]
        shares = gather(trainer, own)
        if not trainer.is_global_zero:
            return
        if self._writer is None:  # now the classes are known; if the files cannot be written, little was done in vain
            num_values = read.values.shape[1]
            self._writer = self._files.enter_context(
                self._open_writer(class_names=read.names, num_values=num_values, task=read.task)
            )
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


def _find_names(module: LightningModule, names: Sequence[str] | None) -> tuple[str, ...]:
    """Return names of classes, which mean nothing where the outputs of the model are undeclared."""
    return tuple(map(str, names or ())) if task_of(module).has_probabilities else ()


class _Rows(NamedTuple):
    """Predictions of a batch.

    Args:
        task: Of the model; that of undeclared outputs where its numbers are no probabilities.
        names: Of the classes or labels; None where a row is numbers.
        values: ``(batch, values)``, float32 or float64: probabilities, where the model declares its outputs.
    """

    task: Task
    names: tuple[str, ...] | None
    values: NDArray[Any]


def _read_rows(
    outputs: Tensor, module: LightningModule, names: Sequence[str] | None, *, is_checked: bool = False
) -> _Rows:
    """Read what `predict_step` gives; a warning says why it is no probability although the model declares so.

    Args:
        outputs: ``(batch, ...)``.
        module: The model. Lightning's own `predict_step` gives what ``forward`` does; another one gives probabilities,
            where the model declares that ``forward`` gives logits.
        names: Of the classes or labels.
        is_checked: An earlier batch was what the model declares; a row of this one that is not is its own error.
    """
    # numpy has no bfloat16
    own = outputs.detach()
    is_half = own.is_floating_point() and own.dtype not in (torch.float32, torch.float64)
    array = as_floats((own.float() if is_half else own).cpu().numpy())

    # probabilities, where these are outputs of ``forward`` that become some
    task = task_of(module)
    num_classes = len(names or ())
    is_forward = not is_overridden("predict_step", module, LightningModule)
    found = task.choose_names(array.shape, names)
    if is_forward:
        values = task.probabilities(array, num_classes=num_classes)
    else:
        values = task.expand(array, num_classes=num_classes)
    rows = values.reshape(len(values), -1)

    # their names, where they are what is declared
    if names is None or not task.has_probabilities:
        return _Rows(UNDECLARED, None, rows)
    sum_to_one = not is_forward and task.output_kind == "logits"
    if found is not None and (is_checked or _are_probabilities(rows, sum_to_one=sum_to_one)):
        return _Rows(task, found, rows)
    if not is_forward:
        rows = array.reshape(len(array), -1)
    text = (
        f"{type(module).__name__}.predict_step gives {rows.shape[1]} numbers a sample that are not probabilities of "
        f"{num_classes} classes; they are written without classes"
    )
    if text not in _has_warned:
        _has_warned.add(text)
        _log.warning("%s", text)
    return _Rows(UNDECLARED, None, rows)


def _are_probabilities(values: NDArray[Any], *, sum_to_one: bool) -> bool:
    """Check all rows but those that are not finite, which are an error of their own."""
    finite = values[np.isfinite(values).all(axis=1)]
    is_wrong = find_improbable(finite)
    if sum_to_one:
        is_wrong = is_wrong | (np.abs(finite.sum(axis=1) - 1) > TOLERANCE)
    return not bool(is_wrong.any())


_has_warned: set[str] = set()


def _check_rows(outputs: Any, module: LightningModule, *, num_images: int) -> Tensor:
    """Return what `predict_step` gives, if that has a row for each image.

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
    return outputs

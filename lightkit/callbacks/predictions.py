"""Predictions as a table.

Those of the data's prediction split in the run folder, or those of images that are named.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
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
from lightkit.callbacks.prediction_lines import (
    name_parts,
    split_samples,
    to_numpy,
    to_plain,
    write_lines,
)
from lightkit.callbacks.resume import gather
from lightkit.errors import ConfigError, DataError
from lightkit.images.progress import ProgressLines
from lightkit.prediction.masks import FOLDER_ENDING, MaskFiles
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
    kind: Literal["named", "numbers", "samples", "whole"]
    rows: Any

    def find_bad(self) -> NDArray[np.bool_]:
        """Return which rows have no prediction; numbers without names may be anything."""
        if self.kind == "numbers":
            return np.zeros(len(self.rows), np.bool_)
        finite: NDArray[np.bool_] = np.isfinite(self.rows).all(axis=1)
        return ~finite


_ROW_KINDS = ("named", "numbers")
"""Kinds of batches that are rows of a table."""


class PredictionTable(BasePredictionWriter):
    """Write what `predict_step` returns, one row or one line a sample.

    A row has `path` where the data knows it and has one loader. That of a model that declares
    logits or probabilities of classes has `label` and `probability`, of labels `probability_NAME`
    of each, see `lightkit.task`; any other tensor's row has its elements. A row of probabilities
    that are no finite numbers has the reason in `error` alone. Where batches are unlike, the
    columns of the others are empty. If a batch has no tensor with a row for each sample, all go to
    `predictions.jsonl`, one line a sample: tensors as lists, the keys of a mapping kept, anything
    else under `prediction`; see `split_samples`. A batch that cannot be divided into samples has
    one line, with its number as `batch`. What JSON has no form for goes to `predictions.pt`, a list
    with one item a batch, which is a list of samples where it could be divided, for `torch.load`.
    Several processes make one table together, in the order of the data, each sample once; where a
    loader does not give its samples' indices, their shares come one batch after another. The table
    is written when it is complete: until then the one before it stays, and memory holds about 50
    bytes a row, and 4 for each number of a row that is no classifier's.

    Args:
        folder: Where `predictions.csv`, or `predictions.jsonl`, is written.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(write_interval="batch")
        self.folder = folder
        self.path = folder / "predictions.csv"
        self._batches: list[_Batch] = []
        self._names: tuple[str, ...] = ()
        self._task: Task = UNDECLARED
        self._num_masks = 0
        self._paths: Sequence[Any] = ()

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin with an empty table."""
        self._batches = []
        self._num_masks = 0
        self._task = task_of(pl_module)
        if self._task.form.has_masks:
            self._paths = getattr(trainer.datamodule, "predict_paths", None) or ()  # type: ignore[attr-defined]
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
        kind: Literal["named", "numbers", "samples", "whole"]
        rows: Any
        if (
            isinstance(prediction, Tensor)
            and prediction.ndim
            and len(indices) in (0, len(prediction))
        ):
            read = _read_rows(prediction, pl_module, self._names or None)
            if read.task.form.has_masks:
                kind = "named"
                rows = self._write_masks(trainer, read, indices)
            elif read.names is None:
                # a view would keep all of what it is a part of
                kind = "numbers"
                rows = read.values.copy()
            else:
                kind = "named"
                rows = read.task.form.condense(read.values)
        else:
            moved = move_data_to_device(prediction, "cpu")
            samples = split_samples(moved, len(indices) or None)
            kind = "whole" if samples is None else "samples"
            rows = [moved] if samples is None else samples
        self._batches.append(
            _Batch(dataloader_idx, batch_idx, trainer.global_rank, indices, kind, rows)
        )

    def _write_masks(
        self, trainer: Trainer, read: _Rows, indices: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Write the masks of a batch; return for each its file's number and the classes' shares.

        Files are named after their numbers and the images.
        """
        files = MaskFiles(self.folder / f"predictions{FOLDER_ENDING}", len(self._names))
        rows = []
        for at, values in enumerate(read.values):
            number = self._num_masks * trainer.world_size + trainer.global_rank
            if len(indices):
                number = int(indices[at])
            self._num_masks += 1
            if not np.isfinite(values).all():
                rows.append(np.full(1 + len(self._names), np.nan))
                continue
            is_known = number < len(self._paths) and (len(indices) > 0 or trainer.world_size == 1)
            path = str(self._paths[number]) if is_known else None
            shares = files.write(_name_mask(self._paths, number), path, values)
            rows.append(np.array([number, *shares], np.float64))
        return np.stack(rows)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the table of all ranks on rank 0, or what fits into none.

        Raises:
            DataError: If the table has rows, and none of them a prediction.
        """
        shares = gather(trainer, self._batches)
        self._batches = []
        if trainer.global_rank != 0:
            return
        batches = sorted(chain.from_iterable(shares), key=lambda batch: batch[:3])
        are_all_bad = False
        if all(batch.kind in _ROW_KINDS for batch in batches):
            with self._replace_file("predictions.csv") as aside:
                are_all_bad = self._write_table(aside, batches, trainer)
        else:
            try:
                with self._replace_file("predictions.jsonl") as aside:
                    write_lines(aside, self._list_lines(batches, trainer))
            except TypeError as error:
                _log.warning(
                    "predict_step: %s; the predictions are written as predictions.pt", error
                )
                with self._replace_file("predictions.pt") as aside:
                    torch.save(
                        [
                            batch.rows[0] if batch.kind == "whole" else batch.rows
                            for batch in batches
                        ],
                        aside,
                    )
        if are_all_bad:
            raise DataError(f"no row has a prediction: {_DEFECT}; {self.path} has the rows.")

    @contextmanager
    def _replace_file(self, name: str) -> Iterator[Path]:
        """Open a path that gets a name in the run folder at the end of the block.

        Files of earlier predictions go.
        """
        path = self.folder / name
        with atomic_write(path, durable=False) as aside:
            yield aside
        self.path = path
        for other in {"predictions.csv", "predictions.jsonl", "predictions.pt"} - {name}:
            (self.folder / other).unlink(missing_ok=True)  # it is not of these predictions

    def _write_table(self, path: Path, batches: Sequence[_Batch], trainer: Trainer) -> bool:
        """Write the row of each sample, in the order of the data.

        Of batches of several kinds, with all columns.

        Returns:
            Whether there are rows, and none of them has a prediction.
        """
        columns = self._name_columns(batches)
        paths = _find_paths(batches, trainer)
        kinds = {batch.kind for batch in batches}
        names = ["path"] if paths else []
        names += [name for kind, own in columns.items() if kind in kinds for name in own]
        is_bad = [batch.find_bad() for batch in batches]
        num_bad = int(sum(map(np.count_nonzero, is_bad)))
        if num_bad:
            names.append("error")
            _log.warning("%d rows have no prediction: %s", num_bad, _DEFECT)
        table = TABLES[".csv"](path, names)
        for sample in _order_samples(batches, trainer):
            batch = batches[sample.batch]
            cells = self._describe_row(batch, sample.place, columns)
            if is_bad[sample.batch][sample.place]:
                cells = {"error": _DEFECT}
            if paths and sample.at >= 0:
                cells["path"] = str(paths[sample.at])
            table.add([cells.get(name) for name in names])
        table.close()
        return 0 < num_bad == sum(len(batch.rows) for batch in batches)

    def _name_columns(self, batches: Sequence[_Batch]) -> dict[str, list[str]]:
        """Return the names of the columns of each kind of batches that are rows."""
        num_numbers = max(
            (batch.rows.shape[1] for batch in batches if batch.kind == "numbers"), default=0
        )
        return {
            "named": self._task.name_columns(self._names, num_values=len(self._names), top_k=1),
            "numbers": [f"prediction_{at}" for at in range(num_numbers)],
        }

    def _describe_row(
        self, batch: _Batch, place: int, columns: Mapping[str, Sequence[str]]
    ) -> dict[str, Any]:
        """Return the cells of a row by column."""
        row = list(batch.rows[place])
        if self._task.form.has_masks and batch.kind == "named":
            if not np.isfinite(row[0]):
                return {}
            file = f"predictions{FOLDER_ENDING}/{_name_mask(self._paths, int(row[0]))}"
            row = [file, *map(np.float32, row[1:])]
        elif batch.kind == "named":
            cells = self._task.form.list_condensed(batch.rows[place], self._names)
            row = [
                cell if isinstance(cell, str) else np.float32(min(max(cell, 0), 1))
                for cell in cells
            ]
        # fewer numbers than other batches have
        return dict(zip(columns[batch.kind], row, strict=False))

    def _list_lines(self, batches: Sequence[_Batch], trainer: Trainer) -> Iterator[dict[str, Any]]:
        """List the lines of predictions of which some are no rows.

        One a sample, in the order of the data.
        """
        columns = self._name_columns(batches)
        paths = _find_paths(batches, trainer)
        for sample in _order_samples(batches, trainer):
            batch = batches[sample.batch]
            if batch.kind == "whole":
                line = {"batch": batch.number, "prediction": batch.rows[0]}
            elif batch.kind == "named":
                line = self._describe_row(batch, sample.place, columns)
            else:
                line = name_parts(batch.rows[sample.place])
            known = {"path": str(paths[sample.at])} if paths and sample.at >= 0 else {}
            yield known | line


def _name_mask(paths: Sequence[Any], number: int) -> str:
    """Name the file of a mask: after its image and its number, the same on each rank."""
    stem = Path(str(paths[number])).stem if number < len(paths) else "mask"
    return f"{number:05d}-{stem}.png"


class _Sample(NamedTuple):
    """A row of a batch: number of the batch, place in it, and position in the data.

    The position is negative where it is unknown.
    """

    batch: int
    place: int
    at: int


def _find_paths(batches: Sequence[_Batch], trainer: Trainer) -> Sequence[Any] | None:
    """Return the paths of the samples.

    None where the data has none, or it is not known which sample has which.
    """
    if any(batch.loader for batch in batches) or any(batch.kind == "whole" for batch in batches):
        return None
    found: Sequence[Any] | None = getattr(trainer.datamodule, "predict_paths", None)  # type: ignore[attr-defined]
    return found or None


def _order_samples(batches: Sequence[_Batch], trainer: Trainer) -> Iterator[_Sample]:
    """List the rows of all batches in the order of the data, each sample once.

    As far as their indices are known.
    """
    lengths = [len(batch.rows) for batch in batches]
    # of each row its batch, its place in the batch, and its index
    owners = np.repeat(np.arange(len(batches)), lengths)
    places = np.concatenate([np.arange(length) for length in lengths] or [owners])
    # a row is no sample, and nothing tells its place
    if any(batch.kind == "whole" for batch in batches):
        indices = np.full(len(owners), -1)
    else:
        indices = np.concatenate(
            [
                batch.indices if len(batch.indices) else np.full(len(batch.rows), -1)
                for batch in batches
            ]
            or [owners]
        )
        if trainer.world_size == 1:
            indices = np.where(indices < 0, np.arange(len(indices)), indices)
    order: Iterable[int] = range(len(indices))
    if (indices >= 0).all():  # each once: a share may have been filled up
        loaders = np.array([batch.loader for batch in batches], np.int64)[owners]
        order = np.unique(np.stack([loaders, indices]), axis=1, return_index=True)[1]
    for at in order:
        yield _Sample(int(owners[at]), int(places[at]), int(indices[at]))


class ListedPredictions(Callback):
    """Write `predict_step`'s results of each image of a `ListedImages`, or row of a `ListedRows`.

    In their order.

    Of several processes, rank 0 writes; all have equally many batches. The files appear once they
    are complete.

    Args:
        open_writer: `write_predictions`, to which `class_names`, `num_values`, `task` and
            `has_rows` are still to be given.
        on_written: Called by rank 0 once the files are there.
        print_progress: Called by rank 0 with the number of images now and then, if given.
    """

    def __init__(
        self,
        open_writer: Callable[..., AbstractContextManager[PredictionWriter]],
        on_written: Callable[[PredictionWriter], None],
        print_progress: Callable[[str], object] | None = None,
    ) -> None:
        self._open_writer = open_writer
        self._on_written = on_written
        self._print_progress = print_progress
        self._progress: ProgressLines | None = None
        self._has_rows: bool | None = None
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
            ConfigError: If what `predict_step` gives is not one prediction for each image, or
                cannot be in the files.
        """
        # a `ListedImages` or `ListedRows`, which callbacks do not import
        images: Any = trainer.datamodule  # type: ignore[attr-defined]
        values, settings = self._read_values(
            outputs, pl_module, images, num_images=images.count_samples(batch)
        )
        rows = iter(values)
        entries: list[Prediction] = images.entries.popleft()
        own = [
            each if each.defect is not None else replace(each, values=next(rows))
            for each in entries
        ]
        shares = gather(trainer, own)
        if not trainer.is_global_zero:
            return
        # now the classes are known; if the files cannot be written, little was done in vain
        if self._writer is None:
            self._writer = self._files.enter_context(self._open_writer(**settings))
            if self._print_progress is not None:
                total = None if images.paths is None else len(images.paths)
                self._progress = ProgressLines(images.unit, total, self._print_progress)
        for prediction in sorted(chain.from_iterable(shares), key=attrgetter("index")):
            self._writer.add(prediction)
        if self._progress is not None:
            self._progress.add(sum(map(len, shares)))

    def _read_values(
        self, outputs: Any, module: LightningModule, images: Any, *, num_images: int
    ) -> tuple[Iterable[Any], dict[str, Any]]:
        """Read the prediction of each image of a batch.

        In the form of the first batch, and with how they are written.

        Raises:
            ConfigError: If there is not one for each image.
        """
        if self._has_rows is None:
            self._has_rows = isinstance(outputs, Tensor)
        if not self._has_rows:
            samples = split_samples(outputs, num_images)
            if samples is None:
                raise _not_of_images(outputs, module, num_images)
            try:
                return [to_plain(name_parts(each)) for each in samples], {
                    "class_names": None,
                    "has_rows": False,
                }
            except TypeError as error:
                raise ConfigError(
                    f"model: what {type(module).__name__}.predict_step gives: {error}"
                ) from error

        tensor = _check_rows(outputs, module, num_images=num_images)
        if self._decided is None:
            trained = images.trained_names or getattr(module, "class_names", None)
            names = _find_names(module, trained or images.names_of_data())
            read = self._decided = _read_rows(tensor, module, names or None)
        else:  # the columns are those of the first batch
            read = _read_rows(tensor, module, self._decided.names, is_checked=True)
        return read.values, {
            "class_names": read.names,
            "num_values": read.values.shape[1],
            "task": read.task,
        }

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Complete the files."""
        if self._writer is not None:
            self._files.close()
            self._on_written(self._writer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Remove what was written so far: half a table looks like a whole one."""
        self._files.__exit__(type(exception), exception, exception.__traceback__)


def _find_names(module: LightningModule, names: Sequence[str] | None) -> tuple[str, ...]:
    """Return names of classes, which mean nothing where the outputs of the model are undeclared."""
    task = task_of(module)
    return tuple(map(str, names or ())) if task.has_probabilities or task.form.has_masks else ()


class _Rows(NamedTuple):
    """Predictions of a batch.

    Args:
        task: Of the model; that of undeclared outputs where its numbers are no probabilities.
        names: Of the classes or labels; None where a row is numbers.
        values: ``(batch, values)``, float32 or float64: probabilities, where the model declares its
            outputs.
    """

    task: Task
    names: tuple[str, ...] | None
    values: NDArray[Any]


def _read_rows(
    outputs: Tensor,
    module: LightningModule,
    names: Sequence[str] | None,
    *,
    is_checked: bool = False,
) -> _Rows:
    """Read what `predict_step` gives.

    A warning says why it is no probability although the model declares so.

    Args:
        outputs: ``(batch, ...)``.
        module: The model. Lightning's own `predict_step` gives what ``forward`` does; another one
            gives probabilities, where the model declares that ``forward`` gives logits.
        names: Of the classes or labels.
        is_checked: An earlier batch was what the model declares; a row of this one that is not is
            its own error.
    """
    array = as_floats(to_numpy(outputs))

    # probabilities, where these are outputs of ``forward`` that become some
    task = task_of(module)
    num_classes = len(names or ())
    is_forward = not is_overridden("predict_step", module, LightningModule)
    found = task.choose_names(array.shape, names)
    if is_forward:
        values = task.probabilities(array, num_classes=num_classes)
    else:
        values = task.expand(array, num_classes=num_classes)
    if task.form.has_masks and found is not None:
        return _Rows(task, found, task.form.to_rows(values))
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
        f"{type(module).__name__}.predict_step gives {rows.shape[1]} numbers a sample that are not"
        f" probabilities of {num_classes} classes; they are written without classes"
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
        raise _not_of_images(outputs, module, num_images)
    return outputs


def _not_of_images(outputs: Any, module: LightningModule, num_images: int) -> ConfigError:
    """Describe an output of `predict_step` that has not one part for each image."""
    shape = f" of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else ""
    return ConfigError(
        f"model: {type(module).__name__}.predict_step gives a {type(outputs).__name__}{shape} for a"
        f" batch of {num_images} images; expected a tensor ({num_images}, classes), or a list of"
        f" {num_images} with the boxes or other parts of each image. It is given the images alone,"
        " (batch, channels, height, width)."
    )

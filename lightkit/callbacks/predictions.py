"""Predictions as a table in the run folder."""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch
from lightning_fabric.utilities import move_data_to_device
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import BasePredictionWriter
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor

from lightkit.callbacks.resume import gather
from lightkit.errors import ConfigError, DataError
from lightkit.prediction.inference import ProgressLines, select_class_names
from lightkit.prediction.table import Prediction
from lightkit.prediction.writer import PredictionWriter, RankWriter, join_ranks


class _Place(NamedTuple):
    """Where a row, or what was predicted for a batch, belongs among those of all processes.

    Args:
        loader: Number of the loader.
        sample: Its index in the dataset, for a batch that of its first; -1 where the loader does not tell.
        turn: Number of the batch on its process.
        rank: The process.
    """

    loader: int
    sample: int
    turn: int
    rank: int


class PredictionTable(BasePredictionWriter):
    """Write what `predict_step` returns, one row a sample, batch by batch.

    A classifier's row has `path` where the data knows it, `label` and `probability`; any other tensor's row has its
    elements. What is no tensor goes to `predictions.pt`, a list with one item a batch, for `torch.load`. Several
    processes make one table together, in the order of the data, each sample once; where a loader does not tell which
    samples it gives, their shares come one batch after another. A table is there once it is complete: until then the
    one before it stays.

    Args:
        folder: Where `predictions.csv` is written; all processes must see it.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(write_interval="batch")
        self.folder = folder
        self.path = folder / "predictions.csv"
        self._rank: int | None = None
        self._files = ExitStack()
        self._writer: Any = None
        self._num_rows = 0
        self._others: list[tuple[_Place, Any]] = []
        self._names: Sequence[str] | None = None
        self._paths: Sequence[str] | None = None

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the table, aside, and ask the data once for what may take it long to list."""
        self._rank = trainer.global_rank if trainer.world_size > 1 else None
        self.path = self.folder / "predictions.csv"
        file = self._files.enter_context(self._share(".csv").open("w", newline="", encoding="utf-8"))
        self._writer, self._num_rows, self._others = csv.writer(file), 0, []
        self._names = getattr(trainer.datamodule, "class_names", None)  # type: ignore[attr-defined]
        self._paths = getattr(trainer.datamodule, "predict_paths", None)  # type: ignore[attr-defined]

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
        """Append a row for each sample of the batch."""
        indices = list(batch_indices or ())
        if not isinstance(prediction, Tensor) or prediction.ndim == 0:
            first = min(indices, default=-1)
            place = _Place(dataloader_idx, first, batch_idx, self._rank or 0)
            self._others.append((place, move_data_to_device(prediction, "cpu")))
            return
        names, paths = self._names, self._paths
        rows = prediction.detach().float().cpu().reshape(len(prediction), -1)
        classes = names if names is not None and rows.shape[1] == len(names) else None
        if self._num_rows == 0:
            values = ["label", "probability"] if classes else [f"prediction_{i}" for i in range(rows.shape[1])]
            self._write(_Place._fields, [*(["path"] if paths else []), *values])
        if not indices and self._rank is None:
            indices = list(range(self._num_rows, self._num_rows + len(rows)))
        for offset, row in enumerate(rows):
            index = indices[offset] if indices else -1
            path = [paths[index] if index >= 0 else ""] if paths else []
            values = [classes[int(row.argmax())], f"{float(row.max()):.6f}"] if classes else row.tolist()
            self._write(_Place(dataloader_idx, index, batch_idx, self._rank or 0), [*path, *values])
        self._num_rows += len(rows)

    def _write(self, place: Sequence[Any], row: Sequence[Any]) -> None:
        self._writer.writerow(row if self._rank is None else [*place, *row])

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the table in its place, or what fits into none; rank 0 does once all have written their shares."""
        self._files.close()
        others = [item for share in gather(trainer, self._others) for item in share]  # waits for all ranks
        self._others = []
        if self._rank not in (None, 0):
            return
        table = _aside(self.folder, None, ".csv")
        try:
            if others:
                whole = _aside(self.folder, None, ".pt")
                torch.save([item for _, item in (others if self._rank is None else sorted(others, key=_order))], whole)
                for path in (table, self.path):  # an earlier table is not of these predictions
                    path.unlink(missing_ok=True)
                self.path = self.path.with_suffix(".pt")
                whole.replace(self.path)
            else:
                if self._rank is not None:
                    _merge_tables(self.folder, trainer.world_size)
                table.replace(self.path)
        finally:
            for share in self.folder.glob(".predictions-rank=*.aside"):
                share.unlink()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remove what was written so far: half a table looks like a whole one."""
        self._files.close()
        for suffix in (".csv", ".pt"):
            self._share(suffix).unlink(missing_ok=True)

    def _share(self, suffix: str) -> Path:
        """What this process writes."""
        return _aside(self.folder, self._rank, suffix)


def _aside(folder: Path, rank: int | None, suffix: str) -> Path:
    share = "" if rank is None else f"-rank={rank}"
    return folder / f".predictions{share}{suffix}.aside"


def _merge_tables(folder: Path, num_ranks: int) -> None:
    header: list[str] = []
    found: list[tuple[_Place, list[str]]] = []
    for rank in range(num_ranks):
        rows = _rows(_aside(folder, rank, ".csv"))
        header = next(rows, header)
        found += [(_Place(*map(int, row[:4])), row[4:]) for row in rows]
    with _aside(folder, None, ".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if header:
            writer.writerow(header[4:])
        before = None
        for place, row in sorted(found, key=_order):
            if place.sample < 0 or place[:2] != before:  # a share may have been filled up
                writer.writerow(row)
            before = place[:2]


def _rows(table: Path) -> Iterator[list[str]]:
    with table.open(newline="", encoding="utf-8") as file:
        yield from csv.reader(file)


def _order(item: tuple[_Place, Any]) -> _Place:
    return item[0]


_log = logging.getLogger("lightkit")
_ROUNDING = 0.01  # of half precision


class ListedPredictions(Callback):
    """Write what `predict_step` returns for each image of a `ListedImages`, in their order.

    Several processes write a file each, which rank zero joins. The files appear once they are complete.

    Args:
        output: The table, in the format that its name ends in.
        top_k: How many classes of each image are told; None for what is usual.
        contact_sheet: An HTML page to write besides.
        on_written: Is told, on the process of rank zero, once the files are there.
        progress_stream: That process prints the number of images there now and then; None for no output.
        interval_s: Seconds between two lines.
    """

    def __init__(
        self,
        output: Path,
        *,
        top_k: int | None = None,
        contact_sheet: Path | None = None,
        on_written: Callable[[PredictionWriter], None] = lambda _: None,
        progress_stream: TextIO | None = None,
        interval_s: float = 10.0,
    ) -> None:
        self._new_writer = partial(PredictionWriter, output, top_k=top_k, contact_sheet=contact_sheet)
        self._on_written = on_written
        self._progress_stream, self._interval_s = progress_stream, interval_s
        self._lines: ProgressLines | None = None
        self._rank_writer: RankWriter | None = None
        self._writer: PredictionWriter | None = None
        self._rank_open, self._writer_open = ExitStack(), ExitStack()

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin this rank's file, if there are several ranks, and the clock."""
        if self._progress_stream is not None and trainer.is_global_zero:
            self._lines = ProgressLines(_images(trainer).num, stream=self._progress_stream, interval_s=self._interval_s)
        if trainer.world_size > 1:
            writer = RankWriter(_images(trainer).scratch, trainer.global_rank)
            self._rank_writer = self._rank_open.enter_context(writer)

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Append a row for each image of the batch.

        Raises:
            ConfigError: If what `predict_step` gives is not one row of numbers for each image.
            DataError: If the model gives more or fewer numbers than it names classes.
        """
        entries: list[Prediction] = _images(trainer).take_entries()
        values = _values(outputs, pl_module, num_images=len(batch))
        if trainer.is_global_zero and self._writer is None:
            self._begin(trainer, pl_module, values)
        writer, rows = self._rank_writer or self._writer, iter(values.numpy())
        assert writer is not None
        for entry in entries:
            writer.add(entry if entry.defect is not None else replace(entry, values=next(rows)))
        if self._lines is not None:
            self._lines.add(len(entries) * trainer.world_size)  # the others have as many, but for the last batch

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
                "%s.predict_step gives numbers that are no probabilities; they are told as they are, without classes",
                type(module).__name__,
            )
            names = None
        self._writer = self._writer_open.enter_context(self._new_writer(class_names=names, num_values=width))

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Complete the files; of several ranks, rank 0 does once all have written theirs."""
        self._rank_open.close()
        if self._rank_writer is not None:
            trainer.strategy.barrier("predictions of all ranks")
        if self._writer is None:
            return
        if self._rank_writer is not None:
            for prediction in join_ranks(_images(trainer).scratch, trainer.world_size):
                self._writer.add(prediction)
        self._writer_open.close()
        _images(trainer).remove_scratch()
        self._on_written(self._writer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remove what was written so far: half a table looks like a whole one."""
        for stack in (self._rank_open, self._writer_open):
            stack.__exit__(type(exception), exception, exception.__traceback__)
        if (images := _images(trainer)) is not None:
            images.remove_scratch()


def _images(trainer: Trainer) -> Any:
    """The `ListedImages`; data modules are in a room beside this one."""
    return trainer.datamodule  # type: ignore[attr-defined]


def _are_probabilities(values: Tensor) -> bool:
    """Tell whether numbers can be; those that are not finite are told of each image."""
    finite = values[values.isfinite()]
    return bool(((finite >= -_ROUNDING) & (finite <= 1 + _ROUNDING)).all())


def _values(outputs: Any, module: LightningModule, *, num_images: int) -> Tensor:
    """Give float32 ``(num_images, num_values)``: probabilities, where the module says how to come to them.

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

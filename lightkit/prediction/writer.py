"""Write predictions to a table and a page of thumbnails, and join those of several ranks."""

from __future__ import annotations

import heapq
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from lightkit.errors import ConfigError, DataError, LightkitError
from lightkit.prediction.contact_sheet import ContactSheet
from lightkit.prediction.table import STANDARD_OUTPUT, TABLES, Prediction, PredictionColumns, RowWriter
from lightkit.runs.files import aside_of

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

_NUM_KEPT = 5  # images without a prediction that are named in the end


@contextmanager
def _translate_write_errors(path: Path) -> Iterator[None]:
    """Raise a `LightkitError` if a file cannot be written; standard output then gets no more."""
    try:
        yield
    except BrokenPipeError:  # the reader of a pipe has left, which is no error
        raise
    except OSError as error:
        reason = error.strerror or (str(error).splitlines() or [type(error).__name__])[0]
        where = str(path)
        if path == STANDARD_OUTPUT:
            where = "standard output"
            with suppress(OSError, ValueError):  # it is no file of the system
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise LightkitError(
            f"{where}: the predictions cannot be written there ({reason}). Make room, or name another place."
        ) from error


class PredictionWriter:
    """Write predictions, in the order of the images, to a table and a page of thumbnails.

    The files are written aside. They get their names at the end of the ``with`` block, and none does if it ends in an
    exception. Standard output gets each row at once.

    Args:
        output: The table, in the format of its suffix; see `check_output_path`.
        class_names: In the order of the values; None for a model without classes.
        num_values: Outputs of a model without classes; those of the first good image if None.
        top_k: Number of classes of each image; 3 if None.
        contact_sheet: An HTML page, in addition.

    Attributes:
        num: Images so far.
        num_bad: Those among them without a prediction.
        bad: The first few of these.
    """

    def __init__(
        self,
        output: Path,
        *,
        class_names: Sequence[str] | None,
        num_values: int | None = None,
        top_k: int | None = None,
        contact_sheet: Path | None = None,
    ) -> None:
        self.num, self.num_bad = 0, 0
        self.bad: list[Prediction] = []
        self._output, self._class_names, self._num_values, self._top_k = output, class_names, num_values, top_k
        self._columns: PredictionColumns | None = None
        self._table: RowWriter | None = None
        self._waiting: list[Prediction] = []  # bad ones, until the first good one determines the columns
        self._sheet_path = contact_sheet
        self._sheet = None if contact_sheet is None else ContactSheet(PredictionColumns(class_names, top_k))
        paths = [path for path in (output, contact_sheet) if path is not None and path != STANDARD_OUTPUT]
        self._files = {path: Path(os.path.realpath(path)) if path.is_symlink() else path for path in paths}
        self._temporary = {path: aside_of(file) for path, file in self._files.items()}

    def __enter__(self) -> Self:
        """Create the files, so that one that cannot be written is known before anything is predicted.

        Raises:
            ConfigError: If one cannot.
            LightkitError: If the disk is full.
        """
        folder = self._output
        try:
            for temporary in self._temporary.values():
                folder = temporary.parent
                folder.mkdir(parents=True, exist_ok=True)
                temporary.touch()
            if self._class_names is not None or self._num_values is not None:
                self._begin(PredictionColumns(self._class_names, self._top_k, self._num_values or 0))
        except OSError as error:
            self._remove()
            raise ConfigError(f"{folder}: no file can be written there ({error.strerror})") from error
        except BaseException:  # a signal, after which nothing else would remove them
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the files their names, or remove them after an exception."""
        try:
            if kind is None:
                if self._columns is None:
                    self._begin(PredictionColumns(None))
                if self._sheet is not None and self._sheet_path is not None:
                    page = self._sheet.render()
                    with _translate_write_errors(self._sheet_path):
                        self._temporary[self._sheet_path].write_text(page, encoding="utf-8")
                assert self._table is not None
                with _translate_write_errors(self._output):
                    self._table.close()
                for path, temporary in self._temporary.items():
                    with _translate_write_errors(path):
                        temporary.replace(self._files[path])
        finally:
            self._remove()

    def add(self, prediction: Prediction) -> None:
        """Write the next prediction.

        Raises:
            DataError: If it has more or fewer values than there are classes.
            LightkitError: If it cannot be written, as on a full disk.
        """
        values = prediction.values
        if self._class_names is not None and values is not None and not np.isfinite(values).all():
            defect = prediction.defect or "the model's output has values that are no finite numbers"
            prediction = Prediction(prediction.index, prediction.path, None, defect)
        self.num += 1
        if prediction.values is None:
            self.num_bad += 1
            self.bad += [prediction] if len(self.bad) < _NUM_KEPT else []
        if self._sheet is not None:
            self._sheet.add(prediction)
        if self._columns is None and prediction.values is not None:
            self._begin(PredictionColumns(None, num_values=prediction.values.size))
        self._write(prediction)

    def _begin(self, columns: PredictionColumns) -> None:
        self._columns = columns
        suffix = ".csv" if self._output == STANDARD_OUTPUT else self._output.suffix.lower()
        with _translate_write_errors(self._output):
            self._table = TABLES[suffix](self._temporary.get(self._output, self._output), columns)
        waiting, self._waiting = self._waiting, []
        for prediction in waiting:
            self._write(prediction)

    def _write(self, prediction: Prediction) -> None:
        if self._columns is None or self._table is None:
            self._waiting.append(prediction)
            return
        row = self._columns.row(prediction)
        with _translate_write_errors(self._output):
            self._table.add(row)

    def _remove(self) -> None:
        if self._table is not None:
            with suppress(OSError, ValueError):  # reported before; pyarrow's error is the latter
                self._table.close()
        for temporary in self._temporary.values():
            with suppress(OSError):
                temporary.unlink()


class RankWriter:
    """Write the predictions of one rank, in increasing index; an exception removes them.

    The file has a JSON object a line, and ``end`` in the last, so that a file that was cut short is noticed.

    Args:
        folder: Folder of all ranks' files, on a shared disk; created if missing.
        rank: Number of the process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = _rank_path(folder, rank)
        with _translate_write_errors(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("w", encoding="ascii")
        self._last = -1

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the file, or remove it after an exception."""
        is_complete = False
        try:
            with suppress(OSError) if kind is not None else _translate_write_errors(self._path), self._file:
                if kind is None:
                    self._file.write("end\n")
            is_complete = kind is None
        finally:
            if not is_complete:
                self._path.unlink(missing_ok=True)

    def add(self, prediction: Prediction) -> None:
        """Append a prediction.

        Raises:
            ValueError: If its index is not above that of the one before.
            LightkitError: If it cannot be written, as on a full disk.
        """
        if prediction.index <= self._last:
            raise ValueError(f"prediction {prediction.index} comes after {self._last}; expected increasing indices")
        self._last = prediction.index
        values = None if prediction.values is None else prediction.values.ravel().tolist()
        with _translate_write_errors(self._path):  # as ASCII, which keeps file names that are no text
            self._file.write(json.dumps([prediction.index, prediction.path, values, prediction.defect]) + "\n")


def join_ranks(folder: Path, num_ranks: int) -> Iterator[Prediction]:
    """Read the predictions of all ranks in the order of their indices, each index once, one of each rank in memory.

    If the number of ranks does not divide that of the images, two may have predicted the same one: the lower counts.

    Args:
        folder: That of each rank's `RankWriter`.
        num_ranks: Number of ranks.

    Raises:
        DataError: If a rank's file is missing or cut short.
    """
    merged = heapq.merge(*(_read_rank(_rank_path(folder, rank)) for rank in range(num_ranks)), key=attrgetter("index"))
    for _, same in groupby(merged, key=attrgetter("index")):
        yield next(same)


def _rank_path(folder: Path, rank: int) -> Path:
    return folder / f"rank={rank}.jsonl"


def _read_rank(path: Path) -> Iterator[Prediction]:
    reason = "was cut short"
    try:
        with path.open(encoding="ascii") as file:
            for line in file:
                if line == "end\n":
                    return
                if not line.endswith("\n"):
                    break
                index, image, values, defect = json.loads(line)
                yield Prediction(index, image, None if values is None else np.array(values, np.float32), defect)
    except FileNotFoundError:
        reason = "is missing"
    raise DataError(
        f"{path}: this share of the predictions {reason}. Its process ended too early, or sees another disk."
    )

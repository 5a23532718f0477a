"""Write predictions to a table and a page of thumbnails, and join those of several ranks."""

from __future__ import annotations

import heapq
import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np

from lightkit.errors import ConfigError, DataError, LightkitError
from lightkit.prediction.contact_sheet import ContactSheet
from lightkit.prediction.table import STANDARD_OUTPUT, TABLES, Prediction, PredictionColumns, RowWriter
from lightkit.runs.files import atomic_write

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


@contextmanager
def write_predictions(
    output: Path,
    *,
    class_names: Sequence[str] | None,
    top_k: int | None = None,
    contact_sheet: Path | None = None,
) -> Iterator[PredictionWriter]:
    """Open a table and a page of thumbnails, which appear at the end of the block unless it ends in an exception.

    They are created at once, so that one that cannot be written is known before anything is predicted.

    Args:
        output: The table, in the format of its suffix; see `check_output_path`. Standard output gets each row at once.
        class_names: In the order of the values; None for a model without classes.
        top_k: Number of classes of each image; 3 if None.
        contact_sheet: An HTML page, in addition.

    Raises:
        ConfigError: If a file cannot be created.
        LightkitError: If one cannot be written, as on a full disk.
    """
    with ExitStack() as files:
        asides: dict[Path, Path] = {}
        for path in {output, contact_sheet} - {None, STANDARD_OUTPUT}:
            assert path is not None
            try:  # what a link leads to is replaced
                asides[path] = files.enter_context(atomic_write(path.resolve(), durable=False))
                asides[path].touch()
            except OSError as error:
                raise ConfigError(f"{path.parent}: no file can be written there ({error.strerror})") from error
        writer = PredictionWriter(output, asides.get(output, output), class_names, top_k, has_sheet=bool(contact_sheet))
        files.push(lambda *_: writer.close())
        yield writer
        writer.finish()
        if contact_sheet is not None and writer.sheet is not None:
            page = writer.sheet.render()
            with _translate_write_errors(contact_sheet):
                asides[contact_sheet].write_text(page, encoding="utf-8")


class PredictionWriter:
    """Rows of a table of predictions, in the order of the images; `write_predictions` makes it.

    Attributes:
        num: Images so far.
        num_bad: Those among them without a prediction.
        bad: The first few of these.
        sheet: The page of thumbnails.
    """

    def __init__(
        self, output: Path, file: Path, class_names: Sequence[str] | None, top_k: int | None, *, has_sheet: bool
    ) -> None:
        self.num, self.num_bad = 0, 0
        self.bad: list[Prediction] = []
        self._output, self._file, self._class_names, self._top_k = output, file, class_names, top_k
        self._table: RowWriter | None = None
        self._columns = PredictionColumns(class_names, top_k)
        self._waiting: list[Prediction] = []  # bad ones, until the first good one determines the columns
        self.sheet = ContactSheet(self._columns) if has_sheet else None

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
        if self.sheet is not None:
            self.sheet.add(prediction)
        if self._table is not None:
            self._write(self._table, prediction)
        elif prediction.values is not None:
            self._write(self._begin(prediction.values.size), prediction)
        else:
            self._waiting.append(prediction)

    def _begin(self, num_values: int) -> RowWriter:
        """Open the table, and write the images that wait for it."""
        self._columns = PredictionColumns(self._class_names, self._top_k, num_values)
        suffix = ".csv" if self._output == STANDARD_OUTPUT else self._output.suffix.lower()
        with _translate_write_errors(self._output):
            self._table = table = TABLES[suffix](self._file, self._columns)
        for prediction in self._waiting:
            self._write(table, prediction)
        self._waiting.clear()
        return table

    def _write(self, table: RowWriter, prediction: Prediction) -> None:
        row = self._columns.row(prediction)
        with _translate_write_errors(self._output):
            table.add(row)

    def finish(self) -> None:
        """Complete the table.

        Raises:
            LightkitError: If it cannot be written.
        """
        table = self._table or self._begin(0)
        with _translate_write_errors(self._output):
            table.close()

    def close(self) -> None:
        """Close the table, complete or not."""
        if self._table is not None:
            with suppress(OSError, ValueError):  # reported before; pyarrow's error is the latter
                self._table.close()


class RankWriter:
    """Predictions of one rank, in increasing index, for `join_ranks`.

    Args:
        folder: Folder of all ranks' files, on a shared disk; created if missing.
        rank: Number of the process.

    Raises:
        LightkitError: If it cannot be written, as on a full disk.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = _rank_path(folder, rank)
        with _translate_write_errors(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("wb")

    def add(self, prediction: Prediction) -> None:
        """Append a prediction.

        Raises:
            LightkitError: If it cannot be written, as on a full disk.
        """
        with _translate_write_errors(self._path):
            pickle.dump(prediction, self._file)

    def close(self) -> None:
        """Complete the file.

        Raises:
            LightkitError: If it cannot be written, as on a full disk.
        """
        with _translate_write_errors(self._path):
            self._file.close()


def join_ranks(folder: Path, num_ranks: int) -> Iterator[Prediction]:
    """Read the predictions of all ranks in the order of their indices, each index once, one of each rank in memory.

    If the number of ranks does not divide that of the images, two may have predicted the same one: the lower counts.

    Args:
        folder: That of each rank's `RankWriter`.
        num_ranks: Number of ranks.

    Raises:
        DataError: If a rank's file is missing.
    """
    merged = heapq.merge(*(_read_rank(_rank_path(folder, rank)) for rank in range(num_ranks)), key=attrgetter("index"))
    for _, same in groupby(merged, key=attrgetter("index")):
        yield next(same)


def _rank_path(folder: Path, rank: int) -> Path:
    return folder / f"rank={rank}.pickle"


def _read_rank(path: Path) -> Iterator[Prediction]:
    try:
        with path.open("rb") as file, suppress(EOFError):
            while True:
                yield pickle.load(file)  # noqa: S301 (written by this command's own ranks)
    except FileNotFoundError as error:
        raise DataError(f"{path}: this share of the predictions is missing. Its process sees another disk.") from error

"""Write predictions to a table and a page of thumbnails."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np

from lightkit.errors import ConfigError, LightkitError
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
    num_values: int = 0,
    top_k: int | None = None,
    contact_sheet: Path | None = None,
) -> Iterator[PredictionWriter]:
    """Open a table and a page of thumbnails, which appear at the end of the block unless it ends in an exception.

    They are created at once, so that one that cannot be written is known before anything is predicted.

    Args:
        output: The table, in the format of its suffix; see `check_output_path`. Standard output gets each row at once.
        class_names: In the order of the values; None for a model without classes.
        num_values: Outputs of a model without classes.
        top_k: Number of classes of each image; 3 if None.
        contact_sheet: An HTML page, in addition.

    Raises:
        ConfigError: If a file cannot be created.
        LightkitError: If one cannot be written, as on a full disk.
    """
    columns = PredictionColumns(class_names, top_k, num_values)
    with ExitStack() as files:
        asides: dict[Path, Path] = {}
        for path in {output, contact_sheet} - {None, STANDARD_OUTPUT}:
            assert path is not None
            try:  # what a link leads to is replaced
                asides[path] = files.enter_context(atomic_write(path.resolve(), durable=False))
                asides[path].touch()
            except OSError as error:
                raise ConfigError(f"{path.parent}: no file can be written there ({error.strerror})") from error
        with _translate_write_errors(output):
            table = TABLES[".csv" if output == STANDARD_OUTPUT else output.suffix.lower()](
                asides.get(output, output), columns
            )
        try:
            yield (writer := PredictionWriter(output, columns, table, ContactSheet(columns) if contact_sheet else None))
        except BaseException:
            with suppress(OSError, ValueError):  # reported before; pyarrow's error is the latter
                table.close()
            raise
        with _translate_write_errors(output):
            table.close()
        if contact_sheet is not None and writer.sheet is not None:
            page = writer.sheet.render()
            with _translate_write_errors(contact_sheet):
                asides[contact_sheet].write_text(page, encoding="utf-8")


class PredictionWriter:
    """Rows of a table of predictions, in the order of the images; `write_predictions` makes it.

    Args:
        output: Name of the table.
        columns: Of the table.
        table: Takes the rows.
        sheet: The page of thumbnails, if there is one.

    Attributes:
        num: Images so far.
        num_bad: Those among them without a prediction.
        bad: The first few of these.
    """

    def __init__(self, output: Path, columns: PredictionColumns, table: RowWriter, sheet: ContactSheet | None) -> None:
        self.num, self.num_bad = 0, 0
        self.bad: list[Prediction] = []
        self.sheet = sheet
        self._output, self._columns, self._table = output, columns, table

    def add(self, prediction: Prediction) -> None:
        """Write the next prediction.

        Raises:
            DataError: If it has more or fewer values than the table.
            LightkitError: If it cannot be written, as on a full disk.
        """
        values = prediction.values
        if self._columns.class_names is not None and values is not None and not np.isfinite(values).all():
            defect = prediction.defect or "the model's output has values that are no finite numbers"
            prediction = Prediction(prediction.index, prediction.path, None, defect)
        self.num += 1
        if prediction.values is None:
            self.num_bad += 1
            self.bad += [prediction] if len(self.bad) < _NUM_KEPT else []
        if self.sheet is not None:
            self.sheet.add(prediction)
        row = self._columns.row(prediction)
        with _translate_write_errors(self._output):
            self._table.add(row)

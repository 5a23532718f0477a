"""Where predictions go: tables and a page of thumbnails, which appear once they are complete."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from lightkit.errors import ConfigError
from lightkit.prediction.contact_sheet import ContactSheet
from lightkit.prediction.rows import Columns, Prediction
from lightkit.prediction.tables import STANDARD_OUTPUT, Table, open_table, writing
from lightkit.runs.files import aside_of

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

__all__ = ["Sink"]

_MOST_TOLD = 5


class Sink:
    """Take predictions in the order of the images, and write them to each output.

    The files are written aside. They get their names at the end of the ``with`` block, and none does if it ends in an
    exception. Standard output gets each row at once.

    Args:
        outputs: Tables, in the format that each name ends in; see `tables.checked_output`.
        class_names: In the order of the values; None for a model without classes.
        num_values: Outputs of a model without classes; None where the first good image is to tell.
        top_k: How many classes of each image are told; 3 if None.
        contact_sheet: An HTML page to write besides.

    Attributes:
        num: Images so far.
        num_bad: Those among them without a prediction.
        bad: The first few of these.
    """

    def __init__(
        self,
        outputs: Sequence[Path],
        *,
        class_names: Sequence[str] | None,
        num_values: int | None = None,
        top_k: int | None = None,
        contact_sheet: Path | None = None,
    ) -> None:
        self.num, self.num_bad = 0, 0
        self.bad: list[Prediction] = []
        self._outputs = list(dict.fromkeys(outputs))
        self._class_names, self._top_k, self._num_values = class_names, top_k, num_values
        self._columns: Columns | None = None
        self._tables: list[tuple[Path, Table]] = []
        self._waiting: list[Prediction] = []  # bad ones, before the first good one tells the columns
        self._sheet = None if contact_sheet is None else ContactSheet(class_names, top_k)
        places = [*self._outputs, *([contact_sheet] if contact_sheet else [])]
        self._files = {path: _behind_links(path) for path in places if path != STANDARD_OUTPUT}
        self._asides = {path: aside_of(file) for path, file in self._files.items()}
        self._sheet_path = contact_sheet

    def __enter__(self) -> Self:
        """Begin the files, so that one that cannot be written is known before anything is predicted.

        Raises:
            ConfigError: If one cannot.
            LightkitError: If the disk is full.
        """
        try:
            for aside in self._asides.values():
                aside.parent.mkdir(parents=True, exist_ok=True)
                aside.touch()
            if self._class_names is not None or self._num_values is not None:
                self._begin(Columns(self._class_names, self._top_k, self._num_values or 0))
        except OSError as error:
            self._remove()
            raise ConfigError(f"{aside.parent}: no file can be written there ({error.strerror})") from error
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
                self._finish()
                for path, table in self._tables:
                    with writing(path):
                        table.close()
                for path, aside in self._asides.items():
                    with writing(path):
                        aside.replace(self._files[path])
        finally:
            self._remove()

    def add(self, prediction: Prediction) -> None:
        """Write what became of the next image.

        Raises:
            DataError: If it has more or fewer values than there are classes.
            LightkitError: If it cannot be written, as on a full disk.
        """
        prediction = _finite(prediction) if self._class_names is not None else prediction
        self.num += 1
        if prediction.values is None:
            self.num_bad += 1
            self.bad += [prediction] if len(self.bad) < _MOST_TOLD else []
        if self._sheet is not None:
            self._sheet.add(prediction)
        if self._columns is None and prediction.values is not None:
            self._begin(Columns(None, num_values=prediction.values.size))
        self._write(prediction)

    def _begin(self, columns: Columns) -> None:
        self._columns = columns
        for path in self._outputs:
            suffix = ".csv" if path == STANDARD_OUTPUT else path.suffix
            with writing(path):
                self._tables.append((path, open_table(self._asides.get(path, path), columns, suffix=suffix)))
        waiting, self._waiting = self._waiting, []
        for prediction in waiting:
            self._write(prediction)

    def _write(self, prediction: Prediction) -> None:
        if self._columns is None:
            self._waiting.append(prediction)
            return
        row = self._columns.row(prediction)
        for path, table in self._tables:
            with writing(path):
                table.add(row)

    def _finish(self) -> None:
        if self._columns is None:
            self._begin(Columns(None))
        if self._sheet is not None and self._sheet_path is not None:
            page = self._sheet.page()
            with writing(self._sheet_path):
                self._asides[self._sheet_path].write_text(page, encoding="utf-8")

    def _remove(self) -> None:
        for _, table in self._tables:
            with suppress(OSError, ValueError):  # what is wrong was told; pyarrow's error is the latter
                table.close()
        for aside in self._asides.values():
            with suppress(OSError):  # where its folder is none, or the disk is gone
                aside.unlink()


def _behind_links(path: Path) -> Path:
    """A link stays one: what it leads to is replaced."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _finite(prediction: Prediction) -> Prediction:
    """A probability that is no number ranks nothing: such an image has no prediction."""
    if prediction.values is None or np.isfinite(prediction.values).all():
        return prediction
    says = prediction.defect or "the model's output has values that are no finite numbers"
    return Prediction(prediction.index, prediction.path, None, says)

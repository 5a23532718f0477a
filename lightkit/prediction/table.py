"""Tables of predictions: their columns, the same in each format, as CSV, JSON lines and Parquet.

Thumbnails of images are written, too.
"""

from __future__ import annotations

import base64
import csv
import heapq
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO

import numpy as np

from lightkit.errors import ConfigError, DataError, LightkitError, visible
from lightkit.images.image_file import read_rgb
from lightkit.images.mask_file import choose_colors
from lightkit.prediction.masks import FOLDER_ENDING, MaskFiles
from lightkit.runs.files import atomic_write, finite
from lightkit.task import CLASSIFICATION, UNDECLARED, Task, find_improbable
from lightkit.task.segmentation import SHARE_COLUMN

STANDARD_OUTPUT = Path("-")
"""CSV on standard output."""
DEFAULT_TOP_K = 3
"""Number of classes of each image, if there are as many."""
TopK = int | Literal["all"] | None
"""Number of classes of each image, the likeliest; ``all``: the likeliest, and a column of each
class."""
_ROW_GROUP = 4096  # rows of Parquet in memory
_FORMULA = ("=", "+", "-", "@")
_NUMERAL = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
# beginnings of the names of columns of numbers
_PROBABILITY = "probability"
_NUMBER = "prediction_"
_NUMBERS = (_PROBABILITY, _NUMBER, SHARE_COLUMN)
# not tabs and line breaks, which CSV quotes
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_MAX_BAD = 100
"""Images without a prediction that are kept, and listed on a page."""
_MAX_THUMBNAILS = 200
"""Images of a page, about 2 MB."""
_SIDE = 192  # pixels of a thumbnail's longer side
Values = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Prediction:
    """Result of one image.

    Args:
        index: Number of the image, from 0.
        path: As it was named.
        values: ``(num_classes,)``: the probability of each class or label, or the outputs of a
            model without classes, float64 where the model computes in it, else float32. A mapping
            in the types of JSON where a prediction is no row, such as boxes. None if there are
            none.
        defect: Why there are none, else None.
    """

    index: int
    path: str
    values: Any
    defect: str | None


class PredictionColumns:
    """Columns of a table of predictions: the same in each format, with the same names.

    First comes ``path``, then what the task of the model has, see `Task.name_columns`. Last comes
    ``error``, the reason why a row has nothing else.

    Args:
        class_names: Names of classes or labels in the order of the values; None for a model
            without.
        top_k: Number of classes; `DEFAULT_TOP_K` if None, all if there are fewer. ``all``: the
            likeliest, and then ``probability_NAME`` of each class, in the order of the classes.
        num_values: Outputs of a model without classes.
        task: Of the model.

    Attributes:
        names: Names of all columns, in order.
    """

    def __init__(
        self,
        class_names: Sequence[str] | None,
        top_k: TopK = None,
        num_values: int = 0,
        *,
        task: Task = CLASSIFICATION,
    ) -> None:
        self.class_names = None if class_names is None else tuple(class_names)
        self.task = UNDECLARED if class_names is None else task
        self._num_values = num_values if self.class_names is None else len(self.class_names)
        self._has_values = task.output_kind == "values"
        self._has_each = top_k == "all" and self.task.has_classes
        self._top_k = (
            min(top_k or DEFAULT_TOP_K, self._num_values) if isinstance(top_k, int | None) else 1
        )
        inner = self.task.name_columns(
            self.class_names, num_values=self._num_values, top_k=self._top_k
        )
        if self._has_each:
            inner += [f"{_PROBABILITY}_{name}" for name in self.class_names or ()]
        self.names = ["path", *inner, "error"]

    def find_defect(self, values: Values) -> str | None:
        """Describe why values are neither numbers nor probabilities.

        None if they are, or their meaning is unknown.
        """
        if self.class_names is None and not self._has_values:
            return None
        if not np.isfinite(values).all():
            return "the model's output has values that are not finite"
        if self.class_names is not None and find_improbable(values[None])[0]:
            return (
                f"the model's output is not a probability: {values.min():.6g} to"
                f" {values.max():.6g}, expected 0 to 1"
            )
        return None

    def row(self, prediction: Prediction) -> list[Any]:
        """Build the cells of a row: texts, numbers, and None for an empty cell.

        Bytes of a file's name that are no text become escape sequences, so that every reader
        accepts the table.

        Raises:
            DataError: If there are more or fewer values than classes, or than for the images
                before.
        """
        path, defect = _encode_texts(prediction)
        values = prediction.values
        if values is None:
            return [path, *[None] * (len(self.names) - 2), defect]
        if values.shape != (self._num_values,):
            raise DataError(
                f"{path}: the model gives {values.size} values; expected {self._num_values}."
            )
        if self.class_names is not None:
            values = values.clip(0, 1)  # half precision rounds a little beyond
        if self.class_names is None:
            return [path, *values, defect]
        cells = self.task.form.list_cells(values, self.class_names, top_k=self._top_k)
        return [path, *cells, *(values if self._has_each else ()), defect]

    def rank(self, values: Values) -> list[tuple[str, np.floating[Any]]]:
        """List the likeliest classes with their probabilities, likeliest first.

        Of equals, the first class first.
        """
        assert self.class_names is not None
        order = np.argsort(-values, kind="stable")[: self._top_k]
        return [(self.class_names[at], values[at]) for at in order]


def _encode_texts(prediction: Prediction) -> tuple[str, str | None]:
    """Return path and defect; bytes of a file's name that are no text become escape sequences."""
    path, defect = (
        text and text.encode("utf-8", "backslashreplace").decode("utf-8")
        for text in (prediction.path, prediction.defect)
    )
    return str(path), defect


class _NamedParts(PredictionColumns):
    """Predictions that are no rows.

    The parts of each, by their own names, between ``path`` and ``error``.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.names = []

    def find_defect(self, values: Any) -> str | None:
        """Find nothing: the parts are the model's own."""
        return None

    def row(self, prediction: Prediction) -> list[Any]:
        """Build the one cell of a line, a mapping."""
        path, defect = _encode_texts(prediction)
        return [{"path": path, **(prediction.values or {}), "error": defect}]


class _MaskColumns(PredictionColumns):
    """Predictions that are masks, written as files: the path of each, and the share of each class.

    Args:
        class_names: Names of the classes.
        task: Of the model.
        folder: Of the masks.
        base: Folder of the table, that paths of masks count from.
    """

    def __init__(self, class_names: Sequence[str], *, task: Task, folder: Path, base: Path) -> None:
        super().__init__(class_names, task=task)
        self.files = MaskFiles(folder, len(class_names))
        self.masks: dict[int, str] = {}
        """Names of the files, by the index of the image."""
        self._base = base

    def find_defect(self, values: Values) -> str | None:
        """Describe why values are no mask; None if they are one."""
        is_finite = values.dtype.kind in "iu" or np.isfinite(values).all()
        return None if is_finite else "the model's output has values that are not finite"

    def write(self, prediction: Prediction) -> Prediction:
        """Write the mask, and return the prediction with the shares of the classes in its place."""
        name = self.files.name(prediction.path)
        self.masks[prediction.index] = name
        return replace(
            prediction, values=self.files.write(name, prediction.path, prediction.values)
        )

    def row(self, prediction: Prediction) -> list[Any]:
        """Build the cells of a row, of a prediction that `write` has returned."""
        path, defect = _encode_texts(prediction)
        if prediction.values is None:
            return [path, *[None] * (len(self.names) - 2), defect]
        file = self.files.folder / self.masks[prediction.index]
        name = file.relative_to(self._base) if file.is_relative_to(self._base) else file
        return [path, name.as_posix(), *prediction.values, defect]

    def rank(self, values: Values) -> list[tuple[str, np.floating[Any]]]:
        """List the classes of a mask with their shares, the largest first."""
        assert self.class_names is not None
        order = [int(at) for at in np.argsort(-values, kind="stable") if values[at] > 0]
        return [(self.class_names[at], values[at]) for at in order[:DEFAULT_TOP_K]]


class RowWriter(Protocol):
    """A table that is written row by row: its cells are texts, float32 or float64, or None."""

    def add(self, row: Sequence[Any]) -> None:
        """Append a row."""

    def close(self) -> None:
        """Write the rest."""


class _TextTable:
    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.names = names
        self._is_stdout = path == STANDARD_OUTPUT
        self.file: TextIO = (
            sys.stdout if self._is_stdout else path.open("w", newline="", encoding="utf-8")
        )

    def close(self) -> None:
        self.file.flush() if self._is_stdout else self.file.close()


class _Csv(_TextTable):
    def __init__(self, path: Path, names: Sequence[str]) -> None:
        super().__init__(path, names)
        self._writer = csv.writer(self.file, lineterminator="\n")
        self._writer.writerow(names)

    def add(self, row: Sequence[Any]) -> None:
        self._writer.writerow(map(self._format, self.names, row))

    def _format(self, name: str, cell: Any) -> str | None:
        """Spreadsheets compute cells that begin with ``=``.

        ``./`` leaves a path what it is, and a number is one.
        """
        if isinstance(cell, np.floating):  # else the shortest text that is exact in its precision
            return f"{cell:.6f}" if name.startswith((_PROBABILITY, SHARE_COLUMN)) else str(cell)
        if cell is None:
            return None
        text = _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), cell)
        if not text.startswith(_FORMULA) or (name != "path" and _NUMERAL.fullmatch(text)):
            return text
        return f"{'./' if name == 'path' else chr(39)}{text}"


class _JsonLines(_TextTable):
    def add(self, row: Sequence[Any]) -> None:
        # 0.1 is 0.1
        cells = [float(str(cell)) if isinstance(cell, np.floating) else cell for cell in row]
        content = finite(dict(zip(self.names, cells, strict=True)))
        self.file.write(json.dumps(content, ensure_ascii=False) + "\n")


class _PartLines(_TextTable):
    def add(self, row: Sequence[Any]) -> None:
        self.file.write(json.dumps(finite(row[0]), ensure_ascii=False) + "\n")


class _Parquet:
    """Columns of numbers are float32, or float64 where the first number in them is."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        import pyarrow as pa  # 0.2 s and 60 MB, which the other formats need not have
        from pyarrow import parquet

        self._path = path
        self._names = names
        self._pa = pa
        self._open = parquet.ParquetWriter
        self._rows: list[Sequence[Any]] = []
        self._writer: Any = None
        self._schema: Any = None

    def add(self, row: Sequence[Any]) -> None:
        self._rows.append(row)
        if len(self._rows) == _ROW_GROUP:
            self._write()

    def _write(self) -> None:
        columns = [*map(list, zip(*self._rows, strict=True))] or [[] for _ in self._names]
        if self._writer is None:
            kinds = [
                self._choose_type(name, column)
                for name, column in zip(self._names, columns, strict=True)
            ]
            self._schema = self._pa.schema(list(zip(self._names, kinds, strict=True)))
            self._writer = self._open(self._path, self._schema)
        self._writer.write_batch(self._pa.record_batch(columns, schema=self._schema))
        self._rows.clear()

    def _choose_type(self, name: str, column: Sequence[Any]) -> Any:
        if not name.startswith(_NUMBERS):
            return self._pa.string()
        first = next((cell for cell in column if cell is not None), None)
        is_wide = isinstance(first, np.float64) and name.startswith(_NUMBER)
        return self._pa.float64() if is_wide else self._pa.float32()

    def close(self) -> None:
        try:
            if self._writer is None or (self._rows and self._writer.is_open):
                self._write()
            self._writer.close()
        finally:
            if self._writer is not None:
                self._writer.is_open = False  # else it tries again once it is collected


TABLES: dict[str, Callable[[Path, Sequence[str]], RowWriter]] = {
    ".csv": _Csv,
    ".parquet": _Parquet,
    ".jsonl": _JsonLines,
}
"""By suffix of the file; each takes the names of the columns too. `STANDARD_OUTPUT` gets CSV."""


def check_output_path(
    text: str, *, option: str = "--output", suffixes: Sequence[str] = tuple(TABLES)
) -> Path:
    """Check the name of the file that an option names.

    Nothing is created, for another option may be wrong.

    Args:
        text: A path, or ``-`` for CSV on standard output.
        option: The option, for errors.
        suffixes: Allowed endings; ``-`` is allowed if CSV is.

    Raises:
        ConfigError: If it ends otherwise, or is a folder.
    """
    path = Path(text).expanduser()
    if path == STANDARD_OUTPUT and ".csv" in suffixes:
        return path
    if path.suffix.lower() not in suffixes or path.is_dir():
        what = f"{'this is a folder; ' if path.is_dir() else ''}expected a file that ends in"
        *first, last = suffixes
        raise ConfigError(
            f"{option} {text}: {what} {', '.join(first)}{' or ' if first else ''}{last}"
        )
    return path


@contextmanager
def _translate_write_errors(path: Path) -> Iterator[None]:
    """Raise a `LightkitError` if a file cannot be written."""
    try:
        yield
    except BrokenPipeError:  # the reader of a pipe has left, which is no error
        raise
    except OSError as error:
        reason = error.strerror or (str(error).splitlines() or [type(error).__name__])[0]
        raise LightkitError(
            f"{path}: the predictions cannot be written there ({reason}). Make room, or name"
            " another place."
        ) from error


@contextmanager
def write_predictions(
    output: Path,
    *,
    class_names: Sequence[str] | None,
    num_values: int = 0,
    top_k: TopK = None,
    contact_sheet: Path | None = None,
    task: Task = CLASSIFICATION,
    has_rows: bool = True,
) -> Iterator[PredictionWriter]:
    """Open a table and a page of thumbnails.

    They appear at the end of the block unless it ends in an exception.

    They are created at once, so that one that cannot be written is known before anything is
    predicted.

    Args:
        output: The table, in the format of its suffix; see `check_output_path`. Standard output
            gets each row at once.
        class_names: In the order of the values; None for a model without classes.
        num_values: Outputs of a model without classes.
        top_k: Number of classes of each image; 3 if None; ``all`` for a column of each class.
        contact_sheet: An HTML page, in addition.
        task: Of the model.
        has_rows: Whether each prediction is a row; else it is a mapping, and all are written as
            JSON lines.

    Raises:
        ConfigError: If a file cannot be created, or predictions that are no rows cannot be in it.
        LightkitError: If one cannot be written, as on a full disk.
    """
    columns: PredictionColumns
    if not has_rows:
        columns = _NamedParts()
        _refuse_rows(output, contact_sheet)
    elif task.form.has_masks and class_names is not None:
        columns = _make_mask_columns(output, class_names, task)
    else:
        columns = PredictionColumns(class_names, top_k, num_values, task=task)
    with ExitStack() as files:
        asides: dict[Path, Path] = {}
        for path in {output, contact_sheet} - {None, STANDARD_OUTPUT}:
            assert path is not None
            try:  # what a link leads to is replaced
                asides[path] = files.enter_context(atomic_write(path.resolve(), durable=False))
                asides[path].touch()
            except OSError as error:
                raise ConfigError(
                    f"{path.parent}: no file can be written there ({error.strerror})"
                ) from error
        with _translate_write_errors(output):
            suffix = ".csv" if output == STANDARD_OUTPUT else output.suffix.lower()
            open_table = TABLES[suffix] if has_rows else _PartLines
            table = open_table(asides.get(output, output), columns.names)
        writer = PredictionWriter(output, columns, table)
        try:
            yield writer
        except BaseException:
            with suppress(OSError, ValueError):  # reported before; pyarrow's error is the latter
                table.close()
            raise
        with _translate_write_errors(output):
            table.close()
        if contact_sheet is not None:
            page = writer.render_sheet()
            with _translate_write_errors(contact_sheet):
                asides[contact_sheet].write_text(page, encoding="utf-8")


def _make_mask_columns(output: Path, class_names: Sequence[str], task: Task) -> _MaskColumns:
    """Make the columns of masks, whose files are in a folder next to the table."""
    if output == STANDARD_OUTPUT:
        return _MaskColumns(
            class_names, task=task, folder=Path(f"predictions{FOLDER_ENDING}"), base=Path()
        )
    folder = output.with_name(f"{output.stem}{FOLDER_ENDING}")
    return _MaskColumns(class_names, task=task, folder=folder, base=output.parent)


def _refuse_rows(output: Path, contact_sheet: Path | None) -> None:
    """Refuse files that need a row or a number for each image.

    Raises:
        ConfigError: If there is one.
    """
    what = (
        "the model's predictions are no rows of numbers, one an image,"
        " but have parts of unequal size"
    )
    if output == STANDARD_OUTPUT or output.suffix.lower() != ".jsonl":
        raise ConfigError(
            f"--output {output}: {what}. Name a file that ends in .jsonl, for one line an image."
        )
    if contact_sheet is not None:
        raise ConfigError(
            f"--contact-sheet {contact_sheet}: {what}, which the page cannot show. Leave it out."
        )


class PredictionWriter:
    """Rows of a table of predictions, in the order of the images; `write_predictions` makes it.

    For the page of thumbnails it keeps, of many images, those whose likeliest class is least
    probable; of a model without classes the first ones.

    Args:
        output: Name of the table.
        columns: Of the table.
        table: Takes the rows.

    Attributes:
        num: Images so far.
        num_bad: Those among them without a prediction.
        bad: The first of these.
    """

    def __init__(self, output: Path, columns: PredictionColumns, table: RowWriter) -> None:
        self.num = self.num_bad = 0
        self.bad: list[Prediction] = []
        self._output = output
        self._columns = columns
        self._table = table
        self._chosen: list[tuple[float, int, Prediction]] = []  # a heap, the most certain on top

    def add(self, prediction: Prediction) -> None:
        """Write the next prediction.

        Raises:
            DataError: If it has more or fewer values than the table.
            LightkitError: If it cannot be written, as on a full disk.
        """
        values = prediction.values
        if values is not None and (defect := self._columns.find_defect(values)) is not None:
            prediction = replace(prediction, values=None, defect=defect)
            values = None
        self.num += 1
        if values is None:
            self.num_bad += 1
            self.bad += [prediction] if len(self.bad) < _MAX_BAD else []
        else:
            certainty = self._columns.task.form.rate_certainty(values)
            if isinstance(self._columns, _MaskColumns):
                with _translate_write_errors(self._columns.files.folder):
                    prediction = self._columns.write(prediction)
            item = (-certainty, -self.num, prediction)
            keep = heapq.heappush if len(self._chosen) < _MAX_THUMBNAILS else heapq.heappushpop
            keep(self._chosen, item)
        row = self._columns.row(prediction)
        with _translate_write_errors(self._output):
            self._table.add(row)

    def render_sheet(self) -> str:
        """Render the HTML page of thumbnails with their labels, least certain first.

        It needs no other file.

        The chosen images are read again.
        """
        from jinja2 import Environment, FileSystemLoader  # 0.1 s, only for this page

        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True
        )
        return environment.get_template("contact_sheet.html").render(
            num_good=self.num - self.num_bad,
            has_classes=self._columns.task.has_probabilities or self._columns.task.form.has_masks,
            legend=self._list_colors(),
            figures=[
                self._describe(prediction) for *_, prediction in sorted(self._chosen, reverse=True)
            ],
            num_bad=self.num_bad,
            bad=[
                (visible(item.path, in_line=True), visible(item.defect or "")) for item in self.bad
            ],
        )

    def _list_colors(self) -> list[tuple[str, str]]:
        """List the classes of masks, each with its colour; none of other predictions."""
        names = self._columns.class_names or ()
        if not isinstance(self._columns, _MaskColumns):
            return []
        colors = [f"rgb{color}" for color in choose_colors(len(names))]
        return [
            (visible(name, in_line=True), color)
            for name, color in zip(names[1:], colors[1:], strict=True)
        ]

    def _describe(self, prediction: Prediction) -> tuple[str, Any, str | None]:
        """Return path, classes or values, and thumbnail in base64.

        None if the image cannot be read any more.
        """
        described: Any = prediction.values
        if self._columns.task.has_probabilities or self._columns.task.form.has_masks:
            ranked = self._columns.rank(described)
            described = [(visible(name, in_line=True), probability) for name, probability in ranked]
        jpeg = None
        with suppress(DataError):  # it could be read a moment ago
            if isinstance(self._columns, _MaskColumns):
                name = self._columns.masks[prediction.index]
                image = self._columns.files.overlay(name, prediction.path)
            else:
                image = read_rgb(Path(prediction.path))
            image.thumbnail((_SIDE, _SIDE))
            image.save(content := BytesIO(), "JPEG", quality=80)
            jpeg = base64.b64encode(content.getvalue()).decode()
        return visible(prediction.path, in_line=True), described, jpeg

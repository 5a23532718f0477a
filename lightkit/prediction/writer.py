"""Write predictions to a table and a page of thumbnails."""

from __future__ import annotations

import base64
import heapq
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TextIO

import numpy as np

from lightkit.errors import ConfigError, DataError, LightkitError, visible
from lightkit.images.image_file import read_rgb
from lightkit.prediction.table import STANDARD_OUTPUT, TABLES, Prediction, PredictionColumns, RowWriter
from lightkit.runs.files import atomic_write

_MAX_BAD = 100
"""Images without a prediction that are kept, and listed on a page."""
_MAX_THUMBNAILS = 200
"""Images of a page, about 2 MB."""
_SIDE = 192  # pixels of a thumbnail's longer side
_PROGRESS_INTERVAL_S = 10.0


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
            f"{path}: the predictions cannot be written there ({reason}). Make room, or name another place."
        ) from error


@contextmanager
def write_predictions(
    output: Path,
    *,
    class_names: Sequence[str] | None,
    num_values: int = 0,
    top_k: int | None = None,
    contact_sheet: Path | None = None,
    progress: TextIO | None = None,
) -> Iterator[PredictionWriter]:
    """Open a table and a page of thumbnails, which appear at the end of the block unless it ends in an exception.

    They are created at once, so that one that cannot be written is known before anything is predicted.

    Args:
        output: The table, in the format of its suffix; see `check_output_path`. Standard output gets each row at once.
        class_names: In the order of the values; None for a model without classes.
        num_values: Outputs of a model without classes.
        top_k: Number of classes of each image; 3 if None.
        contact_sheet: An HTML page, in addition.
        progress: Gets a line every ten seconds.

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
            suffix = ".csv" if output == STANDARD_OUTPUT else output.suffix.lower()
            table = TABLES[suffix](asides.get(output, output), columns.names)
        writer = PredictionWriter(output, columns, table, progress)
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


class PredictionWriter:
    """Rows of a table of predictions, in the order of the images; `write_predictions` makes it.

    For the page of thumbnails it keeps, of many images, those whose likeliest class is least probable; of a model
    without classes the first ones.

    Args:
        output: Name of the table.
        columns: Of the table.
        table: Takes the rows.
        progress: Gets a line every ten seconds.

    Attributes:
        num: Images so far.
        num_bad: Those among them without a prediction.
        bad: The first of these.
    """

    def __init__(
        self, output: Path, columns: PredictionColumns, table: RowWriter, progress: TextIO | None = None
    ) -> None:
        self.num = self.num_bad = 0
        self.bad: list[Prediction] = []
        self._output, self._columns, self._table, self._progress = output, columns, table, progress
        self._chosen: list[tuple[float, int, Prediction]] = []  # a heap, the most certain on top
        self._begin = self._reported = time.monotonic()

    def add(self, prediction: Prediction) -> None:
        """Write the next prediction.

        Raises:
            DataError: If it has more or fewer values than the table.
            LightkitError: If it cannot be written, as on a full disk.
        """
        values, has_classes = prediction.values, self._columns.class_names is not None
        if has_classes and values is not None and not np.isfinite(values).all():
            defect = "the model's output has values that are no finite numbers"
            prediction, values = replace(prediction, values=None, defect=defect), None
        self.num += 1
        if values is None:
            self.num_bad += 1
            self.bad += [prediction] if len(self.bad) < _MAX_BAD else []
        else:
            item = (-float(values.max()) if has_classes else 0.0, -self.num, prediction)
            keep = heapq.heappush if len(self._chosen) < _MAX_THUMBNAILS else heapq.heappushpop
            keep(self._chosen, item)
        row = self._columns.row(prediction)
        with _translate_write_errors(self._output):
            self._table.add(row)
        now = time.monotonic()
        if self._progress is not None and now - self._reported >= _PROGRESS_INTERVAL_S:
            self._reported = now
            speed = self.num / (now - self._begin)
            print(f"predict  {self.num} images  {speed:.0f} images/s", file=self._progress, flush=True)

    def render_sheet(self) -> str:
        """Render the HTML page of thumbnails with their labels, least certain first; it needs no other file.

        The chosen images are read again.
        """
        from jinja2 import Environment, FileSystemLoader  # 0.1 s, only for this page

        chosen = [prediction for *_, prediction in sorted(self._chosen, reverse=True)]
        num_good = self.num - self.num_bad
        has_classes = self._columns.class_names is not None
        which, order = ("least certain", ", least certain first") if has_classes else ("first", "")
        part = f"The {which} {len(chosen)} of " if len(chosen) < num_good else ""
        loader = FileSystemLoader(Path(__file__).parent)
        page = Environment(loader=loader, autoescape=True, trim_blocks=True).get_template("contact_sheet.html")
        return page.render(
            summary=f"{part}{_count(num_good)}{order}.",
            figures=map(self._describe, chosen),
            bad=[(visible(item.path, in_line=True), visible(item.defect or "")) for item in self.bad],
            num_bad=self.num_bad,
            bad_heading=f"{_count(self.num_bad)} {'was' if self.num_bad == 1 else 'were'} not predicted",
        )

    def _describe(self, prediction: Prediction) -> tuple[str, list[str | tuple[str, str]], str | None]:
        """Return path, lines of the caption, and thumbnail in base64; None if it cannot be read any more."""
        values, lines = prediction.values, list[str | tuple[str, str]]()
        assert values is not None
        if self._columns.class_names is None:
            lines.append(f"{' '.join(f'{value:.4g}' for value in values[:4])}{' …' if values.size > 4 else ''}")
        else:
            lines += [(visible(name, in_line=True), f"{value:.1%}") for name, value in self._columns.rank(values)]
        content = None
        with suppress(DataError):  # it could be read a moment ago
            image = read_rgb(Path(prediction.path))
            image.thumbnail((_SIDE, _SIDE))
            image.save(jpeg := BytesIO(), "JPEG", quality=80)
            content = base64.b64encode(jpeg.getvalue()).decode()
        return visible(prediction.path, in_line=True), lines, content


def _count(num: int) -> str:
    return f"{num:,} image" if num == 1 else f"{num:,} images"

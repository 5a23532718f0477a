"""A page of thumbnails with their labels, least certain first, in one HTML file that needs no other and no network."""

from __future__ import annotations

import base64
import heapq
from io import BytesIO
from pathlib import Path

from lightkit.errors import DataError, visible
from lightkit.images.image_file import read_rgb
from lightkit.prediction.table import Prediction, PredictionColumns

_MAX_THUMBNAILS = 200
"""Images of a page, about 2 MB."""
_MAX_BAD = 100
"""Bad images of a page."""
_SIDE = 192  # pixels of a thumbnail's longer side


class ContactSheet:
    """Choose the images that are worth a look while they come, and render the page of them.

    Of many images it keeps those whose likeliest class is least probable; of a model without classes the first ones.

    Args:
        columns: Ranks the classes.
        max_thumbnails: Number of images that it keeps and shows.
    """

    def __init__(self, columns: PredictionColumns, *, max_thumbnails: int = _MAX_THUMBNAILS) -> None:
        self._columns = columns
        self._max_thumbnails = max_thumbnails
        self._chosen: list[tuple[float, int, Prediction]] = []  # a heap, the most certain on top
        self._bad: list[Prediction] = []
        self._num, self._num_bad = 0, 0

    def add(self, prediction: Prediction) -> None:
        """Consider an image."""
        if prediction.values is None:
            self._num_bad += 1
            self._bad += [prediction] if len(self._bad) < _MAX_BAD else []
            return
        certainty = 0.0 if self._columns.class_names is None else prediction.certainty
        item = (-certainty, -self._num, prediction)
        self._num += 1
        if len(self._chosen) < self._max_thumbnails:
            heapq.heappush(self._chosen, item)
        else:
            heapq.heappushpop(self._chosen, item)

    def render(self) -> str:
        """Render the HTML; this reads the chosen images again."""
        from jinja2 import Environment, FileSystemLoader  # 0.1 s, only for this page

        chosen = [prediction for *_, prediction in sorted(self._chosen, reverse=True)]
        has_classes = self._columns.class_names is not None
        which, order = ("least certain", ", least certain first") if has_classes else ("first", "")
        part = f"The {which} {len(chosen)} of " if len(chosen) < self._num else ""
        summary = f"{part}{_count(self._num)}{order}."
        loader = FileSystemLoader(Path(__file__).parent)
        page = Environment(loader=loader, autoescape=True, trim_blocks=True).get_template("contact_sheet.html")
        return page.render(
            summary=summary,
            figures=map(self._describe, chosen),
            bad=[(visible(item.path, in_line=True), visible(item.defect or "")) for item in self._bad],
            num_bad=self._num_bad,
            bad_heading=f"{_count(self._num_bad)} {'was' if self._num_bad == 1 else 'were'} not predicted",
        )

    def _describe(self, prediction: Prediction) -> tuple[str, list[str | tuple[str, str]], str | None]:
        """Return path, lines of the caption, and thumbnail in base64; None if it cannot be read any more."""
        values, lines = prediction.values, list[str | tuple[str, str]]()
        assert values is not None
        if self._columns.class_names is None:
            lines.append(f"{' '.join(f'{value:.4g}' for value in values[:4])}{' …' if values.size > 4 else ''}")
        else:
            lines += [(visible(name, in_line=True), f"{value:.1%}") for name, value in self._columns.rank(values)]
        jpeg = BytesIO()
        try:
            image = read_rgb(Path(prediction.path))
            image.thumbnail((_SIDE, _SIDE))
            image.save(jpeg, "JPEG", quality=80)
        except DataError:  # it could be read a moment ago
            return visible(prediction.path, in_line=True), lines, None
        return visible(prediction.path, in_line=True), lines, base64.b64encode(jpeg.getvalue()).decode()


def _count(num: int) -> str:
    return f"{num:,} image" if num == 1 else f"{num:,} images"

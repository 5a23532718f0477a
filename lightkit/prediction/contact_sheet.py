"""A page of thumbnails with their labels, least certain first, in one HTML file that needs no other and no network."""

from __future__ import annotations

import base64
import heapq
from collections.abc import Iterable, Sequence
from html import escape
from io import BytesIO
from pathlib import Path

from lightkit.errors import DataError, visible
from lightkit.images.reading import read_rgb
from lightkit.prediction.rows import Columns, Prediction

__all__ = ["MOST_BAD", "MOST_THUMBNAILS", "ContactSheet"]

MOST_THUMBNAILS = 200
"""Images on a page, about 2 MB."""
MOST_BAD = 100
"""Bad images on a page."""
_SIDE = 192  # pixels of a thumbnail's longer side

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --dim: #62676d; --line: #dcdfe3; --paper: #fff; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ea; --dim: #9aa1a8; --line: #383d42; --paper: #17191b; --bad: #f2897f; }
}
body { margin: 2rem auto; max-width: 84rem; padding: 0 1rem; color: var(--ink); background: var(--paper);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 0; }
p { color: var(--dim); margin: .25rem 0 1.25rem; }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(192px, 1fr)); gap: 1.25rem .9rem; }
figure { margin: 0; min-width: 0; }
figure img, .none { width: 100%; height: 192px; object-fit: contain; background: var(--line); border-radius: 4px; }
.none { display: grid; place-items: center; color: var(--dim); }
figcaption { margin-top: .35rem; overflow-wrap: anywhere; }
figcaption div { display: flex; justify-content: space-between; gap: .5rem; color: var(--dim); }
figcaption div:first-child { color: var(--ink); font-weight: 600; }
small, li span { color: var(--dim); font-size: .8rem; }
li { overflow-wrap: anywhere; margin: .3rem 0; } li span { color: var(--bad); }
"""

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Predictions</title>
<style>{style}</style>
</head>
<body>
<h1>Predictions</h1>
<p>{says}</p>
<main>
{figures}
</main>
{bad}</body>
</html>
"""


class ContactSheet:
    """Choose the images that are worth a look while they come, and make the page of them.

    Of many images it keeps those whose likeliest class is least probable; of a model without classes the first ones.

    Args:
        class_names: In the order of the values; None for a model without classes.
        top_k: How many classes of each image are told; 3 if None.
        most: How many images it keeps, and as many thumbnails the page has.
    """

    def __init__(
        self, class_names: Sequence[str] | None, top_k: int | None = None, *, most: int = MOST_THUMBNAILS
    ) -> None:
        self._columns = Columns(class_names, top_k)
        self._most = most
        self._chosen: list[tuple[float, int, Prediction]] = []  # a heap, the most certain on top
        self._bad: list[Prediction] = []
        self._num, self._num_bad = 0, 0

    def add(self, prediction: Prediction) -> None:
        """Consider an image."""
        if prediction.values is None:
            self._num_bad += 1
            self._bad += [prediction] if len(self._bad) < MOST_BAD else []
            return
        certainty = 0.0 if self._columns.class_names is None else prediction.certainty
        item = (-certainty, -self._num, prediction)
        self._num += 1
        if len(self._chosen) < self._most:
            heapq.heappush(self._chosen, item)
        else:
            heapq.heappushpop(self._chosen, item)

    def page(self) -> str:
        """Give the HTML; this reads the chosen images again."""
        chosen = [prediction for *_, prediction in sorted(self._chosen, reverse=True)]
        figures = "\n".join(self._figure(prediction) for prediction in chosen)
        return _PAGE.format(style=_STYLE, says=self._says(len(chosen)), figures=figures, bad=self._bad_list())

    def _says(self, num_shown: int) -> str:
        if not self._num:
            return "No image has a prediction."
        which = "" if self._columns.class_names is None else ", least certain first"
        if num_shown == self._num:
            return f"{_count(self._num)}{which}."
        first = "first" if self._columns.class_names is None else "least certain"
        return f"The {first} {num_shown} of {_count(self._num)}{which}."

    def _figure(self, prediction: Prediction) -> str:
        path, lines = escape(visible(prediction.path, in_line=True)), "".join(self._lines(prediction))
        caption = f"<figcaption>{lines}<small>{path}</small></figcaption>"
        return f'<figure title="{path}">{_picture(prediction.path)}{caption}</figure>'

    def _lines(self, prediction: Prediction) -> Iterable[str]:
        assert prediction.values is not None
        if self._columns.class_names is None:
            values = [f"{value:.4g}" for value in prediction.values[:4]]
            return [f"<div>{' '.join([*values, *(['…'] if prediction.values.size > 4 else [])])}</div>"]
        ranked = self._columns.ranked(prediction.values)
        return [
            f"<div><span>{escape(visible(name, in_line=True))}</span><span>{value:.1%}</span></div>"
            for name, value in ranked
        ]

    def _bad_list(self) -> str:
        if not self._num_bad:
            return ""
        items = "\n".join(
            f"<li>{escape(visible(bad.path, in_line=True))}<br><span>{escape(visible(bad.defect or ''))}</span></li>"
            for bad in self._bad
        )
        more = f"\n<p>The first {len(self._bad)} are listed.</p>" if self._num_bad > len(self._bad) else ""
        verb = "was" if self._num_bad == 1 else "were"
        return f"<h2>{_count(self._num_bad)} {verb} not predicted</h2>\n<ul>\n{items}\n</ul>{more}\n"


def _picture(path: str) -> str:
    try:
        image = read_rgb(Path(path))
    except DataError:  # it could be read a moment ago
        return '<div class="none">no longer readable</div>'
    image.thumbnail((_SIDE, _SIDE))
    written = BytesIO()
    image.save(written, "JPEG", quality=80)
    return f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(written.getvalue()).decode()}">'


def _count(num: int) -> str:
    return f"{num:,} image" if num == 1 else f"{num:,} images"

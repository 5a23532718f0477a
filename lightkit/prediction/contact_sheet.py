"""A page of thumbnails with their labels, least certain first, in one HTML file that needs no other and no network."""

from __future__ import annotations

import base64
import heapq
from html import escape
from io import BytesIO
from pathlib import Path

from lightkit.errors import DataError, visible
from lightkit.images.reading import read_rgb
from lightkit.prediction.table import Prediction, PredictionColumns

_MAX_THUMBNAILS = 200
"""Images of a page, about 2 MB."""
_MAX_BAD = 100
"""Bad images of a page."""
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
<p>{summary}</p>
<main>
{figures}
</main>
{bad}</body>
</html>
"""


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
        chosen = [prediction for *_, prediction in sorted(self._chosen, reverse=True)]
        has_classes = self._columns.class_names is not None
        order = ", least certain first" if has_classes else ""
        if not self._num:
            summary = "No image has a prediction."
        elif len(chosen) == self._num:
            summary = f"{_count(self._num)}{order}."
        else:
            summary = f"The {'least certain' if has_classes else 'first'} {len(chosen)} of {_count(self._num)}{order}."
        bad = ""
        if self._num_bad:
            items = "\n".join(
                f"<li>{_escape(item.path)}<br><span>{escape(visible(item.defect or ''))}</span></li>"
                for item in self._bad
            )
            more = f"\n<p>The first {len(self._bad)} are listed.</p>" if self._num_bad > len(self._bad) else ""
            verb = "was" if self._num_bad == 1 else "were"
            bad = f"<h2>{_count(self._num_bad)} {verb} not predicted</h2>\n<ul>\n{items}\n</ul>{more}\n"
        return _PAGE.format(style=_STYLE, summary=summary, figures="\n".join(map(self._figure, chosen)), bad=bad)

    def _figure(self, prediction: Prediction) -> str:
        values, path = prediction.values, _escape(prediction.path)
        assert values is not None
        if self._columns.class_names is None:
            lines = f"<div>{' '.join(f'{value:.4g}' for value in values[:4])}{' …' if values.size > 4 else ''}</div>"
        else:
            lines = "".join(
                f"<div><span>{_escape(name)}</span><span>{value:.1%}</span></div>"
                for name, value in self._columns.rank(values)
            )
        try:
            image = read_rgb(Path(prediction.path))
            image.thumbnail((_SIDE, _SIDE))
            image.save(jpeg := BytesIO(), "JPEG", quality=80)
            picture = f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(jpeg.getvalue()).decode()}">'
        except DataError:  # it could be read a moment ago
            picture = '<div class="none">no longer readable</div>'
        caption = f"<figcaption>{lines}<small>{path}</small></figcaption>"
        return f'<figure title="{path}">{picture}{caption}</figure>'


def _escape(text: str) -> str:
    return escape(visible(text, in_line=True))


def _count(num: int) -> str:
    return f"{num:,} image" if num == 1 else f"{num:,} images"
